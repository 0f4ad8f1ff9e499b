//! Kernels lowered for CPUs compute what their block graphs mean.

mod common;
#[path = "../../orch-codegen/tests/support/mod.rs"]
mod support;

use common::kernels::{arguments, from_memory, outputs};
use common::random::{Choices, random_kernel};
use common::{kernels, mugraph, program, random_inputs, resized, valid};
use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::floats::relative_error;
use orch_mugraph::lower::{Request, Stored, cpu};
use orch_mugraph::{InputKind, MuGraph, Precision, TensorId, VerifyOptions, interpret, print, stabilise};
use orch_thread::kernel::Kernel;
use orch_thread::target::{AARCH64, X86_64_V3, X86_64_V4};
use orch_thread::{BufferData, CpuTarget, print_thread};

const TARGETS: [&CpuTarget; 3] = [&X86_64_V4, &X86_64_V3, &AARCH64];

/// All tensors as f32 in row-major order.
fn row_major(graph: &MuGraph) -> Vec<Stored> {
    kernels::row_major(graph, DType::F32)
}

/// The largest relative error of a µGraph's lowered kernels, for inputs that are stored as given.
fn error_of(graph: &MuGraph, stored: &[Stored], inputs: &[Array<f64>], target: &CpuTarget) -> f64 {
    let expected = interpret(graph, inputs, Precision::F64).unwrap_or_else(|e| panic!("{e}"));
    let given = outputs(graph, inputs, stored, |request| {
        cpu::lower(request, target).unwrap_or_else(|e| panic!("{e}\n{}", print(graph)))
    });
    expected.iter().zip(&given).map(|(a, b)| finite_error(a, b)).fold(0.0, f64::max)
}

/// The relative error of finite elements; elements that are not finite must be equal.
fn finite_error(expected: &Array<f64>, given: &Array<f64>) -> f64 {
    let same = |(a, b): (&f64, &f64)| a.is_finite() || a == b || a.is_nan() && b.is_nan();
    if !expected.data.iter().zip(&given.data).all(same) {
        return f64::INFINITY;
    }
    let finite = |array: &Array<f64>| {
        let pairs = array.data.iter().zip(&expected.data);
        let data = pairs.map(|(&x, &wanted)| if wanted.is_finite() { x } else { 0.0 }).collect();
        Array { shape: array.shape.clone(), data }
    };
    relative_error(&finite(expected), &finite(given))
}

/// Checks a µGraph on all targets, with inputs of some scale.
fn check_scaled(graph: &MuGraph, stored: &[Stored], scale: f64) {
    let inputs: Vec<Array<f64>> = random_inputs(graph, 5, scale)
        .iter()
        .map(|input| input.map(|x| half::f16::from_f64(x).to_f64()))
        .collect();
    for target in TARGETS {
        let error = error_of(graph, stored, &inputs, target);
        assert!(error < 1e-5, "{}: {error:e}\n{}", target.name, print(graph));
    }
}

fn check(graph: &MuGraph) {
    check_scaled(graph, &row_major(graph), 0.3);
}

/// A µGraph of inputs `(name, shape)`, called `t0, t1, ..`, and one block graph.
fn kernel(inputs: &[&str], header: &str, body: &str) -> MuGraph {
    let mut text = String::from("mugraph \"kernel\" {\n");
    for (at, shape) in inputs.iter().enumerate() {
        let is_text = shape.starts_with('[');
        text += &if is_text {
            format!(" t{at} = input \"x{at}\" {shape}\n")
        } else {
            format!(" t{at} = {shape}\n")
        };
    }
    let stores = body.matches("store ").count();
    let results: Vec<String> = (0..stores).map(|at| format!("t{}", inputs.len() + at)).collect();
    text += &format!(" {} = block {header} {{\n", results.join(", "));
    for line in body.split(';').map(str::trim).filter(|line| !line.is_empty()) {
        text += &format!("  {line}\n");
    }
    text += " }\n";
    for result in &results {
        text += &format!(" output \"{result}\" {result}\n");
    }
    valid(&(text + "}\n"))
}

#[test]
fn published_graphs_are_lowered() {
    let small = [(256, 32), (4096, 256), (6144, 512), (8192, 256)];
    for name in ["gqa_split", "rmsnorm", "gated_mlp", "lora", "ntrans", "adapter_split"] {
        check(&resized(&mugraph(name), &small));
    }
    check(&resized(&mugraph("qknorm_wrong"), &[(256, 64), (4096, 128), (64, 16), (262144, 2048)]));
}

