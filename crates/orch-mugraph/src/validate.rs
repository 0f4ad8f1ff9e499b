//! The validator. A µGraph is valid if
//! 1. nodes read only tensors of earlier nodes, and operands suit (checked as a graph is built);
//! 2. block graphs keep the rules of [`crate::tiling`] (checked as a graph is built);
//! 3. inputs have distinct names, outputs have distinct names, and there is an output;
//! 4. nothing is computed in vain: every kernel's result reaches an output;
//! 5. masks of [`BinaryFn::Mask`] are inputs of kind mask or made by mask operators, seen through operators that move
//!    elements.

use crate::graph::{GraphError, InputKind, MuGraph, Node, TensorId, TileNode};
use crate::op::{BinaryFn, Op};
use std::collections::BTreeSet;

/// All violations.
pub fn validate(graph: &MuGraph) -> Vec<GraphError> {
    let mut problems = Vec::new();
    let mut names = BTreeSet::new();
    for (id, name, _) in graph.inputs() {
        if !names.insert(name) {
            problems.push(GraphError::new(id, format!("a second input of the name {name}")));
        }
    }
    let mut names = BTreeSet::new();
    for (name, id) in graph.outputs() {
        if !names.insert(name) {
            problems.push(GraphError::new(id, format!("a second output of the name {name}")));
        }
    }
    if graph.outputs().is_empty() {
        problems.push(GraphError::new("graph", "no output"));
    }
    let live = live(graph);
    for (first, node) in graph.nodes() {
        for at in 0..node.results() {
            let id = TensorId(first.0 + at as u32);
            if !live[id.index()] && !matches!(node, Node::Input { .. }) {
                problems.push(GraphError::new(id, "reaches no output"));
            }
        }
    }
    problems.extend(unmasked(graph));
    problems
}

/// Which tensors an output needs.
pub(crate) fn live(graph: &MuGraph) -> Vec<bool> {
    let mut live = vec![false; graph.shapes().len()];
    for (_, id) in graph.outputs() {
        live[id.index()] = true;
    }
    let nodes: Vec<(TensorId, &Node)> = graph.nodes().collect();
    for (first, node) in nodes.into_iter().rev() {
        if (0..node.results()).any(|at| live[first.index() + at]) {
            for arg in node.args() {
                live[arg.index()] = true;
            }
        }
    }
    live
}

/// Violations of rule 5.
fn unmasked(graph: &MuGraph) -> Vec<GraphError> {
    let mut problems = Vec::new();
    let mut masks = vec![false; graph.shapes().len()];
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { kind, .. } => masks[first.index()] = *kind == InputKind::Mask,
            Node::Op { op, args } => {
                let args: Vec<bool> = args.iter().map(|arg| masks[arg.index()]).collect();
                if !masked_properly(op, &args) {
                    problems.push(GraphError::new(first, "masks by what is no mask"));
                }
                masks[first.index()] = makes_mask(op, &args);
            }
            Node::Block(block) => {
                let mut tiles: Vec<bool> = Vec::new();
                for (position, node) in block.nodes.iter().enumerate() {
                    let is_mask = match node {
                        TileNode::Load { tensor, .. } => masks[tensor.index()],
                        TileNode::Op { op, args } => {
                            let args: Vec<bool> = args.iter().map(|arg| tiles[arg.index()]).collect();
                            if !masked_properly(op, &args) {
                                let place = format!("{first}, s{position}");
                                problems.push(GraphError::new(place, "masks by what is no mask"));
                            }
                            makes_mask(op, &args)
                        }
                        TileNode::Accumulate { .. } | TileNode::RunningMax { .. } => false,
                    };
                    tiles.push(is_mask);
                }
                for (at, store) in block.stores.iter().enumerate() {
                    masks[first.index() + at] = tiles[store.tile.index()];
                }
            }
        }
    }
    problems
}

fn masked_properly(op: &Op, args: &[bool]) -> bool {
    !matches!(op, Op::Binary(BinaryFn::Mask)) || args[1]
}

fn makes_mask(op: &Op, args: &[bool]) -> bool {
    match op {
        Op::Causal { .. } | Op::Below { .. } => true,
        Op::Transpose(_)
        | Op::Reshape(_)
        | Op::Broadcast(_)
        | Op::Slice { .. }
        | Op::Repeat { .. }
        | Op::Concat { .. } => args.iter().all(|&mask| mask),
        Op::Binary(BinaryFn::Mul | BinaryFn::Max) => args.iter().all(|&mask| mask),
        Op::Matmul | Op::Unary(_) | Op::Scale(_) | Op::Offset(_) | Op::Binary(_) => false,
        Op::Reduce { .. } | Op::RmsNorm { .. } | Op::Rotate { .. } => false,
    }
}
