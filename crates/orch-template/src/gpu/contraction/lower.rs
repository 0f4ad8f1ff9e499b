//! From a contraction to a thread program: arguments, main loop, epilogue.

use super::choose::form_of;
use super::emitter::GemmEmitter;
use super::operand::declare_arguments;
use super::schedule::{ACC_PADDING, GpuContractionSchedule};
use super::tiles::OperandTiles;
use super::tma::TmaOperand;
use super::unit::MathUnit;
use crate::CannotLower;
use crate::gpu::cta::ProgramEmitter;
use orch_compute::block::BlockProgram;
use orch_thread::OperandPrecision;
use orch_thread::kernel::Kernel;
use orch_thread::program::{Scope, ThreadProgram};

/// The kernel of a contraction under a schedule.
///
/// # Errors
/// If the block program is no contraction, no unit multiplies its type, or TMA cannot load its operands as the schedule says.
pub fn lower(
    block: &BlockProgram,
    schedule: &GpuContractionSchedule,
    precision: OperandPrecision,
) -> Result<Kernel, CannotLower> {
    let form = form_of(block)?;
    let unit = MathUnit::of(block, &form, precision)
        .ok_or(CannotLower::NotThisTemplate("nothing multiplies this type"))?;
    let mut emitter = GemmEmitter::new(block, form, unit, *schedule);
    let mut body = Vec::new();
    emitter.place_cta(&mut body);
    let (operands, bindings) = declare_arguments(&mut emitter);
    let [a, b] = operands.map(|operand| OperandTiles::new(&mut emitter, operand));
    let acc_elems = schedule.block_m * (schedule.block_n + ACC_PADDING);
    // With split-K the other CTAs may write to the accumulator tile while this one still reads operand tiles.
    let scope = if emitter.is_split_k() { Scope::Shared } else { Scope::ReusedShared };
    emitter.acc_tile = emitter.add_buffer("sums", unit.acc_type(), acc_elems, scope);

    let main_loop = if schedule.tma {
        let operands = TmaOperand::of_both(&mut emitter, [&a, &b]);
        let operands =
            operands.ok_or(CannotLower::NotThisTemplate("an operand is no array that TMA can load"))?;
        emitter.tma_main_loop(&operands)
    } else {
        emitter.thread_main_loop(&a, &b)
    };
    body.extend(main_loop);
    body.extend(emitter.epilogue(a.major, b.major));
    Ok(Kernel { program: ThreadProgram { body, ..emitter.program }, bindings })
}
