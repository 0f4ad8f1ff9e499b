//! Schedules of loop nests, and the plan that a schedule gives for a nest: the order of loops and what a work item
//! does.

use super::cost::NestCost;
use super::flat::{Nest, StageWork};
use super::shared::{SharedValue, costs_more_than_scratch, shared_values};
use super::tiling::Tiling;
use crate::balance::sharing_cost;
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, VarId};
use std::fmt;

/// How a loop nest is run.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NestSchedule {
    /// The axis along vectors, as a position among the merged axes; `None` computes one element at a time.
    pub vector: Option<usize>,
    /// Lanes of a vector.
    pub lanes: usize,
    /// Vectors along that axis that one loop body computes, each with its own accumulator.
    pub vectors: usize,
    /// A register block along another axis.
    pub block: Option<AxisBlock>,
    /// Whether operands that are contiguous along another axis than the result are staged in tiles.
    pub tiled: bool,
    /// Least modelled cycles of a work item.
    pub work_item_cycles: usize,
}

/// Neighbouring points of an axis that one loop body computes, so that they share loads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AxisBlock {
    /// The axis, as a position among the merged axes.
    pub axis: usize,
    /// Points of the axis in a block.
    pub points: usize,
}

/// The text is the key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for NestSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector, lanes, vectors, block, tiled, work_item_cycles } = self;
        if let Some(axis) = vector {
            write!(f, "vector_axis={axis} ")?;
        }
        if let Some(AxisBlock { axis, points }) = block {
            write!(f, "block_axis={axis} block={points} ")?;
        }
        write!(f, "lanes={lanes} vectors={vectors} task_cycles={work_item_cycles}")?;
        f.write_str(if *tiled { " tiled" } else { "" })
    }
}

/// Most work items of a kernel: finer ones cost more to hand out than they balance.
const MAX_WORK_ITEMS: usize = 4096;

/// Number of work items from which on no further axis is distributed over them.
const ENOUGH_WORK_ITEMS: usize = 128;

/// What a core moves between the L2 and what is beyond it.
const BYTES_PER_CYCLE: f64 = 8.0;

/// Most accumulator updates in an unrolled reduction: its length times the points computed together, a vector counted
/// as one update.
pub(crate) const MAX_UNROLLED_UPDATES: usize = 32;

/// A schedule applied to a nest: which loops there are, in which order, and what a work item computes.
#[derive(Clone, Debug)]
pub(crate) struct NestPlan {
    /// Axes over which every stage varies, outermost first, without the vector axis.
    pub outer: Vec<Axis>,
    /// The axis along the lanes of vectors.
    pub vector: Option<Axis>,
    /// True if every stage varies over the vector axis.
    pub vector_is_outer: bool,
    /// Lanes of a vector.
    pub lanes: usize,
    /// Vectors that one loop body computes.
    pub vectors: usize,
    /// An outer axis, and how many of its points one loop body computes.
    pub block: Option<(VarId, usize)>,
    /// Most accumulator updates in an unrolled reduction.
    pub unrolled_updates: usize,
    /// Tiles of the last outer axis and the vector axis, where operands are contiguous along that outer axis.
    pub tiling: Option<Tiling>,
    /// Values that stages save for later ones.
    pub shared: Vec<SharedValue>,
    /// Points that a work item has of the axis of each of the [loops](NestPlan::loops) that are distributed over work items, from the
    /// outermost one.
    pub work_item_points: Vec<usize>,
}

/// What the lanes of vectors are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneAxis {
    /// An axis over which every stage varies: each lane is a result of its own.
    Output,
    /// An axis that stages reduce: lanes hold partial results that are combined at the end.
    Reduced,
}

/// The text is the key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for LaneAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaneAxis::Output => "results",
            LaneAxis::Reduced => "k",
        })
    }
}

/// How many of a reduction's axes, of these extents, are looped over: the rest is unrolled within so many accumulator updates, of which
/// each of `points` takes one at every position.
pub(crate) fn looped(extents: &[usize], points: usize, most: usize) -> usize {
    let mut updates = points;
    let unrolled = extents.iter().rev().take_while(|&&extent| {
        updates = updates.saturating_mul(extent);
        updates <= most
    });
    extents.len() - unrolled.count()
}

