//! Attention with a mask that is a band: kernels for GPUs compute the mask from indices, run the iterations that show a block
//! something, and compute what the block graph says.

mod common;

use common::gpu::{KINDS, error, rounded, ways};
use common::kernels::{outputs, row_major};
use common::{random_inputs, valid};
use orch_ir::DType;
use orch_mugraph::array::Array;
use orch_mugraph::lower::{Request, Stored, gpu};
use orch_mugraph::tiling::indices;
use orch_mugraph::{Band, MuGraph, Precision, TensorId, VerifyOptions, interpret, print, stabilise};
use orch_thread::print_thread;
use orch_thread::target::SM_90;

/// Attention in one kernel, with a mask of rows and keys.
#[derive(Clone, Copy, Debug)]
struct Attention {
    heads: usize,
    rows: usize,
    keys: usize,
    columns: usize,
    row_blocks: usize,
    /// Blocks along keys: with more than one a second kernel combines their results.
    key_blocks: usize,
    range: usize,
}

const PLAIN: Attention =
    Attention { heads: 1, rows: 64, keys: 256, columns: 64, row_blocks: 1, key_blocks: 1, range: 8 };

/// The tensor of the mask.
const MASK: usize = 3;

impl Attention {
    fn inputs(&self) -> String {
        let Attention { heads, rows, keys, columns, .. } = self;
        format!(
            "t0 = input \"q\" [{heads}, {rows}, {columns}]\n t1 = input \"k\" [{heads}, {columns}, {keys}]\n \
             t2 = input \"v\" [{heads}, {keys}, {columns}]\n t3 = mask \"m\" [1, {rows}, {keys}]\n"
        )
    }

    fn program(&self) -> MuGraph {
        valid(&format!(
            "mugraph \"p\" {{\n {} t4 = matmul t0, t1\n t5 = mask t4, t3\n t6 = exp t5\n t7 = sum(2) t6\n \
             t8 = div t6, t7\n t9 = matmul t8, t2\n output \"o\" t9\n}}\n",
            self.inputs()
        ))
    }

    fn fused(&self) -> MuGraph {
        let Attention { heads, row_blocks, key_blocks, range, columns, .. } = self;
        let body = "s0 = load t0 [0, 1, -] -\n s1 = load t1 [0, -, 2] 2\n s2 = load t2 [0, -, 1] 1\n \
             s3 = load t3 [-, 1, 2] 2\n s4 = matmul s0, s1\n s5 = mask s4, s3\n s6 = exp s5\n s7 = sum(2) s6\n \
             s8 = accumulate sum s7\n s9 = matmul s6, s2\n s10 = accumulate sum s9";
        let inputs = self.inputs();
        valid(&match key_blocks {
            1 => {
                let body = body.replace(", -]", "]").replace(", 2]", "]").replace("[0, -, 1]", "[0, -]");
                format!(
                    "mugraph \"f\" {{\n {inputs} t4 = block [{heads}, {row_blocks}] loop {range} {{\n {body}\n \
                     s11 = div s10, s8\n store s11 [0, 1]\n }}\n output \"o\" t4\n}}\n"
                )
            }
            _ => format!(
                "mugraph \"f\" {{\n {inputs} t4, t5 = block [{heads}, {row_blocks}, {key_blocks}] loop {range} {{\n \
                 {body}\n store s8 [0, 1, 2]\n store s10 [0, 1, 2]\n }}\n t6 = sum(2) t4\n \
                 t7 = sum(2, {columns}) t5\n t8 = div t7, t6\n output \"o\" t8\n}}\n"
            ),
        })
    }

    /// The unstable and the stable form.
    fn forms(&self) -> [MuGraph; 2] {
        let fused = self.fused();
        let stable = stabilise(&self.program(), &fused, &VerifyOptions::default());
        let stable = stable.unwrap_or_else(|e| panic!("{e}\n{}", print(&fused))).graph;
        [fused, stable]
    }

