//! How the work items of a plan's kernels fall to threads: what more cores can bring, before anything is built.

use super::planned::Planned;
use crate::manifest::ActionInfo;
use orch_thread::shares::WorkItemShares;

/// A step that launches a kernel on a CPU.
#[derive(Clone, Debug)]
pub struct StepShares {
    /// Its name.
    pub name: String,
    /// Template and schedule of the kernel.
    pub schedule: String,
    /// Modelled microseconds on one thread, without the launch.
    pub alone_us: f64,
    /// Floating-point operations, a multiply-add as two.
    pub flops: f64,
    /// Its work items, those of a phase where there are several.
    pub work_items: usize,
    /// What they do.
    pub shares: WorkItemShares,
}

impl Planned {
    /// What the work items of each step do that launches a kernel; of a plan for a CPU.
    pub fn shares(&self) -> Vec<StepShares> {
        let kernels = &self.implementation.kernels;
        let mut known: Vec<Option<WorkItemShares>> = vec![None; kernels.len()];
        let mut steps = Vec::new();
        for step in &self.assembly.steps {
            let ActionInfo::Kernel(number) = step.action else { continue };
            let design = &kernels[number].design;
            let program = &design.kernel.program;
            let shares = known[number].get_or_insert_with(|| WorkItemShares::of(program)).clone();
            steps.push(StepShares {
                name: step.name.clone(),
                schedule: design.schedule.clone(),
                alone_us: step.alone_us,
                flops: step.flops,
                work_items: program.phase_items(),
                shares,
            });
        }
        steps
    }
}
