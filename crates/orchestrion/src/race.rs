//! Stage "race": plans of few kernels that should take about as long, timed whole.
//!
//! The cost of a plan is a sum of times of its columns, each by itself. But kernels overlap: on a GPU one is launched while
//! those before it run, and reads meanwhile what they do not write, so that small kernels before one that streams weights cost
//! next to nothing, and kernels that wait for each other more than they take. Where a plan has few kernels, others that cost
//! little more are built as well, and the one that takes the least time as a whole is taken. (128 rows by a factor
//! of 4096 x 4096, and by two of rank 16 beside it, take 19.1 us on an H200 as three kernels, and as two, whose sum is less, 25.1.)

use crate::backend::noise;
use crate::candidates::Column;
use crate::executable::{DeviceCache, RunOptions};
use crate::manifest::{Port, typed};
use crate::tune::{Solve, fastest};
use crate::{Artifact, Error, Executable, Options};
use orch_plan::blp::Choice;
use orch_tune::{Database, Key};
use std::collections::BTreeSet;

/// Columns of a plan, at most: where there are more, two plans differ in a small part of the whole.
const MOST_COLUMNS: usize = 8;

/// Plans that are timed, at most.
const MOST_PLANS: usize = 8;

/// Solves, at most.
const MOST_SOLVES: usize = 40;

/// Plans cost at most so many times what the best one costs.
const CLOSE: f64 = 1.35;

/// What a column costs that is not to be taken.
const NEVER_US: f64 = 1e9;

/// Rounds of the race, and runs of each plan in each but the first; one if a run takes so many microseconds.
const ROUNDS: usize = 8;
const RUNS: usize = 10;
const LONG_US: f64 = 1000.0;

/// A plan's time as a whole: what it is kept under, and what it is if that is known.
pub struct Whole {
    /// The columns and their schedules, on this machine.
    pub key: Key,
    /// Microseconds.
    pub time_us: Option<f64>,
}

/// A plan, and those that come next by costs: each does without a column of one found before, or without all columns that
/// compute the same as that one. The first is the given one.
///
/// # Errors
/// Those of solving.
pub fn rivals(
    columns: &[Column],
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

/// The number of the fastest plan. Plans without a time lose.
pub fn winner(times: &[Option<f64>]) -> usize {
    fastest(times).map_or(0, |(number, _)| number)
}

/// The times that there are, the winner's first; none if it has none.
pub fn ordered(mut times: Vec<Option<f64>>, winner: usize) -> Vec<f64> {
    match times.get_mut(..=winner) {
        Some(first) if first[winner].is_some() => first.rotate_right(1),
        _ => return Vec::new(),
    }
    times.into_iter().flatten().collect()
}

/// Microseconds of a run of each artifact, on noise and with nothing of it in the GPU's cache; `None` of those that the
/// device does not take. The times are kept.
///
/// # Errors
/// If the device fails.
pub fn times(artifacts: &[Artifact], plans: &[Whole], options: &Options) -> Result<Vec<Option<f64>>, Error> {
    let run_options = RunOptions { cuda: options.cuda.clone(), ..RunOptions::default() };
    let load = |artifact: &Artifact| -> Result<Executable, Error> {
        let mut executable = Executable::load(artifact.clone(), run_options.clone())?;
        let ports = &artifact.manifest;
        let inputs: Vec<Vec<u8>> = ports.inputs.iter().map(any_value).collect::<Result<_, _>>()?;
        let mut outputs: Vec<Vec<u8>> = ports.outputs.iter().map(any_value).collect::<Result<_, _>>()?;
        let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let mut taken: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        executable.run_bytes(&given, &mut taken)?;
        Ok(executable)
    };
    // Several may be more than the device's memory holds.
    let mut executables: Vec<Option<Executable>> =
        artifacts.iter().map(|artifact| load(artifact).ok()).collect();
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); artifacts.len()];
    for _ in 0..ROUNDS {
        for (executable, times) in executables.iter_mut().zip(&mut times) {
            if let Some(executable) = executable {
                let runs = if times.first().is_some_and(|&us| us < LONG_US) { RUNS } else { 1 };
                times.extend(executable.device_times_us(runs, DeviceCache::Cold)?);
            }
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied()
    };
    let times: Vec<Option<f64>> = times.into_iter().map(median).collect();
    if let Ok(database) = Database::open(&options.cache_dir) {
        for (plan, time) in plans.iter().zip(&times) {
            // A time that cannot be kept is measured again.
            let _ = time.map(|time| database.put(&plan.key, &time));
        }
    }
    Ok(times)
}