    /// Random inputs and the mask of a band.
    fn values(&self, graph: &MuGraph, band: Band) -> Vec<Array<f64>> {
        let mut inputs = random_inputs(graph, 11, 0.3);
        let kept = |index: Vec<usize>| f64::from(u8::from(band.contains(index[1], index[2])));
        inputs[MASK].data = indices(&[1, self.rows, self.keys]).map(kept).collect();
        inputs
    }
}

/// Tensors in row-major order, the mask with its band.
fn stored(graph: &MuGraph, dtype: DType, band: Band) -> Vec<Stored> {
    let mut stored = row_major(graph, dtype);
    stored[MASK] =
        Stored { band: Some(band), ..Stored::row_major(DType::Bool, graph.shape(TensorId(MASK as u32))) };
    stored
}

/// Compares the kernels of both forms under all schedules with the interpretation, and says whether any left out iterations.
fn check(attention: Attention, band: Band, kinds: &[usize]) -> bool {
    let mut any = false;
    for graph in attention.forms() {
        for &kind in kinds {
            let (precision, dtype, limit) = KINDS[kind];
            let stored = stored(&graph, dtype, band);
            let inputs = rounded(&attention.values(&graph, band), dtype);
            let expected = interpret(&graph, &inputs, Precision::F32).unwrap();
            for (schedule, kernel) in ways(&graph, &stored, precision) {
                let text = print_thread(&kernel.program);
                any |= text.contains("let iterations");
                assert!(!text.contains("input t3"), "the mask is read:\n{text}");
                let mut kernels = std::iter::once(kernel);
                let given = outputs(&graph, &inputs, &stored, |request| {
                    let lower = |_| gpu::lower(request, &SM_90, precision).unwrap_or_else(|e| panic!("{e}"));
                    kernels.next().unwrap_or_else(|| lower(()))
                });
                let error = error(&expected[0], &given[0]);
                assert!(error < limit, "{attention:?} {band:?} {schedule}: {error:e}\n{text}");
            }
        }
    }
    any
}

/// A band with limits on both sides.
fn window(above: i64, below: i64) -> Band {
    Band { above: Some(above), below: Some(below) }
}

#[test]
fn causal_attention_and_windows_leave_out_iterations() {
    let rows = Attention { rows: 128, keys: 128, row_blocks: 2, range: 4, ..PLAIN };
    for (attention, band) in [
        (rows, Band::causal(0)),
        (rows, Band { above: None, below: Some(0) }),
        (rows, window(0, 40)),
        (PLAIN, Band::causal(100)),
        (PLAIN, window(100, -20)),
        // Two warp groups, and loops shorter than the stages.
        (Attention { rows: 256, keys: 256, row_blocks: 2, ..PLAIN }, Band::causal(0)),
        // One iteration shows something, in each block.
        (Attention { keys: 128, range: 4, ..rows }, window(0, 0)),
    ] {
        assert!(check(attention, band, &[3]), "{attention:?} {band:?}");
    }
}

/// Rows of the first blocks, of the last ones, of all and of none see nothing.
#[test]
fn rows_that_see_nothing_are_what_they_are_without_a_band() {
    let few = Attention { heads: 2, rows: 48, keys: 64, columns: 16, row_blocks: 3, range: 4, ..PLAIN };
    for band in [Band::causal(-20), Band::causal(-100), window(10, -30), window(-1, 0), window(200, -64)] {
        check(few, band, &[0, 3]);
    }
    check(Attention { row_blocks: 1, ..few }, Band::causal(-20), &[0, 3]);
    check(Attention { rows: 128, row_blocks: 2, keys: 128, columns: 64, ..few }, Band::causal(-70), &[3]);
}

