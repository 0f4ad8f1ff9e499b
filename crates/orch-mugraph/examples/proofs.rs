//! How long proofs of equivalence take at full size on one thread. Prints Markdown.
//!
//! `cargo run --release -p orch-mugraph --example proofs > bench/results/mugraph-proofs.md`

#[allow(dead_code)]
#[path = "../tests/common/programs.rs"]
mod programs;

use orch_mugraph::verify::{PROOF_BITS, screen};
use orch_mugraph::{Rejection, VerifyOptions, parse, verify};
use programs::programs;
use std::time::Instant;

/// A program and a µGraph that computes it.
const PAIRS: [(&str, &str); 6] = [
    ("osdi_gqa", include_str!("../tests/mugraphs/gqa_split.txt")),
    ("osdi_rmsnorm", include_str!("../tests/mugraphs/rmsnorm.txt")),
    ("osdi_lora", include_str!("../tests/mugraphs/lora.txt")),
    ("osdi_gated_mlp", include_str!("../tests/mugraphs/gated_mlp.txt")),
    ("osdi_ntrans", include_str!("../tests/mugraphs/ntrans.txt")),
    ("mlp_adapter", include_str!("../tests/mugraphs/adapter_split.txt")),
];

/// Runs of which the median is taken.
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("# Proofs of equivalence at full size\n");
    println!(
        "Batch 1, one thread, medians of {RUNS}. A proof is as many tests with 61-bit primes as its bound takes, \
         cut along what both programs treat alike; beside it, one comparison of all elements. Written \
         by `crates/orch-mugraph/examples/proofs.rs`.\n\n\
         | program | proof, s | test of all elements, s | chance of an error |\n|---|---|---|---|"
    );
    let programs = programs(1)?;
    for (name, text) in PAIRS {
        let program =
            &programs.iter().find(|program| program.name == name).ok_or("an unknown program")?.graph;
        let candidate = parse(text)?;
        let bound = verify(program, &candidate, &VerifyOptions::default())?.log2_bound;
        let proof_s = median_s(|| verify(program, &candidate, &VerifyOptions::default()).map(|_| ()))?;
        let test_s = median_s(|| screen(program, &candidate, PROOF_BITS, 0))?;
        println!("| {name} | {proof_s:.3} | {test_s:.3} | 2^{bound:.0} |");
    }
    Ok(())
}

fn median_s(run: impl Fn() -> Result<(), Rejection>) -> Result<f64, Rejection> {
    let mut times_s = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        times_s.push(start.elapsed().as_secs_f64());
    }
    times_s.sort_by(f64::total_cmp);
    Ok(times_s[RUNS / 2])
}
