//! The chosen candidates, and the kernels and columns that they become.

use super::kernel::KernelDesign;
use super::substitute::Substitute;
use super::updated::{InPlace, UpdatedTensor};
use orch_ir::{NodeId, Tensor, TensorId};
use orch_mugraph::Certificate;
use orch_plan::enumerate::Candidate;
use std::collections::BTreeMap;

/// A candidate that was chosen.
#[derive(Clone)]
pub struct Chosen {
    /// The units and tensors.
    pub candidate: Candidate,
    /// The µGraph that computes them; `None` for kernels of templates and host routines.
    pub substitute: Option<Substitute>,
}

/// What the plan runs.
#[derive(Default)]
pub struct Implementation {
    /// Distinct kernels, in the order of their first use.
    pub kernels: Vec<KernelDesign>,
    /// What runs, in order.
    pub columns: Vec<PlannedColumn>,
    /// For each column the number of its group: columns of a group are consecutive, do not depend on each other, and share no memory that
    /// one of them writes. Empty if each is one by itself.
    pub groups: Vec<usize>,
    /// Shapes of the f32 tensors between the kernels of substitutes; their ids follow those of the graph's tensors.
    pub inner: Vec<Vec<usize>>,
    /// Tensors that depend on constants alone and are read: they become constants.
    pub known: BTreeMap<TensorId, Tensor>,
    /// Proofs of substitutes.
    pub proofs: Vec<Certificate>,
    /// Uses of substitutes.
    pub parts: Vec<PlannedPart>,
    /// Outputs of the model that are in the memory of its inputs, whose new values they are.
    pub updates: Vec<UpdatedTensor>,
    /// Tensors of the arena that are in the memory of others, in the order of the columns that write them.
    pub in_place: Vec<InPlace>,
}

impl Implementation {
    /// The group of a column.
    pub fn group(&self, column: usize) -> usize {
        self.groups.get(column).copied().unwrap_or(column)
    }
}

/// A use of a substitute.
pub struct PlannedPart {
    /// The number of its proof.
    pub proof: usize,
    /// The µGraph, and where its inputs and its output are.
    pub substitute: Substitute,
    /// The column of each kernel of the µGraph, in its order: indices into [`Implementation::columns`].
    pub columns: Vec<usize>,
}

/// One launch of a kernel, or one host routine.
pub struct PlannedColumn {
    /// Primitives that it executes, free ones included.
    pub nodes: Vec<NodeId>,
    /// Tensors that it reads.
    pub inputs: Vec<TensorId>,
    /// Tensors that it writes.
    pub outputs: Vec<TensorId>,
    /// How it runs.
    pub body: ColumnBody,
    /// Modelled time.
    pub cost_us: f64,
    /// Time measured while tuning.
    pub measured_us: Option<f64>,
    /// For kernels of a substitute the number of its proof.
    pub proof: Option<usize>,
}

impl PlannedColumn {
    /// The number of its kernel; `None` for host routines.
    pub fn kernel(&self) -> Option<usize> {
        match self.body {
            ColumnBody::Kernel { kernel, .. } => Some(kernel),
            ColumnBody::Host => None,
        }
    }
}

/// How a column runs.
pub enum ColumnBody {
    /// As a kernel.
    Kernel {
        /// Index into [`Implementation::kernels`].
        kernel: usize,
        /// The tensor of each argument of the kernel's block program or µGraph.
        args: Vec<TensorId>,
    },
    /// As a host routine: the primitives of one unit, interpreted.
    Host,
}