/// Rows that no tile divides, keys of a tile that are no power of two, keys split over blocks.
#[test]
fn tiles_that_do_not_divide_rows_are_computed() {
    let uneven = Attention { rows: 50, keys: 120, columns: 24, row_blocks: 3, range: 5, ..PLAIN };
    check(uneven, Band::causal(7), &[0, 3]);
    check(uneven, window(3, 19), &[3]);
    let split =
        Attention { rows: 40, keys: 128, columns: 16, row_blocks: 2, key_blocks: 2, range: 4, ..PLAIN };
    for band in [Band::causal(0), Band::causal(60), window(5, 30)] {
        check(split, band, &[0, 3]);
    }
}

/// Keys that no number of iterations divides: the last one masks what is past the end, beside what the band hides.
#[test]
fn keys_past_the_end_are_masked() {
    let everything = Band { above: None, below: None };
    let tiles = Attention { rows: 128, row_blocks: 2, keys: 200, range: 4, ..PLAIN };
    for band in [everything, Band::causal(0), Band::causal(72), window(10, 30)] {
        check(tiles, band, &[3]);
    }
    // The last iteration has one key, or is of the second CTA of a cluster; tiles of 16 keys.
    check(Attention { keys: 257, range: 5, ..PLAIN }, everything, &[0, 3]);
    check(Attention { keys: 500, range: 8, ..PLAIN }, everything, &[3]);
    let few = Attention { heads: 2, rows: 50, keys: 50, columns: 24, row_blocks: 3, range: 4, ..PLAIN };
    for band in [everything, Band::causal(0), window(3, 19)] {
        check(few, band, &[0, 3]);
    }
}

#[test]
fn random_bands_are_computed() {
    let mut state = 17_u64;
    let mut next = |count: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % count
    };
    for _ in 0..12 {
        let range = [2, 4, 8][next(3)];
        let attention = Attention {
            heads: 1 + next(2),
            rows: 1 + next(40),
            keys: range * 8 * (1 + next(3)),
            columns: 16,
            row_blocks: 1 + next(3),
            key_blocks: 1,
            range,
        };
        let mut limit = || (next(4) > 0).then(|| next(2 * attention.keys) as i64 - attention.keys as i64);
        let band = Band { above: limit(), below: limit() };
        check(attention, band, &[0, 3]);
    }
}

/// Loops whose accumulators change where the mask hides a whole tile visit all tiles.
#[test]
fn loops_that_hidden_tiles_change_are_whole() {
    for (body, is_whole) in [
        ("s4 = exp s3\n s5 = sum(1) s4\n s6 = accumulate sum s5\n store s6 [0]", false),
        ("s4 = largest(1) s3\n s5 = accumulate max s4\n store s5 [0]", false),
        ("s4 = exp s3\n s5 = offset(1) s4\n s6 = accumulate sum s5\n store s6 [0]", true),
        ("s4 = exp s3\n s5 = largest(1) s4\n s6 = accumulate max s5\n store s6 [0]", true),
        ("s4 = mul s0, s0\n s5 = exp s3\n s6 = add s4, s5\n s7 = accumulate sum s6\n store s7 [0]", true),
        ("s4 = scale(-1) s3\n s5 = exp s4\n s6 = accumulate sum s5\n store s6 [0]", true),
    ] {
        let graph = valid(&format!(
            "mugraph \"w\" {{\n t0 = input \"x\" [64, 64]\n t1 = mask \"m\" [64, 64]\n t2 = block [4] loop 4 {{\n \
             s0 = load t0 [0] 1\n s1 = load t1 [0] 1\n s2 = scale(1/2) s0\n s3 = mask s2, s1\n {body}\n }}\n \
             output \"o\" t2\n}}\n"
        ));
        let mut stored = row_major(&graph, DType::F32);
        stored[1].band = Some(Band::causal(0));
        let request = Request { graph: &graph, kernel: TensorId(2), stored: &stored, name: "k" };
        let kernel = gpu::lower(&request, &SM_90, KINDS[0].0).unwrap_or_else(|e| panic!("{e}"));
        let text = print_thread(&kernel.program);
        assert_eq!(!text.contains("let iterations"), is_whole, "{text}");
    }
}
