//! Skinny GEMMs compute what their block graphs say under each schedule: direct loads of B to registers, or TMA and
//! wgmma.

mod common;

use common::gpu::{KINDS, adapted, check_ways, gated, normalised, ways};
use common::kernels::row_major;
use common::valid;
use orch_ir::DType;
use orch_mugraph::lower::Stored;
use orch_mugraph::lower::gpu::MugraphSchedule;
use orch_mugraph::{MuGraph, print};
use orch_thread::OperandPrecision;
use orch_thread::kernel::Kernel;
use orch_thread::print_thread;

/// TMA loads in the text of a kernel.
fn tma_loads(kernel: &Kernel) -> usize {
    print_thread(&kernel.program).matches("tma_load").count()
}

/// TMA loads of the kernel of a graph under the schedule of TMA operands without clusters, if that succeeds.
fn tma_count(graph: &MuGraph, stored: &[Stored], factors: OperandPrecision) -> Option<usize> {
    let all = ways(graph, stored, factors);
    let (_, kernel) = all.iter().find(|(schedule, _)| {
        *schedule == MugraphSchedule { tma_operands: true, ..MugraphSchedule::PLAIN }
    })?;
    Some(tma_loads(kernel))
}

/// Few rows by B with rows of whole panels: normalised A, two products in one loop, a product of few columns, whose B
/// cp.async copies, beside one of many; and iterations that are split into shorter ones.
#[test]
fn skinny_gemms_load_b_by_tma() {
    for rows in [1, 16, 40, 64, 100, 128] {
        for graph in [
            normalised([rows, 512, 128], 2, 2),
            gated([rows, 384, 64], 1, 3),
            adapted([rows, 512, 128], 2, 2),
        ] {
            for kind in [KINDS[3], KINDS[4]] {
                let stored = row_major(&graph, kind.1);
                assert!(
                    tma_count(&graph, &stored, kind.0).is_some_and(|loads| loads > 0),
                    "{}",
                    print(&graph)
                );
                check_ways(&graph, &stored, kind);
            }
        }
    }
}

/// TMA is slow for rows outside of the tensor: no kernel loads such rows.
#[test]
fn tma_loads_only_rows_that_exist() {
    for rows in [1, 12, 16, 64, 72, 128] {
        let graph = gated([rows, 384, 64], 1, 3);
        let all = ways(&graph, &row_major(&graph, DType::F16), OperandPrecision::F16);
        let (_, kernel) =
            all.iter().find(|(schedule, _)| schedule.tma_operands).expect("a schedule of TMA operands");
        let first = kernel.program.tensor_maps.iter().find(|view| view.extents == [384, rows]);
        assert_eq!(first.map(|view| view.rows), Some(rows), "{}", kernel.program);
    }
}

/// Blocks that are too few to fill the GPU are split over the CTAs of clusters: a norm beside a product, and a product
/// of few columns beside one of many.
#[test]
fn few_blocks_are_run_by_clusters() {
    for (graph, ctas) in [(normalised([9, 1024, 128], 2, 16), 4), (adapted([8, 4096, 128], 2, 2), 4)] {
        let stored = row_major(&graph, DType::F16);
        let all = ways(&graph, &stored, OperandPrecision::F16);
        let (_, shared) = all
            .iter()
            .find(|(way, _)| {
                *way == MugraphSchedule { tma_operands: true, ctas: 2, ..MugraphSchedule::PLAIN }
            })
            .expect("clusters");
        assert_eq!(shared.program.tasks, ctas, "{}", print(&graph));
        check_ways(&graph, &stored, KINDS[3]);
    }
}

