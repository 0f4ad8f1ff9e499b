//! Reducing stages: accumulators, the loops over reduced axes, and the combination of lanes.
//!
//! ```text
//! acc = identity                                   one per point (vectors along results), or several for one
//! for looped reduced axes, within guard bounds:    point (vectors along a reduced axis)
//!   unrolled reduced axes: acc = op(acc, body)
//! result = acc, or its lanes combined
//! ```
//!
//! A long float sum has a second level of accumulators, see [`NestEmitter::loop_in_chains`].

use super::emit::{LoopBounds, NestEmitter, for_loop};
use super::flat::{NestReduction, NestStage, ProductOperands};
use super::identity::identity;
use super::limits::{GuardBound, limits};
use super::point::{IterationPoint, Lanes};
use crate::design::LONGEST_CHAIN;
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, Type, VarId, VarInfo};
use orch_ir::{DType, ReduceOp};
use orch_thread::program::{LoopKind, Stmt};

/// The fewest updates of one accumulator for which a sum is split: shorter chains gain no accuracy that is worth the loop.
const SHORTEST_CHAIN: usize = 32;

/// The variables of an accumulator: scalars, or vectors of one partial result per lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccumulatorVars {
    /// The result so far.
    pub value: VarId,
    /// Of arg-reductions: the position of `value` along the reduced axis.
    pub index: Option<VarId>,
}

/// Emits the updates of accumulators by a reduction's values at points.
type EmitUpdates<'e, 'f> =
    dyn FnMut(&mut NestEmitter<'e>, &NestReduction, &[IterationPoint], &[AccumulatorVars]) -> Vec<Stmt> + 'f;

/// A loop over a reduced axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReductionLoop {
    pub var: VarId,
    pub start: ExprId,
    pub end: ExprId,
    pub step: usize,
    /// Extent of the axis: an upper bound of `end - start`.
    pub extent: usize,
    /// Serial, or unrolled by the C compiler.
    pub kind: LoopKind,
}

impl ReductionLoop {
    /// The loop with this body.
    fn around(self, body: Vec<Stmt>) -> Stmt {
        for_loop(self.var, self.start, self.end, self.step, self.kind, body)
    }
}

impl<'e> NestEmitter<'e> {
    /// A reducing stage at some points of the outer axes. Defines its placeholder at the points, or, if the result
    /// varies over inner axes, fills its array.
    pub fn reduce_stage(
        &mut self,
        stage: &NestStage,
        reduction: &NestReduction,
        points: &mut [IterationPoint],
    ) -> Vec<Stmt> {
        let array = self.arrays.iter().find(|array| array.holds == reduction.result).cloned();
        let Some(array) = array else { return self.reduce_at(reduction, points) };
        let axes = self.inner_axes(&stage.domain);
        let result = self.nest.program.exprs.var(reduction.result);
        self.inner_loops(&axes, points, &mut |emitter, points| {
            let mut points = points.to_vec();
            let mut out = emitter.reduce_at(reduction, &mut points);
            for point in &points {
                out.push(emitter.store(point, array.buffer, array.offset, result));
            }
            out
        })
    }

    /// Reduces at each point and defines the placeholder there.
    pub fn reduce_at(&mut self, reduction: &NestReduction, points: &mut [IterationPoint]) -> Vec<Stmt> {
        let axes = self.inner_axes(&reduction.reduced);
        let along_vectors = axes.last().cloned().filter(|axis| {
            self.plan.vector.as_ref() == Some(axis) && points.iter().all(|point| point.lanes.is_none())
        });
        let mut out = Vec::new();
        match along_vectors {
            None => {
                let accumulators: Vec<AccumulatorVars> =
                    points.iter().map(|point| self.accumulator(reduction, point.width(), &mut out)).collect();
                let mut updates =
                    |emitter: &mut Self, reduction: &NestReduction, points: &[IterationPoint], accs: &[_]| {
                        (points.iter().zip(accs))
                            .flat_map(|(point, acc)| emitter.accumulate(reduction, point, *acc, None))
                            .collect()
                    };
                out.extend(self.reduction_loops(reduction, &axes, points, &accumulators, 1, &mut updates));
                for (point, acc) in points.iter_mut().zip(accumulators) {
                    let result = acc.index.unwrap_or(acc.value);
                    let result = self.nest.program.exprs.var(result);
                    point.define(reduction.result, result);
                }
            }
            Some(axis) => {
                let outer = &axes[..axes.len() - 1];
                for point in points.iter_mut() {
                    let result = self.reduce_along(reduction, point, outer, &axis, &mut out);
                    point.define(reduction.result, result);
                }
            }
        }
        out
    }

