//! The compute definition of sums and products up to each position of an axis, which is a kernel by itself.

use crate::alone::{operand_arg, result_arg};
use crate::block::Arg;
use crate::expr::ArgId;
use crate::fuse::compute_type;
use crate::storage::Storage;
use orch_ir::{Cumulative, DType, NodeId, OpaqueKind, PrimGraph, PrimOp};

/// One kernel's cumulative sums or products: of `x [outer, extent, inner]` along the extent, into `y` of that shape.
#[derive(Clone, Debug)]
pub struct CumulativeProgram {
    /// A name for people, also the stem of the C function's name.
    pub name: String,
    /// Product of the extents before the axis.
    pub outer: usize,
    /// Extent of the axis, at least 1.
    pub extent: usize,
    /// Product of the extents after the axis: elements from one position to the next.
    pub inner: usize,
    /// What is combined, in which direction.
    pub spec: Cumulative,
    /// Tensor arguments: operand and result.
    pub args: Vec<Arg>,
}

impl CumulativeProgram {
    /// The argument that is `x`.
    pub const X: ArgId = ArgId(0);
    /// The argument that is `y`.
    pub const Y: ArgId = ArgId(1);

    /// The cumulative operation among `nodes`, all others of which are views of its operand; `None` if there is none, if it is of
    /// nothing, or one of its tensors is not stored row by row.
    pub fn of(
        graph: &PrimGraph,
        nodes: &[NodeId],
        storage: &Storage,
        name: impl Into<String>,
    ) -> Option<Self> {
        let (node, spec) = nodes.iter().find_map(|&id| {
            let PrimOp::Opaque(opaque) = &graph.node(id).op else { return None };
            match opaque.kind {
                OpaqueKind::Cumulative(spec) => Some((graph.node(id), spec)),
                _ => None,
            }
        })?;
        let shape = graph.shape(node.inputs[0]);
        if shape.elems() == 0 {
            return None;
        }
        let (outer, inner) = (shape[..spec.axis].iter().product(), shape[spec.axis + 1..].iter().product());
        let args = vec![
            operand_arg(graph, nodes, storage, node.inputs[0])?,
            result_arg(graph, storage, node.outputs[0])?,
        ];
        Some(Self { name: name.into(), outer, extent: shape[spec.axis], inner, spec, args })
    }

    /// The argument with this id.
    pub fn arg(&self, id: ArgId) -> &Arg {
        &self.args[id.index()]
    }

    /// The type in which elements accumulate.
    pub fn accumulator_type(&self) -> DType {
        compute_type(self.arg(Self::Y).dtype)
    }
}
