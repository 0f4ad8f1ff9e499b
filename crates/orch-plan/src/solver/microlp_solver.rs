//! The default solver: `microlp`, plain Rust.

use super::{Milp, Row, Solver, SolverError, SolverLimits, SolverOutcome, SolverStatus};
use microlp::{
    ComparisonOp, Error, LinearExpr, OptimizationDirection, Problem, SolutionStatus, SolveOptions,
    SolveOutcome, TerminationReason, Variable,
};

/// `microlp`'s simplex and branch and bound. Good for some thousand columns.
#[derive(Clone, Copy, Debug, Default)]
pub struct MicroLp;

impl Solver for MicroLp {
    fn name(&self) -> &str {
        "microlp"
    }

    fn solve(
        &self,
        program: &Milp,
        start: Option<&[f64]>,
        limits: SolverLimits,
    ) -> Result<SolverOutcome, SolverError> {
        let (problem, variables) = build(program);
        let mut options = SolveOptions::default();
        options.node_limit = Some(1);
        options.warm_start =
            start.map(|values| variables.iter().copied().zip(values.iter().copied()).collect());
        match problem.solve_with(options).and_then(|outcome| within(outcome, limits)) {
            Ok(outcome) => Ok(read(&outcome, &variables)),
            Err(Error::Infeasible) => Ok(SolverOutcome {
                status: SolverStatus::Infeasible,
                values: Vec::new(),
                bound: f64::INFINITY,
                nodes: 0,
                pivots: 0,
            }),
            Err(error) => Err(SolverError { solver: self.name().to_owned(), reason: error.to_string() }),
        }
    }
}

/// Solves further nodes while there are pivots left.
fn within(mut outcome: SolveOutcome, limits: SolverLimits) -> Result<SolveOutcome, Error> {
    while outcome.termination_reason() == TerminationReason::NodeLimit
        && outcome.stats().lp_iterations < limits.pivots
    {
        outcome = outcome.resume()?;
    }
    Ok(outcome)
}

fn build(program: &Milp) -> (Problem, Vec<Variable>) {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let variables: Vec<Variable> = program
        .variables
        .iter()
        .map(|variable| {
            let range = (variable.lower, variable.upper);
            if variable.is_integer && range == (0.0, 1.0) {
                problem.add_binary_var(variable.cost)
            } else if variable.is_integer {
                // Saturates: integers beyond 32 bits do not occur in programs of choice.
                problem.add_integer_var(variable.cost, (range.0 as i32, range.1 as i32))
            } else {
                problem.add_var(variable.cost, range)
            }
        })
        .collect();
    for row in &program.rows {
        add_row(&mut problem, &variables, row);
    }
    (problem, variables)
}

fn add_row(problem: &mut Problem, variables: &[Variable], row: &Row) {
    let mut sum = LinearExpr::empty();
    for &(variable, factor) in &row.terms {
        sum.add(variables[variable as usize], factor);
    }
    if row.lower == row.upper {
        problem.add_constraint(sum, ComparisonOp::Eq, row.lower);
        return;
    }
    if row.lower > f64::NEG_INFINITY {
        problem.add_constraint(sum.clone(), ComparisonOp::Ge, row.lower);
    }
    if row.upper < f64::INFINITY {
        problem.add_constraint(sum, ComparisonOp::Le, row.upper);
    }
}

fn read(outcome: &SolveOutcome, variables: &[Variable]) -> SolverOutcome {
    let stats = outcome.stats();
    let bound = stats.best_bound.unwrap_or(f64::NEG_INFINITY);
    let (status, values) = match outcome.solution() {
        Some(solution) => {
            let status = match solution.status() {
                SolutionStatus::Optimal => SolverStatus::Optimal,
                SolutionStatus::Feasible => SolverStatus::Feasible,
            };
            (status, variables.iter().map(|&variable| solution.var_value(variable)).collect())
        }
        None => (SolverStatus::Unknown, Vec::new()),
    };
    SolverOutcome { status, values, bound, nodes: stats.nodes_solved, pivots: stats.lp_iterations }
}