#[test]
fn stable_split_attention_is_lowered() {
    let small = [(256, 32), (4096, 256), (64, 16), (262144, 2048), (1024, 64)];
    let (program, candidate) =
        (resized(&program("osdi_gqa"), &small), resized(&mugraph("gqa_split"), &small));
    let stable = stabilise(&program, &candidate, &VerifyOptions::default()).unwrap();
    check_scaled(&stable.graph, &row_major(&stable.graph), 3.0);
}

/// Attention in one kernel with running maxima, under a mask (or none) over `rows x keys`.
fn flash(mask: Option<&str>, [rows, keys]: [usize; 2], header: &str) -> MuGraph {
    let (q, k, v) = (format!("[2, {rows}, 16]"), format!("[2, 16, {keys}]"), format!("[2, {keys}, 16]"));
    let mut inputs = vec![q.as_str(), k.as_str(), v.as_str()];
    inputs.extend(mask);
    let (load, masked) = match mask {
        Some(_) => ("s3 = load t3 [-, 1] 2;", "mask s4, s3"),
        None => ("s3 = load t0 [0, 1] -;", "scale(1/4) s4"),
    };
    let body = format!(
        "s0 = load t0 [0, 1] -; s1 = load t1 [0, -] 2; s2 = load t2 [0, -] 1; {load} s4 = matmul s0, s1; \
         s5 = {masked}; s6 = largest(2) s5; s7 = running_max s6; s8 = guard s7; s9 = sub s5, s8; s10 = exp s9; \
         s11 = sum(2) s10; s12 = accumulate rescaled s7 1 s11; s13 = matmul s10, s2; \
         s14 = accumulate rescaled s7 1 s13; s15 = div s14, s12; store s15 [0, 1]"
    );
    kernel(&inputs, header, &body)
}

#[test]
fn attention_with_running_maxima_is_lowered() {
    for mask in [None, Some("causal(0, 1, 24, 40)"), Some("below(2, 13, 1, 24, 40)")] {
        let graph = flash(mask, [24, 40], "[2, 3] loop 5");
        check_scaled(&graph, &row_major(&graph), 2.0);
    }
    let graph = flash(None, [13, 17], "[2, 4] loop 4");
    check_scaled(&graph, &row_major(&graph), 2.0);
    let graph = flash(Some("causal(6, 1, 13, 19)"), [13, 19], "[2, 4] loop 4");
    check_scaled(&graph, &row_major(&graph), 2.0);
}

#[test]
fn masks_are_loaded_as_they_are_stored() {
    let graph = flash(Some("mask \"m\" [1, 24, 40]"), [24, 40], "[2, 3] loop 5");
    for dtype in [DType::Bool, DType::U8, DType::F32] {
        let mut stored = row_major(&graph);
        stored[3].dtype = dtype;
        check_scaled(&graph, &stored, 2.0);
    }
}

#[test]
fn remainders_of_partitions_are_right() {
    let extents =
        [(13, 7, 17), (1, 1, 1), (64, 33, 5), (5, 40, 70), (31, 2, 9), (0, 7, 9), (5, 0, 9), (5, 7, 0)];
    for (rows, columns, terms) in extents {
        let shapes = [format!("[{rows}, {terms}]"), format!("[{terms}, {columns}]")];
        let graph = kernel(
            &[&shapes[0], &shapes[1]],
            "[4, 3] loop 4",
            "s0 = load t0 [0, -] 1; s1 = load t1 [-, 1] 0; s2 = matmul s0, s1; s3 = accumulate sum s2; s4 = exp s3; \
             s5 = sum(1) s4; s6 = largest(0) s3; store s4 [0, 1]; store s5 [0, 1]; store s6 [0, 1]",
        );
        check(&graph);
    }
    // A norm of rows that differ from block to block, and concatenated parts.
    check(&kernel(
        &["[6, 13]", "[6, 9]"],
        "[4] loop 1",
        "s0 = load t0 [1] -; s1 = load t1 [1] -; s2 = rms_norm(1/100) s0; s3 = concat(1) s2, s1; s4 = repeat(1, 2) s3; \
         store s3 [1]; store s4 [1]",
    ));
}

