//! Stage "tune", first half: measured costs where candidates are close.
//!
//! The kernels of the plan, and those that would replace a part of it at little more than its cost, are timed; then the program
//! is solved again with measured costs, until the choice needs no new measurement. The last choice has columns of the first one and
//! columns that were timed: a model that is wrong about a kernel makes no plan slower. What takes most of the run is timed first, because
//! time may be up before all is.

use crate::Error;
use crate::plan::candidates::{CandidateColumn, costs_us};
use orch_plan::blp::{Choice, ColumnId};
use std::collections::{BTreeMap, BTreeSet};

/// Solves at most.
const ROUNDS: usize = 3;

/// A candidate is close if it costs at most this many times what the plan spends on the same units.
const CLOSE: f64 = 1.25;

/// The same for µGraphs, whose costs are known less well.
const CLOSE_MUGRAPH: f64 = 1.6;

/// Kernels that a round measures at most, the closest ones.
const MAX_KERNELS: usize = 64;

/// What a column costs that is not to be taken.
pub const NEVER_US: f64 = 1e9;

/// How much less time another schedule or plan than the preferred one has to take.
pub const FASTER: f64 = 0.98;

/// Chooses with the costs of all columns.
pub type Solve<'a> = dyn FnMut(&[f64]) -> Result<Choice, Error> + 'a;

/// Microseconds of the kernels of some columns; `None` for those that are not measured.
pub type Measure<'a> = dyn FnMut(&[usize]) -> Result<Vec<Option<f64>>, Error> + 'a;

/// The choice by measured costs among columns that were timed and those of `choice`, which was made by modelled costs; and what was
/// measured, by kernel.
///
/// # Errors
/// Those of solving and measuring.
pub fn tune(
    columns: &[CandidateColumn],
    mut choice: Choice,
    solve: &mut Solve<'_>,
    measure: &mut Measure<'_>,
) -> Result<(Choice, BTreeMap<usize, f64>), Error> {
    let untuned: BTreeSet<ColumnId> = choice.columns.iter().copied().collect();
    let mut costs = costs_us(columns);
    let mut requested = BTreeSet::new();
    let mut measured = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut wanted = close(columns, &choice.columns, &costs);
        wanted.retain(|&column| columns[column].kernel.is_some_and(|kernel| requested.insert(kernel)));
        if wanted.is_empty() {
            break;
        }
        for (&column, time) in wanted.iter().zip(measure(&wanted)?) {
            measured.extend(columns[column].kernel.zip(time));
        }
        costs = mixed(columns, &measured);
        choice = solve(&costs)?;
    }
    let is_allowed = |id: &ColumnId| {
        let kernel = columns[id.index()].kernel;
        untuned.contains(id) || kernel.is_none_or(|kernel| measured.contains_key(&kernel))
    };
    if !choice.columns.iter().all(is_allowed) {
        let ids = (0..columns.len() as u32).map(ColumnId);
        let cost = |(id, &cost): (ColumnId, &f64)| if is_allowed(&id) { cost } else { NEVER_US };
        choice = solve(&ids.zip(&costs).map(cost).collect::<Vec<f64>>())?;
    }
    Ok((choice, measured))
}

