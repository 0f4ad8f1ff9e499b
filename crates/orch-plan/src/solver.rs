//! Mixed-integer linear programs, and the interface of their solvers.
//!
//! [`MicroLp`] is plain Rust. A solver that needs foreign calls, which this crate forbids itself, can implement [`Solver`]
//! elsewhere.

mod microlp_solver;

pub use microlp_solver::MicroLp;

/// A variable of a [`Milp`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Variable {
    /// Coefficient in the objective.
    pub cost: f64,
    /// Smallest value.
    pub lower: f64,
    /// Largest value.
    pub upper: f64,
    /// Whether the value must be whole.
    pub is_integer: bool,
}

/// A constraint of a [`Milp`]: `lower <= sum(coefficient * variable) <= upper`; bounds may be infinite.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// Variables (positions, each once) with coefficients.
    pub terms: Vec<(u32, f64)>,
    /// Smallest sum.
    pub lower: f64,
    /// Largest sum.
    pub upper: f64,
}

/// Minimise the summed cost of variables subject to rows.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Milp {
    /// Variables; a position here is what rows name.
    pub variables: Vec<Variable>,
    /// Constraints.
    pub rows: Vec<Row>,
}

/// When to stop: never by the clock, so that equal programs have equal results.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SolverLimits {
    /// Simplex pivots of all branch-and-bound nodes together. The node that exceeds them is the last.
    pub pivots: u64,
}

/// What a solver says of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SolverStatus {
    /// The values are an optimal solution.
    Optimal,
    /// The values are a solution; a limit stopped the proof.
    Feasible,
    /// There is no solution.
    Infeasible,
    /// A limit was hit before a solution was found.
    Unknown,
}

/// The end of a solve.
#[derive(Clone, PartialEq, Debug)]
pub struct SolverOutcome {
    /// What is known.
    pub status: SolverStatus,
    /// A value per variable; empty without a solution.
    pub values: Vec<f64>,
    /// No solution costs less; negative infinity if nothing is known.
    pub bound: f64,
    /// Branch-and-bound nodes solved.
    pub nodes: u64,
    /// Simplex pivots of all of them.
    pub pivots: u64,
}

impl Milp {
    /// The cost of some values.
    pub fn objective(&self, values: &[f64]) -> f64 {
        self.variables.iter().zip(values).map(|(variable, value)| variable.cost * value).sum()
    }

    /// How much values violate the bounds and rows, at most.
    pub fn violation(&self, values: &[f64]) -> f64 {
        let outside = |value: f64, lower: f64, upper: f64| (lower - value).max(value - upper).max(0.0);
        let variables = self
            .variables
            .iter()
            .zip(values)
            .map(|(variable, &value)| outside(value, variable.lower, variable.upper));
        let rows = self.rows.iter().map(|row| {
            let sum = row.terms.iter().map(|&(variable, factor)| factor * values[variable as usize]).sum();
            outside(sum, row.lower, row.upper)
        });
        variables.chain(rows).fold(0.0, f64::max)
    }
}

/// Solves mixed-integer linear programs.
pub trait Solver {
    /// The name in reports.
    fn name(&self) -> &str;

    /// Solves a program. `start` is a solution to begin with (which a solver may ignore).
    ///
    /// # Errors
    /// If the solver fails, as opposed to finding that there is no solution.
    fn solve(
        &self,
        program: &Milp,
        start: Option<&[f64]>,
        limits: SolverLimits,
    ) -> Result<SolverOutcome, SolverError>;
}

/// A solver's failure.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{solver} failed: {reason}")]
pub struct SolverError {
    /// The solver's name.
    pub solver: String,
    /// What it says.
    pub reason: String,
}
