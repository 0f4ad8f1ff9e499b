//! The schedules of a contraction, the one that the model prefers first.

use super::model::{Problem, cycles};
use super::runs::{access_bytes, natural_major};
use super::schedule::{GpuContractionSchedule, Major};
use super::space::{WIDE_N, space};
use super::tma::loads_by_tma;
use super::unit::MathUnit;
use crate::CannotLower;
use crate::contraction::{ContractionForm, GemmShape};
use crate::gpu::rank::varied;
use orch_compute::block::{ArgRole, BlockProgram};
use orch_compute::expr::{ArgId, Expr, ExprId};
use orch_thread::OperandPrecision;
use orch_thread::cta::{SWIZZLE_ROW, WARP_GROUP_ROWS};
use orch_thread::target::GpuTarget;
use std::collections::BTreeSet;

/// The contraction of a block program, with rows as GPUs read them.
///
/// # Errors
/// If the program is none.
pub fn form_of(block: &BlockProgram) -> Result<ContractionForm, CannotLower> {
    Ok(ContractionForm::of(block)?.with_contiguous_rows(block))
}

/// True for a contraction of a type that some unit multiplies.
pub fn is_served(block: &BlockProgram, precision: OperandPrecision) -> bool {
    form_of(block).is_ok_and(|form| MathUnit::of(block, &form, precision).is_some())
}

/// True for a contraction with one row or one column (GEMV).
pub fn is_thin(block: &BlockProgram) -> bool {
    form_of(block).is_ok_and(|form| {
        let extents = GemmShape::of(block, &form);
        extents.m == 1 || extents.n == 1
    })
}

/// True for a product of many rows with few columns and a short K dimension that threads compute faster each by itself, on FMA units: a CTA of
/// this template has hardly begun when it has ended. K has at most 8 elements, or rows are not read 16 bytes at a time, as pixels of 3
/// channels. For 3.2 million pixels of 8 channels to 16 maps an H200 takes 297 us by tiles of 64 x 16, 125 by threads.
pub fn is_for_threads(block: &BlockProgram) -> bool {
    form_of(block).is_ok_and(|form| {
        let GemmShape { batch, m, n, k } = GemmShape::of(block, &form);
        // Pixels are columns where maps are apart in memory.
        let (rows, columns, image) = if m >= n { (m, n, 0) } else { (n, m, 1) };
        let is_short = batch * rows >= SHORT_ROWS && columns <= SHORT && k <= SHORT;
        is_short && (k <= SHORTEST || access_bytes(block, &form)[image] < LEAST_ACCESS)
    })
}

/// Rows from which on a product [may be for threads](is_for_threads).
pub const SHORT_ROWS: usize = 1 << 18;

/// Most columns of such a product, and most elements of its K dimension.
pub const SHORT: usize = 32;

/// The K dimension up to which it is for threads however its rows lie in memory.
const SHORTEST: usize = 8;

/// Bytes of the access by which tiles are copied well.
const LEAST_ACCESS: u64 = 16;

/// At most `limit` schedules, the preferred one first; none if the template does not serve the program.
pub fn schedules(
    block: &BlockProgram,
    target: &GpuTarget,
    precision: OperandPrecision,
    limit: usize,
) -> Vec<GpuContractionSchedule> {
    let ranked = ranked(block, target, precision);
    let is_tensor_core = form_of(block)
        .is_ok_and(|form| matches!(MathUnit::of(block, &form, precision), Some(MathUnit::TensorCore(_))));
    // On tensor cores schedules that differ in `stages` and `block_k` alone are of one kind.
    let kind = |(_, schedule): &(f64, GpuContractionSchedule)| {
        let GpuContractionSchedule { block_m, block_n, warps_m, split_k, tma, .. } = *schedule;
        is_tensor_core.then_some((block_m, block_n, warps_m, split_k, tma))
    };
    varied(ranked.into_iter(), kind).map(|(_, schedule)| schedule).take(limit).collect()
}

