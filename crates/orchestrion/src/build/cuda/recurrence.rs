//! The cost of recurrences on a GPU.

use crate::plan::kernel::{KernelEstimate, KernelWork};
use orch_compute::RecurrenceProgram;
use orch_tune::gpu::GpuModel;

/// 10^9 per second, in 1 per microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// Cycles of an SM in a microsecond, by which the template counts.
pub(super) const CYCLES_PER_US: f64 = 1.7e3;

/// A kernel whose steps take so many cycles together.
pub fn estimate(recurrence: &RecurrenceProgram, cycles: f64, figures: &GpuModel) -> KernelEstimate {
    let extents = recurrence.extents;
    let sequences = extents.time * extents.batch * extents.directions;
    let flops = 2.0 * recurrence.products() as f64 * sequences as f64;
    let bytes: usize = recurrence.args.iter().map(|arg| arg.shape.elems() * arg.dtype.size_bytes()).sum();
    let roofline_us = (flops / (GIGA_TO_MICRO * figures.f32_gflops))
        .max(bytes as f64 / (GIGA_TO_MICRO * figures.memory_gbs));
    let time_us = figures.launch_us + figures.latency_us + cycles / CYCLES_PER_US;
    KernelEstimate { time_us, work: KernelWork { flops, roofline_us, alone_us: time_us } }
}
