//! Columns of a chain of units, and a bad clock, for tests of tuning.

use super::budget::{Budget, Phase};
use super::end_to_end::{race, winner};
use super::select::tune;
use crate::Options;
use crate::plan::candidates::{CandidateColumn, costs_us};
use orch_ir::{NodeId, TensorId};
use orch_plan::blp::{self, Choice, ChooseOptions, Problem};
use orch_plan::enumerate::Candidate;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// A column that runs units `from..to` of a chain; its kernel has the column's number.
pub fn column(kernel: usize, from: u32, to: u32, cost_us: f64) -> CandidateColumn {
    let candidate = Candidate {
        nodes: (from..to).map(NodeId).collect(),
        inputs: vec![TensorId(from)],
        outputs: vec![TensorId(to)],
        is_convex: true,
    };
    CandidateColumn::plain(candidate, cost_us, Some(kernel))
}

/// The cheapest columns that run all units of a chain.
pub fn solve(columns: &[CandidateColumn], costs: &[f64], units: u32) -> Choice {
    let columns = columns.iter().zip(costs);
    let problem = Problem {
        classes: units as usize + 1,
        available: vec![TensorId(0).into()],
        required: vec![TensorId(units).into()],
        columns: columns.map(|(column, &cost)| blp::Column::of_candidate(&column.candidate, cost)).collect(),
    };
    blp::choose(&problem, &ChooseOptions::default(), &orch_plan::solver::MicroLp).unwrap()
}

/// A clock that is 5 % off, and once in ten times shows 40 times the truth.
struct Clock(u64);

impl Clock {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shown(&mut self, truth: f64) -> f64 {
        let outlier = if self.uniform() < 0.1 { 40.0 } else { 1.0 };
        outlier * truth * (0.95 + 0.1 * self.uniform())
    }
}

/// True times of plans, and what tuning took.
struct Tuned {
    untuned: f64,
    /// By times of single kernels.
    by_kernels: f64,
    /// After the race with the untuned plan.
    taken: f64,
    took: Duration,
    note: Option<String>,
}

/// What building and timing a kernel takes.
const KERNEL: Duration = Duration::from_millis(100);

/// What a run of a plan takes.
const RUN: Duration = Duration::from_millis(1);

/// Kernels are timed once each, by a bad clock, of a model that is wrong by up to a factor of five each way.
fn tuned(seed: u64, tune_budget: Option<Duration>) -> Tuned {
    let mut clock = Clock(seed);
    let spans: Vec<(u32, u32)> =
        (0..8).flat_map(|from| (1..=3).map(move |units| (from, from + units))).collect();
    let spans: Vec<(u32, u32)> = spans.into_iter().filter(|(_, to)| *to <= 8).collect();
    let truth: Vec<f64> =
        spans.iter().map(|(from, to)| f64::from(to - from) + 4.0 * clock.uniform()).collect();
    let columns: Vec<CandidateColumn> = (spans.iter().zip(&truth).enumerate())
        .map(|(number, (&(from, to), truth))| {
            column(number, from, to, truth * 5f64.powf(2.0 * clock.uniform() - 1.0))
        })
        .collect();
    let now = Rc::new(Cell::new(Duration::ZERO));
    let shown = Rc::clone(&now);
    let options = Options { tune_budget, ..Options::default() };
    let budget = Budget::with_clock(&options, Box::new(move || shown.get()));
    let first = solve(&columns, &costs_us(&columns), 8);
    let time = |choice: &Choice| choice.columns.iter().map(|id| truth[id.index()]).sum::<f64>();
    let untuned = time(&first);
    let deadline = budget.deadline(Phase::Kernels);
    let mut measure = |wanted: &[usize]| {
        let times = budget.in_batches(deadline, wanted, |some| {
            now.set(now.get() + KERNEL * some.len() as u32);
            Ok(some.iter().map(|&column| Some(clock.shown(truth[column]))).collect())
        })?;
        let untimed = wanted.iter().zip(&times).filter(|(_, time)| time.is_none());
        untimed.for_each(|(&column, _)| budget.leave_out(Phase::Kernels, column));
        Ok(times)
    };
    let mut again = |costs: &[f64]| Ok(solve(&columns, costs, 8));
    let by_kernels = time(&tune(&columns, first, &mut again, &mut measure).unwrap().0);
    let plans = [untuned, by_kernels];
    let times = race(2, &budget, &options, &mut |plan, runs| {
        now.set(now.get() + RUN * runs as u32);
        Ok((0..runs).map(|_| clock.shown(plans[plan])).collect())
    });
    let taken = plans[winner(&times.unwrap())];
    Tuned { untuned, by_kernels, taken, took: now.get(), note: budget.note() }
}

/// The race of the plans, untuned first, takes none that is slower than the untuned one; the choice by single times alone does.
#[test]
fn tuning_by_a_bad_clock_takes_no_slower_plan() {
    // None; one that is spent before it begins; one that ends while the third kernel is timed, while plans are, and with the tenth kernel.
    for (milliseconds, least_faster) in
        [(None, 20), (Some(0), 0), (Some(650), 0), (Some(25), 0), (Some(2500), 10)]
    {
        let total = milliseconds.map(Duration::from_millis);
        let (mut slower_alone, mut faster, mut noted) = (0, 0, 0);
        for seed in 0..200 {
            let Tuned { untuned, by_kernels, taken, took, note } = tuned(seed, total);
            // Two medians of such times differ by this much at most.
            assert!(taken <= 1.04 * untuned, "{milliseconds:?}, seed {seed}: {taken} after {untuned}");
            slower_alone += usize::from(by_kernels > 1.04 * untuned);
            faster += usize::from(taken < 0.96 * untuned);
            if let Some(total) = total {
                // The first kernels are begun together, and plans in turns.
                assert!(took <= total.max(4 * KERNEL) + 20 * RUN, "{milliseconds:?}: {took:?}");
                noted += usize::from(note.is_some_and(|note| note.contains("kernels")));
            }
            if total == Some(Duration::ZERO) {
                assert_eq!((taken, took), (untuned, Duration::ZERO));
            }
        }
        assert_eq!(noted > 0, total.is_some(), "{milliseconds:?}: what was left out is told");
        assert!(faster >= least_faster, "{milliseconds:?}: {faster} faster with a race");
        if total.is_none() {
            assert!(slower_alone > 0, "the clock is not bad");
        }
    }
}
