//! The thread program of a row kernel: one stage after the other, at the thread's row.

use super::combine::Partial;
use super::emitter::RowEmitter;
use super::schedule::RowSchedule;
use super::stages::{has_arrays, inner_axes, kept_values};
use crate::gpu::points::{named, nest_of, unflatten};
use crate::nest::emit::{NestEmitter, ScratchArray};
use crate::nest::flat::{Nest, NestReduction, NestStage, StageWork};
use crate::nest::pack::pack_constants;
use crate::nest::plan::{NestPlan, order_by_output, outer_axes};
use crate::nest::point::{IterationPoint, Lanes};
use crate::nest::reduce::AccumulatorVars;
use crate::{CannotLower, LaneAxis};
use orch_compute::block::{Axis, BlockProgram};
use orch_compute::expr::{BufferId, ExprId, VarId};
use orch_ir::ReduceOp;
use orch_thread::cta::{CtaStmt, WARP};
use orch_thread::kernel::Kernel;
use orch_thread::program::Stmt;

/// The kernel under a schedule.
///
/// # Errors
/// If threads have nothing to do together, or the schedule is not one for the program.
pub fn lower(block: &BlockProgram, schedule: &RowSchedule) -> Result<Kernel, CannotLower> {
    let mut nest = nest_of(block);
    let outer = outer_axes(&nest);
    let vector = schedule.vector.map(|(position, along)| (nest.axes[position].clone(), along));
    check(&nest, &outer, vector.as_ref(), schedule)?;
    if let Some((axis, _)) = &vector {
        pack_constants(&mut nest, axis);
    }
    let order = loop_order(&mut nest, vector.as_ref().map(|(axis, _)| axis));
    let plan = plan(&mut nest, outer, vector.as_ref(), schedule);
    let is_in_shared_memory = has_arrays(&nest, &outer_axes(&nest));
    let round = nest.program.exprs.declare_index("kept", 0);
    let ctas = points(&plan).div_ceil(schedule.rows) * schedule.cluster;
    nest.program.set_tasks(ctas);
    let thread = nest.program.set_cta(schedule.threads(), schedule.cluster);
    let thread = nest.program.exprs.var(thread);
    let along = vector.map(|(_, along)| along);
    if let Some(cta) = &mut nest.program.cta {
        cta.loads_ahead = schedule.loads_ahead();
    }
    let emitter = NestEmitter::new(nest, &plan);
    let (row, row_thread) = (thread, thread);
    let mut row_emitter = RowEmitter { emitter, schedule, along, thread, row, row_thread, order, round };
    if is_in_shared_memory {
        row_emitter.declare_arrays();
    }
    row_emitter.declare_saves();
    let body = row_emitter.cta();
    let Nest { mut program, bindings, .. } = row_emitter.emitter.nest;
    program.body = body;
    Ok(Kernel { program, bindings })
}

/// Whether the schedule is one for the nest.
fn check(
    nest: &Nest,
    outer: &[Axis],
    vector: Option<&(Axis, LaneAxis)>,
    schedule: &RowSchedule,
) -> Result<(), CannotLower> {
    let &RowSchedule { lanes, row_threads, rows, cluster, .. } = schedule;
    let is_along_terms = vector.is_none_or(|(_, along)| *along == LaneAxis::Reduced);
    let is_one_row = rows == 1 && is_along_terms;
    let conditions = [
        (
            nest.stages.iter().any(|step| !inner_axes(step, outer).is_empty()),
            "every stage is done at a point",
        ),
        (vector.is_none_or(|(axis, _)| axis.extent.is_multiple_of(lanes)), "vectors past the end of an axis"),
        (
            row_threads.is_power_of_two() && schedule.threads().is_multiple_of(WARP),
            "threads of parts of warps",
        ),
        (is_along_terms || rows.is_power_of_two() && lanes.is_power_of_two(), "columns that do not halve"),
        (!has_arrays(nest, outer) || cluster == 1 && is_one_row, "several points for shared results"),
    ];
    match conditions.into_iter().find(|(holds, _)| !holds) {
        Some((_, problem)) => Err(CannotLower::NotThisTemplate(problem)),
        None => Ok(()),
    }
}

