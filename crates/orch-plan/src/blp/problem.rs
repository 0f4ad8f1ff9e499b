//! What may be chosen, and from what.

use crate::dag::Dag;
use crate::enumerate::Candidate;
use orch_ir::{NodeId, TensorId};

/// What columns read and produce: a tensor, or a tensor in one of its layouts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClassId(pub u32);

/// A position in [`Problem::columns`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ColumnId(pub u32);

impl ClassId {
    /// The position of the class in tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl ColumnId {
    /// The position of the column in [`Problem::columns`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for ClassId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "c{}", self.0)
    }
}

impl std::fmt::Display for ColumnId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "k{}", self.0)
    }
}

/// One way to produce some classes from others.
#[derive(Clone, PartialEq, Debug)]
pub struct Column {
    /// Time of one execution in microseconds, launches included.
    pub cost_us: f64,
    /// Kernels launched; breaks ties.
    pub kernels: u32,
    /// Classes read.
    pub inputs: Vec<ClassId>,
    /// Classes produced, all of them.
    pub outputs: Vec<ClassId>,
    /// Nodes executed or, by a column that computes its outputs in another way, stood for. They break ties (by
    /// their number) and bound costs: the more all ways to produce a class have in common, the faster the solve.
    pub executes: Vec<NodeId>,
}

/// A program of kernel choice.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Problem {
    /// The number of classes.
    pub classes: usize,
    /// Classes that exist beforehand: graph inputs and constants.
    pub available: Vec<ClassId>,
    /// Classes that a plan must leave behind.
    pub required: Vec<ClassId>,
    /// What may be chosen.
    pub columns: Vec<Column>,
}

/// Why a [`Problem`] is not one. These are bugs of the caller.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant documents its fields")]
pub enum BlpError {
    /// A class id is out of range.
    #[error("{class} does not exist: the problem has {classes} classes")]
    UnknownClass { class: ClassId, classes: usize },
    /// A cost is negative or not finite.
    #[error("{column} costs {cost_us} us: costs are finite and not negative; leave out what cannot run")]
    Cost { column: ColumnId, cost_us: f64 },
    /// A column produces nothing.
    #[error("{column} has no outputs")]
    NoOutputs { column: ColumnId },
}

impl From<TensorId> for ClassId {
    /// The class of a tensor where layouts are not distinguished.
    fn from(tensor: TensorId) -> Self {
        ClassId(tensor.0)
    }
}

impl Problem {
    /// The program of a graph whose classes are its tensors, without columns yet.
    pub fn of_graph(dag: &Dag) -> Self {
        let tensors = (0..dag.tensor_count()).map(TensorId::new);
        let sources = tensors.filter(|&tensor| dag.producer(tensor).is_none());
        Problem {
            classes: dag.tensor_count(),
            available: sources.map(ClassId::from).collect(),
            required: dag.outputs().iter().copied().map(ClassId::from).collect(),
            columns: Vec::new(),
        }
    }
}

impl Column {
    /// The column of a candidate kernel where classes are tensors.
    pub fn of_candidate(candidate: &Candidate, cost_us: f64) -> Self {
        Column {
            cost_us,
            kernels: 1,
            inputs: candidate.inputs.iter().copied().map(ClassId::from).collect(),
            outputs: candidate.outputs.iter().copied().map(ClassId::from).collect(),
            executes: candidate.nodes.clone(),
        }
    }
}
