//! Kernels for GPUs compute what their block graphs say, without races, divergence or accesses out of bounds.

mod common;

use common::gpu::{KINDS, adapted, check_lowered, check_stored, gated, normalised, rounded};
use common::kernels::{outputs, row_major};
use common::{mugraph, program, random_inputs, resized, valid};
use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::lower::{Request, Stored, gpu};
use orch_mugraph::search::cost::SearchDevice;
use orch_mugraph::search::{SearchOptions, search};
use orch_mugraph::{
    BinaryFn, MuGraph, Node, Precision, TensorId, UnaryFn, VerifyOptions, interpret, print, stabilise,
};
use orch_thread::OperandPrecision;
use orch_thread::kernel::Kernel;
use orch_thread::target::{SM_80, SM_90};
use orch_thread::{Scope, print_thread};
use std::collections::BTreeSet;

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

/// The stable form of a candidate.
fn stable(program: &MuGraph, candidate: &MuGraph) -> MuGraph {
    let stable = stabilise(program, candidate, &VerifyOptions::default());
    stable.unwrap_or_else(|e| panic!("{e}\n{}", print(candidate))).graph
}

const SMALL: [(usize, usize); 5] = [(256, 32), (4096, 256), (64, 16), (262144, 2048), (1024, 64)];

#[test]
fn stable_split_attention_is_computed() {
    let program = resized(&program("osdi_gqa"), &SMALL);
    let sizes = [SMALL.as_slice(), &[(8, 2), (16, 2)]].concat();
    let graph = stable(&program, &resized(&mugraph("gqa_split"), &sizes));
    let mut inputs = random_inputs(&program, 11, 1.0);
    inputs[0] = inputs[0].map(|x| 30.0 / 4.0 * x);
    // With logits of a standard deviation of 30 the rounding of operands leaves no correct digits.
    check_stored(&graph, &inputs, &row_major(&graph, DType::F32), (OperandPrecision::F32, 1e-4));
    inputs[0] = inputs[0].map(|x| x / 30.0);
    check(&graph, &inputs);
}

#[test]
fn few_parts_are_combined_without_barriers() {
    for (parts, is_apart) in [(16, true), (32, true), (64, false)] {
        let graph = valid(&format!(
            "mugraph \"c\" {{\n t0 = input \"m\" [64, {parts}, 1]\n t1 = input \"s\" [64, {parts}, 1]\n \
             t2 = input \"v\" [64, {parts}, 32]\n t3 = block [16] loop 1 {{\n s0 = load t0 [0] -\n \
             s1 = load t1 [0] -\n s2 = load t2 [0] -\n s3 = largest(1) s0\n s4 = guard s3\n s5 = sub s0, s4\n \
             s6 = exp s5\n s7 = square s1\n s8 = mul s7, s6\n s9 = sum(1) s8\n s10 = mul s2, s6\n \
             s11 = sum(1) s10\n s12 = div s11, s9\n store s12 [0]\n }}\n output \"o\" t3\n}}\n"
        ));
        check(&graph, &random_inputs(&graph, 5, 1.0));
        let (kernel, stored) = (TensorId(3), row_major(&graph, DType::F32));
        let request = Request { graph: &graph, kernel, stored: &stored, name: "k" };
        let kernel = gpu::lower(&request, &SM_90, OperandPrecision::F16).unwrap_or_else(|e| panic!("{e}"));
        let text = print_thread(&kernel.program);
        assert_eq!(text.contains("barrier") || text.contains("shared"), !is_apart, "{text}");
    }
}

/// Attention in one kernel: heads, rows, keys and columns, rows of a block, iterations.
fn fused_attention(
    [heads, rows, keys, columns]: [usize; 4],
    blocks: usize,
    range: usize,
) -> (MuGraph, MuGraph) {
    let mut program = MuGraph::new("attention");
    let result = common::programs::attention(&mut program, [heads, rows, keys, columns], false).unwrap();
    program.output("o", result).unwrap();
    let fused = valid(&format!(
        "mugraph \"fused\" {{\n t0 = input \"q\" [{heads}, {rows}, {columns}]\n \
         t1 = input \"k\" [{heads}, {columns}, {keys}]\n t2 = input \"v\" [{heads}, {keys}, {columns}]\n \
         t3 = block [{heads}, {blocks}] loop {range} {{\n s0 = load t0 [0, 1] -\n s1 = load t1 [0, -] 2\n \
         s2 = load t2 [0, -] 1\n s3 = matmul s0, s1\n s4 = exp s3\n s5 = sum(2) s4\n s6 = accumulate sum s5\n \
         s7 = matmul s4, s2\n s8 = accumulate sum s7\n s9 = div s8, s6\n store s9 [0, 1]\n }}\n output \"o\" t3\n}}\n"
    ));
    (program, fused)
}

#[test]
fn fused_attention_is_computed() {
    // Warps split rows; rows and keys; keys; and keys that do not fill whole fragments.
    for ([heads, rows, keys, columns], blocks, range) in [
        ([1, 128, 64, 16], 2, 2),
        ([1, 64, 128, 16], 2, 4),
        ([2, 16, 256, 32], 1, 2),
        ([1, 8, 72, 16], 1, 3),
        ([1, 13, 40, 24], 4, 1),
        ([1, 130, 48, 16], 1, 3),
    ] {
        let (program, fused) = fused_attention([heads, rows, keys, columns], blocks, range);
        let inputs = random_inputs(&program, 3, 0.4);
        check(&fused, &inputs);
        check(&stable(&program, &fused), &inputs);
    }
}

