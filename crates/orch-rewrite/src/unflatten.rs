//! Reductions over several dimensions that a model merged into one.
//!
//! A group norm is exported as `reshape [n, c, h, w] -> [n, g, c/g * h * w]`, statistics over the last dimension, and a reshape
//! back. Where convolutions store channels last, the merged dimension lies in no order of memory: the norm would read or write
//! element by element across rows. With the dimensions kept apart nothing is moved:
//!
//! ```text
//! y = reshape [n, g, m] x;  s = reduce [2] y;  z = y - broadcast s;  reshape [n, c, h, w] z
//! y = reshape [n, g, c/g, h, w] x;  s = reduce [2, 3, 4] y;  z = y - broadcast s;  reshape [n, c, h, w] z
//! ```
//!
//! Stands after the rewriting, whose rules join reshapes. Exact, but for the order in which floats are added up.

use crate::prepare::{computed, rebuilt};
use orch_ir::{NodeId, PrimGraph, PrimOp, ReduceOp, Shape, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// For each dimension of a tensor the extents that it is kept apart in; one extent for most.
type Parts = Vec<Vec<usize>>;

/// The graph with reductions over merged dimensions as reductions over these. A merging stays if anything but elementwise functions,
/// reductions and reshapes reads it.
pub fn unflatten_reductions(graph: &PrimGraph) -> PrimGraph {
    let consumers = graph.consumers();
    let mut parts: BTreeMap<TensorId, Parts> = BTreeMap::new();
    for id in graph.node_ids() {
        let Some(region) = Region::from_reshape(graph, id, &consumers) else { continue };
        if region.parts.keys().all(|tensor| !parts.contains_key(tensor)) {
            parts.extend(region.parts);
        }
    }
    if parts.is_empty() {
        return graph.clone();
    }
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let of = |tensor: &TensorId| parts.get(tensor);
        let [output] = node.outputs[..] else { return false };
        let value = match &node.op {
            PrimOp::Reshape { shape } => {
                if of(&node.inputs[0]).or(of(&output)).is_none() {
                    return false;
                }
                let to = of(&output).map_or_else(|| shape.clone(), joined);
                reshaped(result, computed(known, node.inputs[0]), to)
            }
            PrimOp::Map(_) => {
                let Some(own) = of(&output) else { return false };
                let operands: Vec<TensorId> = (node.inputs.iter())
                    .map(|&input| {
                        if parts.contains_key(&input) {
                            return computed(known, input);
                        }
                        operand(graph, input, own, result, known)
                    })
                    .collect();
                result.add(node.op.clone(), &operands).expect("operands have the same parts")
            }
            PrimOp::Reduce { op, axes } => {
                let Some(own) = of(&node.inputs[0]) else { return false };
                let axes = axes.iter().flat_map(|&axis| {
                    let first = own[..axis].iter().map(Vec::len).sum::<usize>();
                    first..first + own[axis].len()
                });
                let reduce = PrimOp::Reduce { op: *op, axes: axes.collect() };
                let operand = computed(known, node.inputs[0]);
                result.add(reduce, &[operand]).expect("parts of a dimension are dimensions")
            }
            _ => return false,
        };
        known[output.index()] = Some(value);
        true
    })
}

/// `x` in another shape.
fn reshaped(result: &mut PrimGraph, x: TensorId, shape: Shape) -> TensorId {
    if *result.shape(x) == shape {
        return x;
    }
    result.add(PrimOp::Reshape { shape }, &[x]).expect("it has as many elements")
}

