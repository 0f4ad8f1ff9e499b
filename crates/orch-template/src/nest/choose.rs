//! Which schedules of a loop nest are worth trying, by the cost model of [`super::cost`].

use super::cost::{NestCost, lanes_of};
use super::flat::{Nest, StageWork};
use super::plan::{MAX_UNROLLED_UPDATES, NestSchedule, outer_axes};
use super::tiling::Tiling;
use super::window;
use orch_compute::expr::Expr;
use orch_thread::target::CpuTarget;

/// Least modelled cycles of a work item: handing one to a thread then costs little in comparison.
const WORK_ITEM_CYCLES: usize = 2_500;

/// Reductions of at most this length are treated as windows: neighbouring results are computed together.
const MAX_WINDOW_LENGTH: usize = 128;

/// Independent accumulators of a reduction: enough to hide the latency of an addition.
const ACCUMULATORS: usize = 4;

/// Stride of a reduction, in bytes, from which on each of its elements is on a page of its own.
const PAGE_BYTES: i64 = 4096;

/// A choice of vectors with its modelled cost.
struct RankedVector {
    /// Cycles of the whole nest.
    cycles: f64,
    /// The vector axis, as a position among the nest's axes; `None` for scalar code.
    axis: Option<usize>,
    lanes: usize,
}

/// Schedules worth trying, the preferred one first.
pub(crate) fn schedules(nest: &mut Nest, target: &CpuTarget) -> Vec<NestSchedule> {
    const MAX_SCHEDULES: usize = 6;
    let scalar = NestCost::of(nest, None).cycles;
    let mut ranked = vec![RankedVector { cycles: scalar, axis: None, lanes: 1 }];
    for position in 0..nest.axes.len() {
        let axis = nest.axes[position].clone();
        let lanes = lanes_of(nest, target).min(axis.extent.next_power_of_two());
        if axis.extent > 1 && lanes > 1 {
            let cycles = NestCost::of(nest, Some((axis.var, lanes))).cycles;
            ranked.push(RankedVector { cycles, axis: Some(position), lanes });
        }
    }
    ranked.sort_by(|a, b| a.cycles.total_cmp(&b.cycles).then(b.axis.cmp(&a.axis)));
    let best = ranked[0].cycles;
    let mut schedules = Vec::new();
    for RankedVector { cycles, axis, lanes } in ranked {
        if cycles > 4.0 * best && !schedules.is_empty() {
            break;
        }
        schedules.extend(variants(nest, axis, lanes, target));
    }
    schedules.truncate(MAX_SCHEDULES);
    schedules
}

/// Schedules with this vector axis (a position among the nest's axes): with and without tiles for stores; with register
/// blocks for windows; with several accumulators, or one, for longer reductions.
fn variants(nest: &mut Nest, vector: Option<usize>, lanes: usize, target: &CpuTarget) -> Vec<NestSchedule> {
    let schedule = NestSchedule {
        vector,
        lanes,
        vectors: 1,
        block: None,
        tiled: true,
        work_item_cycles: WORK_ITEM_CYCLES,
    };
    let Some(position) = vector else { return vec![schedule] };
    let axis = nest.axes[position].clone();
    let is_outer = outer_axes(nest).iter().any(|outer| outer.var == axis.var);
    let reductions = nest.stages.iter().filter(|stage| matches!(stage.work, StageWork::Reduce(_)));
    let longest = reductions.map(|stage| nest.points(stage.reduced())).max().unwrap_or(0);
    // A reduction that reads each element from another page reads wide pieces of every page.
    let accumulators =
        if is_outer && reads_other_pages(nest) { target.vector_registers / 2 } else { ACCUMULATORS };
    let available = (axis.extent / lanes).clamp(1, accumulators);
    if longest == 0 {
        let outer = outer_axes(nest);
        let is_tiled = is_outer && Tiling::of(nest, &outer, &axis, lanes).is_some();
        let untiled = is_tiled.then(|| NestSchedule { tiled: false, ..schedule.clone() });
        return [schedule].into_iter().chain(untiled).collect();
    }
    let together = NestSchedule { vectors: available, ..schedule.clone() };
    let mut variants = Vec::new();
    if is_outer && longest <= MAX_WINDOW_LENGTH {
        let blocks = window::blocks(nest, axis.var);
        variants
            .extend(blocks.into_iter().map(|block| NestSchedule { block: Some(block), ..schedule.clone() }));
    }
    if !is_outer || longest > MAX_UNROLLED_UPDATES {
        variants.push(together);
    }
    if !variants.contains(&schedule) {
        variants.push(schedule);
    }
    variants
}

/// True if consecutive steps of a reduction read elements that are at least a page apart.
fn reads_other_pages(nest: &mut Nest) -> bool {
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
