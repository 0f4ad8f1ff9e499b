//! The cost of recurrences on a CPU.

use crate::plan::kernel::{KernelEstimate, KernelWork};
use orch_compute::RecurrenceProgram;
use orch_template::recurrence::schedule;
use orch_thread::target::CpuTarget;
use orch_tune::MachineModel;

/// 10^9 per second, in 1 per microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// Share of a core's multiply-adds that products of few sequences reach, between cells that wait for them. LSTMs of 16 sequences and
/// 96 hidden units take 200 us for 16 steps, of 128 hidden units and one sequence 100 us for 50 steps, on a core of a Xeon.
const REACHED: f64 = 0.45;

/// Transcendental functions of a hidden unit in one step, at most: five activations of an LSTM.
fn functions(recurrence: &RecurrenceProgram) -> f64 {
    (recurrence.spec.cell.gates() + 1) as f64
}

/// Each task runs step after step; in each it multiplies with all weights of its direction, which it reads from L2 or from
/// farther away.
pub fn estimate(
    recurrence: &RecurrenceProgram,
    target: &CpuTarget,
    figures: &MachineModel,
) -> KernelEstimate {
    let extents = recurrence.extents;
    let rows = schedule(recurrence, target).batch_rows;
    let tasks = extents.directions * extents.batch.div_ceil(rows);
    let threads = (figures.threads as usize).max(1);
    let weights_bytes = (recurrence.products() * recurrence.compute_type().size_bytes()) as f64;
    let is_near = weights_bytes <= figures.l2_bytes as f64;
    let weights_gbs = if is_near { figures.l2_gbs_core } else { figures.memory_gbs_core };
    let flops = 2.0 * (recurrence.products() * rows) as f64;
    let multiply_us = flops / (GIGA_TO_MICRO * REACHED * figures.fma_gflops_core);
    let read_us = weights_bytes / (GIGA_TO_MICRO * weights_gbs);
    let cells = (extents.hidden * rows) as f64 * functions(recurrence);
    let cells_us = cells / (GIGA_TO_MICRO * figures.transcendental_gops_core);
    let step_us = multiply_us.max(read_us) + cells_us;
    let rounds = tasks.div_ceil(threads) as f64;
    let bytes: usize = recurrence.args.iter().map(|arg| arg.shape.elems() * arg.dtype.size_bytes()).sum();
    let all_flops = 2.0 * (recurrence.products() * extents.time * extents.batch * extents.directions) as f64;
    let roofline_us = (all_flops / (GIGA_TO_MICRO * figures.fma_gflops_all))
        .max(bytes as f64 / (GIGA_TO_MICRO * figures.memory_gbs_all));
    let time_us = figures.launch_parallel_us + rounds * extents.time as f64 * step_us;
    let alone_us = tasks as f64 * extents.time as f64 * step_us;
    KernelEstimate { time_us, work: KernelWork { flops: all_flops, roofline_us, alone_us } }
}
