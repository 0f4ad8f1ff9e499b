//! Register blocks for windows: neighbouring results of a pooling or a depthwise convolution share weights and
//! elements.

use super::cuts::guard_cuts;
use super::flat::{Nest, NestReduction, NestStage, StageWork};
use super::plan::{AxisBlock, MAX_UNROLLED_UPDATES, outer_axes};
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, VarId};

/// Most points of a block that is not a whole axis.
const MAX_BLOCK: usize = 6;

/// Longest axis that may be one block: the guards of its border are then decided at compile time.
const MAX_WHOLE: usize = 8;

/// The three best blocks of an outer axis other than the vector axis, best first: those that save at least a tenth of
/// the modelled cycles.
pub(crate) fn blocks(nest: &mut Nest, vector: VarId) -> Vec<AxisBlock> {
    const MAX_BLOCKS: usize = 3;
    let windows: Vec<(NestStage, NestReduction)> = (nest.stages.iter())
        .filter_map(|stage| match &stage.work {
            StageWork::Reduce(reduction) => Some((stage.clone(), reduction.clone())),
            StageWork::Store { .. } => None,
        })
        .collect();
    let mut ranked: Vec<RankedBlock> = Vec::new();
    for axis in outer_axes(nest) {
        let Some(position) = nest.axes.iter().position(|other| *other == axis) else { continue };
        if axis.var == vector || axis.extent == 1 {
            continue;
        }
        let roots: Vec<ExprId> = windows.iter().map(|(_, reduction)| reduction.body).collect();
        let cuts = guard_cuts(nest, &roots, &axis);
        let ends = [&[0], &cuts[..], &[axis.extent]].concat();
        let interior = ends.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
        let reuses: Vec<WindowReuse> =
            windows.iter().map(|(_, reduction)| WindowReuse::of(nest, reduction, &axis)).collect();
        let innermost = reuses.iter().map(|reuse| reuse.innermost).max().unwrap_or(1);
        let cost = |count: usize| reuses.iter().map(|reuse| reuse.cycles(count)).sum::<f64>();
        let single = cost(1);
        for count in 2..=MAX_WHOLE.min(axis.extent) {
            let is_whole = count == axis.extent;
            if innermost * count > MAX_UNROLLED_UPDATES || (count > MAX_BLOCK && !is_whole) {
                continue;
            }
            let (blocks, rest) = (interior / count, interior % count);
            let total = match is_whole {
                true => cost(count),
                false => blocks as f64 * cost(count) + (rest + axis.extent - interior) as f64 * single,
            };
            let relative = total / (axis.extent as f64 * single);
            if relative < 0.9 {
                ranked.push(RankedBlock { relative, block: AxisBlock { axis: position, points: count } });
            }
        }
    }
    ranked.sort_by(|a, b| a.relative.total_cmp(&b.relative).then(a.block.points.cmp(&b.block.points)));
    ranked.truncate(MAX_BLOCKS);
    ranked.into_iter().map(|ranked| ranked.block).collect()
}

/// A block with its modelled cost.
struct RankedBlock {
    /// Cycles relative to those without a block.
    relative: f64,
    block: AxisBlock,
}

/// How neighbouring windows along an axis share loads.
struct WindowReuse {
    /// Extent of the innermost reduced axis.
    innermost: usize,
    /// Reduction length: the product of all reduced extents.
    length: usize,
    /// Loads of the body that do not depend on the axis.
    invariant: usize,
    /// For each other load, how many points of the innermost reduced axis lie between the elements that neighbouring
    /// windows read; 0 if they share none.
    distances: Vec<usize>,
}

impl WindowReuse {
    fn of(nest: &mut Nest, reduction: &NestReduction, axis: &Axis) -> Self {
        let length = nest.points(&reduction.reduced);
        let last = reduction.reduced.last().copied();
        let innermost = last.map_or(1, |last| nest.extent(last));
        let mut reuse = WindowReuse { innermost, length, invariant: 0, distances: Vec::new() };
        let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
        for id in exprs.reachable(&[reduction.body]) {
            let Expr::Load { offset, .. } = *exprs.get(id) else { continue };
            let stride = simplifier.stride(exprs, offset, axis.var);
            let inner = last.and_then(|last| simplifier.stride(exprs, offset, last)).unwrap_or(0);
            match stride {
                Some(0) => reuse.invariant += 1,
                Some(stride) if inner != 0 && stride % inner == 0 => {
                    reuse.distances.push((stride / inner).unsigned_abs() as usize);
                }
                _ => reuse.distances.push(0),
            }
        }
        reuse
    }

    /// Modelled cycles of `count` neighbouring windows, at two loads and two operations per cycle.
    fn cycles(&self, count: usize) -> f64 {
        // Updates, and loads without reuse, of one pass over the innermost axis.
        let own = self.innermost * count;
        let overlapping = |distance: &usize| match distance {
            0 => own,
            distance => own.min((count - 1) * distance + self.innermost),
        };
        let loads = self.invariant * self.innermost + self.distances.iter().map(overlapping).sum::<usize>();
        let passes = self.length / self.innermost.max(1);
        (passes * (own + loads)) as f64 * 0.5 + 4.0
    }
}
