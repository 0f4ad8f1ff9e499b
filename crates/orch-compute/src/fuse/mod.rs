//! From a candidate kernel, a set of primitives, to the block program that computes it: fusion by substitution.
//!
//! Without an *anchor* (a contraction or convolution) the program starts at the result, with one parallel axis
//! per dimension, and each producer is substituted into its consumer at a symbolic index ([`backward`]). With an
//! anchor the axes are the anchor's own; its operands are substituted into it (prologue), and the index of every
//! tensor computed from it is derived by walking forward (epilogue); where a slice of the anchor's result is all that is needed, the
//! axes are those of the slice ([`kept`]). Reductions become stages; reductions over
//! equal extents share their axes, so that the bodies of later stages are the very expressions of earlier ones.
//!
//! Axes are split where index arithmetic asks for it: a reshape leaves `j / 64` and `j % 64` behind, and the
//! build starts over with `j` as two axes, after which all accesses are affine ([`split`]).
//!
//! Half-precision values are widened to `f32` when they are read and rounded when they are stored or converted;
//! between primitives of one kernel they stay `f32`. After Hidet (ASPLOS'23), section 5.2; there, index maps are
//! registered by hand, here they are derived.

mod anchor;
mod axes;
mod backward;
mod builder;
mod error;
mod forward;
mod gather;
mod index;
mod kept;
mod layout_ops;
mod reduce;
mod split;

use crate::block::BlockProgram;
use crate::layout::Layout;
use crate::storage::Storage;
use axes::Splits;
use builder::Builder;
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, TensorId};

pub(crate) use builder::compute_type;
pub use error::CannotFuse;
pub use layout_ops::has_formula;

/// Rounds of splitting after which the axes stay as they are; each round splits at least one axis.
const MAX_SPLIT_ROUNDS: usize = 16;

/// The block program that computes `outputs` from the graph's other tensors through `nodes`.
///
/// `nodes` are in topological order; every tensor that they read and do not compute becomes an argument, with the
/// memory layout that `layouts` tells, in the type that the graph states. Constants of one repeated value become
/// immediates.
///
/// # Errors
/// If the set does not have the form of one kernel.
pub fn build(
    graph: &PrimGraph,
    nodes: &[NodeId],
    outputs: &[TensorId],
    layouts: &dyn Fn(TensorId) -> Layout,
    name: impl Into<String>,
) -> Result<BlockProgram, CannotFuse> {
    build_with(graph, nodes, outputs, &|tensor| (layouts(tensor), graph.dtype(tensor)), name.into())
}

/// The same for tensors that are stored as `storage` says: a tensor of f32 that is stored in half precision is widened
/// where it is read and rounded where it is stored. How far contractions may round their operands is marked.
///
/// # Errors
/// If the set does not have the form of one kernel.
pub fn build_stored(
    graph: &PrimGraph,
    nodes: &[NodeId],
    outputs: &[TensorId],
    storage: &Storage,
    name: impl Into<String>,
) -> Result<BlockProgram, CannotFuse> {
    let stored = |tensor: TensorId| (storage.layout(tensor).clone(), storage.dtype(tensor));
    let block = build_with(graph, nodes, outputs, &stored, name.into())?;
    let multiplies =
        |op: &PrimOp| matches!(op, PrimOp::Contract(_) | PrimOp::Conv(_) | PrimOp::ConvTranspose { .. });
    let products = nodes.iter().map(|&node| graph.node(node)).filter(|node| multiplies(&node.op));
    let operands = products.flat_map(|node| &node.inputs);
    let rounding = operands.map(|&operand| storage.rounding(operand)).max().unwrap_or_default();
    Ok(BlockProgram { rounding, ..block })
}

fn build_with(
    graph: &PrimGraph,
    nodes: &[NodeId],
    outputs: &[TensorId],
    stored: &dyn Fn(TensorId) -> (Layout, DType),
    name: String,
) -> Result<BlockProgram, CannotFuse> {
    let mut splits = Splits::default();
    for _ in 0..MAX_SPLIT_ROUNDS {
        let mut builder = Builder::new(graph, nodes, stored, &splits);
        let built = builder.run(outputs);
        let wanted = builder.wanted_splits();
        if wanted == splits {
            return built.map(|()| builder.finish(name));
        }
        splits = wanted;
    }
    let mut builder = Builder::new(graph, nodes, stored, &splits);
    builder.run(outputs)?;
    Ok(builder.finish(name))
}
