//! Which schedules of a loop nest are worth trying, by the cost model of [`super::cost`].

use super::cost::{NestCost, lanes_of};
use super::flat::{Nest, StageWork};
use super::plan::{MAX_UNROLLED_TERMS, NestSchedule, outer_axes};
use super::tiling::Tiling;
use super::window;
use orch_compute::expr::Expr;
use orch_thread::target::CpuTarget;

/// Work that pays for handing out a task.
const TASK_CYCLES: usize = 20_000;

/// Reductions of at most this many terms are windows: neighbouring results are computed together.
const MAX_WINDOW_TERMS: usize = 128;

/// Vectors computed together where a reduction's additions would wait for each other.
const ACCUMULATORS: usize = 4;

/// Bytes between terms from which on each is on a page of its own.
const PAGE_BYTES: i64 = 4096;

/// Schedules worth trying, the preferred one first.
pub(crate) fn schedules(nest: &mut Nest, target: &CpuTarget) -> Vec<NestSchedule> {
    const MAX_SCHEDULES: usize = 6;
    let mut ranked: Vec<(f64, Option<usize>, usize)> = Vec::new();
    let scalar = NestCost::of(nest, None).cycles;
    ranked.push((scalar, None, 1));
    for position in 0..nest.axes.len() {
        let axis = nest.axes[position].clone();
        let lanes = lanes_of(nest, target).min(axis.extent.next_power_of_two());
        if axis.extent > 1 && lanes > 1 {
            ranked.push((NestCost::of(nest, Some((axis.var, lanes))).cycles, Some(position), lanes));
        }
    }
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
    let best = ranked[0].0;
    let mut schedules = Vec::new();
    for (cycles, vector, lanes) in ranked {
        if cycles > 4.0 * best && !schedules.is_empty() {
            break;
        }
        schedules.extend(variants(nest, vector, lanes, target));
    }
    schedules.truncate(MAX_SCHEDULES);
    schedules
}

/// Schedules with this vector axis.
fn variants(nest: &mut Nest, vector: Option<usize>, lanes: usize, target: &CpuTarget) -> Vec<NestSchedule> {
    let schedule =
        NestSchedule { vector, lanes, vectors: 1, block: None, tiled: true, task_cycles: TASK_CYCLES };
    let Some(position) = vector else { return vec![schedule] };
    let axis = nest.axes[position].clone();
    let is_outer = outer_axes(nest).iter().any(|outer| outer.var == axis.var);
    let reductions = nest.stages.iter().filter(|stage| matches!(stage.work, StageWork::Reduce(_)));
    let longest = reductions.map(|stage| nest.points(stage.reduced())).max().unwrap_or(0);
    // Memory gives short pieces of many pages slowly.
    let accumulators =
        if is_outer && has_far_terms(nest) { target.vector_registers / 2 } else { ACCUMULATORS };
    let available = (axis.extent / lanes).clamp(1, accumulators);
    if longest == 0 {
        let outer = outer_axes(nest);
        let is_tiled = is_outer && Tiling::of(nest, &outer, &axis, lanes).is_some();
        let untiled = is_tiled.then(|| NestSchedule { tiled: false, ..schedule.clone() });
        return [schedule].into_iter().chain(untiled).collect();
    }
    let together = NestSchedule { vectors: available, ..schedule.clone() };
    let mut variants = Vec::new();
    if is_outer && longest <= MAX_WINDOW_TERMS {
        let blocks = window::blocks(nest, axis.var);
        variants
            .extend(blocks.into_iter().map(|block| NestSchedule { block: Some(block), ..schedule.clone() }));
    }
    if !is_outer || longest > MAX_UNROLLED_TERMS {
        variants.push(together);
    }
    if !variants.contains(&schedule) {
        variants.push(schedule);
    }
    variants
}

/// True if a reduction reads terms that lie pages apart.
fn has_far_terms(nest: &mut Nest) -> bool {
    nest.stages.clone().iter().any(|stage| {
        let Some(&innermost) = stage.reduced().last() else { return false };
        nest.program.exprs.reachable(&stage.roots()).into_iter().any(|id| {
            let Expr::Load { offset, .. } = *nest.program.exprs.get(id) else { return false };
            let size = nest.program.exprs.dtype(id).size_bytes() as i64;
            let stride = nest.simplifier.stride(&mut nest.program.exprs, offset, innermost);
            stride.is_some_and(|stride| stride.abs() * size >= PAGE_BYTES)
        })
    })
}