/// Compares as [`check_stored`], with 16-bit operands, and gives the number of wgmma: in all kernels, and of those
/// whose B is MN-major.
fn check_tiles(graph: &MuGraph, inputs: &[Array<f64>], stored: &[Stored]) -> [usize; 2] {
    let mut counts = [0, 0];
    let factors = if stored[0].dtype == DType::F16 { OperandPrecision::F16 } else { OperandPrecision::Bf16 };
    outputs(graph, inputs, stored, |request| {
        let kernel = gpu::lower(request, &SM_90, factors).unwrap_or_else(|e| panic!("{e}\n{}", print(graph)));
        let text = print_thread(&kernel.program);
        let products = || text.lines().filter(|line| line.contains("wgmma "));
        // The wgmma of one product may occur in several places; each product has its own accumulators.
        let sums =
            |line: &str| line.split(['[', ' ']).find(|word| word.starts_with("product")).map(str::to_owned);
        counts[0] += products().map(sums).collect::<BTreeSet<_>>().len();
        let transposed = products().filter(|line| line.contains(", transposed"));
        counts[1] += transposed.map(sums).collect::<BTreeSet<_>>().len();
        let plain = gpu::lower(request, &SM_80, factors).expect("smaller tiles");
        assert!(!print_thread(&plain.program).contains("wgmma "));
        kernel
    });
    let limit = if factors == OperandPrecision::F16 { 1e-2 } else { 5e-2 };
    check_stored(graph, inputs, stored, (factors, limit));
    counts
}

#[test]
fn attention_uses_wgmma() {
    // Eight warps and four; queries that fit into registers and that do not; one panel of columns and two.
    for (dtype, [rows, keys, columns], range, least) in [
        (DType::F16, [128, 128, 64], 2, 2),
        (DType::BF16, [64, 128, 128], 2, 2),
        (DType::F16, [64, 128, 128], 1, 2),
        (DType::BF16, [128, 128, 192], 2, 2),
        // No whole panels of keys, or of columns.
        (DType::F16, [64, 96, 64], 2, 1),
        (DType::F16, [64, 128, 32], 2, 1),
        (DType::F16, [32, 128, 64], 2, 0),
    ] {
        let (program, fused) = fused_attention([1, rows, keys, columns], 1, range);
        let inputs = rounded(&random_inputs(&program, 3, 0.3), dtype);
        for graph in [stable(&program, &fused), fused] {
            let mut stored = row_major(&graph, dtype);
            assert_eq!(check_tiles(&graph, &inputs, &stored), [least, least], "{}", print(&graph));
            // Keys are stored as `[key, channel]`.
            stored[1].strides = vec![columns * keys, 1, columns];
            let by_terms = usize::from(rows >= 64 && columns % 64 == 0);
            let by_columns = usize::from(rows >= 64 && columns % 64 == 0);
            let expected = [by_terms + by_columns, by_columns];
            assert_eq!(check_tiles(&graph, &inputs, &stored), expected, "{}", print(&graph));
        }
    }
}

#[test]
fn products_by_wgmma_are_computed() {
    for (head, body, expected) in [
        // Two row tiles per warp, and an A operand that changes in the loop.
        (
            "t0 = input \"x\" [128, 128]\n t1 = input \"w\" [128, 64]\n",
            "block [1] loop 2 {\n s0 = load t0 [-] 1\n s1 = load t1 [-] 0\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n \
             store s3 [0]\n }",
            [1, 1],
        ),
        // Rows that are no multiple of 64, and a second operand that is transposed.
        (
            "t0 = input \"x\" [50, 64]\n t1 = input \"w\" [40, 64]\n",
            "block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = transpose(1, 0) s1\n \
             s3 = matmul s0, s2\n store s3 [0]\n }",
            [1, 0],
        ),
        // A batch dimension of both operands and of A alone; A does not change in the loop.
        (
            "t0 = input \"x\" [2, 64, 64]\n t1 = input \"w\" [2, 64, 128]\n",
            "block [1] loop 2 {\n s0 = load t0 [-] -\n s1 = load t1 [-] 2\n s2 = matmul s0, s1\n s3 = sum(2) s2\n \
             s4 = accumulate sum s3\n store s4 [0]\n }",
            [1, 1],
        ),
        (
            "t0 = input \"x\" [2, 64, 64]\n t1 = input \"w\" [1, 64, 64]\n",
            "block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s1\n store s2 [0]\n }",
            [1, 1],
        ),
        // A product before the loop, whose accumulators are the A operand of one in the loop.
        (
            "t0 = input \"x\" [64, 64]\n t1 = input \"w\" [64, 128]\n",
            "block [1] loop 2 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s1\n s3 = load t1 [-] 0\n \
             s4 = transpose(1, 0) s3\n s5 = matmul s2, s4\n s6 = sum(1) s5\n s7 = accumulate sum s6\n store s7 [0]\n }",
            [2, 1],
        ),
        // Tiles with other readers are not swizzled, nor are tiles that products read along both dimensions.
        (
            "t0 = input \"x\" [64, 64]\n t1 = input \"w\" [64, 64]\n",
            "block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s1\n s3 = add s2, s1\n \
             store s3 [0]\n }",
            [0, 0],
        ),
        (
            "t0 = input \"x\" [64, 64]\n t1 = input \"w\" [64, 64]\n",
            "block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = transpose(1, 0) s1\n \
             s3 = matmul s0, s1\n s4 = matmul s3, s2\n store s4 [0]\n }",
            [0, 0],
        ),
        // A square is no product of a tile that only others multiply.
        (
            "t0 = input \"x\" [64, 64]\n t1 = input \"w\" [64, 64]\n",
            "block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s0\n \
             s3 = matmul s2, s1\n store s3 [0]\n }",
            [1, 1],
        ),
    ] {
        let graph = valid(&format!("mugraph \"t\" {{\n {head} t2 = {body}\n output \"o\" t2\n}}\n"));
        for dtype in [DType::F16, DType::BF16] {
            let inputs = rounded(&random_inputs(&graph, 7, 0.2), dtype);
            let counts = check_tiles(&graph, &inputs, &row_major(&graph, dtype));
            assert_eq!(counts, expected, "{}", print(&graph));
        }
    }
}

