//! Units of windows: how many neighbouring windows (of a pooling, of a depthwise convolution) a thread reduces together, and what that
//! saves. An element that several of them read is loaded and converted once, as is a weight:
//!
//! ```text
//! window of 3, 4 points:   point 0   e0 e1 e2
//!                          point 1      e1 e2 e3
//!                          point 2         e2 e3 e4
//!                          point 3            e3 e4 e5      6 elements in place of 12, 3 weights in place of 12
//! ```
//! That holds for the reduced axes that are unrolled; iterations of the others share nothing.

use super::access::{Effort, SHORT_RUN, StageEffort, stage_effort};
use crate::nest::flat::Nest;
use crate::nest::plan::{AxisBlock, MAX_UNROLLED_UPDATES, looped, order_by_output};
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, VarId};
use std::collections::BTreeSet;

/// Most points that a thread computes together, a vector counted as one.
const MAX_POINTS: usize = 8;

/// Most accumulator updates of a thread that are unrolled.
const MAX_UPDATES: usize = 64;

/// The least share of a load's latency that counts: neighbours bring most elements of a window to the L1 or the L2.
const LEAST_WAIT: f64 = 0.25;

/// Bytes from which on runs of consecutive elements are as good as one.
const LONG_RUN: usize = 128;

/// Iterations of a reduction whose loads are in flight together.
const LOADS_IN_FLIGHT: f64 = 8.0;

/// Most bytes of several iterations whose loads are in flight together.
const MOST_TOGETHER: f64 = 128.0;

/// Bytes of an element of the widest type.
const WIDEST_ELEMENT: usize = 8;

/// Instructions by which a thread finds its points.
const UNIT_INSTRUCTIONS: f64 = 20.0;

/// What a thread does for one vector, or for several neighbouring ones.
pub(super) struct WindowUnit {
    /// The neighbours.
    pub block: Option<AxisBlock>,
    /// What the thread does.
    pub effort: Effort,
    /// Bytes of elements that it loads together.
    pub together: f64,
    /// Times that it waits for loads in loops over reduced axes.
    pub waits: f64,
}

/// The units worth trying where vectors run along `along`: single vectors, and blocks of each other outer axis.
pub(super) fn units(nest: &mut Nest, outer: &[Axis], along: (&Axis, usize)) -> Vec<WindowUnit> {
    let (axis, lanes) = along;
    let mut others: Vec<Axis> = outer.iter().filter(|other| *other != axis).cloned().collect();
    order_by_output(nest, &mut others);
    let windows = Windows::of(nest, outer, along);
    let mut units = vec![windows.unit(nest, None, 1.0)];
    // Threads beside each other have vectors along the axis, then points of the innermost other axis. A block of that one takes their runs of
    // elements apart.
    let run = axis.extent.div_ceil(lanes) * lanes * windows.element_bytes;
    let apart = if run < LONG_RUN { 1.0 + SHORT_RUN / run as f64 } else { 1.0 };
    for other in &others {
        let Some(position) = nest.axes.iter().position(|axis| axis == other) else { continue };
        let traffic = if Some(other) == others.last() { apart } else { 1.0 };
        for points in 2..=MAX_POINTS.min(other.extent) {
            units.push(windows.unit(nest, Some((other, AxisBlock { axis: position, points })), traffic));
        }
    }
    units
}

/// The stages of a nest, as efforts for one vector.
struct Windows {
    stages: Vec<WindowStage>,
    /// Bytes of the smallest elements that are loaded.
    element_bytes: usize,
}

struct WindowStage {
    effort: StageEffort,
    /// Axes that a thread reduces, outermost loop first.
    reduced: Vec<Axis>,
}

impl Windows {
    fn of(nest: &mut Nest, outer: &[Axis], along: (&Axis, usize)) -> Self {
        let mut known = BTreeSet::new();
        let mut stages = Vec::new();
        let mut element_bytes = usize::MAX;
        for step in nest.stages.clone() {
            let is_inner = |axis: &&Axis| {
                step.reduced().contains(&axis.var) && outer.iter().all(|outer| outer.var != axis.var)
            };
            let mut reduced: Vec<Axis> = nest.axes.iter().filter(is_inner).cloned().collect();
            reduced.sort_by_key(|axis| step.reduced().iter().position(|var| *var == axis.var));
            // Values inside loops are known in one iteration only.
            let mut inside = BTreeSet::new();
            let known = if reduced.is_empty() { &mut known } else { &mut inside };
            let effort = stage_effort(nest, &step, Some(along), known);
            let sizes = effort.by_load.iter().map(|(load, _)| nest.program.exprs.dtype(*load).size_bytes());
            element_bytes = sizes.fold(element_bytes, usize::min);
            stages.push(WindowStage { effort, reduced });
        }
        Self { stages, element_bytes: element_bytes.min(WIDEST_ELEMENT) }
    }

