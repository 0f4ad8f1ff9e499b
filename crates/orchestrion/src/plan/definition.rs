//! What one kernel computes, before it has a schedule: a block program, or a primitive that is a kernel by itself.

use orch_compute::block::Arg;
use orch_compute::{
    ArgId, BlockProgram, CumulativeProgram, RecurrenceProgram, ScatterData, ScatterProgram, SelectionProgram,
    Storage, alone, fuse,
};
use orch_ir::{NodeId, OpaqueKind, PrimGraph, PrimOp, TensorId};

/// The computation of one kernel.
pub enum KernelDefinition {
    /// Stages over axes.
    Block(BlockProgram),
    /// A recurrence of RNN, GRU or LSTM.
    Recurrence(RecurrenceProgram),
    /// A selection of the best along an axis, or sorting.
    Selection(SelectionProgram),
    /// Sums or products up to each position of an axis.
    Cumulative(CumulativeProgram),
    /// Scattering.
    Scatter(ScatterProgram),
}

impl KernelDefinition {
    /// What `nodes` compute, as one kernel that writes `outputs`; `None` if they are not one.
    pub fn of(
        graph: &PrimGraph,
        nodes: &[NodeId],
        outputs: &[TensorId],
        storage: &Storage,
        name: &str,
    ) -> Option<Self> {
        let alone = nodes.iter().map(|&id| &graph.node(id).op).find(|op| alone::stands_alone(op));
        match alone {
            Some(PrimOp::Recurrence(_)) => {
                return RecurrenceProgram::of(graph, nodes, outputs, storage, name).map(Self::Recurrence);
            }
            Some(PrimOp::Opaque(opaque)) if matches!(opaque.kind, OpaqueKind::Cumulative(_)) => {
                return CumulativeProgram::of(graph, nodes, storage, name).map(Self::Cumulative);
            }
            Some(PrimOp::Opaque(_)) => {
                return SelectionProgram::of(graph, nodes, outputs, storage, name).map(Self::Selection);
            }
            Some(_) => return ScatterProgram::of(graph, nodes, storage, name).map(Self::Scatter),
            None => {}
        }
        fuse::build_stored(graph, nodes, outputs, storage, name).ok().map(Self::Block)
    }

    /// The same with an output in the memory of an input, which it is a new value of: see [`BlockProgram::updated`]. `None` if it cannot
    /// be there.
    pub fn updated(&self, input: ArgId, output: ArgId) -> Option<Self> {
        match self {
            Self::Block(block) => block.updated(input, output).map(Self::Block),
            Self::Scatter(scatter)
                if scatter.data == ScatterData::Tensor(input) && output == ScatterProgram::RESULT =>
            {
                scatter.updated().map(Self::Scatter)
            }
            Self::Scatter(_) | Self::Recurrence(_) | Self::Selection(_) | Self::Cumulative(_) => None,
        }
    }

    /// Its arguments.
    pub fn args(&self) -> &[Arg] {
        match self {
            Self::Block(block) => &block.args,
            Self::Recurrence(recurrence) => &recurrence.args,
            Self::Selection(selection) => &selection.args,
            Self::Cumulative(cumulative) => &cumulative.args,
            Self::Scatter(scatter) => &scatter.args,
        }
    }

    /// The block program, if it is one.
    pub fn block(&self) -> Option<&BlockProgram> {
        match self {
            Self::Block(block) => Some(block),
            Self::Recurrence(_) | Self::Selection(_) | Self::Cumulative(_) | Self::Scatter(_) => None,
        }
    }
}