#[test]
fn causal_and_padded_masks_are_computed() {
    let text = |mask: &str, heads: &str| {
        format!(
            "mugraph \"s\" {{\n t0 = input \"q\" [2, 24, 16]\n t1 = input \"k\" [2, 16, 32]\n \
             t2 = input \"v\" [2, 32, 16]\n t3 = {mask}\n t4, t5 = block [2, 4, 3] loop 2 {{\n s0 = load t0 [0, -, 1] -\n \
             s1 = load t1 [0, 2, -] 2\n s2 = load t2 [0, 1, -] 1\n s3 = load t3 [{heads}, 2, 1] 2\n s4 = matmul s0, s1\n \
             s5 = scale(1/4) s4\n s6 = mask s5, s3\n s7 = exp s6\n s8 = sum(2) s7\n s9 = accumulate sum s8\n \
             s10 = matmul s7, s2\n s11 = accumulate sum s10\n store s9 [0, 2, 1]\n store s11 [0, 2, 1]\n }}\n \
             t6 = sum(2) t4\n t7 = sum(2, 16) t5\n t8 = div t7, t6\n output \"o\" t8\n}}\n"
        )
    };
    let plain = |mask: &str| {
        valid(&format!(
            "mugraph \"m\" {{\n t0 = input \"q\" [2, 24, 16]\n t1 = input \"k\" [2, 16, 32]\n \
             t2 = input \"v\" [2, 32, 16]\n t3 = {mask}\n t4 = matmul t0, t1\n t5 = scale(1/4) t4\n t6 = mask t5, t3\n \
             t7 = exp t6\n t8 = sum(2) t7\n t9 = div t7, t8\n t10 = matmul t9, t2\n output \"o\" t10\n}}\n"
        ))
    };
    for mask in
        ["causal(0, 1, 24, 32)", "causal(8, 1, 24, 32)", "below(2, 13, 1, 24, 32)", "mask \"m\" [2, 24, 32]"]
    {
        let program = plain(mask);
        let graph = stable(&program, &valid(&text(mask, if mask.contains("[2,") { "0" } else { "-" })));
        let mut inputs = random_inputs(&program, 11, 0.5);
        if let Some(mask) = inputs.get_mut(3) {
            mask.data.iter_mut().step_by(32).for_each(|bit| *bit = 1.0);
        }
        check(&graph, &inputs);
    }
}

#[test]
fn remainders_of_rows_and_columns_are_left_out() {
    for text in [
        // 13 rows over 4 blocks, 21 columns over 3, a block without rows.
        "t0 = input \"x\" [13, 32]\n t1 = input \"w\" [32, 21]\n t2 = block [4, 3] loop 2 {\n s0 = load t0 [0, -] 1\n \
         s1 = load t1 [-, 1] 0\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n s4 = silu s3\n store s4 [0, 1]\n }",
        "t0 = input \"x\" [13, 40]\n t1 = input \"w\" [1, 40]\n t2 = block [5] loop 1 {\n s0 = load t0 [0] -\n \
         s1 = load t1 [-] -\n s2 = rms_norm(1/100) s0\n s3 = mul s2, s1\n store s3 [0]\n }",
        "t0 = input \"x\" [13, 7]\n t1 = input \"y\" [13, 7]\n t2 = block [5, 2] loop 1 {\n s0 = load t0 [0, 1] -\n \
         s1 = load t1 [0, 1] -\n s2 = add s0, s1\n s3 = repeat(1, 2) s2\n s4 = transpose(1, 0) s3\n store s4 [1, 0]\n }",
        "t0 = input \"x\" [13, 8]\n t1 = input \"w\" [8, 8]\n t2 = block [8] loop 2 {\n s0 = load t0 [0] 1\n \
         s1 = load t1 [-] 0\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n s4 = exp s3\n s5 = sum(1) s4\n s6 = div s4, s5\n \
         store s6 [0]\n }",
        "t0 = input \"x\" [9, 64]\n t1 = input \"w\" [64, 33]\n t2 = block [9, 2] loop 1 {\n s0 = load t0 [0, -] -\n \
         s1 = load t1 [-, 1] -\n s2 = matmul s0, s1\n store s2 [0, 1]\n }",
    ] {
        let graph = valid(&format!("mugraph \"r\" {{\n {text}\n output \"o\" t2\n}}\n"));
        check(&graph, &random_inputs(&graph, 7, 0.5));
    }
}

/// What the last iteration has past the end of tensors changes neither sums nor maxima.
#[test]
fn remainders_of_loops_add_nothing() {
    for text in [
        "t0 = input \"x\" [8, 13]\n t1 = input \"y\" [1, 13]\n t2 = block [4] loop 2 {\n s0 = load t0 [0] 1\n \
         s1 = load t1 [-] 1\n s2 = mul s0, s1\n s3 = sum(1) s2\n s4 = accumulate sum s3\n store s4 [0]\n }",
        // The largest of numbers below zero, with constants and positive factors; parts of 16 and one of 8.
        "t0 = input \"x\" [8, 40]\n t1 = input \"y\" [8, 1]\n t2 = block [2] loop 3 {\n s0 = load t0 [0] 1\n \
         s1 = offset(-9) s0\n s2 = scale(1/2) s1\n s3 = largest(1) s2\n s4 = accumulate max s3\n store s4 [0]\n }",
        // Products whose K is cut, and whose rows a grid cuts.
        "t0 = input \"x\" [50, 40]\n t1 = input \"w\" [40, 24]\n t2 = block [3, 2] loop 3 {\n s0 = load t0 [0, -] 1\n \
         s1 = load t1 [-, 1] 0\n s2 = silu s0\n s3 = matmul s2, s1\n s4 = accumulate sum s3\n store s4 [0, 1]\n }",
        "t0 = input \"x\" [8, 1000]\n t1 = input \"w\" [1000, 64]\n t2 = block [2] loop 8 {\n s0 = load t0 [-] 1\n \
         s1 = load t1 [1] 0\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n store s3 [1]\n }",
        // Exponentials without maxima, and a mask of numbers.
        "t0 = input \"x\" [8, 21]\n t1 = mask \"m\" [1, 21]\n t2 = block [4] loop 4 {\n s0 = load t0 [0] 1\n \
         s1 = load t1 [-] 1\n s2 = mask s0, s1\n s3 = exp s2\n s4 = sum(1) s3\n s5 = accumulate sum s4\n store s5 [0]\n }",
    ] {
        let graph = valid(&format!("mugraph \"r\" {{\n {text}\n output \"o\" t2\n}}\n"));
        check(&graph, &random_inputs(&graph, 7, 0.5));
    }
}

