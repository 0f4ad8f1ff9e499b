//! Which templates serve a block program, and the designs of each in the order in which they are worth trying.

use super::attention::AttentionForm;
use super::rank::varied;
use super::{attention, contraction, points, pointwise, row, transpose};
use crate::Design;
use orch_compute::block::BlockProgram;
use orch_thread::OperandPrecision;
use orch_thread::target::GpuTarget;

/// True if a block program has the structure that a template serves. Whether a schedule fits the target is decided by [`design`]
/// alone, which takes much longer.
pub fn serves(block: &BlockProgram, target: &GpuTarget, precision: OperandPrecision) -> bool {
    if AttentionForm::of(block).is_ok() {
        return !attention::schedules(block, target, precision).is_empty();
    }
    contraction::is_served(block, precision) || {
        let nest = points::nest_of(block);
        pointwise::serves(&nest) || row::serves(&nest)
    }
}

/// Lowers a block program with the first template that serves it, under the schedule that its model prefers.
pub fn design(block: &BlockProgram, target: &GpuTarget, precision: OperandPrecision) -> Option<Design> {
    designs(block, target, precision, 1).into_iter().next()
}

/// At most `limit` designs, the one that the template's model prefers first, before any [pass](orch_thread::passes).
pub fn designs(
    block: &BlockProgram,
    target: &GpuTarget,
    precision: OperandPrecision,
    limit: usize,
) -> Vec<Design> {
    if AttentionForm::of(block).is_ok() {
        let lower = |schedule: attention::AttentionSchedule| {
            let kernel = attention::lower(block, &schedule, precision).ok()?;
            Some(Design { kernel, schedule: format!("attention {schedule}") })
        };
        let schedules = attention::schedules(block, target, precision);
        return schedules.into_iter().take(limit).filter_map(lower).collect();
    }
    let gemm = |limit: usize| {
        let lower = |schedule: &contraction::GpuContractionSchedule| {
            let kernel = contraction::lower(block, schedule, precision).ok()?;
            Some(Design { kernel, schedule: format!("contraction {schedule}") })
        };
        contraction::schedules(block, target, precision, limit).iter().filter_map(lower).collect()
    };
    let nest = |limit: usize| nest_designs(block, target, limit);
    // A product with one row or column (GEMV) reads its operands once: little is gained by tiles, as where they are short. The two
    // templates' models are not comparable, so half of several designs are the other template's.
    let by_threads = contraction::is_thin(block) || contraction::is_for_threads(block);
    let mut found: Vec<Design> = if by_threads { nest(limit.div_ceil(2)) } else { gemm(limit) };
    // The other template ranks its schedules, which takes long, only if its designs are wanted.
    if found.len() < limit {
        let rest = limit - found.len();
        found.extend(if by_threads { gemm(rest) } else { nest(rest) });
    }
    found
}

/// At most `limit` designs of the pointwise, transpose and row templates.
fn nest_designs(block: &BlockProgram, target: &GpuTarget, limit: usize) -> Vec<Design> {
    let mut ranked: Vec<(f64, NestDesign)> = Vec::new();
    let pointwise = pointwise::ranked(block, target).into_iter();
    ranked.extend(pointwise.map(|(cycles, schedule)| (cycles, NestDesign::Pointwise(schedule))));
    let transpose = transpose::ranked(block, target).into_iter();
    ranked.extend(transpose.map(|(cycles, schedule)| (cycles, NestDesign::Transpose(schedule))));
    let row = row::ranked(block, target).into_iter();
    ranked.extend(row.map(|(cycles, schedule)| (cycles, NestDesign::Row(schedule))));
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    // A design of another kind comes early only if the model does not find it much slower.
    let most = MUCH_SLOWER * ranked.first().map_or(0.0, |(cycles, _)| *cycles);
    let kind = |(cycles, design): &(f64, NestDesign)| (*cycles <= most).then(|| design.kind());
    let ranked = varied(ranked.into_iter(), kind);
    ranked.filter_map(|(_, design)| design.lower(block)).take(limit).collect()
}

/// Modelled time from which on a design counts as much slower, relative to the fastest design.
const MUCH_SLOWER: f64 = 1.5;

/// A schedule of the pointwise, transpose or row template.
enum NestDesign {
    Pointwise(pointwise::PointwiseSchedule),
    Row(row::RowSchedule),
    Transpose(transpose::TransposeSchedule),
}

impl NestDesign {
    /// What designs have in common that take about the same time.
    fn kind(&self) -> (&'static str, [usize; 4]) {
        match self {
            NestDesign::Pointwise(schedule) => {
                let count = schedule.block.map_or(0, |block| block.points);
                ("pointwise", [schedule.vector.unwrap_or_default(), schedule.lanes, count, schedule.vectors])
            }
            NestDesign::Row(schedule) => {
                ("row", [schedule.lanes, schedule.row_threads, schedule.rows, schedule.cluster])
            }
            NestDesign::Transpose(schedule) => {
                ("transpose", [schedule.source, schedule.vector, schedule.threads, 0])
            }
        }
    }

    fn lower(self, block: &BlockProgram) -> Option<Design> {
        let (kernel, schedule) = match self {
            NestDesign::Pointwise(schedule) => {
                (pointwise::lower(block, &schedule).ok()?, format!("pointwise {schedule}"))
            }
            NestDesign::Transpose(schedule) => {
                (transpose::lower(block, &schedule).ok()?, format!("transpose {schedule}"))
            }
            NestDesign::Row(schedule) => (row::lower(block, &schedule).ok()?, format!("row {schedule}")),
        };
        Some(Design { kernel, schedule })
    }
}
