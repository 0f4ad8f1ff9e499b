//! The synthetic cost model of the comparison runs, and the program of choice it gives.

use super::net::Net;
use orch_plan::blp::{Column, Problem};
use orch_plan::dag::Dag;
use orch_plan::enumerate::Candidate;

const LAUNCH_US: f64 = 4.0;
/// Four fifths of an A100's bandwidth.
const BYTES_PER_US: f64 = 1.244e6;
const FLOPS_PER_US: f64 = 15e6;
const ELEMENT_BYTES: f64 = 4.0;

/// Launch, plus the longer of memory traffic (all inputs and outputs once, but not constants) and arithmetic, in
/// microseconds.
pub fn cost_us(net: &Net, candidate: &Candidate) -> f64 {
    let tensors = candidate.inputs.iter().chain(&candidate.outputs);
    let elems: usize =
        tensors.filter(|&&tensor| !net.is_weight(tensor)).map(|&tensor| net.elems(tensor)).sum();
    let flops: f64 = candidate.nodes.iter().map(|&node| net.flops(node)).sum();
    LAUNCH_US + (elems as f64 * ELEMENT_BYTES / BYTES_PER_US).max(flops / FLOPS_PER_US)
}

/// Classes are tensors; a column per candidate.
pub fn problem(net: &Net, dag: &Dag, candidates: &[Candidate]) -> Problem {
    let column = |candidate| Column::of_candidate(candidate, cost_us(net, candidate));
    Problem { columns: candidates.iter().map(column).collect(), ..Problem::of_graph(dag) }
}
