//! How much of a line a selection sorts at a time, and what that takes.

use crate::TASK_CYCLES;
use orch_compute::SelectionProgram;
use std::fmt;

/// How a selection runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectionSchedule {
    /// Sorted runs that are merged, a power of two.
    pub runs: usize,
    /// Elements of a run before merging.
    pub run: usize,
    /// Whether whole lines are sorted, or the best so far are kept.
    pub sorts_line: bool,
    /// Lines of a task.
    pub lines: usize,
    /// Where the best are kept: the rank, among the first elements, of the one that the rest of the line is compared with until as many
    /// come before it as are sorted at a time. If fewer than `k` do in all, the line is looked at again.
    pub speculative_rank: Option<usize>,
}

/// Longest run that is sorted by ranks: their work grows with its square.
const MAX_RUN: usize = 32;

/// A line is sorted as a whole unless it has so many times the elements that are selected.
const SELECTED_SHARE: usize = 4;

/// The text is the key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for SelectionSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, run, sorts_line, lines, speculative_rank } = self;
        let what = if *sorts_line { "sort" } else { "best" };
        write!(f, "{what} runs={runs} run={run} lines={lines}")?;
        speculative_rank.map_or(Ok(()), |rank| write!(f, " rank={rank}"))
    }
}

/// The schedule of a selection.
pub fn schedule(program: &SelectionProgram) -> SelectionSchedule {
    let sorts_line = program.k.saturating_mul(SELECTED_SHARE) >= program.extent;
    let sorted = if sorts_line { program.extent } else { program.k };
    let runs = sorted.div_ceil(MAX_RUN).next_power_of_two();
    let whole =
        SelectionSchedule { runs, run: sorted.div_ceil(runs), sorts_line, lines: 1, speculative_rank: None };
    let whole = SelectionSchedule { speculative_rank: whole.speculative_rank(program), ..whole };
    let lines = (TASK_CYCLES / whole.line_cycles(program)).ceil().min(program.lines() as f64);
    SelectionSchedule { lines: (lines as usize).max(1), ..whole }
}

impl SelectionSchedule {
    /// Elements that are sorted at a time: as many as are wanted, or a few more, which are worse than all others.
    pub fn sorted(&self) -> usize {
        self.runs * self.run
    }

    /// The least rank whose element, in 99.9 % of lines in random order, at least `k` elements come before; none if about as many do as are
    /// collected without it.
    fn speculative_rank(&self, program: &SelectionProgram) -> Option<usize> {
        /// Standard deviations of how many of the best are among the first.
        const CERTAIN: f64 = 3.0;
        /// What is collected, by what is without it.
        const WORTH: f64 = 0.75;
        let length = program.extent as f64 / self.sorted() as f64;
        let best = program.k as f64 / length;
        let rank = (best + CERTAIN * best.sqrt() + 1.0).ceil();
        let is_worth = !self.sorts_line && rank * length < WORTH * program.k as f64 * length.ln();
        is_worth.then_some(rank as usize)
    }

    /// Tasks of the kernel.
    pub fn tasks(&self, program: &SelectionProgram) -> usize {
        program.lines().div_ceil(self.lines)
    }

    /// Modelled cycles of a line.
    pub fn line_cycles(&self, program: &SelectionProgram) -> f64 {
        /// Of an element: a pass over it, its rank in a run, a merge of it, and looking at one that is passed over.
        const PASS: f64 = 2.0;
        const RANK: f64 = 8.0;
        const MERGE: f64 = 7.0;
        const LOOK: f64 = 0.6;
        let sorted = self.sorted() as f64;
        let sort = sorted * (RANK + MERGE * (self.runs as f64).log2());
        if self.sorts_line {
            return program.extent as f64 * PASS + sort + program.k as f64 * PASS;
        }
        // Of a line in random order each doubling replaces half of the best.
        let length = program.extent as f64 / sorted;
        let merges = 1.0 + self.speculative_rank.map_or(length.log2(), |rank| rank as f64 * length / sorted);
        program.extent as f64 * LOOK + merges * (sort + sorted * (MERGE + 2.0 * PASS))
    }
}
