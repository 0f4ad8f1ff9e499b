//! Loops over elementwise primitives that an exporter unrolled: each step needs the step before, and little leaves it.
//!
//! A recurrence of 128 steps is some 2,000 primitives of a few hundred elements each. Every kernel of a few of them writes the loop's
//! values to memory for the next one, and takes as long as its launch; and the number of sets that could be a kernel grows with the
//! primitives. So stretches of such a loop are cut out before candidates are looked for: one unit each, whose values stay in registers but
//! for what others read.

use super::wiring::Wiring;
use orch_compute::Layout;
use orch_ir::{NodeId, PrimGraph, PrimOp, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// Primitives on the longest path through a loop, at least: models without loops have a tenth of that between contractions.
const LEAST_DEPTH: usize = 64;
/// Units that a loop would be otherwise, at least: a few are one kernel that holds what is before and after them as well.
const LEAST_UNITS: usize = 24;
/// Primitives of a stretch, at most.
const MAX_PRIMITIVES: usize = 256;
/// Primitives of a stretch for each tensor that others read, at least.
const PRIMITIVES_PER_OUTPUT: usize = 4;

/// Stretches of unrolled loops, each ascending, that read at most so many tensors. No path leaves one and returns.
///
/// `unit` names for each primitive the unit that it belongs to without them.
pub fn unrolled(
    graph: &PrimGraph,
    layouts: &[Layout],
    wiring: &Wiring<'_>,
    unit: &[NodeId],
    max_sources: usize,
) -> Vec<Vec<NodeId>> {
    let finder = Finder { graph, layouts, wiring };
    let parts = finder.connected_maps().into_iter().flat_map(|maps| finder.convex_parts(&maps));
    let units =
        |part: &BTreeSet<NodeId>| part.iter().map(|node| unit[node.index()]).collect::<BTreeSet<_>>().len();
    let loops = parts.filter(|part| units(part) >= LEAST_UNITS);
    loops.flat_map(|whole| finder.stretches(&whole, max_sources)).collect()
}

/// What is searched for loops.
struct Finder<'a> {
    graph: &'a PrimGraph,
    layouts: &'a [Layout],
    wiring: &'a Wiring<'a>,
}

