//! Templates for GPUs: block programs as thread programs of CTAs.

mod access;
pub mod attention;
pub mod contraction;
mod cta;
mod estimate;
mod points;
pub mod pointwise;
pub mod row;
pub mod transpose;

use crate::Design;
use orch_compute::block::BlockProgram;
use orch_thread::OperandPrecision;
use orch_thread::target::GpuTarget;
use std::collections::BTreeSet;

/// True if a block program has the structure that a template serves. Whether there is a schedule for it is seen only by
/// [`design`], which takes much longer.
pub fn serves(block: &BlockProgram, target: &GpuTarget, factors: OperandPrecision) -> bool {
    if attention::AttentionForm::of(block).is_ok() {
        return !attention::schedules(block, target, factors).is_empty();
    }
    contraction::is_served(block, factors) || {
        let nest = points::nest_of(block);
        pointwise::serves(&nest) || row::serves(&nest)
    }
}

/// Lowers a block program with the first template that serves it, under the schedule that its model prefers.
pub fn design(block: &BlockProgram, target: &GpuTarget, factors: OperandPrecision) -> Option<Design> {
    designs(block, target, factors, 1).into_iter().next()
}

/// At most `limit` designs, the one that the template's model prefers first, before any [pass](orch_thread::passes).
pub fn designs(
    block: &BlockProgram,
    target: &GpuTarget,
    factors: OperandPrecision,
    limit: usize,
) -> Vec<Design> {
    if attention::AttentionForm::of(block).is_ok() {
        let lower = |schedule: attention::AttentionSchedule| {
            let kernel = attention::lower(block, &schedule, factors).ok()?;
            Some(Design { kernel, schedule: format!("attention {schedule}") })
        };
        let schedules = attention::schedules(block, target, factors);
        return schedules.into_iter().take(limit).filter_map(lower).collect();
    }
    let tiled = |limit: usize| {
        let lower = |schedule: &contraction::ContractionSchedule| {
            let kernel = contraction::lower(block, schedule, factors).ok()?;
            Some(Design { kernel, schedule: format!("contraction {schedule}") })
        };
        contraction::schedules(block, target, factors, limit).iter().filter_map(lower).collect()
    };
    let nested = |limit: usize| nest_designs(block, target, limit);
    // A product with one row or column reads its factors once: little is gained by tiles. The two templates' models are
    // not comparable, so of several designs half are the other one's.
    let is_thin = contraction::is_thin(block);
    let mut found: Vec<Design> = if is_thin { nested(limit.div_ceil(2)) } else { tiled(limit) };
    // Ranking schedules takes long.
    if found.len() < limit {
        let rest = limit - found.len();
        found.extend(if is_thin { tiled(rest) } else { nested(rest) });
    }
    found
}

/// At most `limit` designs of the templates that are not matrix products.
fn nest_designs(block: &BlockProgram, target: &GpuTarget, limit: usize) -> Vec<Design> {
    let mut ranked: Vec<(f64, NestDesign)> = Vec::new();
    let pointwise = pointwise::ranked(block, target).into_iter();
    ranked.extend(pointwise.map(|(cycles, schedule)| (cycles, NestDesign::Pointwise(schedule))));
    let transpose = transpose::ranked(block, target).into_iter();
    ranked.extend(transpose.map(|(cycles, schedule)| (cycles, NestDesign::Transpose(schedule))));
    let row = row::ranked(block, target).into_iter();
    ranked.extend(row.map(|(cycles, schedule)| (cycles, NestDesign::Row(schedule))));
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    // What the model finds much slower is not worth it for being of another kind.
    let most = MUCH_SLOWER * ranked.first().map_or(0.0, |(cycles, _)| *cycles);
    let kind = |(cycles, design): &(f64, NestDesign)| (*cycles <= most).then(|| design.kind());
    let ranked = varied(ranked.into_iter(), kind);
    ranked.filter_map(|(_, design)| design.lower(block)).take(limit).collect()
}

/// Of the modelled time of the design that is modelled to be fastest.
const MUCH_SLOWER: f64 = 1.5;

/// What is ranked, the first one of every kind before all others: those of one kind take about as long, so that to time both
/// tells little.
fn varied<T, K: Ord>(
    ranked: impl Iterator<Item = T>,
    kind: impl Fn(&T) -> Option<K>,
) -> impl Iterator<Item = T> {
    let mut kinds = BTreeSet::new();
    let (first, later): (Vec<_>, Vec<_>) =
        ranked.partition(|design| kind(design).is_some_and(|kind| kinds.insert(kind)));
    first.into_iter().chain(later)
}

/// A schedule of one of the templates that are not matrix products.
enum NestDesign {
    Pointwise(pointwise::PointwiseSchedule),
    Row(row::RowSchedule),
    Transpose(transpose::TransposeSchedule),
}

impl NestDesign {
    /// What tells designs apart that take different times.
    fn kind(&self) -> (&'static str, [usize; 4]) {
        match self {
            NestDesign::Pointwise(schedule) => {
                let (_, count) = schedule.block.unwrap_or_default();
                ("pointwise", [schedule.vector.unwrap_or_default(), schedule.lanes, count, schedule.turns])
            }
            NestDesign::Row(schedule) => {
                ("row", [schedule.lanes, schedule.members, schedule.groups, schedule.cluster])
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