/// The chosen columns, and the closest of those that would replace a part of them at little more than its cost: in the order in which
/// they are promising ([`by_promise`]).
fn close(columns: &[CandidateColumn], chosen: &[ColumnId], costs: &[f64]) -> Vec<usize> {
    let mut share: BTreeMap<_, f64> = BTreeMap::new();
    for id in chosen {
        let units = &columns[id.index()].candidate.nodes;
        for unit in units {
            *share.entry(*unit).or_default() += costs[id.index()] / units.len() as f64;
        }
    }
    let mut found: Vec<(f64, usize)> = chosen.iter().map(|id| (0.0, id.index())).collect();
    for (number, column) in columns.iter().enumerate() {
        let replaced: f64 = column.candidate.nodes.iter().filter_map(|unit| share.get(unit)).sum();
        let close = if column.substitute.is_some() { CLOSE_MUGRAPH } else { CLOSE };
        if costs[number] <= close * replaced {
            found.push((costs[number] / replaced.max(f64::MIN_POSITIVE), number));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut kernels = BTreeSet::new();
    found.retain(|&(_, column)| columns[column].kernel.is_some_and(|kernel| kernels.insert(kernel)));
    found.truncate(MAX_KERNELS.max(chosen.len()));
    by_promise(columns, chosen, costs, found.into_iter().map(|(_, column)| column).collect())
}

/// Chosen columns by the share of the run that their kernels take, largest first; behind each the others whose units it and those before
/// it compute, closest first as they are given: only beside what they replace do their times say anything.
fn by_promise(
    columns: &[CandidateColumn],
    chosen: &[ColumnId],
    costs: &[f64],
    mut found: Vec<usize>,
) -> Vec<usize> {
    let mut kernel_us: BTreeMap<usize, f64> = BTreeMap::new();
    for id in chosen {
        if let Some(kernel) = columns[id.index()].kernel {
            *kernel_us.entry(kernel).or_default() += costs[id.index()];
        }
    }
    let mut kernels: Vec<(usize, f64)> = kernel_us.into_iter().collect();
    kernels.sort_by(|a, b| b.1.total_cmp(&a.1));
    let rank: BTreeMap<usize, usize> =
        kernels.iter().enumerate().map(|(rank, (kernel, _))| (*kernel, rank)).collect();
    let mut unit_rank = BTreeMap::new();
    for id in chosen {
        let column = &columns[id.index()];
        let of_kernel = column.kernel.map_or(0, |kernel| rank[&kernel]);
        unit_rank.extend(column.candidate.nodes.iter().map(|unit| (*unit, of_kernel)));
    }
    found.sort_by_cached_key(|&number| {
        let column = &columns[number];
        match column.kernel.and_then(|kernel| rank.get(&kernel)) {
            Some(&own) => (own, false),
            None => (
                column
                    .candidate
                    .nodes
                    .iter()
                    .filter_map(|unit| unit_rank.get(unit))
                    .copied()
                    .max()
                    .unwrap_or(0),
                true,
            ),
        }
    });
    found
}

/// Measured costs where they are known; modelled ones elsewhere, times the median of measured over modelled.
pub fn mixed(columns: &[CandidateColumn], measured: &BTreeMap<usize, f64>) -> Vec<f64> {
    let time = |column: &CandidateColumn| column.kernel.and_then(|kernel| measured.get(&kernel).copied());
    let mut seen = BTreeSet::new();
    let mut ratios: Vec<f64> = (columns.iter())
        .filter(|column| column.kernel.is_some_and(|kernel| seen.insert(kernel)))
        .filter_map(|column| Some(time(column)? / column.cost_us.max(f64::MIN_POSITIVE)))
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios.get(ratios.len() / 2).copied().unwrap_or(1.0);
    columns
        .iter()
        .map(|column| time(column).unwrap_or(column.cost_us * ratio) + column.penalty_us())
        .collect()
}

/// The number and the time of the fastest schedule or plan; the first, preferred one, unless another is clearly faster.
/// `None` if none was timed.
pub fn fastest(times: &[Option<f64>]) -> Option<(usize, f64)> {
    let timed = times.iter().enumerate().filter_map(|(number, time)| Some((number, (*time)?)));
    let fastest = timed.min_by(|a, b| a.1.total_cmp(&b.1))?;
    match times[0] {
        Some(first) if fastest.1 > FASTER * first => Some((0, first)),
        _ => Some(fastest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::testing::{column, solve};

    /// The chosen columns, and those measured in each round, with these times of the kernels.
    fn tuned(
        columns: &[CandidateColumn],
        times: &[Option<f64>],
        units: u32,
    ) -> (Vec<usize>, Vec<Vec<usize>>) {
        let costs: Vec<f64> = columns.iter().map(|column| column.cost_us).collect();
        let first = solve(columns, &costs, units);
        let mut rounds = Vec::new();
        let mut measure = |wanted: &[usize]| {
            rounds.push(wanted.to_vec());
            Ok(wanted.iter().map(|&column| times[column]).collect())
        };
        let mut again = |costs: &[f64]| Ok(solve(columns, costs, units));
        let (choice, measured) = tune(columns, first, &mut again, &mut measure).unwrap();
        assert!(measured.iter().all(|(&kernel, &time)| times[kernel] == Some(time)));
        (choice.columns.iter().map(|id| id.index()).collect(), rounds)
    }

    #[test]
    fn a_close_alternative_that_measures_better_is_taken() {
        // One kernel for both units, modelled a little better than two that in truth take half as long.
        let columns = [column(0, 0, 2, 10.0), column(1, 0, 1, 5.5), column(2, 1, 2, 5.5)];
        let (chosen, rounds) = tuned(&columns, &[Some(20.0), Some(5.0), Some(5.0)], 2);
        assert_eq!((chosen, rounds), (vec![1, 2], vec![vec![0, 1, 2]]));
    }

    #[test]
    fn a_far_alternative_is_not_measured_and_scaled_like_the_others() {
        let columns = [column(0, 0, 2, 10.0), column(1, 0, 1, 9.0), column(2, 1, 2, 9.0)];
        let (chosen, rounds) = tuned(&columns, &[Some(50.0), None, None], 2);
        assert_eq!((chosen, rounds), (vec![0], vec![vec![0]]));
    }

    #[test]
    fn what_becomes_close_is_measured_in_the_next_round() {
        // The median kernel takes as long as modelled; the chosen one twice that, and so the far one is close.
        let columns =
            [column(0, 0, 1, 4.0), column(1, 1, 2, 4.0), column(2, 2, 3, 4.0), column(3, 2, 3, 7.0)];
        let (chosen, rounds) = tuned(&columns, &[Some(4.0), Some(4.0), Some(8.0), Some(6.0)], 3);
        assert_eq!((chosen, rounds), (vec![0, 1, 3], vec![vec![0, 1, 2], vec![3]]));
    }

    #[test]
    fn the_preferred_schedule_stays_unless_another_is_clearly_faster() {
        assert_eq!(super::fastest(&[Some(3.0), None, Some(2.0), Some(2.5)]), Some((2, 2.0)));
        assert_eq!(super::fastest(&[Some(3.0), Some(2.99)]), Some((0, 3.0)));
        assert_eq!(super::fastest(&[None, Some(2.0)]), Some((1, 2.0)));
        assert_eq!(super::fastest(&[None, None]), None);
        assert_eq!(super::fastest(&[]), None);
    }

    #[test]
    fn columns_that_were_not_timed_are_not_taken() {
        // What was chosen takes five times what was modelled; the pair looks cheap now, but one of it cannot be timed.
        let columns = [column(0, 0, 2, 10.0), column(1, 0, 1, 6.0), column(2, 1, 2, 6.0)];
        let (chosen, _) = tuned(&columns, &[Some(50.0), Some(5.0), None], 2);
        assert_eq!(chosen, [0]);
    }

    #[test]
    fn what_takes_most_is_measured_first_and_beside_it_what_may_replace_it() {
        // The second unit takes most; of its two alternatives one computes the third unit too.
        let columns = [
            column(0, 0, 1, 2.0),
            column(1, 1, 2, 9.0),
            column(2, 2, 3, 1.0),
            column(3, 0, 1, 2.1),
            column(4, 1, 2, 10.0),
            column(5, 1, 2, 9.5),
            column(6, 1, 3, 10.5),
        ];
        let (_, rounds) = tuned(&columns, &[None; 7], 3);
        assert_eq!(rounds, [[1, 5, 4, 0, 3, 2, 6]]);
    }

    #[test]
    fn without_measurements_the_modelled_choice_stays() {
        let columns = [column(0, 0, 2, 10.0), column(1, 0, 1, 5.5), column(2, 1, 2, 5.5)];
        let (chosen, rounds) = tuned(&columns, &[None, None, None], 2);
        assert_eq!((chosen, rounds.len()), (vec![0], 1));
    }
}
