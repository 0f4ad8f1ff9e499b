//! Candidates with several sinks, which sets that are grown backward from one sink never are.
//!
//! - *Statistics* of one tensor, as training takes them for batch normalisation: its mean, what follows of the variance, and the running
//!   ones, which nothing else needs. Each as a kernel of its own reads the tensor again. Here a set is grown from the tensor that is read: all
//!   reductions of it, what they need that has as many elements, and what is computed of their results as long as that is as small.
//! - *Small units of one shape* that need nothing that is computed, as counters of batches: a launch takes longer than all of them.

use super::units::Units;
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_plan::dag::{Dag, NodeKind};
use orch_plan::enumerate::Candidate;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// How many times as many elements as a result of statistics the tensor has, at least.
const LEAST_ELEMS: usize = 16;
/// Reductions that follow each other, at most: of differences from a mean, of which the second is taken.
const MOST_REDUCTIONS: usize = 2;
/// Units of a set, at most, and units that are looked at for one.
const MAX_UNITS: usize = 32;
const MAX_VISITS: usize = 128;
/// Elements of small results, at most, and tensors that a kernel of several of them reads.
const SMALL_ELEMS: usize = 1 << 14;
const MAX_INPUTS: usize = 64;

/// Sets of units with several sinks.
pub fn siblings(graph: &PrimGraph, units: &Units) -> Vec<Candidate> {
    let mut found = statistics(graph, &units.dag);
    found.extend(small_units(graph, &units.dag));
    found
}

/// Sets of units that reduce one tensor to several results.
fn statistics(graph: &PrimGraph, dag: &Dag) -> Vec<Candidate> {
    let is_reduced = |tensor: &TensorId| {
        dag.consumers(*tensor).iter().any(|&node| dag.node(node).kind == NodeKind::Reduce)
    };
    let tensors = (0..dag.tensor_count()).map(TensorId::new).filter(is_reduced);
    let sets = tensors.flat_map(|tensor| {
        (1..=MOST_REDUCTIONS).filter_map(move |most| Statistics { graph, dag, tensor, most }.candidate())
    });
    let mut seen = HashSet::new();
    sets.filter(|set| seen.insert(set.clone())).collect()
}

/// Sets of small elementwise units of one shape that read nothing but inputs and constants.
fn small_units(graph: &PrimGraph, dag: &Dag) -> Vec<Candidate> {
    let mut by_shape: BTreeMap<&[usize], Vec<NodeId>> = BTreeMap::new();
    for node in dag.node_ids() {
        let unit = dag.node(node);
        let [output] = unit.outputs[..] else { continue };
        let shape = graph.shape(output);
        // What depends on constants alone is known before the run.
        if unit.inputs.iter().all(|&input| graph.constant(input).is_some()) {
            continue;
        }
        if unit.kind == NodeKind::Injective
            && dag.predecessors(node).is_empty()
            && shape.elems() <= SMALL_ELEMS
        {
            by_shape.entry(shape).or_default().push(node);
        }
    }
    let mut found = Vec::new();
    for mut left in by_shape.values().map(Vec::as_slice) {
        while left.len() > 1 {
            let inputs = |count: usize| -> usize {
                left[..count].iter().map(|&node| dag.node(node).inputs.len()).sum()
            };
            let fits = |count: &usize| inputs(*count) <= MAX_INPUTS;
            let count = (2..=left.len().min(MAX_UNITS)).take_while(fits).last().unwrap_or(1);
            let (set, others) = left.split_at(count);
            let outputs = set.iter().flat_map(|&node| dag.node(node).outputs.iter().copied());
            let outputs: Vec<TensorId> = outputs.filter(|&tensor| dag.escapes(tensor, set)).collect();
            found.extend((outputs.len() > 1).then(|| Candidate::leaving(dag, set.to_vec(), outputs)));
            left = others;
        }
    }
    found
}

/// What reduces a tensor.
struct Statistics<'a> {
    graph: &'a PrimGraph,
    dag: &'a Dag,
    tensor: TensorId,
    /// Reductions that follow each other.
    most: usize,
}

