//! The partial results of the threads of a row combined, so that every thread has the result.
//!
//! ```text
//! along reduced axes:  shuffles in a warp -> warps through shared memory, shuffles -> CTAs through DSMEM
//! along outer axes:    shuffles of lanes `rows` apart -> all threads through shared memory, a few columns each -> CTAs through DSMEM
//! ```

use super::emitter::RowEmitter;
use super::schedule::RowSchedule;
use crate::LaneAxis;
use orch_compute::expr::{BufferId, ExprId};
use orch_ir::{DType, ReduceOp};
use orch_thread::cta::{CtaStmt, Location, WARP};
use orch_thread::program::Stmt;

/// A partial result: scalars, or a vector with a result in each lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partial {
    pub value: ExprId,
    /// Of arg-reductions: the position of the value.
    pub index: Option<ExprId>,
}

/// Shared memory that holds partial results of several threads.
#[derive(Clone, Copy)]
struct Exchange {
    values: BufferId,
    indices: Option<BufferId>,
}

/// How threads share the elements of the results of a CTA, `[rows, lanes]`, when these are put together.
struct ElementShares {
    /// Consecutive elements of a thread.
    lanes: usize,
    /// Threads with elements, the first ones.
    count: usize,
}

impl ElementShares {
    /// `elems` and `threads` are powers of two.
    fn of(elems: usize, threads: usize) -> Self {
        let lanes = (elems / threads).max(1);
        Self { lanes, count: elems / lanes }
    }
}