#[test]
fn every_function_is_lowered() {
    use orch_mugraph::{BinaryFn, UnaryFn};
    for (_, name) in UnaryFn::NAMES {
        check(&kernel(
            &["[5, 19]"],
            "[2] loop 1",
            &format!(
                "s0 = load t0 [0] -; s1 = square s0; s2 = offset(1/10) s1; s3 = {name} s2; store s3 [0]"
            ),
        ));
    }
    for (_, name) in BinaryFn::NAMES.into_iter().filter(|(f, _)| *f != BinaryFn::Mask) {
        for other in ["[5, 19]", "[1, 19]", "[5, 1]", "[1, 1]"] {
            check(&kernel(
                &["[5, 19]", other],
                "[1] loop 1",
                &format!(
                    "s0 = load t0 [-] -; s1 = load t1 [-] -; s2 = exp s1; s3 = {name} s0, s2; store s3 [-]"
                ),
            ));
        }
    }
}

#[test]
fn elements_are_moved() {
    let graph = |body: &str| kernel(&["[2, 6, 20]", "[2, 6, 20]"], "[2, 3] loop 1", body);
    for (body, store) in [
        ("s2 = transpose(0, 2, 1) s0; s3 = exp s2", "[0, 2]"),
        ("s2 = transpose(2, 0, 1) s0; s3 = add s2, s2", "[1, 2]"),
        ("s2 = slice(2, 3, 11) s0; s3 = silu s2", "[0, 1]"),
        ("s2 = repeat(2, 3) s0; s3 = scale(2) s2", "[0, 1]"),
        ("s2 = repeat(1, 2) s0; s3 = offset(-3/2) s2", "[0, 1]"),
        ("s2 = concat(2) s0, s1; s3 = exp s2", "[0, 1]"),
        ("s2 = concat(1) s0, s1; s3 = exp s2", "[0, 1]"),
        ("s2 = sum(2, 5) s0; s3 = exp s2", "[0, 1]"),
        ("s2 = largest(2, 10) s0; s3 = exp s2", "[0, 1]"),
        ("s2 = largest(1) s0; s3 = exp s2", "[0, 1]"),
        ("s2 = rms_norm(0) s0; s3 = rms_norm(1/8) s2", "[0, 1]"),
    ] {
        check(&graph(&format!("s0 = load t0 [0, 1] -; s1 = load t1 [0, 1] -; {body}; store s3 {store}")));
    }
}

#[test]
fn products_take_operands_of_all_kinds() {
    // Transposed, shifted, computed and repeated operands, one column, many rows, a long K dimension.
    for (shapes, body) in [
        (["[1, 6, 20]", "[3, 20, 33]"], "s2 = matmul s0, s1; store s2"),
        (["[3, 6, 20]", "[1, 20, 1]"], "s2 = matmul s0, s1; store s2"),
        (["[3, 40, 20]", "[3, 20, 50]"], "s2 = matmul s0, s1; store s2"),
        (["[3, 2, 20]", "[3, 33, 20]"], "s2 = transpose(0, 2, 1) s1; s3 = matmul s0, s2; store s3"),
        (
            ["[3, 20, 16]", "[3, 33, 20]"],
            "s2 = transpose(0, 2, 1) s1; s3 = transpose(0, 2, 1) s0; s4 = matmul s3, s2; store s4",
        ),
        (
            ["[3, 20, 6]", "[1, 20, 33]"],
            "s2 = transpose(0, 2, 1) s0; s3 = exp s1; s4 = matmul s2, s3; store s4",
        ),
        (
            ["[3, 7, 10]", "[3, 10, 48]"],
            "s2 = repeat(2, 2) s0; s3 = repeat(1, 2) s1; s4 = matmul s2, s3; store s4",
        ),
        (
            ["[3, 7, 20]", "[3, 10, 48]"],
            "s2 = slice(2, 5, 10) s0; s3 = slice(2, 1, 47) s1; s4 = matmul s2, s3; store s4",
        ),
        // Columns that are left after whole panels: several vectors of them, the last one with fewer.
        (["[2, 40, 22]", "[2, 22, 122]"], "s2 = matmul s0, s1; store s2"),
        (["[2, 40, 22]", "[2, 122, 22]"], "s2 = transpose(0, 2, 1) s1; s3 = matmul s0, s2; store s3"),
        (["[2, 40, 22]", "[2, 22, 70]"], "s2 = exp s1; s3 = matmul s0, s2; store s3"),
        // Columns that are computed, and contiguous along the K dimension.
        (
            ["[2, 40, 22]", "[2, 122, 22]"],
            "s2 = scale(1/8) s1; s3 = transpose(0, 2, 1) s2; s4 = matmul s0, s3; store s4",
        ),
        (
            ["[2, 40, 22]", "[2, 61, 22]"],
            "s2 = exp s1; s3 = repeat(1, 2) s2; s4 = transpose(0, 2, 1) s3; s5 = matmul s0, s4; store s5",
        ),
        (["[1, 3, 2100]", "[1, 2100, 20]"], "s2 = matmul s0, s1; store s2"),
        (["[1, 7, 1030]", "[1, 33, 1030]"], "s2 = transpose(0, 2, 1) s1; s3 = matmul s0, s2; store s3"),
    ] {
        let body = format!("s0 = load t0 [-, -] -; s1 = load t1 [-, -] -; {body} [-, -]");
        check(&kernel(&shapes, "[1, 1] loop 1", &body));
    }
}

