//! The epilogue: from accumulators in registers, through shared memory, to the stores of the block program.
//!
//! ```text
//! split_k = 1   registers --st.shared--> acc_tile[block_m, block_n + pad]            bar.sync
//! split_k = s   registers --DSMEM------> acc_tile[s, block_m / s, block_n + pad]     cluster barrier
//!               row r of CTA `rank` goes to acc_tile[rank, r % (block_m / s)] of CTA r / (block_m / s), which sums over rank
//! ```
//!
//! Then each thread takes vectors of up to 16 bytes of the CTA's rows, evaluates the fused consumers, and stores.

use super::emitter::GemmEmitter;
use super::multiply::LaneTile;
use super::schedule::Major;
use crate::gpu::cta::{CtaEmitter, ProgramEmitter, RESULTS_IN_FLIGHT, ResultVector, result_lanes, stores_of};
use orch_compute::expr::{ExprId, Type};
use orch_thread::cta::{CtaStmt, Location};
use orch_thread::program::{LoopKind, Stmt};

/// The vectors of results of a CTA: `[rows, across]`, of `lanes` elements each.
#[derive(Clone, Copy)]
struct ResultGrid {
    rows: usize,
    across: usize,
    lanes: usize,
}

impl GemmEmitter<'_> {
    /// Exchanges accumulators through shared memory, sums those of the cluster's CTAs, and stores results. `a` and `b` are the
    /// major dimensions of the operands, which decide the rows and columns of a lane on FMA units.
    pub fn epilogue(&mut self, a: Major, b: Major) -> Vec<Stmt> {
        let schedule = self.schedule;
        let mut body = self.store_accumulators(a, b);
        body.push(Stmt::Cta(if self.is_split_k() { CtaStmt::ClusterBarrier } else { CtaStmt::Barrier }));

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
        let mut results = self.results(chunk, ResultGrid { rows, across, lanes });
        if count % threads != 0 {
            let limit = self.program.exprs.index(count as i64);
            let condition = self.program.exprs.lt(chunk, limit);
            results = vec![Stmt::If { condition, then: results, otherwise: Vec::new() }];
        }
        inner.extend(results);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(rounds as i64));
        let kind = LoopKind::UnrollBy(RESULTS_IN_FLIGHT);
        body.push(Stmt::For { var, start, end, step: 1, kind, body: inner });
        body
    }

    /// Stores the thread's accumulators to the accumulator tile.
    fn store_accumulators(&mut self, a: Major, b: Major) -> Vec<Stmt> {
        let lane_tile = LaneTile::of(self.unit, &self.schedule);
        let mut body = Vec::new();
        for row in 0..lane_tile.rows {
            for column in 0..lane_tile.columns {
                let part = self.accumulator(lane_tile, [a, b], row, column);
                let schedule = self.schedule;
                let exprs = &mut self.program.exprs;
                let first_row = exprs.mul_const(self.warp[0], schedule.warp_m() as i64);
                let first_column = exprs.mul_const(self.warp[1], schedule.warp_n() as i64);
                let tile_row = exprs.add2(first_row, part.row);
                let tile_column = exprs.add2(first_column, part.column);
                let from = exprs.index(part.register as i64);
                let value = exprs.load(self.accumulators, from, part.lanes, None);
                body.push(if self.is_split_k() {
                    self.store_to_owner(tile_row, tile_column, value)
                } else {
                    // [block_m, block_n + pad]
                    let offset =
                        self.program.exprs.linear_index(&[tile_row, tile_column], &[self.acc_stride(), 1]);
                    Stmt::Store { buffer: self.acc_tile, offset, value, mask: None }
                });
            }
        }
        body
    }

    /// Writes accumulators through DSMEM to the CTA of the cluster that sums their row.
    fn store_to_owner(&mut self, row: ExprId, column: ExprId, value: ExprId) -> Stmt {
        let (split, stride) = (self.schedule.split_k, self.acc_stride());
        let rows = self.schedule.block_m / split;
        let exprs = &mut self.program.exprs;
        // row = [owner, row of the owner]
        let parts = exprs.unflatten(row, &[split, rows]);
        // [rank of this CTA, row of the owner, column]
        let offset = exprs.linear_index(&[self.rank, parts[1], column], &[rows * stride, stride, 1]);
        Stmt::Cta(CtaStmt::StoreDsmem {
            to: Location { buffer: self.acc_tile, offset },
            rank: parts[0],
            value,
        })
    }

    /// The results of one vector of the grid.
    fn results(&mut self, chunk: ExprId, grid: ResultGrid) -> Vec<Stmt> {
        let ResultGrid { rows, across, lanes } = grid;
        let schedule = self.schedule;
        let mut body = Vec::new();
        let exprs = &mut self.program.exprs;
        let parts = exprs.unflatten(chunk, &[rows, across]);
        let rank_row = exprs.mul_const(self.rank, rows as i64);
        let tile_row = exprs.add2(rank_row, parts[0]);
        let tile_column = exprs.mul_const(parts[1], lanes as i64);
        let (row, column) = (exprs.add2(self.origin[0], tile_row), exprs.add2(self.origin[1], tile_column));
        let row_limit = self.extents.m.next_multiple_of(schedule.block_m);
        let column_limit = self.extents.n.next_multiple_of(schedule.block_n);
        let row = self.let_var(&mut body, "m", row, row_limit);
        let row = self.program.exprs.var(row);
        let column = self.bind_multiple(&mut body, "n", column, (column_limit, lanes));

        // [block_m / split_k, block_n + pad]
        let stride = self.acc_stride();
        let offset = self.program.exprs.linear_index(&[parts[0], tile_column], &[stride, 1]);
        let total = self.total(offset, lanes, &mut body);
        let (each, each_value) = self.program.exprs.fresh_index("each", self.extents.n.max(1));
        let bindings = [(self.flat.m, row), (self.flat.n, if lanes == 1 { column } else { each_value })];
        let stores = stores_of(self.block, &mut self.source, &self.flat.bindings);
        let results = ResultVector { each, first: column, lanes, acc: self.acc_element, total };
        let buffers = self.arg_buffers.clone();
        let stores = self.vector_stores(&stores, &bindings, &results, &buffers);
        match self.in_bounds(row, column) {
            None => body.extend(stores),
            Some(condition) => body.push(Stmt::If { condition, then: stores, otherwise: Vec::new() }),
        }
        body
    }

    /// A vector of accumulators summed over the CTAs of the cluster, in the type of the block program's reduction.
    fn total(&mut self, offset: ExprId, lanes: usize, body: &mut Vec<Stmt>) -> ExprId {
        let part_elems = self.schedule.block_m / self.schedule.split_k * self.acc_stride();
        let mut total = self.program.exprs.load(self.acc_tile, offset, lanes, None);
        for other in 1..self.schedule.split_k {
            let exprs = &mut self.program.exprs;
            let offset = exprs.add_const(offset, (other * part_elems) as i64);
            let part = exprs.load(self.acc_tile, offset, lanes, None);
            total = exprs.add2(total, part);
        }
        let dtype = self.program.exprs.var_info(self.acc_element).ty.dtype;
        let total = self.program.exprs.cast(dtype, total);
        let var = self.program.exprs.declare_register("total", Type { dtype, lanes });
        body.push(Stmt::Let(var, total));
        self.program.exprs.var(var)
    }

    /// True where a result exists; `None` if all do.
    fn in_bounds(&mut self, row: ExprId, column: ExprId) -> Option<ExprId> {
        let (m, n, schedule) = (self.extents.m, self.extents.n, self.schedule);
        let exprs = &mut self.program.exprs;
        let limits = (exprs.index(m as i64), exprs.index(n as i64));
        let row = (!m.is_multiple_of(schedule.block_m)).then(|| exprs.lt(row, limits.0));
        let column = (!n.is_multiple_of(schedule.block_n)).then(|| exprs.lt(column, limits.1));
        exprs.and_guard(row, column)
    }
}