/// An operand of an elementwise function whose result has these parts: a broadcast repeats along them, anything else is reshaped.
fn operand(
    graph: &PrimGraph,
    tensor: TensorId,
    parts: &Parts,
    result: &mut PrimGraph,
    known: &[Option<TensorId>],
) -> TensorId {
    let shape = joined(parts);
    let broadcast = graph.producer(tensor).map(|id| graph.node(id)).and_then(|node| match &node.op {
        PrimOp::Broadcast { dims, .. } => Some((node.inputs[0], dims)),
        _ => None,
    });
    let Some((repeated, dims)) = broadcast else {
        return reshaped(result, computed(known, tensor), shape);
    };
    let own = graph.shape(repeated);
    let (mut kept, mut places) = (Vec::new(), Vec::new());
    for (position, &dim) in dims.iter().enumerate() {
        let first = parts[..dim].iter().map(Vec::len).sum::<usize>();
        // A dimension of one element is repeated along all parts.
        let apart = if own[position] == 1 { &[1][..] } else { &parts[dim] };
        kept.extend_from_slice(apart);
        places.extend(first..first + apart.len());
    }
    let repeated = reshaped(result, computed(known, repeated), kept.into());
    result.add(PrimOp::Broadcast { shape, dims: places }, &[repeated]).expect("parts lie in order")
}

/// The shape with the parts of each dimension side by side.
fn joined(parts: &Parts) -> Shape {
    parts.iter().flatten().copied().collect::<Vec<_>>().into()
}

/// What reads a merged dimension, up to reshapes.
struct Region {
    parts: BTreeMap<TensorId, Parts>,
}

impl Region {
    /// The region behind a reshape that merges dimensions; `None` if it does not, if nothing reduces the merged dimension, or if
    /// something reads it that needs it whole.
    fn from_reshape(graph: &PrimGraph, id: NodeId, consumers: &[Vec<NodeId>]) -> Option<Self> {
        let node = graph.node(id);
        let PrimOp::Reshape { shape } = &node.op else { return None };
        let first = parts_of_merged(graph.shape(node.inputs[0]), shape)?;
        let mut parts = BTreeMap::from([(node.outputs[0], first)]);
        let mut is_reduced = false;
        let mut open: BTreeSet<NodeId> = consumers[node.outputs[0].index()].iter().copied().collect();
        while let Some(id) = open.pop_first() {
            let node = graph.node(id);
            let [output] = node.outputs[..] else { return None };
            let mut operands = node.inputs.iter().filter_map(|input| parts.get(input));
            let own = operands.next()?.clone();
            if operands.any(|other| *other != own) {
                return None;
            }
            let of_result = match &node.op {
                PrimOp::Reshape { .. } => continue,
                PrimOp::Map(_) => own,
                PrimOp::Reduce {
                    op: ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min,
                    axes,
                } => {
                    is_reduced |= axes.iter().any(|&axis| own[axis].len() > 1);
                    let kept = own.into_iter().enumerate().filter(|(axis, _)| !axes.contains(axis));
                    kept.map(|(_, apart)| apart).collect()
                }
                _ => return None,
            };
            if of_result.iter().any(|apart| apart.len() > 1) {
                parts.insert(output, of_result);
                open.extend(&consumers[output.index()]);
            }
        }
        let is_output = |(_, output): &(String, TensorId)| parts.contains_key(output);
        (is_reduced && !graph.outputs.iter().any(is_output)).then_some(Self { parts })
    }
}