/// The thread program of a µGraph of one kernel.
fn printed(graph: &MuGraph, target: &CpuTarget) -> String {
    let mut text = String::new();
    outputs(graph, &random_inputs(graph, 5, 1.0), &row_major(graph), |request| {
        let kernel = cpu::lower(request, target).unwrap_or_else(|e| panic!("{e}"));
        text += &print_thread(&kernel.program);
        kernel
    });
    text
}

#[test]
fn columns_that_are_left_are_one_panel() {
    // Six vectors of 16 in panels of three, and 26 columns that are left: two register tiles, not one for each vector that is left.
    for (right, product) in
        [("[22, 122]", "s2 = matmul s0, s1"), ("[122, 22]", "s2 = transpose(1, 0) s1; s3 = matmul s0, s2")]
    {
        let last = product.rsplit("; ").next().and_then(|line| line.split(' ').next()).unwrap();
        let body = format!("s0 = load t0 [-] -; s1 = load t1 [-] -; {product}; store {last} [-]");
        let text = printed(&kernel(&["[40, 22]", right], "[1] loop 1", &body), &X86_64_V4);
        let tiles = text.lines().filter(|line| line.trim().starts_with("reg sum_0_0")).count();
        assert_eq!(tiles, 2, "{right}\n{text}");
    }
}

#[test]
fn operands_larger_than_half_of_the_l1_are_copied_by_panels() {
    // 64 rows of 64 columns are 16 KiB. Panels of 48 columns (AVX-512) and 24 (AVX2) are narrower, one of 32 is all of it.
    let body = "s0 = load t0 [-] -; s1 = load t1 [-] -; s2 = matmul s0, s1; store s2 [-]";
    for (rows, columns, l1_bytes, is_copied) in [
        (40, 64, 16 << 10, true),
        (40, 64, 32 << 10, false),
        (40, 32, 8 << 10, false),
        (4, 64, 16 << 10, false),
    ] {
        let graph = kernel(&[&format!("[{rows}, 64]"), &format!("[64, {columns}]")], "[1] loop 1", body);
        let inputs = random_inputs(&graph, 5, 0.3);
        for target in [X86_64_V4, X86_64_V3] {
            let target = CpuTarget { l1_bytes, ..target };
            let text = printed(&graph, &target);
            // AVX2 takes 32 columns in two panels.
            let is_copied = is_copied || columns == 32 && target.vector_bytes == 32;
            assert_eq!(text.contains("panel["), is_copied, "{rows} x {columns}, {}\n{text}", target.name);
            assert!(error_of(&graph, &row_major(&graph), &inputs, &target) < 1e-5);
        }
    }
}

#[test]
fn strips_of_rows_share_what_they_prefetch() {
    // All strips of 128 rows read the same panel; a strip of 4 rows prefetches for itself, a row for each that it reads.
    let body = "s0 = load t0 [-] -; s1 = load t1 [-] -; s2 = matmul s0, s1; store s2 [-]";
    for (rows, is_shared) in [(128, true), (4, false)] {
        let graph = kernel(&[&format!("[{rows}, 64]"), "[64, 64]"], "[1] loop 1", body);
        let target = CpuTarget { l1_bytes: 32 << 10, ..X86_64_V3 };
        let text = printed(&graph, &target);
        let depth_of = |word: &str| {
            let line = text.lines().find(|line| line.trim().starts_with(word));
            line.map(|line| line.len() - line.trim_start().len())
        };
        let (prefetch, product) = (depth_of("prefetch").unwrap(), depth_of("reg sum_0_0").unwrap());
        assert_eq!(prefetch == product, is_shared, "{rows}\n{text}");
        assert!(error_of(&graph, &row_major(&graph), &random_inputs(&graph, 5, 0.3), &target) < 1e-5);
    }
}

