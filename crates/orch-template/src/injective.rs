//! Kernels without reductions: elementwise functions, copies under another layout, padding, concatenation, gathers.
//!
//! One loop nest over the axes of the result, which are merged where every access allows: `y[i] = f(a[i], b[i], ..)`
//! with vectors along the axis that makes most accesses contiguous, partial vectors masked, and tasks of equal
//! shares of the outermost axes. Numerics: one evaluation per element, as the block program says.

use crate::design::CannotLower;
use crate::nest::{self, NestSchedule};
use orch_compute::block::{BlockProgram, Stage};
use orch_thread::kernel::Kernel;
use orch_thread::target::CpuTarget;

/// The schedules worth trying, the preferred one first; none if the template does not serve the program.
pub fn schedules(block: &BlockProgram, target: &CpuTarget) -> Vec<NestSchedule> {
    if serves(block) { nest::schedules(block, target) } else { Vec::new() }
}

/// The kernel under a schedule.
///
/// # Errors
/// If the program reduces something.
pub fn lower(block: &BlockProgram, schedule: &NestSchedule) -> Result<Kernel, CannotLower> {
    if !serves(block) {
        return Err(CannotLower::NotThisTemplate("the program has a reduction"));
    }
    Ok(nest::lower(block, schedule))
}

fn serves(block: &BlockProgram) -> bool {
    block.stages.iter().all(|stage| matches!(stage, Stage::Store { .. }))
}