    /// Reduces at one point, with vectors along the reduced `axis` and loops over the other reduced axes, `outer`.
    /// Returns the scalar result.
    fn reduce_along(
        &mut self,
        reduction: &NestReduction,
        point: &IterationPoint,
        outer: &[Axis],
        axis: &Axis,
        out: &mut Vec<Stmt>,
    ) -> ExprId {
        let lanes = self.plan.lanes;
        let most = if reduction.op.is_arg() { 1 } else { self.plan.vectors };
        let count = axis.extent.div_ceil(lanes).clamp(1, most);
        let accumulators: Vec<AccumulatorVars> =
            (0..count).map(|_| self.accumulator(reduction, lanes, out)).collect();
        let points = std::slice::from_ref(point);
        let mut along_axis =
            |emitter: &mut Self, reduction: &NestReduction, points: &[IterationPoint], accs: &[_]| {
                points.iter().flat_map(|point| emitter.update_along(reduction, point, axis, accs)).collect()
            };
        let updates = axis.extent.div_ceil(lanes * count);
        out.extend(self.reduction_loops(reduction, outer, points, &accumulators, updates, &mut along_axis));
        let result = self.combine_lanes(reduction, &accumulators);
        let ty = self.nest.program.exprs.ty(result);
        let name = self.nest.program.exprs.var_info(reduction.result).name.clone();
        let var = self.nest.program.exprs.declare_register(name, ty);
        out.push(Stmt::Let(var, result));
        self.nest.program.exprs.var(var)
    }

    /// Updates by all values along the vector axis: vector `i` updates accumulator `i` modulo their number.
    fn update_along(
        &mut self,
        reduction: &NestReduction,
        point: &IterationPoint,
        axis: &Axis,
        accs: &[AccumulatorVars],
    ) -> Vec<Stmt> {
        let lanes = self.plan.lanes;
        let together = lanes * accs.len();
        let blocks = axis.extent / together * together;
        let mut out = Vec::new();
        let is_loop = blocks > together;
        if is_loop {
            let base = self.loop_var(axis, 0, blocks - together, together);
            let first = self.nest.program.exprs.var(base);
            let exprs = &mut self.nest.program.exprs;
            let (start, end) = (exprs.index(0), exprs.index(blocks as i64));
            let kind = LoopKind::Serial;
            let whole = ReductionLoop { var: base, start, end, step: together, extent: blocks, kind };
            out.extend(self.loop_in_chains(reduction, whole, 1, accs, &mut |emitter, accs| {
                let mut body = Vec::new();
                for (vector, &acc) in accs.iter().enumerate() {
                    let base = emitter.nest.program.exprs.add_const(first, (vector * lanes) as i64);
                    let along = point.along(Lanes { axis: axis.var, base, count: lanes, mask: None });
                    body.extend(emitter.accumulate(reduction, &along, acc, None));
                }
                body
            }));
        }
        let first = if is_loop { blocks } else { 0 };
        for (vector, base) in (first..axis.extent).step_by(lanes).enumerate() {
            let first = self.nest.program.exprs.index(base as i64);
            let along = if base + lanes > axis.extent {
                self.nest.lanes_below(axis.var, first, lanes, axis.extent)
            } else {
                Lanes { axis: axis.var, base: first, count: lanes, mask: None }
            };
            let point = point.along(along);
            out.extend(self.accumulate(reduction, &point, accs[vector % accs.len()], along.mask));
        }
        out
    }

