//! Templates for GPUs: block programs as thread programs of teams.

mod access;
pub mod attention;
pub mod contraction;
mod estimate;
mod points;
pub mod pointwise;
pub mod row;
pub mod transpose;

use crate::block::BlockProgram;
use crate::target::GpuTarget;
use crate::templates::Design;

/// What contractions of f32 multiply. Sums are f32 in any case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Factors {
    /// f32, on scalar units.
    F32,
    /// f32 of which the matrix units take 10 bits of the fraction.
    Tf32,
    /// Factors rounded to f16.
    F16,
    /// Factors rounded to bf16.
    Bf16,
}

/// True if a block program has the structure that a template serves. Whether there is a schedule for it is seen only by
/// [`design`], which takes much longer.
pub fn serves(block: &BlockProgram, target: &GpuTarget, factors: Factors) -> bool {
    pointwise::is_served(block)
        || row::is_served(block)
        || !contraction::schedules(block, target, factors, 1).is_empty()
}

/// Lowers a block program with the first template that serves it, under the schedule that its model prefers.
pub fn design(block: &BlockProgram, target: &GpuTarget, factors: Factors) -> Option<Design> {
    designs(block, target, factors, 1).into_iter().next()
}

/// At most `limit` designs, the one that the template's model prefers first.
pub fn designs(block: &BlockProgram, target: &GpuTarget, factors: Factors, limit: usize) -> Vec<Design> {
    let attend = |schedule: &attention::AttentionSchedule| {
        let kernel = attention::lower(block, schedule, factors).ok()?;
        Some(Design { kernel, schedule: format!("attention {schedule:?}") })
    };
    if attention::AttentionForm::of(block).is_ok() {
        let attending = attention::schedules(block, target, factors);
        return attending.iter().take(limit).filter_map(attend).collect();
    }
    // A product with one row or column reads its factors once: nothing is gained by tiles.
    let is_thin = contraction::is_thin(block);
    let mut found = if is_thin { nest_designs(block, target, limit) } else { Vec::new() };
    let lower = |schedule: &contraction::ContractionSchedule| {
        let kernel = contraction::lower(block, schedule, target, factors).ok()?;
        Some(Design { kernel, schedule: format!("contraction {schedule:?}") })
    };
    let missing = limit - found.len();
    found.extend(contraction::schedules(block, target, factors, missing).iter().filter_map(lower));
    if !is_thin {
        found.extend(nest_designs(block, target, limit - found.len()));
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
    ranked.into_iter().filter_map(|(_, design)| design.lower(block)).take(limit).collect()
}

/// A schedule of one of the templates that are not matrix products.
enum NestDesign {
    Pointwise(pointwise::PointwiseSchedule),
    Row(row::RowSchedule),
    Transpose(transpose::TransposeSchedule),
}

impl NestDesign {
    fn lower(self, block: &BlockProgram) -> Option<Design> {
        let (kernel, schedule) = match self {
            NestDesign::Pointwise(schedule) => {
                (pointwise::lower(block, &schedule).ok()?, format!("pointwise {schedule:?}"))
            }
            NestDesign::Transpose(schedule) => {
                (transpose::lower(block, &schedule).ok()?, format!("transpose {schedule:?}"))
            }
            NestDesign::Row(schedule) => (row::lower(block, &schedule).ok()?, format!("row {schedule:?}")),
        };
        Some(Design { kernel, schedule })
    }
}
