//! Blocking of windows: neighbouring results of a pooling or depthwise convolution share weights and elements.

use super::cuts::guard_cuts;
use super::flat::{Nest, NestReduction, NestStage, StageWork};
use super::plan::{MAX_UNROLLED_TERMS, outer_axes};
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, VarId};

/// Most results that are computed together unless they are all of a short axis.
const MAX_BLOCK: usize = 6;

/// Axes up to this long are computed whole: then guards of the border are decided at compile time.
const MAX_WHOLE: usize = 8;

/// Axes of the results, as positions among the nest's axes, with how many neighbours to compute together; best first.
pub(crate) fn blocks(nest: &mut Nest, vector: VarId) -> Vec<(usize, usize)> {
    let windows: Vec<(NestStage, NestReduction)> = (nest.stages.iter())
        .filter_map(|stage| match &stage.work {
            StageWork::Reduce(reduction) => Some((stage.clone(), reduction.clone())),
            StageWork::Store { .. } => None,
        })
        .collect();
    let mut ranked: Vec<(f64, usize, usize)> = Vec::new();
    for axis in outer_axes(nest) {
        let Some(position) = nest.axes.iter().position(|other| *other == axis) else { continue };
        if axis.var == vector || axis.extent == 1 {
            continue;
        }
        let roots: Vec<ExprId> = windows.iter().map(|(_, reduction)| reduction.body).collect();
        let cuts = guard_cuts(nest, &roots, &axis);
        let ends = [&[0], &cuts[..], &[axis.extent]].concat();
        let interior = ends.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
        let shares: Vec<WindowReuse> =
            windows.iter().map(|(_, reduction)| WindowReuse::of(nest, reduction, &axis)).collect();
        let innermost = shares.iter().map(|sharing| sharing.innermost).max().unwrap_or(1);
        let cost = |count: usize| shares.iter().map(|sharing| sharing.cycles(count)).sum::<f64>();
        let single = cost(1);
        for count in 2..=MAX_WHOLE.min(axis.extent) {
            let is_whole = count == axis.extent;
            if innermost * count > MAX_UNROLLED_TERMS || (count > MAX_BLOCK && !is_whole) {
                continue;
            }
            let (blocks, rest) = (interior / count, interior % count);
            let total = match is_whole {
                true => cost(count),
                false => blocks as f64 * cost(count) + (rest + axis.extent - interior) as f64 * single,
            };
            let relative = total / (axis.extent as f64 * single);
            if relative < 0.9 {
                ranked.push((relative, position, count));
            }
        }
    }
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.2.cmp(&b.2)));
    ranked.truncate(3);
    ranked.into_iter().map(|(_, position, count)| (position, count)).collect()
}

/// How a window's terms share loads between neighbours along an axis.
struct WindowReuse {
    /// Terms of the innermost reduced axis.
    innermost: usize,
    /// All terms.
    terms: usize,
    /// Loads per term that do not depend on the axis.
    invariant: usize,
    /// Distance of neighbours in terms of the innermost axis, of each other load; 0 if they share nothing.
    distances: Vec<usize>,
}

impl WindowReuse {
    fn of(nest: &mut Nest, reduction: &NestReduction, axis: &Axis) -> Self {
        let terms = nest.points(&reduction.reduced);
        let last = reduction.reduced.last().copied();
        let innermost = last.map_or(1, |last| nest.extent(last));
        let mut sharing = WindowReuse { innermost, terms, invariant: 0, distances: Vec::new() };
        let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
        for id in exprs.reachable(&[reduction.body]) {
            let Expr::Load { offset, .. } = *exprs.get(id) else { continue };
            let stride = simplifier.stride(exprs, offset, axis.var);
            let inner = last.and_then(|last| simplifier.stride(exprs, offset, last)).unwrap_or(0);
            match stride {
                Some(0) => sharing.invariant += 1,
                Some(stride) if inner != 0 && stride % inner == 0 => {
                    sharing.distances.push((stride / inner).unsigned_abs() as usize);
                }
                _ => sharing.distances.push(0),
            }
        }
        sharing
    }

    /// Cycles of so many neighbours: two loads and two operations per cycle.
    fn cycles(&self, count: usize) -> f64 {
        let own = self.innermost * count;
        let overlapping = |distance: &usize| match distance {
            0 => own,
            distance => own.min((count - 1) * distance + self.innermost),
        };
        let loads = self.invariant * self.innermost + self.distances.iter().map(overlapping).sum::<usize>();
        let lines = self.terms / self.innermost.max(1);
        (lines * (own + loads)) as f64 * 0.5 + 4.0
    }
}
