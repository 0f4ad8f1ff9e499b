//! What tuning may take, and what it has left out when that was spent.
//!
//! Tuning has three phases: kernels that the choice needs, schedules of the chosen kernels, and whole plans. Without a budget each has a
//! limit of its own. A budget ends the first two at fixed shares of it, and the last when it is spent, so that whole plans, of which one is
//! the untuned, are compared in any case. Nothing new begins after the end of a phase; what has begun is finished, and by the pace so
//! far no more is begun at once than fits.

use crate::{Error, Options};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A part of tuning, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Times of kernels that the choice needs, building the kernels included.
    Kernels,
    /// Times of schedules of chosen kernels.
    Schedules,
    /// Building and timing whole plans but the first.
    Plans,
}

impl Phase {
    /// The percentage of a budget after which it ends.
    fn end(self) -> u32 {
        match self {
            Phase::Kernels => 40,
            Phase::Schedules => 75,
            Phase::Plans => 100,
        }
    }
}

/// Without a budget: time for kernels, and time for schedules for each that a kernel may have.
const KERNELS: Duration = Duration::from_secs(20);
const SCHEDULE: Duration = Duration::from_millis(2500);

/// Kernels that are built and timed together, at most; and before it is known how long they take, where there is a budget.
const TOGETHER: usize = 16;
const FIRST: usize = 4;

/// The time since some moment.
pub type Now = Box<dyn Fn() -> Duration>;

/// What tuning may take.
pub struct Budget {
    now: Now,
    total: Option<Duration>,
    schedules: u32,
    /// When tuning began, later by what was not counted.
    began: Cell<Option<Duration>>,
    /// What building and timing a kernel took last.
    pace: Cell<Option<Duration>>,
    left_out: RefCell<BTreeSet<(Phase, usize)>>,
}

/// The end of a phase, by the clock of the budget; `None` if there is no limit.
#[derive(Clone, Copy)]
pub struct Deadline(Option<Duration>);

impl Budget {
    /// The budget of some options, by this machine's clock.
    pub fn new(options: &Options) -> Self {
        let start = Instant::now();
        Self::with_clock(options, Box::new(move || start.elapsed()))
    }

    /// The same by another clock.
    pub fn with_clock(options: &Options, now: Now) -> Self {
        Self {
            now,
            total: options.tune_budget,
            schedules: u32::try_from(options.tune_schedules).unwrap_or(u32::MAX),
            began: Cell::new(None),
            pace: Cell::new(None),
            left_out: RefCell::default(),
        }
    }

    /// The end of a phase that begins, or goes on, now. The first call begins tuning.
    pub fn deadline(&self, phase: Phase) -> Deadline {
        let now = (self.now)();
        let began = self.began.get().unwrap_or(now);
        self.began.set(Some(began));
        Deadline(match (self.total, phase) {
            (Some(total), _) => Some(began.saturating_add((total / 100).saturating_mul(phase.end()))),
            (None, Phase::Kernels) => Some(now + KERNELS),
            (None, Phase::Schedules) => Some(now + SCHEDULE.saturating_mul(self.schedules)),
            (None, Phase::Plans) => None,
        })
    }

    /// True after the end of a phase.
    pub fn is_over(&self, deadline: Deadline) -> bool {
        deadline.0.is_some_and(|at| (self.now)() >= at)
    }

    /// True if no kernel would be timed before the end of a phase.
    pub fn fits_no_kernel(&self, deadline: Deadline) -> bool {
        self.fitting(deadline) == 0
    }

    /// Does what is to be done without tuning, too: it counts for nothing.
    pub fn uncounted<T>(&self, work: impl FnOnce() -> T) -> T {
        let before = (self.now)();
        let result = work();
        let took = (self.now)().saturating_sub(before);
        self.began.set(self.began.get().map(|began| began.saturating_add(took)));
        result
    }

    /// Builds and times kernels, some at a time in their order, until the end of a phase. The times of those that were left out are `None`.
    ///
    /// # Errors
    /// Those of `run`, which gives as many times as it takes numbers.
    pub fn in_batches(
        &self,
        deadline: Deadline,
        kernels: &[usize],
        mut run: impl FnMut(&[usize]) -> Result<Vec<Option<f64>>, Error>,
    ) -> Result<Vec<Option<f64>>, Error> {
        let mut times = Vec::with_capacity(kernels.len());
        while times.len() < kernels.len() {
            let fitting = self.fitting(deadline).min(kernels.len() - times.len());
            if fitting == 0 {
                break;
            }
            let before = (self.now)();
            times.extend(run(&kernels[times.len()..][..fitting])?);
            self.pace.set(Some((self.now)().saturating_sub(before) / fitting as u32));
        }
        times.resize(kernels.len(), None);
        Ok(times)
    }

    /// As many kernels as may be begun together.
    fn fitting(&self, deadline: Deadline) -> usize {
        let Some(left) = deadline.0.map(|at| at.saturating_sub((self.now)())) else { return TOGETHER };
        if left.is_zero() {
            return 0;
        }
        match (self.total, self.pace.get()) {
            (None, _) => TOGETHER,
            (Some(_), None) => FIRST,
            (Some(_), Some(pace)) => {
                let fitting = left.as_nanos() / pace.as_nanos().max(1);
                usize::try_from(fitting).map_or(TOGETHER, |fitting| fitting.min(TOGETHER))
            }
        }
    }

    /// Notes that something, by its number, was left out of a phase.
    pub fn leave_out(&self, phase: Phase, number: usize) {
        self.left_out.borrow_mut().insert((phase, number));
    }

    /// What was not timed because time was up, in words; `None` if all was.
    pub fn note(&self) -> Option<String> {
        let left_out = self.left_out.borrow();
        let part = |phase: Phase, what: &str| {
            let count = left_out.iter().filter(|(other, _)| *other == phase).count();
            (count > 0).then(|| format!("{count} {what}"))
        };
        let parts: Vec<String> = [
            part(Phase::Kernels, "kernels"),
            part(Phase::Schedules, "kernels under all their schedules"),
            part(Phase::Plans, "whole plans"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let limit = match self.total {
            Some(total) => format!("the budget of {:.1} s for tuning was spent", total.as_secs_f64()),
            None => "time for tuning was up; --budget gives it more".to_owned(),
        };
        (!parts.is_empty()).then(|| format!("{limit}; not timed were {}", parts.join(", ")))
    }
}