/// Axes in loop order: as the inputs lie, and the one along vectors last.
fn loop_order(nest: &mut Nest, vector: Option<&Axis>) -> Vec<VarId> {
    let mut axes = nest.axes.clone();
    order_by_output(nest, &mut axes);
    axes.sort_by_key(|axis| Some(axis) == vector);
    axes.into_iter().map(|axis| axis.var).collect()
}

fn plan(
    nest: &mut Nest,
    mut outer: Vec<Axis>,
    vector: Option<&(Axis, LaneAxis)>,
    schedule: &RowSchedule,
) -> NestPlan {
    let shared = if schedule.keep { kept_values(nest, &outer) } else { Vec::new() };
    outer.retain(|axis| vector.is_none_or(|(vector, _)| vector != axis));
    order_by_output(nest, &mut outer);
    // Single elements along reduced axes are no vectors.
    let vector = vector.filter(|(_, along)| *along == LaneAxis::Output || schedule.lanes > 1);
    NestPlan { shared, ..NestPlan::at_points(outer, vector.cloned(), schedule.lanes) }
}

/// Points of the outer axes, or vectors of them.
fn points(plan: &NestPlan) -> usize {
    plan.loops().iter().map(|(axis, step)| axis.extent.div_ceil(*step)).product()
}

impl<'a> RowEmitter<'a> {
    /// Gives results that vary over more than the outer axes shared memory, indexed by their other axes, and lets later stages load
    /// them from there.
    fn declare_arrays(&mut self) {
        let outer = outer_axes(&self.emitter.nest);
        for step in self.emitter.nest.stages.clone() {
            let Some(holds) = step.result() else { continue };
            let axes = self.in_order(&step.domain, &outer);
            if axes.is_empty() {
                continue;
            }
            let nest = &mut self.emitter.nest;
            let elems = axes.iter().map(|axis| axis.extent).product::<usize>().max(1);
            let index: Vec<ExprId> = axes.iter().map(|axis| nest.program.exprs.var(axis.var)).collect();
            let strides: Vec<usize> =
                (0..axes.len()).map(|at| axes[at + 1..].iter().map(|axis| axis.extent).product()).collect();
            let offset = nest.program.exprs.linear_index(&index, &strides);
            let offset = nest.simplify(offset);
            let (name, dtype) = {
                let info = nest.program.exprs.var_info(holds);
                (format!("{}_all", info.name), info.ty.dtype)
            };
            let buffer = self.shared(&name, dtype, elems);
            let nest = &mut self.emitter.nest;
            let load = nest.program.exprs.load(buffer, offset, 1, None);
            nest.substitute(&[(holds, load)]);
            self.emitter.arrays.push(ScratchArray { holds, buffer, offset });
        }
    }

    /// Gives values that stages keep for later ones registers, `[rounds, width]`.
    fn declare_saves(&mut self) {
        let (round, lanes, along, order) = (self.round, self.schedule.lanes, self.along, self.order.clone());
        let (row_threads, outer) = (self.schedule.threads_of_row(), outer_axes(&self.emitter.nest));
        self.emitter.declare_saves(&mut |emitter, holds, axes| {
            let vector = order.last().filter(|axis| match along {
                Some(LaneAxis::Output) => true,
                Some(LaneAxis::Reduced) => axes.contains(axis),
                None => false,
            });
            let nest = &mut emitter.nest;
            let width = vector.map_or(1, |_| lanes);
            let vector_elems = if outer.iter().any(|axis| Some(&axis.var) == vector) { 1 } else { width };
            let rounds = (nest.points(axes) / vector_elems).div_ceil(row_threads).max(1);
            let info = nest.program.exprs.var_info(holds).clone();
            let buffer = nest.scratch(&info.name, info.ty.dtype, rounds * width);
            let exprs = &mut nest.program.exprs;
            let first = exprs.var(round);
            let mut offset = exprs.mul_const(first, width as i64);
            if let Some(&vector) = vector {
                let (value, count) = (exprs.var(vector), exprs.index(width as i64));
                let lane = exprs.floor_rem(value, count);
                offset = exprs.add2(offset, lane);
            }
            ScratchArray { holds, buffer, offset: nest.simplify(offset) }
        });
    }

