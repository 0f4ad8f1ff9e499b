//! Loop nests: how block programs without matrix products become thread programs. The injective and the row
//! template choose the schedule; this module is what they share. The templates for GPUs emit their own grids and outer
//! loops, and share with the CPU templates what is computed at one point of those loops.
//!
//! ```text
//! BlockProgram --flatten, store_early, merge_axes--> Nest --schedules--> NestSchedule
//!                                                      \                     |
//!                                                       \---- NestPlan::new -+--> NestPlan --emit--> Kernel
//!
//! for item in work items:                  (parallel)  outer axes, or chunks of them
//!   for outer axes of the work item:
//!     for vectors of the vector axis:                  if every stage varies over it
//!       stage 0: loops over reduced axes, accumulators
//!       stage 1: stores
//! ```
//!
//! - [`flat`] and [`merge`]: the block program over buffers and element offsets, its axes merged where memory is
//!   contiguous;
//! - [`choose`]: the schedules worth trying, by the cost model in [`cost`]; [`singles`]: elements that their kernels access one
//!   at a time;
//! - [`plan`]: which axes are *outer* (every stage varies over them), which axis lies along the lanes of vectors, what a
//!   work item computes;
//! - [`emit`]: the body of a work item: loops over outer axes, and within them one stage after the other;
//! - [`pieces`], [`cuts`] and [`limits`]: outer loops are cut, and reduction loops bounded, where guards change;
//! - [`reduce`] and [`store`]: a stage at one point, or at one vector of points, of the outer axes;
//! - [`shared`]: values that one stage saves for later ones; [`pack`]: constants laid out for the vector axis;
//! - [`window`]: register blocking of pooling windows and depthwise convolutions;
//! - [`tiling`] and [`tile`]: staging through scratch where an operand is contiguous along another axis than the result;
//! - [`point`]: the value of a scalar expression at such a point.

mod choose;
pub(super) mod cost;
mod cuts;
pub(super) mod emit;
pub(super) mod flat;
pub(super) mod identity;
mod limits;
pub(super) mod merge;
pub(super) mod pack;
mod pieces;
pub(super) mod plan;
pub(super) mod point;
pub(super) mod reduce;
mod replace;
pub(super) mod shared;
mod singles;
mod store;
mod tile;
pub(super) mod tiling;
pub(super) mod window;

pub use plan::{AxisBlock, LaneAxis, NestSchedule};

use crate::singles::SingleAccesses;
use orch_compute::block::BlockProgram;
use orch_thread::kernel::Kernel;
use orch_thread::target::CpuTarget;

/// What the kernel of a nest does, as the cost model counts it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NestWork {
    /// Independent parts of about equal size.
    pub work_items: usize,
    /// Elements that are accessed one at a time.
    pub singles: SingleAccesses,
    /// Share of the lanes of the target's vectors that hold elements, above 0 and at most 1.
    pub lanes_used: f64,
}

/// Share of the lanes of the target's vectors that hold elements: the last vector of an axis may be masked in part.
fn lanes_used(nest: &flat::Nest, plan: &plan::NestPlan, target: &CpuTarget) -> f64 {
    let lanes = cost::lanes_of(nest, target).max(plan.lanes);
    let extent = plan.vector.as_ref().map_or(1, |axis| axis.extent.max(1));
    extent as f64 / (extent.div_ceil(plan.lanes) * lanes) as f64
}

/// The schedules worth trying, the preferred one first.
pub(super) fn schedules(block: &BlockProgram, target: &CpuTarget) -> Vec<NestSchedule> {
    let mut nest = nest_of(block);
    choose::schedules(&mut nest, target)
}

/// What the kernel of the preferred schedule does; `None` if there is none.
pub(super) fn work(block: &BlockProgram, target: &CpuTarget) -> Option<NestWork> {
    let mut nest = nest_of(block);
    let schedule = choose::schedules(&mut nest, target).into_iter().next()?;
    let plan = plan::NestPlan::new(&mut nest, &schedule);
    let work_items = plan.work_item_extents().into_iter().product();
    let lanes_used = lanes_used(&nest, &plan, target);
    Some(NestWork { work_items, singles: singles::count(&mut nest, &plan, target), lanes_used })
}

/// The thread program under a schedule.
pub(super) fn lower(block: &BlockProgram, schedule: &NestSchedule) -> Kernel {
    let mut nest = nest_of(block);
    let plan = plan::NestPlan::new(&mut nest, schedule);
    if let Some(vector) = &plan.vector {
        pack::pack_constants(&mut nest, vector);
    }
    emit::emit(nest, &plan)
}

/// The block program as a nest that is ready for scheduling: early stores first, contiguous axes merged.
fn nest_of(block: &BlockProgram) -> flat::Nest {
    let mut nest = flat::flatten(block);
    flat::store_early(&mut nest);
    merge::merge_axes(&mut nest);
    nest
}
