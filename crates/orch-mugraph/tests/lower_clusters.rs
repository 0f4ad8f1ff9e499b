//! CTAs of a cluster that split the iterations of a block compute what its block graph says: attention of few queries,
//! whose maxima and accumulators they reduce through DSMEM.

mod common;

use common::gpu::{KINDS, check_ways, ways};
use common::kernels::row_major;
use common::valid;
use orch_mugraph::lower::gpu::MugraphSchedule;
use orch_mugraph::{MuGraph, VerifyOptions, print, stabilise};
use orch_thread::print_thread;

/// Attention of two heads in one kernel, of so many rows, keys and columns and iterations, with a mask of keys or
/// without: the unstable and the stable form.
fn attention([rows, keys, columns]: [usize; 3], range: usize, mask: Option<&str>) -> [MuGraph; 2] {
    let mask_input = mask.map_or(String::new(), |mask| format!("t3 = {mask}\n"));
    let t = if mask.is_some() { 4 } else { 3 };
    let inputs = format!(
        "t0 = input \"q\" [2, {rows}, {columns}]\n t1 = input \"k\" [2, {columns}, {keys}]\n \
         t2 = input \"v\" [2, {keys}, {columns}]\n {mask_input}"
    );
    let [a, b, c, d, e, f] = [0, 1, 2, 3, 4, 5].map(|later| format!("t{}", t + later));
    let masked = if mask.is_some() { format!("mask {a}, t3") } else { format!("scale(1/2) {a}") };
    let program = valid(&format!(
        "mugraph \"p\" {{\n {inputs} {a} = matmul t0, t1\n {b} = {masked}\n {c} = exp {b}\n {d} = sum(2) {c}\n \
         {e} = div {c}, {d}\n {f} = matmul {e}, t2\n output \"o\" {f}\n}}\n"
    ));
    let (load, masked) = match mask {
        Some(_) => ("s3 = load t3 [-] 2", "mask s4, s3"),
        None => ("s3 = load t0 [0] -", "scale(1/2) s4"),
    };
    let fused = valid(&format!(
        "mugraph \"f\" {{\n {inputs} {a} = block [2] loop {range} {{\n s0 = load t0 [0] -\n s1 = load t1 [0] 2\n \
         s2 = load t2 [0] 1\n {load}\n s4 = matmul s0, s1\n s5 = {masked}\n s6 = exp s5\n s7 = sum(2) s6\n \
         s8 = accumulate sum s7\n s9 = matmul s6, s2\n s10 = accumulate sum s9\n s11 = div s10, s8\n store s11 [0]\n }}\n \
         output \"o\" {a}\n}}\n"
    ));
    let stable = stabilise(&program, &fused, &VerifyOptions::default());
    [fused.clone(), stable.unwrap_or_else(|e| panic!("{e}\n{}", print(&fused))).graph]
}

/// Extents as those of [`attention`], iterations, a mask, and the cluster sizes that may split them.
type Case = ([usize; 3], usize, Option<&'static str>, &'static [usize]);

#[test]
fn attention_of_few_queries_is_split_over_clusters() {
    check_shared(&[
        ([16, 128, 64], 8, None, &[4, 2]),
        ([16, 128, 16], 16, None, &[8, 4, 2]),
        // Keys and values by TMA.
        ([1, 512, 64], 8, None, &[4, 2]),
        // Rows that are no multiple of 64, columns that are no whole panels, iterations that few CTAs can split.
        ([1, 96, 64], 6, None, &[2]),
        ([13, 160, 24], 4, None, &[2]),
        ([40, 128, 64], 4, None, &[2]),
        // Every CTA has masked keys, and the last one has no others.
        ([16, 128, 32], 8, Some("below(2, 50, 1, 16, 128)"), &[4, 2]),
        ([16, 128, 32], 8, Some("causal(100, 1, 16, 128)"), &[4, 2]),
    ]);
}

/// Split-K over warps is reduced before CTAs exchange accumulators.
#[test]
fn ctas_exchange_what_their_warps_have_reduced() {
    let [_, graph] = attention([1, 512, 64], 8, None);
    let all = ways(&graph, &row_major(&graph, KINDS[3].1), KINDS[3].0);
    let (_, kernel) = all.iter().find(|(schedule, _)| schedule.ctas == 4).expect("four CTAs");
    let exchanged = kernel.program.buffers.iter().filter(|buffer| buffer.name.starts_with("exchange"));
    let elems: Vec<usize> = exchanged.map(|buffer| buffer.elems).collect();
    // Per thread: a maximum and a sum for each of two rows, and eight accumulators of 16 x 64 results per warp.
    assert_eq!(elems, [2, 2, 8].map(|elems| elems * 128));
}

/// One product overlaps the other.
#[test]
fn attention_by_wgmma_is_split_over_clusters() {
    check_shared(&[
        ([64, 1024, 64], 16, None, &[8, 4, 2]),
        ([64, 512, 64], 8, Some("causal(300, 1, 64, 512)"), &[4, 2]),
    ]);
}

fn check_shared(cases: &[Case]) {
    for &(extents, range, mask, ctas) in cases {
        for (graph, has_maxima) in attention(extents, range, mask).iter().zip([false, true]) {
            // In f32 as well where warps share rows.
            for (factors, dtype, limit) in [&KINDS[3..4], &KINDS[..usize::from(extents[0] == 40)]].concat() {
                let stored = row_major(graph, dtype);
                let all = ways(graph, &stored, factors);
                let shared: Vec<usize> = all.iter().map(|(schedule, _)| schedule.ctas).collect();
                let expected = [&[1][..], ctas].concat();
                // One CTA with wgmma keeps an SM busy.
                let has_tiles = extents[0].is_multiple_of(64);
                assert_eq!(all[usize::from(has_tiles)].0, MugraphSchedule::PLAIN);
                let mut sorted = shared.clone();
                sorted.sort_by_key(|&ctas| (ctas > 1, std::cmp::Reverse(ctas)));
                assert_eq!(sorted, expected, "{factors:?} {}", print(graph));
                for (schedule, kernel) in all.iter().filter(|(schedule, _)| schedule.ctas > 1) {
                    // One for maxima, one for sums, two if each CTA combines some of them, and one at the end.
                    let barriers = print_thread(&kernel.program).matches("cluster_barrier").count();
                    let least = 2 + usize::from(has_maxima);
                    assert_eq!(kernel.program.tasks, 2 * schedule.ctas);
                    assert!((least..=least + 1).contains(&barriers), "{barriers} barriers");
                }
                check_ways(graph, &stored, (factors, dtype, limit));
            }
        }
    }
}
