//! Loop nests: how block programs without matrix products become thread programs. The injective and the row
//! template choose the schedule; what they share is here. The templates for GPUs have tasks and loops of their own
//! and share what happens at a place.
//!
//! - [`flat`]: the block program over buffers and element offsets, its axes merged where memory is contiguous;
//! - [`plan`]: which axes are *outer* (every stage varies over them), which axis lies along vectors, what a task is;
//! - [`emit`]: tasks and loops over outer axes, and within them one stage after the other;
//! - [`reduce`] and [`store`]: a stage at one point, or at one vector of points, of the outer axes;
//! - [`tile`]: staging through scratch where an operand is contiguous along another axis than the result;
//! - [`place`]: the value of a scalar expression at such a place.

pub(super) mod cost;
mod cuts;
pub(super) mod emit;
pub(super) mod flat;
mod limits;
pub(super) mod merge;
pub(super) mod pack;
pub(super) mod place;
pub(super) mod plan;
pub(super) mod reduce;
mod replace;
pub(super) mod shared;
mod store;
pub(super) mod tile;
pub(super) mod window;

pub use plan::{Along, NestSchedule};

use orch_compute::block::BlockProgram;
use orch_thread::kernel::Kernel;
use orch_thread::target::CpuTarget;

/// The schedules worth trying, the preferred one first.
pub(super) fn schedules(block: &BlockProgram, target: &CpuTarget) -> Vec<NestSchedule> {
    let mut nest = nest_of(block);
    plan::schedules(&mut nest, target)
}

/// The thread program under a schedule.
pub(super) fn lower(block: &BlockProgram, schedule: &NestSchedule) -> Kernel {
    let mut nest = nest_of(block);
    let plan = plan::Plan::new(&mut nest, schedule);
    if let Some(vector) = &plan.vector {
        pack::pack_constants(&mut nest, vector);
    }
    emit::emit(nest, &plan)
}

fn nest_of(block: &BlockProgram) -> flat::Nest {
    let mut nest = flat::flatten(block);
    flat::store_early(&mut nest);
    merge::merge_axes(&mut nest);
    nest
}