/// What each dimension of a reshape's result consists of; `None` if none has several parts, or the extents have no common parts.
fn parts_of_merged(from: &Shape, to: &Shape) -> Option<Parts> {
    if from.elems() == 0 {
        return None;
    }
    let mut parts = Vec::with_capacity(to.rank());
    let mut rest = from.iter().copied().filter(|&extent| extent != 1).collect::<Vec<_>>().into_iter();
    // What the dimension before left of an extent of `from`.
    let mut left = 1;
    for &extent in to.iter() {
        let mut apart = Vec::new();
        let mut wanted = extent;
        while wanted > 1 {
            if left == 1 {
                left = rest.next()?;
            }
            let part = if wanted.is_multiple_of(left) {
                left
            } else if left.is_multiple_of(wanted) {
                wanted
            } else {
                return None;
            };
            apart.push(part);
            (left, wanted) = (left / part, wanted / part);
        }
        parts.push(if apart.is_empty() { vec![1] } else { apart });
    }
    parts.iter().any(|apart| apart.len() > 1).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{BinaryFn, DType, ScalarFn, Tensor, UnaryFn};

    fn binary(graph: &mut PrimGraph, function: BinaryFn, lhs: TensorId, rhs: TensorId) -> TensorId {
        graph.add(PrimOp::Map(ScalarFn::Binary(function)), &[lhs, rhs]).unwrap()
    }

    /// `x - mean(x)` over groups of channels, times a factor for each element.
    fn group_norm(groups: usize, shape: [usize; 4]) -> PrimGraph {
        let [n, c, h, w] = shape;
        let flat = Shape::from([n, groups, c / groups * h * w]);
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, shape);
        let factor = graph.add_input("factor", DType::F32, [1, 1, flat[2]]);
        let y = graph.add(PrimOp::Reshape { shape: flat.clone() }, &[x]).unwrap();
        let sum = graph.add(PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![2] }, &[y]).unwrap();
        let sum = graph.add(PrimOp::Broadcast { shape: flat.clone(), dims: vec![0, 1] }, &[sum]).unwrap();
        let factor = graph.add(PrimOp::Broadcast { shape: flat, dims: vec![0, 1, 2] }, &[factor]).unwrap();
        let y = binary(&mut graph, BinaryFn::Sub, y, sum);
        let y = binary(&mut graph, BinaryFn::Mul, y, factor);
        let z = graph.add(PrimOp::Reshape { shape: shape.into() }, &[y]).unwrap();
        graph.add_output("z", z);
        graph
    }

    #[test]
    fn merged_dimensions_are_kept_apart() {
        for (groups, shape) in [(1, [1, 6, 2, 3]), (3, [2, 6, 2, 3]), (6, [1, 6, 1, 5]), (2, [1, 4, 1, 1])] {
            let graph = group_norm(groups, shape);
            let unflattened = unflatten_reductions(&graph);
            let numbers = |shape: &Shape| {
                Tensor::from_vec(shape.clone(), (0..shape.elems()).map(|at| at as f32 - 7.5).collect())
            };
            let inputs: Vec<Tensor> =
                graph.inputs.iter().map(|&(_, tensor)| numbers(graph.shape(tensor))).collect();
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap()[0].to_f64();
            assert_eq!(results(&graph), results(&unflattened), "{groups} {shape:?}");
            let is_merging = |id: &NodeId| {
                let node = unflattened.node(*id);
                matches!(node.op, PrimOp::Reduce { .. })
                    && unflattened.shape(node.inputs[0]).rank() == 3
                    && parts_of_merged(&shape.into(), unflattened.shape(node.inputs[0])).is_some()
            };
            assert!(!unflattened.node_ids().any(|id| is_merging(&id)), "{groups} {shape:?}");
        }
    }

    #[test]
    fn what_needs_the_dimension_whole_keeps_it() {
        let mut graph = group_norm(2, [1, 4, 2, 2]);
        let reshape = graph.node_ids().next().unwrap();
        let flat = graph.node(reshape).outputs[0];
        let reversed = PrimOp::Slice { starts: vec![0, 0, 7], steps: vec![1, 1, -1], sizes: vec![1, 2, 8] };
        let reversed = graph.add(reversed, &[flat]).unwrap();
        let y = graph.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg)), &[reversed]).unwrap();
        graph.add_output("reversed", y);
        assert_eq!(orch_ir::text::print(&unflatten_reductions(&graph)), orch_ir::text::print(&graph));
    }

    #[test]
    fn extents_have_common_parts() {
        let parts = |from: &[usize], to: &[usize]| parts_of_merged(&from.into(), &to.into());
        assert_eq!(parts(&[1, 64, 7, 5], &[1, 4, 560]), Some(vec![vec![1], vec![4], vec![16, 7, 5]]));
        assert_eq!(parts(&[2, 6, 5], &[12, 5]), Some(vec![vec![2, 6], vec![5]]));
        assert_eq!(parts(&[4, 6], &[6, 4]), None);
        assert_eq!(parts(&[4, 6], &[4, 2, 3]), None);
        assert_eq!(parts(&[0, 6], &[0]), None);
    }
}
