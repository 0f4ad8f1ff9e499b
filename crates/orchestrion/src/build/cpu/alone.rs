//! The cost of selections, cumulative sums and scattering on a CPU.

use crate::plan::kernel::{KernelEstimate, KernelWork};
use orch_compute::{Arg, CumulativeProgram, ScatterData, ScatterIndex, ScatterProgram, SelectionProgram};
use orch_template::cumulative::CumulativeSchedule;
use orch_template::scatter::ScatterSchedule;
use orch_template::selection::schedule;
use orch_thread::target::CpuTarget;
use orch_tune::MachineModel;

/// 10^9 per second, in 1 per microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// Cycles of the templates' models in a microsecond.
const CYCLES_PER_US: f64 = 3e3;

/// Time of an update of one element that is written at an index of its own.
const UPDATE_NS: f64 = 1.5;

/// Time of looking at an index.
const INDEX_NS: f64 = 1.0;

/// Each thread selects in whole lines.
pub fn selection(program: &SelectionProgram, figures: &MachineModel) -> KernelEstimate {
    let schedule = schedule(program);
    let task_us = schedule.line_cycles(program) * schedule.lines as f64 / CYCLES_PER_US;
    estimate(&program.args, (schedule.tasks(program), task_us), figures)
}

/// Each thread goes along some lines.
pub fn cumulative(program: &CumulativeProgram, target: &CpuTarget, figures: &MachineModel) -> KernelEstimate {
    let schedule = CumulativeSchedule::of(program, target);
    let bytes: usize = program.args.iter().map(|arg| arg.dtype.size_bytes()).sum();
    let moved = bytes * schedule.outer * program.extent * schedule.columns;
    let moved_us = moved as f64 / (GIGA_TO_MICRO * figures.memory_gbs_core);
    let task_us = moved_us.max(schedule.task_cycles(program, target) / CYCLES_PER_US);
    estimate(&program.args, (schedule.tasks(program), task_us), figures)
}

/// Each thread copies parts of the data and looks at the indices for each of them.
pub fn scatter(program: &ScatterProgram, figures: &MachineModel) -> KernelEstimate {
    let ScatterSchedule { rows, columns } = ScatterSchedule::of(program);
    let tasks = ScatterSchedule::of(program).tasks(program);
    let size = program.dtype().size_bytes() as f64;
    let passes = if matches!(program.data, ScatterData::Tensor(_)) { 2.0 } else { 1.0 };
    let copied_us = passes * size * (rows * columns) as f64 / (GIGA_TO_MICRO * figures.memory_gbs_core);
    let updated = program.count * columns;
    let updates_us = match program.index {
        ScatterIndex::Elements => 1e-3 * UPDATE_NS * updated as f64,
        ScatterIndex::Tuples(_) => {
            let share = rows as f64 / program.extent as f64;
            let moved_us = 2.0 * size * share * updated as f64 / (GIGA_TO_MICRO * figures.memory_gbs_core);
            1e-3 * INDEX_NS * program.count as f64 + moved_us
        }
    };
    estimate(&program.args, (tasks, copied_us + updates_us), figures)
}

/// A kernel of so many tasks, each of which takes so many microseconds.
fn estimate(args: &[Arg], (tasks, task_us): (usize, f64), figures: &MachineModel) -> KernelEstimate {
    let threads = (figures.threads as usize).clamp(1, tasks.max(1));
    let launch_us = if threads > 1 { figures.launch_parallel_us } else { figures.launch_inline_us };
    let bytes: usize = args.iter().map(|arg| arg.shape.elems() * arg.dtype.size_bytes()).sum();
    let roofline_us = bytes as f64 / (GIGA_TO_MICRO * figures.memory_gbs_all);
    let time_us = launch_us + tasks.div_ceil(threads) as f64 * task_us;
    KernelEstimate { time_us, work: KernelWork { flops: 0.0, roofline_us, alone_us: tasks as f64 * task_us } }
}
