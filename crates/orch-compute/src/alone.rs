//! Primitives that are a kernel by themselves: block programs have no order of steps, which recurrences, selections of the best,
//! cumulative sums and scattering need. Their operands and results are stored row by row.

use crate::block::{Arg, ArgRole};
use crate::layout::Layout;
use crate::storage::Storage;
use orch_ir::{NodeId, OpaqueKind, PrimGraph, PrimOp, TensorId};

/// True for primitives that are never part of a block program. A target whose templates do not serve one runs it on the host.
pub fn stands_alone(op: &PrimOp) -> bool {
    match op {
        PrimOp::Recurrence(_) | PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. } => true,
        PrimOp::Opaque(opaque) => matches!(opaque.kind, OpaqueKind::TopK { .. } | OpaqueKind::Cumulative(_)),
        _ => false,
    }
}

/// The argument that an operand is: what it is a view of, by primitives among `nodes`, with its own shape. `None` if it is not stored
/// row by row.
pub(crate) fn operand_arg(
    graph: &PrimGraph,
    nodes: &[NodeId],
    storage: &Storage,
    operand: TensorId,
) -> Option<Arg> {
    let stored = stored_source(graph, nodes, operand)?;
    let role = if graph.constant(stored).is_some() { ArgRole::Constant } else { ArgRole::Input };
    arg(graph, storage, (operand, stored), role)
}

/// The argument that a result is; `None` if it is not stored row by row.
pub(crate) fn result_arg(graph: &PrimGraph, storage: &Storage, result: TensorId) -> Option<Arg> {
    arg(graph, storage, (result, result), ArgRole::Output)
}

/// The stored tensor that an operand is a view of.
fn stored_source(graph: &PrimGraph, nodes: &[NodeId], mut tensor: TensorId) -> Option<TensorId> {
    while let Some(producer) = graph.producer(tensor).filter(|producer| nodes.contains(producer)) {
        let node = graph.node(producer);
        let is_view = matches!(node.op, PrimOp::Reshape { .. } | PrimOp::Transpose { .. });
        tensor = *node.inputs.first().filter(|_| is_view)?;
    }
    Some(tensor)
}

/// An argument with the shape of `viewed`, whose bytes are those of `stored`.
fn arg(
    graph: &PrimGraph,
    storage: &Storage,
    (viewed, stored): (TensorId, TensorId),
    role: ArgRole,
) -> Option<Arg> {
    let shape = graph.shape(viewed).clone();
    let layout = Layout::row_major(shape.rank());
    let is_row_major = storage.layout(viewed).same_bytes(&layout, &shape);
    let dtype = storage.dtype(stored);
    is_row_major.then_some(Arg { tensor: stored, dtype, shape, layout, role })
}