#[test]
fn remainders_that_are_combined_are_refused() {
    for text in [
        // What is past the end is not zero; parts of blocks that differ; a mean; an iteration without elements.
        "t0 = input \"x\" [8, 13]\n t1 = block [4] loop 2 {\n s0 = load t0 [0] 1\n s1 = offset(1) s0\n s2 = sum(1) s1\n \
         s3 = accumulate sum s2\n store s3 [0]\n }",
        "t0 = input \"x\" [8, 13]\n t1 = block [4] loop 2 {\n s0 = load t0 [0] 1\n s1 = sigmoid s0\n s2 = sum(1) s1\n \
         s3 = accumulate sum s2\n store s3 [0]\n }",
        "t0 = input \"x\" [8, 100]\n t1 = block [3] loop 5 {\n s0 = load t0 [1] 1\n s1 = sum(1) s0\n \
         s2 = accumulate sum s1\n store s2 [1]\n }",
        "t0 = input \"x\" [8, 100]\n t1 = block [3] loop 4 {\n s0 = load t0 [1] 1\n s1 = sum(1) s0\n \
         s2 = accumulate sum s1\n store s2 [1]\n }",
        "t0 = input \"x\" [8, 13]\n t1 = block [4] loop 2 {\n s0 = load t0 [0] 1\n s1 = rms_norm(1/100) s0\n \
         s2 = sum(1) s1\n s3 = accumulate sum s2\n store s3 [0]\n }",
        "t0 = input \"x\" [8, 9]\n t1 = block [4] loop 6 {\n s0 = load t0 [0] 1\n s1 = sum(1) s0\n \
         s2 = accumulate sum s1\n store s2 [0]\n }",
        "t0 = input \"x\" [13, 8]\n t1 = block [4] loop 1 {\n s0 = load t0 [0] -\n s1 = sum(0) s0\n store s1 [0]\n }",
    ] {
        let graph = valid(&format!("mugraph \"r\" {{\n {text}\n output \"o\" t1\n}}\n"));
        let stored = row_major(&graph, DType::F32);
        let request = orch_mugraph::lower::Request {
            graph: &graph,
            kernel: orch_mugraph::TensorId(1),
            stored: &stored,
            name: "k",
        };
        let error = gpu::lower(&request, &SM_80, OperandPrecision::F32).unwrap_err();
        assert!(error.0.contains("remainder"), "{error}");
    }
}

#[test]
fn tiles_that_do_not_fit_are_refused() {
    let graph = valid(
        "mugraph \"r\" {\n t0 = input \"x\" [64, 4096]\n t1 = input \"w\" [4096, 64]\n t2 = block [1] loop 1 {\n \
         s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = matmul s0, s1\n store s2 [0]\n }\n output \"o\" t2\n}\n",
    );
    let stored = row_major(&graph, DType::F32);
    let request = orch_mugraph::lower::Request {
        graph: &graph,
        kernel: orch_mugraph::TensorId(2),
        stored: &stored,
        name: "k",
    };
    let error = gpu::lower(&request, &SM_80, OperandPrecision::Tf32).unwrap_err();
    assert!(error.0.contains("bytes"), "{error}");
}

#[test]
fn every_function_is_computed_in_registers_and_in_shared_memory() {
    let unary = UnaryFn::NAMES.map(|(_, name)| format!("{name} s3"));
    let binary = BinaryFn::NAMES.map(|(_, name)| match name {
        "mask" => "mask s3, s1".to_owned(),
        name => format!("{name} s3, s4"),
    });
    let others = ["scale(-3/7) s3", "offset(5/3) s3", "rms_norm(1/10) s3"].map(str::to_owned);
    for op in unary.into_iter().chain(binary).chain(others) {
        // A product of positive numbers, so that roots and logarithms exist.
        let kind = if op.starts_with("mask") { "mask" } else { "input" };
        let graph = valid(&format!(
            "mugraph \"f\" {{\n t0 = input \"x\" [16, 16]\n t1 = {kind} \"y\" [16, 16]\n t2 = block [1] loop 1 {{\n \
             s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = square s0\n s3 = offset(1/2) s2\n s4 = square s1\n \
             s5 = {op}\n store s5 [0]\n }}\n t3 = block [1] loop 1 {{\n s0 = load t2 [-] -\n s1 = load t1 [-] -\n \
             s2 = square s0\n s3 = matmul s2, s2\n s4 = square s1\n s5 = {op}\n s6 = largest(1) s3\n \
             s7 = offset(1) s6\n s8 = div s5, s7\n store s8 [0]\n }}\n output \"a\" t2\n output \"b\" t3\n}}\n"
        ));
        let mut inputs = random_inputs(&graph, 9, 0.3);
        inputs[1].data.iter_mut().step_by(3).for_each(|y| *y = 1.0);
        if !op.starts_with("div") {
            inputs[1].data.iter_mut().step_by(2).for_each(|y| *y = 0.0);
        } else {
            inputs[1].data.iter_mut().for_each(|y| *y += 2.0);
        }
        let inputs = rounded(&inputs, DType::F16);
        check_infinite(&graph, &inputs);
    }
}

/// As [`check_stored`], where results may be infinite.
fn check_infinite(graph: &MuGraph, inputs: &[Array<f64>]) {
    let finite = |array: &Array<f64>| array.map(|x| if x.is_finite() { x } else { -1.0 });
    let expected = interpret(graph, inputs, Precision::F32).unwrap();
    for (factors, limit) in [(OperandPrecision::F32, 1e-5), (OperandPrecision::F16, 2e-2)] {
        let given = outputs(graph, inputs, &row_major(graph, DType::F32), |request| {
            gpu::lower(request, &SM_90, factors).unwrap_or_else(|e| panic!("{e}\n{}", print(graph)))
        });
        for (expected, given) in expected.iter().zip(&given) {
            let error = relative_error(&finite(expected), &finite(given));
            assert!(error < limit, "{factors:?}: {error:e}\n{}", print(graph));
        }
    }
}

