//! From sums in registers to the stores of the block program.

use super::lower::Lowering;
use super::operand::Along;
use super::schedule::SUM_PADDING;
use crate::block::Stage;
use crate::expr::{ArgId, ExprId, Type};
use crate::substitute::Substitution;
use crate::thread::{LoopKind, Stmt};
use crate::thread_team::{Spot, TeamStmt};
use crate::vectorize::{Vectorizer, Widening};

/// Bytes of the widest access.
const WIDEST_BYTES: usize = 16;
/// Most vectors of results that a thread has under way at once.
const UNROLL: u32 = 4;

/// How an expression of a sum becomes that of a thread's sums.
enum Results {
    One(Substitution),
    Several(Vectorizer),
}

impl Lowering<'_> {
    /// Elements between rows of the sums.
    pub fn sum_stride(&self) -> usize {
        self.schedule.block_n + SUM_PADDING
    }

    /// Exchanges sums through shared memory, adds those of the cluster's tasks up, and stores results.
    pub fn epilogue(&mut self, a: Along, b: Along) -> Vec<Stmt> {
        let schedule = self.schedule;
        let mut body = self.spill_sums(a, b);
        let is_split = schedule.split > 1;
        body.push(Stmt::Team(if is_split { TeamStmt::ClusterBarrier } else { TeamStmt::Barrier }));

        let lanes = self.result_lanes();
        let rows = schedule.block_m / schedule.split;
        let across = schedule.block_n / lanes;
        let (count, threads) = (rows * across, schedule.threads());
        let rounds = count.div_ceil(threads);
        let (var, round) = self.program.exprs.fresh_index("round", rounds);
        let exprs = &mut self.program.exprs;
        let before = exprs.mul_const(round, threads as i64);
        let chunk = exprs.add2(before, self.thread);
        let mut inner = Vec::new();
        let (stmts, chunk_var) = self.let_var("chunk", chunk, rounds * threads);
        inner.extend(stmts);
        let chunk = self.program.exprs.var(chunk_var);
        let mut results = self.results(chunk, (rows, across, lanes));
        if count % threads != 0 {
            let limit = self.program.exprs.index(count as i64);
            let condition = self.program.exprs.lt(chunk, limit);
            results = vec![Stmt::If { condition, then: results, otherwise: Vec::new() }];
        }
        inner.extend(results);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(rounds as i64));
        let kind = LoopKind::UnrollBy(UNROLL);
        body.push(Stmt::For { var, start, end, step: 1, kind, body: inner });
        if is_split {
            // Others may still read this task's sums.
            body.push(Stmt::Team(TeamStmt::ClusterBarrier));
        }
        body
    }

    /// Neighbouring results that a thread makes at once.
    fn result_lanes(&self) -> usize {
        let widest = (self.block.stages.iter())
            .filter_map(|stage| match stage {
                Stage::Store { arg, .. } => Some(WIDEST_BYTES / self.block.arg(*arg).dtype.size_bytes()),
                Stage::Reduce { .. } => None,
            })
            .min()
            .unwrap_or(1)
            .min(8);
        let columns = self.extents.n.max(1);
        (widest.max(1)).min(1 << columns.trailing_zeros().min(16))
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
        let (stmts, row) = self.let_var("m", row, row_limit);
        body.extend(stmts);
        let (stmts, column) = self.let_var("n", column, column_limit);
        body.extend(stmts);
        self.program.exprs.set_multiple_of(column, lanes as i64);
        let (row, column) = (self.program.exprs.var(row), self.program.exprs.var(column));

        let stride = self.sum_stride();
        let offset = self.program.exprs.linear_index(&[tile_row, tile_column], &[stride, 1]);
        let total = self.total(offset, lanes, &mut body);
        let stores = self.stores((row, column), lanes, total);
        match self.inside(row, column) {
            None => body.extend(stores),
            Some(condition) => body.push(Stmt::If { condition, then: stores, otherwise: Vec::new() }),
        }
        body
    }

    /// Neighbouring sums of the tile, of all tasks of the cluster, in the type of the block program's.
    fn total(&mut self, offset: ExprId, lanes: usize, body: &mut Vec<Stmt>) -> ExprId {
        let dtype = self.engine.sum_type();
        let mut total = None;
        if self.schedule.split == 1 {
            total = Some(self.program.exprs.load(self.sums, offset, lanes, None));
        } else {
            for rank in 0..self.schedule.split {
                let var = self.program.exprs.declare_register("part", Type { dtype, lanes });
                let rank = self.program.exprs.index(rank as i64);
                let from = Spot { buffer: self.sums, offset };
                body.push(Stmt::Team(TeamStmt::Peer { var, rank, from }));
                let part = self.program.exprs.var(var);
                total = Some(match total {
                    None => part,
                    Some(total) => self.program.exprs.add2(total, part),
                });
            }
        }
        let total = total.expect("a cluster has a task");
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

    /// The block program's stores at `lanes` neighbouring columns.
    fn stores(&mut self, (row, column): (ExprId, ExprId), lanes: usize, total: ExprId) -> Vec<Stmt> {
        let (each_var, each) = self.program.exprs.fresh_index("each", self.extents.n.max(1));
        let place = if lanes == 1 { column } else { each };
        let bindings = [(self.flat.m, row), (self.flat.n, place)];
        let stages: Vec<(ArgId, ExprId, ExprId)> = (self.block.stages.iter())
            .filter_map(|stage| match stage {
                Stage::Store { arg, index, body, .. } => Some((*arg, index.clone(), *body)),
                Stage::Reduce { .. } => None,
            })
            .map(|(arg, index, body)| {
                let meta = self.block.arg(arg);
                let mut flatten = Substitution::new(&self.flat.bindings);
                let index: Vec<ExprId> =
                    index.into_iter().map(|id| flatten.apply(&mut self.source, id)).collect();
                let offset = self.source.linear_index(&index, &meta.layout.strides(&meta.shape));
                (arg, offset, flatten.apply(&mut self.source, body))
            })
            .collect();
        let mut stmts = Vec::new();
        let imported: Vec<(ArgId, ExprId, ExprId)> = (stages.into_iter())
            .map(|(arg, offset, body)| {
                (arg, self.import(offset, &bindings, None), self.import(body, &bindings, None))
            })
            .collect();
        let sum = self.sum;
        let exprs = &mut self.program.exprs;
        let mut results = if lanes == 1 {
            Results::One(Substitution::new(&[(sum, total)]))
        } else {
            let over = Widening { registers: vec![(sum, total)], ..Widening::new(each_var, column, lanes) };
            Results::Several(Vectorizer::new(exprs, &over))
        };
        for (arg, offset, body) in imported {
            let exprs = &mut self.program.exprs;
            let mut of_lanes = |id| match &mut results {
                Results::One(replace) => replace.apply(exprs, id),
                Results::Several(vectorizer) => vectorizer.widen(exprs, &mut self.simplifier, id),
            };
            let (offset, value) = (of_lanes(offset), of_lanes(body));
            let value = self.program.exprs.splat(value, lanes);
            let buffer = self.arg_buffers[arg.index()].expect("outputs are passed");
            stmts.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        stmts
    }
}
