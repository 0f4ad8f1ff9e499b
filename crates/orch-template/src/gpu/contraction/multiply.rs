//! One iteration's multiplication, `acc += a_tile * b_tile^T`, on the unit that the schedule says:
//!
//! - 16-bit operands on `sm_90`: `wgmma` of warp groups, operands in shared memory;
//! - 16-bit operands: `ldmatrix` to fragments in registers, `mma.sync.m16n8k16`;
//! - tf32: fragments by scalar loads from shared memory, `mma.sync.m16n8k8`;
//! - other types: fragments by vector loads, scalar fused multiply-adds.
//!
//! Fragment layouts are those of [`orch_thread::cta`]. With `g = lane / 4` and `c = lane % 4` (PTX: groupID, threadID_in_group), a
//! lane has of each 16 x 8 accumulator tile rows `g`, `g + 8` and columns `2c`, `2c + 1`:
//!
//! ```text
//! accumulators  [warp_m / 16, warp_n / 8, 4]      of mma and wgmma (warp_m is 16, warp_n is block_n there)
//! accumulators  [rows of the lane, columns of the lane]   of FMA units
//! ```

use super::emitter::GemmEmitter;
use super::schedule::{FMA_LANES_M, FMA_LANES_N, GpuContractionSchedule, Major};
use super::tiles::OperandTiles;
use super::unit::MathUnit;
use crate::gpu::cta::{CtaEmitter, ProgramEmitter};
use orch_compute::expr::{BufferId, ExprId, Exprs};
use orch_thread::cta::{CtaStmt, Location, MmaType, WARP_GROUP, WARP_GROUP_ROWS};
use orch_thread::program::{Scope, Stmt};

/// Which operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    A,
    B,
}

/// How the accumulators of a lane are stored, piece by piece: neighbours of a row together.
#[derive(Clone, Copy)]
pub(super) struct LaneTile {
    /// Rows of pieces.
    pub rows: usize,
    /// Columns of pieces.
    pub columns: usize,
}

/// Accumulators of a lane that are neighbours in a row of its warp's tile.
pub(super) struct AccumulatorPiece {
    /// The first one's register.
    pub register: usize,
    /// How many.
    pub lanes: usize,
    /// The row in the warp's tile.
    pub row: ExprId,
    /// The first column in the warp's tile.
    pub column: ExprId,
}

impl LaneTile {
    pub fn of(unit: MathUnit, schedule: &GpuContractionSchedule) -> Self {
        let (m, n) = match unit {
            MathUnit::TensorCore(_) => (8, 8),
            MathUnit::Fma(_) => (FMA_LANES_M, FMA_LANES_N),
        };
        Self { rows: schedule.warp_m() / m, columns: schedule.warp_n() / n }
    }
}

/// Consecutive rows that a lane has of so many on FMA units, where the operand is MN-major.
fn run(rows: usize) -> usize {
    if rows.is_multiple_of(4) { 4 } else { 1 }
}

/// A lane's elements of one operand in registers on FMA units: `[row, k]` if the operand is K-major, else `[k, row]`.
struct FmaFragment {
    buffer: BufferId,
    rows: usize,
    k_extent: usize,
    major: Major,
}

impl FmaFragment {
    fn offset(&self, exprs: &mut Exprs, row: ExprId, k: ExprId) -> ExprId {
        match self.major {
            Major::K => exprs.linear_index(&[row, k], &[self.k_extent, 1]),
            Major::Mn => exprs.linear_index(&[k, row], &[self.rows, 1]),
        }
    }
}

