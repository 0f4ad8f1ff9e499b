//! Template for scattering on GPUs: a CTA makes a tile of the result, whole, and looks at all updates that may fall into it.
//!
//! Updates of one place apply in order, whatever the order in which threads run. Which way depends on how they combine:
//!
//! - [`replace`]: the last update of each slot is found in shared memory by `red.max` of their numbers; then each element is read from
//!   where it comes from, and written once;
//! - [`rounds`]: slots of one element are accumulated in shared memory, by rounds: `red.min` finds the first update of each slot that
//!   is left, its thread adds it;
//! - [`combine`]: slots of several elements are copied to the result by the threads that own them. The warps compact what falls into the
//!   tile to a list in order, and each thread goes along the list and applies what is its own.
//!
//! ```text
//! slot:  an element of the tile, where each element has an index; else a row of it
//! ```
//!
//! No element is written by two threads. Each tile looks at the indices of all updates of its columns, so that there are few tiles.

mod combine;
mod replace;
mod rounds;
mod schedule;
mod tile;

pub use schedule::GpuScatterSchedule;

use crate::Design;
use crate::bind::{add_arguments, bound_kernel};
use orch_compute::ScatterProgram;
use orch_thread::cta::Cta;
use orch_thread::kernel::Kernel;
use orch_thread::program::ThreadProgram;
use orch_thread::target::GpuTarget;
use schedule::ScatterMethod;
use tile::Emitter;

/// The design of a scatter; `None` if there are too many updates to number.
pub fn design(scatter: &ScatterProgram, target: &GpuTarget) -> Option<Design> {
    let schedule = GpuScatterSchedule::of(scatter, target)?;
    Some(Design { kernel: lower(scatter, &schedule), schedule: format!("scatter {schedule}") })
}

/// Lowers a scatter under a schedule.
pub fn lower(scatter: &ScatterProgram, schedule: &GpuScatterSchedule) -> Kernel {
    let mut program = ThreadProgram::new(&scatter.name, schedule.tiles(scatter));
    let thread = program.set_cta(schedule.threads, 1);
    program.cta = program.cta.map(|cta| Cta { loads_ahead: true, ..cta });
    add_arguments(&mut program, &scatter.args);
    let mut emitter = Emitter::new(scatter, *schedule, program, thread);
    let mut body = emitter.place();
    body.extend(match ScatterMethod::of(scatter) {
        ScatterMethod::Replace => emitter.replace(),
        ScatterMethod::Rounds => emitter.rounds(),
        ScatterMethod::Combine => emitter.combine(),
    });
    emitter.program.body = body;
    bound_kernel(emitter.program, &scatter.args)
}