#[test]
fn elements_are_moved() {
    for (shape, body) in [
        ([8, 24], "s1 = transpose(1, 0) s0\n s2 = slice(0, 3, 8) s1\n s3 = repeat(1, 3) s2\n store s3 [0]"),
        ([8, 24], "s1 = slice(1, 0, 5) s0\n s2 = concat(1) s0, s1, s0\n s3 = sum(1) s2\n store s3 [0]"),
        ([8, 24], "s1 = concat(0) s0, s0\n s2 = transpose(1, 0) s0\n s3 = matmul s1, s2\n store s3 [0]"),
        (
            [16, 16],
            "s1 = matmul s0, s0\n s2 = transpose(1, 0) s1\n s3 = add s1, s2\n s4 = exp s3\n s5 = matmul s4, s2\n store s5 [0]",
        ),
        (
            [16, 16],
            "s1 = matmul s0, s0\n s2 = sum(0) s1\n s3 = largest(1, 4) s1\n s4 = repeat(1, 4) s3\n s5 = add s4, s2\n store s5 [0]",
        ),
        ([24, 40], "s1 = transpose(1, 0) s0\n s2 = matmul s1, s0\n s3 = sum(0, 8) s2\n store s3 [0]"),
        (
            [24, 40],
            "s1 = slice(0, 0, 1) s0\n s2 = mul s0, s1\n s3 = repeat(0, 2) s2\n s4 = concat(0) s3, s0\n store s4 [0]",
        ),
        (
            [5, 7],
            "s1 = transpose(1, 0) s0\n s2 = matmul s0, s1\n s3 = matmul s1, s2\n s4 = tanh s3\n s5 = rms_norm(0) s4\n store s5 [0]",
        ),
    ] {
        let graph = valid(&format!(
            "mugraph \"m\" {{\n t0 = input \"x\" [{}, {}]\n t1 = block [1] loop 1 {{\n s0 = load t0 [-] -\n {body}\n }}\n \
             output \"o\" t1\n}}\n",
            shape[0], shape[1]
        ));
        check(&graph, &random_inputs(&graph, 2, 0.4));
    }
}

#[test]
fn loops_carry_values_in_shared_memory() {
    let head = "mugraph \"l\" {\n t0 = input \"x\" [12, 48]\n t1 = block [3] loop 4 {\n s0 = load t0 [0] 1\n";
    for body in [
        "s1 = square s0\n s2 = accumulate sum s1\n s3 = accumulate max s0\n s4 = sub s2, s3\n store s4 [0]",
        "s1 = largest(1) s0\n s2 = running_max s1\n s3 = guard s2\n s4 = sub s0, s3\n s5 = exp s4\n \
         s6 = accumulate rescaled s2 1 s5\n s7 = sum(1) s5\n s8 = accumulate rescaled s2 1 s7\n s9 = div s6, s8\n \
         store s9 [0]",
        "s1 = largest(1, 3) s0\n s2 = accumulate max s1\n s3 = sum(1, 3) s0\n s4 = accumulate sum s3\n s5 = add s2, s4\n \
         store s5 [0]",
        "s1 = transpose(1, 0) s0\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n s4 = exp s2\n s5 = accumulate max s4\n \
         s6 = running_max s2\n s7 = matmul s6, s6\n s8 = accumulate sum s7\n s9 = add s8, s3\n s10 = add s9, s5\n \
         store s10 [0]",
    ] {
        let graph = valid(&format!("{head} {body}\n }}\n output \"o\" t1\n}}\n"));
        check(&graph, &random_inputs(&graph, 4, 0.5));
    }
}

#[test]
fn tensors_lie_anywhere() {
    let (_, graph) = fused_attention([2, 16, 32, 16], 1, 2);
    let inputs = random_inputs(&graph, 6, 0.4);
    for dtype in [DType::F32, DType::F16] {
        let mut stored = row_major(&graph, dtype);
        // Both heads have the same queries; keys `[key, channel]`; values with gaps, at an odd offset.
        stored[0] = Stored { dtype, strides: vec![0, 16, 1], offset: 0, elems: 256, band: None };
        stored[1] = Stored { dtype, strides: vec![512, 1, 16], offset: 0, elems: 1024, band: None };
        stored[2] = Stored { dtype, strides: vec![33 * 17, 17, 1], offset: 5, elems: 1200, band: None };
        stored[3] = Stored { dtype, strides: vec![16, 32, 1], offset: 0, elems: 512, band: None };
        let mut inputs = rounded(&inputs, dtype);
        let (first, second) = inputs[0].data.split_at_mut(256);
        second.copy_from_slice(first);
        for factors in [OperandPrecision::F32, OperandPrecision::Tf32, OperandPrecision::F16] {
            check_stored(&graph, &inputs, &stored, (factors, 1e-2));
        }
    }
}

#[test]
fn batches_of_matrices_are_multiplied() {
    let graph = valid(
        "mugraph \"b\" {\n t0 = input \"x\" [3, 8, 32]\n t1 = input \"w\" [1, 32, 24]\n t2 = input \"v\" [3, 24, 8]\n \
         t3 = block [1] loop 2 {\n s0 = load t0 [-] 2\n s1 = load t1 [-] 1\n s2 = load t2 [-] -\n s3 = matmul s0, s1\n \
         s4 = accumulate sum s3\n s5 = relu s4\n s6 = matmul s5, s2\n s7 = sum(2) s6\n s8 = add s6, s7\n store s8 [0]\n }\n \
         output \"o\" t3\n}\n",
    );
    check(&graph, &random_inputs(&graph, 8, 0.3));
}

#[test]
fn products_that_registers_do_not_hold_are_multiplied() {
    let graph = valid(
        "mugraph \"b\" {\n t0 = input \"x\" [70, 1, 8]\n t1 = input \"w\" [70, 8, 8]\n t2 = block [1] loop 2 {\n \
         s0 = load t0 [-] 2\n s1 = load t1 [-] 1\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n s4 = relu s3\n \
         store s4 [0]\n }\n output \"o\" t2\n}\n",
    );
    check(&graph, &random_inputs(&graph, 8, 0.3));
}

