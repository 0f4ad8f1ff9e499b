//! Template for selections of the best, and sorting, on CPUs: a task selects in a few lines, one after the other.
//!
//! Few of many: the best `k` so far are kept sorted; what comes before the last of them is collected, and merged with them when as
//! many as `k` are there. Chunks of a line in which nothing does are passed over by vectors:
//!
//! ```text
//! best = sorted first k;  limit = best[k - 1]
//! for chunk of the line:  if any element of the chunk comes before the limit:
//!     for element of the chunk that comes before the limit:
//!         fresh[count] = element;  count += 1
//!         if count == k:  best = first k of merge(best, sorted fresh);  limit = best[k - 1];  count = 0
//! ```
//!
//! Many: the line is sorted by merging. Runs of up to 32 elements are sorted by their ranks; two runs of one length are merged from
//! both ends, so that no bounds are checked and two chains of comparisons overlap.
//!
//! Positions go with the elements. Ties go to the lower position because runs hold lower positions than those behind them.

mod emitter;
mod lower;
pub(crate) mod order;
mod schedule;

pub use lower::lower;
pub use schedule::{SelectionSchedule, schedule};

use crate::Design;
use orch_compute::SelectionProgram;
use orch_thread::target::CpuTarget;

/// The design of a selection.
pub fn design(program: &SelectionProgram, target: &CpuTarget) -> Design {
    let schedule = schedule(program);
    Design { kernel: lower(program, &schedule, target), schedule: format!("selection {schedule}") }
}
