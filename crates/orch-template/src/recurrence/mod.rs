//! Template for recurrences over time on CPUs: a work item runs all steps of a few sequences in one direction, or, where sequences are not
//! enough for all threads, one step of some hidden units of all sequences; then the work items of a step are a phase, and states are in memory
//! of the kernel.
//!
//! ```text
//! hidden and cell states of the work item's sequences in scratch
//! for step:  for panel of hidden units:  for tile of sequences:
//!     accumulators[row, gate, unit] = x[time, row, gate, unit] + sum over k of hidden[row, k] * r[k, gate, unit]
//!     next hidden, cell = cell of the accumulators
//! ```
//!
//! Constant weights are packed: `[direction][panel][k][gate][unit]`, so that a panel is read from front to back. A GRU whose
//! reset gate comes before the product has two such passes in a step.

pub(crate) mod cell;
mod lower;
mod schedule;
pub(crate) mod steps;

pub use lower::lower;
pub use schedule::{RecurrenceSchedule, schedule};

use crate::Design;
use orch_compute::recurrence::RecurrenceProgram;
use orch_thread::target::CpuTarget;

/// The design of a recurrence.
pub fn design(program: &RecurrenceProgram, target: &CpuTarget) -> Design {
    let schedule = schedule(program, target);
    Design { kernel: lower(program, &schedule, target), schedule: format!("recurrence {schedule}") }
}
