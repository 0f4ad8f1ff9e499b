//! Long reductions with few results, in two parts.
//!
//! The work items of a reduction are its results. Statistics of an image over all pixels are a few vectors of channels, which one or two
//! threads would compute. Of several axes the first one becomes a reduction of its own, of the results of the others:
//!
//! ```text
//! s[n, c] = reduce [h, w] x[n, c, h, w]  =  reduce [h] (reduce [w] x)
//! ```
//!
//! Where threads are few, the kernel that computes both parts is as good as before. Exact, but for the order in which floats are added up,
//! which does not depend on the number of threads.

use crate::prepare::{computed, rebuilt};
use orch_ir::{NodeId, PrimGraph, PrimOp, ReduceOp, TensorId};

/// Which reductions [`split_long_reductions`] divides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongReductions {
    /// Results, at most.
    pub results: usize,
    /// Elements that are reduced to them, at least.
    pub elems: usize,
    /// Results of the first part for each result, at least.
    pub parts: usize,
}

/// The graph with long reductions over several axes to few results as two, where `is_split` says so of the tensor that is reduced and
/// the reduced axes. Types of less than 32 bits stay as they are, since results between the parts would be rounded.
pub fn split_long_reductions(
    graph: &PrimGraph,
    long: LongReductions,
    is_split: impl Fn(TensorId, &[usize]) -> bool,
) -> PrimGraph {
    let split = |id: NodeId| {
        let node = graph.node(id);
        let PrimOp::Reduce { op, axes } = &node.op else { return None };
        let is_joined = matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min);
        let shape = graph.shape(node.inputs[0]);
        // Axes of one element reduce nothing.
        let mut axes: Vec<usize> = axes.iter().copied().filter(|&axis| shape[axis] > 1).collect();
        axes.sort_unstable();
        let (&first, others) = axes.split_first()?;
        let is_long = graph.shape(node.outputs[0]).elems() <= long.results
            && shape.elems() >= long.elems
            && shape[first] >= long.parts
            && !others.is_empty();
        let is_wide = graph.dtype(node.inputs[0]).size_bytes() >= size_of::<f32>();
        let suits = is_joined && is_long && is_wide && is_split(node.inputs[0], &axes);
        suits.then(|| (*op, others.to_vec()))
    };
    if graph.node_ids().all(|id| split(id).is_none()) {
        return graph.clone();
    }
    rebuilt(graph, |id, result, known| {
        let Some((op, inner)) = split(id) else { return false };
        let node = graph.node(id);
        let PrimOp::Reduce { axes, .. } = &node.op else { return false };
        let left = axes.iter().filter(|axis| !inner.contains(axis));
        let left = left.map(|&axis| axis - inner.iter().filter(|&&before| before < axis).count()).collect();
        let operand = computed(known, node.inputs[0]);
        let parts = result.add(PrimOp::Reduce { op, axes: inner }, &[operand]).expect("axes of the operand");
        let value = result.add(PrimOp::Reduce { op, axes: left }, &[parts]).expect("axes that are left");
        known[node.outputs[0].index()] = Some(value);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{DType, Tensor};

    const LONG: LongReductions = LongReductions { results: 8, elems: 96, parts: 3 };

    fn reduction(shape: &[usize], axes: &[usize], op: ReduceOp, dtype: DType) -> PrimGraph {
        let mut graph = PrimGraph::new("reduction");
        let x = graph.add_input("x", dtype, shape);
        let y = graph.add(PrimOp::Reduce { op, axes: axes.to_vec() }, &[x]).unwrap();
        graph.add_output("y", y);
        graph
    }

    #[test]
    fn long_reductions_are_two_that_give_the_same() {
        for (shape, axes) in
            [(&[2, 4, 3, 5][..], &[2, 3][..]), (&[4, 3, 1, 8, 2], &[0, 2, 3]), (&[8, 12], &[0, 1])]
        {
            for op in [ReduceOp::Sum, ReduceOp::Max] {
                let graph = reduction(shape, axes, op, DType::F32);
                let split = split_long_reductions(&graph, LONG, |_, _| true);
                assert_eq!(split.nodes().len(), 2, "{shape:?}");
                assert_eq!(split_long_reductions(&graph, LONG, |_, axes| axes.is_empty()), graph);
                let elems: usize = shape.iter().product();
                // Integers are added up exactly.
                let values = (0..elems).map(|i| (i * 37 % 101) as f32).collect::<Vec<_>>();
                let inputs = [Tensor::from_vec(shape, values)];
                let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
                assert_eq!(results(&graph)[0].to_f64(), results(&split)[0].to_f64(), "{shape:?}");
                assert_eq!(results(&graph)[0].shape(), results(&split)[0].shape());
            }
        }
    }

    #[test]
    fn others_stay_as_they_are() {
        let kept = [
            // Many results, few elements, one axis, short first axis.
            reduction(&[3, 4, 3, 5], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[2, 4, 3, 3], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[2, 4, 1, 15], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[2, 4, 2, 15], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[2, 4, 3, 5], &[2, 3], ReduceOp::Sum, DType::F16),
        ];
        for graph in kept {
            assert_eq!(split_long_reductions(&graph, LONG, |_, _| true).nodes().len(), 1);
        }
    }
}
