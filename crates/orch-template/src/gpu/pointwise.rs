//! Kernels whose threads work by themselves: elementwise functions, pooling windows, depthwise convolutions, short sums.
//!
//! Each thread has a few vectors of the points over which every stage varies, and runs all stages at them, one after the other.
//! Neighbouring threads have neighbouring vectors along the axis that makes most accesses contiguous:
//!
//! ```text
//! CTA 0   v0:t0  v1:t1  ..  v127:t127   v128:t0  v129:t1  ..        128 threads, 2 vectors each
//! ```
//! Windows are reduced for several neighbours along a second axis together, which share
//! elements and weights.
//!
//! Numerics: as the row template of CPUs, sums of 16-bit floats in f32.

use super::access::{Effort, effort, lane_choices};
use super::estimate::{BASE_REGISTERS, Launch, MAX_REGISTERS};
use super::points::{named, nest_of, unflatten};
use super::window::{self, WindowUnit};
use crate::nest::AxisBlock;
use crate::nest::emit::{NestEmitter, for_loop, neighbours};
use crate::nest::flat::{Nest, StageWork};
use crate::nest::pack::pack_constants;
use crate::nest::plan::{NestPlan, order_by_output, outer_axes};
use crate::nest::point::{IterationPoint, Lanes};
use crate::{CannotLower, LaneAxis};
use orch_compute::block::{Axis, BlockProgram};
use orch_compute::expr::{ExprId, VarInfo};
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Stmt};
use orch_thread::target::GpuTarget;
use std::collections::BTreeSet;
use std::fmt;

/// How threads share points. A *unit* is what a thread computes at once: a vector, at each of its neighbours along `block`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PointwiseSchedule {
    /// The axis of a thread's vectors and of neighbouring threads, as a position among the merged axes.
    pub vector: Option<usize>,
    /// Results of a vector.
    pub lanes: usize,
    /// Another axis, as a position among the merged axes, and how many of its points a thread computes together.
    pub block: Option<AxisBlock>,
    /// Threads of a CTA.
    pub threads: usize,
    /// Vectors of a thread. In round `r` thread `t` has vector `r * threads + t` of the CTA.
    pub vectors: usize,
}

/// The key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for PointwiseSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector, lanes, block, threads, vectors } = self;
        if let Some(axis) = vector {
            write!(f, "vector_axis={axis} ")?;
        }
        if let Some(AxisBlock { axis, points }) = block {
            write!(f, "block_axis={axis} block={points} ")?;
        }
        write!(f, "lanes={lanes} threads={threads} vectors={vectors}")
    }
}

/// Threads of a CTA.
const THREADS: [usize; 2] = [128, 256];

/// Vectors of a thread.
const VECTORS: [usize; 3] = [1, 2, 4];

/// Axes along which vectors are tried.
const MAX_VECTOR_AXES: usize = 2;

/// Blocks that are tried with each axis and number of lanes.
const MAX_BLOCKS: usize = 3;

/// Longest reduction of one thread.
const MAX_REDUCED: usize = 1 << 14;

/// The schedules worth trying, the preferred one first; none if the template does not serve the program.
pub fn schedules(block: &BlockProgram, target: &GpuTarget) -> Vec<PointwiseSchedule> {
    ranked(block, target).into_iter().map(|(_, schedule)| schedule).collect()
}

