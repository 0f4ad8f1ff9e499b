//! Stage "choose", for plans of few kernels: alternatives that cost little more than the cheapest plan.
//!
//! The cost of a plan is the sum of its columns' times, each alone. But kernels overlap: on a GPU one is launched while those before
//! it run, and reads meanwhile what they do not write, so that small kernels before one that streams weights cost next to
//! nothing, and kernels that wait for each other more than their own time. Where a plan has few kernels, alternatives are
//! built as well, and [`end_to_end`](super::end_to_end) selects one. (128 rows by an operand of 4096 x 4096, and by two of rank 16
//! beside it, take 19.1 us on an H200 as three kernels, and as two, whose sum is less, 25.1.)

use super::select::{NEVER_US, Solve};
use crate::Error;
use crate::plan::candidates::CandidateColumn;
use orch_plan::blp::Choice;
use std::collections::BTreeSet;

/// Columns of a plan, at most: where there are more, two plans differ in a small part of the whole.
const MOST_COLUMNS: usize = 8;

/// Plans that are timed, at most.
const MOST_PLANS: usize = 8;

/// Solves, at most.
const MOST_SOLVES: usize = 40;

/// Plans cost at most so many times what the best one costs.
const CLOSE: f64 = 1.35;

/// Plans in ascending order of cost, `best` first: each is solved without a column of a plan found before, or without all columns
/// that compute the same units as that one.
///
/// # Errors
/// Those of solving.
pub fn alternatives(
    columns: &[CandidateColumn],
    best: Choice,
    costs: &[f64],
    solve: &mut Solve<'_>,
) -> Result<Vec<Choice>, Error> {
    let limit_us = CLOSE * best.objective_us;
    if best.columns.len() > MOST_COLUMNS {
        return Ok(vec![best]);
    }
    let mut found: Vec<(Choice, BTreeSet<usize>)> = vec![(best, BTreeSet::new())];
    let (mut expanded, mut solves) = (0, 0);
    while expanded < found.len() && found.len() < MOST_PLANS {
        let (choice, without) = found[expanded].clone();
        expanded += 1;
        let mut next = Vec::new();
        for number in choice.columns.iter().map(|id| id.index()) {
            let nodes = &columns[number].candidate.nodes;
            let same = (0..columns.len()).filter(|&other| columns[other].candidate.nodes == *nodes).collect();
            for mut left_out in [BTreeSet::from([number]), same] {
                left_out.extend(&without);
                if solves == MOST_SOLVES {
                    break;
                }
                solves += 1;
                let cost = |(number, &cost)| if left_out.contains(&number) { NEVER_US } else { cost };
                let other = solve(&costs.iter().enumerate().map(cost).collect::<Vec<f64>>())?;
                if other.objective_us <= limit_us {
                    next.push((other, left_out));
                }
            }
        }
        next.sort_by(|(a, _), (b, _)| a.objective_us.total_cmp(&b.objective_us));
        for other in next {
            let is_known = found.iter().any(|(known, _)| are_same(known, &other.0));
            if !is_known && found.len() < MOST_PLANS {
                found.push(other);
            }
        }
    }
    Ok(found.into_iter().map(|(choice, _)| choice).collect())
}

fn are_same(a: &Choice, b: &Choice) -> bool {
    let set = |choice: &Choice| choice.columns.iter().copied().collect::<BTreeSet<_>>();
    set(a) == set(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::{NodeId, TensorId};
    use orch_plan::blp::{self, ChooseOptions, Problem};
    use orch_plan::enumerate::Candidate;

    /// Columns of a chain of units: the units `from..to`, and the cost.
    fn plans(all: &[(u32, u32, f64)], units: u32) -> Vec<Vec<usize>> {
        let column = |&(from, to, cost_us): &(u32, u32, f64)| {
            let candidate = Candidate {
                nodes: (from..to).map(NodeId).collect(),
                inputs: vec![TensorId(from)],
                outputs: vec![TensorId(to)],
                is_convex: true,
            };
            CandidateColumn::plain(candidate, cost_us, None)
        };
        let columns: Vec<CandidateColumn> = all.iter().map(column).collect();
        let mut solve = |costs: &[f64]| {
            let of = |(column, &cost): (&CandidateColumn, &f64)| {
                blp::Column::of_candidate(&column.candidate, cost)
            };
            let problem = Problem {
                classes: units as usize + 1,
                available: vec![TensorId(0).into()],
                required: vec![TensorId(units).into()],
                columns: columns.iter().zip(costs).map(of).collect(),
            };
            Ok(blp::choose(&problem, &ChooseOptions::default(), &orch_plan::solver::MicroLp).unwrap())
        };
        let costs: Vec<f64> = columns.iter().map(|column| column.cost_us).collect();
        let best = solve(&costs).unwrap();
        let found = alternatives(&columns, best, &costs, &mut solve).unwrap();
        found.iter().map(|choice| choice.columns.iter().map(|id| id.index()).collect()).collect()
    }

    #[test]
    fn other_columns_and_other_groups_are_alternatives() {
        // Two kernels for all units, of which one is left out alone and then both; two pairs; and what costs too much.
        let all =
            [(0, 3, 10.0), (0, 3, 10.5), (0, 1, 5.0), (1, 3, 6.0), (0, 2, 6.0), (2, 3, 5.5), (0, 3, 20.0)];
        assert_eq!(plans(&all, 3), [vec![0], vec![1], vec![2, 3], vec![4, 5]]);
        assert_eq!(plans(&all[..1], 3), [vec![0]]);
    }

    #[test]
    fn long_plans_have_no_alternatives() {
        let step = |at: u32| (at, at + 1, 1.0);
        let mut all: Vec<(u32, u32, f64)> = (0..9).map(step).collect();
        all.push((0, 1, 1.1));
        assert_eq!(plans(&all, 9).len(), 1);
        all.remove(8);
        assert_eq!(plans(&all, 8).len(), 2);
    }
}
