//! The launch mode of runs on a GPU: launch by launch, a graph in one line, or a graph with branches. It is chosen by timing the caller's
//! first runs, with the modes interleaved, and remembered for later processes.
//!
//! Launching a graph costs the host least, but what to choose depends on the plan: branches run at the same time and cost more to launch;
//! for one or two kernels whose addresses change with each run, a launch alone may be cheapest. So each mode gets the same number of
//! the first runs, in changing order, and later runs use the mode that cost least (PyGraph's selective deployment, decided by paired runs of
//! the caller instead of one replay of each variant).
//!
//! With a cache folder the choice is written there, and a later process begins with it. It is *audited* rarely: a short trial of all modes again. If
//! another mode clearly beats it in two audits that follow one another, in one process or in two, that mode takes its place.

use super::launch_memory::{LaunchMemory, Remembered};
use super::trial::{LaunchCosts, Trial};
use crate::Error;
use orch_runtime::cuda::{CudaExecutable, Execution, Stream, TimedRun};
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Rounds that a mode is chosen by.
const ROUNDS: usize = 25;

/// Rounds of an audit.
const AUDIT_ROUNDS: usize = 12;

/// Runs from the choice, or from the load of a remembered one, to an audit; twice as many after each that leaves the choice as it is, ...
const FIRST_PERIOD: u64 = 4096;

/// ... up to so many.
const LONGEST_PERIOD: u64 = 1 << 16;

/// Runs from an audit in which the choice was beaten to the next.
const SECOND_AUDIT_AFTER: u64 = 256;

/// One of so many processes that begin with a remembered choice audits it at once: most may end before they have made [`FIRST_PERIOD`] runs.
const AUDITED_PROCESSES: u64 = 16;

/// How the next run is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct NextRun {
    /// How its steps reach the device.
    mode: Execution,
    /// Under which number its cost is wanted; `None` if it is not.
    number: Option<u64>,
}

/// The mode that was chosen, and why.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LaunchChoice {
    /// How runs reach the device.
    pub mode: Execution,
    /// What it was chosen by; `None` if nothing was timed.
    pub costs: Option<LaunchCosts>,
    /// Whether an earlier process chose it.
    pub is_remembered: bool,
}

impl fmt::Display for LaunchChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "launches: {}", self.mode.name())?;
        let Some(LaunchCosts { rounds, medians }) = self.costs else { return Ok(()) };
        let times = Execution::ALL.iter().zip(medians);
        let times = times
            .map(|(mode, cost)| format!("{} {:.1} us (host {:.1})", mode.name(), cost.run_us, cost.host_us));
        let times = times.collect::<Vec<_>>().join(", ");
        write!(f, " (a run costs its caller, {times}: medians of {rounds} rounds")?;
        f.write_str(if self.is_remembered { ", remembered from an earlier process)" } else { ")" })
    }
}

/// Chooses the mode for all contexts of an executable.
pub struct Launches {
    state: Mutex<State>,
    memory: Option<LaunchMemory>,
}

struct State {
    phase: ChoicePhase,
    /// The number of the next run whose cost is wanted.
    number: u64,
    /// Runs between audits; `None` without a memory, or if the caller has chosen: then there are none.
    period: Option<u64>,
    /// Whether the choice was beaten in the last audit, be it of an earlier process.
    was_beaten: bool,
}

enum ChoicePhase {
    /// Nothing is chosen.
    Choosing(Trial),
    /// A mode is in use, ...
    Chosen(LaunchChoice, Audit),
}

/// ... and is compared with the others
enum Audit {
    /// after so many runs,
    In(u64),
    /// by these runs,
    Now(Trial),
    /// or not at all.
    Never,
}

impl Launches {
    /// Uses this mode; or the one that an earlier process chose; or finds one, and remembers it.
    pub fn new(mode: Option<Execution>, memory: Option<LaunchMemory>) -> Self {
        let is_drawn = RandomState::new().build_hasher().finish().is_multiple_of(AUDITED_PROCESSES);
        Self::beginning(mode, memory, is_drawn)
    }

    /// As [`new`](Self::new), where a remembered choice is audited at once if it `is_drawn`.
    fn beginning(mode: Option<Execution>, memory: Option<LaunchMemory>, is_drawn: bool) -> Self {
        let memory = memory.filter(|_| mode.is_none());
        let (mut period, mut was_beaten) = (memory.as_ref().map(|_| FIRST_PERIOD), false);
        let phase = match (mode, memory.as_ref().and_then(LaunchMemory::read)) {
            (Some(mode), _) => {
                period = None;
                ChoicePhase::Chosen(LaunchChoice { mode, costs: None, is_remembered: false }, Audit::Never)
            }
            (None, Some(remembered)) => {
                was_beaten = remembered.was_beaten;
                let choice = LaunchChoice {
                    mode: remembered.mode,
                    costs: Some(remembered.costs),
                    is_remembered: true,
                };
                ChoicePhase::Chosen(choice, Audit::In(if was_beaten || is_drawn { 0 } else { FIRST_PERIOD }))
            }
            (None, None) => ChoicePhase::Choosing(Trial::new(0)),
        };
        Self { state: Mutex::new(State { phase, number: 0, period, was_beaten }), memory }
    }

