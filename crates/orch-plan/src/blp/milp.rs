//! A part as an integer program, for when dynamic programming meets its limit.
//!
//! Variables: `u_k` (binary, column `k` is chosen) and `a_c` in `[0, 1]` (class `c` is there). Rows:
//! - a required class is produced: `sum(u_k over its producers) >= 1`;
//! - a class is there only if produced: `a_c <= sum(u_k over its producers)`;
//! - a column runs only if its inputs are there: `u_k <= a_c`;
//! - *coverage*: a node that every plan executes is executed: `sum(u_k over columns that execute it) >= 1`. Redundant
//!   for integers, but without it the linear relaxation halves demand at every step and bounds nothing;
//! - *cuts*, added when a solution cannot be executed: if the chosen columns derive only the classes `R`, some column
//!   must lead out: `sum(u_k over k that read only R and produce something else) >= 1`.

use super::execute::derivable;
use super::greedy::{Selection, pruned};
use super::instance::Instance;
use super::structure::Forced;
use crate::solver::{Milp, Row, Solver, SolverError, SolverLimits, SolverStatus, Variable};

/// Rounds of cuts before the proof is given up.
const MAX_CUT_ROUNDS: usize = 200;

/// What the integer program found.
pub(super) struct MilpResult {
    /// A choice lighter than the start, if one was found.
    pub better: Option<Selection>,
    /// No choice costs less, in microseconds.
    pub bound_us: f64,
    /// Branch-and-bound nodes, and simplex pivots of all of them.
    pub nodes: u64,
    pub pivots: u64,
}

/// Solves a part as an integer program, starting from a choice.
pub(super) fn solve(
    instance: &Instance,
    forced: &Forced,
    start: &Selection,
    solver: &dyn Solver,
    limits: SolverLimits,
) -> Result<MilpResult, SolverError> {
    let mut program = formulate(instance, forced);
    let mut result = MilpResult { better: None, bound_us: 0.0, nodes: 0, pivots: 0 };
    for _ in 0..MAX_CUT_ROUNDS {
        let best = result.better.as_ref().unwrap_or(start);
        let left = SolverLimits { pivots: limits.pivots.saturating_sub(result.pivots) };
        let outcome = solver.solve(&program, Some(&values(instance, best)), left)?;
        result.nodes += outcome.nodes;
        result.pivots += outcome.pivots;
        if outcome.status == SolverStatus::Infeasible {
            // The start is a solution, so the solver is wrong; nothing is learnt.
            break;
        }
        result.bound_us = result.bound_us.max(outcome.bound);
        if outcome.values.is_empty() {
            break;
        }
        let chosen =
            (0..instance.columns.len() as u32).filter(|&column| outcome.values[column as usize] > 0.5);
        let chosen = Selection::new(instance, chosen.collect());
        let is_there = derivable(instance, |column| chosen.contains(column));
        if instance.required.iter().all(|&class| is_there[class as usize]) {
            let found = pruned(instance, chosen);
            if found.weight < best.weight {
                result.better = Some(found);
            }
            break;
        }
        program.rows.push(way_out(instance, &is_there));
    }
    Ok(result)
}

/// The program without cuts.
fn formulate(instance: &Instance, forced: &Forced) -> Milp {
    let producers = instance.producers();
    let mut program = Milp::default();
    for column in &instance.columns {
        let cost = column.weight.microseconds();
        program.variables.push(Variable { cost, lower: 0.0, upper: 1.0, is_integer: true });
    }
    let read = instance.readers();
    let mut there = vec![u32::MAX; instance.classes];
    for class in (0..instance.classes).filter(|&class| !read[class].is_empty()) {
        there[class] = program.variables.len() as u32;
        program.variables.push(Variable { cost: 0.0, lower: 0.0, upper: 1.0, is_integer: false });
        let mut terms: Vec<(u32, f64)> = producers[class].iter().map(|&column| (column, 1.0)).collect();
        terms.push((there[class], -1.0));
        program.rows.push(at_least(terms, 0.0));
    }
    for &class in &instance.required {
        let terms = producers[class as usize].iter().map(|&column| (column, 1.0)).collect();
        program.rows.push(at_least(terms, 1.0));
    }
    for (index, column) in instance.columns.iter().enumerate() {
        for &class in &column.inputs {
            program.rows.push(at_least(vec![(there[class as usize], 1.0), (index as u32, -1.0)], 0.0));
        }
    }
    program.rows.extend(coverage(instance, forced));
    program
}

fn coverage(instance: &Instance, forced: &Forced) -> Vec<Row> {
    let mut executors: Vec<Vec<(u32, f64)>> = vec![Vec::new(); forced.nodes.len()];
    for (index, column) in instance.columns.iter().enumerate() {
        for &node in column.executes.iter().filter(|&&node| forced.nodes.contains(node as usize)) {
            executors[node as usize].push((index as u32, 1.0));
        }
    }
    executors.retain(|terms| !terms.is_empty());
    executors.sort_unstable_by(|left, right| left.partial_cmp(right).expect("coefficients are 1"));
    executors.dedup();
    executors.into_iter().map(|terms| at_least(terms, 1.0)).collect()
}

/// Some column must lead out of the derived classes.
fn way_out(instance: &Instance, is_there: &[bool]) -> Row {
    let leads_out = |index: &usize| {
        let column = &instance.columns[*index];
        column.inputs.iter().all(|&class| is_there[class as usize])
            && column.outputs.iter().any(|&class| !is_there[class as usize])
    };
    let columns = (0..instance.columns.len()).filter(leads_out);
    at_least(columns.map(|column| (column as u32, 1.0)).collect(), 1.0)
}

fn at_least(terms: Vec<(u32, f64)>, lower: f64) -> Row {
    Row { terms, lower, upper: f64::INFINITY }
}

/// The values of the program's variables for a choice.
fn values(instance: &Instance, chosen: &Selection) -> Vec<f64> {
    let is_there = derivable(instance, |column| chosen.contains(column));
    let read = instance.readers();
    let columns = (0..instance.columns.len()).map(|column| f64::from(u8::from(chosen.contains(column))));
    let classes = (0..instance.classes).filter(|&class| !read[class].is_empty());
    columns.chain(classes.map(|class| f64::from(u8::from(is_there[class])))).collect()
}