/// All schedules with their modelled cycles, the fewest first.
fn ranked(
    block: &BlockProgram,
    target: &GpuTarget,
    precision: OperandPrecision,
) -> Vec<(f64, GpuContractionSchedule)> {
    let Ok(form) = form_of(block) else { return Vec::new() };
    let Some(unit) = MathUnit::of(block, &form, precision) else { return Vec::new() };
    let is_computed = [form.a, form.b].into_iter().any(|operand| is_computed(block, operand));
    let extents = GemmShape::of(block, &form);
    let GemmShape { batch, m, n, k } = extents;
    let elements =
        elements(block, form.a, batch * m * k) + elements(block, form.b, batch * n * k) + batch * m * n;
    let mut space: Vec<GpuContractionSchedule> = space(unit, target).collect();
    // A tile is less than a warp group's rows taller than the result.
    let warp_group_m = WARP_GROUP_ROWS;
    space.retain(|schedule| schedule.block_m <= warp_group_m || schedule.block_m < extents.m + warp_group_m);
    // Without `wgmma` the model was fitted to kernels of either major dimension, and does not tell them apart.
    let mut b_major = Major::K;
    if space.iter().any(|schedule| schedule.wgmma) {
        let majors = natural_major(block, &form, unit);
        b_major = majors[1];
        let is_served = |schedule: &GpuContractionSchedule, operand: usize| {
            schedule.required_major(operand).is_none_or(|required| majors[operand] == required)
        };
        space.retain(|schedule| is_served(schedule, 0) && is_served(schedule, 1));
        let with_tma = space.iter().find(|schedule| schedule.tma);
        let has_tma = with_tma.is_some_and(|&schedule| loads_by_tma(block, form, unit, schedule));
        space.retain(|schedule| {
            !schedule.wgmma || schedule.tma == has_tma || has_tma && is_worth_beside_tma(schedule)
        });
    }
    let problem = Problem { extents, unit, b_major, is_computed, elements };
    let mut ranked: Vec<(f64, GpuContractionSchedule)> =
        (space.into_iter()).map(|schedule| (cycles(&schedule, problem, target), schedule)).collect();
    ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    ranked
}

/// Elements in memory that an operand of so many elements is computed from.
fn elements(block: &BlockProgram, operand: ExprId, all: usize) -> usize {
    let reads = block.exprs.reachable(&[operand]).into_iter().filter_map(|id| match block.exprs.get(id) {
        Expr::Read { arg, .. } => Some(*arg),
        _ => None,
    });
    let args: BTreeSet<ArgId> = reads.collect();
    args.into_iter().map(|arg| block.arg(arg).shape.elems()).sum::<usize>().min(all)
}

/// True for an operand that is neither read from memory as it is, or in another type, nor packed as a constant.
fn is_computed(block: &BlockProgram, operand: ExprId) -> bool {
    let inner = block.exprs.without_casts(operand);
    let reads_variable = block.exprs.reachable(&[inner]).into_iter().any(|id| match block.exprs.get(id) {
        Expr::Read { arg, .. } => block.arg(*arg).role != ArgRole::Constant,
        _ => false,
    });
    reads_variable && !matches!(block.exprs.get(inner), Expr::Read { .. })
}

/// True if `wgmma` with loads by threads is worth trying where TMA can load the operands: a short K dimension ends before the
/// first TMA load arrives, and threads read strips (see the model's DRAM rate) faster than TMA. Six stages of tiles
/// narrower than [`WIDE_N`], and four of others, let two CTAs share an SM.
fn is_worth_beside_tma(schedule: &GpuContractionSchedule) -> bool {
    let stages = if schedule.block_n < WIDE_N { 6 } else { 4 };
    (schedule.block_k, schedule.stages, schedule.split_k) == (SWIZZLE_ROW, stages, 1)
}
