//! Schedules of loop nests, and what follows from one.

use super::cost::NestCost;
use super::flat::{Nest, StageWork};
use super::shared::{SharedValue, costs_more_than_scratch, shared_values};
use super::tiling::Tiling;
use orch_compute::block::Axis;
use orch_compute::expr::VarId;
use std::fmt;

/// How a loop nest is run.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NestSchedule {
    /// The axis along vectors, as a position among the merged axes; `None` computes one element at a time.
    pub vector: Option<usize>,
    /// Lanes of a vector.
    pub lanes: usize,
    /// Vectors along that axis that are computed together: accumulators of a reduction.
    pub vectors: usize,
    /// Another axis, as a position among the merged axes, and how many of its points are computed together.
    pub block: Option<(usize, usize)>,
    /// Whether operands that lie across the result are staged in tiles.
    pub tiled: bool,
    /// Work that a task should have at least.
    pub task_cycles: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for NestSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector, lanes, vectors, block, tiled, task_cycles } = self;
        if let Some(axis) = vector {
            write!(f, "vector_axis={axis} ")?;
        }
        if let Some((axis, points)) = block {
            write!(f, "block_axis={axis} block={points} ")?;
        }
        write!(f, "lanes={lanes} vectors={vectors} task_cycles={task_cycles}")?;
        f.write_str(if *tiled { " tiled" } else { "" })
    }
}

/// Tasks beyond which splitting further does not pay.
const MAX_TASKS: usize = 4096;

/// Tasks beyond which no further axis is spread.
const ENOUGH_TASKS: usize = 64;

/// Reductions of at most this many terms (vectors apart) are unrolled.
pub(crate) const MAX_UNROLLED_TERMS: usize = 32;

/// A schedule applied to a nest.
#[derive(Clone, Debug)]
pub(crate) struct NestPlan {
    /// Axes over which every stage varies, outermost first, without the vector axis.
    pub outer: Vec<Axis>,
    /// The axis along vectors.
    pub vector: Option<Axis>,
    /// True if every stage varies over the vector axis.
    pub vector_is_outer: bool,
    /// Lanes of a vector.
    pub lanes: usize,
    /// Vectors computed together.
    pub vectors: usize,
    /// An outer axis and how many of its points are computed together.
    pub block: Option<(VarId, usize)>,
    /// Tiles of the last outer axis and the vector axis, where operands lie across the result.
    pub tiling: Option<Tiling>,
    /// Values that stages save for later ones.
    pub shared: Vec<SharedValue>,
    /// How many of the outer axes (the vector axis last, if it is one) are spread over tasks, point by point.
    pub spread: usize,
    /// The chunk of the next axis that a task does, if that is spread too.
    pub chunk: Option<usize>,
}

/// What vectors lie along.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneAxis {
    /// An axis over which every stage varies: lanes are results of their own.
    Output,
    /// An axis that stages loop over: lanes are combined.
    Reduced,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for LaneAxis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LaneAxis::Output => "results",
            LaneAxis::Reduced => "k",
        })
    }
}

/// Axes over which every stage varies.
pub(crate) fn outer_axes(nest: &Nest) -> Vec<Axis> {
    let is_outer = |axis: &&Axis| nest.stages.iter().all(|stage| stage.domain.contains(&axis.var));
    nest.axes.iter().filter(is_outer).cloned().collect()
}

/// True if a result varies over more than the outer axes; then points of no other axis are computed together.
fn needs_arrays(nest: &Nest) -> bool {
    let outer = outer_axes(nest);
    let is_inner = |axis: &VarId| outer.iter().all(|other| other.var != *axis);
    (nest.stages.iter())
        .filter(|stage| matches!(stage.work, StageWork::Reduce(_)))
        .any(|stage| stage.domain.iter().any(is_inner))
}

impl NestPlan {
    /// The plan of a nest whose tasks and outer loops are another's concern: at a point, `vector` is along vectors of
    /// `lanes`, and is one of the outer axes or not.
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
            tiling: None,
            shared: Vec::new(),
            spread: 0,
            chunk: None,
        }
    }

    /// What follows from a schedule.
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
            // Tiles span the two innermost loops.
            outer.retain(|axis| *axis != tiling.source);
            outer.push(tiling.source.clone());
        }
        let shared = shared_values(nest, &outer_axes(nest), costs_more_than_scratch);
        let needs_arrays = !shared.is_empty() || needs_arrays(nest);
        let block = schedule.block.filter(|_| !needs_arrays);
        let block = block.map(|(position, count)| (nest.axes[position].var, count));
        let lanes = if vector.is_some() { schedule.lanes } else { 1 };
        let mut plan = NestPlan {
            outer,
            vector,
            vector_is_outer,
            lanes,
            vectors: schedule.vectors,
            block,
            tiling,
            shared,
            spread: 0,
            chunk: None,
        };
        plan.split_tasks(nest, schedule.task_cycles);
        plan
    }

    /// Places that are computed together.
    fn together(&self) -> usize {
        let vectors = if self.vector_is_outer { self.vectors } else { 1 };
        vectors * self.block.map_or(1, |(_, count)| count)
    }

    /// Splits the axes of a reduction into those that are looped over and, innermost, those that are unrolled.
    pub fn looped_and_unrolled<'a>(&self, axes: &'a [Axis]) -> (&'a [Axis], &'a [Axis]) {
        let mut terms = self.together();
        let unrolled = (axes.iter().rev())
            .take_while(|axis| {
                terms = terms.saturating_mul(axis.extent);
                terms <= MAX_UNROLLED_TERMS
            })
            .count();
        axes.split_at(axes.len() - unrolled)
    }

    /// The axes over which every stage varies, in loop order, with the granularity of each.
    pub fn loops(&self) -> Vec<(Axis, usize)> {
        let granularity = |axis: &Axis| match (self.block, &self.tiling) {
            (Some((var, count)), _) if var == axis.var => count,
            (_, Some(tiling)) if tiling.source == *axis => tiling.source_tile,
            _ => 1,
        };
        let mut loops: Vec<(Axis, usize)> =
            self.outer.iter().map(|axis| (axis.clone(), granularity(axis))).collect();
        if let (Some(axis), true) = (&self.vector, self.vector_is_outer) {
            loops.push((axis.clone(), self.lanes * self.vectors));
        }
        loops
    }

    /// Spreads outer axes over tasks, outermost first, until tasks have about the work that is asked for.
    fn split_tasks(&mut self, nest: &mut Nest, task_cycles: usize) {
        let vector = self.vector.as_ref().map(|axis| (axis.var, self.lanes));
        let cycles = NestCost::of(nest, vector).cycles;
        let wanted = ((cycles / task_cycles as f64) as usize).clamp(1, MAX_TASKS);
        let mut tasks = 1;
        for (axis, granularity) in self.loops() {
            if self.tiling.is_some() && self.vector.as_ref() == Some(&axis) {
                return;
            }
            let needed = wanted.div_ceil(tasks);
            if needed <= 1 || tasks >= ENOUGH_TASKS {
                return;
            }
            let units = axis.extent.div_ceil(granularity).max(1);
            if units > needed {
                self.chunk = Some(units.div_ceil(needed) * granularity);
                return;
            }
            if granularity > 1 {
                self.chunk = Some(granularity);
                return;
            }
            self.spread += 1;
            tasks *= units;
        }
    }
}

/// Orders axes as the last output's elements lie, outermost first.
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
