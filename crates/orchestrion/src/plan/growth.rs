//! The work of planning grows with the number of equal blocks in a graph, and not faster: counts of what is tried, never times.

use super::candidates::{CandidateColumns, candidates, costs_us};
use super::choose::choose;
use crate::Options;
use crate::testing::with_context;
use orch_files::Scratch;
use orch_plan::blp::ChooseReport;

/// Blocks of a graph; each graph has twice as many as the one before it.
const BLOCKS: [usize; 3] = [4, 8, 16];

/// What the blocks that are added to the second graph may add to a count, as a multiple of what half as many add to the first one: twice as
/// much where it is in proportion, four times where it grows with the square.
const MOST_GROWTH: f64 = 2.3;

/// A perceptron of a layer with a residual connection, whose rows are normed before.
const NORMED: &str = "  tA: f32[64, 96] = mul tX, tX
  tB: f32[64] = reduce.sum tA axes=[1]
  tC: f32[64, 96] = broadcast tB dims=[0]
  tD: f32[64, 96] = div tX, tC
  tE: f32[64, 96] = contract tD, t1 labels=\"mk,kn->mn\"
  tF: f32[64, 96] = tanh tE
  tG: f32[64, 96] = contract tF, t1 labels=\"mk,kn->mn\"
  tH: f32[64, 96] = add tG, tX
";

/// Three branches that meet, as in convolutional networks.
const BRANCHES: &str = "  tA: f32[64, 96] = contract tX, t1 labels=\"mk,kn->mn\"
  tB: f32[64, 96] = tanh tA
  tC: f32[64, 96] = contract tB, t1 labels=\"mk,kn->mn\"
  tD: f32[64, 96] = contract tX, t1 labels=\"mk,kn->mn\"
  tE: f32[64, 96] = tanh tX
  tF: f32[64, 96] = add tC, tD
  tG: f32[64, 96] = add tF, tE
  tH: f32[64, 96] = tanh tG
";

/// A graph of so many blocks, each of which reads the result `tX` of the one before.
fn graph(block: &str, blocks: usize) -> String {
    let mut text =
        String::from("graph \"blocks\" {\n  input \"x\" t0: f32[64, 96]\n  input \"w\" t1: f32[96, 96]\n");
    let mut result = "t0".to_owned();
    for number in 0..blocks {
        let mut lines = block.replace("tX", &result);
        for (at, letter) in ('A'..='H').enumerate() {
            lines = lines.replace(&format!("t{letter}"), &format!("t{}", 2 + 8 * number + at));
        }
        text += &lines;
        result = format!("t{}", 2 + 8 * number + 7);
    }
    text + &format!("  output \"y\" {result}\n}}\n")
}

/// Counts of the stages up to the choice, by name.
fn counts(block: &str, blocks: usize, target: &str) -> Vec<(&'static str, usize)> {
    let cache = Scratch::new().unwrap();
    let options = Options {
        cache_dir: cache.path().to_owned(),
        target: Some(target.to_owned()),
        calibrate: false,
        ..Options::default()
    };
    let mut counts = Vec::new();
    with_context(&graph(block, blocks), &options, |ctx, _| {
        let CandidateColumns { columns, report, distinct, .. } = candidates(ctx, &options).unwrap();
        let choice = choose(ctx.units, &columns, &costs_us(&columns)).unwrap();
        let ChooseReport { columns_reduced, parts, states, steps, solver_nodes, .. } = choice.report;
        counts = vec![
            ("sets", report.sets),
            ("columns", columns.len()),
            ("distinct kernels", distinct),
            ("columns left by reductions", columns_reduced),
            ("parts", parts),
            ("states", states),
            ("columns tried in states", steps),
            ("nodes of the solver", solver_nodes as usize),
            ("chosen columns", choice.columns.len()),
        ];
    });
    counts
}

#[test]
fn planning_tries_as_much_more_as_there_are_more_blocks() {
    for (name, block) in [("normed", NORMED), ("branches", BRANCHES)] {
        for target in ["x86-64-v4", "cuda:sm_90"] {
            let counts = BLOCKS.map(|blocks| counts(block, blocks, target));
            for at in 0..counts[0].len() {
                let (what, [few, more, most]) =
                    (counts[0][at].0, counts.each_ref().map(|counts| counts[at].1));
                let added = [more.saturating_sub(few), most.saturating_sub(more)];
                assert!(
                    added[1] as f64 <= MOST_GROWTH * added[0] as f64 + 4.0,
                    "{name} for {target}: {few}, {more}, {most} {what}"
                );
            }
            // Equal blocks have equal kernels, but for those at the ends.
            let distinct =
                |at: usize| counts[at].iter().find(|(what, _)| *what == "distinct kernels").unwrap().1;
            assert!(distinct(2) <= distinct(1) + 4, "{name} for {target}: {counts:?}");
        }
    }
}
