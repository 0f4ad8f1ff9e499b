//! Tensors that are stored seen through primitives that only move elements.

use orch_ir::{DType, NodeId, PrimGraph, PrimNode, PrimOp, ScalarFn, TensorId};

/// Extents and strides whose product a dimension is, outermost first; extents of 1 are left out, and what could be one
/// factor is. A stride is the number of elements of the source from one index to the next one; 0 for what is repeated.
pub(super) type StrideFactors = Vec<(usize, usize)>;

/// Some elements along an axis, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Part {
    pub(super) axis: usize,
    pub(super) start: usize,
    pub(super) size: usize,
}

/// A tensor as a view of a stored one.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Strided {
    /// The stored tensor.
    pub(super) source: TensorId,
    /// Each dimension as seen.
    pub(super) dims: Vec<StrideFactors>,
    /// The first element.
    pub(super) offset: usize,
    /// The primitives that the view stands for.
    pub(super) nodes: Vec<NodeId>,
}

/// True for the types of numbers that programs stand for.
pub(super) fn is_real(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_half()
}

/// True for primitives whose results are their operands, seen by other indices or in another precision.
pub(super) fn is_view(graph: &PrimGraph, id: NodeId) -> bool {
    let node = graph.node(id);
    match node.op {
        PrimOp::Broadcast { .. } | PrimOp::Transpose { .. } | PrimOp::Reshape { .. } => true,
        PrimOp::Map(ScalarFn::Cast(to)) => is_real(to) && is_real(graph.dtype(node.inputs[0])),
        _ => false,
    }
}

/// The tensor as a view of the farthest tensor before it that allows one.
pub(super) fn view(graph: &PrimGraph, tensor: TensorId) -> Strided {
    let seen = graph.producer(tensor).and_then(|id| {
        let node = graph.node(id);
        let may_be_view = is_view(graph, id) || matches!(node.op, PrimOp::Slice { .. });
        let mut seen = may_be_view.then(|| moved(graph, node, view(graph, node.inputs[0])))??;
        seen.nodes.push(id);
        Some(seen)
    });
    seen.unwrap_or_else(|| stored(graph, tensor))
}

/// Part of a tensor as such a view.
pub(super) fn view_of_part(graph: &PrimGraph, tensor: TensorId, part: Part) -> Option<Strided> {
    let cut = |mut seen: Strided| {
        let factors = &mut seen.dims[part.axis];
        let from = cut(factors, part.start, 1, part.size)?;
        seen.offset += from;
        Some(seen)
    };
    cut(view(graph, tensor)).or_else(|| cut(stored(graph, tensor)))
}

fn stored(graph: &PrimGraph, tensor: TensorId) -> Strided {
    let shape = graph.shape(tensor);
    let dims = shape.iter().zip(shape.strides());
    let dims = dims.map(|(&extent, stride)| joined(vec![(extent, stride)])).collect();
    Strided { source: tensor, dims, offset: 0, nodes: Vec::new() }
}

/// Takes some elements of a dimension; how many elements of the source lie before them. `None` if the dimension has no
/// single stride.
fn cut(factors: &mut StrideFactors, start: usize, step: usize, size: usize) -> Option<usize> {
    match factors[..] {
        [] => Some(0),
        [(_, stride)] => {
            *factors = joined(vec![(size, stride * step)]);
            Some(start * stride)
        }
        _ => None,
    }
}

/// The result of a primitive, whose operand is seen so.
fn moved(graph: &PrimGraph, node: &PrimNode, mut seen: Strided) -> Option<Strided> {
    let shape = graph.shape(node.outputs[0]).dims();
    match &node.op {
        // Widening is done where the element is read.
        PrimOp::Map(ScalarFn::Cast(DType::F32)) => {}
        PrimOp::Broadcast { dims, .. } => {
            let mut repeated: Vec<StrideFactors> =
                shape.iter().map(|&extent| joined(vec![(extent, 0)])).collect();
            for (from, &to) in dims.iter().enumerate() {
                if graph.shape(node.inputs[0])[from] == shape[to] {
                    repeated[to] = std::mem::take(&mut seen.dims[from]);
                }
            }
            seen.dims = repeated;
        }
        PrimOp::Transpose { perm } => seen.dims = perm.iter().map(|&dim| seen.dims[dim].clone()).collect(),
        PrimOp::Slice { starts, steps, sizes } => {
            for (dim, factors) in seen.dims.iter_mut().enumerate() {
                let is_whole = sizes[dim] == graph.shape(node.inputs[0])[dim] && steps[dim] == 1;
                if !is_whole {
                    let [start, step] = [starts[dim], steps[dim]].map(|at| usize::try_from(at).ok());
                    seen.offset += cut(factors, start?, step?, sizes[dim])?;
                }
            }
        }
        PrimOp::Reshape { .. } => seen.dims = reshaped(seen.dims.concat(), shape)?,
        _ => return None,
    }
    Some(seen)
}

/// The factors cut into dimensions of a shape, innermost first; `None` if extents do not divide each other.
fn reshaped(mut factors: StrideFactors, shape: &[usize]) -> Option<Vec<StrideFactors>> {
    let mut dims = vec![StrideFactors::new(); shape.len()];
    for (dim, &extent) in dims.iter_mut().zip(shape).rev() {
        let mut wanted = extent;
        while wanted != 1 {
            let (extent, stride) = factors.pop()?;
            let taken = extent.min(wanted);
            if taken == 0 || wanted % taken != 0 || extent % taken != 0 {
                return None;
            }
            if extent > taken {
                factors.push((extent / taken, stride * taken));
            }
            dim.insert(0, (taken, stride));
            wanted /= taken;
        }
    }
    Some(dims.into_iter().map(joined).collect())
}

/// The same without extents of 1, with neighbours joined where a single stride serves both.
fn joined(factors: StrideFactors) -> StrideFactors {
    let mut joined = StrideFactors::new();
    for (extent, stride) in factors.into_iter().filter(|(extent, _)| *extent != 1) {
        match joined.last_mut() {
            Some(outer) if outer.1 == extent * stride => *outer = (outer.0 * extent, stride),
            _ => joined.push((extent, stride)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reshapes_cut_and_join_factors() {
        assert_eq!(reshaped(vec![(6, 4), (4, 1)], &[24]), Some(vec![vec![(24, 1)]]));
        let cut = vec![vec![(2, 12)], vec![(3, 4)], vec![], vec![(4, 1)]];
        assert_eq!(reshaped(vec![(24, 1)], &[2, 3, 1, 4]), Some(cut));
        assert_eq!(reshaped(vec![(4, 1), (6, 4)], &[24]), Some(vec![vec![(4, 1), (6, 4)]]));
        assert_eq!(reshaped(vec![(4, 1), (6, 4)], &[3, 8]), None);
        // Heads that are repeated stay repeated.
        let heads = vec![vec![(2, 4), (3, 0)], vec![(4, 1)]];
        assert_eq!(reshaped(vec![(2, 4), (3, 0), (4, 1)], &[6, 4]), Some(heads));
    }
}
