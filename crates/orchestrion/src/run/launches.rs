//! The launch mode of runs on a GPU: launch by launch, a graph in one line, or a graph with branches. It is chosen by timing the caller's
//! first runs, with the modes interleaved.
//!
//! Launching a graph costs the host least, but what to choose depends on the plan: branches run at the same time and cost more to launch;
//! for one or two kernels whose addresses change with each run, a launch alone may be cheapest. So each mode gets the same number of
//! the first runs, in changing order, and later runs use the mode that cost least (PyGraph's selective deployment, decided by paired runs of
//! the caller instead of one replay of each variant).

use crate::Error;
use orch_runtime::cuda::{CudaExecutable, Execution, Stream, TimedRun};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The modes, the simplest first.
const MODES: [Execution; 3] = Execution::ALL;

/// Rounds whose runs count: each mode has one run in a round.
const ROUNDS: usize = 25;

/// A mode is chosen before a simpler one only if it takes less than that by more than this share.
const MARGIN: f64 = 0.02;

/// What a run took.
#[derive(Clone, Copy, PartialEq, Debug)]
struct RunCost {
    /// Microseconds in which the host enqueued it.
    host_us: f64,
    /// Microseconds from its begin to its end by the device's clock. In an idle stream they include the host's.
    device_us: f64,
}

impl RunCost {
    /// Microseconds until the next run can have come as far: the slower of host and device holds up the other.
    fn us(self) -> f64 {
        self.host_us.max(self.device_us)
    }
}

/// How the next run is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NextRun {
    /// How its steps reach the device.
    mode: Execution,
    /// Whether its cost is wanted.
    is_timed: bool,
}

/// The mode that was chosen, and why.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LaunchChoice {
    /// How runs reach the device.
    pub mode: Execution,
    /// Median microseconds of a run in each mode of [`Execution::ALL`]; `None` if none was timed.
    pub medians_us: Option<[f64; Execution::ALL.len()]>,
}

impl fmt::Display for LaunchChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "launches: {}", self.mode.name())?;
        let Some(medians_us) = self.medians_us else { return Ok(()) };
        let times = MODES.iter().zip(medians_us).map(|(mode, us)| format!("{} {us:.1} us", mode.name()));
        write!(f, " (a run takes, {})", times.collect::<Vec<_>>().join(", "))
    }
}

/// Chooses the mode for all contexts of an executable.
pub struct Launches {
    state: Mutex<State>,
}

struct State {
    /// Runs that were given a mode to try.
    tried: usize,
    /// Costs of the runs in each mode, in order.
    costs_us: [Vec<f64>; MODES.len()],
    choice: Option<LaunchChoice>,
}

impl Launches {
    /// Uses this mode, or finds one.
    pub fn new(mode: Option<Execution>) -> Self {
        let choice = mode.map(|mode| LaunchChoice { mode, medians_us: None });
        Self { state: Mutex::new(State { tried: 0, costs_us: [const { Vec::new() }; MODES.len()], choice }) }
    }

    /// The mode that was chosen; `None` as long as runs are timed.
    pub fn choice(&self) -> Option<LaunchChoice> {
        self.state().choice
    }

