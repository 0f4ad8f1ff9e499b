//! Kernels with reductions that are not matrix products: softmax, normalisations, pooling, depthwise convolution,
//! sums, products, extrema and their positions, in any combination.
//!
//! Axes that every stage varies over are the outer loops; at each of their points the stages run one after the
//! other. Vectors lie either along an axis that is reduced (a row of a matrix: several accumulators, whose lanes are
//! combined at the end) or along an axis of the results (channels of a pooling window: one result per lane). Results
//! that vary over inner axes are kept in scratch.
//!
//! Numerics: sums along vectors have as many partial sums as accumulators have lanes; sums of products round once
//! per term.

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
/// If the program has no reduction.
pub fn lower(block: &BlockProgram, schedule: &NestSchedule) -> Result<Kernel, CannotLower> {
    if !serves(block) {
        return Err(CannotLower::NotThisTemplate("the program has no reduction"));
    }
    Ok(nest::lower(block, schedule))
}

fn serves(block: &BlockProgram) -> bool {
    block.stages.iter().any(|stage| matches!(stage, Stage::Reduce { .. }))
}