/// Axes over which every stage varies.
pub(crate) fn outer_axes(nest: &Nest) -> Vec<Axis> {
    let is_outer = |axis: &&Axis| nest.stages.iter().all(|stage| stage.domain.contains(&axis.var));
    nest.axes.iter().filter(is_outer).cloned().collect()
}

/// True if a reduction's result varies over more than the outer axes, so that it needs an array in scratch. There is no
/// [register block](AxisBlock) then.
fn needs_arrays(nest: &Nest) -> bool {
    let outer = outer_axes(nest);
    let is_inner = |axis: &VarId| outer.iter().all(|other| other.var != *axis);
    (nest.stages.iter())
        .filter(|stage| matches!(stage.work, StageWork::Reduce(_)))
        .any(|stage| stage.domain.iter().any(is_inner))
}

impl NestPlan {
    /// The plan of a nest whose outer loops the caller emits (the GPU templates): at a point of the `outer` axes, the
    /// axis `vector` lies along vectors of `lanes`, as an outer axis ([`LaneAxis::Output`]) or as a reduced one.
    pub fn at_points(outer: Vec<Axis>, vector: Option<(Axis, LaneAxis)>, lanes: usize) -> Self {
        let vector_is_outer = matches!(vector, Some((_, LaneAxis::Output)));
        let vector = vector.map(|(axis, _)| axis);
        NestPlan {
            outer,
            vector,
            vector_is_outer,
            lanes,
            vectors: 1,
            block: None,
            unrolled_updates: MAX_UNROLLED_UPDATES,
            tiling: None,
            shared: Vec::new(),
            work_item_points: Vec::new(),
        }
    }

    /// The plan that a schedule gives for a nest.
    pub fn new(nest: &mut Nest, schedule: &NestSchedule) -> Self {
        let vector = schedule.vector.map(|position| nest.axes[position].clone());
        let mut outer = outer_axes(nest);
        let vector_is_outer = vector.as_ref().is_some_and(|vector| outer.contains(vector));
        outer.retain(|axis| Some(axis) != vector.as_ref());
        order_by_output(nest, &mut outer);
        let is_injective = nest.stages.iter().all(|stage| matches!(stage.work, StageWork::Store { .. }));
        let tiled = vector.as_ref().filter(|_| schedule.tiled && is_injective && vector_is_outer);
        let tiling = tiled.and_then(|vector| Tiling::of(nest, &outer, vector, schedule.lanes));
        if let Some(tiling) = &tiling {
            // The tiled axis and the vector axis are the two innermost loops.
            outer.retain(|axis| *axis != tiling.source);
            outer.push(tiling.source.clone());
        }
        let shared = shared_values(nest, &outer_axes(nest), costs_more_than_scratch);
        let needs_arrays = !shared.is_empty() || needs_arrays(nest);
        let block = schedule.block.filter(|_| !needs_arrays);
        let block = block.map(|block| (nest.axes[block.axis].var, block.points));
        let lanes = if vector.is_some() { schedule.lanes } else { 1 };
        let mut plan = NestPlan {
            outer,
            vector,
            vector_is_outer,
            lanes,
            vectors: schedule.vectors,
            block,
            unrolled_updates: MAX_UNROLLED_UPDATES,
            tiling,
            shared,
            work_item_points: Vec::new(),
        };
        plan.split_work_items(nest, schedule.work_item_cycles);
        plan
    }

    /// Points (a vector counted as one) that one loop body computes: each has an accumulator of its own.
    fn points_together(&self) -> usize {
        let vectors = if self.vector_is_outer { self.vectors } else { 1 };
        vectors * self.block.map_or(1, |(_, count)| count)
    }