    /// The unit of a vector, or of a block of them along an axis, whose loads transfer so many times their bytes.
    fn unit(&self, nest: &mut Nest, block: Option<(&Axis, AxisBlock)>, traffic: f64) -> WindowUnit {
        let points = block.map_or(1, |(_, block)| block.points);
        let along = block.map(|(axis, block)| (axis.var, block.points));
        let mut unit = self.of_points(nest, along, traffic);
        if let Some((axis, _)) = block {
            // The last unit of the axis does what is left point by point.
            let (whole, rest) = (axis.extent / points, axis.extent % points);
            if rest > 0 {
                let single = self.of_points(nest, None, traffic);
                let share = 1.0 / (whole + 1) as f64;
                unit.effort = unit.effort.times(1.0 - share).plus(single.effort.times(rest as f64 * share));
            }
        }
        unit.effort.instructions += UNIT_INSTRUCTIONS;
        unit.block = block.map(|(_, block)| block);
        unit
    }

    /// What a thread does for so many points along an axis.
    fn of_points(&self, nest: &mut Nest, along: Option<(VarId, usize)>, traffic: f64) -> WindowUnit {
        let points = along.map_or(1, |(_, points)| points);
        let most = updates(along.is_some());
        let mut unit = WindowUnit { block: None, effort: Effort::default(), together: 0.0, waits: 0.0 };
        for stage in &self.stages {
            let extents: Vec<usize> = stage.reduced.iter().map(|axis| axis.extent).collect();
            let (loops, unrolled) = stage.reduced.split_at(looped(&extents, points, most));
            let product = |axes: &[Axis]| axes.iter().map(|axis| axis.extent).product::<usize>();
            let (iterations, updates) = (product(loops) as f64, product(unrolled));
            let mut steps: Vec<(VarId, usize)> =
                unrolled.iter().map(|axis| (axis.var, axis.extent)).collect();
            steps.extend(along);
            let mut effort = stage.effort.own.times((points * updates) as f64);
            let mut together = 0.0;
            for (load, of_load) in &stage.effort.by_load {
                let elements = elements(nest, *load, &steps) as f64;
                let all = of_load.times(elements);
                together += all.loaded;
                // The share that comes from memory.
                let wait = (of_load.bytes / of_load.loaded.max(1.0)).clamp(LEAST_WAIT, 1.0);
                effort = effort.plus(Effort { loaded: all.loaded * wait, bytes: all.bytes * traffic, ..all });
            }
            unit.effort = unit.effort.plus(effort.times(iterations));
            let in_loop = (together * iterations.min(LOADS_IN_FLIGHT)).min(MOST_TOGETHER);
            unit.together = unit.together.max(together).max(in_loop);
            let waits = (iterations * updates as f64 / LOADS_IN_FLIGHT).min(iterations);
            unit.waits += if loops.is_empty() { 0.0 } else { waits.floor() };
        }
        unit
    }
}

/// Most accumulator updates that are unrolled where points are computed together, and where they are not.
pub(super) fn updates(is_block: bool) -> usize {
    if is_block { MAX_UPDATES } else { MAX_UNROLLED_UPDATES }
}

/// How many different elements a load reads at all positions of axes of these extents; all, if its strides are not constant.
fn elements(nest: &mut Nest, load: ExprId, axes: &[(VarId, usize)]) -> usize {
    let Expr::Load { offset, .. } = *nest.program.exprs.get(load) else { return 0 };
    let mut offsets = BTreeSet::from([0_i64]);
    for &(axis, extent) in axes {
        let Some(stride) = nest.simplifier.stride(&mut nest.program.exprs, offset, axis) else {
            return axes.iter().map(|(_, extent)| extent).product();
        };
        let steps = |from: &i64| {
            let from = *from;
            (0..extent as i64).map(move |step| from + step * stride)
        };
        offsets = offsets.iter().flat_map(steps).collect();
    }
    offsets.len()
}