/// Remainders of rows and columns, heads, B in column-major order, an A that is computed or has other readers, and
/// iterations that are short already.
#[test]
fn tma_loads_suit_remainders_heads_and_orders() {
    let plain = |x: &str, w: &str, grid: &str, loads: [&str; 2], range: usize, body: &str| {
        valid(&format!(
            "mugraph \"b\" {{\n t0 = input \"x\" {x}\n t1 = input \"w\" {w}\n t2 = block {grid} loop {range} {{\n \
             s0 = load t0 {}\n s1 = load t1 {}\n {body}\n }}\n output \"o\" t2\n}}\n",
            loads[0], loads[1]
        ))
    };
    let two = ["[0, -] 1", "[-, 1] 0"];
    let product = "s2 = matmul s0, s1\n s3 = accumulate sum s2\n store s3 [0, 1]";
    let heads = "s2 = matmul s0, s1\n s3 = accumulate sum s2\n store s3 [0]";
    let computed = "s2 = relu s0\n s3 = matmul s2, s1\n s4 = accumulate sum s3\n store s4 [0, 1]";
    let read = "s2 = matmul s0, s1\n s3 = accumulate sum s2\n s4 = exp s0\n s5 = sum(1) s4\n \
                s6 = accumulate sum s5\n s7 = mul s3, s6\n store s7 [0, 1]";
    for (graph, strides, tma_loads) in [
        (plain("[31, 256]", "[256, 192]", "[2, 3]", two, 2, product), None, 4),
        (plain("[2, 256]", "[256, 568]", "[1, 9]", two, 2, product), None, 4),
        (plain("[2, 8, 256]", "[2, 256, 64]", "[2]", ["[0] 2", "[0] 1"], 2, heads), None, 4),
        (plain("[8, 256]", "[256, 72]", "[1, 3]", two, 2, product), Some(vec![1, 256]), 4),
        (plain("[8, 256]", "[256, 64]", "[1, 1]", two, 2, computed), None, 1),
        (plain("[8, 256]", "[256, 64]", "[1, 1]", two, 2, read), None, 4),
        (plain("[8, 256]", "[256, 64]", "[1, 1]", two, 1, product), None, 4),
        (plain("[8, 96]", "[96, 64]", "[1, 1]", two, 3, product), None, 2),
    ] {
        let mut stored = row_major(&graph, DType::F16);
        if let Some(strides) = strides {
            stored[1].strides = strides;
        }
        assert_eq!(tma_count(&graph, &stored, OperandPrecision::F16), Some(tma_loads), "{}", print(&graph));
        check_ways(&graph, &stored, KINDS[3]);
    }
}

/// B operands that no tensor map describes in whole panels, and loops whose iterations cannot be split.
#[test]
fn other_operands_are_not_loaded_by_tma() {
    let graph = |rows: usize, columns: usize, body: &str| {
        valid(&format!(
            "mugraph \"n\" {{\n t0 = input \"x\" [{rows}, 256]\n t1 = input \"w\" [256, {columns}]\n \
             t2 = block [1] loop 2 {{\n s0 = load t0 [-] 1\n s1 = load t1 [-] 0\n {body}\n }}\n output \"o\" t2\n}}\n"
        ))
    };
    let product = "s2 = matmul s0, s1\n s3 = accumulate sum s2\n store s3 [0]";
    let plain = graph(8, 64, product);
    let f16 = row_major(&plain, DType::F16);
    assert_ne!(tma_count(&plain, &f16, OperandPrecision::F16), None);
    assert_eq!(tma_count(&plain, &f16, OperandPrecision::Bf16), None);
    assert_eq!(tma_count(&plain, &row_major(&plain, DType::F32), OperandPrecision::F16), None);
    for (strides, offset) in [([65, 1], 0), ([64, 1], 4)] {
        let mut stored = f16.clone();
        stored[1] =
            Stored { dtype: DType::F16, strides: strides.to_vec(), offset, elems: 256 * 65, band: None };
        assert_eq!(tma_count(&plain, &stored, OperandPrecision::F16), None, "{strides:?} {offset}");
    }
    for other in [
        graph(136, 64, product),
        graph(8, 32, product),
        graph(8, 64, "s2 = matmul s0, s1\n s3 = relu s2\n s4 = accumulate sum s3\n store s4 [0]"),
        graph(
            8,
            64,
            "s2 = matmul s0, s1\n s3 = accumulate sum s2\n s4 = sum(0) s1\n s5 = accumulate sum s4\n s6 = sum(0) s5\n \
             s7 = add s3, s6\n store s7 [0]",
        ),
    ] {
        assert_eq!(
            tma_count(&other, &row_major(&other, DType::F16), OperandPrecision::F16),
            None,
            "{}",
            print(&other)
        );
    }
}