/// Schedules with their estimated cycles, the preferred one first.
pub(super) fn ranked(block: &BlockProgram, target: &GpuTarget) -> Vec<(f64, PointwiseSchedule)> {
    let mut nest = nest_of(block);
    if !serves(&nest) {
        return Vec::new();
    }
    let mut ranked = Vec::new();
    let outer = outer_axes(&nest);
    for VectorChoice { vector, lanes, effort } in vector_choices(&mut nest) {
        let axis = vector.map(|position| nest.axes[position].clone());
        let mut choices = match &axis {
            Some(axis) if has_windows(&nest) => window::units(&mut nest, &outer, (axis, lanes)),
            _ => vec![WindowUnit { block: None, effort, together: effort.loaded, waits: 0.0 }],
        };
        let schedule = |unit: &WindowUnit, threads, vectors| PointwiseSchedule {
            vector,
            lanes,
            block: unit.block,
            threads,
            vectors,
        };
        let cycles = |schedule: &PointwiseSchedule, unit: &WindowUnit| {
            launch(schedule, units(&nest, schedule), unit).cycles(target)
        };
        // Single vectors stay, the best blocks follow.
        let first = |unit: &WindowUnit| cycles(&schedule(unit, THREADS[0], VECTORS[0]), unit);
        choices[1..].sort_by(|a, b| first(a).total_cmp(&first(b)));
        choices.truncate(1 + MAX_BLOCKS);
        for unit in choices {
            for (threads, vectors) in THREADS.iter().flat_map(|&t| VECTORS.map(|vectors| (t, vectors))) {
                let schedule = schedule(&unit, threads, vectors);
                if vectors > 1 && units(&nest, &schedule).div_ceil(threads * vectors) < target.sms {
                    continue;
                }
                ranked.push((cycles(&schedule, &unit), schedule));
            }
        }
    }
    ranked.retain(|(cycles, _)| cycles.is_finite());
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
    ranked
}

/// The kernel under a schedule.
///
/// # Errors
/// If a stage's results vary over other axes than those that every stage varies over, or one thread would add too much.
pub fn lower(block: &BlockProgram, schedule: &PointwiseSchedule) -> Result<Kernel, CannotLower> {
    let mut nest = nest_of(block);
    if !serves(&nest) {
        return Err(CannotLower::NotThisTemplate("threads would not work by themselves"));
    }
    let vector = schedule.vector.map(|position| nest.axes[position].clone());
    let block = schedule.block.map(|block| (nest.axes[block.axis].var, block.points));
    if let Some(vector) = &vector {
        pack_constants(&mut nest, vector);
    }
    let mut outer = outer_axes(&nest);
    outer.retain(|axis| Some(axis) != vector.as_ref());
    order_by_output(&mut nest, &mut outer);
    let along = vector.map(|axis| (axis, LaneAxis::Output));
    let unrolled_updates = window::updates(block.is_some());
    let plan = NestPlan { block, unrolled_updates, ..NestPlan::at_points(outer, along, schedule.lanes) };
    let mut emitter = NestEmitter::new(nest, &plan);
    let body = cta_body(&mut emitter, schedule);
    let Nest { mut program, bindings, .. } = emitter.nest;
    program.body = body;
    Ok(Kernel { program, bindings })
}

/// True if the template serves the nest: every reduction has one result for a point, and is short enough.
pub(super) fn serves(nest: &Nest) -> bool {
    let outer = outer_axes(nest);
    let is_outer = |axis: &_| outer.iter().any(|outer| outer.var == *axis);
    nest.stages.iter().all(|step| match &step.work {
        StageWork::Reduce(reduction) => {
            step.domain.iter().all(is_outer) && nest.points(&reduction.reduced) <= MAX_REDUCED
        }
        StageWork::Store { .. } => true,
    })
}

fn has_windows(nest: &Nest) -> bool {
    nest.stages.iter().any(|step| matches!(step.work, StageWork::Reduce(_)))
}

/// An axis and lanes for vectors.
struct VectorChoice {
    /// The axis, as a position among the merged axes.
    vector: Option<usize>,
    lanes: usize,
    /// A thread's effort for one vector.
    effort: Effort,
}

