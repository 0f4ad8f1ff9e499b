//! From sums in registers to the stores of the block program.

use super::lower::Lowering;
use super::operand::Along;
use super::schedule::SUM_PADDING;
use crate::gpu::cta::{Lowers, RESULTS_UNDER_WAY, Results, result_lanes, stores_of};
use orch_compute::expr::{ExprId, Type};
use orch_thread::cta::CtaStmt;
use orch_thread::program::{LoopKind, Stmt};

impl Lowering<'_> {
    /// Elements between rows of the sums.
    pub fn sum_stride(&self) -> usize {
        self.schedule.block_n + SUM_PADDING
    }

    /// Exchanges sums through shared memory, adds those of the cluster's tasks up, and stores results.
    pub fn epilogue(&mut self, a: Along, b: Along) -> Vec<Stmt> {
        let schedule = self.schedule;
        let mut body = self.spill_sums(a, b);
        body.push(Stmt::Cta(if self.is_split() { CtaStmt::ClusterBarrier } else { CtaStmt::Barrier }));

        let lanes = result_lanes(self.block, self.extents.n);
        let rows = schedule.block_m / schedule.split_k;
        let across = schedule.block_n / lanes;
        let (count, threads) = (rows * across, schedule.threads());
        let rounds = count.div_ceil(threads);
        let (var, round) = self.program.exprs.fresh_index("round", rounds);
        let exprs = &mut self.program.exprs;
        let before = exprs.mul_const(round, threads as i64);
        let chunk = exprs.add2(before, self.thread);
        let mut inner = Vec::new();
        let chunk = self.let_var(&mut inner, "chunk", chunk, rounds * threads);
        let chunk = self.program.exprs.var(chunk);
        let mut results = self.results(chunk, (rows, across, lanes));
        if count % threads != 0 {
            let limit = self.program.exprs.index(count as i64);
            let condition = self.program.exprs.lt(chunk, limit);
            results = vec![Stmt::If { condition, then: results, otherwise: Vec::new() }];
        }
        inner.extend(results);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(rounds as i64));
        let kind = LoopKind::UnrollBy(RESULTS_UNDER_WAY);
        body.push(Stmt::For { var, start, end, step: 1, kind, body: inner });
        body
    }

    /// The results of one chunk.
    fn results(&mut self, chunk: ExprId, (rows, across, lanes): (usize, usize, usize)) -> Vec<Stmt> {
        let schedule = self.schedule;
        let mut body = Vec::new();
        let exprs = &mut self.program.exprs;
        let parts = exprs.unflatten(chunk, &[rows, across]);
        let rank_row = exprs.mul_const(self.rank, rows as i64);
        let tile_row = exprs.add2(rank_row, parts[0]);
        let tile_column = exprs.mul_const(parts[1], lanes as i64);
        let (row, column) = (exprs.add2(self.corner[0], tile_row), exprs.add2(self.corner[1], tile_column));
        let row_limit = self.extents.m.next_multiple_of(schedule.block_m);
        let column_limit = self.extents.n.next_multiple_of(schedule.block_n);
        let row = self.let_var(&mut body, "m", row, row_limit);
        let row = self.program.exprs.var(row);
        let column = self.bind_multiple(&mut body, "n", column, (column_limit, lanes));

        let stride = self.sum_stride();
        let offset = self.program.exprs.linear_index(&[parts[0], tile_column], &[stride, 1]);
        let total = self.total(offset, lanes, &mut body);
        let (each, each_value) = self.program.exprs.fresh_index("each", self.extents.n.max(1));
        let bindings = [(self.flat.m, row), (self.flat.n, if lanes == 1 { column } else { each_value })];
        let stores = stores_of(self.block, &mut self.source, &self.flat.bindings);
        let results = Results { each, first: column, lanes, sum: self.sum, total };
        let buffers = self.arg_buffers.clone();
        let stores = self.stores(&stores, &bindings, &results, &buffers);
        match self.inside(row, column) {
            None => body.extend(stores),
            Some(condition) => body.push(Stmt::If { condition, then: stores, otherwise: Vec::new() }),
        }
        body
    }

    /// Neighbouring sums of the task's rows, of all tasks of the cluster, in the type of the block program's.
    fn total(&mut self, offset: ExprId, lanes: usize, body: &mut Vec<Stmt>) -> ExprId {
        let part_elems = self.schedule.block_m / self.schedule.split_k * self.sum_stride();
        let mut total = self.program.exprs.load(self.sums, offset, lanes, None);
        for other in 1..self.schedule.split_k {
            let exprs = &mut self.program.exprs;
            let offset = exprs.add_const(offset, (other * part_elems) as i64);
            let part = exprs.load(self.sums, offset, lanes, None);
            total = exprs.add2(total, part);
        }
        let sum_type = self.program.exprs.var_info(self.sum).ty.dtype;
        let total = self.program.exprs.cast(sum_type, total);
        let var = self.program.exprs.declare_register("total", Type { dtype: sum_type, lanes });
        body.push(Stmt::Let(var, total));
        self.program.exprs.var(var)
    }

    fn inside(&mut self, row: ExprId, column: ExprId) -> Option<ExprId> {
        let (m, n, schedule) = (self.extents.m, self.extents.n, self.schedule);
        let exprs = &mut self.program.exprs;
        let limits = (exprs.index(m as i64), exprs.index(n as i64));
        let row = (!m.is_multiple_of(schedule.block_m)).then(|| exprs.lt(row, limits.0));
        let column = (!n.is_multiple_of(schedule.block_n)).then(|| exprs.lt(column, limits.1));
        exprs.and_guard(row, column)
    }
}