/// Kernels for less and less shared memory compute the same, until it is too small.
/// Attention of 128 rows whose queries are scaled in the kernel: the scaled operand takes the place of the loaded tile, and the
/// results that of the operand, so that shared memory holds one tile of 128 rows beside the stages of keys and values.
#[test]
fn scaled_queries_and_results_share_their_memory() {
    let (heads, rows, keys, columns) = (1, 256, 256, 64);
    let (scale, blocks, range) = ("scale(1/8)", 2, 4);
    let scaled = valid(&format!(
        "mugraph \"scaled\" {{\n t0 = input \"q\" [{heads}, {rows}, {columns}]\n \
         t1 = input \"k\" [{heads}, {columns}, {keys}]\n t2 = input \"v\" [{heads}, {keys}, {columns}]\n \
         t3 = block [{heads}, {blocks}] loop {range} {{\n s0 = load t0 [0, 1] -\n s1 = load t1 [0, -] 2\n \
         s2 = load t2 [0, -] 1\n s3 = {scale} s0\n s4 = matmul s3, s1\n s5 = exp s4\n s6 = sum(2) s5\n \
         s7 = matmul s5, s2\n s8 = accumulate sum s6\n s9 = accumulate sum s7\n s10 = div s9, s8\n \
         store s10 [0, 1]\n }}\n output \"o\" t3\n}}\n"
    ));
    let inputs = rounded(&random_inputs(&scaled, 7, 0.4), DType::F16);
    let stored = row_major(&scaled, DType::F16);
    let mut bytes = Vec::new();
    let given = outputs(&scaled, &inputs, &stored, |request| {
        let kernel = gpu::lower_as(request, &SM_90, OperandPrecision::F16, gpu::MugraphSchedule::PLAIN)
            .unwrap_or_else(|e| panic!("{e}"));
        let shared = kernel.program.buffers.iter().filter(|buffer| buffer.scope == Scope::Shared);
        bytes = shared.map(|buffer| buffer.elems * buffer.dtype.size_bytes()).collect();
        kernel
    });
    let expected = interpret(&scaled, &inputs, Precision::F32).unwrap();
    assert!(relative_error(&expected[0], &given[0]) < 1e-2);
    let tile = rows / blocks * (columns + 8) * 2;
    assert_eq!(bytes.iter().filter(|&&own| own == tile).count(), 1, "{bytes:?}");
    assert_eq!(bytes.len(), 3, "queries, keys and values: {bytes:?}");
}

#[test]
fn stages_are_fewer_where_shared_memory_is_short() {
    let (program, fused) = fused_attention([1, 16, 128, 16], 1, 8);
    let normalised = valid(
        "mugraph \"n\" {\n t0 = input \"x\" [4, 256]\n t1 = input \"y\" [4, 256]\n t2 = block [2] loop 1 {\n \
         s0 = load t0 [0] -\n s1 = load t1 [0] -\n s2 = rms_norm(0) s0\n s3 = mul s2, s1\n s4 = rms_norm(0) s3\n \
         store s4 [0]\n }\n output \"o\" t2\n}\n",
    );
    for (graph, least) in [(stable(&program, &fused), 3), (normalised, 2)] {
        let inputs = rounded(&random_inputs(&graph, 3, 0.4), DType::F16);
        let stored = row_major(&graph, DType::F16);
        let expected = interpret(&graph, &inputs, Precision::F32).unwrap();
        let mut target = SM_90.clone();
        let mut sizes = Vec::new();
        loop {
            let mut fits = true;
            let given = outputs(&graph, &inputs, &stored, |request| {
                let kernel = gpu::lower(request, &target, OperandPrecision::F16);
                fits = kernel.is_ok();
                let kernel =
                    kernel.unwrap_or_else(|_| gpu::lower(request, &SM_90, OperandPrecision::F16).unwrap());
                target.shared_bytes = kernel.program.shared_bytes() - 1;
                kernel
            });
            if !fits {
                break;
            }
            sizes.push(target.shared_bytes);
            let error = relative_error(&expected[0], &given[0]);
            assert!(error < 1e-2, "{error:e} with {target:?}\n{}", print(&graph));
        }
        assert!(sizes.len() >= least, "{sizes:?}");
    }
}

#[test]
fn eight_warps_share_rows_and_columns() {
    let graph = valid(
        "mugraph \"w\" {\n t0 = input \"q\" [64, 16]\n t1 = input \"k\" [16, 256]\n t2 = input \"v\" [256, 8]\n \
         t3 = block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = load t1 [-] -\n s2 = load t2 [-] -\n s3 = matmul s0, s1\n \
         s4 = exp s3\n s5 = sum(1) s4\n s6 = matmul s4, s2\n s7 = div s6, s5\n store s7 [0]\n }\n output \"o\" t3\n}\n",
    );
    let inputs = random_inputs(&graph, 3, 0.4);
    for (factors, dtype, limit) in [KINDS[0], KINDS[3]] {
        check_stored(&graph, &rounded(&inputs, dtype), &row_major(&graph, dtype), (factors, limit));
    }
}

/// The µGraphs that the search finds for small programs, in stable form where there is one. For a modelled GPU with few
/// SMs graphs have few blocks with much work each.
#[test]
fn graphs_that_the_search_finds_are_computed() {
    for (name, sizes, cores) in [
        ("gqa_inc", [(4096, 64), (64, 16), (8, 8)], 4),
        ("mlp_adapter", [(8192, 64), (16, 16), (8, 8)], 4),
        ("osdi_rmsnorm", [(4096, 64), (6144, 48), (2, 2)], 4),
        ("osdi_rmsnorm", [(4096, 64), (6144, 48), (2, 2)], 128),
        ("moe", [(4096, 32), (8, 4), (2, 2)], 4),
        ("moe", [(4096, 32), (8, 2), (2, 2)], 128),
    ] {
        let program = resized(&program(name), &sizes);
        let machine = SearchDevice { cores, ..SearchDevice::default() };
        let options = SearchOptions { threads: 2, machine, ..SearchOptions::default() };
        let (found, _) = search(&program, &options).unwrap();
        assert!(!found.is_empty(), "{name}");
        let inputs = random_inputs(&program, 5, 0.3);
        for found in found.iter().take(2) {
            let rewritten = orch_mugraph::stabilise::unstable(&found.graph).and_then(|place| {
                let group = orch_mugraph::stabilise::analyse(&found.graph, place).ok()?;
                orch_mugraph::stabilise::rewrite(&found.graph, &group).ok()
            });
            let graph = rewritten.unwrap_or_else(|| found.graph.clone());
            for (factors, dtype, limit) in [KINDS[0], KINDS[3]] {
                let inputs = rounded(&inputs, dtype);
                check_stored(&graph, &inputs, &row_major(&graph, dtype), (factors, limit));
            }
        }
    }
}

