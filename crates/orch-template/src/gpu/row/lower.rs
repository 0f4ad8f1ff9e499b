//! The thread program of a row kernel.

use super::RowSchedule;
use super::choose::{has_arrays, inner_axes, kept_values};
use super::combine::Partial;
use crate::gpu::points::{named, unflatten};
use crate::nest::emit::{NestEmitter, ScratchArray, for_loop};
use crate::nest::flat::{Nest, NestReduction, NestStage, StageWork};
use crate::nest::pack::pack_constants;
use crate::nest::plan::{NestPlan, order_by_output, outer_axes};
use crate::nest::point::{IterationPoint, Lanes};
use crate::nest::reduce::{AccumulatorVars, ReductionLoop};
use crate::{CannotLower, LaneAxis};
use orch_compute::block::Axis;
use orch_compute::expr::{BufferId, ExprId, VarId};
use orch_ir::ReduceOp;
use orch_thread::cta::{CtaStmt, WARP};
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Stmt};

/// Emission of one kernel.
pub(super) struct Rows<'a> {
    pub emitter: NestEmitter<'a>,
    pub schedule: &'a RowSchedule,
    pub along: Option<LaneAxis>,
    /// The number of the thread in its task.
    pub thread: ExprId,
    /// The group that the thread is a member of.
    pub group: ExprId,
    /// Which of all members of its group the thread is.
    pub member: ExprId,
    /// Axes as loops nest, the one along vectors last.
    order: Vec<VarId>,
    /// The vector that a thread is at among those that it does in a stage: where it keeps values.
    slot: VarId,
}