    /// Makes ready for the next run, in this stream. As long as nothing is chosen, the times of runs that have ended since are recorded;
    /// a run that the caller captures is neither timed nor counted.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn before(&self, executable: &mut CudaExecutable, stream: &Stream) -> Result<(), Error> {
        if self.choice().is_none() {
            if stream.is_capturing().map_err(Error::from)? {
                return Ok(());
            }
            for TimedRun { execution, host_us, device_us } in executable.timed_runs().map_err(Error::from)? {
                self.record(execution, RunCost { host_us, device_us });
            }
        }
        match self.choice() {
            Some(LaunchChoice { mode, .. }) => {
                executable.set_timed(false);
                executable.fix_execution(mode);
            }
            None => {
                let NextRun { mode, is_timed } = self.next();
                executable.set_timed(is_timed);
                executable.set_execution(mode);
            }
        }
        Ok(())
    }

    /// How the next run is made.
    fn next(&self) -> NextRun {
        let mut state = self.state();
        if let Some(LaunchChoice { mode, .. }) = state.choice {
            return NextRun { mode, is_timed: false };
        }
        let (round, position) = (state.tried / MODES.len(), state.tried % MODES.len());
        state.tried += 1;
        // The first run in a mode makes its graph.
        NextRun { mode: MODES[(round + position) % MODES.len()], is_timed: round > 0 }
    }

    /// Takes the cost of a run, and chooses when each mode has enough.
    fn record(&self, mode: Execution, cost: RunCost) {
        let mut state = self.state();
        if state.choice.is_some() {
            return;
        }
        for (known, costs_us) in MODES.iter().zip(&mut state.costs_us) {
            if *known == mode {
                costs_us.push(cost.us());
            }
        }
        if state.costs_us.iter().all(|costs_us| costs_us.len() >= ROUNDS) {
            state.choice = Some(chosen(&state.costs_us));
        }
    }

    /// Chooses by what is known now: graphs with branches if some mode was not timed.
    pub fn decide(&self) -> LaunchChoice {
        let mut state = self.state();
        let is_known = state.costs_us.iter().all(|costs_us| !costs_us.is_empty());
        let decided = if is_known {
            chosen(&state.costs_us)
        } else {
            LaunchChoice { mode: Execution::default(), medians_us: None }
        };
        *state.choice.get_or_insert(decided)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The simplest mode that takes at most [`MARGIN`] more than the one of the least median. Costs of one round are compared with each other, so
/// that what slows the whole machine down for a while slows both.
fn chosen(costs_us: &[Vec<f64>; MODES.len()]) -> LaunchChoice {
    let medians_us = std::array::from_fn(|mode| median(costs_us[mode].clone()));
    let best = (0..MODES.len()).min_by(|&a, &b| f64::total_cmp(&medians_us[a], &medians_us[b])).unwrap_or(0);
    let ratio = |mode: usize| {
        median(costs_us[mode].iter().zip(&costs_us[best]).map(|(us, of_best)| us / of_best).collect())
    };
    let simplest = (0..MODES.len()).find(|&mode| mode == best || ratio(mode) <= 1.0 + MARGIN).unwrap_or(best);
    LaunchChoice { mode: MODES[simplest], medians_us: Some(medians_us) }
}

/// The median of some numbers.
fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(us: f64) -> RunCost {
        RunCost { host_us: 0.0, device_us: us }
    }

    /// What is chosen if a run takes what `us` says of the mode's position and the run's number.
    fn choice(mut us: impl FnMut(usize, usize) -> f64) -> LaunchChoice {
        let launches = Launches::new(None);
        for run in 0..1000 {
            let NextRun { mode, is_timed } = launches.next();
            let of = MODES.iter().position(|known| *known == mode).unwrap();
            if is_timed {
                launches.record(mode, cost(us(of, run)));
            }
        }
        launches.choice().expect("a thousand runs are enough")
    }

    #[test]
    fn the_cheapest_mode_is_chosen_and_of_equal_ones_the_simplest() {
        assert_eq!(choice(|mode, _| [50.0, 40.0, 30.0][mode]).mode, Execution::BranchedGraph);
        assert_eq!(choice(|mode, _| [50.0, 30.0, 40.0][mode]).mode, Execution::StraightGraph);
        assert_eq!(choice(|mode, _| [30.0, 50.0, 40.0][mode]).mode, Execution::Direct);
        let equal = choice(|mode, _| [30.5, 30.2, 30.0][mode]);
        assert_eq!(equal, LaunchChoice { mode: Execution::Direct, medians_us: Some([30.5, 30.2, 30.0]) });
        assert_eq!(choice(|mode, _| [31.0, 30.2, 30.0][mode]).mode, Execution::StraightGraph);
    }

    #[test]
    fn the_slower_of_host_and_device_counts() {
        let launches = Launches::new(None);
        while launches.choice().is_none() {
            let NextRun { mode, is_timed } = launches.next();
            let host_us = if mode == Execution::Direct { 200.0 } else { 5.0 };
            if is_timed {
                launches.record(mode, RunCost { host_us, device_us: 30.0 });
            }
        }
        assert_eq!(launches.choice().unwrap().medians_us, Some([200.0, 30.0, 30.0]));
        assert_eq!(launches.choice().unwrap().mode, Execution::StraightGraph);
    }

    #[test]
    fn each_mode_is_tried_and_first_runs_do_not_count() {
        let launches = Launches::new(None);
        let runs: Vec<NextRun> = (0..9).map(|_| launches.next()).collect();
        for round in runs.chunks(MODES.len()) {
            assert!(MODES.iter().all(|mode| round.iter().any(|run| run.mode == *mode)), "{round:?}");
        }
        assert!(runs[..3].iter().all(|run| !run.is_timed) && runs[3..].iter().all(|run| run.is_timed));
        let first = |round: usize| runs[MODES.len() * round].mode;
        assert!(first(0) != first(1) && first(1) != first(2));
    }

    #[test]
    fn a_mode_of_the_caller_is_used_and_nothing_is_timed() {
        let launches = Launches::new(Some(Execution::StraightGraph));
        assert_eq!(launches.next(), NextRun { mode: Execution::StraightGraph, is_timed: false });
    }

    #[test]
    fn without_times_graphs_with_branches_are_taken() {
        let launches = Launches::new(None);
        assert_eq!(launches.decide(), LaunchChoice { mode: Execution::BranchedGraph, medians_us: None });
        assert_eq!(launches.next().mode, Execution::BranchedGraph);
    }

    /// Numbers from 0 to 1 (SplitMix64).
    fn uniform(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Times of a machine that others use as well: for stretches of runs all is up to 3 times as slow, and a tenth of the runs waits for long.
    /// `best` takes 5 % less than the other modes.
    fn noisy(seed: u64, best: usize) -> impl FnMut(usize, usize) -> f64 {
        let mut random = uniform(seed);
        let mut slow = 1.0;
        move |mode, run| {
            if run % 20 == 0 {
                slow = if random() < 0.3 { 1.0 + 2.0 * random() } else { 1.0 };
            }
            let hiccup = if random() < 0.1 { 1.0 + 39.0 * random() } else { 1.0 };
            let of = if mode == best { 100.0 } else { 105.0 };
            of * slow * hiccup * (0.99 + 0.02 * random())
        }
    }

    #[test]
    fn noise_seldom_hides_five_percent() {
        let (mut wrong, mut wrong_at_once) = (0, 0);
        for seed in 0..100 {
            let best = seed as usize % MODES.len();
            wrong += usize::from(choice(noisy(seed, best)).mode != MODES[best]);
            let mut once = noisy(seed, best);
            let costs = [0, 1, 2].map(|mode| once(mode, 18 + mode));
            wrong_at_once += usize::from(costs.iter().any(|cost| *cost < costs[best]));
        }
        assert!(wrong <= 2, "{wrong} of 100 choices are wrong");
        assert!(wrong_at_once >= 10, "one run in each mode decides as well: {wrong_at_once} are wrong");
    }
}