    /// Those of the axes that are not outer, in loop order.
    fn in_order(&self, axes: &[VarId], outer: &[Axis]) -> Vec<Axis> {
        let nest = &self.emitter.nest;
        (self.order.iter())
            .filter(|&axis| axes.contains(axis) && outer.iter().all(|other| other.var != *axis))
            .map(|&var| Axis { var, extent: nest.extent(var) })
            .collect()
    }

    /// The body of a CTA.
    fn cta(&mut self) -> Vec<Stmt> {
        let mut body = Vec::new();
        let (row, exists) = self.place_row(&mut body);
        let loops = self.emitter.plan.loops();
        let firsts = unflatten(&mut self.emitter.nest, &loops, row, &mut body);
        let mut place = IterationPoint::default();
        for ((axis, step), first) in loops.iter().zip(firsts) {
            place = match step {
                1 => place.with(axis.var, first),
                _ => place.along(Lanes { axis: axis.var, base: first, count: *step, mask: None }),
            };
        }
        let outer = outer_axes(&self.emitter.nest);
        let steps = self.emitter.nest.stages.clone();
        let mut rest = &steps[..];
        while let Some(step) = rest.first() {
            let mut count = 1;
            match &step.work {
                StageWork::Reduce(reduction)
                    if self.emitter.arrays.iter().any(|a| a.holds == reduction.result) =>
                {
                    let domain = self.in_order(&step.domain, &outer);
                    self.reduce_to_array(reduction, &domain, &place, &mut body);
                }
                StageWork::Reduce(reduction) => {
                    let reduced = self.in_order(&reduction.reduced, &outer);
                    self.reduce(reduction, &reduced, &mut place, &mut body);
                }
                StageWork::Store { .. } => {
                    let is_same =
                        |other: &&NestStage| other.result().is_none() && other.domain == step.domain;
                    count = rest.iter().take_while(is_same).count();
                    let inner = self.in_order(&step.domain, &outer);
                    let stores = self.store(&rest[..count], &inner, &place);
                    body.extend(self.if_true(exists, stores));
                }
            }
            rest = &rest[count..];
        }
        if self.schedule.cluster > 1 {
            // Other CTAs may still read this one's shared memory through DSMEM.
            body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        }
        body
    }

    /// The thread's row in the grid, and whether it exists: threads past the last row repeat that without storing anything.
    ///
    /// ```text
    /// grid    [ceil(points / rows), cluster]
    /// thread  [rows, row_threads] along reduced axes, [row_threads, rows] along outer axes
    /// ```
    fn place_row(&mut self, body: &mut Vec<Stmt>) -> (ExprId, Option<ExprId>) {
        let &RowSchedule { row_threads, rows, cluster, .. } = self.schedule;
        let points = points(self.emitter.plan).max(1);
        let nest = &mut self.emitter.nest;
        let exprs = &mut nest.program.exprs;
        let task = exprs.var(nest.program.task);
        let (size, row_size) = (exprs.index(cluster as i64), exprs.index(row_threads as i64));
        let (cluster_number, rank) = (exprs.floor_div(task, size), exprs.floor_rem(task, size));
        let (cta_row, row_thread) = match self.along {
            Some(LaneAxis::Output) => {
                let size = exprs.index(rows as i64);
                (exprs.floor_rem(self.thread, size), exprs.floor_div(self.thread, size))
            }
            _ => (exprs.floor_div(self.thread, row_size), exprs.floor_rem(self.thread, row_size)),
        };
        let before = exprs.mul_const(rank, row_threads as i64);
        let row_thread = exprs.add2(before, row_thread);
        let threads_of_row = self.schedule.threads_of_row();
        self.row = named(nest, "row_i", cta_row, (0, rows - 1), 1, body);
        self.row_thread = named(nest, "in_row", row_thread, (0, threads_of_row - 1), 1, body);
        let exprs = &mut nest.program.exprs;
        let first = exprs.mul_const(cluster_number, rows as i64);
        let row = exprs.add2(first, self.row);
        let past = points.next_multiple_of(rows);
        let row = named(nest, "unit", row, (0, past - 1), 1, body);
        if past == points {
            return (row, None);
        }
        let exprs = &mut nest.program.exprs;
        let last = exprs.index(points as i64 - 1);
        let (exists, clamped) = (exprs.le(row, last), exprs.min(row, last));
        (named(nest, "point", clamped, (0, points - 1), 1, body), Some(exists))
    }