impl Statistics<'_> {
    fn elems(&self, tensor: TensorId) -> usize {
        self.graph.shape(tensor).elems()
    }

    fn is_small(&self, tensor: TensorId) -> bool {
        self.elems(tensor).saturating_mul(LEAST_ELEMS) <= self.elems(self.tensor)
    }

    fn has_small_results(&self, node: NodeId) -> bool {
        self.dag.node(node).outputs.iter().all(|&tensor| self.is_small(tensor))
    }

    /// The set, if it has several results. Others compute again what has as many elements as the tensor, of what is left of the set.
    fn candidate(&self) -> Option<Candidate> {
        let nodes = self.units();
        let escapes = |&tensor: &TensorId| self.dag.escapes(tensor, &nodes);
        let is_computed_again = |node: &NodeId| {
            let mut outputs = self.dag.node(*node).outputs.iter();
            nodes.contains(node) && outputs.any(|tensor| !self.is_small(*tensor) && escapes(tensor))
        };
        let is_left = |tensor: &TensorId| {
            self.is_small(*tensor)
                && (escapes(tensor) || self.dag.consumers(*tensor).iter().any(is_computed_again))
        };
        let outputs = nodes.iter().flat_map(|&node| self.dag.node(node).outputs.iter().copied());
        let outputs: Vec<TensorId> = outputs.filter(is_left).collect();
        (outputs.len() > 1).then(|| Candidate::leaving(self.dag, nodes, outputs))
    }

    /// The units of the set, ascending. What they need of others stands before the first of them: so nothing outside of the set is between
    /// two of them, and no two sets wait for each other.
    fn units(&self) -> Vec<NodeId> {
        // How many reductions follow each other up to a unit.
        let mut set: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut pending: BTreeSet<NodeId> = self.dag.consumers(self.tensor).iter().copied().collect();
        for _ in 0..MAX_VISITS {
            // In topological order, so that what a unit needs of the set was visited.
            let Some(node) = pending.pop_first() else { break };
            let first = set.first_key_value().map_or(node, |(&first, _)| first);
            let before = self.dag.predecessors(node);
            let of_before = before.iter().filter_map(|node| set.get(node)).max().copied().unwrap_or(0);
            let reductions = of_before + usize::from(self.dag.node(node).kind == NodeKind::Reduce);
            let is_next = before.iter().all(|node| *node < first || set.contains_key(node));
            if is_next && reductions <= self.most && set.len() < MAX_UNITS && self.suits(node) {
                set.insert(node, reductions);
                pending.extend(self.dag.successors(node));
            }
        }
        // What has as many elements as the tensor is there for reductions.
        let mut set: BTreeSet<NodeId> = set.into_keys().collect();
        for node in set.clone().into_iter().rev() {
            let is_needed = self.dag.successors(node).iter().any(|after| set.contains(after));
            if !is_needed && !self.has_small_results(node) {
                set.remove(&node);
            }
        }
        set.into_iter().collect()
    }

    /// Whether a unit is of the kind and the extents that the set has.
    fn suits(&self, node: NodeId) -> bool {
        let unit = self.dag.node(node);
        let has_extents = || {
            let mut tensors = unit.inputs.iter().chain(&unit.outputs);
            tensors.all(|&tensor| self.is_small(tensor) || self.elems(tensor) == self.elems(self.tensor))
        };
        match unit.kind {
            NodeKind::Injective => has_extents(),
            NodeKind::Reduce => has_extents() && self.has_small_results(node),
            NodeKind::Anchor | NodeKind::Opaque => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::units::UnitOptions;

    /// Mean, variance and a running mean of an image's channels, what is normalised, and two counters.
    const NORM: &str = "graph \"norm\" {
  input \"x\" t0: f32[4, 8, 6, 6]
  input \"running\" t1: f32[8]
  input \"first\" t2: i64[]
  input \"second\" t3: i64[]
  input \"one\" t4: i64[]
  t5: f32[8] = reduce.sum t0 axes=[0, 2, 3]
  t6: f32[4, 8, 6, 6] = broadcast t5 dims=[1]
  t7: f32[4, 8, 6, 6] = sub t0, t6
  t8: f32[4, 8, 6, 6] = mul t7, t7
  t9: f32[8] = reduce.sum t8 axes=[0, 2, 3]
  t10: f32[8] = add t1, t5
  t11: f32[4, 8, 6, 6] = broadcast t9 dims=[1]
  t12: f32[4, 8, 6, 6] = mul t7, t11
  t13: f32[8] = reduce.sum t12 axes=[0, 2, 3]
  t14: i64[] = add t2, t4
  t15: i64[] = add t3, t4
  output \"running\" t10
  output \"normal\" t12
  output \"later\" t13
  output \"first\" t14
  output \"second\" t15
}
";

    fn units(graph: &PrimGraph) -> Units {
        let layouts = orch_compute::layouts::assign_gpu(graph);
        let options = UnitOptions { widens_f16: false, fuse: true };
        Units::of(graph, &layouts, options).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn statistics_and_counters_are_sets_of_several_sinks() {
        let graph = crate::testing::graph(NORM);
        let units = units(&graph);
        let found = siblings(&graph, &units);
        let results: Vec<Vec<usize>> =
            found.iter().map(|set| set.outputs.iter().map(|tensor| tensor.index()).collect()).collect();
        // What is normalised has as many elements as the image; the third reduction follows two others of it, and one of the squares.
        assert_eq!(results, [vec![5, 10], vec![5, 9, 10], vec![9, 13], vec![14, 15]]);
        // Nothing outside of a set is between two units of it.
        for set in &found {
            let mut after: BTreeSet<NodeId> = BTreeSet::new();
            for node in units.dag.node_ids() {
                let is_inside = set.nodes.contains(&node);
                let needs = units.dag.predecessors(node).iter();
                let (mut inside, mut outside) = (false, false);
                needs.for_each(|before| {
                    inside |= set.nodes.contains(before);
                    outside |= after.contains(before);
                });
                assert!(!(is_inside && outside), "{set:?}");
                if !is_inside && (inside || outside) {
                    after.insert(node);
                }
            }
        }
    }

    /// Two tensors, each reduced once by itself and once scaled by what was reduced of the other.
    const CROSSED: &str = "graph \"crossed\" {
  input \"a\" t0: f32[32, 64]
  input \"b\" t1: f32[32, 64]
  t2: f32[64] = reduce.sum t0 axes=[0]
  t3: f32[64] = reduce.sum t1 axes=[0]
  t4: f32[32, 64] = broadcast t3 dims=[1]
  t5: f32[32, 64] = mul t0, t4
  t6: f32[64] = reduce.max t5 axes=[0]
  t7: f32[32, 64] = broadcast t2 dims=[1]
  t8: f32[32, 64] = mul t1, t7
  t9: f32[64] = reduce.max t8 axes=[0]
  output \"a\" t2
  output \"b\" t3
  output \"of a\" t6
  output \"of b\" t9
}
";

    #[test]
    fn no_two_sets_wait_for_each_other() {
        let graph = crate::testing::graph(CROSSED);
        let units = units(&graph);
        for set in siblings(&graph, &units) {
            let needed = set.inputs.iter().filter_map(|&tensor| units.dag.producer(tensor)).max();
            let made = set.outputs.iter().filter_map(|&tensor| units.dag.producer(tensor)).min();
            assert!(needed < made, "{set:?}");
        }
    }
}
