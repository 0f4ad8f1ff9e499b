//! Steps of enumeration and choice for models of repeated blocks: in proportion to the number of blocks.

use orch_ir::TensorId;
use orch_plan::blp::{ChooseOptions, Column, Problem, choose};
use orch_plan::dag::{Dag, DagNode, NodeKind};
use orch_plan::enumerate::{AnchorPolicy, KindRule, Limits, ReducePolicy, enumerate};
use orch_plan::solver::MicroLp;

/// Steps of a recurrence that was unrolled: each reads an input and the state before it, hands on a state, and gives a result; all
/// results are joined in the end.
fn unrolled(steps: u32) -> Dag {
    let mut nodes = Vec::new();
    let mut next = steps + 1;
    let mut add = |inputs: &[u32]| {
        let inputs = inputs.iter().copied().map(TensorId).collect();
        let outputs = vec![TensorId(next)];
        nodes.push(DagNode { kind: NodeKind::Injective, is_cheap: true, inputs, outputs });
        next += 1;
        next - 1
    };
    let (mut state, mut results) = (steps, Vec::new());
    for input in 0..steps {
        let scaled = add(&[input]);
        let sum = add(&[scaled, state]);
        let exponential = add(&[sum, input]);
        results.push(add(&[exponential, sum]));
        state = add(&[exponential, scaled, state]);
    }
    let joined = add(&results);
    Dag::new(next as usize, nodes, vec![TensorId(joined)]).expect("valid")
}

/// Candidates, states of the choice, columns tried in them, and kernels chosen.
fn counts(steps: u32) -> [usize; 4] {
    let dag = unrolled(steps);
    let rule = KindRule { anchors: AnchorPolicy::Fused, reduces: ReducePolicy::Inside };
    let limits = Limits { max_nodes: 8, max_sets_per_sink: 32, ..Limits::default() };
    let candidates = enumerate(&dag, &rule, &limits).candidates;
    let mut problem = Problem::of_graph(&dag);
    // A launch, and what is read, written and computed.
    let cost_us = |moved: usize, nodes: usize| 1.0 + 0.3 * moved as f64 + 0.1 * nodes as f64;
    let column = |candidate: &orch_plan::enumerate::Candidate| {
        let moved = candidate.inputs.len() + candidate.outputs.len();
        Column::of_candidate(candidate, cost_us(moved, candidate.nodes.len()))
    };
    problem.columns = candidates.iter().map(column).collect();
    let choice = choose(&problem, &ChooseOptions::default(), &MicroLp).expect("a valid problem");
    [candidates.len(), choice.report.states, choice.report.steps, choice.columns.len()]
}

#[test]
fn steps_grow_with_the_number_of_blocks() {
    let [small, medium, large] = [8, 16, 32].map(counts);
    for (less, more) in [(small, medium), (medium, large)] {
        for (less, more) in less.into_iter().zip(more) {
            assert!(more * 10 <= less * 25, "{small:?}, {medium:?}, {large:?}");
        }
    }
}
