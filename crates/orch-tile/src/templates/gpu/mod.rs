//! Templates for GPUs: block programs as thread programs of teams.

pub mod contraction;

use crate::block::BlockProgram;
use crate::target::GpuTarget;
use crate::templates::Design;

/// What contractions of f32 multiply. Sums are f32 in any case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Factors {
    /// f32, on scalar units.
    F32,
    /// f32 of which the matrix units take 10 bits of the fraction.
    Tf32,
    /// Factors rounded to f16.
    F16,
    /// Factors rounded to bf16.
    Bf16,
}

/// Lowers a block program with the first template that serves it, under the schedule that its model prefers.
pub fn design(block: &BlockProgram, target: &GpuTarget, factors: Factors) -> Option<Design> {
    designs(block, target, factors, 1).into_iter().next()
}

/// At most `limit` designs, the one that the template's model prefers first.
pub fn designs(block: &BlockProgram, target: &GpuTarget, factors: Factors, limit: usize) -> Vec<Design> {
    let lower = |schedule: &contraction::ContractionSchedule| {
        let kernel = contraction::lower(block, schedule, target, factors).ok()?;
        Some(Design { kernel, schedule: format!("contraction {schedule:?}") })
    };
    contraction::schedules(block, target, factors, limit).iter().filter_map(lower).collect()
}