    /// `body` at every point of the reduced axes: the innermost axes are unrolled within
    /// [`unrolled_updates`](super::plan::NestPlan::unrolled_updates), the others are loops whose bounds leave out what
    /// guards exclude. `body` is called with the reduction without those guards; one execution of it updates each
    /// accumulator `updates` times.
    fn reduction_loops(
        &mut self,
        reduction: &NestReduction,
        axes: &[Axis],
        points: &[IterationPoint],
        accs: &[AccumulatorVars],
        updates: usize,
        body: &mut EmitUpdates<'e, '_>,
    ) -> Vec<Stmt> {
        let (looped, unrolled) = self.plan.looped_and_unrolled(axes);
        let (reduction, limits) = self.limited(reduction, looped);
        let mut out = Vec::new();
        let mut loops = Vec::new();
        let mut points = points.to_vec();
        let updates = unrolled.iter().fold(updates, |updates, axis| updates.saturating_mul(axis.extent));
        for (position, axis) in looped.iter().enumerate() {
            let LoopBounds { start, end } = self.limited_bounds(axis, &limits, &points[0], &mut out);
            let (var, bound) = self.loop_over(axis, &points);
            let is_innermost = position + 1 == looped.len();
            let kind = if is_innermost {
                self.innermost_kind(&reduction, &points, updates)
            } else {
                LoopKind::Serial
            };
            loops.push(ReductionLoop { var, start, end, step: 1, extent: axis.extent, kind });
            points = bound;
        }
        out.extend(self.loops_in_chains(&reduction, &loops, updates, accs, &mut |emitter, accs| {
            emitter.at_each_point(unrolled, &points, &mut |emitter, points| {
                body(emitter, &reduction, points, accs)
            })
        }));
        out
    }

    /// How the innermost loop of a reduction runs whose iterations make so many updates at each point. A thread of a GPU waits for
    /// the loads of an iteration, so that several iterations are unrolled where each loads little.
    fn innermost_kind(
        &self,
        reduction: &NestReduction,
        points: &[IterationPoint],
        updates: usize,
    ) -> LoopKind {
        /// Most iterations, and most bytes that a thread waits for: 32 registers.
        const MOST: (usize, usize) = (8, 128);
        if self.nest.program.cta.is_none() {
            return LoopKind::Serial;
        }
        let exprs = &self.nest.program.exprs;
        let loads = exprs.reachable(&[reduction.body]).into_iter();
        let loads = loads.filter(|&id| matches!(exprs.get(id), Expr::Load { .. }));
        let loaded: usize = loads.map(|id| exprs.dtype(id).size_bytes()).sum();
        let lanes: usize = points.iter().map(IterationPoint::width).sum();
        let iterations = (MOST.1 / (loaded * lanes).max(1)).min(MOST.0) / updates.max(1);
        if iterations > 1 { LoopKind::UnrollBy(iterations as u32) } else { LoopKind::Serial }
    }