impl Finder<'_> {
    /// Sets of elementwise primitives of one shape and layout that read each other's results, ascending.
    fn connected_maps(&self) -> Vec<Vec<NodeId>> {
        let made = |node: NodeId| self.graph.node(node).outputs[0];
        // Free primitives read nothing here, and nothing reads them.
        let is_map = |node: NodeId| {
            matches!(self.graph.node(node).op, PrimOp::Map(_)) && !self.wiring.sources(node).is_empty()
        };
        let is_alike = |node: NodeId, other: NodeId| {
            let [layout, others] = [node, other].map(|node| &self.layouts[made(node).index()]);
            is_map(other) && self.graph.shape(made(node)) == self.graph.shape(made(other)) && layout == others
        };
        let mut seen = vec![false; self.graph.nodes().len()];
        let mut sets = Vec::new();
        for start in self.graph.node_ids().filter(|&node| is_map(node)) {
            let (mut set, mut pending) = (Vec::new(), vec![start]);
            while let Some(node) = pending.pop() {
                if !std::mem::replace(&mut seen[node.index()], true) {
                    set.push(node);
                    let beside = self.wiring.before(node).chain(self.wiring.readers(node).iter().copied());
                    pending.extend(beside.filter(|&other| is_alike(start, other)));
                }
            }
            if set.len() >= LEAST_DEPTH {
                set.sort_unstable();
                sets.push(set);
            }
        }
        sets
    }

    /// The loops of a set: parts, in order, that no path leaves and enters again, with long paths inside.
    fn convex_parts(&self, maps: &[NodeId]) -> Vec<BTreeSet<NodeId>> {
        let (mut parts, mut part) = (Vec::new(), BTreeSet::new());
        // Others that need something of the part.
        let mut after: BTreeSet<NodeId> = BTreeSet::new();
        for node in (maps[0].index()..=maps[maps.len() - 1].index()).map(NodeId::new) {
            let is_after = self.wiring.before(node).any(|before| after.contains(&before));
            if maps.binary_search(&node).is_ok() {
                if is_after {
                    parts.push(std::mem::take(&mut part));
                    after.clear();
                }
                part.insert(node);
            } else if is_after || self.wiring.before(node).any(|before| part.contains(&before)) {
                after.insert(node);
            }
        }
        parts.push(part);
        parts.retain(|part| self.depth(part) >= LEAST_DEPTH && self.reads_in_place(part));
        parts
    }

    /// Whether primitives read each other's elements at their own index, so that each is computed once: not of a transpose, for example.
    fn reads_in_place(&self, set: &BTreeSet<NodeId>) -> bool {
        let inputs = set.iter().flat_map(|&node| &self.graph.node(node).inputs);
        inputs.copied().all(|input| {
            let maker = self.wiring.maker(input).filter(|maker| set.contains(maker));
            maker.is_none() || maker == self.graph.producer(input)
        })
    }

    /// Primitives on the longest path through a set.
    fn depth(&self, set: &BTreeSet<NodeId>) -> usize {
        let mut depths: BTreeMap<NodeId, usize> = BTreeMap::new();
        for &node in set {
            let before = self.wiring.before(node).filter_map(|before| depths.get(&before)).max();
            depths.insert(node, 1 + before.copied().unwrap_or(0));
        }
        depths.into_values().max().unwrap_or(0)
    }

    /// A loop in stretches of primitives that follow each other in topological order, each with the slices that it reads first and only
    /// the loop reads. None where much of a stretch is read by others.
    fn stretches(&self, whole: &BTreeSet<NodeId>, max_sources: usize) -> Vec<Vec<NodeId>> {
        let first = whole.first().copied();
        let is_own_slice = |node: &NodeId| {
            matches!(self.graph.node(*node).op, PrimOp::Slice { .. })
                && !self.wiring.writes_output(*node)
                && self.wiring.readers(*node).iter().all(|reader| whole.contains(reader))
                && self.wiring.before(*node).all(|before| Some(before) < first)
        };
        let mut placed: BTreeSet<NodeId> = BTreeSet::new();
        let mut stretches = Vec::new();
        let (mut stretch, mut sources) = (BTreeSet::new(), BTreeSet::new());
        for &node in whole {
            let slices = self.wiring.before(node).filter(is_own_slice).filter(|slice| placed.insert(*slice));
            let added: Vec<NodeId> = slices.chain([node]).collect();
            let read: BTreeSet<TensorId> =
                added.iter().flat_map(|node| self.wiring.sources(*node).iter().copied()).collect();
            let is_full = stretch.len() + added.len() > MAX_PRIMITIVES
                || read.union(&sources).filter(|tensor| !self.is_made_by(&stretch, **tensor)).count()
                    > max_sources;
            if is_full && !stretch.is_empty() {
                stretches.push(std::mem::take(&mut stretch));
                sources.clear();
            }
            sources.extend(read);
            stretch.extend(added);
        }
        stretches.push(stretch);
        let stretches: Vec<Vec<NodeId>> =
            stretches.into_iter().map(|stretch| stretch.into_iter().collect()).collect();
        // Of a last stretch that is short, what the last step hands on is a large part.
        let is_closed = stretches[..stretches.len().max(2) - 1].iter().all(|stretch| {
            let outputs = stretch.iter().filter(|node| self.wiring.escapes(**node, stretch)).count();
            outputs * PRIMITIVES_PER_OUTPUT <= stretch.len()
        });
        if is_closed { stretches } else { Vec::new() }
    }

    fn is_made_by(&self, set: &BTreeSet<NodeId>, tensor: TensorId) -> bool {
        self.graph.producer(tensor).is_some_and(|producer| set.contains(&producer))
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::units::{UnitOptions, Units};
    use orch_ir::{NodeId, TensorId};
    use orch_plan::dag::NodeKind;
    use std::collections::BTreeSet;
    use std::fmt::Write;

    /// What a loop does with its state at the end of a step.
    enum Then {
        /// Nothing.
        Next,
        /// It leaves the state behind.
        Leave,
        /// It multiplies the state by a matrix.
        Multiply,
        /// It swaps rows and columns, which are alike.
        Transpose,
    }

    /// So many steps of a state of 8 x 8 elements, each of which reads a slice and leaves a result.
    fn steps(count: usize, then: &Then) -> String {
        let mut text = format!(
            "graph \"steps\" {{\n  input \"x\" t0: f32[{count}, 8, 8]\n  input \"first\" t1: f32[8, 8]\n  input \"w\" t2: f32[8, 8]\n"
        );
        let (mut state, mut next, mut outputs) = (1, 3, Vec::new());
        let mut add = |next: &mut usize, shape: &str, made: String| {
            let _ = writeln!(text, "  t{next}: f32[{shape}] = {made}");
            *next += 1;
            *next - 1
        };
        for step in 0..count {
            let slice = add(&mut next, "1, 8, 8", format!("slice t0 starts=[{step}, 0, 0]"));
            let row = add(&mut next, "8, 8", format!("reshape t{slice}"));
            let largest = add(&mut next, "8, 8", format!("max t{state}, t{row}"));
            let less = add(&mut next, "8, 8", format!("sub t{row}, t{largest}"));
            let weight = add(&mut next, "8, 8", format!("exp t{less}"));
            outputs.push(add(&mut next, "8, 8", format!("tanh t{weight}")));
            state = add(&mut next, "8, 8", format!("mul t{largest}, t{weight}"));
            match then {
                Then::Next => {}
                Then::Leave => outputs.extend([state, largest]),
                Then::Multiply => {
                    state = add(&mut next, "8, 8", format!("contract t{state}, t2 labels=\"mk,kn->mn\""));
                }
                Then::Transpose => {
                    state = add(&mut next, "8, 8", format!("transpose t{state} perm=[1, 0]"));
                }
            }
        }
        let joined = add(
            &mut next,
            &format!("{}, 8", 8 * outputs.len()),
            format!(
                "concat {} axis=0",
                outputs.iter().map(|tensor| format!("t{tensor}")).collect::<Vec<_>>().join(", ")
            ),
        );
        let _ = write!(text, "  output \"all\" t{joined}\n  output \"last\" t{state}\n}}\n");
        text
    }

    fn units(text: &str) -> Units {
        let graph = crate::testing::graph(text);
        let layouts = orch_compute::layouts::assign_gpu(&graph);
        Units::of(&graph, &layouts, UnitOptions { widens_f16: false, fuse: true })
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// Functions of functions, which are one unit, however many.
    fn chain(count: usize) -> String {
        let lines = (1..=count).map(|at| format!("  t{at}: f32[8, 8] = tanh t{}\n", at - 1));
        format!(
            "graph \"chain\" {{\n  input \"x\" t0: f32[8, 8]\n{}  output \"y\" t{count}\n}}\n",
            lines.collect::<String>()
        )
    }

    /// The units that are stretches of a loop.
    fn stretches(units: &Units) -> Vec<NodeId> {
        let is_loop = |node: &NodeId| units.dag.node(*node).kind == NodeKind::Opaque;
        units.dag.node_ids().filter(is_loop).collect()
    }

    #[test]
    fn loops_are_cut_in_stretches_that_hold_their_slices() {
        let units = units(&steps(100, &Then::Next));
        let found = stretches(&units);
        // 600 primitives, and the concatenation, which reads what is before it.
        assert_eq!((found.len(), units.members.len()), (3, 4));
        assert_eq!(found.iter().map(|unit| units.members[unit.index()].len()).sum::<usize>(), 600);
        let read: BTreeSet<TensorId> =
            found.iter().flat_map(|unit| units.dag.node(*unit).inputs.iter().copied()).collect();
        let left: BTreeSet<TensorId> =
            found.iter().flat_map(|unit| units.dag.node(*unit).outputs.iter().copied()).collect();
        // One result of each step, the last state, and what two stretches hand on.
        assert!(read.is_superset(&[0, 1].map(TensorId::new).into()), "{read:?}");
        assert!((101..=107).contains(&left.len()), "{left:?}");
    }

    #[test]
    fn what_is_short_or_leaves_much_or_is_no_loop_of_one_shape_stays_as_it_is() {
        for (count, then) in
            [(15, Then::Next), (100, Then::Leave), (100, Then::Multiply), (100, Then::Transpose)]
        {
            let units = units(&steps(count, &then));
            assert_eq!(stretches(&units), []);
        }
        let units = units(&chain(300));
        assert_eq!((stretches(&units), units.members.len()), (vec![], 1));
    }
}
