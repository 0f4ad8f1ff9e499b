//! The products of one step: fragments from shared memory to registers, and what multiplies them.

use super::lower::Lowering;
use super::operand::{Along, Operand};
use super::schedule::Engine;
use crate::gpu::cta::Lowers;
use orch_compute::expr::{BufferId, ExprId, Exprs};
use orch_thread::cta::{CtaStmt, Location, MmaType, WARP_GROUP};
use orch_thread::program::{Scope, Stmt};

/// Rows of the lanes of a warp on scalar units.
pub(super) const LANE_ROWS: usize = 4;
/// Columns of the lanes of a warp on scalar units.
pub(super) const LANE_COLUMNS: usize = 8;

/// Which factor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    First,
    Second,
}

/// Neighbours that a lane has of so many rows, where rows are neighbours.
fn run(rows: usize) -> usize {
    if rows.is_multiple_of(4) { 4 } else { 1 }
}

/// A lane's elements of one factor in registers, neighbours in shared memory side by side.
struct Parts {
    buffer: BufferId,
    rows: usize,
    terms: usize,
    along: Along,
}

impl Parts {
    fn place(&self, exprs: &mut Exprs, row: ExprId, term: ExprId) -> ExprId {
        match self.along {
            Along::Terms => exprs.linear_index(&[row, term], &[self.terms, 1]),
            Along::Rows => exprs.linear_index(&[term, row], &[self.rows, 1]),
        }
    }
}

