//! Rotations in kernels for CPUs and GPUs compute what their block graphs say.

mod common;

use common::gpu::{KINDS, check_stored, check_ways, rounded};
use common::kernels::{outputs, row_major};
use common::programs::partial_rotary_attention;
use common::{random_inputs, valid};
use orch_ir::DType;
use orch_mugraph::floats::relative_error;
use orch_mugraph::lower::cpu;
use orch_mugraph::search::{SearchOptions, search};
use orch_mugraph::{MuGraph, Precision, VerifyOptions, interpret, print, stabilise};
use orch_thread::target::{AARCH64, X86_64_V3, X86_64_V4};

/// On all targets: CPUs, and GPUs with all operand precisions.
fn check(graph: &MuGraph, scale: f64) {
    let inputs = random_inputs(graph, 5, scale);
    let expected = interpret(graph, &inputs, Precision::F64).unwrap_or_else(|e| panic!("{e}"));
    for target in [&X86_64_V4, &X86_64_V3, &AARCH64] {
        let given = outputs(graph, &inputs, &row_major(graph, DType::F32), |request| {
            cpu::lower(request, target).unwrap_or_else(|e| panic!("{e}\n{}", print(graph)))
        });
        for (expected, given) in expected.iter().zip(&given) {
            let error = relative_error(expected, given);
            assert!(error < 1e-5, "{}: {error:e}\n{}", target.name, print(graph));
        }
    }
    for (factors, dtype, limit) in KINDS {
        check_stored(graph, &rounded(&inputs, dtype), &row_major(graph, dtype), (factors, limit));
    }
}

/// How angles are given, and where the elements of a pair lie.
#[derive(Clone, Copy)]
enum Pairs {
    /// Halves, with an angle for each element.
    Halves,
    /// Halves, with an angle for each pair.
    HalfAngles,
    /// Interleaved pairs, with an angle for each pair.
    Neighbours,
}

/// The statements that rotate tile `x` of an extent along `dim` to `to`, and those after it.
fn rotation(pairs: Pairs, [x, cos, sin, to]: [usize; 4], (dim, extent): (usize, usize)) -> String {
    let spread = |angles: usize, to: usize| match pairs {
        Pairs::Halves => format!("s{to} = scale(1) s{angles}\n"),
        Pairs::HalfAngles => format!("s{to} = concat({dim}) s{angles}, s{angles}\n"),
        Pairs::Neighbours => format!("s{to} = repeat({dim}, 2) s{angles}\n"),
    };
    let group = if matches!(pairs, Pairs::Neighbours) { 1 } else { extent / 2 };
    let [c, s, plain, turned, weighted, sum] = [to, to + 1, to + 2, to + 3, to + 4, to + 5];
    format!(
        "{}{}s{plain} = mul s{x}, s{c}\ns{turned} = rotate({dim}, {group}) s{x}\ns{weighted} = mul s{turned}, s{s}\n\
         s{sum} = add s{plain}, s{weighted}\n",
        spread(cos, c),
        spread(sin, s)
    )
}

/// Attention with rotated queries and keys: `[heads, rows, keys, columns]`, blocks of rows, iterations.
fn attention(
    pairs: Pairs,
    [heads, rows, keys, columns]: [usize; 4],
    blocks: usize,
    range: usize,
) -> [MuGraph; 2] {
    let angles = if matches!(pairs, Pairs::Halves) { columns } else { columns / 2 };
    let inputs = format!(
        "t0 = input \"q\" [{heads}, {rows}, {columns}]\nt1 = input \"k\" [{heads}, {columns}, {keys}]\n\
         t2 = input \"v\" [{heads}, {keys}, {columns}]\nt3 = input \"cos\" [1, {rows}, {angles}]\n\
         t4 = input \"sin\" [1, {rows}, {angles}]\nt5 = input \"key_cos\" [1, {angles}, {keys}]\n\
         t6 = input \"key_sin\" [1, {angles}, {keys}]\n"
    );
    let body = |first: usize| {
        let at = |number: usize| first + number;
        format!(
            "{}{}s{} = matmul s{}, s{}\ns{} = exp s{}\ns{} = sum(2) s{}\n",
            rotation(pairs, [0, 3, 4, at(0)], (2, columns)),
            rotation(pairs, [1, 5, 6, at(6)], (1, columns)),
            at(12),
            at(5),
            at(11),
            at(13),
            at(12),
            at(14),
            at(13)
        )
    };
    let as_tensors = body(7).replace('s', "t").replace("tum(", "sum(").replace("tcale", "scale");
    let program = valid(&format!(
        "mugraph \"p\" {{\n{inputs}{}t22 = div t20, t21\nt23 = matmul t22, t2\noutput \"o\" t23\n}}\n",
        as_tensors
    ));
    let fused = valid(&format!(
        "mugraph \"f\" {{\n{inputs}t7 = block [{heads}, {blocks}] loop {range} {{\ns0 = load t0 [0, 1] -\n\
         s1 = load t1 [0, -] 2\ns2 = load t2 [0, -] 1\ns3 = load t3 [-, 1] -\ns4 = load t4 [-, 1] -\n\
         s5 = load t5 [-, -] 2\ns6 = load t6 [-, -] 2\n{}s22 = accumulate sum s21\ns23 = matmul s20, s2\n\
         s24 = accumulate sum s23\ns25 = div s24, s22\nstore s25 [0, 1]\n}}\noutput \"o\" t7\n}}\n",
        body(7)
    ));
    [program, fused]
}