/// Noise for floats; zeros, which are indices of something, for others.
fn any_value(port: &Port) -> Result<Vec<u8>, Error> {
    let (dtype, shape) = typed(&port.dtype, &port.shape)?;
    let bytes = dtype.size_bytes() * shape.elems();
    Ok(if dtype.is_float() { noise(bytes) } else { vec![0; bytes] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::{NodeId, TensorId};
    use orch_plan::blp::{self, ChooseOptions, Problem};
    use orch_plan::enumerate::Candidate;

    /// Columns of a chain of units: the units `from..to`, and the cost.
    fn plans(all: &[(u32, u32, f64)], units: u32) -> Vec<Vec<usize>> {
        let column = |&(from, to, cost_us): &(u32, u32, f64)| Column {
            candidate: Candidate {
                nodes: (from..to).map(NodeId).collect(),
                inputs: vec![TensorId(from)],
                outputs: vec![TensorId(to)],
                is_convex: true,
            },
            substitute: None,
            cost_us,
            kernel: None,
        };
        let columns: Vec<Column> = all.iter().map(column).collect();
        let mut solve = |costs: &[f64]| {
            let of = |(column, &cost): (&Column, &f64)| blp::Column::of_candidate(&column.candidate, cost);
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
        let found = rivals(&columns, best, &costs, &mut solve).unwrap();
        found.iter().map(|choice| choice.columns.iter().map(|id| id.index()).collect()).collect()
    }

    #[test]
    fn other_columns_and_other_groups_are_rivals() {
        // Two kernels for all units, of which one is left out alone and then both; two pairs; and what costs too much.
        let all =
            [(0, 3, 10.0), (0, 3, 10.5), (0, 1, 5.0), (1, 3, 6.0), (0, 2, 6.0), (2, 3, 5.5), (0, 3, 20.0)];
        assert_eq!(plans(&all, 3), [vec![0], vec![1], vec![2, 3], vec![4, 5]]);
        assert_eq!(plans(&all[..1], 3), [vec![0]]);
    }

    #[test]
    fn long_plans_have_no_rivals() {
        let step = |at: u32| (at, at + 1, 1.0);
        let mut all: Vec<(u32, u32, f64)> = (0..9).map(step).collect();
        all.push((0, 1, 1.1));
        assert_eq!(plans(&all, 9).len(), 1);
        all.remove(8);
        assert_eq!(plans(&all, 8).len(), 2);
    }

    #[test]
    fn the_plan_of_the_least_sum_wins_unless_another_is_clearly_faster() {
        assert_eq!(winner(&[Some(10.0), Some(9.9), None]), 0);
        assert_eq!(winner(&[Some(10.0), Some(9.0), Some(8.0), None]), 2);
        assert_eq!(winner(&[None, Some(9.0)]), 1);
        assert_eq!(winner(&[None, None]), 0);
        assert_eq!(winner(&[]), 0);
        assert_eq!(ordered(vec![Some(10.0), Some(9.0), None, Some(8.0)], 3), [8.0, 10.0, 9.0]);
        assert_eq!(ordered(vec![None, None], 0), [0.0; 0]);
        assert_eq!(ordered(Vec::new(), 0), [0.0; 0]);
    }
}
