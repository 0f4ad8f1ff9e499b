//! Schedule templates: each lowers the block programs of one structure to thread programs.

mod balance;
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
mod singles;

pub use design::{CannotLower, Design};
pub use nest::{AxisBlock, LaneAxis, NestSchedule, NestWork};
pub use singles::SingleAccesses;

use orch_compute::block::BlockProgram;
use orch_thread::kernel::Kernel;
use orch_thread::target::CpuTarget;

/// Least modelled cycles of a task of a CPU kernel whose tasks may have any number of lines: less is spent on starting it.
pub(crate) const TASK_CYCLES: f64 = 20_000.0;

/// Lowers a block program with the first template that serves it, under at most `limit` schedules in the order of its model's
/// preference; none if no template does.
pub fn designs(block: &BlockProgram, target: &CpuTarget, limit: usize) -> Vec<Design> {
    let mut designs = contraction_designs(block, target, limit);
    if designs.is_empty() {
        designs = nest_designs("row", block, row::schedules(block, target), row::lower, limit);
    }
    if designs.is_empty() {
        designs =
            nest_designs("injective", block, injective::schedules(block, target), injective::lower, limit);
    }
    designs
}

/// What the kernel of the preferred design of a block program other than a contraction ([`contraction::work`]) does, without lowering
/// it; `None` if no template serves it.
pub fn nest_work(block: &BlockProgram, target: &CpuTarget) -> Option<NestWork> {
    nest::work(block, target)
}

fn nest_designs(
    name: &str,
    block: &BlockProgram,
    schedules: Vec<NestSchedule>,
    lower: fn(&BlockProgram, &NestSchedule) -> Result<Kernel, CannotLower>,
    limit: usize,
) -> Vec<Design> {
    let design = |schedule: &NestSchedule| {
        let kernel = lower(block, schedule).ok()?;
        Some(Design { kernel, schedule: format!("{name} {schedule}") })
    };
    // Without the preferred schedule the template does not serve.
    schedules.iter().take(limit).map_while(design).collect()
}

fn contraction_designs(block: &BlockProgram, target: &CpuTarget, limit: usize) -> Vec<Design> {
    let Some((math_unit, schedules)) = contraction::schedules(block, target, limit) else {
        return Vec::new();
    };
    let design = |schedule: &contraction::CpuContractionSchedule| {
        let kernel = contraction::lower(block, schedule, target).ok()?;
        Some(Design { kernel, schedule: format!("contraction {math_unit} {schedule}") })
    };
    schedules.iter().map_while(design).collect()
}
