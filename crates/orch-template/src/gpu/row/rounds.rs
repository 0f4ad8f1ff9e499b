//! How the threads of a row share the vectors of a loop, in rounds.
//!
//! In round `r` thread `t` of the row's `T` threads does vector `r * T + t`. All threads have the `full = vectors / T` first rounds;
//! the first `vectors % T` threads have one more:
//!
//! ```text
//! for round in 0..full, unrolled by loads_in_flight { body(round * T + t) }
//! if t < vectors % T { body(full * T + t) }
//! ```

use super::emitter::RowEmitter;
use crate::gpu::points::{named, unflatten};
use crate::nest::emit::{NestEmitter, for_loop};
use crate::nest::flat::NestReduction;
use crate::nest::point::{IterationPoint, Lanes};
use crate::nest::reduce::{AccumulatorVars, ReductionLoop};
use orch_compute::block::Axis;
use orch_compute::expr::{ExprId, VarId};
use orch_thread::program::{LoopKind, Stmt};

impl<'a> RowEmitter<'a> {
    /// The rounds of a loop over axes.
    pub fn rounds(&self, axes: &[Axis]) -> Rounds {
        let plan = self.emitter.plan;
        let is_vector = |axis: &Axis| !plan.vector_is_outer && plan.vector.as_ref() == Some(axis);
        let step = |axis: &Axis| if is_vector(axis) { plan.lanes } else { 1 };
        let is_kept = (plan.shared.iter()).any(|shared| {
            shared.axes.len() == axes.len() && axes.iter().all(|axis| shared.axes.contains(&axis.var))
        });
        Rounds {
            axes: axes.iter().map(|axis| (axis.clone(), step(axis))).collect(),
            row_threads: self.schedule.threads_of_row(),
            row_thread: self.row_thread,
            round: self.round,
            is_kept,
        }
    }

    /// `body` at the thread's vectors of a loop. `sum` is the reduction that it is for, and the accumulator that it adds to.
    pub fn distribute(
        &mut self,
        rounds: &Rounds,
        place: &IterationPoint,
        sum: Option<(&NestReduction, AccumulatorVars)>,
        body: &mut Body<'_, 'a>,
    ) -> Vec<Stmt> {
        let (full, rest) = (rounds.vectors() / rounds.row_threads, rounds.vectors() % rounds.row_threads);
        let mut out = Vec::new();
        let loads_in_flight = if rounds.is_kept { full } else { self.schedule.loads_in_flight.min(full) };
        // Rounds that fill no unrolled iteration have a loop of their own, so that their loads too are in flight together.
        let iterated = if self.schedule.loads_ahead() { full - full % loads_in_flight.max(1) } else { full };
        for (first, past) in [(0, iterated), (iterated, full)] {
            out.extend(self.distribute_rounds(rounds, (first, past, loads_in_flight), place, sum, body));
        }
        let emitter = &mut self.emitter;
        if rest > 0 {
            let exprs = &mut emitter.nest.program.exprs;
            let (round, past) = (exprs.index(full as i64), exprs.index(rest as i64));
            let condition = exprs.lt(rounds.row_thread, past);
            let then = rounds.at(emitter, round, place, sum.map(|(_, acc)| acc), body);
            out.push(Stmt::If { condition, then, otherwise: Vec::new() });
        }
        out
    }

    /// `body` in rounds `first..past`, `loads_in_flight` of them in an unrolled iteration.
    fn distribute_rounds(
        &mut self,
        rounds: &Rounds,
        (first, past, loads_in_flight): (usize, usize, usize),
        place: &IterationPoint,
        sum: Option<(&NestReduction, AccumulatorVars)>,
        body: &mut Body<'_, 'a>,
    ) -> Vec<Stmt> {
        let emitter = &mut self.emitter;
        let exprs = &mut emitter.nest.program.exprs;
        let (start, end, extent) = (exprs.index(first as i64), exprs.index(past as i64), past - first);
        if extent <= 1 {
            let mut once = || rounds.at(emitter, start, place, sum.map(|(_, acc)| acc), body);
            return if extent == 1 { once() } else { Vec::new() };
        }
        let (var, round) = exprs.fresh_index("iter", past);
        let is_one_iteration = extent <= loads_in_flight;
        let kind =
            if is_one_iteration { LoopKind::Unroll } else { LoopKind::UnrollBy(loads_in_flight as u32) };
        let whole = ReductionLoop { var, start, end, step: 1, extent, kind };
        match sum {
            Some((reduction, acc)) => {
                emitter.loop_in_chains(reduction, whole, 1, &[acc], &mut |emitter, accs| {
                    rounds.at(emitter, round, place, accs.first().copied(), body)
                })
            }
            None => {
                let body = rounds.at(emitter, round, place, None, body);
                vec![for_loop(var, start, end, 1, kind, body)]
            }
        }
    }
}

/// What is done at a place; for a reduction, with the accumulator that it adds to.
pub(super) type Body<'f, 'a> =
    dyn FnMut(&mut NestEmitter<'a>, &IterationPoint, Option<AccumulatorVars>) -> Vec<Stmt> + 'f;

/// A loop whose vectors the threads of a row share: vector `round * row_threads + row_thread` is done in a thread's round `round`.
pub(super) struct Rounds {
    /// Axes, with the granularity of each.
    axes: Vec<(Axis, usize)>,
    /// Threads that share a row.
    row_threads: usize,
    /// The thread's number among them.
    row_thread: ExprId,
    /// The variable of the round, by which values that are kept in registers are indexed.
    round: VarId,
    /// Whether values are kept in registers, for which the loop is unrolled.
    is_kept: bool,
}

impl Rounds {
    /// Vectors of the loop.
    fn vectors(&self) -> usize {
        self.axes.iter().map(|(axis, step)| axis.extent / step).product()
    }

    /// Elements of a vector.
    pub fn lanes(&self) -> usize {
        self.axes.iter().map(|(_, step)| *step).product()
    }

    /// `body` in one round.
    fn at<'a>(
        &self,
        emitter: &mut NestEmitter<'a>,
        round: ExprId,
        place: &IterationPoint,
        acc: Option<AccumulatorVars>,
        body: &mut Body<'_, 'a>,
    ) -> Vec<Stmt> {
        let nest = &mut emitter.nest;
        let first = nest.program.exprs.mul_const(round, self.row_threads as i64);
        let at = nest.program.exprs.add2(first, self.row_thread);
        let mut out = Vec::new();
        let at = named(nest, "at", at, (0, self.vectors() - 1), 1, &mut out);
        let values = unflatten(nest, &self.axes, at, &mut out);
        let mut place = place.with(self.round, round);
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
