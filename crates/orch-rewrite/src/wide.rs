//! Wide concatenations in parts.
//!
//! A kernel that joins `n` tensors asks `n` times for each element which tensor it is of, and takes a C compiler more than
//! `n²` time. So a concatenation of many tensors becomes one of concatenations of few, which are stored in between:
//!
//! ```text
//! concat(x_0, .., x_999) = concat(concat(x_0, .., x_31), .., concat(x_968, .., x_999))
//! ```
//!
//! Stands after the rewriting, whose rules join concatenations of concatenations. Exact.

use crate::prepare::{computed, rebuilt};
use orch_ir::{NodeId, PrimGraph, PrimOp, TensorId};
use std::collections::BTreeMap;

/// Operands of the widest concatenation that stays as it is.
const MAX_JOINED: usize = 64;

/// Operands of the parts that a wider one becomes, at most.
const PART: usize = 32;

/// The graph with no concatenation of more than 64 operands. Equal parts are one.
pub fn split_wide_concats(graph: &PrimGraph) -> PrimGraph {
    let is_wide = |id: NodeId| {
        let node = graph.node(id);
        matches!(node.op, PrimOp::Concat { .. }) && node.inputs.len() > MAX_JOINED
    };
    if !graph.node_ids().any(is_wide) {
        return graph.clone();
    }
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let PrimOp::Concat { axis } = node.op else { return false };
        if !is_wide(id) {
            return false;
        }
        let mut operands: Vec<TensorId> = node.inputs.iter().map(|&input| computed(known, input)).collect();
        let mut joined: BTreeMap<Vec<TensorId>, TensorId> = BTreeMap::new();
        let mut join = |part: &[TensorId]| {
            *joined.entry(part.to_vec()).or_insert_with(|| {
                result.add(PrimOp::Concat { axis }, part).expect("parts of a concatenation can be joined")
            })
        };
        while operands.len() > MAX_JOINED {
            let parts = operands.len().div_ceil(PART);
            let size = operands.len().div_ceil(parts);
            operands = operands.chunks(size).map(&mut join).collect();
        }
        known[node.outputs[0].index()] = Some(join(&operands));
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{DType, Tensor};

    /// A concatenation of tensors of 1 to 3 columns, or of one and the same tensor.
    fn joined(width: usize, is_same: bool) -> (PrimGraph, Vec<Tensor>) {
        let mut graph = PrimGraph::new("joined");
        let (mut operands, mut values) = (Vec::new(), Vec::new());
        for number in 0..if is_same { 1 } else { width } {
            let columns = 1 + number % 3;
            operands.push(graph.add_input(format!("x{number}"), DType::F32, [2, columns]));
            let data = (0..2 * columns).map(|i| (10 * number + i) as f32).collect();
            values.push(Tensor::from_vec([2, columns], data));
        }
        operands.resize(width, operands[0]);
        let y = graph.add(PrimOp::Concat { axis: 1 }, &operands).unwrap();
        graph.add_output("y", y);
        (graph, values)
    }

    #[test]
    fn wide_concatenations_become_trees_of_narrow_ones() {
        for (width, is_same, nodes) in [
            (64, false, 1),
            (65, false, 4),
            (300, false, 11),
            (1000, false, 33),
            (3000, false, 98),
            (1024, true, 2),
        ] {
            let (graph, inputs) = joined(width, is_same);
            let split = split_wide_concats(&graph);
            assert_eq!(split.nodes().len(), nodes, "{width}");
            assert!(split.nodes().iter().all(|node| node.inputs.len() <= MAX_JOINED), "{width}");
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
            assert_eq!(results(&graph)[0].to_f64(), results(&split)[0].to_f64(), "{width}");
        }
    }
}
