//! What was chosen, and how well.

use super::problem::{ClassId, ColumnId, Problem};
use std::time::Duration;

/// How hard to try. With a time limit, results may differ between runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChooseOptions {
    /// A choice counts as optimal if it is proven that none costs less by more than this share. Costs are known far
    /// less precisely than the default.
    pub relative_gap: f64,
    /// Most sets of demanded classes that dynamic programming may expand, beyond the few that each part needs for a
    /// choice to begin with.
    pub max_states: usize,
    /// Most columns that these sets may try in all: where many kernels produce each tensor, a set tries hundreds.
    pub max_steps: usize,
    /// Parts with more columns are not handed to the integer program, which would find nothing in reasonable time.
    pub max_solver_columns: usize,
    /// Simplex pivots of all integer programs together, each times the columns of its program: a second is five to ten million of these.
    pub max_solver_work: usize,
}

impl Default for ChooseOptions {
    fn default() -> Self {
        ChooseOptions {
            relative_gap: 1e-6,
            max_states: 100_000,
            max_steps: 1_000_000,
            max_solver_columns: 3000,
            max_solver_work: 20_000_000,
        }
    }
}

/// How good a choice is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// No choice is better, within [`ChooseOptions::relative_gap`].
    Optimal,
    /// A limit stopped the proof; [`Choice::bound_us`] says how much better a choice might be.
    Feasible,
    /// No choice produces the classes in [`Choice::underivable`].
    Infeasible,
}

/// A solution of a [`Problem`].
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// How good it is.
    pub status: Status,
    /// Summed cost of the chosen columns; infinite if there are none to choose.
    pub objective_us: f64,
    /// No choice costs less.
    pub bound_us: f64,
    /// The chosen columns in an executable order, each once.
    pub columns: Vec<ColumnId>,
    /// For each class the chosen column that produces it first, if one does.
    pub producers: Vec<Option<ColumnId>>,
    /// Required classes that no columns can produce.
    pub underivable: Vec<ClassId>,
    /// How it was found.
    pub report: ChooseReport,
}

impl Choice {
    /// How much the objective may exceed the optimum, relative to it.
    pub fn gap(&self) -> f64 {
        if self.objective_us <= self.bound_us {
            0.0
        } else {
            (self.objective_us - self.bound_us) / self.bound_us.max(f64::MIN_POSITIVE)
        }
    }

    /// For each class the positions in [`Choice::columns`] between which it must be kept; `None` for classes that no
    /// column produces. Required classes are kept to the end, unread ones only where they are written.
    pub fn lives(&self, problem: &Problem) -> Vec<Option<Life>> {
        let mut lives: Vec<Option<Life>> = vec![None; problem.classes];
        for (position, id) in (0..).zip(&self.columns) {
            let column = &problem.columns[id.index()];
            for class in column.inputs.iter().chain(&column.outputs) {
                let is_first = self.producers[class.index()] == Some(*id);
                match &mut lives[class.index()] {
                    Some(life) => life.last = position,
                    life if is_first => *life = Some(Life { first: position, last: position }),
                    _ => {}
                }
            }
        }
        let end = (self.columns.len() as u32).saturating_sub(1);
        for class in &problem.required {
            if let Some(life) = &mut lives[class.index()] {
                life.last = end;
            }
        }
        lives
    }
}

/// When a class must be kept, in positions of the execution order, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// The column that writes it.
    pub first: u32,
    /// The last column that reads it.
    pub last: u32,
}

/// Sizes and effort of a solve.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ChooseReport {
    /// Columns given.
    pub columns: usize,
    /// Columns left by the reductions.
    pub columns_reduced: usize,
    /// Classes that every plan produces and at which the program was cut.
    pub cut_classes: usize,
    /// Independent parts.
    pub parts: usize,
    /// Columns of the largest part.
    pub largest_part_columns: usize,
    /// Sets of demanded classes expanded by dynamic programming.
    pub states: usize,
    /// Columns that these sets tried.
    pub steps: usize,
    /// Parts that were handed to the integer-program solver.
    pub parts_by_solver: usize,
    /// Parts whose choice is not proven optimal.
    pub parts_unproven: usize,
    /// Branch-and-bound nodes of the integer-program solver.
    pub solver_nodes: u64,
    /// Wall-clock time of everything.
    pub time: Duration,
}
