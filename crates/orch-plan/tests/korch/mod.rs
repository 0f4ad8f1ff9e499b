//! The enumerator of the published Korch code, kept as the yardstick of ours: execution states, ordered pairs of
//! states, and its two pruning rules, which together reproduce its Table 2.
//!
//! It is exponential in the width of the graph (a state per set of nodes closed under predecessors), which is why
//! `orch_plan::enumerate` does not work this way. Constants and graph inputs count as ready; a pair's
//! difference is a candidate unless it holds a compute operator ([`NodeKind::Anchor`]) beside anything else or has
//! more than one sink. The published code never removes duplicates; [`KorchCounts`] has both numbers.

use fixedbitset::FixedBitSet;
use orch_ir::NodeId;
use orch_plan::dag::{Dag, NodeKind};
use rustc_hash::FxHashSet;

/// What the published enumerator meets on a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KorchCounts {
    /// Execution states: sets of nodes closed under predecessors, the empty one included.
    pub states: usize,
    /// Ordered pairs of states, the first a proper subset of the second.
    pub pairs: usize,
    /// Distinct differences of pairs: the convex sets.
    pub convex: usize,
    /// Pairs that pass both pruning rules: the paper's "candidate kernels".
    pub raw: usize,
    /// Distinct sets among those.
    pub distinct: usize,
}

/// Runs the published enumerator. Time and memory grow with the square of the number of states.
pub fn published_counts(dag: &Dag) -> KorchCounts {
    let states = execution_states(dag);
    let mut counts = KorchCounts { states: states.len(), pairs: 0, convex: 0, raw: 0, distinct: 0 };
    let mut differences: FxHashSet<FixedBitSet> = FxHashSet::default();
    for larger in &states {
        for smaller in states.iter().filter(|smaller| *smaller != larger && smaller.is_subset(larger)) {
            let mut difference = larger.clone();
            difference.difference_with(smaller);
            let is_candidate = passes_pruning(dag, &difference);
            let is_new = differences.insert(difference);
            counts.pairs += 1;
            counts.raw += usize::from(is_candidate);
            counts.convex += usize::from(is_new);
            counts.distinct += usize::from(is_candidate && is_new);
        }
    }
    counts
}

/// All execution states, in the order of a depth-first search.
fn execution_states(dag: &Dag) -> Vec<FixedBitSet> {
    let empty = FixedBitSet::with_capacity(dag.nodes().len());
    let mut seen: FxHashSet<FixedBitSet> = FxHashSet::default();
    seen.insert(empty.clone());
    let mut states = Vec::new();
    let mut pending = vec![empty];
    while let Some(state) = pending.pop() {
        let is_done = |node: &NodeId| state.contains(node.index());
        for node in dag.node_ids() {
            if !is_done(&node) && dag.predecessors(node).iter().all(is_done) {
                let mut next = state.clone();
                next.insert(node.index());
                if seen.insert(next.clone()) {
                    pending.push(next);
                }
            }
        }
        states.push(state);
    }
    states
}

fn passes_pruning(dag: &Dag, set: &FixedBitSet) -> bool {
    let size = set.count_ones(..);
    let has_compute = set.ones().any(|node| dag.nodes()[node].kind == NodeKind::Anchor);
    if has_compute && size > 1 {
        return false;
    }
    let is_sink =
        |&node: &usize| !dag.successors(NodeId::new(node)).iter().any(|next| set.contains(next.index()));
    set.ones().filter(is_sink).count() == 1
}
