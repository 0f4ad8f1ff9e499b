//! The epilogue: from accumulators in registers, through shared memory `[key_warps, rows, columns + padding]`, to the stores of the
//! block program. Each result is summed over the key warps, whose accumulators are of other keys of the same rows.

use super::emitter::AttentionEmitter;
use crate::gpu::cta::{CtaEmitter, ProgramEmitter, RESULTS_IN_FLIGHT, ResultVector, result_lanes, stores_of};
use orch_compute::expr::{ExprId, Type};
use orch_ir::DType;
use orch_thread::cta::{CtaStmt, WARP};
use orch_thread::program::{LoopKind, Scope, Stmt};

/// Elements between rows of the accumulators in shared memory beyond their width, against bank conflicts.
const PADDING: usize = 8;

impl AttentionEmitter<'_> {
    /// Exchanges accumulators through shared memory, sums those of the key warps, and stores results.
    pub fn epilogue(&mut self) -> Vec<Stmt> {
        let columns = self.sizes.padded_columns();
        let (rows, stride) = (self.cta_rows(), columns + PADDING);
        let key_warps = self.schedule.key_warps;
        let shared = self.add_buffer("results", DType::F32, key_warps * rows * stride, Scope::ReusedShared);
        let accumulators = self.accumulators.expect("the second product comes first");
        let mut body = Vec::new();
        // Part [columns / 8] of the accumulators: row g (half 0) or g + 8 (half 1), columns 2c and 2c + 1.
        let (g, c2) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, 2));
        let first = self.program.exprs.mul_const(self.warp, 16);
        for part in 0..columns / 8 {
            for half in 0..2 {
                let exprs = &mut self.program.exprs;
                let row = exprs.add2(first, g);
                let row = exprs.add_const(row, 8 * half as i64);
                let column = exprs.add_const(c2, 8 * part as i64);
                let place = [self.key_warp, row, column];
                let offset = exprs.linear_index(&place, &[rows * stride, stride, 1]);
                let from = exprs.index((4 * part + 2 * half) as i64);
                let value = exprs.load(accumulators, from, 2, None);
                body.push(Stmt::Store { buffer: shared, offset, value, mask: None });
            }
        }
        body.push(Stmt::Cta(CtaStmt::Barrier));

        let lanes = result_lanes(self.block, self.sizes.columns);
        let (across, threads) = (columns / lanes, WARP * self.schedule.warps());
        let count = rows * across;
        let rounds = count.div_ceil(threads);
        let (var, round) = self.program.exprs.fresh_index("round", rounds);
        let exprs = &mut self.program.exprs;
        let before = exprs.mul_const(round, threads as i64);
        let chunk = exprs.add2(before, self.thread);
        let mut inner = Vec::new();
        let chunk = self.bind(&mut inner, "chunk", chunk, (rounds * threads).max(2));
        let exprs = &mut self.program.exprs;
        // Threads without a chunk store nothing, but what they bind has to exist.
        let is_ragged = !count.is_multiple_of(threads);
        let (limit, last) = (exprs.index(count as i64), exprs.index(count as i64 - 1));
        let exists = exprs.lt(chunk, limit);
        let place = if is_ragged { exprs.min(chunk, last) } else { chunk };
        let parts = exprs.unflatten(place, &[rows, across]);
        let column = exprs.mul_const(parts[1], lanes as i64);
        let tile_row = self.bind(&mut inner, "tile_row", parts[0], rows);
        let column = self.bind_multiple(&mut inner, "column", column, (columns, lanes));
        let exprs = &mut self.program.exprs;
        let row = exprs.add2(self.first_row, tile_row);
        let offset = exprs.linear_index(&[tile_row, column], &[stride, 1]);
        let mut total = exprs.load(shared, offset, lanes, None);
        for key_warp in 1..key_warps {
            let offset = exprs.add_const(offset, (key_warp * rows * stride) as i64);
            let part = exprs.load(shared, offset, lanes, None);
            total = exprs.add2(total, part);
        }
        let register = exprs.declare_register("total", Type { dtype: DType::F32, lanes });
        let value = exprs.var(register);
        let limits = (exprs.index(self.sizes.rows as i64), exprs.index(self.sizes.columns as i64));
        let (row_in, column_in) = (exprs.lt(row, limits.0), exprs.lt(column, limits.1));
        let rows_ragged = !self.sizes.rows.is_multiple_of(rows);
        let columns_ragged = self.sizes.columns < columns;
        let exprs = &mut self.program.exprs;
        let inside = exprs.and_guard(rows_ragged.then_some(row_in), columns_ragged.then_some(column_in));
        let inside = exprs.and_guard(is_ragged.then_some(exists), inside);
        let mut stores = vec![Stmt::Let(register, total)];
        stores.extend(self.result_stores((row, column), lanes, value));
        match inside {
            None => inner.extend(stores),
            Some(condition) => inner.push(Stmt::If { condition, then: stores, otherwise: Vec::new() }),
        }
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(rounds as i64));
        body.push(Stmt::For {
            var,
            start,
            end,
            step: 1,
            kind: LoopKind::UnrollBy(RESULTS_IN_FLIGHT),
            body: inner,
        });
        body
    }

    /// The stores of a vector of results from `[row, column]` on.
    fn result_stores(&mut self, (row, column): (ExprId, ExprId), lanes: usize, total: ExprId) -> Vec<Stmt> {
        let (rows, columns) = (self.form.rows.clone(), self.form.columns.clone());
        let sum = self.program.exprs.declare_register("sum", Type::scalar(DType::F32));
        let (each, each_value) = self.program.exprs.fresh_index("each", self.sizes.padded_columns());
        let mut bindings = self.at(&rows, row);
        bindings.extend(self.at(&columns, if lanes == 1 { column } else { each_value }));
        self.stage_values = vec![(self.form.output, self.program.exprs.var(sum))];
        let stores = stores_of(self.block, &mut self.source, &[]);
        let results = ResultVector { each, first: column, lanes, acc: sum, total };
        let buffers = self.arg_buffers.clone();
        self.vector_stores(&stores, &bindings, &results, &buffers)
    }
}
