//! Long reductions with few results, in two parts.
//!
//! The work items of a reduction are its results. Statistics of an image over all pixels are a few vectors of channels, which one or two
//! threads would compute. Of several axes the first one becomes a reduction of its own, of the results of the others; where it is
//! too short or too long for that, the first axes and a part of the next one do, and where there is no such part, one of the longest axis:
//!
//! ```text
//! s[n, c] = reduce [h, w] x[n, c, h, w]  =  reduce [h] (reduce [w] x)
//! s       = reduce [b, m, n] x[b, m, n]  =  reduce [b, p] (reduce [j, n] x[b, p, j, n])
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
    /// As many at most, where an axis is divided; an axis that is not may have [`WHOLE`] times as many elements.
    pub most_parts: usize,
    /// Elements of a part, at least, where an axis is divided.
    pub part_elems: usize,
}

/// How many times as many parts as of a divided axis a whole one may be.
const WHOLE: usize = 8;

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
    /// Those of the second part.
    outer: Vec<usize>,
    /// An axis that is divided, and in how many parts: each is reduced in the first part, and they are in the second.
    divided: Option<(usize, usize)>,
    /// The element type, if it is a float narrower than that of accumulators.
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
        let narrow = Some(dtype).filter(|dtype| dtype.is_float() && dtype.size_bytes() < size_of::<f32>());
        let shape = graph.shape(node.inputs[0]);
        let mut axes = axes.clone();
        axes.sort_unstable();
        // Axes of one element reduce nothing.
        let long: Vec<usize> = axes.iter().copied().filter(|&axis| shape[axis] > 1).collect();
        let &first = long.first().filter(|_| is_joined)?;
        let limits = limits(node.inputs[0], &long);
        let results = graph.shape(node.outputs[0]).elems();
        let least = limits.elems.max(results * limits.elems_of_result);
        if results > limits.results || shape.elems() < least {
            return None;
        }
        let split =
            |outer, divided| Some(SplitReduction { op: *op, axes: axes.clone(), outer, divided, narrow });
        let is_several = long.len() > 1;
        if is_several && (limits.parts..=WHOLE * limits.most_parts).contains(&shape[first]) {
            return split(vec![first], None);
        }
        let elems_of_result = shape.elems() / results.max(1);
        let most = limits.most_parts.min(elems_of_result / limits.part_elems).max(limits.parts);
        // The largest divisor of an axis that, times the parts so far, is in range.
        let parts_of = |axis: usize, so_far: usize| {
            let range = limits.parts.div_ceil(so_far).max(2)..=(most / so_far).min(shape[axis]);
            range.rev().find(|parts| shape[axis].is_multiple_of(*parts))
        };
        let (mut whole, mut so_far) = (Vec::new(), 1);
        for &axis in &long {
            if so_far * shape[axis] > most {
                break;
            }
            so_far *= shape[axis];
            whole.push(axis);
        }
        if so_far >= limits.parts && whole.len() < long.len() {
            return split(whole, None);
        }
        if let Some((axis, parts)) =
            long.get(whole.len()).and_then(|&axis| Some((axis, parts_of(axis, so_far)?)))
        {
            return split(whole, Some((axis, parts)));
        }
        let longest = long.iter().copied().max_by_key(|&axis| shape[axis])?;
        match parts_of(longest, 1) {
            Some(parts) => split(Vec::new(), Some((longest, parts))),
            None if is_several && shape[first] >= limits.parts => split(vec![first], None),
            None => None,
        }
    }

    fn emit(&self, graph: &mut PrimGraph, x: TensorId) -> TensorId {
        let expected = "parts are axes of the operand";
        let cast = |graph: &mut PrimGraph, x, to| {
            graph.add(PrimOp::Map(ScalarFn::Cast(to)), &[x]).expect("floats are cast")
        };
        let mut operand = if self.narrow.is_some() { cast(graph, x, DType::F32) } else { x };
        let (mut axes, mut outer) = (self.axes.clone(), self.outer.clone());
        if let Some((axis, parts)) = self.divided {
            // The number of the part, then the place in it.
            let mut shape = graph.shape(x).to_vec();
            shape[axis] /= parts;
            shape.insert(axis, parts);
            operand = graph.add(PrimOp::Reshape { shape: shape.into() }, &[operand]).expect(expected);
            axes.iter_mut().chain(&mut outer).filter(|own| **own > axis).for_each(|own| *own += 1);
            axes.push(axis + 1);
            axes.sort_unstable();
            outer.push(axis);
        }
        let inner: Vec<usize> = axes.into_iter().filter(|axis| !outer.contains(axis)).collect();
        let left = outer.iter().map(|&axis| axis - inner.iter().filter(|&&own| own < axis).count()).collect();
        let parts = graph.add(PrimOp::Reduce { op: self.op, axes: inner }, &[operand]).expect(expected);
        let value = graph.add(PrimOp::Reduce { op: self.op, axes: left }, &[parts]).expect(expected);
        self.narrow.map_or(value, |narrow| cast(graph, value, narrow))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::Tensor;

    const LONG: LongReductions =
        LongReductions { results: 8, elems: 96, elems_of_result: 12, parts: 3, most_parts: 7, part_elems: 1 };

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
            // One axis, and first ones that are short: with a part of the next one, or without.
            (&[96], &[0], Some(6)),
            (&[1, 4, 35, 2], &[0, 2], Some(7)),
            (&[2, 40, 3, 2], &[0, 1, 2], Some(2)),
            (&[2, 2, 40, 3], &[0, 1, 2], None),
            (&[2, 11, 15, 1], &[0, 1, 2], Some(5)),
            // A first one that is long, and one that has no parts.
            (&[120, 2], &[0, 1], Some(6)),
            (&[61, 2], &[0, 1], None),
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
    fn integers_and_booleans_are_not_widened() {
        for (op, dtype) in [(ReduceOp::Sum, DType::I8), (ReduceOp::Min, DType::Bool)] {
            let split = split_long_reductions(&reduction(&[8, 12], &[0, 1], op, dtype), |_, _| LONG);
            let reductions = split.nodes().iter().map(|node| split.dtype(node.outputs[0]));
            assert!(reductions.eq([dtype; 2]), "{dtype}");
        }
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
        ];
        for graph in kept {
            assert_eq!(split_long_reductions(&graph, |_, _| LONG), graph);
        }
    }
}