#[test]
fn operands_that_are_contiguous_along_k_are_transposed() {
    for product in [
        "s2 = transpose(1, 0) s1; s3 = matmul s0, s2; store s3 [-]",
        "s2 = scale(1/8) s1; s3 = transpose(1, 0) s2; s4 = matmul s0, s3; store s4 [-]",
    ] {
        let body = format!("s0 = load t0 [-] -; s1 = load t1 [-] -; {product}");
        let graph = kernel(&["[40, 64]", "[32, 64]"], "[1] loop 1", &body);
        for target in TARGETS {
            let text = printed(&graph, target);
            assert!(text.contains("interleave"), "{}\n{text}", target.name);
        }
    }
}

#[test]
fn rows_of_a_skinny_product_load_distant_rows_once() {
    // Eight rows are one strip where lines of the right operand are 1024 elements apart; else two of four rows and more columns.
    let body = "s0 = load t0 [-] -; s1 = load t1 [1] -; s2 = matmul s0, s1; store s2 [1]";
    for (blocks, is_one_strip) in [(1, false), (8, true)] {
        let graph =
            kernel(&["[8, 16]", &format!("[16, {}]", 128 * blocks)], &format!("[{blocks}] loop 1"), body);
        let text = printed(&graph, &X86_64_V3);
        assert_eq!(text.contains("reg sum_7_0"), is_one_strip, "{blocks} blocks\n{text}");
    }
}

#[test]
fn operands_that_are_inputs_are_prefetched() {
    let plain = "s2 = matmul s0, s1; s3 = accumulate sum s2; store s3 [1]";
    let computed = "s2 = exp s1; s3 = matmul s0, s2; s4 = accumulate sum s3; store s4 [1]";
    // Columns of long rows, parts of short rows, whole rows, and a computed operand.
    for (columns, grid, rest, is_asked) in
        [(640, 2, plain, true), (240, 1, plain, true), (32, 1, plain, false), (640, 2, computed, false)]
    {
        let right = format!("[48, {columns}]");
        let body = format!("s0 = load t0 [-] 1; s1 = load t1 [1] 0; {rest}");
        let graph = kernel(&["[8, 48]", &right], &format!("[{grid}] loop 3"), &body);
        check(&graph);
        let text = printed(&graph, &X86_64_V4);
        assert_eq!(text.contains("prefetch "), is_asked, "{columns} columns, {rest}\n{text}");
    }
}

#[test]
fn accumulators_of_all_kinds_are_kept_over_iterations() {
    let graph = kernel(
        &["[6, 24]", "[24, 40]", "[6, 24]"],
        "[2] loop 3",
        "s0 = load t0 [0] 1; s1 = load t1 [-] 0; s2 = load t2 [0] -; s3 = matmul s0, s1; s4 = accumulate sum s3; \
         s5 = accumulate max s3; s6 = exp s0; s7 = accumulate sum s6; s8 = accumulate sum s2; s9 = exp s2; \
         s10 = accumulate max s9; s11 = add s8, s10; store s4 [0]; store s5 [0]; store s7 [0]; store s11 [0]",
    );
    check(&graph);
    // Exponentials of degrees other than one, and values of either sign.
    for degree in ["2", "1/2", "-1", "0"] {
        let graph = kernel(
            &["[6, 24]"],
            "[2] loop 3",
            &format!(
                "s0 = load t0 [0] 1; s1 = largest(1) s0; s2 = running_max s1; s3 = sub s0, s2; s4 = exp s3; \
                 s5 = accumulate rescaled s2 {degree} s4; store s5 [0]"
            ),
        );
        check(&graph);
    }
}

