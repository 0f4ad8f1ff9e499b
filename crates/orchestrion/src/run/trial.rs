//! A trial of launch modes: runs of the caller in all modes by turns, with what each costs.
//!
//! In a round each mode has one run, in changing order. Costs of one round are compared with each other, so that what slows the whole machine
//! down for a while slows all modes. A round counts once the cost of each of its runs is known: the first run in a mode makes its graph
//! and has none.

use orch_runtime::cuda::{Execution, TimedRun};
use serde::{Deserialize, Serialize};

/// The modes, the simplest first.
const MODES: [Execution; 3] = Execution::ALL;

/// Modes that cost at most this share more than the cheapest are as good, ...
const MARGIN: f64 = 0.02;

/// ... but for those in which the host takes longer than in another of them by more than this share of a run: a caller that does not wait for
/// runs pays for the host's time only.
const HOST_MARGIN: f64 = 0.05;

/// A mode that is in use is beaten only by one that takes less by more than this share, ...
const CLEAR_MARGIN: f64 = 0.05;

/// ... and in all but this share of the rounds. Of two modes that
/// cost the same, one does so in one of 50 trials of 12 rounds (the sign test).
const CLEAR_LOSSES: f64 = 1.0 / 6.0;

/// What runs in one mode took.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ModeCost {
    /// Microseconds by which a run holds up its caller. In a stream that is busy when runs begin: the slower of host and device, which holds
    /// up the other. In an idle one a caller that waits for each run is held up by that, too, and one whose own work keeps the device waiting
    /// by the host's part alone; what callers do is not known, so it is the mean of both.
    pub run_us: f64,
    /// Microseconds in which the host enqueued a run.
    pub host_us: f64,
    /// Microseconds from a run's begin to its end by the device's clock. In an idle stream they include the host's.
    pub device_us: f64,
}

impl ModeCost {
    fn of(run: &TimedRun) -> Self {
        let TimedRun { host_us, device_us, was_idle, .. } = *run;
        let slower = host_us.max(device_us);
        let run_us = if was_idle { 0.5 * (slower + host_us) } else { slower };
        Self { run_us, host_us, device_us }
    }
}

/// Costs of all modes, in the order of [`Execution::ALL`].
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LaunchCosts {
    /// Rounds that the medians are of.
    pub rounds: usize,
    /// Medians of a run's costs, each of its own.
    pub medians: [ModeCost; MODES.len()],
}

/// Costs of the runs of one round.
type RoundCosts = [ModeCost; MODES.len()];

/// Runs in all modes by turns.
pub struct Trial {
    /// The number of its first run; each has the next one.
    first: u64,
    /// Runs that were given a mode.
    given: u64,
    /// What is known of each round.
    costs: Vec<[Option<ModeCost>; MODES.len()]>,
}

impl Trial {
    /// A trial whose first run has this number.
    pub fn new(first: u64) -> Self {
        Self { first, given: 0, costs: Vec::new() }
    }

    /// The number and the mode of the next run.
    pub fn next(&mut self) -> (u64, Execution) {
        let at = self.given;
        self.given += 1;
        (self.first + at, MODES[position(at)])
    }

    /// Takes the cost of a run; one of another trial is ignored.
    pub fn record(&mut self, run: &TimedRun) {
        let Some(at) = run.number.checked_sub(self.first).filter(|&at| at < self.given) else { return };
        let (round, mode) = (round(at), position(at));
        if run.execution != MODES[mode] {
            return;
        }
        if self.costs.len() <= round {
            self.costs.resize(round + 1, [None; MODES.len()]);
        }
        self.costs[round][mode] = Some(ModeCost::of(run));
    }

    /// The number of rounds of which all is known.
    pub fn rounds(&self) -> usize {
        self.whole().count()
    }

    /// The simplest of the modes that are as good as the one of the least median, and the costs; `None` as long as no round is known.
    pub fn best(&self) -> Option<(Execution, LaunchCosts)> {
        let rounds: Vec<RoundCosts> = self.whole().collect();
        if rounds.is_empty() {
            return None;
        }
        let of = |mode: usize, us: fn(&ModeCost) -> f64| {
            median(rounds.iter().map(|round| us(&round[mode])).collect())
        };
        let medians = std::array::from_fn(|mode| ModeCost {
            run_us: of(mode, |cost| cost.run_us),
            host_us: of(mode, |cost| cost.host_us),
            device_us: of(mode, |cost| cost.device_us),
        });
        let us = |mode: usize| medians[mode].run_us;
        let least = (0..MODES.len()).min_by(|&a, &b| f64::total_cmp(&us(a), &us(b))).unwrap_or(0);
        let is_close = |mode: &usize| median(ratios(&rounds, *mode, least)) <= 1.0 + MARGIN;
        let close: Vec<usize> = (0..MODES.len()).filter(is_close).collect();
        let least_host = close.iter().map(|&mode| medians[mode].host_us).fold(f64::INFINITY, f64::min);
        let is_as_good = |mode: &usize| medians[*mode].host_us - least_host <= HOST_MARGIN * us(*mode);
        let chosen = close.into_iter().find(is_as_good).unwrap_or(least);
        Some((MODES[chosen], LaunchCosts { rounds: rounds.len(), medians }))
    }

    /// The best mode and the costs, if it clearly beats the one in use: by more than noise does.
    pub fn beats(&self, in_use: Execution) -> Option<(Execution, LaunchCosts)> {
        let (best, costs) = self.best().filter(|(best, _)| *best != in_use)?;
        let number = |mode: Execution| MODES.iter().position(|known| *known == mode).unwrap_or(0);
        let rounds: Vec<RoundCosts> = self.whole().collect();
        let ratios = ratios(&rounds, number(in_use), number(best));
        let lost = ratios.iter().filter(|ratio| **ratio <= 1.0).count();
        let is_clear =
            median(ratios) > 1.0 + CLEAR_MARGIN && lost as f64 <= CLEAR_LOSSES * rounds.len() as f64;
        is_clear.then_some((best, costs))
    }

    /// The rounds of which all is known.
    fn whole(&self) -> impl Iterator<Item = RoundCosts> {
        self.costs.iter().filter_map(|[a, b, c]| Some([(*a)?, (*b)?, (*c)?]))
    }
}

fn round(run: u64) -> usize {
    run as usize / MODES.len()
}

/// The mode of a run, by its place in [`MODES`].
fn position(run: u64) -> usize {
    (round(run) + run as usize % MODES.len()) % MODES.len()
}

/// What a mode takes by what another takes, in each round.
fn ratios(rounds: &[RoundCosts], mode: usize, other: usize) -> Vec<f64> {
    rounds.iter().map(|round| round[mode].run_us / round[other].run_us).collect()
}

/// The median of some numbers.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}
