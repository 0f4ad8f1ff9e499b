//! Long reductions with few results, in two parts.
//!
//! The work items of a reduction are its results. Statistics of an image over all pixels are a few vectors of channels, which one or two
//! threads would compute. Of several axes the first one becomes a reduction of its own, of the results of the others; where it is
//! short, the longest one is divided in parts:
//!
//! ```text
//! s[n, c] = reduce [h, w] x[n, c, h, w]  =  reduce [h] (reduce [w] x)
//! s[n]    = reduce [k] x[n, k]           =  reduce [p] (reduce [j] x[n, p, j])
//! ```
//!
//! Where threads are few, the kernel that computes both parts is as good as before. Exact, but for the order in which floats are added up,
//! which does not depend on the number of threads.

use crate::prepare::{computed, rebuilt};
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, ReduceOp, ScalarFn, TensorId};

/// Which reductions [`split_long_reductions`] divides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LongReductions {
    /// Results, at most.
    pub results: usize,
    /// Elements that are reduced to all results, at least.
    pub elems: usize,
    /// Elements that are reduced to each result, at least.
    pub elems_of_result: usize,
    /// Results of the first part for each result, at least.
    pub parts: usize,
    /// Parts of the longest axis, at most.
    pub most_parts: usize,
}

/// The graph with long reductions to few results as two, by the limits that are given for the tensor that is reduced and
/// the reduced axes. Floats of 16 bits are widened before and narrowed after both, so that results between them are not rounded.
pub fn split_long_reductions(
    graph: &PrimGraph,
    limits: impl Fn(TensorId, &[usize]) -> LongReductions,
) -> PrimGraph {
    let split = |id| SplitReduction::of(graph, id, &limits);
    if graph.node_ids().all(|id| split(id).is_none()) {
        return graph.clone();
    }
    rebuilt(graph, |id, result, known| {
        let Some(split) = split(id) else { return false };
        let node = graph.node(id);
        let value = split.emit(result, computed(known, node.inputs[0]));
        known[node.outputs[0].index()] = Some(value);
        true
    })
}

/// A reduction in two parts.
struct SplitReduction {
    op: ReduceOp,
    /// The axes, in order.
    axes: Vec<usize>,
    /// The one that is reduced by itself.
    outer: usize,
    /// In how many parts it is divided, of which each is reduced before; if none, it is reduced as it is.
    parts: Option<usize>,
    /// The element type, if it is narrower than that of sums.
    narrow: Option<DType>,
}

impl SplitReduction {
    fn of(
        graph: &PrimGraph,
        id: NodeId,
        limits: impl Fn(TensorId, &[usize]) -> LongReductions,
    ) -> Option<SplitReduction> {
        let node = graph.node(id);
        let PrimOp::Reduce { op, axes } = &node.op else { return None };
        let is_joined = matches!(op, ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min);
        let dtype = graph.dtype(node.inputs[0]);
        let narrow = Some(dtype).filter(|dtype| dtype.size_bytes() < size_of::<f32>());
        let shape = graph.shape(node.inputs[0]);
        let mut axes = axes.clone();
        axes.sort_unstable();
        // Axes of one element reduce nothing.
        let long: Vec<usize> = axes.iter().copied().filter(|&axis| shape[axis] > 1).collect();
        let &first = long.first().filter(|_| is_joined && (narrow.is_none() || dtype.is_float()))?;
        let limits = limits(node.inputs[0], &long);
        let results = graph.shape(node.outputs[0]).elems();
        let least = limits.elems.max(results * limits.elems_of_result);
        if results > limits.results || shape.elems() < least {
            return None;
        }
        if long.len() > 1 && shape[first] >= limits.parts {
            return Some(SplitReduction { op: *op, axes, outer: first, parts: None, narrow });
        }
        let outer = long.into_iter().max_by_key(|&axis| shape[axis])?;
        let mut parts = (limits.parts..=limits.most_parts.min(shape[outer])).rev();
        let parts = parts.find(|parts| shape[outer].is_multiple_of(*parts))?;
        Some(SplitReduction { op: *op, axes, outer, parts: Some(parts), narrow })
    }

