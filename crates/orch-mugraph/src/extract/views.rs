//! Views of stored tensors: what broadcasts, transposes, reshapes and slices do to a tensor, as strides.
//!
//! A dimension of a view is a list of modes `extent:stride`, as in CuTe's layouts: a row-major `f32[2, 3, 4]` has the
//! dimensions `2:12`, `3:4`, `4:1`; reshaped to `[6, 4]` it has `6:4`, `4:1`; transposed and reshaped to `[2, 12]` it
//! has `2:12` and `(4:1, 3:4)`.

use orch_ir::{DType, NodeId, PrimGraph, PrimNode, PrimOp, ScalarFn, TensorId};

/// An extent with a stride.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mode {
    pub(super) extent: usize,
    /// Elements of the source from one index to the next one; 0 for repeated elements.
    pub(super) stride: usize,
}

/// The modes of a dimension, outermost first. Extents of 1 are left out, and neighbouring modes that one stride serves
/// are one mode.
pub(super) type DimModes = Vec<Mode>;

/// A range of elements along an axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Part {
    pub(super) axis: usize,
    /// The first element.
    pub(super) start: usize,
    /// The number of elements.
    pub(super) size: usize,
}

/// A tensor as a view of a stored one.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Strided {
    /// The stored tensor.
    pub(super) source: TensorId,
    /// The dimensions of the view.
    pub(super) dims: Vec<DimModes>,
    /// The element of the source at index 0, in row-major order.
    pub(super) offset: usize,
    /// The primitives that the view replaces.
    pub(super) nodes: Vec<NodeId>,
}

/// True for the types whose values programs treat as real numbers: f32, f16 and bf16.
pub(super) fn is_real(dtype: DType) -> bool {
    dtype == DType::F32 || dtype.is_half()
}

/// True for primitives whose result is their operand at other indices or in another precision.
pub(super) fn is_view(graph: &PrimGraph, id: NodeId) -> bool {
    let node = graph.node(id);
    match node.op {
        PrimOp::Broadcast { .. } | PrimOp::Transpose { .. } | PrimOp::Reshape { .. } => true,
        PrimOp::Map(ScalarFn::Cast(to)) => is_real(to) && is_real(graph.dtype(node.inputs[0])),
        _ => false,
    }
}

/// The tensor as a view of the earliest tensor that it is a strided view of, through views and slices.
pub(super) fn view(graph: &PrimGraph, tensor: TensorId) -> Strided {
    let through = graph.producer(tensor).and_then(|id| {
        let node = graph.node(id);
        let may_be_view = is_view(graph, id) || matches!(node.op, PrimOp::Slice { .. });
        let operand = may_be_view.then(|| view(graph, node.inputs[0]))?;
        let mut result = view_of_result(graph, node, operand)?;
        result.nodes.push(id);
        Some(result)
    });
    through.unwrap_or_else(|| stored(graph, tensor))
}

/// Part of a tensor as a view: of the source of the tensor's own [`view`] if that has a single stride along the axis,
/// else of the tensor itself, which has one.
pub(super) fn view_of_part(graph: &PrimGraph, tensor: TensorId, part: Part) -> Option<Strided> {
    let of_part = |mut whole: Strided| {
        let first = slice_modes(&mut whole.dims[part.axis], part.start, 1, part.size)?;
        whole.offset += first;
        Some(whole)
    };
    of_part(view(graph, tensor)).or_else(|| of_part(stored(graph, tensor)))
}

/// A tensor as a view of itself.
fn stored(graph: &PrimGraph, tensor: TensorId) -> Strided {
    let shape = graph.shape(tensor);
    let dims = shape.iter().zip(shape.strides());
    let dims = dims.map(|(&extent, stride)| coalesced(vec![Mode { extent, stride }])).collect();
    Strided { source: tensor, dims, offset: 0, nodes: Vec::new() }
}

/// Slices a dimension to `size` indices from `start` on in steps of `step`; the offset of the first one in elements of
/// the source. `None` if the dimension has more than one mode.
fn slice_modes(modes: &mut DimModes, start: usize, step: usize, size: usize) -> Option<usize> {
    match modes[..] {
        [] => Some(0),
        [Mode { stride, .. }] => {
            *modes = coalesced(vec![Mode { extent: size, stride: stride * step }]);
            Some(start * stride)
        }
        _ => None,
    }
}

