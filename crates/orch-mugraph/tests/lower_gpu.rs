//! Kernels for GPUs compute what their block graphs say, without races, divergence or accesses out of bounds.

mod common;
#[path = "common/kernels.rs"]
mod kernels;

use common::{mugraph, program, random_inputs, resized, valid};
use kernels::{outputs, row_major};
use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::lower::{Stored, gpu};
use orch_mugraph::{BinaryFn, MuGraph, Precision, UnaryFn, VerifyOptions, interpret, print, stabilise};
use orch_tile::target::{SM_80, SM_90};
use orch_tile::templates::gpu::Factors;

/// Factors, the type of what is stored, and the relative error that they allow.
const KINDS: [(Factors, DType, f64); 5] = [
    (Factors::F32, DType::F32, 1e-5),
    (Factors::Tf32, DType::F32, 5e-3),
    (Factors::F16, DType::F32, 5e-3),
    (Factors::F16, DType::F16, 1e-2),
    (Factors::Bf16, DType::BF16, 5e-2),
];

fn rounded(inputs: &[Array<f64>], dtype: DType) -> Vec<Array<f64>> {
    let round = |x: f64| orch_ir::Tensor::from_f64(dtype, [1], &[x]).to_f64()[0];
    inputs.iter().map(|input| input.map(round)).collect()
}

/// Compares what kernels compute with what their block graphs mean.
fn check_stored(graph: &MuGraph, inputs: &[Array<f64>], stored: &[Stored], (factors, limit): (Factors, f64)) {
    let expected = interpret(graph, inputs, Precision::F32).unwrap();
    let given = outputs(graph, inputs, stored, |request| {
        gpu::lower(request, &SM_90, factors).unwrap_or_else(|e| panic!("{e}\n{}", print(graph)))
    });
    for (expected, given) in expected.iter().zip(&given) {
        let error = relative_error(expected, given);
        assert!(error < limit, "{factors:?}: {error:e}\n{}", print(graph));
    }
}

fn check(graph: &MuGraph, inputs: &[Array<f64>]) {
    for (factors, dtype, limit) in KINDS {
        check_stored(graph, &rounded(inputs, dtype), &row_major(graph, dtype), (factors, limit));
    }
}

#[test]
fn published_graphs_are_computed() {
    let sizes: [(&str, &[(usize, usize)]); 7] = [
        ("adapter_split", &[(8192, 256), (32, 2), (64, 4)]),
        ("gated_mlp", &[(4096, 128), (128, 4), (64, 4)]),
        ("gqa_split", &[(256, 32), (4096, 256), (8, 2), (16, 2), (64, 16)]),
        ("lora", &[(4096, 64), (64, 2), (256, 32)]),
        ("ntrans", &[(4096, 512), (8, 3)]),
        ("qknorm_wrong", &[(4096, 64), (256, 64), (64, 4)]),
        ("rmsnorm", &[(4096, 128), (6144, 96), (256, 3), (32, 4)]),
    ];
    for (name, sizes) in sizes {
        let graph = resized(&mugraph(name), sizes);
        check(&graph, &random_inputs(&graph, 5, 0.3));
    }
}
