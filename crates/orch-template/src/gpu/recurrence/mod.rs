//! Template for recurrences over time on GPUs: a CTA or a cluster runs all steps of a few sequences in one direction.
//!
//! ```text
//! CTA r of c has the hidden units r * u .. (r + 1) * u; each has the hidden states of all units in shared memory, twice
//! for step:  each thread: accumulators[row, gate, 4 units] over its part of k   -> shared memory
//!            barrier;  each thread: cell of one unit of one row, states -> shared memory of all CTAs of the cluster
//!            barrier of the cluster
//! ```
//!
//! Recurrence weights are copied to shared memory once where they fit, the others are read from L2 in every step. A GRU whose reset
//! gate comes before the product has two such passes in a step.

mod lower;
mod register_weights;
mod schedule;
mod shared_weights;

pub use lower::lower;
pub use schedule::{Engine, Exchange, GpuRecurrenceSchedule, schedules};

use crate::Design;
use orch_compute::recurrence::RecurrenceProgram;
use orch_thread::target::GpuTarget;

/// At most `limit` designs of a recurrence, the fastest by the model first.
pub fn designs(recurrence: &RecurrenceProgram, target: &GpuTarget, limit: usize) -> Vec<Design> {
    let design = |schedule: GpuRecurrenceSchedule| Design {
        kernel: lower(recurrence, &schedule),
        schedule: format!("recurrence {schedule}"),
    };
    schedules(recurrence, target).into_iter().take(limit).map(design).collect()
}
