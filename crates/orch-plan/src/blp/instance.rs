//! The program inside the solver: indices instead of ids, exact weights instead of times, nothing that is available.

use super::{BlpError, ClassId, ColumnId, Problem};
use std::ops::Add;

/// Costs above this (a quarter of an hour) count as this, so that thousands of weights can be summed.
const MAX_COST_US: f64 = 1e9;

/// The unit of [`Weight`].
pub(super) const PICOSECONDS_PER_US: f64 = 1e6;

/// What a set of columns costs, compared in the order of the fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub(super) struct Weight {
    pub picoseconds: u64,
    pub kernels: u32,
    pub nodes: u32,
}

impl Weight {
    pub const ZERO: Weight = Weight { picoseconds: 0, kernels: 0, nodes: 0 };

    /// Above the weight of every choice.
    pub const INFINITE: Weight = Weight { picoseconds: u64::MAX, kernels: u32::MAX, nodes: u32::MAX };

    /// A lower bound in whole picoseconds.
    pub fn from_bound(microseconds: f64) -> Self {
        Weight { picoseconds: (microseconds * PICOSECONDS_PER_US).floor().max(0.0) as u64, ..Weight::ZERO }
    }

    pub fn microseconds(self) -> f64 {
        self.picoseconds as f64 / PICOSECONDS_PER_US
    }
}

impl Add for Weight {
    type Output = Weight;

    /// Saturates, so that it is infinite if a term is.
    fn add(self, other: Weight) -> Weight {
        Weight {
            picoseconds: self.picoseconds.saturating_add(other.picoseconds),
            kernels: self.kernels.saturating_add(other.kernels),
            nodes: self.nodes.saturating_add(other.nodes),
        }
    }
}

impl std::iter::Sum for Weight {
    fn sum<I: Iterator<Item = Weight>>(iter: I) -> Weight {
        iter.fold(Weight::ZERO, Add::add)
    }
}

/// A column of an [`Instance`]. Lists are ascending and without repetition; inputs and outputs are disjoint.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Col {
    pub source: ColumnId,
    pub weight: Weight,
    pub inputs: Vec<u32>,
    pub outputs: Vec<u32>,
    pub executes: Vec<u32>,
}

/// A program without available classes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Instance {
    pub classes: usize,
    /// Ascending, without repetition.
    pub required: Vec<u32>,
    pub columns: Vec<Col>,
}

/// A program in numbers of its own, with a choice that is known: the same wherever it lies in a larger program.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Subprogram {
    /// Each column's source is its position here.
    pub instance: Instance,
    /// Columns of the known choice, ascending.
    pub known: Vec<ColumnId>,
}

impl Subprogram {
    /// The subprogram of an instance whose classes and nodes have numbers of their own, and the sources of its columns. `known`: the
    /// sources, ascending, of columns that are chosen now, and of others.
    pub fn new(mut instance: Instance, known: &[ColumnId]) -> (Self, Vec<ColumnId>) {
        let mut sources = Vec::with_capacity(instance.columns.len());
        let mut own = Vec::new();
        for (position, column) in (0..).map(ColumnId).zip(&mut instance.columns) {
            if known.binary_search(&column.source).is_ok() {
                own.push(position);
            }
            sources.push(std::mem::replace(&mut column.source, position));
        }
        (Subprogram { instance, known: own }, sources)
    }
}

impl Instance {
    /// Checks a problem and strips what is available from it.
    pub fn new(problem: &Problem) -> Result<Self, BlpError> {
        let mut is_available = vec![false; problem.classes];
        for &class in &problem.available {
            check_class(class, problem.classes)?;
            is_available[class.index()] = true;
        }
        let wanted = |classes: &[ClassId]| -> Result<Vec<u32>, BlpError> {
            let mut list = Vec::with_capacity(classes.len());
            for &class in classes {
                check_class(class, problem.classes)?;
                if !is_available[class.index()] {
                    list.push(class.0);
                }
            }
            list.sort_unstable();
            list.dedup();
            Ok(list)
        };
        let required = wanted(&problem.required)?;
        let mut columns = Vec::with_capacity(problem.columns.len());
        for (index, column) in problem.columns.iter().enumerate() {
            let source = ColumnId(u32::try_from(index).expect("fewer than 2^32 columns"));
            if !(0.0..f64::INFINITY).contains(&column.cost_us) {
                return Err(BlpError::Cost { column: source, cost_us: column.cost_us });
            }
            if column.outputs.is_empty() {
                return Err(BlpError::NoOutputs { column: source });
            }
            let inputs = wanted(&column.inputs)?;
            let mut outputs = wanted(&column.outputs)?;
            outputs.retain(|class| inputs.binary_search(class).is_err());
            let mut executes: Vec<u32> = column.executes.iter().map(|node| node.0).collect();
            executes.sort_unstable();
            executes.dedup();
            let weight = Weight {
                picoseconds: (column.cost_us.min(MAX_COST_US) * PICOSECONDS_PER_US).round() as u64,
                kernels: column.kernels,
                nodes: executes.len() as u32,
            };
            if !outputs.is_empty() {
                columns.push(Col { source, weight, inputs, outputs, executes });
            }
        }
        Ok(Instance { classes: problem.classes, required, columns })
    }

    /// For each class the columns that produce it, ascending.
    pub fn producers(&self) -> Vec<Vec<u32>> {
        let mut producers = vec![Vec::new(); self.classes];
        for (index, column) in self.columns.iter().enumerate() {
            for &class in &column.outputs {
                producers[class as usize].push(index as u32);
            }
        }
        producers
    }

    /// For each class the columns that read it, ascending.
    pub fn readers(&self) -> Vec<Vec<u32>> {
        let mut readers = vec![Vec::new(); self.classes];
        for (index, column) in self.columns.iter().enumerate() {
            for &class in &column.inputs {
                readers[class as usize].push(index as u32);
            }
        }
        readers
    }

    /// Keeps the columns for which `keep` holds.
    pub fn retain(&mut self, keep: &[bool]) {
        let mut index = 0;
        self.columns.retain(|_| {
            index += 1;
            keep[index - 1]
        });
    }
}

fn check_class(class: ClassId, classes: usize) -> Result<(), BlpError> {
    if class.index() < classes { Ok(()) } else { Err(BlpError::UnknownClass { class, classes }) }
}