    /// The mode that was chosen; `None` as long as the first runs are timed.
    pub fn choice(&self) -> Option<LaunchChoice> {
        match self.state().phase {
            ChoicePhase::Choosing(_) => None,
            ChoicePhase::Chosen(choice, _) => Some(choice),
        }
    }

    /// Whether modes are compared by the present runs.
    pub fn is_trial(&self) -> bool {
        matches!(self.state().phase, ChoicePhase::Choosing(_) | ChoicePhase::Chosen(_, Audit::Now(_)))
    }

    /// Makes ready for the next run, in this stream. As long as modes are compared, the times of runs that have ended since are recorded;
    /// a run that the caller captures is neither timed nor counted.
    ///
    /// # Errors
    /// If the device has failed.
    pub fn before(&self, executable: &mut CudaExecutable, stream: &Stream) -> Result<(), Error> {
        if self.is_trial() {
            if stream.is_capturing().map_err(Error::from)? {
                return Ok(());
            }
            executable.timed_runs().map_err(Error::from)?.iter().for_each(|run| self.record(run));
        }
        let NextRun { mode, number } = self.next();
        executable.set_timed(number);
        match number {
            Some(_) => executable.set_execution(mode),
            None => executable.fix_execution(mode),
        }
        Ok(())
    }

    /// How the next run is made.
    fn next(&self) -> NextRun {
        self.state().next()
    }

    /// Takes the cost of a run, and chooses when there are enough.
    fn record(&self, run: &TimedRun) {
        let changed = self.state().record(run);
        if let (Some(changed), Some(memory)) = (changed, &self.memory) {
            memory.write(&changed);
        }
    }

    /// Ends what is compared. If nothing was chosen, this chooses by what is known now: graphs with branches if some mode was not timed.
    pub fn decide(&self) -> LaunchChoice {
        self.state().decide()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&mut self) -> NextRun {
        if let ChoicePhase::Chosen(_, audit) = &mut self.phase {
            match audit {
                Audit::In(0) => *audit = Audit::Now(Trial::new(self.number)),
                Audit::In(runs) => *runs -= 1,
                Audit::Now(_) | Audit::Never => {}
            }
        }
        let (number, mode) = match &mut self.phase {
            ChoicePhase::Choosing(trial) | ChoicePhase::Chosen(_, Audit::Now(trial)) => trial.next(),
            ChoicePhase::Chosen(LaunchChoice { mode, .. }, _) => {
                return NextRun { mode: *mode, number: None };
            }
        };
        self.number = number + 1;
        NextRun { mode, number: Some(number) }
    }

    /// Takes the cost of a run; what is to be remembered from now on, if that has changed.
    fn record(&mut self, run: &TimedRun) -> Option<Remembered> {
        match &mut self.phase {
            ChoicePhase::Choosing(trial) => {
                trial.record(run);
                if trial.rounds() < ROUNDS {
                    return None;
                }
                self.decide();
                self.remembered()
            }
            ChoicePhase::Chosen(choice, Audit::Now(trial)) => {
                trial.record(run);
                if trial.rounds() < AUDIT_ROUNDS {
                    return None;
                }
                let better = trial.beats(choice.mode);
                self.end_audit(better)
            }
            ChoicePhase::Chosen(_, Audit::In(_) | Audit::Never) => None,
        }
    }

    /// Draws the consequences of an audit, in which `better` has clearly beaten the choice.
    fn end_audit(&mut self, better: Option<(Execution, LaunchCosts)>) -> Option<Remembered> {
        let ChoicePhase::Chosen(choice, audit) = &mut self.phase else { return None };
        let was_beaten = std::mem::replace(&mut self.was_beaten, better.is_some());
        *audit = match (better, was_beaten) {
            (Some((mode, costs)), true) => {
                *choice = LaunchChoice { mode, costs: Some(costs), is_remembered: false };
                (self.was_beaten, self.period) = (false, Some(FIRST_PERIOD));
                Audit::In(FIRST_PERIOD)
            }
            (Some(_), false) => Audit::In(SECOND_AUDIT_AFTER),
            (None, _) => {
                self.period = self.period.map(|period| LONGEST_PERIOD.min(2 * period));
                self.period.map_or(Audit::Never, Audit::In)
            }
        };
        let is_changed = was_beaten || self.was_beaten;
        if is_changed { self.remembered() } else { None }
    }

    fn remembered(&self) -> Option<Remembered> {
        let ChoicePhase::Chosen(LaunchChoice { mode, costs, .. }, _) = self.phase else { return None };
        Some(Remembered { mode, costs: costs?, was_beaten: self.was_beaten })
    }

    fn decide(&mut self) -> LaunchChoice {
        let later = self.period.map_or(Audit::Never, Audit::In);
        match &mut self.phase {
            ChoicePhase::Choosing(trial) => {
                let (mode, costs) = match trial.best() {
                    Some((mode, costs)) => (mode, Some(costs)),
                    None => (Execution::default(), None),
                };
                let choice = LaunchChoice { mode, costs, is_remembered: false };
                self.phase = ChoicePhase::Chosen(choice, later);
                choice
            }
            ChoicePhase::Chosen(choice, audit) => {
                if let Audit::Now(_) = audit {
                    *audit = later;
                }
                *choice
            }
        }
    }
}

#[cfg(test)]
mod tests;