impl GemmEmitter<'_> {
    /// Adds the products of the operand tiles in a stage to the accumulators.
    pub fn multiply(&mut self, a: &OperandTiles, b: &OperandTiles, stage: ExprId) -> Vec<Stmt> {
        match self.unit {
            MathUnit::TensorCore(ty) if self.schedule.wgmma => self.wgmma(ty, a, b, stage),
            MathUnit::TensorCore(MmaType::Tf32) => self.mma_tf32(a, b, stage),
            MathUnit::TensorCore(ty) => self.mma_16_bit(ty, a, b, stage),
            MathUnit::Fma(_) => self.fma(a, b, stage),
        }
    }

    /// The location in shared memory of an element `[row, k]` of the warp's part of an operand tile.
    fn tile_location(
        &mut self,
        tiles: &OperandTiles,
        which: Which,
        stage: ExprId,
        row: ExprId,
        k: ExprId,
    ) -> Location {
        let first = match which {
            Which::A => self.program.exprs.mul_const(self.warp[0], self.schedule.warp_m() as i64),
            Which::B => self.program.exprs.mul_const(self.warp[1], self.schedule.warp_n() as i64),
        };
        let exprs = &mut self.program.exprs;
        let row = exprs.add2(first, row);
        let (line, at) = match tiles.major {
            Major::K => (row, k),
            Major::Mn => (k, row),
        };
        // [stage, line, at]
        let place = exprs.linear_index(&[stage, line], &[tiles.stage_elems, tiles.stride]);
        Location { buffer: tiles.buffer, offset: exprs.add2(place, at) }
    }

    fn add(&mut self, value: ExprId, other: ExprId) -> ExprId {
        self.program.exprs.add2(value, other)
    }

    /// `ldmatrix` and `mma.sync.m16n8k16`: for each 16 of `block_k` the fragments of the warp's rows and columns, then the
    /// outer product of fragments.
    fn mma_16_bit(&mut self, ty: MmaType, a: &OperandTiles, b: &OperandTiles, stage: ExprId) -> Vec<Stmt> {
        let (rows, columns) = (self.schedule.warp_m() / 16, self.schedule.warp_n() / 8);
        // [rows, 8] and [columns, 4]
        let a_fragments = self.add_buffer("a_part", ty.dtype(), rows * 8, Scope::Scratch);
        let b_fragments = self.add_buffer("b_part", ty.dtype(), columns * 4, Scope::Scratch);
        let [(a_row, a_k), (b_row, b_k)] = self.ldmatrix_rows(a.major == Major::K, b.major == Major::K);
        let accumulators = self.accumulators;
        let steps = self.schedule.block_k / 16;
        vec![self.unrolled("k", steps, |this, step| {
            let mut body = Vec::new();
            let first_k = this.program.exprs.mul_const(step, 16);
            for row in 0..rows {
                let at = this.program.exprs.add_const(a_row, 16 * row as i64);
                let k = this.add(first_k, a_k);
                let from = this.tile_location(a, Which::A, stage, at, k);
                let to = this.constant_location(a_fragments, 8 * row);
                let transposed = a.major == Major::Mn;
                body.push(Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices: 4, transposed }));
            }
            for column in (0..columns).step_by(2) {
                let at = this.program.exprs.add_const(b_row, 8 * column as i64);
                let k = this.add(first_k, b_k);
                let from = this.tile_location(b, Which::B, stage, at, k);
                let to = this.constant_location(b_fragments, 4 * column);
                let transposed = b.major == Major::Mn;
                let matrices = if column + 1 < columns { 4 } else { 2 };
                body.push(Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices, transposed }));
            }
            for row in 0..rows {
                for column in 0..columns {
                    let acc = this.constant_location(accumulators, 4 * (row * columns + column));
                    let a = this.constant_location(a_fragments, 8 * row);
                    let b = this.constant_location(b_fragments, 4 * column);
                    body.push(Stmt::Cta(CtaStmt::Mma { ty, acc, a, b }));
                }
            }
            body
        })]
    }

    /// `wgmma.m64nNk16`: each warp group multiplies its 64 rows of `a` by all columns of `b`, both swizzled in shared memory.
    fn wgmma(&mut self, ty: MmaType, a: &OperandTiles, b: &OperandTiles, stage: ExprId) -> Vec<Stmt> {
        let exprs = &mut self.program.exprs;
        let warps = exprs.index(WARP_GROUP as i64);
        let warp_group = exprs.floor_div(self.warp[0], warps);
        // K-major: [row, k] in panels of 64 along K; M-major: a panel [k, 64] for each warp group.
        let warp_group_elems = WARP_GROUP_ROWS * if a.major == Major::K { a.stride } else { a.lines() };
        let a_offset = exprs.linear_index(&[stage, warp_group], &[a.stage_elems, warp_group_elems]);
        let b_offset = exprs.mul_const(stage, b.stage_elems as i64);
        let [a_transposed, b_transposed] = [a, b].map(|tiles| tiles.major == Major::Mn);
        let a = Location { buffer: a.buffer, offset: a_offset };
        let b = Location { buffer: b.buffer, offset: b_offset };
        let acc = self.constant_location(self.accumulators, 0);
        let (n, k) = (self.schedule.block_n, self.schedule.block_k);
        vec![Stmt::Cta(CtaStmt::Wgmma { ty, acc, a, b, n, k, a_transposed, b_transposed, is_async: true })]
    }

    /// `mma.sync.m16n8k8` of tf32: `ldmatrix` has no 32-bit elements, so that lanes load their fragments one by one.
    ///
    /// ```text
    /// a [4]: rows g, g + 8, g, g + 8; k c, c, c + 4, c + 4          b [2]: column g; k c, c + 4
    /// ```
    fn mma_tf32(&mut self, a: &OperandTiles, b: &OperandTiles, stage: ExprId) -> Vec<Stmt> {
        let ty = MmaType::Tf32;
        let (rows, columns) = (self.schedule.warp_m() / 16, self.schedule.warp_n() / 8);
        // [rows, 4] and [columns, 2]
        let a_fragments = self.add_buffer("a_part", ty.dtype(), rows * 4, Scope::Scratch);
        let b_fragments = self.add_buffer("b_part", ty.dtype(), columns * 2, Scope::Scratch);
        let (g, c) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, 1));
        let accumulators = self.accumulators;
        let steps = self.schedule.block_k / 8;
        vec![self.unrolled("k", steps, |this, step| {
            let mut body = Vec::new();
            let first_k = this.program.exprs.mul_const(step, 8);
            let k = this.add(first_k, c);
            let mut load = |this: &mut Self, tiles: &OperandTiles, which, to, row: usize, later_k: usize| {
                let row = this.program.exprs.add_const(g, row as i64);
                let k = this.program.exprs.add_const(k, later_k as i64);
                let from = this.tile_location(tiles, which, stage, row, k);
                let value = this.program.exprs.load(from.buffer, from.offset, 1, None);
                let Location { buffer, offset } = to;
                body.push(Stmt::Store { buffer, offset, value, mask: None });
            };
            for row in 0..rows {
                for element in 0..4 {
                    let to = this.constant_location(a_fragments, 4 * row + element);
                    load(this, a, Which::A, to, 16 * row + 8 * (element % 2), 4 * (element / 2));
                }
            }
            for column in 0..columns {
                for element in 0..2 {
                    let to = this.constant_location(b_fragments, 2 * column + element);
                    load(this, b, Which::B, to, 8 * column, 4 * element);
                }
            }
            for row in 0..rows {
                for column in 0..columns {
                    let acc = this.constant_location(accumulators, 4 * (row * columns + column));
                    let a = this.constant_location(a_fragments, 4 * row);
                    let b = this.constant_location(b_fragments, 2 * column);
                    body.push(Stmt::Cta(CtaStmt::Mma { ty, acc, a, b }));
                }
            }
            body
        })]
    }

    /// Scalar fused multiply-adds: each lane has rows and columns of the warp's tile, and the outer product of both for each `k`.
    fn fma(&mut self, a: &OperandTiles, b: &OperandTiles, stage: ExprId) -> Vec<Stmt> {
        let dtype = self.unit.operand_type();
        let k_extent = self.schedule.fma_fragment_k(self.unit);
        let (rows, columns) = (self.schedule.warp_m() / FMA_LANES_M, self.schedule.warp_n() / FMA_LANES_N);
        let mut fragment = |name, rows, major| {
            let buffer = self.add_buffer(name, dtype, rows * k_extent, Scope::Scratch);
            FmaFragment { buffer, rows, k_extent, major }
        };
        let (a_fragment, b_fragment) =
            (fragment("a_part", rows, a.major), fragment("b_part", columns, b.major));
        let accumulators = self.accumulators;
        let steps = self.schedule.block_k / k_extent;
        vec![self.unrolled("k", steps, |this, step| {
            let first_k = this.program.exprs.mul_const(step, k_extent as i64);
            let mut body = this.load_fma_fragment(a, Which::A, &a_fragment, stage, first_k);
            body.extend(this.load_fma_fragment(b, Which::B, &b_fragment, stage, first_k));
            body.push(this.unrolled("k_in", k_extent, |this, k| {
                vec![this.unrolled("i", rows, |this, i| {
                    vec![this.unrolled("j", columns, |this, j| {
                        let exprs = &mut this.program.exprs;
                        let (a_at, b_at) = (a_fragment.offset(exprs, i, k), b_fragment.offset(exprs, j, k));
                        let a = exprs.load(a_fragment.buffer, a_at, 1, None);
                        let b = exprs.load(b_fragment.buffer, b_at, 1, None);
                        // [rows, columns]
                        let offset = exprs.linear_index(&[i, j], &[columns, 1]);
                        let acc = exprs.load(accumulators, offset, 1, None);
                        let value = exprs.fma(a, b, acc);
                        vec![Stmt::Store { buffer: accumulators, offset, value, mask: None }]
                    })]
                })]
            }));
            body
        })]
    }

    /// Loads a lane's fragment from `first_k` on, in vectors of 16 bytes or fewer along the major dimension.
    fn load_fma_fragment(
        &mut self,
        tiles: &OperandTiles,
        which: Which,
        fragment: &FmaFragment,
        stage: ExprId,
        first_k: ExprId,
    ) -> Vec<Stmt> {
        let mut body = Vec::new();
        let mut load = |this: &mut Self, row: usize, later_k: usize, lanes: usize| {
            let tile_row = this.fma_row(tiles.major, which, fragment.rows, row);
            let k = this.program.exprs.add_const(first_k, later_k as i64);
            let from = this.tile_location(tiles, which, stage, tile_row, k);
            let exprs = &mut this.program.exprs;
            let value = exprs.load(from.buffer, from.offset, lanes, None);
            let (row, later_k) = (exprs.index(row as i64), exprs.index(later_k as i64));
            let offset = fragment.offset(exprs, row, later_k);
            body.push(Stmt::Store { buffer: fragment.buffer, offset, value, mask: None });
        };
        match tiles.major {
            Major::K => (0..fragment.rows).for_each(|row| load(self, row, 0, fragment.k_extent)),
            Major::Mn => {
                let widest = 16 / self.unit.operand_type().size_bytes();
                let lanes = run(fragment.rows).min(widest);
                for later_k in 0..fragment.k_extent {
                    (0..fragment.rows).step_by(lanes).for_each(|row| load(self, row, later_k, lanes));
                }
            }
        }
        body
    }

    /// The row (or column) of the warp's tile that is a lane's `number`-th on FMA units.
    ///
    /// ```text
    /// lanes of a warp   [FMA_LANES_M, FMA_LANES_N], l the lane's row (or column) in it, L its extent
    /// K-major    row = L * number + l                                     lanes read neighbouring lines: different banks
    /// MN-major   row = (number / run) * run * L + run * l + number % run  runs that are read as vectors
    /// ```
    fn fma_row(&mut self, major: Major, which: Which, rows: usize, number: usize) -> ExprId {
        let lanes = if which == Which::A { FMA_LANES_M } else { FMA_LANES_N };
        let lane = match which {
            Which::A => self.of_lane(FMA_LANES_N, FMA_LANES_M, 1),
            Which::B => self.of_lane(1, FMA_LANES_N, 1),
        };
        let exprs = &mut self.program.exprs;
        match major {
            Major::K => exprs.add_const(lane, (lanes * number) as i64),
            Major::Mn => {
                let run = run(rows);
                let first = exprs.mul_const(lane, run as i64);
                exprs.add_const(first, (number / run * run * lanes + number % run) as i64)
            }
        }
    }

    /// The accumulators of a lane in piece `[row, column]`: their registers, and their place in the warp's tile.
    pub fn accumulator(
        &mut self,
        lane_tile: LaneTile,
        [a, b]: [Major; 2],
        row: usize,
        column: usize,
    ) -> AccumulatorPiece {
        let LaneTile { rows, columns } = lane_tile;
        match self.unit {
            MathUnit::TensorCore(_) => {
                // Fragment [row / 2, column], of which rows g (row % 2 = 0) or g + 8, columns 2c and 2c + 1.
                let (g, c2) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, 2));
                let exprs = &mut self.program.exprs;
                let register = 4 * (row / 2 * columns + column) + 2 * (row % 2);
                let row = exprs.add_const(g, 8 * row as i64);
                AccumulatorPiece { register, lanes: 2, row, column: exprs.add_const(c2, 8 * column as i64) }
            }
            MathUnit::Fma(_) => {
                let register = row * columns + column;
                let row = self.fma_row(a, Which::A, rows, row);
                let column = self.fma_row(b, Which::B, columns, column);
                AccumulatorPiece { register, lanes: 1, row, column }
            }
        }
    }
}
