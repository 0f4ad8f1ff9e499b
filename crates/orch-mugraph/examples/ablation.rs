//! How the search grows with the number of operators of a block, and what its rules save: the published table's
//! question (Mirage, OSDI'25, table 5), asked of ours. Prints Markdown.
//!
//! `cargo run --release -p orch-mugraph --example ablation > bench/results/mugraph-ablation.md`

#[allow(dead_code)]
#[path = "../tests/common/programs.rs"]
mod programs;

use orch_mugraph::search::limits::BlockLimits;
use orch_mugraph::search::{SearchOptions, search};
use programs::programs;
use std::time::Instant;

/// States per structure at which a search without a rule is given up.
const STATES: usize = 50_000;

/// A variant of the search, and what it is called.
type Variant = (&'static str, fn(&mut BlockLimits));

fn main() {
    let variants: [Variant; 4] = [
        ("all rules", |_| {}),
        ("no value numbers, no closability", |limits| {
            limits.value_numbers = false;
            limits.closability = false;
        }),
        ("no canonical order", |limits| limits.canonical_order = false),
        ("no abstract expressions", |limits| limits.abstract_expressions = false),
    ];
    println!("# Search of single kernels by operators of a block\n");
    println!(
        "States (time), loads counted as operators; `found` where there is a kernel. `>` marks searches that gave up at \
         {STATES} states in a structure. One thread. Written by `crates/orch-mugraph/examples/ablation.rs`.\n"
    );
    for name in ["gqa_inc", "osdi_rmsnorm"] {
        let programs = programs(1).unwrap_or_default();
        let Some(program) = programs.into_iter().find(|program| program.name == name) else { continue };
        println!("## {name}\n");
        println!("| operators | {} |", variants.map(|(name, _)| name).join(" | "));
        println!("|---|{}", "---|".repeat(variants.len()));
        let mut given_up = variants.map(|_| false);
        for ops in 4..=11 {
            let mut number = 0;
            let cells = variants.map(|(_, change)| {
                let given_up = &mut given_up[number];
                number += 1;
                if *given_up {
                    return "-".to_owned();
                }
                let mut options = SearchOptions { kernels: 1, keep: 1, ..SearchOptions::default() };
                options.limits.ops = ops;
                options.limits.states = STATES;
                change(&mut options.limits);
                let start = Instant::now();
                match search(&program.graph, &options) {
                    Err(problem) => problem,
                    Ok((found, report)) => {
                        *given_up = report.counts.truncated > 0;
                        let more = if report.counts.truncated > 0 { ">" } else { "" };
                        let found = if found.is_empty() { "" } else { ", found" };
                        let time_s = start.elapsed().as_secs_f64();
                        format!("{more}{} ({time_s:.2} s{found})", report.counts.states)
                    }
                }
            });
            println!("| {ops} | {} |", cells.join(" | "));
        }
        println!();
    }
}
