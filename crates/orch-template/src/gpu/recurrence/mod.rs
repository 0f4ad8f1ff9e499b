//! Template for recurrences over time on GPUs: some CTAs run all steps of a few sequences in one direction, and share the hidden units.
//!
//! ```text
//! CTA r of c has the hidden units r * u .. (r + 1) * u
//! for step:  products of the hidden states of all units with the weights of its own: each part of K by other threads
//!              -> accumulators in shared memory;  barrier
//!            each thread: cell of one unit of one sequence, the hidden state -> all CTAs
//!            barrier of all c CTAs
//! ```
//!
//! CTAs exchange states in one of two ways ([`Exchange`]): those of a cluster write them to the shared memory of each other (DSMEM); up to
//! as many CTAs as there are SMs write them to global memory, and wait for each other at barriers of the grid. The more SMs have a part of
//! the weights, the more of these stay in shared memory or registers from step to step, and the fewer are read from L2 in each.
//!
//! Products have three engines ([`Engine`]): multiply-adds with weights in shared memory as far as they fit there (`shared_weights`);
//! multiply-adds or `mma.sync` with weights in registers (`register_weights`). A GRU whose reset gate comes before the product has two
//! passes of product and cell in a step.

mod emitter;
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
