//! The cost of selections on a GPU.

use super::recurrence::CYCLES_PER_US;
use crate::plan::kernel::{KernelEstimate, KernelWork};
use orch_compute::SelectionProgram;
use orch_tune::gpu::GpuModel;

/// 10^9 per second, in 1 per microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// A kernel whose lines take so many cycles of an SM together.
pub fn estimate(selection: &SelectionProgram, cycles: f64, figures: &GpuModel) -> KernelEstimate {
    let bytes: usize = selection.args.iter().map(|arg| arg.shape.elems() * arg.dtype.size_bytes()).sum();
    let roofline_us = bytes as f64 / (GIGA_TO_MICRO * figures.memory_gbs);
    let time_us = figures.launch_us + figures.latency_us + (cycles / CYCLES_PER_US).max(roofline_us);
    KernelEstimate { time_us, work: KernelWork { flops: 0.0, roofline_us, alone_us: time_us } }
}
