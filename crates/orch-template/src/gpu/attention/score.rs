//! Both products and the row statistics, in registers.
//!
//! Scores are accumulators of `mma.m16n8k16`, `[keys of the warp / 8, 4]`. With `g = lane / 4` and `c = lane % 4` a thread has of each
//! part of 8 keys:
//!
//! ```text
//!                key 2c   key 2c + 1
//! row g            0          1            half 0
//! row g + 8        2          3            half 1
//! ```
//!
//! A row's keys are spread over the four lanes of one `g`. Two parts of 8 keys, rounded to the operand type, are the fragment
//! of operand `a` for 16 keys: the second product reads scores from the registers in which the first one left them.

use super::emitter::AttentionEmitter;
use super::schedule::WARP_ROWS;
use super::tile::AttentionTile;
use crate::gpu::cta::{CtaEmitter, ProgramEmitter};
use orch_compute::expr::{BufferId, ExprId, Type};
use orch_ir::{DType, ReduceOp};
use orch_thread::cta::{CtaStmt, Location};
use orch_thread::program::{Scope, Stmt};

impl AttentionEmitter<'_> {
    /// The scores, `q[16, head_dim] * k[keys, head_dim]^T`, by `ldmatrix` and `mma.sync`, 16 of the head dimension at a time.
    pub fn score(&mut self, q: &AttentionTile, k: &AttentionTile) -> Vec<Stmt> {
        let parts = self.warp_keys() / 8;
        let (scores, clear) = self.zeroed_scratch("scores", DType::F32, 4 * parts);
        self.scores = Some(scores);
        let mma_type = self.mma_type;
        let a = self.add_buffer("q_part", mma_type.dtype(), 8, Scope::Scratch);
        let b = self.add_buffer("k_part", mma_type.dtype(), 8, Scope::Scratch);
        let [(q_row, q_d), (k_row, k_d)] = self.ldmatrix_rows(q.is_row_major, k.is_row_major);
        let first = self.program.exprs.mul_const(self.warp, WARP_ROWS as i64);
        let q_row = self.program.exprs.add2(first, q_row);
        let first_key = self.first_key();
        let k_row = self.program.exprs.add2(first_key, k_row);
        let steps = self.sizes.padded_head_dim() / 16;
        let products = self.unrolled("step", steps, |this, step| {
            let mut body = Vec::new();
            let step = this.program.exprs.mul_const(step, 16);
            let d = this.program.exprs.add2(step, q_d);
            let from = q.location(this, q_row, d);
            let to = this.constant_location(a, 0);
            body.push(Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices: 4, transposed: !q.is_row_major }));
            for pair in 0..parts / 2 {
                let exprs = &mut this.program.exprs;
                let key = exprs.add_const(k_row, 16 * pair as i64);
                let d = exprs.add2(step, k_d);
                let from = k.location(this, key, d);
                let to = this.constant_location(b, 0);
                body.push(Stmt::Cta(CtaStmt::Ldmatrix {
                    to,
                    from,
                    matrices: 4,
                    transposed: !k.is_row_major,
                }));
                for half in 0..2 {
                    let acc = this.constant_location(scores, 4 * (2 * pair + half));
                    let (a, b) = (this.constant_location(a, 0), this.constant_location(b, 4 * half));
                    body.push(Stmt::Cta(CtaStmt::Mma { ty: mma_type, acc, a, b }));
                }
            }
            body
        });
        vec![clear, products]
    }

    /// The first key of the warp.
    fn first_key(&mut self) -> ExprId {
        let keys = self.warp_keys();
        self.program.exprs.mul_const(self.key_warp, keys as i64)
    }

    /// The row in the CTA of a half of the thread's scores.
    fn cta_row(&mut self, half: usize) -> ExprId {
        let g = self.of_lane(4, 8, 1);
        let exprs = &mut self.program.exprs;
        let warp = exprs.mul_const(self.warp, WARP_ROWS as i64);
        let row = exprs.add2(warp, g);
        exprs.add_const(row, 8 * half as i64)
    }

    /// The row of a half of the thread's scores.
    fn row(&mut self, half: usize) -> ExprId {
        let row = self.cta_row(half);
        self.program.exprs.add2(self.first_row, row)
    }

    /// An expression of the scores at a part (of 8 keys), a row half and one of the two keys there; `otherwise` beyond
    /// the last key.
    fn at_score(
        &mut self,
        root: ExprId,
        (part, half, key): (ExprId, usize, usize),
        otherwise: ExprId,
    ) -> ExprId {
        let scores = self.scores.expect("scores come first");
        let row = self.row(half);
        let c2 = self.of_lane(1, 4, 2);
        let exprs = &mut self.program.exprs;
        let first = exprs.mul_const(part, 8);
        let position = exprs.add2(first, c2);
        let position = exprs.add_const(position, key as i64);
        let first_key = self.first_key();
        let exprs = &mut self.program.exprs;
        let position = exprs.add2(first_key, position);
        let offset = exprs.mul_const(part, 4);
        let offset = exprs.add_const(offset, (2 * half + key) as i64);
        let score = exprs.load(scores, offset, 1, None);
        let limits = (exprs.index(self.sizes.rows as i64), exprs.index(self.sizes.keys as i64));
        let (row_in, key_in) = (exprs.lt(row, limits.0), exprs.lt(position, limits.1));
        let is_ragged = self.sizes.keys < self.padded_keys();
        let rows_ragged = !self.sizes.rows.is_multiple_of(self.cta_rows());
        let guard = self.program.exprs.and_guard(rows_ragged.then_some(row_in), is_ragged.then_some(key_in));
        let (rows, keys) = (self.form.rows.clone(), self.form.keys.clone());
        let mut bindings = self.at(&rows, row);
        bindings.extend(self.at(&keys, position));
        let name = self.form.scores;
        self.stage_values.retain(|(stage, _)| *stage != name);
        self.stage_values.push((name, score));
        let value = self.import(root, &bindings, guard);
        if is_ragged { self.program.exprs.select(key_in, value, otherwise) } else { value }
    }

    /// Maxima and accumulators of the thread's rows.
    pub fn statistics(&mut self) -> Vec<Stmt> {
        let parts = self.warp_keys() / 8;
        let mut body = Vec::new();
        self.row_values = [Vec::new(), Vec::new()];
        let (rows, key_warps) = (self.cta_rows(), self.schedule.key_warps);
        let shared = (key_warps > 1).then(|| {
            let elems = self.form.statistics.len() * key_warps * rows;
            self.add_buffer("shared_statistics", DType::F32, elems.max(1), Scope::Shared)
        });
        for (number, statistic) in self.form.statistics.clone().into_iter().enumerate() {
            // Held as 0 and 1, since the lanes exchange f32.
            let is_bool = statistic.is_bool;
            let mut of_warp = Vec::new();
            for half in 0..2 {
                self.stage_values.clone_from(&self.row_values[half]);
                let identity = match statistic.op {
                    ReduceOp::Max if !is_bool => self.program.exprs.constant(DType::F32, f64::NEG_INFINITY),
                    _ => self.program.exprs.zero(DType::F32),
                };
                let register = self.program.exprs.declare_register("partial", Type::scalar(DType::F32));
                body.push(Stmt::Register(register, identity));
                let reduce = self.unrolled("part", parts, |this, part| {
                    let mut stmts = Vec::new();
                    for key in 0..2 {
                        let otherwise = if is_bool { this.program.exprs.bool(false) } else { identity };
                        let value = this.at_score(statistic.body, (part, half, key), otherwise);
                        let value = this.program.exprs.cast(DType::F32, value);
                        let so_far = this.program.exprs.var(register);
                        let value = this.combined(statistic.op, so_far, value);
                        stmts.push(Stmt::Assign(register, value));
                    }
                    stmts
                });
                body.push(reduce);
                let mut value = self.program.exprs.var(register);
                for with in [1, 2] {
                    let var = self.program.exprs.declare_register("other", Type::scalar(DType::F32));
                    body.push(Stmt::Cta(CtaStmt::Shuffle { var, value, with }));
                    let other = self.program.exprs.var(var);
                    let both = self.combined(statistic.op, value, other);
                    value = self.let_value(&mut body, "statistic", both);
                }
                of_warp.push(value);
            }
            let of_row = match shared {
                None => of_warp,
                Some(buffer) => self.exchange(&mut body, (buffer, number), statistic.op, &of_warp),
            };
            let zero = self.program.exprs.zero(DType::F32);
            for (values, value) in self.row_values.iter_mut().zip(of_row) {
                let value = if is_bool { self.program.exprs.ne(value, zero) } else { value };
                values.push((statistic.stage, value));
            }
        }
        body
    }

    /// Combines statistics of warps that have other keys of the same rows.
    fn exchange(
        &mut self,
        body: &mut Vec<Stmt>,
        (buffer, number): (BufferId, usize),
        op: ReduceOp,
        of_warp: &[ExprId],
    ) -> Vec<ExprId> {
        let (rows, key_warps) = (self.cta_rows(), self.schedule.key_warps);
        let place = |this: &mut Self, key_warp: ExprId, row: ExprId| {
            let first = (number * key_warps * rows) as i64;
            let offset = this.program.exprs.linear_index(&[key_warp, row], &[rows, 1]);
            this.program.exprs.add_const(offset, first)
        };
        let mut stores = Vec::new();
        for (half, &value) in of_warp.iter().enumerate() {
            let row = self.cta_row(half);
            let offset = place(self, self.key_warp, row);
            stores.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        // The four lanes of a row have the same value.
        let (lane, zero) = (self.of_lane(1, 4, 1), self.program.exprs.index(0));
        let condition = self.program.exprs.eq(lane, zero);
        body.push(Stmt::If { condition, then: stores, otherwise: Vec::new() });
        body.push(Stmt::Cta(CtaStmt::Barrier));
        (0..of_warp.len())
            .map(|half| {
                let row = self.cta_row(half);
                let mut total = None;
                for key_warp in 0..key_warps {
                    let key_warp = self.program.exprs.index(key_warp as i64);
                    let offset = place(self, key_warp, row);
                    let part = self.program.exprs.load(buffer, offset, 1, None);
                    total = Some(match total {
                        None => part,
                        Some(total) => self.combined(op, total, part),
                    });
                }
                self.let_value(body, "statistic", total.expect("there is a warp"))
            })
            .collect()
    }

    fn combined(&mut self, op: ReduceOp, a: ExprId, b: ExprId) -> ExprId {
        match op {
            ReduceOp::Max => self.program.exprs.max(a, b),
            _ => self.program.exprs.add2(a, b),
        }
    }

    /// The second product, `p[16, keys] * v[keys, columns]`: `p` is computed from the scores in registers, `v` comes by `ldmatrix`.
    pub fn weigh(&mut self, v: &AttentionTile) -> Vec<Stmt> {
        let columns = self.sizes.padded_columns() / 8;
        let (accumulators, clear) = self.zeroed_scratch("accumulators", DType::F32, 4 * columns);
        self.accumulators = Some(accumulators);
        let mma_type = self.mma_type;
        let a = self.add_buffer("p_part", mma_type.dtype(), 8, Scope::Scratch);
        let b = self.add_buffer("v_part", mma_type.dtype(), 8, Scope::Scratch);
        // Values are `[key, column]`: the K dimension of this product is the tile's outer dimension.
        let [_, (v_column, v_key)] = self.ldmatrix_rows(true, !v.is_row_major);
        let zero = self.program.exprs.zero(DType::F32);
        let steps = self.warp_keys() / 16;
        let first_key = self.first_key();
        let products = self.unrolled("step", steps, |this, step| {
            let mut body = Vec::new();
            for quarter in 0..4 {
                let (half, later) = (quarter % 2, quarter / 2);
                this.stage_values.clone_from(&this.row_values[half]);
                let exprs = &mut this.program.exprs;
                let part = exprs.mul_const(step, 2);
                let part = exprs.add_const(part, later as i64);
                let pair = [0, 1].map(|key| {
                    let value = this.at_score(this.form.p, (part, half, key), zero);
                    this.program.exprs.cast(mma_type.dtype(), value)
                });
                let value = this.program.exprs.interleave(pair[0], pair[1]);
                let Location { buffer, offset } = this.constant_location(a, 2 * quarter);
                body.push(Stmt::Store { buffer, offset, value, mask: None });
            }
            let first = this.program.exprs.mul_const(step, 16);
            let first = this.program.exprs.add2(first_key, first);
            for pair in 0..columns / 2 {
                let exprs = &mut this.program.exprs;
                let column = exprs.add_const(v_column, 16 * pair as i64);
                let key = exprs.add2(first, v_key);
                let from = v.location(this, key, column);
                let to = this.constant_location(b, 0);
                body.push(Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices: 4, transposed: v.is_row_major }));
                for half in 0..2 {
                    let acc = this.constant_location(accumulators, 4 * (2 * pair + half));
                    let (a, b) = (this.constant_location(a, 0), this.constant_location(b, 4 * half));
                    body.push(Stmt::Cta(CtaStmt::Mma { ty: mma_type, acc, a, b }));
                }
            }
            body
        });
        vec![clear, products]
    }
}
