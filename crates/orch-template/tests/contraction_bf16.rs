//! Contractions with bf16 operands on targets with bf16 instructions, dot products of pairs (`vdpbf16ps`) and AMX
//! tiles: through the interpreter of thread programs, against the reference interpreter.

mod support;

use orch_compute::Layout;
use orch_ir::*;
use orch_template::{Design, designs};
use orch_thread::target::{X86_64_AMX, X86_64_V4, X86_64_V4_BF16};
use orch_thread::{CpuTarget, parse_thread, validate_thread};
use support::{G, run_kernel, square_window};

/// A tensor rounded to bf16 and widened again, unless it is given as bf16.
fn narrowed(g: &mut G, x: TensorId) -> TensorId {
    let x = match g.0.dtype(x) {
        DType::BF16 => x,
        _ => g.op(PrimOp::Map(ScalarFn::Cast(DType::BF16)), &[x]),
    };
    g.op(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[x])
}

fn constant(g: &mut G, dims: &[usize]) -> TensorId {
    let elems: usize = dims.iter().product();
    let values: Vec<f64> = (0..elems).map(|i| ((i * 37 + 11) % 23) as f64 / 8.0 - 1.25).collect();
    g.0.add_constant(Tensor::from_f64(DType::BF16, dims.to_vec(), &values))
}

/// Runs the graph as one kernel for all targets in row-major order; `tiled` says whether it is large enough for AMX
/// tiles.
fn check(g: &G, tiled: bool) {
    check_with(g, tiled, &|tensor| Layout::row_major(g.0.shape(tensor).rank()));
}

fn check_with(g: &G, tiled: bool, layouts: &dyn Fn(TensorId) -> Layout) {
    let tiles = if tiled { "contraction tiles" } else { "contraction pairs" };
    let designs =
        [(&X86_64_V4_BF16, "contraction pairs"), (&X86_64_AMX, tiles), (&X86_64_V4, "contraction vectors")];
    for (target, design) in designs {
        run(g, target, design, layouts);
    }
}

/// Runs the graph as one kernel of this design, of which it returns the text.
fn run(g: &G, target: &CpuTarget, design: &str, layouts: &dyn Fn(TensorId) -> Layout) -> String {
    let block = g.build_with(layouts).expect("a kernel");
    let Design { kernel, schedule } = designs(&block, target, 1).pop().expect("a template serves it");
    assert!(schedule.starts_with(&format!("{design} ")), "{schedule}\n{block}");
    assert_eq!(validate_thread(&kernel.program), Vec::<String>::new(), "{schedule}\n{}", kernel.program);
    let text = kernel.program.to_string();
    assert_eq!(parse_thread(&text).expect("its own text").to_string(), text);
    let inputs = g.inputs(5);
    let outputs = run_kernel(&block, &kernel, &g.arguments(&block, &inputs));
    g.compare(&block, &g.expected(&inputs), &outputs);
    text
}

#[test]
fn matrix_products_of_adversarial_sizes() {
    let sizes = [
        (1, 1, 2),
        (1, 50, 7),
        (3, 40, 33),
        (4, 8, 16),
        (7, 16, 32),
        (9, 17, 31),
        (16, 33, 64),
        (29, 49, 64),
        (37, 31, 40),
        (40, 96, 32),
        (49, 20, 96),
    ];
    for (m, n, k) in sizes {
        let tiled = m >= 4 && n >= 8 && k >= 16;
        for dtype in [DType::BF16, DType::F32] {
            // Constant weights, and an epilogue that rounds again.
            let mut g = G::new();
            let (x, w) = (g.input(dtype, &[m, k]), constant(&mut g, &[k, n]));
            let (x, w) = (narrowed(&mut g, x), narrowed(&mut g, w));
            let y = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
            let y = g.unary(UnaryFn::Abs, y);
            let y = g.op(PrimOp::Map(ScalarFn::Cast(DType::BF16)), &[y]);
            g.output(y);
            check(&g, tiled);
            // Both operands are computed.
            let mut g = G::new();
            let (x, w) = (g.input(dtype, &[m, k]), g.input(DType::BF16, &[k, n]));
            let (x, w) = (narrowed(&mut g, x), narrowed(&mut g, w));
            let y = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
            g.output(y);
            check(&g, tiled);
        }
    }
}