/// The view of a primitive's result, given the view of its operand. `None` if that is no strided view.
fn view_of_result(graph: &PrimGraph, node: &PrimNode, mut operand: Strided) -> Option<Strided> {
    let shape = graph.shape(node.outputs[0]).dims();
    match &node.op {
        // Elements are widened as they are read.
        PrimOp::Map(ScalarFn::Cast(DType::F32)) => {}
        PrimOp::Broadcast { dims, .. } => {
            let repeat = |&extent: &usize| coalesced(vec![Mode { extent, stride: 0 }]);
            let mut result: Vec<DimModes> = shape.iter().map(repeat).collect();
            for (from, &to) in dims.iter().enumerate() {
                if graph.shape(node.inputs[0])[from] == shape[to] {
                    result[to] = std::mem::take(&mut operand.dims[from]);
                }
            }
            operand.dims = result;
        }
        PrimOp::Transpose { perm } => {
            operand.dims = perm.iter().map(|&dim| operand.dims[dim].clone()).collect();
        }
        PrimOp::Slice { starts, steps, sizes } => {
            for (dim, modes) in operand.dims.iter_mut().enumerate() {
                let is_whole = sizes[dim] == graph.shape(node.inputs[0])[dim] && steps[dim] == 1;
                if !is_whole {
                    let [start, step] = [starts[dim], steps[dim]].map(|at| usize::try_from(at).ok());
                    operand.offset += slice_modes(modes, start?, step?, sizes[dim])?;
                }
            }
        }
        PrimOp::Reshape { .. } => operand.dims = reshaped(operand.dims.concat(), shape)?,
        _ => return None,
    }
    Some(operand)
}

/// The modes of all dimensions divided among the dimensions of another shape, from the innermost one outwards. `None`
/// if an extent would have to be split where it does not divide.
fn reshaped(mut modes: DimModes, shape: &[usize]) -> Option<Vec<DimModes>> {
    let mut dims = vec![DimModes::new(); shape.len()];
    for (dim, &extent) in dims.iter_mut().zip(shape).rev() {
        let mut wanted = extent;
        while wanted != 1 {
            let Mode { extent, stride } = modes.pop()?;
            let taken = extent.min(wanted);
            if taken == 0 || wanted % taken != 0 || extent % taken != 0 {
                return None;
            }
            if extent > taken {
                modes.push(Mode { extent: extent / taken, stride: stride * taken });
            }
            dim.insert(0, Mode { extent: taken, stride });
            wanted /= taken;
        }
    }
    Some(dims.into_iter().map(coalesced).collect())
}

/// The same layout without extents of 1 and with neighbouring modes merged where one stride serves both.
fn coalesced(modes: DimModes) -> DimModes {
    let mut coalesced = DimModes::new();
    for Mode { extent, stride } in modes.into_iter().filter(|mode| mode.extent != 1) {
        match coalesced.last_mut() {
            Some(outer) if outer.stride == extent * stride => {
                *outer = Mode { extent: outer.extent * extent, stride };
            }
            _ => coalesced.push(Mode { extent, stride }),
        }
    }
    coalesced
}

/// The tensor that broadcasts repeat.
pub(super) fn unrepeated(graph: &PrimGraph, tensor: TensorId) -> TensorId {
    let mut at = tensor;
    while let Some(node) = graph.producer(at).map(|id| graph.node(id)) {
        let PrimOp::Broadcast { .. } = node.op else { break };
        at = node.inputs[0];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Modes `(extent, stride)`.
    fn modes(of: &[(usize, usize)]) -> DimModes {
        of.iter().map(|&(extent, stride)| Mode { extent, stride }).collect()
    }

    #[test]
    fn reshapes_split_and_merge_modes() {
        let dims = |of: &[&[(usize, usize)]]| Some(of.iter().map(|dim| modes(dim)).collect::<Vec<_>>());
        assert_eq!(reshaped(modes(&[(6, 4), (4, 1)]), &[24]), dims(&[&[(24, 1)]]));
        let split = dims(&[&[(2, 12)], &[(3, 4)], &[], &[(4, 1)]]);
        assert_eq!(reshaped(modes(&[(24, 1)]), &[2, 3, 1, 4]), split);
        assert_eq!(reshaped(modes(&[(4, 1), (6, 4)]), &[24]), dims(&[&[(4, 1), (6, 4)]]));
        assert_eq!(reshaped(modes(&[(4, 1), (6, 4)]), &[3, 8]), None);
        // Repeated heads stay repeated.
        let heads = dims(&[&[(2, 4), (3, 0)], &[(4, 1)]]);
        assert_eq!(reshaped(modes(&[(2, 4), (3, 0), (4, 1)]), &[6, 4]), heads);
    }
}
