//! Compares GPU kernels with the interpretation of their block graphs.

use super::kernels::outputs;
use super::{random_inputs, valid};
use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::lower::gpu::MugraphSchedule;
use orch_mugraph::lower::{Request, Stored, gpu};
use orch_mugraph::{MuGraph, Node, Precision, interpret, print};
use orch_thread::OperandPrecision;
use orch_thread::kernel::Kernel;
use orch_thread::print_thread;
use orch_thread::target::SM_90;

/// Operand precision, the type of stored tensors, and the relative error that they allow.
pub const KINDS: [(OperandPrecision, DType, f64); 5] = [
    (OperandPrecision::F32, DType::F32, 1e-5),
    (OperandPrecision::Tf32, DType::F32, 5e-3),
    (OperandPrecision::F16, DType::F32, 5e-3),
    (OperandPrecision::F16, DType::F16, 1e-2),
    (OperandPrecision::Bf16, DType::BF16, 5e-2),
];

/// Inputs rounded to a type.
pub fn rounded(inputs: &[Array<f64>], dtype: DType) -> Vec<Array<f64>> {
    let round = |x: f64| orch_ir::Tensor::from_f64(dtype, [1], &[x]).to_f64()[0];
    inputs.iter().map(|input| input.map(round)).collect()
}

/// Compares kernels with the interpretation of their block graphs.
pub fn check_stored(
    graph: &MuGraph,
    inputs: &[Array<f64>],
    stored: &[Stored],
    (precision, limit): (OperandPrecision, f64),
) {
    check_lowered(graph, inputs, stored, limit, |request| {
        gpu::lower(request, &SM_90, precision).unwrap_or_else(|e| panic!("{e}\n{}", print(graph)))
    });
}

/// [`check_stored`] for kernels that the caller lowers.
pub fn check_lowered(
    graph: &MuGraph,
    inputs: &[Array<f64>],
    stored: &[Stored],
    limit: f64,
    lower: impl FnMut(&Request<'_>) -> Kernel,
) {
    let expected = interpret(graph, inputs, Precision::F32).unwrap();
    let given = outputs(graph, inputs, stored, lower);
    for (expected, given) in expected.iter().zip(&given) {
        let error = relative_error(expected, given);
        assert!(error < limit, "{error:e}\n{}", print(graph));
    }
}

/// The largest difference relative to the largest magnitude. Rows that see nothing are NaN on both sides.
pub fn error(expected: &Array<f64>, given: &Array<f64>) -> f64 {
    let scale = expected.data.iter().fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()));
    let differences = expected.data.iter().zip(&given.data).map(|(a, b)| match a.is_nan() && b.is_nan() {
        true => 0.0,
        false if (a - b).is_finite() => (a - b).abs(),
        false => f64::INFINITY,
    });
    differences.fold(0.0, f64::max) / scale
}

/// The kernel of a graph under each of its schedules, the preferred one first.
pub fn ways(
    graph: &MuGraph,
    stored: &[Stored],
    precision: OperandPrecision,
) -> Vec<(MugraphSchedule, Kernel)> {
    let (kernel, _) = graph.nodes().find(|(_, node)| matches!(node, Node::Block(_))).unwrap();
    let request = Request { graph, kernel, stored, name: "k" };
    let schedules = gpu::schedules(&request, &SM_90, precision).unwrap().into_iter();
    let lower = |schedule| Some((schedule, gpu::lower_as(&request, &SM_90, precision, schedule).ok()?));
    let found: Vec<(MugraphSchedule, Kernel)> = schedules.filter_map(lower).collect();
    let preferred = gpu::lower(&request, &SM_90, precision).unwrap();
    assert_eq!(print_thread(&preferred.program), print_thread(&found[0].1.program), "{}", print(graph));
    found
}

/// Compares a graph's kernel under each of its schedules with the interpretation of the graph.
pub fn check_ways(
    graph: &MuGraph,
    stored: &[Stored],
    (precision, dtype, limit): (OperandPrecision, DType, f64),
) {
    let inputs = rounded(&random_inputs(graph, 7, 0.3), dtype);
    for (_, kernel) in ways(graph, stored, precision) {
        check_lowered(graph, &inputs, stored, limit, |_| kernel.clone());
    }
}

/// A GEMM `[rows, k] x [k, columns]` with normalised rows, in so many blocks and iterations.
pub fn normalised([rows, k, columns]: [usize; 3], blocks: usize, range: usize) -> MuGraph {
    valid(&format!(
        "mugraph \"n\" {{\n t0 = input \"x\" [{rows}, {k}]\n t1 = input \"w\" [{k}, {columns}]\n \
         t2 = block [{blocks}] loop {range} {{\n s0 = load t0 [-] 1\n s1 = load t1 [1] 0\n s2 = square s0\n \
         s3 = scale(1/{k}) s2\n s4 = sum(1) s3\n s5 = accumulate sum s4\n s6 = matmul s0, s1\n \
         s7 = accumulate sum s6\n s8 = offset(1/1000) s5\n s9 = sqrt s8\n s10 = div s7, s9\n \
         store s10 [1]\n }}\n output \"o\" t2\n}}\n"
    ))
}

/// Two GEMMs by the same A in one loop, one of which gates the other (gated MLP).
pub fn gated([rows, k, columns]: [usize; 3], blocks: usize, range: usize) -> MuGraph {
    valid(&format!(
        "mugraph \"g\" {{\n t0 = input \"x\" [{rows}, {k}]\n t1 = input \"w\" [{k}, {columns}]\n \
         t2 = input \"v\" [{k}, {columns}]\n t3 = block [{blocks}] loop {range} {{\n s0 = load t0 [-] 1\n \
         s1 = load t1 [1] 0\n s2 = load t2 [1] 0\n s3 = matmul s0, s1\n s4 = accumulate sum s3\n \
         s5 = matmul s0, s2\n s6 = accumulate sum s5\n s7 = silu s4\n s8 = mul s7, s6\n store s8 [1]\n }}\n \
         output \"o\" t3\n}}\n"
    ))
}

/// A GEMM with a low-rank adapter (LoRA): `x w + (x a) b`, `a` of 16 columns.
pub fn adapted([rows, k, columns]: [usize; 3], blocks: usize, range: usize) -> MuGraph {
    valid(&format!(
        "mugraph \"a\" {{\n t0 = input \"x\" [{rows}, {k}]\n t1 = input \"w\" [{k}, {columns}]\n \
         t2 = input \"a\" [{k}, 16]\n t3 = input \"b\" [16, {columns}]\n \
         t4 = block [{blocks}] loop {range} {{\n s0 = load t0 [-] 1\n s1 = load t1 [1] 0\n s2 = load t2 [-] 0\n \
         s3 = load t3 [1] -\n s4 = matmul s0, s1\n s5 = accumulate sum s4\n s6 = matmul s0, s2\n \
         s7 = accumulate sum s6\n s8 = matmul s7, s3\n s9 = add s5, s8\n store s9 [1]\n }}\n \
         output \"o\" t4\n}}\n"
    ))
}