/// The kernel under a schedule.
pub(super) fn lower(mut nest: Nest, schedule: &RowSchedule) -> Result<Kernel, CannotLower> {
    let outer = outer_axes(&nest);
    let vector = schedule.vector.map(|(position, along)| (nest.axes[position].clone(), along));
    check(&nest, &outer, vector.as_ref(), schedule)?;
    if let Some((axis, _)) = &vector {
        pack_constants(&mut nest, axis);
    }
    let order = loop_order(&mut nest, vector.as_ref().map(|(axis, _)| axis));
    let plan = plan(&mut nest, outer, vector.as_ref(), schedule);
    let is_in_shared_memory = has_arrays(&nest, &outer_axes(&nest));
    let slot = nest.program.exprs.declare_index("slot", 0);
    let tasks = points(&plan).div_ceil(schedule.groups) * schedule.cluster;
    nest.program.set_tasks(tasks);
    let thread = nest.program.set_cta(schedule.threads(), schedule.cluster);
    let thread = nest.program.exprs.var(thread);
    let along = vector.map(|(_, along)| along);
    if let Some(cta) = &mut nest.program.cta {
        cta.loads_ahead = schedule.loads_ahead();
    }
    let emitter = NestEmitter::new(nest, &plan);
    let (group, member) = (thread, thread);
    let mut rows = Rows { emitter, schedule, along, thread, group, member, order, slot };
    if is_in_shared_memory {
        rows.declare_arrays();
    }
    rows.declare_saves();
    let body = rows.task();
    let Nest { mut program, bindings, .. } = rows.emitter.nest;
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
    let &RowSchedule { lanes, members, groups, cluster, .. } = schedule;
    let is_along_terms = vector.is_none_or(|(_, along)| *along == LaneAxis::Reduced);
    let is_one_group = groups == 1 && is_along_terms;
    let conditions = [
        (
            nest.stages.iter().any(|step| !inner_axes(step, outer).is_empty()),
            "every stage is done at a point",
        ),
        (vector.is_none_or(|(axis, _)| axis.extent.is_multiple_of(lanes)), "vectors past the end of an axis"),
        (members.is_power_of_two() && schedule.threads().is_multiple_of(WARP), "threads of parts of warps"),
        (is_along_terms || groups.is_power_of_two() && lanes.is_power_of_two(), "columns that do not halve"),
        (!has_arrays(nest, outer) || cluster == 1 && is_one_group, "several points for shared results"),
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

impl<'a> Rows<'a> {
    /// Gives results that vary over more than the outer axes shared memory, and lets later stages load them from there.
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

    /// Gives values that stages keep for later ones a place in registers, one for each slot.
    fn declare_saves(&mut self) {
        let (slot, lanes, along, order) = (self.slot, self.schedule.lanes, self.along, self.order.clone());
        let (members, outer) = (self.schedule.all_members(), outer_axes(&self.emitter.nest));
        self.emitter.declare_saves(&mut |emitter, holds, axes| {
            let vector = order.last().filter(|axis| match along {
                Some(LaneAxis::Output) => true,
                Some(LaneAxis::Reduced) => axes.contains(axis),
                None => false,
            });
            let nest = &mut emitter.nest;
            let width = vector.map_or(1, |_| lanes);
            let terms = if outer.iter().any(|axis| Some(&axis.var) == vector) { 1 } else { width };
            let slots = (nest.points(axes) / terms).div_ceil(members).max(1);
            let info = nest.program.exprs.var_info(holds).clone();
            let buffer = nest.scratch(&info.name, info.ty.dtype, slots * width);
            let exprs = &mut nest.program.exprs;
            let first = exprs.var(slot);
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

    /// The body of a task.
    fn task(&mut self) -> Vec<Stmt> {
        let mut body = Vec::new();
        let (unit, is_real) = self.unit(&mut body);
        let loops = self.emitter.plan.loops();
        let firsts = unflatten(&mut self.emitter.nest, &loops, unit, &mut body);
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
                    body.extend(self.if_true(is_real, stores));
                }
            }
            rest = &rest[count..];
        }
        if self.schedule.cluster > 1 {
            // Others may still read this task's shared memory.
            body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        }
        body
    }

    /// The point of the outer axes that the thread works at, and whether it is one of its own: groups past the last
    /// point repeat that without storing anything.
    fn unit(&mut self, body: &mut Vec<Stmt>) -> (ExprId, Option<ExprId>) {
        let &RowSchedule { members, groups, cluster, .. } = self.schedule;
        let points = points(self.emitter.plan).max(1);
        let nest = &mut self.emitter.nest;
        let exprs = &mut nest.program.exprs;
        let task = exprs.var(nest.program.task);
        let (size, members_size) = (exprs.index(cluster as i64), exprs.index(members as i64));
        let (number, rank) = (exprs.floor_div(task, size), exprs.floor_rem(task, size));
        let (group, member) = match self.along {
            Some(LaneAxis::Output) => {
                let size = exprs.index(groups as i64);
                (exprs.floor_rem(self.thread, size), exprs.floor_div(self.thread, size))
            }
            _ => (exprs.floor_div(self.thread, members_size), exprs.floor_rem(self.thread, members_size)),
        };
        let before = exprs.mul_const(rank, members as i64);
        let member = exprs.add2(before, member);
        let all_members = self.schedule.all_members();
        self.group = named(nest, "group", group, (0, groups - 1), 1, body);
        self.member = named(nest, "member", member, (0, all_members - 1), 1, body);
        let exprs = &mut nest.program.exprs;
        let first = exprs.mul_const(number, groups as i64);
        let unit = exprs.add2(first, self.group);
        let past = points.next_multiple_of(groups);
        let unit = named(nest, "unit", unit, (0, past - 1), 1, body);
        if past == points {
            return (unit, None);
        }
        let exprs = &mut nest.program.exprs;
        let last = exprs.index(points as i64 - 1);
        let (is_real, clamped) = (exprs.le(unit, last), exprs.min(unit, last));
        (named(nest, "point", clamped, (0, points - 1), 1, body), Some(is_real))
    }

    pub fn if_true(&mut self, condition: Option<ExprId>, then: Vec<Stmt>) -> Vec<Stmt> {
        match condition {
            Some(condition) => vec![Stmt::If { condition, then, otherwise: Vec::new() }],
            None => then,
        }
    }

    /// What the thread does of a loop over axes.
    fn turns(&self, axes: &[Axis]) -> Turns {
        let plan = self.emitter.plan;
        let is_vector = |axis: &Axis| !plan.vector_is_outer && plan.vector.as_ref() == Some(axis);
        let step = |axis: &Axis| if is_vector(axis) { plan.lanes } else { 1 };
        let is_kept = (plan.shared.iter()).any(|shared| {
            shared.axes.len() == axes.len() && axes.iter().all(|axis| shared.axes.contains(&axis.var))
        });
        Turns {
            axes: axes.iter().map(|axis| (axis.clone(), step(axis))).collect(),
            members: self.schedule.all_members(),
            member: self.member,
            slot: self.slot,
            is_kept,
        }
    }

    /// `body` at the vectors that are the thread's: in loops over the turns that all members have, and in the last
    /// one, which the first members have. `sum` is the reduction that it is for, and what `body` adds to.
    fn deal(
        &mut self,
        turns: &Turns,
        place: &IterationPoint,
        sum: Option<(&NestReduction, AccumulatorVars)>,
        body: &mut Body<'_, 'a>,
    ) -> Vec<Stmt> {
        let (full, rest) = (turns.vectors() / turns.members, turns.vectors() % turns.members);
        let mut out = Vec::new();
        let together = if turns.is_kept { full } else { self.schedule.together.min(full) };
        // Turns that are no whole iteration have loops of their own, so that their loads too are under way together.
        let iterated = if self.schedule.loads_ahead() { full - full % together.max(1) } else { full };
        for (first, past) in [(0, iterated), (iterated, full)] {
            out.extend(self.deal_turns(turns, (first, past, together), place, sum, body));
        }
        let emitter = &mut self.emitter;
        if rest > 0 {
            let exprs = &mut emitter.nest.program.exprs;
            let (turn, past) = (exprs.index(full as i64), exprs.index(rest as i64));
            let condition = exprs.lt(turns.member, past);
            let then = turns.at(emitter, turn, place, sum.map(|(_, acc)| acc), body);
            out.push(Stmt::If { condition, then, otherwise: Vec::new() });
        }
        out
    }

    /// `body` in turns `first..past`, `together` of them in an iteration.
    fn deal_turns(
        &mut self,
        turns: &Turns,
        (first, past, together): (usize, usize, usize),
        place: &IterationPoint,
        sum: Option<(&NestReduction, AccumulatorVars)>,
        body: &mut Body<'_, 'a>,
    ) -> Vec<Stmt> {
        let emitter = &mut self.emitter;
        let exprs = &mut emitter.nest.program.exprs;
        let (start, end, extent) = (exprs.index(first as i64), exprs.index(past as i64), past - first);
        if extent <= 1 {
            let mut once = || turns.at(emitter, start, place, sum.map(|(_, acc)| acc), body);
            return if extent == 1 { once() } else { Vec::new() };
        }
        let (var, turn) = exprs.fresh_index("turn", past);
        let is_one_iteration = extent <= together;
        let kind = if is_one_iteration { LoopKind::Unroll } else { LoopKind::UnrollBy(together as u32) };
        let whole = ReductionLoop { var, start, end, step: 1, extent, kind };
        match sum {
            Some((reduction, acc)) => {
                emitter.loop_in_chains(reduction, whole, 1, &[acc], &mut |emitter, accs| {
                    turns.at(emitter, turn, place, accs.first().copied(), body)
                })
            }
            None => {
                let body = turns.at(emitter, turn, place, None, body);
                vec![for_loop(var, start, end, 1, kind, body)]
            }
        }
    }

    /// A reduction over axes; `place` has its result afterwards, in every member.
    fn reduce(
        &mut self,
        reduction: &NestReduction,
        reduced: &[Axis],
        place: &mut IterationPoint,
        out: &mut Vec<Stmt>,
    ) {
        let turns = self.turns(reduced);
        let width = place.width().max(turns.lanes());
        let acc = self.emitter.accumulator(reduction, width, out);
        out.extend(self.deal(&turns, place, Some((reduction, acc)), &mut |emitter, place, acc| {
            acc.map_or_else(Vec::new, |acc| emitter.accumulate(reduction, place, acc, None))
        }));
        let partial = self.of_thread(reduction, acc, turns.lanes() > 1, out);
        let total = self.combine(reduction.op, partial, out);
        place.define(reduction.result, total.index.unwrap_or(total.value));
    }

    /// What the thread found; its lanes combined if they are terms.
    fn of_thread(
        &mut self,
        reduction: &NestReduction,
        acc: AccumulatorVars,
        lanes_are_terms: bool,
        out: &mut Vec<Stmt>,
    ) -> Partial {
        let exprs = &mut self.emitter.nest.program.exprs;
        let value = exprs.var(acc.value);
        let index = acc.index.map(|index| exprs.var(index));
        if !lanes_are_terms {
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
        let turns = self.turns(domain);
        let result = self.emitter.nest.program.exprs.var(reduction.result);
        out.extend(self.deal(&turns, place, None, &mut |emitter, place, _| {
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
        let turns = self.turns(inner);
        self.deal(&turns, place, None, &mut |emitter, place, _| {
            let mut out = Vec::new();
            let place = emitter.save_shared(&roots, place, &mut out);
            out.extend(
                stores.iter().map(|&(buffer, offset, body)| emitter.store(&place, buffer, offset, body)),
            );
            out
        })
    }
}

/// What is done at a place, for a reduction with what it adds to.
type Body<'f, 'a> =
    dyn FnMut(&mut NestEmitter<'a>, &IterationPoint, Option<AccumulatorVars>) -> Vec<Stmt> + 'f;

/// A loop that is dealt out to members: vector number `turn * members + member` is done in a member's turn `turn`.
struct Turns {
    /// Axes, with the granularity of each.
    axes: Vec<(Axis, usize)>,
    members: usize,
    member: ExprId,
    slot: VarId,
    /// Whether values are kept in registers, for which turns must be known when compiling.
    is_kept: bool,
}

impl Turns {
    fn vectors(&self) -> usize {
        self.axes.iter().map(|(axis, step)| axis.extent / step).product()
    }

    fn lanes(&self) -> usize {
        self.axes.iter().map(|(_, step)| *step).product()
    }

    /// `body` in one turn.
    fn at<'a>(
        &self,
        emitter: &mut NestEmitter<'a>,
        turn: ExprId,
        place: &IterationPoint,
        acc: Option<AccumulatorVars>,
        body: &mut Body<'_, 'a>,
    ) -> Vec<Stmt> {
        let nest = &mut emitter.nest;
        let first = nest.program.exprs.mul_const(turn, self.members as i64);
        let at = nest.program.exprs.add2(first, self.member);
        let mut out = Vec::new();
        let at = named(nest, "at", at, (0, self.vectors() - 1), 1, &mut out);
        let values = unflatten(nest, &self.axes, at, &mut out);
        let mut place = place.with(self.slot, turn);
        for ((axis, step), value) in self.axes.iter().zip(values) {
            place = match step {
                1 => place.with(axis.var, value),
                _ => place.along(Lanes { axis: axis.var, base: value, count: *step, mask: None }),
            };
        }
        out.extend(body(emitter, &place, acc));
        out
    }
}