    /// `body` in loops, outermost first. One execution of `body` updates each accumulator that it is called with
    /// `updates` times. The outermost loop whose body makes at most [`LONGEST_CHAIN`] updates, or the innermost loop if
    /// there is none, is emitted by [`Self::loop_in_chains`].
    fn loops_in_chains(
        &mut self,
        reduction: &NestReduction,
        loops: &[ReductionLoop],
        updates: usize,
        accs: &[AccumulatorVars],
        body: &mut dyn FnMut(&mut Self, &[AccumulatorVars]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let Some((outer, inner)) = loops.split_first() else { return body(self, accs) };
        let updates_inside =
            inner.iter().fold(updates, |updates, inner| updates.saturating_mul(inner.extent));
        let mut inside =
            |emitter: &mut Self, accs: &[_]| emitter.loops_in_chains(reduction, inner, updates, accs, body);
        if updates_inside > LONGEST_CHAIN && !inner.is_empty() {
            return vec![outer.around(inside(self, accs))];
        }
        self.loop_in_chains(reduction, *outer, updates_inside, accs, &mut inside)
    }

    /// `body` in a loop. One execution of `body` updates each accumulator that it is called with `updates` times. A
    /// float sum of `n` updates is split into pieces, each with fresh accumulators: on CPUs of about `sqrt n`, between
    /// [`SHORTEST_CHAIN`] and [`LONGEST_CHAIN`], on GPUs of [`LONGEST_CHAIN`].
    ///
    /// ```text
    /// for first in start..end step piece:
    ///   part = 0
    ///   for var in first..min(first + piece, end): part += ...
    ///   acc += part
    /// ```
    pub fn loop_in_chains(
        &mut self,
        reduction: &NestReduction,
        whole: ReductionLoop,
        updates: usize,
        accs: &[AccumulatorVars],
        body: &mut dyn FnMut(&mut Self, &[AccumulatorVars]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let ReductionLoop { start, end, step, extent, .. } = whole;
        let points = extent / step;
        let is_sum =
            reduction.op == ReduceOp::Sum && self.nest.program.exprs.dtype(reduction.body).is_float();
        let total = points.saturating_mul(updates);
        // On GPUs threads share a sum, and long loops keep more loads in flight.
        let chain = match self.nest.program.cta {
            Some(_) => LONGEST_CHAIN,
            None => total.isqrt().clamp(SHORTEST_CHAIN, LONGEST_CHAIN),
        };
        if !is_sum || total <= chain.max(2 * SHORTEST_CHAIN) {
            return vec![whole.around(body(self, accs))];
        }
        let piece = points.div_ceil(points.div_ceil((chain / updates).max(1))) * step;
        let exprs = &mut self.nest.program.exprs;
        let name = format!("{}_first", exprs.var_info(whole.var).name);
        let first = exprs.declare(VarInfo {
            name,
            ty: Type::INDEX,
            range: Some((0, extent as i64 - 1)),
            multiple_of: exprs.var_info(whole.var).multiple_of,
        });
        let first_value = exprs.var(first);
        let past = exprs.add_const(first_value, piece as i64);
        let is_even = extent.is_multiple_of(piece)
            && exprs.as_int(start) == Some(0)
            && exprs.as_int(end) == Some(extent as i64);
        let past = if is_even { past } else { exprs.min(past, end) };
        let mut out = Vec::new();
        let fresh: Vec<AccumulatorVars> = (accs.iter())
            .map(|acc| {
                let width = self.nest.program.exprs.var_info(acc.value).ty.lanes;
                self.accumulator(reduction, width, &mut out)
            })
            .collect();
        out.push(ReductionLoop { start: first_value, end: past, ..whole }.around(body(self, &fresh)));
        for (acc, part) in accs.iter().zip(fresh) {
            let exprs = &mut self.nest.program.exprs;
            let (sum, part) = (exprs.var(acc.value), exprs.var(part.value));
            let sum = self.combine(reduction.op, sum, part);
            out.push(Stmt::Assign(acc.value, sum));
        }
        vec![ReductionLoop { var: first, step: piece, kind: LoopKind::Serial, ..whole }.around(out)]
    }

    /// The reduction without the guards that bound the loops over these axes, and the bounds. A bound may not differ
    /// between points that are computed together, so it depends neither on the vector axis nor on the blocked one.
    pub(super) fn limited(
        &mut self,
        reduction: &NestReduction,
        looped: &[Axis],
    ) -> (NestReduction, Vec<GuardBound>) {
        let vars: Vec<VarId> = looped.iter().map(|axis| axis.var).collect();
        let plan = self.plan;
        let differs = |var: VarId| {
            plan.vector.as_ref().is_some_and(|axis| axis.var == var)
                || plan.block.is_some_and(|(axis, _)| axis == var)
        };
        limits(&mut self.nest, reduction, &vars, &|var| !differs(var))
    }

    /// The bounds of the loop over a reduced axis, tightened by guards. Bounds that are not constant are named in
    /// `out`.
    fn limited_bounds(
        &mut self,
        axis: &Axis,
        limits: &[GuardBound],
        point: &IterationPoint,
        out: &mut Vec<Stmt>,
    ) -> LoopBounds {
        let LoopBounds { mut start, mut end } = self.bounds(axis);
        for limit in limits.iter().filter(|limit| limit.axis == axis.var) {
            let bound = self.nest.value(point, limit.bound);
            let exprs = &mut self.nest.program.exprs;
            if limit.is_start {
                start = exprs.max(start, bound);
            } else {
                end = exprs.min(end, bound);
            }
        }
        let name = self.nest.program.exprs.var_info(axis.var).name.clone();
        let mut named = |bound: ExprId, what: &str| {
            let bound = self.nest.simplify(bound);
            if self.nest.program.exprs.as_int(bound).is_some() {
                return bound;
            }
            let var = self.nest.program.exprs.declare_index(format!("{name}_{what}"), 0);
            out.push(Stmt::Let(var, bound));
            self.nest.program.exprs.var(var)
        };
        LoopBounds { start: named(start, "start"), end: named(end, "end") }
    }

    /// `body` at every point of the axes, one after the other: fully unrolled loops.
    fn at_each_point(
        &mut self,
        axes: &[Axis],
        points: &[IterationPoint],
        body: &mut dyn FnMut(&mut Self, &[IterationPoint]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let Some((axis, inner)) = axes.split_first() else { return body(self, points) };
        let mut out = Vec::new();
        for value in 0..axis.extent {
            let value = self.nest.program.exprs.index(value as i64);
            let bound: Vec<IterationPoint> = points.iter().map(|point| point.with(axis.var, value)).collect();
            out.extend(self.at_each_point(inner, &bound, body));
        }
        out
    }

    /// Declares an accumulator of `width` lanes that holds the identity element.
    pub fn accumulator(
        &mut self,
        reduction: &NestReduction,
        width: usize,
        out: &mut Vec<Stmt>,
    ) -> AccumulatorVars {
        let exprs = &mut self.nest.program.exprs;
        let dtype = exprs.dtype(reduction.body);
        let name = exprs.var_info(reduction.result).name.clone();
        let value = exprs.declare_register(format!("{name}_acc"), Type::vector(dtype, width));
        let identity = identity(reduction.op, dtype);
        let identity = exprs.add(Expr::Const(identity));
        let identity = exprs.splat(identity, width);
        out.push(Stmt::Register(value, identity));
        let index = reduction.op.is_arg().then(|| {
            let index = exprs.declare_register(format!("{name}_at"), Type::vector(DType::I64, width));
            let zero = exprs.index(0);
            let zero = exprs.splat(zero, width);
            out.push(Stmt::Register(index, zero));
            index
        });
        AccumulatorVars { value, index }
    }

    /// Updates an accumulator by the reduction's body at a point: `acc = op(acc, body)`, by an FMA for summed products.
    /// Only lanes of `mask`, if there is one, change.
    pub fn accumulate(
        &mut self,
        reduction: &NestReduction,
        point: &IterationPoint,
        acc: AccumulatorVars,
        mask: Option<ExprId>,
    ) -> Vec<Stmt> {
        let mut out = Vec::new();
        let point = &self.save_shared(&[reduction.body], point, &mut out);
        if let Some(index) = acc.index {
            out.extend(self.accumulate_extremum(reduction, point, acc.value, index, mask));
            return out;
        }
        let old = self.nest.program.exprs.var(acc.value);
        let new = match reduction.operands.filter(|_| self.nest.program.exprs.dtype(old).is_float()) {
            Some(ProductOperands { lhs, rhs }) => {
                let (lhs, rhs) = (self.nest.full_value(point, lhs), self.nest.full_value(point, rhs));
                let zero = |id: ExprId| self.nest.program.exprs.as_const(id).is_some_and(|c| c.is_float(0.0));
                if zero(lhs) || zero(rhs) { old } else { self.nest.program.exprs.fma(lhs, rhs, old) }
            }
            None => {
                let value = self.nest.full_value(point, reduction.body);
                self.combine(reduction.op, old, value)
            }
        };
        if new == old {
            return out;
        }
        let exprs = &mut self.nest.program.exprs;
        let new = match mask {
            Some(mask) => exprs.select(mask, new, old),
            None => new,
        };
        out.push(Stmt::Assign(acc.value, new));
        out
    }

    /// Two values combined by a reduction; an arg-reduction combines as its maximum or minimum.
    pub fn combine(&mut self, op: ReduceOp, a: ExprId, b: ExprId) -> ExprId {
        let exprs = &mut self.nest.program.exprs;
        match op {
            ReduceOp::Sum => exprs.add2(a, b),
            ReduceOp::Prod => exprs.mul(a, b),
            ReduceOp::Max | ReduceOp::ArgMax { .. } => exprs.max(a, b),
            ReduceOp::Min | ReduceOp::ArgMin { .. } => exprs.min(a, b),
        }
    }

    /// Updates an arg-reduction: in lanes of `mask` where the body's value beats the accumulator, value and position
    /// are replaced. NaN beats every number; on ties the first or the last position wins, as the reduction says.
    fn accumulate_extremum(
        &mut self,
        reduction: &NestReduction,
        point: &IterationPoint,
        value: VarId,
        index: VarId,
        mask: Option<ExprId>,
    ) -> Vec<Stmt> {
        let candidate = self.nest.full_value(point, reduction.body);
        let axis = self.nest.program.exprs.var(reduction.reduced[0]);
        let at = self.nest.full_value(point, axis);
        let exprs = &mut self.nest.program.exprs;
        let (old, old_at) = (exprs.var(value), exprs.var(index));
        let mut beats = match reduction.op {
            ReduceOp::ArgMax { last: false } => exprs.gt(candidate, old),
            ReduceOp::ArgMax { last: true } => exprs.ge(candidate, old),
            ReduceOp::ArgMin { last: true } => exprs.le(candidate, old),
            _ => exprs.lt(candidate, old),
        };
        if exprs.dtype(candidate).is_float() {
            let is_last =
                matches!(reduction.op, ReduceOp::ArgMax { last: true } | ReduceOp::ArgMin { last: true });
            let mut is_nan = exprs.is_nan(candidate);
            if !is_last {
                let was_nan = exprs.is_nan(old);
                let was_number = exprs.not(was_nan);
                is_nan = exprs.and(is_nan, was_number);
            }
            beats = exprs.or(beats, is_nan);
        }
        if let Some(mask) = mask {
            beats = exprs.and(beats, mask);
        }
        // The flags are a variable of their own: both assignments must see the comparison with the old value.
        let flags = exprs.declare_register("beats", exprs.ty(beats));
        let named = exprs.var(flags);
        let new_at = exprs.select(named, at, old_at);
        let new = exprs.select(named, candidate, old);
        vec![Stmt::Let(flags, beats), Stmt::Assign(index, new_at), Stmt::Assign(value, new)]
    }

    /// The scalar result of all lanes of all accumulators. An arg-reduction has one accumulator.
    pub fn combine_lanes(&mut self, reduction: &NestReduction, accs: &[AccumulatorVars]) -> ExprId {
        let mut values: Vec<ExprId> = accs.iter().map(|acc| self.nest.program.exprs.var(acc.value)).collect();
        if let Some(index) = accs[0].index {
            return self.extremum_position(reduction.op, values[0], index);
        }
        // A tree over the accumulators, then a horizontal reduction of the lanes.
        while values.len() > 1 {
            let half = values.len().div_ceil(2);
            for position in half..values.len() {
                values[position - half] =
                    self.combine(reduction.op, values[position - half], values[position]);
            }
            values.truncate(half);
        }
        self.nest.program.exprs.reduce_lanes(reduction.op, values[0])
    }

    /// The first or the last position, as the reduction says, among the lanes that hold the extremum.
    pub fn extremum_position(&mut self, op: ReduceOp, value: ExprId, index: VarId) -> ExprId {
        let (extremum, is_last) = match op {
            ReduceOp::ArgMax { last } => (ReduceOp::Max, last),
            ReduceOp::ArgMin { last } => (ReduceOp::Min, last),
            other => (other, false),
        };
        let exprs = &mut self.nest.program.exprs;
        let best = exprs.reduce_lanes(extremum, value);
        let mut is_best = exprs.eq(value, best);
        if exprs.dtype(value).is_float() {
            let is_nan = exprs.is_nan(value);
            is_best = exprs.or(is_best, is_nan);
        }
        let (never, pick) = if is_last { (-1, ReduceOp::Max) } else { (i64::MAX, ReduceOp::Min) };
        let (at, never) = (exprs.var(index), exprs.index(never));
        let candidates = exprs.select(is_best, at, never);
        exprs.reduce_lanes(pick, candidates)
    }
}
