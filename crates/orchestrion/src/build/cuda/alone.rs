//! The cost of selections and scattering on a GPU.

use super::recurrence::CYCLES_PER_US;
use crate::plan::kernel::{KernelEstimate, KernelWork};
use orch_compute::{Arg, ScatterProgram, SelectionProgram};
use orch_tune::gpu::GpuModel;

/// 10^9 per second, in 1 per microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// A kernel whose lines take so many cycles of an SM together, while their elements are read and written.
pub fn selection(selection: &SelectionProgram, cycles: f64, figures: &GpuModel) -> KernelEstimate {
    let roofline_us = moved_us(&selection.args, figures);
    estimate((cycles / CYCLES_PER_US).max(roofline_us), roofline_us, figures)
}

/// A kernel whose updates take so many cycles of an SM to find their places, and the result so long to be written after that.
pub fn scatter(scatter: &ScatterProgram, cycles: f64, figures: &GpuModel) -> KernelEstimate {
    let roofline_us = moved_us(&scatter.args, figures);
    estimate(cycles / CYCLES_PER_US + roofline_us, roofline_us, figures)
}

/// The time in which memory moves all arguments once.
fn moved_us(args: &[Arg], figures: &GpuModel) -> f64 {
    let bytes: usize = args.iter().map(|arg| arg.shape.elems() * arg.dtype.size_bytes()).sum();
    bytes as f64 / (GIGA_TO_MICRO * figures.memory_gbs)
}

fn estimate(busy_us: f64, roofline_us: f64, figures: &GpuModel) -> KernelEstimate {
    let time_us = figures.launch_us + figures.latency_us + busy_us;
    KernelEstimate { time_us, work: KernelWork { flops: 0.0, roofline_us, alone_us: time_us } }
}