    fn emit(&self, graph: &mut PrimGraph, x: TensorId) -> TensorId {
        let expected = "parts are axes of the operand";
        let mut inner: Vec<usize> = self.axes.iter().copied().filter(|&axis| axis != self.outer).collect();
        let cast = |graph: &mut PrimGraph, x, to| {
            graph.add(PrimOp::Map(ScalarFn::Cast(to)), &[x]).expect("floats are cast")
        };
        let mut operand = if self.narrow.is_some() { cast(graph, x, DType::F32) } else { x };
        if let Some(parts) = self.parts {
            // The number of the part, then the place in it.
            let mut shape = graph.shape(x).to_vec();
            shape[self.outer] /= parts;
            shape.insert(self.outer, parts);
            operand = graph.add(PrimOp::Reshape { shape: shape.into() }, &[operand]).expect(expected);
            inner.iter_mut().filter(|axis| **axis > self.outer).for_each(|axis| *axis += 1);
            inner.push(self.outer + 1);
            inner.sort_unstable();
        }
        let left = self.outer - inner.iter().filter(|&&axis| axis < self.outer).count();
        let parts = graph.add(PrimOp::Reduce { op: self.op, axes: inner }, &[operand]).expect(expected);
        let value = graph.add(PrimOp::Reduce { op: self.op, axes: vec![left] }, &[parts]).expect(expected);
        self.narrow.map_or(value, |narrow| cast(graph, value, narrow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::Tensor;

    const LONG: LongReductions =
        LongReductions { results: 8, elems: 96, elems_of_result: 12, parts: 3, most_parts: 7 };

    fn reduction(shape: &[usize], axes: &[usize], op: ReduceOp, dtype: DType) -> PrimGraph {
        let mut graph = PrimGraph::new("reduction");
        let x = graph.add_input("x", dtype, shape);
        let y = graph.add(PrimOp::Reduce { op, axes: axes.to_vec() }, &[x]).unwrap();
        graph.add_output("y", y);
        graph
    }

    #[test]
    fn long_reductions_are_two_that_give_the_same() {
        for (shape, axes, parts) in [
            (&[2, 4, 3, 5][..], &[2, 3][..], None),
            (&[4, 3, 1, 8, 2], &[0, 2, 3], None),
            (&[8, 12], &[0, 1], None),
            // One axis, and a first one that is short.
            (&[96], &[0], Some(6)),
            (&[1, 4, 35, 2], &[0, 2], Some(7)),
            (&[2, 40, 3, 2], &[0, 1, 2], Some(5)),
        ] {
            for op in [ReduceOp::Sum, ReduceOp::Max] {
                let graph = reduction(shape, axes, op, DType::F32);
                let split = split_long_reductions(&graph, |_, _| LONG);
                let reductions = split.nodes().iter().filter(|node| matches!(node.op, PrimOp::Reduce { .. }));
                assert_eq!(reductions.count(), 2, "{shape:?}");
                let reshaped = split.nodes().iter().find_map(|node| match &node.op {
                    PrimOp::Reshape { shape } => Some(shape.to_vec()),
                    _ => None,
                });
                assert_eq!(reshaped.is_some(), parts.is_some(), "{shape:?}");
                assert!(parts.is_none_or(|parts| reshaped.unwrap().contains(&parts)), "{shape:?}");
                let none = |_, _: &[usize]| LongReductions { results: 0, ..LONG };
                assert_eq!(split_long_reductions(&graph, none), graph);
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
    fn halves_are_added_up_in_single_precision() {
        let graph = reduction(&[96], &[0], ReduceOp::Sum, DType::F16);
        let split = split_long_reductions(&graph, |_, _| LONG);
        let sums = split.nodes().iter().filter(|node| matches!(node.op, PrimOp::Reduce { .. }));
        assert!(sums.map(|sum| split.dtype(sum.outputs[0])).eq([DType::F32; 2]));
        assert_eq!(split.dtype(split.outputs[0].1), DType::F16);
    }

    #[test]
    fn others_stay_as_they_are() {
        let kept = [
            // Many results, few elements, no parts of one size, few elements of each result, another function.
            reduction(&[3, 4, 3, 5], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[2, 4, 3, 3], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[2, 4, 1, 17], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[2, 4, 2, 11], &[2, 3], ReduceOp::Sum, DType::F32),
            reduction(&[8, 11, 2], &[1], ReduceOp::Sum, DType::F32),
            reduction(&[96], &[0], ReduceOp::ArgMax { last: false }, DType::F32),
            reduction(&[2, 4, 3, 5], &[2, 3], ReduceOp::Sum, DType::I8),
        ];
        for graph in kept {
            assert_eq!(split_long_reductions(&graph, |_, _| LONG), graph);
        }
    }
}
