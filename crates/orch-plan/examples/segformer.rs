//! Counts, objectives and times of candidate enumeration and kernel choice on whole Segformer-B0, without cut points.
//!
//! `cargo run --release -p orch-plan --example segformer`
//!
//! The first four lines and "last, non-convex" are the instances of the comparison runs with the published rules:
//! there HiGHS took 0.7 to 0.8 s for the whole graph, and 53 s for the non-convex one, after 0.2 s of enumeration in
//! Python. The others show what exported tensors and fused anchors add.

#[path = "../tests/zoo/mod.rs"]
mod zoo;

use orch_plan::blp::{ChooseOptions, choose};
use orch_plan::dag::Dag;
use orch_plan::enumerate::{AnchorPolicy, KindRule, Limits, ReducePolicy, enumerate};
use orch_plan::solver::MicroLp;
use std::time::Instant;
use zoo::segformer::Segformer;

fn main() {
    let model = Segformer::build();
    let whole = model.dag();
    let (stage, _) = whole.between(&model.parts()[0].0, &model.parts()[0].1);
    let published = Limits::NONE;
    let nonconvex = Limits { max_reentrant_nodes: usize::MAX, ..Limits::NONE };
    let exporting = Limits { max_exports: 2, ..Limits::NONE };
    let usual = Limits::default();
    let (alone, fused) = (AnchorPolicy::Alone, AnchorPolicy::Fused);
    let (last, inside) = (ReducePolicy::SinkOnly, ReducePolicy::Inside);
    let cases = [
        ("stage 1, reductions last", &stage, alone, last, published),
        ("stage 1, reductions inside", &stage, alone, inside, published),
        ("whole, reductions last", &whole, alone, last, published),
        ("whole, reductions inside", &whole, alone, inside, published),
        ("whole, last, non-convex", &whole, alone, last, nonconvex),
        ("whole, inside, exporting", &whole, alone, inside, exporting),
        ("whole, inside, usual limits", &whole, alone, inside, usual),
        ("whole, anchors fused", &whole, fused, inside, published),
        ("whole, fused, exporting", &whole, fused, inside, exporting),
        ("whole, fused, usual limits", &whole, fused, inside, usual),
    ];
    println!(
        "{:<29}{:>8}{:>10}{:>8}{:>7}{:>8}{:>9}{:>10}  {:<9}{:>11}{:>8}",
        "case",
        "cand.",
        "enum ms",
        "reduced",
        "parts",
        "largest",
        "states",
        "solve ms",
        "status",
        "us",
        "kernels"
    );
    for (name, dag, anchors, reduces, limits) in cases {
        run(&model, name, dag, KindRule { anchors, reduces }, &limits);
    }
}

fn run(model: &Segformer, name: &str, dag: &Dag, rule: KindRule, limits: &Limits) {
    let start = Instant::now();
    let found = enumerate(dag, &rule, limits);
    let enumeration = start.elapsed();
    let problem = zoo::cost::problem(&model.net, dag, &found.candidates);
    let choice = choose(&problem, &ChooseOptions::default(), &MicroLp).expect("a valid problem");
    let report = &choice.report;
    println!(
        "{name:<29}{:>8}{:>10.2}{:>8}{:>7}{:>8}{:>9}{:>10.2}  {:<9}{:>11.2}{:>8}",
        found.candidates.len(),
        enumeration.as_secs_f64() * 1e3,
        report.columns_reduced,
        report.parts,
        report.largest_part_columns,
        report.states,
        report.time.as_secs_f64() * 1e3,
        format!("{:?}", choice.status),
        choice.objective_us,
        choice.columns.len(),
    );
}