/// Vector axes that make accesses cheap, each with all choices of lanes.
fn vector_choices(nest: &mut Nest) -> Vec<VectorChoice> {
    let outer = outer_axes(nest);
    let mut by_axis: Vec<(f64, Vec<VectorChoice>)> = Vec::new();
    for position in 0..nest.axes.len() {
        let axis = nest.axes[position].clone();
        if !outer.contains(&axis) || axis.extent < 2 {
            continue;
        }
        let choices: Vec<VectorChoice> = (lane_choices(nest, &axis, true).into_iter())
            .map(|lanes| {
                let effort = unit_effort(nest, &outer, Some((&axis, lanes)));
                VectorChoice { vector: Some(position), lanes, effort }
            })
            .collect();
        let per_point = |choice: &VectorChoice| choice.effort.bytes / choice.lanes as f64;
        let best = choices.iter().map(per_point).fold(f64::INFINITY, f64::min);
        by_axis.push((best, choices));
    }
    by_axis.sort_by(|a, b| a.0.total_cmp(&b.0));
    by_axis.truncate(MAX_VECTOR_AXES);
    if by_axis.is_empty() {
        return vec![VectorChoice { vector: None, lanes: 1, effort: unit_effort(nest, &outer, None) }];
    }
    by_axis.into_iter().flat_map(|(_, choices)| choices).collect()
}

/// What a thread does for one vector: every stage at each of its points of axes that are not outer.
fn unit_effort(nest: &mut Nest, outer: &[Axis], along: Option<(&Axis, usize)>) -> Effort {
    let mut total = Effort { instructions: 20.0, ..Effort::default() };
    let mut known = BTreeSet::new();
    for step in nest.stages.clone() {
        let inner: Vec<_> =
            step.axes().into_iter().filter(|axis| outer.iter().all(|outer| outer.var != *axis)).collect();
        let points = nest.points(&inner) as f64;
        if points > 1.0 {
            // Values inside loops are known in one iteration only.
            total = total.plus(effort(nest, &step, along, &mut BTreeSet::new()).times(points));
        } else {
            total = total.plus(effort(nest, &step, along, &mut known));
        }
    }
    total
}

/// Units of the whole grid.
fn units(nest: &Nest, schedule: &PointwiseSchedule) -> usize {
    let granularity = |position: usize| match (schedule.vector, schedule.block) {
        (Some(vector), _) if vector == position => schedule.lanes,
        (_, Some(block)) if block.axis == position => block.points,
        _ => 1,
    };
    let outer = outer_axes(nest);
    (nest.axes.iter().enumerate())
        .filter(|(_, axis)| outer.contains(axis))
        .map(|(position, axis)| axis.extent.div_ceil(granularity(position)))
        .product()
}

fn launch(schedule: &PointwiseSchedule, units: usize, unit: &WindowUnit) -> Launch {
    let effort = unit.effort.times(schedule.vectors as f64);
    // Accumulators of a block beside what is loaded together.
    let accumulators = schedule.block.map_or(0, |block| block.points * schedule.lanes);
    let held = accumulators + (unit.together / 4.0).min(128.0) as usize;
    Launch {
        ctas: units.div_ceil(schedule.threads * schedule.vectors),
        threads: schedule.threads,
        registers: (BASE_REGISTERS + held).min(MAX_REGISTERS),
        shared_bytes: 0,
        effort,
        in_flight: (unit.together * schedule.vectors as f64).min(256.0),
        rounds: 1.0 + (effort.loaded / 512.0).floor() + unit.waits,
        iterations: 0.0,
        waits: 0.0,
    }
}