#[test]
fn graphs_of_several_outputs_are_computed() {
    for (inputs, body) in [
        (
            "t0 = input \"x\" [16, 64]\n t1 = input \"r\" [16, 64]",
            "t2 = add t0, t1\n t3 = rms_norm(0) t2\n output \"sum\" t2\n output \"norm\" t3",
        ),
        (
            "t0 = input \"x\" [16, 64]\n t1 = input \"w\" [64, 48]\n t2 = input \"u\" [64, 48]",
            "t3 = rms_norm(0) t0\n t4 = matmul t3, t1\n t5 = matmul t3, t2\n output \"k\" t4\n output \"v\" t5",
        ),
        (
            "t0 = input \"q\" [2, 16, 32]\n t1 = input \"k\" [2, 32, 64]\n t2 = input \"v\" [2, 64, 32]",
            "t3 = matmul t0, t1\n t4 = exp t3\n t5 = sum(2) t4\n t6 = div t4, t5\n t7 = matmul t6, t2\n \
             output \"o\" t7\n output \"sums\" t5",
        ),
    ] {
        let program = valid(&format!("mugraph \"p\" {{\n {inputs}\n {body}\n}}\n"));
        let options = SearchOptions { threads: 2, ..SearchOptions::default() };
        let (found, _) = search(&program, &options).unwrap_or_else(|e| panic!("{e}"));
        assert!(found.iter().any(|found| found.graph.kernels() == 1));
        let inputs = random_inputs(&program, 5, 0.3);
        for found in found.iter().take(4) {
            for (factors, dtype, limit) in [KINDS[0], KINDS[3]] {
                let inputs = rounded(&inputs, dtype);
                check_stored(&found.graph, &inputs, &row_major(&found.graph, dtype), (factors, limit));
            }
        }
    }
}

#[test]
fn tiles_of_few_dimensions_are_computed() {
    for text in [
        "t0 = input \"x\" [40]\n t1 = block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = rms_norm(1/10) s0\n \
         s2 = sum(0) s1\n s3 = slice(0, 3, 20) s1\n s4 = mul s3, s2\n store s4 [0]\n }",
        "t0 = input \"x\" [40]\n t1 = block [4] loop 5 {\n s0 = load t0 [0] 0\n s1 = exp s0\n s2 = accumulate max s1\n \
         s3 = repeat(0, 2) s2\n store s3 [0]\n }",
        "t0 = input \"x\" []\n t1 = block [1] loop 1 {\n s0 = load t0 [-] -\n s1 = tanh s0\n s2 = add s1, s0\n \
         store s2 [-]\n }",
    ] {
        let graph = valid(&format!("mugraph \"d\" {{\n {text}\n output \"o\" t1\n}}\n"));
        check(&graph, &random_inputs(&graph, 7, 0.5));
    }
}

/// The kernel under the plain schedule, with direct loads of B.
fn by_threads(request: &Request<'_>, precision: OperandPrecision) -> Kernel {
    gpu::lower_as(request, &SM_90, precision, gpu::MugraphSchedule::PLAIN).unwrap_or_else(|e| panic!("{e}"))
}

/// Whether a kernel loads a B operand from global memory to registers directly.
fn streams(graph: &MuGraph, stored: &[Stored], factors: OperandPrecision) -> bool {
    let mut found = false;
    for (kernel, _) in graph.nodes().filter(|(_, node)| matches!(node, Node::Block(_))) {
        let request = Request { graph, kernel, stored, name: "k" };
        let kernel = by_threads(&request, factors);
        found |= kernel.program.buffers.iter().any(|buffer| buffer.name == "stream");
    }
    found
}

/// Skinny GEMMs: normalised rows, two products in one loop, a product of few columns beside one of many, and
/// loops of one iteration.
#[test]
fn skinny_gemms_load_b_directly() {
    for rows in [1, 2, 16, 40, 64] {
        let single = valid(&format!(
            "mugraph \"s\" {{\n t0 = input \"x\" [{rows}, 640]\n t1 = input \"w\" [640, 128]\n \
             t2 = block [2] loop 1 {{\n s0 = load t0 [-] -\n s1 = load t1 [1] -\n s2 = relu s0\n \
             s3 = matmul s2, s1\n s4 = exp s3\n store s4 [1]\n }}\n output \"o\" t2\n}}\n"
        ));
        for graph in [
            normalised([rows, 256, 192], 3, 2),
            gated([rows, 384, 64], 2, 3),
            adapted([rows, 512, 128], 2, 2),
            single,
        ] {
            assert!(
                streams(&graph, &row_major(&graph, DType::F16), OperandPrecision::F16),
                "{}",
                print(&graph)
            );
            let inputs = random_inputs(&graph, 7, 0.3);
            for (factors, dtype, limit) in [KINDS[3], KINDS[4]] {
                let (inputs, stored) = (rounded(&inputs, dtype), row_major(&graph, dtype));
                check_lowered(&graph, &inputs, &stored, limit, |request| by_threads(request, factors));
            }
        }
    }
}

#[test]
fn direct_loads_have_remainders_and_cross_iterations() {
    for (inputs, grid, range) in [
        // Blocks with fewer rows, and with fewer columns: in vectors of 4 and of 8.
        (["[31, 256]", "[256, 156]"], "[2, 5]", 2),
        (["[2, 128]", "[128, 568]"], "[1, 9]", 1),
        // Registers hold several short iterations, one, and less than one.
        (["[3, 1536]", "[1536, 32]"], "[1, 1]", 12),
        (["[3, 640]", "[640, 32]"], "[1, 1]", 5),
        (["[2, 2048]", "[2048, 64]"], "[1, 1]", 2),
        (["[2, 1024]", "[1024, 64]"], "[1, 1]", 1),
    ] {
        let [x, w] = inputs;
        let (along, steps) = match range {
            1 => (["-", "-"], "s2 = matmul s0, s1\n s3 = relu s2\n store s3 [0, 1]"),
            _ => (["1", "0"], "s2 = matmul s0, s1\n s3 = accumulate sum s2\n store s3 [0, 1]"),
        };
        let graph = valid(&format!(
            "mugraph \"s\" {{\n t0 = input \"x\" {x}\n t1 = input \"w\" {w}\n t2 = block {grid} loop {range} {{\n \
             s0 = load t0 [0, -] {}\n s1 = load t1 [-, 1] {}\n {steps}\n }}\n output \"o\" t2\n}}\n",
            along[0], along[1]
        ));
        let stored = row_major(&graph, DType::F16);
        assert!(streams(&graph, &stored, OperandPrecision::F16), "{}", print(&graph));
        let inputs = rounded(&random_inputs(&graph, 3, 0.3), DType::F16);
        check_lowered(&graph, &inputs, &stored, 1e-2, |request| by_threads(request, OperandPrecision::F16));
    }
}