/// One row or column of dot products along the memory of an operand is a nest of loops.
#[test]
fn matrices_times_vectors_are_nests() {
    for (m, k) in [(13, 5), (40, 64), (3, 100)] {
        let mut g = G::new();
        let (x, w) = (g.input(DType::BF16, &[m, k]), constant(&mut g, &[k, 1]));
        let (x, w) = (narrowed(&mut g, x), narrowed(&mut g, w));
        let y = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
        g.output(y);
        for target in [&X86_64_V4_BF16, &X86_64_AMX, &X86_64_V4] {
            run(&g, target, "row", &|tensor| Layout::row_major(g.0.shape(tensor).rank()));
        }
    }
}

#[test]
fn batched_products_with_a_transposed_operand() {
    for (heads, s, t, d) in [(1, 5, 9, 3), (3, 18, 17, 32), (2, 33, 20, 18)] {
        let mut g = G::new();
        let (q, k) = (g.input(DType::BF16, &[s, heads, d]), g.input(DType::BF16, &[t, heads, d]));
        let (q, k) = (g.transpose(q, &[1, 0, 2]), g.transpose(k, &[1, 2, 0]));
        let (q, k) = (narrowed(&mut g, q), narrowed(&mut g, k));
        let y = g.op(PrimOp::Contract(Contract::matmul(1)), &[q, k]);
        g.output(y);
        check(&g, d >= 16);
    }
}

/// Weights that are inputs, `[n][k]`, have neighbours along K: pairs of them are transposed in registers, by as many at a time as are left.
#[test]
fn operands_along_k_are_transposed_as_pairs() {
    for (m, n, k) in [(3, 50, 37), (9, 17, 32), (5, 40, 128), (4, 33, 102), (21, 48, 6)] {
        for dtype in [DType::BF16, DType::F32] {
            let mut g = G::new();
            let (x, w) = (g.input(DType::BF16, &[m, k]), g.input(dtype, &[n, k]));
            let w = g.transpose(w, &[1, 0]);
            let (x, w) = (narrowed(&mut g, x), narrowed(&mut g, w));
            let y = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
            g.output(y);
            let tiles = if m >= 4 && n >= 8 && k >= 16 { "contraction tiles" } else { "contraction pairs" };
            for (target, design) in [(&X86_64_V4_BF16, "contraction pairs"), (&X86_64_AMX, tiles)] {
                let text = run(&g, target, design, &|tensor| Layout::row_major(g.0.shape(tensor).rank()));
                let what = format!("{m}x{n}x{k} {dtype} {}: {text}", target.name);
                assert!(text.contains("interleave_pairs(") && text.contains("low("), "{what}");
                // A pair of its own, if their number is odd, is gathered, as what is half a pair.
                assert_eq!(text.contains("[ramp("), k / 2 % 2 == 1 || k % 2 == 1, "{what}");
            }
        }
    }
}

#[test]
fn producers_are_rounded_where_they_are_copied() {
    let mut g = G::new();
    let (x, w) = (g.f32(&[21, 10]), constant(&mut g, &[10, 18]));
    let x = g.unary(UnaryFn::Exp, x);
    let (x, w) = (narrowed(&mut g, x), narrowed(&mut g, w));
    let y = g.op(PrimOp::Contract(Contract::matmul(0)), &[x, w]);
    g.output(y);
    check(&g, false);
}

#[test]
fn convolutions() {
    let shapes = [
        (3, 16, 9, square_window(3, 1, 1, 1), 1),
        (5, 7, 8, square_window(3, 2, 1, 1), 1),
        (16, 33, 6, square_window(1, 1, 0, 1), 1),
        (32, 40, 6, square_window(1, 1, 0, 1), 1),
        (32, 20, 7, square_window(1, 2, 0, 1), 1),
        (8, 24, 7, square_window(3, 1, 2, 2), 2),
        (2, 9, 11, square_window(7, 2, 3, 1), 1),
    ];
    for (channels, maps, size, window, groups) in shapes {
        for dtype in [DType::BF16, DType::F32] {
            let mut g = G::new();
            let kernel = window.kernel[0];
            let x = g.input(dtype, &[2, channels, size, size]);
            let w = constant(&mut g, &[maps, channels / groups, kernel, kernel]);
            let (x, w) = (narrowed(&mut g, x), narrowed(&mut g, w));
            let y = g.op(PrimOp::Conv(ConvSpec { window: window.clone(), groups }), &[x, w]);
            let y = g.unary(UnaryFn::Neg, y);
            g.output(y);
            let k = channels / groups * kernel * kernel;
            // Vectors lie along positions in one layout, and along channels in the other.
            check(&g, maps / groups >= 4 && k >= 16);
            check_with(&g, maps / groups >= 8 && k >= 16, &|tensor| match g.0.constant(tensor) {
                Some(_) => Layout::row_major(4),
                None => Layout::channels_last(4),
            });
        }
    }
}
