//! Schedule templates: each lowers the block programs of one structure to thread programs.

mod bind;
pub mod contraction;
pub mod cumulative;
mod design;
pub mod gpu;
pub mod injective;
mod nest;
pub mod recurrence;
pub mod row;
pub mod scatter;
pub mod selection;

pub use design::{CannotLower, Design};
pub use nest::{AxisBlock, LaneAxis, NestSchedule};

use orch_compute::block::BlockProgram;
use orch_thread::kernel::Kernel;
use orch_thread::target::CpuTarget;

/// Least modelled cycles of a task of a CPU kernel whose tasks may have any number of lines: less is spent on starting it.
pub(crate) const TASK_CYCLES: f64 = 20_000.0;

/// Lowers a block program with the first template that serves it, under the schedule that its model prefers.
pub fn design(block: &BlockProgram, target: &CpuTarget) -> Option<Design> {
    contraction_design(block, target)
        .or_else(|| nest_design("row", block, row::schedules(block, target), row::lower))
        .or_else(|| nest_design("injective", block, injective::schedules(block, target), injective::lower))
}

fn nest_design(
    name: &str,
    block: &BlockProgram,
    schedules: Vec<NestSchedule>,
    lower: fn(&BlockProgram, &NestSchedule) -> Result<Kernel, CannotLower>,
) -> Option<Design> {
    let schedule = schedules.into_iter().next()?;
    let kernel = lower(block, &schedule).ok()?;
    Some(Design { kernel, schedule: format!("{name} {schedule}") })
}

fn contraction_design(block: &BlockProgram, target: &CpuTarget) -> Option<Design> {
    let (math_unit, schedule) = contraction::preferred(block, target)?;
    let kernel = contraction::lower(block, &schedule, target).ok()?;
    Some(Design { kernel, schedule: format!("contraction {math_unit} {schedule}") })
}
