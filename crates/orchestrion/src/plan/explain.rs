//! Words for what runs: names of primitives, one-line descriptions, and parts of a graph as graphs.

use orch_ir::{InferError, NodeId, PrimGraph, PrimOp, TensorId};
use std::collections::BTreeMap;

/// A word for kernel names; empty for primitives that only rearrange.
pub fn short_name(op: &PrimOp) -> String {
    match op {
        PrimOp::Map(f) => f.name().replace('.', "_"),
        PrimOp::Reduce { op, .. } => format!("reduce_{}", op.name()),
        PrimOp::Window { op, .. } => format!("pool_{}", op.name()),
        PrimOp::Contract(_) => "matmul".to_owned(),
        PrimOp::Conv(spec) if spec.groups > 1 => "groupconv".to_owned(),
        PrimOp::Conv(_) => "conv".to_owned(),
        PrimOp::ConvTranspose { .. } => "convtranspose".to_owned(),
        PrimOp::Pad { .. } => "pad".to_owned(),
        PrimOp::Concat { .. } => "concat".to_owned(),
        PrimOp::Slice { .. } => "slice".to_owned(),
        PrimOp::Select { .. } => "resample".to_owned(),
        PrimOp::Take { .. } | PrimOp::TakeAlong { .. } | PrimOp::GatherNd { .. } => "gather".to_owned(),
        PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. } => "scatter".to_owned(),
        PrimOp::Recurrence(recurrence) => recurrence.cell.name().to_owned(),
        PrimOp::Opaque(opaque) => opaque.kind.name().replace('.', "_"),
        PrimOp::Broadcast { .. }
        | PrimOp::Transpose { .. }
        | PrimOp::Reshape { .. }
        | PrimOp::Iota { .. } => String::new(),
    }
}

/// A primitive with the types of its operands and results: `t7: f32[1, 64] = add t5, t6`.
pub fn describe(graph: &PrimGraph, id: NodeId) -> String {
    let node = graph.node(id);
    let typed = |tensor: &TensorId| format!("{tensor}: {}{}", graph.dtype(*tensor), graph.shape(*tensor));
    let outputs: Vec<String> = node.outputs.iter().map(typed).collect();
    let inputs: Vec<String> = node.inputs.iter().map(ToString::to_string).collect();
    format!("{} = {} {}", outputs.join(", "), long_name(&node.op), inputs.join(", "))
}

fn long_name(op: &PrimOp) -> String {
    match op {
        PrimOp::Broadcast { .. } => "broadcast".to_owned(),
        PrimOp::Transpose { perm } => format!("transpose {perm:?}"),
        PrimOp::Reshape { .. } => "reshape".to_owned(),
        PrimOp::Iota { axis, .. } => format!("iota {axis}"),
        PrimOp::Reduce { op, axes } => format!("reduce.{} {axes:?}", op.name()),
        other => short_name(other),
    }
}

/// The part of a graph that computes `outputs` from `inputs` through `nodes` (topological order), as a graph.
/// Constants among the inputs are inputs of the part too.
///
/// # Errors
/// If the primitives do not fit their operands: the graph is not valid.
pub fn extract(
    graph: &PrimGraph,
    nodes: &[NodeId],
    inputs: &[TensorId],
    outputs: &[TensorId],
) -> Result<PrimGraph, InferError> {
    let mut part = PrimGraph::new(&graph.name);
    let mut here: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for (number, &tensor) in inputs.iter().enumerate() {
        let shape = graph.shape(tensor).clone();
        here.insert(tensor, part.add_input(format!("input {number}"), graph.dtype(tensor), shape));
    }
    for &id in nodes {
        let node = graph.node(id);
        part.set_origin(graph.origin(id));
        let operands = node.inputs.iter().map(|tensor| here[tensor]).collect();
        let results = part.add_node(node.op.clone(), operands)?;
        here.extend(node.outputs.iter().copied().zip(results));
    }
    for (number, tensor) in outputs.iter().enumerate() {
        part.add_output(format!("output {number}"), here[tensor]);
    }
    Ok(part)
}
