//! Schedule templates: each lowers the block programs of one structure to thread programs.

pub mod contraction;
pub mod gpu;
pub mod injective;
mod nest;
pub mod row;

pub use nest::{Along, NestSchedule};

use contraction::{Engine, Extents, Form};
use orch_compute::block::BlockProgram;
use orch_thread::kernel::Kernel;
use orch_thread::target::CpuTarget;

/// Most terms that are added up in one chain: its rounding errors grow with its length.
const LONGEST_CHAIN: usize = 1024;

/// Why a template does not lower a block program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CannotLower {
    /// The program has another structure than the template serves.
    #[error("not a program of this template: {0}")]
    NotThisTemplate(&'static str),
}

/// A kernel and how it was made.
#[derive(Clone, Debug)]
pub struct Design {
    /// The kernel.
    pub kernel: Kernel,
    /// Template and schedule, for people and as the key of measured times: the text stays as it is while it means the same.
    pub schedule: String,
}

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
    let form = Form::of(block).ok()?;
    let extents = Extents::of(block, &form);
    let lanes = target.lanes(block.exprs.dtype(form.a).size_bytes());
    let engine = Engine::of(block, &form, target);
    let staging = contraction::staging(block, &form, engine);
    let schedule = *engine.schedules(extents, staging, lanes, target, 1).first()?;
    let kernel = contraction::lower(block, &schedule, target).ok()?;
    Some(Design { kernel, schedule: format!("contraction {engine} {schedule}") })
}
