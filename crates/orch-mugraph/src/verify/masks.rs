//! Masks that are formulas, taken as masks that are given. What holds for all masks holds for these; and where the index of a row decides
//! what is masked no two rows are alike, whereas those of a mask that is given are.

use crate::graph::{InputKind, MuGraph, Node};
use crate::op::Op;

/// The µGraph with an input in place of each mask that is a formula, named by it; `None` if it has none.
pub(super) fn with_given_masks(graph: &MuGraph) -> Option<MuGraph> {
    let is_formula = |op: &Op| matches!(op, Op::Causal { .. } | Op::Below { .. });
    graph.nodes().find(|(_, node)| matches!(node, Node::Op { op, .. } if is_formula(op)))?;
    let mut given = MuGraph::new(graph.name.clone());
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { name, kind, shape } => drop(given.input_of(name.clone(), *kind, shape)),
            // No name in a text has a quotation mark in it.
            Node::Op { op, .. } if is_formula(op) => {
                given.input_of(format!("\"{op:?}"), InputKind::Mask, graph.shape(first));
            }
            Node::Op { op, args } => drop(given.op(op.clone(), args).ok()?),
            Node::Block(block) => drop(given.block(block.clone()).ok()?),
        }
    }
    for (name, id) in graph.outputs() {
        given.output(name.clone(), *id).ok()?;
    }
    Some(given)
}
