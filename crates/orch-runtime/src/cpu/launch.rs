//! What a step of a program does on the CPU.

use super::kernel::CpuKernel;
use super::pool::Chunking;
use crate::program::{self, BufferRef, KernelLaunch};

/// One kernel launch.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: CpuKernel,
    /// Its tensors, in its order.
    pub buffers: Vec<BufferRef>,
    /// How its work items are shared among threads, those of a phase where there are several.
    pub chunking: Chunking,
    /// Phases that run one after the other, each of as many consecutive work items.
    pub phases: i64,
}

/// What a step does.
pub type Action = program::Action<Launch>;

/// One step of a program.
pub type CpuStep = program::Step<Launch>;

/// Steps in order, and the memory that they use. Constants that do not start at a multiple of
/// [`ALIGN_BYTES`](super::ALIGN_BYTES) are copied once.
pub type Program = program::Program<Launch>;

impl KernelLaunch for Launch {
    fn buffers(&self) -> &[BufferRef] {
        &self.buffers
    }

    fn violations(&self) -> Vec<String> {
        let tasks = self.kernel.tasks();
        let are_phases = self.phases >= 1 && tasks % self.phases == 0;
        let violation = || format!("has {tasks} tasks in {} phases", self.phases);
        (!are_phases).then(violation).into_iter().collect()
    }
}

/// The largest scratch memory that a kernel needs.
pub(super) fn scratch_bytes(program: &Program) -> usize {
    let of_step = |step: &CpuStep| match &step.action {
        Action::Launch(launch) => launch.kernel.scratch_bytes(),
        Action::Host(_) | Action::Copy { .. } => 0,
    };
    program.steps.iter().map(of_step).max().unwrap_or(0)
}