    /// A reduction over axes; `place` has its result afterwards, in every thread of the row.
    fn reduce(
        &mut self,
        reduction: &NestReduction,
        reduced: &[Axis],
        place: &mut IterationPoint,
        out: &mut Vec<Stmt>,
    ) {
        let rounds = self.rounds(reduced);
        let width = place.width().max(rounds.lanes());
        let acc = self.emitter.accumulator(reduction, width, out);
        out.extend(self.distribute(&rounds, place, Some((reduction, acc)), &mut |emitter, place, acc| {
            acc.map_or_else(Vec::new, |acc| emitter.accumulate(reduction, place, acc, None))
        }));
        let partial = self.thread_partial(reduction, acc, rounds.lanes() > 1, out);
        let total = self.combine(reduction.op, partial, out);
        place.define(reduction.result, total.index.unwrap_or(total.value));
    }

    /// The thread's partial result; its lanes are combined if vectors are along reduced axes.
    fn thread_partial(
        &mut self,
        reduction: &NestReduction,
        acc: AccumulatorVars,
        lanes_are_reduced: bool,
        out: &mut Vec<Stmt>,
    ) -> Partial {
        let exprs = &mut self.emitter.nest.program.exprs;
        let value = exprs.var(acc.value);
        let index = acc.index.map(|index| exprs.var(index));
        if !lanes_are_reduced {
            return Partial { value, index };
        }
        let Some(positions) = acc.index else {
            let value = self.emitter.combine_lanes(reduction, &[acc]);
            return Partial { value: self.bound("part", value, out), index: None };
        };
        let extremum = match reduction.op {
            ReduceOp::ArgMax { .. } => ReduceOp::Max,
            ReduceOp::ArgMin { .. } => ReduceOp::Min,
            other => other,
        };
        let best = self.emitter.nest.program.exprs.reduce_lanes(extremum, value);
        let index = self.emitter.extremum_position(reduction.op, value, positions);
        Partial { value: self.bound("part", best, out), index: Some(self.bound("part_at", index, out)) }
    }

    /// A reduction for each point of axes, each by one thread, into shared memory.
    fn reduce_to_array(
        &mut self,
        reduction: &NestReduction,
        domain: &[Axis],
        place: &IterationPoint,
        out: &mut Vec<Stmt>,
    ) {
        let Some(array) = self.emitter.arrays.iter().find(|array| array.holds == reduction.result).cloned()
        else {
            return;
        };
        let rounds = self.rounds(domain);
        let result = self.emitter.nest.program.exprs.var(reduction.result);
        out.extend(self.distribute(&rounds, place, None, &mut |emitter, place, _| {
            let mut places = [place.clone()];
            let mut out = emitter.reduce_at(reduction, &mut places);
            out.push(emitter.store(&places[0], array.buffer, array.offset, result));
            out
        }));
        out.push(Stmt::Cta(CtaStmt::Barrier));
    }

    /// Stores over one domain, of which `inner` are not outer.
    fn store(&mut self, steps: &[NestStage], inner: &[Axis], place: &IterationPoint) -> Vec<Stmt> {
        let stores: Vec<(BufferId, ExprId, ExprId)> = (steps.iter())
            .filter_map(|step| match step.work {
                StageWork::Store { buffer, offset, body } => Some((buffer, offset, body)),
                StageWork::Reduce(_) => None,
            })
            .collect();
        let roots: Vec<ExprId> = steps.iter().flat_map(NestStage::roots).collect();
        let rounds = self.rounds(inner);
        self.distribute(&rounds, place, None, &mut |emitter, place, _| {
            let mut out = Vec::new();
            let place = emitter.save_shared(&roots, place, &mut out);
            out.extend(
                stores.iter().map(|&(buffer, offset, body)| emitter.store(&place, buffer, offset, body)),
            );
            out
        })
    }
}
