//! The enumerator of the published Korch code, kept as the yardstick of ours: execution states, ordered pairs of
//! states, and its two pruning rules, which together reproduce its Table 2.
//!
//! It is exponential in the width of the graph (a state per set of nodes closed under predecessors), which is why
//! [`enumerate`](mod@crate::enumerate) does not work this way. Constants and graph inputs count as ready; a pair's
//! difference is a candidate unless it holds a compute operator ([`NodeKind::Anchor`]) beside anything else or has
//! more than one sink. The published code never removes duplicates; [`KorchCounts`] has both numbers.

use crate::dag::{Dag, NodeKind};
use fixedbitset::FixedBitSet;
use orch_ir::NodeId;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::DagNode;
    use orch_ir::TensorId;

    /// `width` chains of `depth` nodes from one source, joined by a last node.
    fn parallel_chains(width: u32, depth: u32) -> Dag {
        let injective = |inputs, output| DagNode {
            kind: NodeKind::Injective,
            is_cheap: true,
            inputs,
            outputs: vec![TensorId(output)],
        };
        let mut nodes = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..width {
            let mut last = TensorId(0);
            for _ in 0..depth {
                let output = nodes.len() as u32 + 1;
                nodes.push(injective(vec![last], output));
                last = TensorId(output);
            }
            ends.push(last);
        }
        let join = nodes.len() as u32 + 1;
        nodes.push(injective(ends, join));
        Dag::new(nodes.len() + 1, nodes, vec![TensorId(join)]).unwrap()
    }

    #[test]
    fn states_grow_exponentially_with_width() {
        let counts = |width| published_counts(&parallel_chains(width, 3));
        assert_eq!(counts(2), KorchCounts { states: 17, pairs: 100, convex: 64, raw: 64, distinct: 28 });
        assert_eq!(counts(3), KorchCounts { states: 65, pairs: 1000, convex: 406, raw: 352, distinct: 82 });
        let four = KorchCounts { states: 257, pairs: 10_000, convex: 2656, raw: 1792, distinct: 280 };
        assert_eq!(counts(4), four);
    }

    #[test]
    fn a_compute_node_is_a_candidate_only_alone() {
        let node = |kind, input, output| DagNode {
            kind,
            is_cheap: false,
            inputs: vec![TensorId(input)],
            outputs: vec![TensorId(output)],
        };
        let nodes = vec![
            node(NodeKind::Injective, 0, 1),
            node(NodeKind::Anchor, 1, 2),
            node(NodeKind::Reduce, 2, 3),
            node(NodeKind::Injective, 3, 4),
        ];
        let dag = Dag::new(5, nodes, vec![TensorId(4)]).unwrap();
        let counts = published_counts(&dag);
        assert_eq!(counts, KorchCounts { states: 5, pairs: 10, convex: 10, raw: 5, distinct: 5 });
    }
}
