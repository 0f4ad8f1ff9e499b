//! The primitives of a program compute what the program does.

mod common;

use common::{program, random_inputs, resized};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{DType, Tensor};
use orch_mugraph::{InputKind, MuGraph, Precision, interpret, parse, primitives};

/// The largest difference between both, relative to the largest magnitude.
fn difference(program: &MuGraph) -> f64 {
    let mut inputs = random_inputs(program, 11, 0.5);
    // As the primitives' inputs are.
    inputs.iter_mut().flat_map(|input| &mut input.data).for_each(|x| *x = f64::from(*x as f32));
    let expected = interpret(program, &inputs, Precision::F64).unwrap_or_else(|error| panic!("{error}"));
    let graph = primitives(program).unwrap_or_else(|error| panic!("{error}"));
    let tensor = |(values, (_, _, kind)): (&orch_mugraph::array::Array<f64>, (_, _, InputKind))| {
        let dtype = if kind == InputKind::Mask { DType::Bool } else { DType::F32 };
        Tensor::from_f64(dtype, values.shape.clone(), &values.data)
    };
    let tensors: Vec<Tensor> = inputs.iter().zip(program.inputs()).map(tensor).collect();
    let given = evaluate(&graph, &tensors, &EvalOptions::wide()).unwrap_or_else(|error| panic!("{error}"));
    let mut worst = 0.0_f64;
    for (expected, given) in expected.iter().zip(&given) {
        assert_eq!(expected.shape, given.shape().to_vec());
        let largest = expected.data.iter().fold(1e-9_f64, |largest, value| largest.max(value.abs()));
        for (a, b) in expected.data.iter().zip(given.to_f64()) {
            worst = worst.max((a - b).abs() / largest);
        }
    }
    worst
}

#[test]
fn every_operator_has_primitives() {
    let bodies = [
        "t2 = matmul t0, t1\n t3 = gelu t2\n t4 = silu t3\n t5 = sigmoid t4\n output \"o\" t5",
        "t2 = square t0\n t3 = offset(1/2) t2\n t4 = sqrt t3\n t5 = log t4\n t6 = tanh t5\n output \"o\" t6",
        "t2 = relu t0\n t3 = erf t2\n t4 = exp t3\n t5 = scale(-2/3) t4\n t6 = sub t0, t5\n output \"o\" t6",
        "t2 = sum(2, 3) t0\n t3 = largest(1) t0\n t4 = div t3, t3\n output \"o\" t2\n output \"p\" t4",
        "t2 = rms_norm(1/1000) t0\n t3 = transpose(0, 2, 1) t1\n t4 = rotate(2, 3) t2\n t5 = concat(1) t4, t0\n \
         t6 = slice(1, 2, 5) t5\n t7 = repeat(2, 2) t6\n t8 = max t3, t3\n output \"o\" t7\n output \"p\" t8",
        "t2 = reshape(2, 3, 8) t0\n t3 = broadcast(2, 6, 8) t1\n output \"o\" t2\n output \"p\" t3",
        "t2 = mask \"m\" [2, 4, 6]\n t3 = mask t0, t2\n t4 = exp t3\n t5 = causal(1, 2, 4, 6)\n \
         t6 = mask t4, t5\n t7 = guard t6\n t8 = mul t7, t2\n output \"o\" t8",
    ];
    for body in bodies {
        let rows = if body.contains("broadcast") { 1 } else { 6 };
        let text = format!(
            "mugraph \"p\" {{\n t0 = input \"x\" [2, 4, 6]\n t1 = input \"w\" [1, {rows}, 8]\n {body}\n}}\n"
        );
        let program = parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let worst = difference(&program);
        // Constants of the primitives are f32.
        assert!(worst < 1e-6, "{worst}: {text}");
    }
}

#[test]
fn programs_of_the_paper_have_primitives() {
    for name in ["osdi_gqa", "osdi_rmsnorm", "osdi_gated_mlp", "osdi_lora", "osdi_ntrans", "mlp_adapter"] {
        let program = resized(&program(name), &[(256, 32), (4096, 256), (6144, 512), (8192, 256)]);
        let worst = difference(&program);
        assert!(worst < 1e-6, "{worst}: {name}");
    }
}

#[test]
fn a_block_graph_has_none() {
    let text = "mugraph \"p\" {\n t0 = input \"x\" [4]\n t1 = block [4] loop 1 {\n s0 = load t0 [0] -\n \
                s1 = square s0\n store s1 [0]\n }\n output \"o\" t1\n}\n";
    let program = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let error = primitives(&program).err().map(|error| error.to_string()).unwrap_or_default();
    assert_eq!(error, "t1 is defined by a block graph, not by an operator");
}