#[test]
fn tensors_may_lie_anywhere() {
    let graph = flash(None, [24, 40], "[2, 3] loop 5");
    let mut stored = row_major(&graph);
    // Heads within rows; keys `[key, channel]`; one head of values for two of queries.
    stored[0] =
        Stored { strides: vec![16, 40, 1], offset: 3, elems: 3 + 24 * 40, dtype: DType::F32, band: None };
    stored[1] = Stored { strides: vec![640, 1, 16], offset: 0, elems: 1280, dtype: DType::F32, band: None };
    stored[3] =
        Stored { strides: vec![16, 32, 1], offset: 7, elems: 7 + 24 * 32, dtype: DType::F32, band: None };
    check_scaled(&graph, &stored, 2.0);
    let shared = kernel(
        &["[4, 6, 20]", "[1, 1, 20]"],
        "[2, 3] loop 1",
        "s0 = load t0 [0, 1] -; s1 = load t1 [-, -] -; s2 = mul s0, s1; store s2 [0, 1]",
    );
    let mut stored = row_major(&shared);
    stored[0] = Stored { strides: vec![0, 20, 1], offset: 0, elems: 120, dtype: DType::F32, band: None };
    stored[2] = Stored { strides: vec![120, 1, 6], offset: 0, elems: 480, dtype: DType::F32, band: None };
    let mut inputs = random_inputs(&shared, 3, 1.0);
    let head = inputs[0].data[..120].to_vec();
    inputs[0].data = head.repeat(4);
    for target in TARGETS {
        assert!(error_of(&shared, &stored, &inputs, target) < 1e-6);
    }
}

#[test]
fn narrow_types_are_loaded_and_stored() {
    let graph = flash(None, [24, 40], "[2, 3] loop 5");
    for dtype in [DType::F16, DType::BF16] {
        let mut stored = row_major(&graph);
        stored.iter_mut().for_each(|tensor| tensor.dtype = dtype);
        let inputs: Vec<Array<f64>> = random_inputs(&graph, 5, 1.0)
            .iter()
            .map(|input| input.map(|x| half::bf16::from_f64(x).to_f64()))
            .collect();
        for target in TARGETS {
            assert!(error_of(&graph, &stored, &inputs, target) < 5e-3, "{dtype}");
        }
    }
}

#[test]
fn what_cannot_be_lowered_is_refused() {
    let graph = kernel(&["[6, 24]"], "[2] loop 1", "s0 = load t0 [0] -; s1 = exp s0; store s1 [0]");
    let refusal = |kernel: u32, stored: &[Stored]| {
        let request = Request { graph: &graph, kernel: TensorId(kernel), stored, name: "kernel" };
        cpu::lower(&request, &X86_64_V4).map(|kernel| print_thread(&kernel.program)).unwrap_err().0
    };
    let stored = row_major(&graph);
    assert!(refusal(0, &stored).contains("not defined by a block graph"));
    assert!(refusal(1, &stored[..1]).contains("how t1 is stored"));
    let small = Stored { elems: 100, ..stored[1].clone() };
    assert!(refusal(1, &[stored[0].clone(), small]).contains("t1"));
    let same = Stored { strides: vec![0, 1], ..stored[1].clone() };
    assert!(refusal(1, &[stored[0].clone(), same]).contains("share memory"));
}

/// Random kernels; some have operands whose extents differ in some blocks, which is refused.
#[test]
fn random_kernels_are_lowered() {
    let mut refused = 0;
    for seed in 0..RANDOM_KERNELS {
        let graph = random_kernel(&mut Choices::new(seed));
        let kernel = TensorId(graph.inputs().count() as u32);
        let stored = row_major(&graph);
        let request = Request { graph: &graph, kernel, stored: &stored, name: "kernel" };
        let inputs = random_inputs(&graph, seed, 0.3);
        let target = TARGETS[seed as usize % TARGETS.len()];
        if let Err(refusal) = cpu::lower(&request, target) {
            assert!(refusal.0.contains("differ in some blocks"), "{refusal}\n{}", print(&graph));
            refused += 1;
            continue;
        }
        let error = error_of(&graph, &stored, &inputs, target);
        assert!(error < 1e-4, "seed {seed}, {}: {error:e}\n{}", target.name, print(&graph));
    }
    assert!(refused < RANDOM_KERNELS / 10, "{refused} of {RANDOM_KERNELS} kernels");
}

const RANDOM_KERNELS: u64 = 400;

