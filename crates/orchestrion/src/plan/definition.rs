//! What one kernel computes, before it has a schedule: a block program, or a recurrence over time.

use orch_compute::block::Arg;
use orch_compute::{BlockProgram, RecurrenceProgram, Storage, fuse};
use orch_ir::{NodeId, PrimGraph, PrimOp, TensorId};

/// The computation of one kernel.
pub enum KernelDefinition {
    /// Stages over axes.
    Block(BlockProgram),
    /// A recurrence of RNN, GRU or LSTM.
    Recurrence(RecurrenceProgram),
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
        if nodes.iter().any(|&id| matches!(graph.node(id).op, PrimOp::Recurrence(_))) {
            return RecurrenceProgram::of(graph, nodes, outputs, storage, name).map(Self::Recurrence);
        }
        fuse::build_stored(graph, nodes, outputs, storage, name).ok().map(Self::Block)
    }

    /// Its arguments.
    pub fn args(&self) -> &[Arg] {
        match self {
            Self::Block(block) => &block.args,
            Self::Recurrence(recurrence) => &recurrence.args,
        }
    }

    /// The block program, if it is one.
    pub fn block(&self) -> Option<&BlockProgram> {
        match self {
            Self::Block(block) => Some(block),
            Self::Recurrence(_) => None,
        }
    }
}
