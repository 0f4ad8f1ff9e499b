//! Reductions, normalisations and quantisation where ONNX's own cases do not look.

mod common;

use common::{assert_close, f32s, i64s, numbers, operator};
use orch_ir::{DType, Tensor};

const INF: f32 = f32::INFINITY;

#[test]
fn log_sum_exp_survives_extremes() {
    let of = |values: &[f32]| operator("ReduceLogSumExp").input(f32s(&[values.len()], values)).values()[0];
    assert_close(&[of(&[1e4, 1e4])], &[1e4 + std::f64::consts::LN_2]);
    assert_eq!(of(&[-INF, -INF]), f64::NEG_INFINITY);
    assert_eq!(of(&[INF, 0.0]), f64::INFINITY);
    assert_eq!(of(&[]), f64::NEG_INFINITY);
}

#[test]
fn axes_are_an_attribute_or_an_operand() {
    let x = || f32s(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(operator("ReduceMean").opset(11).ints("axes", &[-1]).input(x()).values(), [1.5, 3.5]);
    assert_eq!(operator("ReduceMean").input(x()).constant(i64s(&[1], &[0])).values(), [2.0, 3.0]);
    let empty = || operator("ReduceSumSquare").input(x()).constant(i64s(&[0], &[]));
    assert_eq!(empty().values(), [30.0]);
    assert_eq!(empty().int("noop_with_empty_axes", 1).values(), [1.0, 4.0, 9.0, 16.0]);
    let unknown = operator("ReduceSum").input(x()).input(i64s(&[1], &[0])).error();
    assert!(unknown.contains("operand 1 (axes) must be a constant"), "{unknown}");
    let twice = operator("ReduceSum").input(x()).constant(i64s(&[2], &[1, -1])).error();
    assert!(twice.contains("name an axis twice"), "{twice}");
}

#[test]
fn integers_stay_integers() {
    let x = || i64s(&[3], &[3, 4, 6]);
    for (op_type, want) in [("ReduceMean", 4.0), ("ReduceL2", 7.0), ("ReduceProd", 72.0), ("ReduceL1", 13.0)]
    {
        let y = operator(op_type).input(x()).run().remove(0);
        assert_eq!((y.dtype(), y.to_f64()), (DType::I64, vec![want]), "{op_type}");
    }
}

#[test]
fn variance_does_not_cancel() {
    // With mean 1e4 and deviation 1, mean of squares minus square of mean keeps no digit in f32.
    let x = || f32s(&[1, 4], &[9999.0, 10001.0, 9999.0, 10001.0]);
    let y = operator("LayerNormalization").input(x()).input(f32s(&[4], &[1.0; 4])).float("epsilon", 0.0);
    assert_close(&y.values(), &[-1.0, 1.0, -1.0, 1.0]);
    let instance = operator("InstanceNormalization").float("epsilon", 0.0);
    let one = || f32s(&[1], &[1.0]);
    let y = instance.input(f32s(&[1, 1, 2], &[9999.0, 10001.0])).input(one()).input(one());
    assert_close(&y.values(), &[0.0, 2.0]);
}

#[test]
fn batch_normalization_with_constants_is_one_factor_and_one_summand() {
    let vector = || f32s(&[2], &[0.5, 2.0]);
    let norm = operator("BatchNormalization").input(numbers(&[1, 2, 3]));
    let norm = norm.constant(vector()).constant(vector()).constant(vector()).constant(vector());
    assert_eq!(norm.primitives(), ["broadcast", "mul", "broadcast", "add"]);
    let x = numbers(&[1, 2, 3]).to_f64();
    let channel = |at: usize| [0.5, 2.0][at / 3];
    let want: Vec<f64> = (0..6)
        .map(|at| (x[at] - channel(at)) / (channel(at) + 1e-5f64).sqrt() * channel(at) + channel(at))
        .collect();
    assert_close(&norm.values(), &want);
}

#[test]
fn group_normalization_before_version_21_scales_groups() {
    let x = f32s(&[1, 4, 1], &[1.0, 3.0, 10.0, 30.0]);
    let norm = |opset, parameters: &[f32]| {
        let vector = || f32s(&[parameters.len()], parameters);
        let norm = operator("GroupNormalization").opset(opset).int("num_groups", 2).float("epsilon", 0.0);
        norm.input(x.clone()).input(vector()).input(vector()).values()
    };
    assert_close(&norm(18, &[1.0, 5.0]), &[0.0, 2.0, 0.0, 10.0]);
    assert_close(&norm(21, &[1.0, 2.0, 3.0, 4.0]), &[0.0, 4.0, 0.0, 8.0]);
}

#[test]
fn the_norm_of_zeros_divides_nothing() {
    let y = operator("LpNormalization").int("p", 2).input(f32s(&[2, 2], &[0.0, 0.0, 3.0, 4.0]));
    assert_close(&y.values(), &[0.0, 0.0, 0.6, 0.8]);
}

#[test]
fn quantised_blocks_share_a_scale() {
    let x = || Tensor::from_vec([2, 3], vec![1i8, 2, 3, 4, 5, 6]);
    let blocks = operator("DequantizeLinear").opset(21).int("axis", 1).int("block_size", 2);
    let y = blocks.input(x()).input(f32s(&[2, 2], &[1.0, 10.0, 100.0, 1000.0]));
    assert_eq!(y.values(), [1.0, 2.0, 30.0, 400.0, 500.0, 6000.0]);
    let wrong = operator("DequantizeLinear").opset(21).int("axis", 1).int("block_size", 2);
    assert!(wrong.input(x()).input(f32s(&[2, 3], &[1.0; 6])).error().contains("block_size 2"));
}

#[test]
fn quantisation_rounds_to_even_and_saturates() {
    let y =
        operator("QuantizeLinear").input(f32s(&[5], &[0.5, 1.5, 2.5, 1e9, -1e9])).input(f32s(&[], &[1.0]));
    let y = y.input(Tensor::scalar(10i8)).run().remove(0);
    assert_eq!(y.to_i64(), Some(vec![10, 12, 12, 127, -128]));
}