    /// Splits the axes of a reduction, outermost first, into those that are looped over and, innermost, those that are
    /// unrolled within [`unrolled_updates`](NestPlan::unrolled_updates).
    pub fn looped_and_unrolled<'a>(&self, axes: &'a [Axis]) -> (&'a [Axis], &'a [Axis]) {
        let extents: Vec<usize> = axes.iter().map(|axis| axis.extent).collect();
        axes.split_at(looped(&extents, self.points_together(), self.unrolled_updates))
    }

    /// The axes over which every stage varies, outermost loop first, with the granularity of each: how many of its
    /// points one iteration covers.
    pub fn loops(&self) -> Vec<(Axis, usize)> {
        let granularity = |axis: &Axis| match (self.block, &self.tiling) {
            (Some((var, count)), _) if var == axis.var => count,
            (_, Some(tiling)) if tiling.source == *axis => tiling.source_tile,
            _ => 1,
        };
        let mut loops: Vec<(Axis, usize)> =
            self.outer.iter().map(|axis| (axis.clone(), granularity(axis))).collect();
        if let (Some(axis), true) = (&self.vector, self.vector_is_outer) {
            let tile = self.tiling.as_ref().map(|tiling| tiling.vector_tile);
            loops.push((axis.clone(), tile.unwrap_or(self.lanes * self.vectors)));
        }
        loops
    }

    /// Extents of the work items along the axes that are distributed over them, outermost first: their product is the number of work items.
    pub fn work_item_extents(&self) -> Vec<usize> {
        let loops = self.loops();
        loops
            .iter()
            .zip(&self.work_item_points)
            .map(|((axis, _), points)| axis.extent.div_ceil(*points))
            .collect()
    }

    /// Distributes outer axes over work items, outermost first, until a work item has about `work_item_cycles`, or less where that makes
    /// them more even.
    fn split_work_items(&mut self, nest: &mut Nest, work_item_cycles: usize) {
        let vector = self.vector.as_ref().map(|axis| (axis.var, self.lanes));
        let cycles = NestCost::of(nest, vector).cycles.max(moved_bytes(nest) as f64 / BYTES_PER_CYCLE);
        let wanted = ((cycles / work_item_cycles as f64) as usize).clamp(1, MAX_WORK_ITEMS);
        let mut items = 1;
        for (axis, granularity) in self.loops() {
            let needed = wanted.div_ceil(items);
            if needed <= 1 || items >= ENOUGH_WORK_ITEMS {
                return;
            }
            // Iterations of the loop over this axis.
            let units = axis.extent.div_ceil(granularity).max(1);
            if units > needed {
                let most = units.div_ceil(needed);
                let cost = |of_item: usize| {
                    sharing_cost(items * units.div_ceil(of_item), of_item as f64 / (items * units) as f64)
                };
                let fewest = most.div_ceil(2);
                let evenest = (fewest..=most).min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
                self.work_item_points.push(evenest.unwrap_or(most) * granularity);
                return;
            }
            self.work_item_points.push(granularity);
            items *= units;
        }
    }
}

/// Bytes of loads and stores that vary, each counted for every point of the axes that its place depends on.
fn moved_bytes(nest: &Nest) -> usize {
    let exprs = &nest.program.exprs;
    let mut bytes = 0;
    for stage in &nest.stages {
        let mut accesses: Vec<(ExprId, usize)> = exprs
            .reachable(&stage.roots())
            .into_iter()
            .filter_map(|id| match exprs.get(id) {
                Expr::Load { offset, .. } => Some((*offset, exprs.dtype(id).size_bytes())),
                _ => None,
            })
            .collect();
        if let StageWork::Store { offset, body, .. } = stage.work {
            accesses.push((offset, exprs.dtype(body).size_bytes()));
        }
        for (offset, size) in accesses {
            let axes = stage.axes().into_iter().filter(|&axis| exprs.depends_on(offset, axis));
            bytes += size * nest.points(&axes.collect::<Vec<_>>());
        }
    }
    bytes
}

/// Orders axes by their strides in the last output, the largest stride first, so that stores are contiguous in the
/// innermost loop.
pub(crate) fn order_by_output(nest: &mut Nest, axes: &mut [Axis]) {
    let offset = nest.stages.iter().rev().find_map(|stage| match stage.work {
        StageWork::Store { offset, .. } => Some(offset),
        StageWork::Reduce(_) => None,
    });
    let Some(offset) = offset else { return };
    let Nest { program, simplifier, .. } = nest;
    axes.sort_by_cached_key(|axis| {
        let stride = simplifier.stride(&mut program.exprs, offset, axis.var);
        std::cmp::Reverse(stride.map_or(u64::MAX, i64::unsigned_abs))
    });
}