/// The body of a CTA.
fn cta_body(emitter: &mut NestEmitter<'_>, schedule: &PointwiseSchedule) -> Vec<Stmt> {
    let loops = emitter.plan.loops();
    let units: usize = loops.iter().map(|(axis, step)| axis.extent.div_ceil(*step)).product();
    let per_cta = schedule.threads * schedule.vectors;
    let program = &mut emitter.nest.program;
    let (task, thread) = (program.set_tasks(units.div_ceil(per_cta)), program.set_cta(schedule.threads, 1));
    let tasks = program.tasks;
    let exprs = &mut program.exprs;
    let (task, thread) = (exprs.var(task), exprs.var(thread));
    let first = exprs.mul_const(task, per_cta as i64);
    let (round_var, round) = exprs.fresh_index("iter", schedule.vectors);
    let round = if schedule.vectors == 1 { exprs.index(0) } else { round };
    // unit = [cta, round, thread]
    let before = exprs.mul_const(round, schedule.threads as i64);
    let unit = exprs.add2(first, before);
    let unit = exprs.add2(unit, thread);

    let mut body = Vec::new();
    let all = (tasks * per_cta).max(1);
    let unit = named(&mut emitter.nest, "unit", unit, (0, all - 1), 1, &mut body);
    if units == tasks * per_cta {
        body.extend(at_unit(emitter, &loops, unit));
    } else {
        let exprs = &mut emitter.nest.program.exprs;
        let end = exprs.index(units as i64);
        let condition = exprs.lt(unit, end);
        let mut then = Vec::new();
        let unit = named(&mut emitter.nest, "unit", unit, (0, units.max(1) - 1), 1, &mut then);
        then.extend(at_unit(emitter, &loops, unit));
        body.push(Stmt::If { condition, then, otherwise: Vec::new() });
    }
    if schedule.vectors == 1 {
        return body;
    }
    let exprs = &mut emitter.nest.program.exprs;
    let (start, end) = (exprs.index(0), exprs.index(schedule.vectors as i64));
    vec![for_loop(round_var, start, end, 1, LoopKind::Unroll, body)]
}

/// All stages at the points of one unit.
fn at_unit(emitter: &mut NestEmitter<'_>, loops: &[(Axis, usize)], unit: ExprId) -> Vec<Stmt> {
    let mut out = Vec::new();
    let firsts = unflatten(&mut emitter.nest, loops, unit, &mut out);
    let mut place = IterationPoint::default();
    let mut groups = Vec::new();
    for ((axis, step), first) in loops.iter().zip(firsts) {
        if *step == 1 {
            place = place.with(axis.var, first);
        } else {
            groups.push((axis.clone(), *step, first));
        }
    }
    out.extend(at_groups(emitter, &groups, vec![place]));
    out
}

/// All stages at groups of neighbouring points of axes; a group that the end of the axis cuts is done point by point.
fn at_groups(
    emitter: &mut NestEmitter<'_>,
    groups: &[(Axis, usize, ExprId)],
    places: Vec<IterationPoint>,
) -> Vec<Stmt> {
    let Some(((axis, step, first), inner)) = groups.split_first() else { return emitter.stages_at(places) };
    let whole = if emitter.plan.vector.as_ref() == Some(axis) {
        let along = Lanes { axis: axis.var, base: *first, count: *step, mask: None };
        places.iter().map(|place| place.along(along)).collect()
    } else {
        let exprs = &mut emitter.nest.program.exprs;
        let values = (0..*step).map(|offset| exprs.add_const(*first, offset as i64)).collect();
        neighbours(&places, axis.var, values)
    };
    let then = at_groups(emitter, inner, whole);
    if axis.extent.is_multiple_of(*step) {
        return then;
    }
    let exprs = &mut emitter.nest.program.exprs;
    let end = exprs.index(axis.extent as i64);
    let last = exprs.add_const(end, -(*step as i64));
    let condition = exprs.le(*first, last);
    let VarInfo { name, .. } = exprs.var_info(axis.var).clone();
    let (var, value) = exprs.fresh_index(name, axis.extent);
    let single = places.iter().map(|place| place.with(axis.var, value)).collect();
    let body = at_groups(emitter, inner, single);
    let otherwise = vec![for_loop(var, *first, end, 1, LoopKind::Serial, body)];
    let condition = emitter.nest.simplify(condition);
    match emitter.nest.program.exprs.as_bool(condition) {
        Some(true) => then,
        Some(false) => otherwise,
        None => vec![Stmt::If { condition, then, otherwise }],
    }
}
