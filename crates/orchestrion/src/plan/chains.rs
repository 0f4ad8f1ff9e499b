//! Candidates of two contractions: attention, whose scores pass from the first to the second in registers.
//!
//! Growing sets unit by unit would meet them only through many sets that no template serves, so they are looked for: all
//! units on the paths from one contraction to the next one, alone and with the units before that only they read: all of
//! these, or all but the epilogues of other contractions.

use super::units::Units;
use orch_ir::NodeId;
use orch_plan::dag::{Dag, NodeKind};
use orch_plan::enumerate::Candidate;
use std::collections::BTreeSet;

/// Units of the largest set.
const MAX_UNITS: usize = 16;

/// Sets of units from one contraction to another one that needs it, in the order of the latter.
pub fn chains(units: &Units) -> Vec<Candidate> {
    let dag = &units.dag;
    let mut found: Vec<BTreeSet<NodeId>> = Vec::new();
    for last in dag.node_ids().filter(|&node| is_anchor(dag, node)) {
        let Some(set) = between_contractions(dag, last) else { continue };
        let sets =
            [with_own_producers(dag, set.clone(), false), with_own_producers(dag, set.clone(), true), set];
        for set in sets {
            if !found.contains(&set) {
                found.push(set);
            }
        }
    }
    found
        .into_iter()
        .filter(|set| is_closed(dag, set))
        .map(|set| Candidate::of_sink(dag, set.into_iter().collect()))
        .collect()
}

fn is_anchor(dag: &Dag, node: NodeId) -> bool {
    dag.node(node).kind == NodeKind::Anchor
}

/// The units on all paths from the one contraction before `last` to it; `None` if there are several or none nearby.
fn between_contractions(dag: &Dag, last: NodeId) -> Option<BTreeSet<NodeId>> {
    let (mut above, mut pending) = (BTreeSet::from([last]), vec![last]);
    let mut firsts = BTreeSet::new();
    while let Some(node) = pending.pop() {
        for &before in dag.predecessors(node) {
            if is_anchor(dag, before) {
                firsts.insert(before);
            } else if above.insert(before) {
                pending.push(before);
            }
            if above.len() > 4 * MAX_UNITS {
                return None;
            }
        }
    }
    // The nearest contraction: others may produce its operands, or the second operand of `last`.
    let reduces = |first: &NodeId| {
        let set = dependents(dag, *first, &above);
        set.iter().any(|&node| dag.node(node).kind == NodeKind::Reduce).then_some(set)
    };
    let mut sets = firsts.iter().filter_map(reduces);
    let (set, None) = (sets.next()?, sets.next()) else { return None };
    (set.len() <= MAX_UNITS).then_some(set)
}

/// The units of `above` that depend on `first`, itself included.
fn dependents(dag: &Dag, first: NodeId, above: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let (mut set, mut pending) = (BTreeSet::from([first]), vec![first]);
    while let Some(node) = pending.pop() {
        for &after in dag.successors(node) {
            if above.contains(&after) && set.insert(after) {
                pending.push(after);
            }
        }
    }
    set
}

/// The set with the units before it that only the set reads and that reduce nothing; with `epilogues` also those that read a
/// contraction.
fn with_own_producers(dag: &Dag, mut set: BTreeSet<NodeId>, epilogues: bool) -> BTreeSet<NodeId> {
    let mut pending: Vec<NodeId> = set.iter().copied().collect();
    while let Some(node) = pending.pop() {
        for &before in dag.predecessors(node) {
            let is_plain =
                !matches!(dag.node(before).kind, NodeKind::Anchor | NodeKind::Reduce | NodeKind::Opaque);
            let is_own =
                dag.successors(before).iter().all(|after| set.contains(after)) && !dag.writes_output(before);
            let is_epilogue = dag.predecessors(before).iter().any(|&node| is_anchor(dag, node));
            if is_plain
                && is_own
                && (epilogues || !is_epilogue)
                && set.len() < MAX_UNITS
                && set.insert(before)
            {
                pending.push(before);
            }
        }
    }
    set
}

/// True if no unit outside of the set reads what it computes before its last unit.
fn is_closed(dag: &Dag, set: &BTreeSet<NodeId>) -> bool {
    let last = set.last().copied();
    set.iter()
        .filter(|&&node| Some(node) != last)
        .all(|&node| !dag.writes_output(node) && dag.successors(node).iter().all(|after| set.contains(after)))
}