/// Compiled as C, kernels compute what the interpreter does.
#[test]
fn kernels_compile() {
    let graphs = [
        ("plain", flash(None, [13, 17], "[2, 4] loop 4")),
        ("causal", flash(Some("causal(6, 1, 70, 90)"), [70, 90], "[2, 2] loop 2")),
        ("mask", flash(Some("mask \"m\" [1, 24, 40]"), [24, 40], "[2, 3] loop 5")),
        (
            "keys",
            kernel(
                &["[2, 30, 18]", "[2, 70, 18]"],
                "[2, 2] loop 1",
                "s0 = load t0 [0, 1] -; s1 = load t1 [0, -] -; s2 = transpose(0, 2, 1) s1; s3 = matmul s0, s2; \
                 s4 = gelu s3; store s4 [0, 1]",
            ),
        ),
        ("norm", resized(&mugraph("ntrans"), &[(4096, 250)])),
        ("gated", resized(&mugraph("gated_mlp"), &[(4096, 256)])),
    ];
    let inputs: Vec<_> = graphs.iter().map(|(_, graph)| random_inputs(graph, 2, 1.0)).collect();
    for toolchain in support::toolchains() {
        let kernels: Vec<Compiled> = (graphs.iter().zip(&inputs))
            .map(|((name, graph), inputs)| compiled(name, graph, inputs, toolchain.target))
            .collect();
        let programs: Vec<_> =
            kernels.iter().map(|kernel| (&kernel.lowered.program, kernel.buffers.as_slice())).collect();
        let directory = support::directory(&format!("mugraph_{}", toolchain.target.name));
        let after = support::run_compiled(&programs, &toolchain, &directory);
        for (((name, graph), inputs), (kernel, buffers)) in
            graphs.iter().zip(&inputs).zip(kernels.iter().zip(after))
        {
            let result = graph.shapes().len() - 1;
            let memory = buffers.last().expect("a result");
            let given = from_memory(memory, &graph.shapes()[result], &kernel.stored[result]);
            let expected = interpret(graph, inputs, Precision::F64).unwrap_or_else(|e| panic!("{e}"));
            let error = finite_error(&expected[0], &given);
            assert!(error < 1e-5, "{name} for {}: {error:e}", toolchain.target.name);
        }
    }
}

/// A kernel with its arguments.
struct Compiled {
    lowered: Kernel,
    stored: Vec<Stored>,
    buffers: Vec<BufferData>,
}

/// The last kernel of a graph, with masks as booleans.
fn compiled(name: &str, graph: &MuGraph, inputs: &[Array<f64>], target: &CpuTarget) -> Compiled {
    let mut stored = row_major(graph);
    for (id, _, kind) in graph.inputs() {
        stored[id.index()].dtype = if kind == InputKind::Mask { DType::Bool } else { DType::F32 };
    }
    let kernel = TensorId(stored.len() as u32 - 1);
    let request = Request { graph, kernel, stored: &stored, name };
    let lowered = cpu::lower(&request, target).unwrap_or_else(|e| panic!("{e}"));
    let rest = vec![None; stored.len() - inputs.len()];
    let values: Vec<_> = inputs.iter().cloned().map(Some).chain(rest).collect();
    let buffers = arguments(&lowered, &stored, &values);
    Compiled { lowered, stored, buffers }
}

/// The maximum of a softmax plus one is of zero too.
#[test]
fn attention_with_a_sink_is_lowered() {
    let program = valid(
        "mugraph \"p\" {\n t0 = input \"q\" [2, 16, 16]\n t1 = input \"k\" [2, 16, 64]\n t2 = input \"v\" [2, 64, 16]\n \
         t3 = block [2, 4] loop 4 {\n s0 = load t0 [0, 1] -\n s1 = load t1 [0, -] 2\n s2 = load t2 [0, -] 1\n \
         s3 = matmul s0, s1\n s4 = exp s3\n s5 = sum(2) s4\n s6 = accumulate sum s5\n s7 = matmul s4, s2\n \
         s8 = accumulate sum s7\n s9 = offset(1) s6\n s10 = div s8, s9\n store s10 [0, 1]\n }\n output \"o\" t3\n}\n",
    );
    let group = orch_mugraph::stabilise::analyse(&program, (TensorId(3), Some(4))).unwrap();
    let stable = orch_mugraph::stabilise::rewrite(&program, &group).unwrap();
    check_scaled(&stable, &row_major(&stable), 3.0);
}