#[test]
fn attention_of_rotated_queries_and_keys_is_computed() {
    for pairs in [Pairs::Halves, Pairs::HalfAngles, Pairs::Neighbours] {
        // Warps split rows and keys; keys; a remainder of rows; and channels that do not fill whole fragments.
        for ([heads, rows, keys, columns], blocks, range) in [
            ([1, 128, 64, 16], 2, 2),
            ([2, 16, 128, 32], 1, 2),
            ([1, 13, 40, 24], 4, 1),
            ([1, 8, 72, 12], 1, 3),
        ] {
            let [program, fused] = attention(pairs, [heads, rows, keys, columns], blocks, range);
            check(&fused, 0.3);
            let stable = stabilise(&program, &fused, &VerifyOptions::default());
            check(&stable.unwrap_or_else(|e| panic!("{e}\n{}", print(&fused))).graph, 0.3);
        }
    }
}

/// Queries and keys of which a part is rotated, as the search finds them in one kernel.
#[test]
fn attention_of_partly_rotated_queries_and_keys_is_computed() {
    for (shape, turned) in [([2, 16, 64, 32], 16), ([1, 13, 40, 24], 8), ([1, 8, 24, 12], 4)] {
        let mut program = MuGraph::new("p");
        let result = partial_rotary_attention(&mut program, shape, turned).expect("whole pairs");
        program.output("o", result).expect("a result");
        let (found, _) = search(&program, &SearchOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let one = found.iter().find(|found| found.graph.kernels() == 1).expect("one kernel");
        check(&one.graph, 0.3);
        let stable = stabilise(&program, &one.graph, &VerifyOptions::default());
        check(&stable.unwrap_or_else(|e| panic!("{e}\n{}", print(&one.graph))).graph, 0.3);
    }
}

/// A rotated A, whole and in parts of K, by a large B, which is loaded directly or by TMA.
#[test]
fn products_of_few_rotated_rows_are_computed() {
    for (rows, group, terms_in_loop) in [(1, 256, false), (16, 1, false), (40, 64, true), (64, 1, true)] {
        let (range, part) = if terms_in_loop { (4, "1") } else { (1, "-") };
        let second = if terms_in_loop { "0" } else { "-" };
        let graph = valid(&format!(
            "mugraph \"r\" {{\n t0 = input \"x\" [{rows}, 512]\n t1 = input \"cos\" [1, 512]\n t2 = input \"sin\" [1, 512]\n \
             t3 = input \"w\" [512, 128]\n t4 = block [2] loop {range} {{\n s0 = load t0 [-] {part}\n \
             s1 = load t1 [-] {part}\n s2 = load t2 [-] {part}\n s3 = load t3 [1] {second}\n s4 = mul s0, s1\n \
             s5 = rotate(1, {group}) s0\n s6 = mul s5, s2\n s7 = add s4, s6\n s8 = matmul s7, s3\n \
             s9 = accumulate sum s8\n store s9 [1]\n }}\n output \"o\" t4\n}}\n"
        ));
        check(&graph, 0.3);
        for kind in [KINDS[3], KINDS[4]] {
            check_ways(&graph, &row_major(&graph, kind.1), kind);
        }
    }
}

/// Rotated results: of a product, and of a row whose elements other threads hold.
#[test]
fn rotated_products_are_computed() {
    for group in [1, 8, 16] {
        let graph = valid(&format!(
            "mugraph \"q\" {{\n t0 = input \"x\" [24, 64]\n t1 = input \"w\" [64, 96]\n t2 = input \"sin\" [24, 96]\n \
             t3 = block [2, 3] loop 2 {{\n s0 = load t0 [0, -] 1\n s1 = load t1 [-, 1] 0\n s2 = load t2 [0, 1] -\n \
             s3 = matmul s0, s1\n s4 = accumulate sum s3\n s5 = rotate(1, {group}) s4\n s6 = mul s5, s2\n \
             s7 = add s4, s6\n s8 = rotate(0, 2) s7\n store s8 [0, 1]\n }}\n output \"o\" t3\n}}\n"
        ));
        check(&graph, 0.3);
    }
}