impl Lowering<'_> {
    /// Adds the products of the tiles in a stage.
    pub fn multiply(&mut self, a: &Operand, b: &Operand, stage: ExprId) -> Vec<Stmt> {
        match self.engine {
            Engine::Matrix(product) if self.schedule.wgmma => self.multiply_tiles(product, a, b, stage),
            Engine::Matrix(MmaType::Tf32) => self.multiply_words(a, b, stage),
            Engine::Matrix(product) => self.multiply_halves(product, a, b, stage),
            Engine::Scalar(_) => self.multiply_scalars(a, b, stage),
        }
    }

    /// The place of an element of a warp's part of a tile: `base` is linear in the lane, the rest in constants.
    fn tile_place(
        &mut self,
        operand: &Operand,
        which: Which,
        stage: ExprId,
        row: ExprId,
        term: ExprId,
    ) -> Location {
        let first = match which {
            Which::First => self.program.exprs.mul_const(self.warp[0], self.schedule.warp_m() as i64),
            Which::Second => self.program.exprs.mul_const(self.warp[1], self.schedule.warp_n() as i64),
        };
        let exprs = &mut self.program.exprs;
        let row = exprs.add2(first, row);
        let (line, at) = match operand.along {
            Along::Terms => (row, term),
            Along::Rows => (term, row),
        };
        let place = exprs.linear_index(&[stage, line], &[operand.stage_elems, operand.stride]);
        Location { buffer: operand.buffer, offset: exprs.add2(place, at) }
    }

    fn sum(&mut self, value: ExprId, other: ExprId) -> ExprId {
        self.program.exprs.add2(value, other)
    }

    /// 16-bit factors: matrices of 8 x 8 from shared memory.
    fn multiply_halves(&mut self, product: MmaType, a: &Operand, b: &Operand, stage: ExprId) -> Vec<Stmt> {
        let (rows, columns) = (self.schedule.warp_m() / 16, self.schedule.warp_n() / 8);
        let a_fragments = self.add_buffer("a_part", product.dtype(), rows * 8, Scope::Scratch);
        let b_fragments = self.add_buffer("b_part", product.dtype(), columns * 4, Scope::Scratch);
        let [(a_row, a_term), (b_row, b_term)] =
            self.matrix_lanes(a.along == Along::Terms, b.along == Along::Terms);
        let sums = self.registers;
        let steps = self.schedule.block_k / 16;
        vec![self.unrolled("k", steps, |this, k| {
            let mut body = Vec::new();
            let k = this.program.exprs.mul_const(k, 16);
            for row in 0..rows {
                let at = this.program.exprs.add_const(a_row, 16 * row as i64);
                let term = this.sum(k, a_term);
                let from = this.tile_place(a, Which::First, stage, at, term);
                let to = this.constant_place(a_fragments, 8 * row);
                let transposed = a.along == Along::Rows;
                body.push(Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices: 4, transposed }));
            }
            for column in (0..columns).step_by(2) {
                let at = this.program.exprs.add_const(b_row, 8 * column as i64);
                let term = this.sum(k, b_term);
                let from = this.tile_place(b, Which::Second, stage, at, term);
                let to = this.constant_place(b_fragments, 4 * column);
                let transposed = b.along == Along::Rows;
                let matrices = if column + 1 < columns { 4 } else { 2 };
                body.push(Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices, transposed }));
            }
            for row in 0..rows {
                for column in 0..columns {
                    let sum = this.constant_place(sums, 4 * (row * columns + column));
                    let a = this.constant_place(a_fragments, 8 * row);
                    let b = this.constant_place(b_fragments, 4 * column);
                    body.push(Stmt::Cta(CtaStmt::Mma { ty: product, acc: sum, a, b }));
                }
            }
            body
        })]
    }

    /// 16-bit factors: whole tiles of shared memory, a group of warps at a time.
    fn multiply_tiles(&mut self, product: MmaType, a: &Operand, b: &Operand, stage: ExprId) -> Vec<Stmt> {
        let exprs = &mut self.program.exprs;
        let warps = exprs.index(WARP_GROUP as i64);
        let group = exprs.floor_div(self.warp[0], warps);
        let group_elems = 16 * WARP_GROUP * a.stride;
        let a_place = exprs.linear_index(&[stage, group], &[a.stage_elems, group_elems]);
        let b_place = exprs.mul_const(stage, b.stage_elems as i64);
        let transposed = b.along == Along::Rows;
        let a = Location { buffer: a.buffer, offset: a_place };
        let b = Location { buffer: b.buffer, offset: b_place };
        let sum = self.constant_place(self.registers, 0);
        let (columns, terms) = (self.schedule.block_n, self.schedule.block_k);
        let stmt =
            CtaStmt::Wgmma { ty: product, acc: sum, a, b, n: columns, k: terms, transposed, is_async: true };
        vec![Stmt::Cta(stmt)]
    }

    /// f32 factors on matrix units: fragments by single elements.
    fn multiply_words(&mut self, a: &Operand, b: &Operand, stage: ExprId) -> Vec<Stmt> {
        let product = MmaType::Tf32;
        let (rows, columns) = (self.schedule.warp_m() / 16, self.schedule.warp_n() / 8);
        let a_fragments = self.add_buffer("a_part", product.dtype(), rows * 4, Scope::Scratch);
        let b_fragments = self.add_buffer("b_part", product.dtype(), columns * 2, Scope::Scratch);
        let (group, within) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, 1));
        let sums = self.registers;
        let steps = self.schedule.block_k / 8;
        vec![self.unrolled("k", steps, |this, k| {
            let mut body = Vec::new();
            let k = this.program.exprs.mul_const(k, 8);
            let term = this.sum(k, within);
            let mut fetch = |this: &mut Self, operand: &Operand, which, to, row: usize, later: usize| {
                let row = this.program.exprs.add_const(group, row as i64);
                let term = this.program.exprs.add_const(term, later as i64);
                let from = this.tile_place(operand, which, stage, row, term);
                let value = this.program.exprs.load(from.buffer, from.offset, 1, None);
                let Location { buffer, offset } = to;
                body.push(Stmt::Store { buffer, offset, value, mask: None });
            };
            for row in 0..rows {
                for element in 0..4 {
                    let to = this.constant_place(a_fragments, 4 * row + element);
                    fetch(this, a, Which::First, to, 16 * row + 8 * (element % 2), 4 * (element / 2));
                }
            }
            for column in 0..columns {
                for element in 0..2 {
                    let to = this.constant_place(b_fragments, 2 * column + element);
                    fetch(this, b, Which::Second, to, 8 * column, 4 * element);
                }
            }
            for row in 0..rows {
                for column in 0..columns {
                    let sum = this.constant_place(sums, 4 * (row * columns + column));
                    let a = this.constant_place(a_fragments, 4 * row);
                    let b = this.constant_place(b_fragments, 2 * column);
                    body.push(Stmt::Cta(CtaStmt::Mma { ty: product, acc: sum, a, b }));
                }
            }
            body
        })]
    }

    /// Multiply-adds: each lane has rows and columns of the warp's tile.
    fn multiply_scalars(&mut self, a: &Operand, b: &Operand, stage: ExprId) -> Vec<Stmt> {
        let dtype = self.engine.factor_type();
        let group = self.schedule.terms_at_once(self.engine);
        let (rows, columns) = (self.schedule.warp_m() / LANE_ROWS, self.schedule.warp_n() / LANE_COLUMNS);
        let mut parts = |name, rows, along| {
            let buffer = self.add_buffer(name, dtype, rows * group, Scope::Scratch);
            Parts { buffer, rows, terms: group, along }
        };
        let (a_parts, b_parts) = (parts("a_part", rows, a.along), parts("b_part", columns, b.along));
        let sums = self.registers;
        let steps = self.schedule.block_k / group;
        vec![self.unrolled("k", steps, |this, k| {
            let k = this.program.exprs.mul_const(k, group as i64);
            let mut body = this.fetch_scalars(a, Which::First, &a_parts, stage, k);
            body.extend(this.fetch_scalars(b, Which::Second, &b_parts, stage, k));
            body.push(this.unrolled("term", group, |this, term| {
                vec![this.unrolled("i", rows, |this, i| {
                    vec![this.unrolled("j", columns, |this, j| {
                        let exprs = &mut this.program.exprs;
                        let (at, b_at) = (a_parts.place(exprs, i, term), b_parts.place(exprs, j, term));
                        let a = exprs.load(a_parts.buffer, at, 1, None);
                        let b = exprs.load(b_parts.buffer, b_at, 1, None);
                        let offset = exprs.linear_index(&[i, j], &[columns, 1]);
                        let sum = exprs.load(sums, offset, 1, None);
                        let value = exprs.fma(a, b, sum);
                        vec![Stmt::Store { buffer: sums, offset, value, mask: None }]
                    })]
                })]
            }));
            body
        })]
    }

    /// The elements of the lane's rows and some terms, in vectors of 16 bytes or fewer along what neighbours are in.
    fn fetch_scalars(
        &mut self,
        operand: &Operand,
        which: Which,
        parts: &Parts,
        stage: ExprId,
        term: ExprId,
    ) -> Vec<Stmt> {
        let mut body = Vec::new();
        let mut fetch = |this: &mut Self, row: usize, later: usize, lanes: usize| {
            let place = this.lane_row(operand.along, which, parts.rows, row);
            let term = this.program.exprs.add_const(term, later as i64);
            let from = this.tile_place(operand, which, stage, place, term);
            let exprs = &mut this.program.exprs;
            let value = exprs.load(from.buffer, from.offset, lanes, None);
            let (row, later) = (exprs.index(row as i64), exprs.index(later as i64));
            let offset = parts.place(exprs, row, later);
            body.push(Stmt::Store { buffer: parts.buffer, offset, value, mask: None });
        };
        match operand.along {
            Along::Terms => (0..parts.rows).for_each(|row| fetch(self, row, 0, parts.terms)),
            Along::Rows => {
                let widest = 16 / self.engine.factor_type().size_bytes();
                let lanes = run(parts.rows).min(widest);
                for later in 0..parts.terms {
                    (0..parts.rows).step_by(lanes).for_each(|row| fetch(self, row, later, lanes));
                }
            }
        }
        body
    }

    /// The row, of the warp's tile, that is a lane's `number`-th: far apart where rows are lines, so that lanes read
    /// different banks, side by side where they are neighbours.
    fn lane_row(&mut self, along: Along, which: Which, rows: usize, number: usize) -> ExprId {
        let lanes = if which == Which::First { LANE_ROWS } else { LANE_COLUMNS };
        let lane = match which {
            Which::First => self.of_lane(LANE_COLUMNS, LANE_ROWS, 1),
            Which::Second => self.of_lane(1, LANE_COLUMNS, 1),
        };
        let exprs = &mut self.program.exprs;
        match along {
            Along::Terms => exprs.add_const(lane, (lanes * number) as i64),
            Along::Rows => {
                let run = run(rows);
                let first = exprs.mul_const(lane, run as i64);
                exprs.add_const(first, (number / run * run * lanes + number % run) as i64)
            }
        }
    }

    /// Stores the thread's sums to shared memory, row by row of the task's tile.
    pub fn spill_sums(&mut self, a: Along, b: Along) -> Vec<Stmt> {
        let (rows, columns) = match self.engine {
            Engine::Matrix(_) => (self.schedule.warp_m() / 8, self.schedule.warp_n() / 8),
            Engine::Scalar(_) => (self.schedule.warp_m() / LANE_ROWS, self.schedule.warp_n() / LANE_COLUMNS),
        };
        let mut body = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let (from, lanes, at_row, at_column) = match self.engine {
                    Engine::Matrix(_) => {
                        let (group, within) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, 2));
                        let exprs = &mut self.program.exprs;
                        let from = 4 * (row / 2 * columns + column) + 2 * (row % 2);
                        let at_row = exprs.add_const(group, 8 * row as i64);
                        (from, 2, at_row, exprs.add_const(within, 8 * column as i64))
                    }
                    Engine::Scalar(_) => {
                        let at_row = self.lane_row(a, Which::First, rows, row);
                        let at_column = self.lane_row(b, Which::Second, columns, column);
                        (row * columns + column, 1, at_row, at_column)
                    }
                };
                let schedule = self.schedule;
                let exprs = &mut self.program.exprs;
                let first_row = exprs.mul_const(self.warp[0], schedule.warp_m() as i64);
                let first_column = exprs.mul_const(self.warp[1], schedule.warp_n() as i64);
                let at_row = exprs.add2(first_row, at_row);
                let at_column = exprs.add2(first_column, at_column);
                let from = exprs.index(from as i64);
                let value = exprs.load(self.registers, from, lanes, None);
                body.push(if self.is_split() {
                    self.give(at_row, at_column, value)
                } else {
                    let offset =
                        self.program.exprs.linear_index(&[at_row, at_column], &[self.sum_stride(), 1]);
                    Stmt::Store { buffer: self.sums, offset, value, mask: None }
                });
            }
        }
        body
    }

    /// Gives sums to the task of the cluster that adds up their row.
    fn give(&mut self, row: ExprId, column: ExprId, value: ExprId) -> Stmt {
        let (split, stride) = (self.schedule.split_k, self.sum_stride());
        let rows = self.schedule.block_m / split;
        let exprs = &mut self.program.exprs;
        let parts = exprs.unflatten(row, &[split, rows]);
        let offset = exprs.linear_index(&[self.rank, parts[1], column], &[rows * stride, stride, 1]);
        Stmt::Cta(CtaStmt::StoreDsmem { to: Location { buffer: self.sums, offset }, rank: parts[0], value })
    }
}
