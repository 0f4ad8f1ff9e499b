//! Loop nests: how block programs without matrix products become thread programs. The injective and the row
//! template choose the schedule; what they share is here.
//!
//! - [`flat`]: the block program over buffers and element offsets, its axes merged where memory is contiguous;
//! - [`plan`]: which axes are *outer* (every stage varies over them), which axis lies along vectors, what a task is;
//! - [`emit`]: tasks and loops over outer axes, and within them one stage after the other;
//! - [`reduce`] and [`store`]: a stage at one point, or at one vector of points, of the outer axes;
//! - [`tile`]: staging through scratch where an operand is contiguous along another axis than the result;
//! - [`place`]: the value of a scalar expression at such a place.

mod cost;
mod cuts;
mod emit;
mod flat;
mod limits;
mod merge;
mod pack;
mod place;
mod plan;
mod reduce;
mod replace;
mod shared;
mod store;
mod tile;
mod window;

pub use plan::NestSchedule;

use super::kernel::Kernel;
use crate::block::BlockProgram;
use crate::target::CpuTarget;

/// The schedules worth trying, the preferred one first.
pub(super) fn schedules(block: &BlockProgram, target: &CpuTarget) -> Vec<NestSchedule> {
    let mut nest = flat::flatten(block);
    merge::merge_axes(&mut nest);
    plan::schedules(&mut nest, target)
}

/// The thread program under a schedule.
pub(super) fn lower(block: &BlockProgram, schedule: &NestSchedule) -> Kernel {
    let mut nest = flat::flatten(block);
    merge::merge_axes(&mut nest);
    let plan = plan::Plan::new(&mut nest, schedule);
    if let Some(vector) = &plan.vector {
        pack::pack_constants(&mut nest, vector);
    }
    emit::emit(nest, &plan)
}