impl RowEmitter<'_> {
    /// Combines the partial results of all threads of a row.
    pub fn combine(&mut self, op: ReduceOp, mut partial: Partial, out: &mut Vec<Stmt>) -> Partial {
        let &RowSchedule { row_threads, rows, cluster, .. } = self.schedule;
        if self.along == Some(LaneAxis::Output) {
            // The threads of a column are `rows` apart.
            let in_warp = (WARP / rows.min(WARP)).min(row_threads);
            partial = self.combine_lanes_of_warp(op, partial, rows, in_warp, out);
            if row_threads > in_warp || cluster > 1 {
                partial = self.combine_columns(op, partial, in_warp, out);
            }
            return partial;
        }
        partial = self.combine_lanes_of_warp(op, partial, 1, row_threads.min(WARP), out);
        if row_threads > WARP {
            partial = self.combine_warps(op, partial, row_threads / WARP, out);
        }
        if cluster > 1 {
            partial = self.combine_cluster(op, partial, out);
        }
        partial
    }

    /// Combines each `count` lanes of a warp that are `apart` from each other, by butterfly shuffles.
    fn combine_lanes_of_warp(
        &mut self,
        op: ReduceOp,
        mut partial: Partial,
        apart: usize,
        count: usize,
        out: &mut Vec<Stmt>,
    ) -> Partial {
        for with in (0..count.ilog2()).map(|log| apart << log) {
            let mut other = |value: ExprId| {
                self.declared("other", value, |var| CtaStmt::Shuffle { var, value, with }, out)
            };
            let there = Partial { value: other(partial.value), index: partial.index.map(&mut other) };
            partial = self.merge(op, partial, there, out);
        }
        partial
    }

    /// Combines the partial results of the `warps` warps of a row, through shared memory `[rows, warps]`.
    fn combine_warps(
        &mut self,
        op: ReduceOp,
        partial: Partial,
        warps: usize,
        out: &mut Vec<Stmt>,
    ) -> Partial {
        let exchange = self.exchange(partial, self.schedule.rows * warps, 1);
        let thread = self.thread;
        let exprs = &mut self.emitter.nest.program.exprs;
        let (warp_size, zero) = (exprs.index(WARP as i64), exprs.index(0));
        let (warp, lane) = (exprs.floor_div(thread, warp_size), exprs.floor_rem(thread, warp_size));
        let is_first = exprs.eq(lane, zero);
        let then = self.put(exchange, partial, warp);
        out.push(Stmt::If { condition: is_first, then, otherwise: Vec::new() });
        out.push(Stmt::Cta(CtaStmt::Barrier));
        let exprs = &mut self.emitter.nest.program.exprs;
        let count = exprs.index(warps as i64);
        let first = exprs.mul_const(self.row, warps as i64);
        let which = exprs.floor_rem(thread, count);
        let from = exprs.add2(first, which);
        let partial = self.get(exchange, from, 1, out);
        self.combine_lanes_of_warp(op, partial, 1, warps, out)
    }

    /// Combines the partial results of the CTAs of a cluster, through DSMEM.
    fn combine_cluster(&mut self, op: ReduceOp, partial: Partial, out: &mut Vec<Stmt>) -> Partial {
        let exchange = self.exchange(partial, self.schedule.rows, 1);
        let is_first = self.is_first_of_row();
        let then = self.put(exchange, partial, self.row);
        out.push(Stmt::If { condition: is_first, then, otherwise: Vec::new() });
        out.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        self.merge_peers(op, partial, exchange, self.row, out)
    }

    /// The combination of the partial results that the CTAs of a cluster have at one position of their shared memory.
    fn merge_peers(
        &mut self,
        op: ReduceOp,
        like: Partial,
        exchange: Exchange,
        position: ExprId,
        out: &mut Vec<Stmt>,
    ) -> Partial {
        let lanes = self.emitter.nest.program.exprs.lanes(like.value);
        let offset = self.emitter.nest.program.exprs.mul_const(position, lanes as i64);
        let offset = self.emitter.nest.simplify(offset);
        let mut total: Option<Partial> = None;
        for rank in 0..self.schedule.cluster {
            let rank = self.emitter.nest.program.exprs.index(rank as i64);
            let mut peer = |buffer: BufferId, like: ExprId| {
                let from = Location { buffer, offset };
                self.declared("peer", like, |var| CtaStmt::LoadDsmem { var, rank, from }, out)
            };
            let value = peer(exchange.values, like.value);
            let index = exchange.indices.zip(like.index).map(|(buffer, like)| peer(buffer, like));
            let there = Partial { value, index };
            total = Some(match total {
                Some(total) => self.merge(op, total, there, out),
                None => there,
            });
        }
        total.unwrap_or(like)
    }

    /// Combines the partial results of each column through shared memory `[row_threads / in_warp, rows, lanes]`; the `in_warp`
    /// threads of a column in a warp have the same. Each element is put together by one thread, so that each partial result
    /// is read once:
    ///
    /// ```text
    /// parts[part, element]  ->  thread `element / shares.lanes` sums over part  ->  sums[element]  ->  all threads of the column
    /// ```
    fn combine_columns(
        &mut self,
        op: ReduceOp,
        partial: Partial,
        in_warp: usize,
        out: &mut Vec<Stmt>,
    ) -> Partial {
        let &RowSchedule { row_threads, rows, cluster, .. } = self.schedule;
        let lanes = self.emitter.nest.program.exprs.lanes(partial.value);
        let parts = row_threads / in_warp;
        let found = self.exchange(partial, parts * rows, lanes);
        let exprs = &mut self.emitter.nest.program.exprs;
        let (size, sharing) = (exprs.index(rows as i64), exprs.index(in_warp as i64));
        let row_thread = exprs.floor_div(self.thread, size);
        let (part, which) = (exprs.floor_div(row_thread, sharing), exprs.floor_rem(row_thread, sharing));
        let first = exprs.mul_const(part, rows as i64);
        let position = exprs.add2(first, self.row);
        let position = self.emitter.nest.simplify(position);
        let put = self.put(found, partial, position);
        if in_warp > 1 {
            let exprs = &mut self.emitter.nest.program.exprs;
            let zero = exprs.index(0);
            let condition = exprs.eq(which, zero);
            out.push(Stmt::If { condition, then: put, otherwise: Vec::new() });
        } else {
            out.extend(put);
        }
        out.push(Stmt::Cta(CtaStmt::Barrier));

        let shares = ElementShares::of(rows * lanes, self.schedule.threads());
        let mut sums = self.exchange(partial, rows, lanes);
        let share = self.share(&shares);
        let mut then = Vec::new();
        let mut total: Option<Partial> = None;
        for part in 0..parts {
            let from = self.emitter.nest.program.exprs.add_const(share, (part * shares.count) as i64);
            let there = self.get(found, from, shares.lanes, &mut then);
            total = Some(match total {
                Some(total) => self.merge(op, total, there, &mut then),
                None => there,
            });
        }
        let total = total.unwrap_or(partial);
        then.extend(self.put(sums, total, share));
        let is_sharing = self.is_below(shares.count);
        out.extend(self.if_true(is_sharing, then));
        if cluster > 1 {
            out.push(Stmt::Cta(CtaStmt::ClusterBarrier));
            let totals = self.exchange(partial, rows, lanes);
            // DSMEM is read by whole warps.
            let mut then = Vec::new();
            let total = self.merge_peers(op, total, sums, share, &mut then);
            let put = self.put(totals, total, share);
            let is_sharing = (shares.count < WARP).then(|| self.is_below(shares.count)).flatten();
            then.extend(self.if_true(is_sharing, put));
            let is_in_warps = self.is_below(shares.count.max(WARP));
            out.extend(self.if_true(is_in_warps, then));
            sums = totals;
        }
        out.push(Stmt::Cta(CtaStmt::Barrier));
        self.get(sums, self.row, lanes, out)
    }

    /// The thread's share; threads past the last one repeat that of another thread.
    fn share(&mut self, shares: &ElementShares) -> ExprId {
        let exprs = &mut self.emitter.nest.program.exprs;
        let count = exprs.index(shares.count as i64);
        let share = exprs.floor_rem(self.thread, count);
        self.emitter.nest.simplify(share)
    }

    /// Whether the thread is one of the first `count`; `None` if all are.
    fn is_below(&mut self, count: usize) -> Option<ExprId> {
        let exprs = &mut self.emitter.nest.program.exprs;
        let end = exprs.index(count as i64);
        (count < self.schedule.threads()).then(|| exprs.lt(self.thread, end))
    }

    /// True in the first thread of each row of a CTA.
    fn is_first_of_row(&mut self) -> ExprId {
        let exprs = &mut self.emitter.nest.program.exprs;
        let (zero, row_threads) = (exprs.index(0), exprs.index(self.schedule.row_threads as i64));
        let row_thread = exprs.floor_rem(self.thread, row_threads);
        exprs.eq(row_thread, zero)
    }

    /// The combination of two partial results; of arg-reductions with NaN above all, and the first or last of equal ones.
    fn merge(&mut self, op: ReduceOp, a: Partial, b: Partial, out: &mut Vec<Stmt>) -> Partial {
        let (Some(a_at), Some(b_at)) = (a.index, b.index) else {
            let value = self.emitter.combine(op, a.value, b.value);
            return Partial { value: self.bound("both", value, out), index: None };
        };
        let (is_max, is_last) = match op {
            ReduceOp::ArgMax { last } => (true, last),
            ReduceOp::ArgMin { last } => (false, last),
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => (op == ReduceOp::Max, false),
        };
        let exprs = &mut self.emitter.nest.program.exprs;
        let mut beats = if is_max { exprs.gt(b.value, a.value) } else { exprs.lt(b.value, a.value) };
        let mut ties = exprs.eq(a.value, b.value);
        if exprs.dtype(a.value).is_float() {
            let (a_is_nan, b_is_nan) = (exprs.is_nan(a.value), exprs.is_nan(b.value));
            let a_is_number = exprs.not(a_is_nan);
            let only_b = exprs.and(b_is_nan, a_is_number);
            let both = exprs.and(a_is_nan, b_is_nan);
            (beats, ties) = (exprs.or(beats, only_b), exprs.or(ties, both));
        }
        let comes_first = if is_last { exprs.gt(b_at, a_at) } else { exprs.lt(b_at, a_at) };
        let wins_tie = exprs.and(ties, comes_first);
        let beats = exprs.or(beats, wins_tie);
        let beats = self.bound("beats", beats, out);
        let exprs = &mut self.emitter.nest.program.exprs;
        let (value, index) = (exprs.select(beats, b.value, a.value), exprs.select(beats, b_at, a_at));
        Partial { value: self.bound("both", value, out), index: Some(self.bound("both_at", index, out)) }
    }

    /// Shared memory for `count` partial results of `lanes` elements.
    fn exchange(&mut self, like: Partial, count: usize, lanes: usize) -> Exchange {
        let dtype = self.emitter.nest.program.exprs.dtype(like.value);
        let values = self.shared("parts", dtype, count * lanes);
        let indices = like.index.map(|_| self.shared("parts_at", DType::I64, count * lanes));
        Exchange { values, indices }
    }

    /// Stores the partial result at a position.
    fn put(&mut self, exchange: Exchange, partial: Partial, position: ExprId) -> Vec<Stmt> {
        let parts = [(Some(exchange.values), Some(partial.value)), (exchange.indices, partial.index)];
        let mut out = Vec::new();
        for (buffer, value) in parts.into_iter().filter_map(|(buffer, value)| buffer.zip(value)) {
            let exprs = &mut self.emitter.nest.program.exprs;
            let lanes = exprs.lanes(value);
            let offset = exprs.mul_const(position, lanes as i64);
            let offset = self.emitter.nest.simplify(offset);
            out.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        out
    }

    /// Loads the partial result at a position.
    fn get(&mut self, exchange: Exchange, position: ExprId, lanes: usize, out: &mut Vec<Stmt>) -> Partial {
        let mut load = |buffer: BufferId| {
            let exprs = &mut self.emitter.nest.program.exprs;
            let offset = exprs.mul_const(position, lanes as i64);
            let offset = self.emitter.nest.simplify(offset);
            let value = self.emitter.nest.program.exprs.load(buffer, offset, lanes, None);
            self.bound("part", value, out)
        };
        Partial { value: load(exchange.values), index: exchange.indices.map(load) }
    }
}
