//! Recurrent layers: left-out operands and attributes mean what ONNX says.

mod common;

use common::operator;
use orch_ir::Tensor;

fn ramp(dims: &[usize], scale: f32) -> Tensor {
    let count: usize = dims.iter().product();
    Tensor::from_vec(dims, (0..count).map(|at| (at % 7) as f32 * scale - 0.3).collect::<Vec<f32>>())
}

#[test]
fn operands_left_out_are_zeros_and_full_lengths() {
    for (op_type, gates, results) in [("RNN", 1, 2), ("GRU", 3, 2), ("LSTM", 4, 3)] {
        let layer = || {
            operator(op_type)
                .int("hidden_size", 3)
                .text("direction", "bidirectional")
                .outputs(results)
                .input(ramp(&[4, 2, 5], 0.1))
                .input(ramp(&[2, gates * 3, 5], 0.2))
                .input(ramp(&[2, gates * 3, 3], 0.15))
        };
        let mut explicit = layer()
            .input(Tensor::zeros(orch_ir::DType::F32, [2, 2 * gates * 3]))
            .input(Tensor::from_vec([2], vec![4i32, 4]))
            .input(Tensor::zeros(orch_ir::DType::F32, [2, 2, 3]));
        if op_type == "LSTM" {
            explicit = explicit
                .input(Tensor::zeros(orch_ir::DType::F32, [2, 2, 3]))
                .input(Tensor::zeros(orch_ir::DType::F32, [2, 9]));
        }
        let implicit = layer().run();
        assert_eq!(implicit, explicit.run(), "{op_type}");
        assert_eq!(implicit.len(), results);
        assert_eq!(implicit[0].shape()[..], [4, 2, 2, 3]);
    }
}

#[test]
fn layouts_differ_by_transposition() {
    let operands = |x: Tensor, layout: i64| {
        let layer = operator("GRU").int("layout", layout).outputs(2).input(x);
        layer.input(ramp(&[1, 9, 2], 0.2)).input(ramp(&[1, 9, 3], 0.1)).run()
    };
    let x = ramp(&[1, 4, 2], 0.1);
    let (time_first, batch_first) = (operands(x.reshaped([4, 1, 2]), 0), operands(x, 1));
    assert_eq!(time_first[0].shape()[..], [4, 1, 1, 3]);
    assert_eq!(batch_first[0].shape()[..], [1, 4, 1, 3]);
    assert_eq!(time_first[0].to_f64(), batch_first[0].to_f64());
}

#[test]
fn attributes_that_do_not_fit_are_refused() {
    let layer = || operator("RNN").outputs(2).input(ramp(&[1, 1, 2], 0.1)).input(ramp(&[1, 3, 2], 0.1));
    let layer = || layer().input(ramp(&[1, 3, 3], 0.1));
    assert_eq!(layer().run().len(), 2);
    assert!(layer().int("hidden_size", 4).error().contains("hidden_size is 4"));
    assert!(layer().text("direction", "sideways").error().contains("direction is sideways"));
}
