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

/// A work item runs step after step; in each it multiplies with all weights of its direction, which it reads from L2 or from
/// farther away. Where steps are shared, threads wait for each other after each, and read their part of the weights.
pub fn estimate(
    recurrence: &RecurrenceProgram,
    target: &CpuTarget,
    figures: &MachineModel,
) -> KernelEstimate {
    let extents = recurrence.extents;
    let schedule = schedule(recurrence, target);
    let (rows, items) = (schedule.batch_rows, schedule.items(recurrence, target));
    let is_shared = schedule.panels.is_some();
    let threads = (figures.threads as usize).clamp(1, items.max(1));
    let weights_bytes = (recurrence.products() * recurrence.compute_type().size_bytes()) as f64;
    let multiply_us =
        2.0 * (recurrence.products() * rows) as f64 / (GIGA_TO_MICRO * REACHED * figures.fma_gflops_core);
    let cells = (extents.hidden * rows) as f64 * functions(recurrence);
    let cells_us = cells / (GIGA_TO_MICRO * figures.transcendental_gops_core);
    // A work item in a step: all units of one direction, or those that it has of them.
    let item_us = |threads: usize| {
        let (share, own_bytes) = match is_shared {
            true => {
                let directions = extents.directions as f64;
                (directions / items as f64, weights_bytes * directions / threads as f64)
            }
            false => (1.0, weights_bytes),
        };
        let is_near = own_bytes <= figures.l2_bytes as f64;
        let weights_gbs = if is_near { figures.l2_gbs_core } else { figures.memory_gbs_core };
        let read_us = weights_bytes / (GIGA_TO_MICRO * weights_gbs);
        share * (multiply_us.max(read_us) + cells_us)
    };
    let wait_us = if is_shared && threads > 1 { figures.launch_parallel_us } else { 0.0 };
    let step_us = items.div_ceil(threads) as f64 * item_us(threads) + wait_us;
    let bytes: usize = recurrence.args.iter().map(|arg| arg.shape.elems() * arg.dtype.size_bytes()).sum();
    let all_flops = 2.0 * (recurrence.products() * extents.time * extents.batch * extents.directions) as f64;
    let roofline_us = (all_flops / (GIGA_TO_MICRO * figures.fma_gflops_all))
        .max(bytes as f64 / (GIGA_TO_MICRO * figures.memory_gbs_all));
    let time_us = figures.launch_parallel_us + extents.time as f64 * step_us;
    let alone_us = (items * extents.time) as f64 * item_us(1);
    KernelEstimate { time_us, work: KernelWork { flops: all_flops, roofline_us, alone_us } }
}