/// Sums over iterations of sums of products, and of products with a loop-invariant operand.
#[test]
fn sums_of_products_share_accumulators() {
    for (body, streamed) in [
        (
            "s4 = matmul s0, s1\n s5 = matmul s0, s2\n s6 = matmul s5, s3\n s7 = add s4, s6\n s8 = accumulate sum s7",
            true,
        ),
        (
            "s4 = matmul s0, s1\n s5 = add s4, s4\n s6 = accumulate sum s5\n s7 = add s6, s3\n s8 = add s7, s6",
            true,
        ),
        (
            "s4 = matmul s2, s3\n s5 = add s1, s4\n s6 = matmul s0, s5\n s7 = accumulate sum s6\n s8 = silu s7",
            true,
        ),
        (
            "s4 = matmul s2, s3\n s5 = add s4, s1\n s6 = matmul s0, s5\n s7 = accumulate sum s6\n s8 = relu s7",
            true,
        ),
        // A product with two readers, and a loop-invariant summand.
        (
            "s4 = matmul s0, s1\n s5 = relu s4\n s6 = add s4, s5\n s7 = accumulate sum s6\n s8 = add s7, s3",
            false,
        ),
        (
            "s4 = matmul s0, s1\n s5 = sum(0) s3\n s6 = add s4, s5\n s7 = accumulate sum s6\n s8 = add s7, s5",
            false,
        ),
    ] {
        let rows = if body.contains("add s6, s3") || body.contains("add s7, s3") { 16 } else { 33 };
        let graph = valid(&format!(
            "mugraph \"s\" {{\n t0 = input \"x\" [{rows}, 256]\n t1 = input \"w\" [256, 64]\n \
             t2 = input \"a\" [256, 16]\n t3 = input \"c\" [16, 64]\n t4 = block [1] loop 2 {{\n \
             s0 = load t0 [-] 1\n s1 = load t1 [-] 0\n s2 = load t2 [-] 0\n s3 = load t3 [-] -\n {body}\n \
             store s8 [-]\n }}\n output \"o\" t4\n}}\n"
        ));
        let stored = row_major(&graph, DType::F16);
        assert_eq!(streams(&graph, &stored, OperandPrecision::F16), streamed, "{}", print(&graph));
        check(&graph, &random_inputs(&graph, 5, 0.3));
    }
}

#[test]
fn other_operands_are_not_loaded_directly() {
    let graph = |rows: usize, body: &str| {
        valid(&format!(
            "mugraph \"s\" {{\n t0 = input \"x\" [{rows}, 256]\n t1 = input \"w\" [256, 64]\n t2 = block [1] loop 2 {{\n \
             s0 = load t0 [-] 1\n s1 = load t1 [-] 0\n s2 = matmul s0, s1\n s3 = accumulate sum s2\n {body}\n }}\n \
             output \"o\" t2\n}}\n"
        ))
    };
    let plain = graph(16, "store s3 [0]");
    let f16 = row_major(&plain, DType::F16);
    assert!(streams(&plain, &f16, OperandPrecision::F16));
    // Operands of different types, B contiguous along K, rows that are no multiple of a vector.
    assert!(!streams(&plain, &row_major(&plain, DType::F32), OperandPrecision::F16));
    assert!(!streams(&plain, &f16, OperandPrecision::Bf16));
    for (strides, offset) in [([1, 256], 0), ([65, 1], 0), ([64, 1], 4)] {
        let mut stored = f16.clone();
        stored[1] =
            Stored { dtype: DType::F16, strides: strides.to_vec(), offset, elems: 256 * 65, band: None };
        assert!(!streams(&plain, &stored, OperandPrecision::F16), "{strides:?} {offset}");
    }
    // Many rows, and a tile that is read twice.
    for other in [
        graph(80, "store s3 [0]"),
        graph(16, "s4 = sum(0) s1\n s5 = accumulate sum s4\n s6 = add s3, s5\n store s6 [0]"),
    ] {
        assert!(!streams(&other, &row_major(&other, DType::F16), OperandPrecision::F16), "{}", print(&other));
    }
    // Attention: a product of a product, which stays in registers.
    let (_, fused) = fused_attention([1, 16, 256, 64], 1, 2);
    assert!(!streams(&fused, &row_major(&fused, DType::F16), OperandPrecision::F16));
}

#[test]
fn attention_in_odd_tiles_is_computed() {
    // Keys are stored as `[key, channel]`.
    let text = "mugraph \"part\" {
  t0 = input \"x0\" [1, 75, 64]
  t1 = input \"x1\" [1, 1, 64]
  t2 = input \"x2\" [1, 64, 250]
  t3 = input \"x3\" [1, 250, 64]
  t4 = block [1, 1] loop 2 {
    s0 = load t0 [0, 1] -
    s1 = load t1 [0, -] -
    s2 = load t2 [0, -] 2
    s3 = load t3 [0, -] 1
    s4 = add s0, s1
    s5 = matmul s4, s2
    s6 = largest(2) s5
    s7 = running_max s6
    s8 = guard s7
    s9 = sub s5, s8
    s10 = exp s9
    s11 = sum(2) s10
    s12 = matmul s10, s3
    s13 = accumulate rescaled s7 1 s11
    s14 = accumulate rescaled s7 1 s12
    s15 = div s14, s13
    store s15 [0, 1]
  }
  output \"o\" t4
}
";
    let graph = orch_mugraph::parse(text).unwrap();
    let inputs = random_inputs(&graph, 3, 0.5);
    for (factors, dtype, limit) in KINDS.into_iter().filter(|(factors, ..)| *factors == OperandPrecision::F16)
    {
        let mut stored = row_major(&graph, dtype);
        stored[2].strides = vec![16_000, 1, 64];
        check_stored(&graph, &rounded(&inputs, dtype), &stored, (factors, limit));
    }
}
