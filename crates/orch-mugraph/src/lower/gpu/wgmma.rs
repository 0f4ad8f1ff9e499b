//! Products by `wgmma.m64nNk16`, by warp groups.
//!
//! ```text
//! A: registers: fragments of 16 rows per warp, by ldmatrix, packed from accumulators, or resident while the loop runs;
//!    shared memory, if the GEMM is skinny (64 rows per warp group, swizzled)
//! B: shared memory, 128-byte swizzle: rows are columns of B (K-major) or k (MN-major, `transposed`)
//! acc: registers, 64 rows per warp group
//! ```

use super::emitter::BlockEmitter;
use super::layout::{ColumnLayout, FragmentLayout, RegisterSlot, RegisterTile, WarpGrid};
use super::mma::{GemmOperand, OperandA, TileGemm};
use super::steps::{BlockTile, TileStep};
use super::value::{SharedTile, TileHome};
use crate::op::Op;
use crate::tiling::Stage;
use orch_compute::{BufferId, ExprId};
use orch_ir::DType;
use orch_thread::cta::{MAX_WGMMA_K, MAX_WGMMA_N, SWIZZLE_ROW, WARP_GROUP, WARP_GROUP_ROWS, swizzled_offset};
use orch_thread::{CtaStmt, Location, LoopKind, MmaType, Scope, Stmt};

/// K of an A fragment.
const FRAGMENT_K: usize = 16;
/// Elements of an A fragment per thread: 16 x 16 / 32.
const FRAGMENT_ELEMS: usize = 8;
/// Most registers of a thread for accumulators and A fragments of a product, beyond which it spills.
const MAX_REGISTERS: usize = 192;
/// Most elements of a resident A per thread, two in a register.
const MAX_RESIDENT_A: usize = 64;

/// Whether warps share rows as wgmma requires: whole warp groups, each warp with rows of its own.
pub(super) fn is_per_warp_group(rows: &WarpGrid) -> bool {
    rows.column_warps == 1 && rows.row_warps.is_multiple_of(WARP_GROUP)
}

impl BlockEmitter<'_> {
    /// The `[row, column]` dimensions of a swizzled B tile, if every reader of a load multiplies by it as B,
    /// and extents suit wgmma.
    pub fn b_swizzle_dims(&self, tile: usize, inner: usize, dtype: DType) -> Option<[usize; 2]> {
        if !self.plan.schedule.wgmma || !self.has_16bit_operands() || dtype != self.operand_dtype() {
            return None;
        }
        let products = self.matmuls_by_b(tile)?;
        let (&([k, columns], _), shape) = (products.first()?, &self.plan.steps.tiles[tile].shape);
        let is_same = products.iter().all(|(dims, _)| *dims == [k, columns]);
        let is_wgmma = products.iter().any(|(_, is_wgmma)| *is_wgmma);
        let line = if inner == k { columns } else { k };
        let is_whole = shape[inner].is_multiple_of(SWIZZLE_ROW)
            && shape[k].is_multiple_of(FRAGMENT_K)
            && shape[columns].is_multiple_of(8)
            && (!is_wgmma || shape[k] <= MAX_WGMMA_K && shape[columns] <= MAX_WGMMA_N);
        (is_same && is_whole && [k, columns].contains(&inner)).then_some([line, inner])
    }

    /// The `[row, column]` dimensions of a swizzled A tile of a skinny GEMM, which wgmma reads from shared
    /// memory: its rows beyond those that exist may be arbitrary.
    pub fn skinny_a_swizzle_dims(&self, tile: usize, inner: usize, dtype: DType) -> Option<[usize; 2]> {
        let shape = &self.plan.steps.tiles[tile].shape;
        let rank = shape.len();
        let is_first = |reader: &BlockTile| match &reader.step {
            TileStep::Op { op: Op::Matmul, args } => args[0] == tile && args[1] != tile,
            _ => false,
        };
        let suits = self.plan.schedule.is_skinny
            && self.plan.steps.tiles[tile].stage == Stage::Loop
            && inner + 1 == rank
            && dtype == self.operand_dtype()
            && shape[inner].is_multiple_of(SWIZZLE_ROW)
            && shape[inner] <= max_shared_a_k(self.warp_groups())
            && crate::op::elems(&shape[..inner]) <= self.warp_groups() * WARP_GROUP_ROWS
            && crate::op::elems(&shape[..rank - 2]) == 1
            && self.plan.steps.tiles.iter().any(|reader| reader.readers > 0 && is_first(reader));
        suits.then(|| [rank - 2, inner])
    }

    /// The `[row, column]` dimensions of a swizzled tile of which the scores of attention keep fragments in registers, or of what is
    /// computed from it element by element (Q), so that TMA loads the tile: in a persistent CTA, which loads the next one meanwhile.
    pub fn held_a_swizzle_dims(&self, tile: usize, inner: usize, dtype: DType) -> Option<[usize; 2]> {
        let (steps, shape) = (self.plan.steps, &self.plan.steps.tiles[tile].shape);
        let rank = shape.len();
        let held = |tile: usize| {
            let product = steps.only_reader(tile)?;
            let TileStep::Op { op: Op::Matmul, args } = &steps.tiles[product].step else { return None };
            (args[0] == tile && self.may_hold_a(product)).then_some(product)
        };
        let computed = |reader: &usize| matches!(&steps.tiles[*reader].step, TileStep::Op { op, args } if op.is_elementwise() && args.len() == 1);
        let is_held = held(tile).is_some()
            || steps.only_reader(tile).filter(computed).is_some_and(|reader| held(reader).is_some());
        let suits = self.block_loop.is_some()
            && is_held
            && dtype == self.operand_dtype()
            && inner + 1 == rank
            && shape[inner].is_multiple_of(SWIZZLE_ROW)
            && shape[rank - 2].is_multiple_of(WARP_GROUP_ROWS);
        suits.then(|| [rank - 2, inner])
    }

    /// Of each product by a tile as B (or by its transposition): its `[k, n]` dimensions in the tile, and
    /// whether it may be wgmma. `None` if the tile has other readers, or a product has too many registers.
    fn matmuls_by_b(&self, tile: usize) -> Option<Vec<([usize; 2], bool)>> {
        let rank = self.plan.steps.tiles[tile].shape.len();
        let mut found = Vec::new();
        let mut readers = 0;
        for (position, reader) in self.plan.steps.tiles.iter().enumerate() {
            if reader.readers == 0 || !reader.step.args().contains(&tile) {
                continue;
            }
            readers += 1;
            let TileStep::Op { op, args } = &reader.step else { return None };
            match op {
                Op::Matmul if args[0] != tile => {
                    let rows = self.warp_grid(&reader.shape)?;
                    let at =
                        FragmentLayout { rows, columns: ColumnLayout::Partitioned(reader.shape[rank - 1]) };
                    let parts = a_fragment_elems(self.plan.steps.tiles[args[0]].shape[rank - 1]) / 2;
                    let is_wgmma = is_per_warp_group(&at.rows);
                    if self.exceeds_registers(position)
                        || is_wgmma && at.registers_per_thread() + parts > MAX_REGISTERS
                    {
                        return None;
                    }
                    found.push(([rank - 2, rank - 1], is_wgmma));
                }
                Op::Transpose(perm) => {
                    let dims = self.matmuls_by_b(position)?;
                    let transposed_dims =
                        |(dims, is_wgmma): ([usize; 2], bool)| (dims.map(|dim| perm[dim]), is_wgmma);
                    found.extend(dims.into_iter().map(transposed_dims));
                }
                _ => return None,
            }
        }
        (readers == self.plan.steps.tiles[tile].readers).then_some(found)
    }

    /// Allocates `count` swizzled tiles one after the other: the first one, and the elements of each.
    pub fn alloc_swizzled(
        &mut self,
        dtype: DType,
        shape: &[usize],
        [line, inner]: [usize; 2],
        count: usize,
    ) -> (SharedTile, usize) {
        let mut strides = vec![1; shape.len()];
        strides[line] = SWIZZLE_ROW;
        let mut elems = shape[line] * shape[inner];
        for dim in (0..shape.len()).rev().filter(|dim| ![line, inner].contains(dim)) {
            strides[dim] = elems;
            elems *= shape[dim];
        }
        let buffer = self.add_buffer("tiles", dtype, elems * count, Scope::Shared);
        let base = self.index(0);
        (SharedTile { buffer, base, strides, padded: shape.to_vec(), swizzle: Some([line, inner]) }, elems)
    }

    /// The offset of an element in a swizzled tile.
    pub fn swizzled_offset_in(
        &mut self,
        view: &SharedTile,
        [line, inner]: [usize; 2],
        coords: &[ExprId],
    ) -> ExprId {
        let exprs = &mut self.program.exprs;
        let within = swizzled_offset(exprs, view.padded[line], coords[line], coords[inner]);
        let mut outer = coords.to_vec();
        for dim in [line, inner] {
            outer[dim] = exprs.index(0);
        }
        let start = exprs.linear_index(&outer, &view.strides);
        exprs.add2(start, within)
    }

    /// The A tile of the warp group in shared memory, if the GEMM is skinny and A is swizzled with whole 64
    /// rows.
    fn shared_a_location(&mut self, gemm: &TileGemm) -> Option<Location> {
        let OperandA::Shared(view) = &gemm.a else { return None };
        let (rank, rows) = (view.padded.len(), self.warp_groups() * WARP_GROUP_ROWS);
        let is_tile = view.swizzle == Some([rank - 2, rank - 1]) && view.padded[rank - 2] == rows;
        if !(self.plan.schedule.is_skinny && is_tile) {
            return None;
        }
        let mut coords = vec![self.index(0); rank];
        let warps = self.index(WARP_GROUP);
        let group = self.program.exprs.floor_div(self.ids.warp, warps);
        coords[rank - 2] = self.program.exprs.mul_const(group, WARP_GROUP_ROWS as i64);
        Some(Location { buffer: view.buffer, offset: self.shared_offset(view, &coords) })
    }

    /// Warp groups of the CTA.
    pub fn warp_groups(&self) -> usize {
        self.plan.schedule.warps / WARP_GROUP
    }

    /// Whether wgmma of a skinny GEMM may be in flight when its iteration ends: TMA loads both operands, and
    /// their stages outlive the iteration.
    pub fn may_stay_in_flight(&mut self, tile: usize, gemm: &TileGemm) -> bool {
        let operands = self.plan.steps.tiles[tile].step.args();
        self.plan.schedule.stages > 1
            && operands.iter().all(|operand| self.tma_tiles.contains(operand))
            && self.shared_a_location(gemm).is_some()
            && self.wgmma_b_is_mn_major(gemm).is_some()
    }

    /// Whether B is MN-major (rows of the swizzled tile are k); `None` if the product is not by wgmma.
    pub fn wgmma_b_is_mn_major(&self, gemm: &TileGemm) -> Option<bool> {
        let at = &gemm.acc.at;
        let [line, _] = gemm.b.swizzle?;
        let is_whole = at.columns == ColumnLayout::Partitioned(at.n()) && is_per_warp_group(&at.rows);
        is_whole.then_some(line == gemm.b.strides.len() - 2)
    }

    /// Whether A fragments of a product may be loaded to registers before the loop: the loop does not change A, and they are those of 64
    /// rows of a warp group. With those of 2 x 64 rows ptxas 13.0 gives registers that hold them to other values in the loop (causal
    /// attention of two heads of 64 in a CTA: all but the first iteration multiply something else).
    pub fn may_hold_a(&self, product: usize) -> bool {
        let steps = self.plan.steps;
        let a = steps.tiles[product].step.args()[0];
        let stages = [product, a].map(|at| steps.tiles[at].stage);
        let is_one_fragment =
            |rows: WarpGrid| is_per_warp_group(&rows) && rows.batch() * rows.row_tiles() == 1;
        let k = steps.tiles[a].shape.last().copied().unwrap_or(1);
        steps.loop_range > 1
            && stages == [Stage::Loop, Stage::Invariant]
            && self.warp_grid(&steps.tiles[product].shape).is_some_and(is_one_fragment)
            && a_fragment_elems(k) <= MAX_RESIDENT_A
    }

    /// Loads A fragments to registers before the loop, if they may stay there ([`may_hold_a`](Self::may_hold_a)), and computes A from
    /// them, if it is computed from what they are of (`source`); `None` if they do not stay.
    pub fn hold_a_in_registers(
        &mut self,
        tile: usize,
        gemm: &TileGemm,
        source: Option<usize>,
    ) -> Option<BufferId> {
        let kind = self.mma_type()?;
        let is_held = self.may_hold_a(tile)
            && matches!(gemm.a, OperandA::Shared(_))
            && self.wgmma_b_is_mn_major(gemm).is_some();
        if !is_held {
            return None;
        }
        let buffer = self.add_buffer("a_held", kind.dtype(), a_fragment_elems(gemm.k), Scope::Scratch);
        let zero = self.index(0);
        let to = Location { buffer, offset: zero };
        let loads = self.load_a_fragments(gemm, kind, (zero, zero), to);
        self.code.resident_a.extend(loads);
        if let Some(source) = source {
            // A fragments have the layout of accumulators.
            let at = FragmentLayout { columns: ColumnLayout::Partitioned(gemm.k), ..gemm.acc.at.clone() };
            self.tiles.homes[source].push(TileHome::Registers(RegisterTile { at: at.clone(), buffer }));
            let a = self.plan.steps.tiles[tile].step.args()[0];
            let computed = self.loop_of("step", gemm.k / FRAGMENT_K, LoopKind::Unroll, |this, step| {
                let offset = this.program.exprs.linear_index(&[step], &[FRAGMENT_ELEMS]);
                this.pack_accumulators(&at, a, (zero, zero, step), (kind, Location { buffer, offset }))
            });
            self.code.resident_a.extend(computed);
            // Now they are of A.
            self.tiles.homes[source].pop();
        }
        Some(buffer)
    }

    /// Statements that bring all of K of a row of A fragments to registers, by ldmatrix or packed from
    /// accumulators.
    pub fn load_a_fragments(
        &mut self,
        gemm: &TileGemm,
        kind: MmaType,
        (lead, row): (ExprId, ExprId),
        to: Location,
    ) -> Vec<Stmt> {
        self.loop_of("step", gemm.k / FRAGMENT_K, LoopKind::Unroll, |this, step| {
            // [k step, element]
            let offset = this.program.exprs.linear_index(&[to.offset, step], &[1, FRAGMENT_ELEMS]);
            let to = Location { buffer: to.buffer, offset };
            match &gemm.a {
                OperandA::Shared(view) => {
                    let term = this.program.exprs.mul_const(step, FRAGMENT_K as i64);
                    vec![this.ldmatrix(gemm, (GemmOperand::A, view), (lead, row, term), (to, 4))]
                }
                OperandA::Registers(from, tile) => {
                    this.pack_accumulators(from, *tile, (lead, row, step), (kind, to))
                }
            }
        })
    }

    /// Adds a product by wgmma, loading A fragments unless they are resident or in shared memory.
    pub fn wgmma_stmts(&mut self, gemm: &TileGemm, kind: MmaType, b_is_mn_major: bool) -> Vec<Stmt> {
        let at = gemm.acc.at.clone();
        let (zero, kinds) = (self.index(0), (kind, b_is_mn_major));
        if let Some(tile) = self.shared_a_location(gemm) {
            return vec![self.wgmma_stmt(gemm, kinds, (zero, zero), (tile, gemm.is_async))];
        }
        let (rows, elems) = (at.rows.row_tiles(), a_fragment_elems(gemm.k));
        let (is_held, buffer) = match gemm.resident_a {
            Some(buffer) => (true, buffer),
            None => (false, self.add_buffer("a_part", kind.dtype(), elems, Scope::Scratch)),
        };
        let a = Location { buffer, offset: zero };
        self.loop_of("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.loop_of("row_tile", rows, LoopKind::Unroll, |this, row| {
                let mut body = Vec::new();
                if !is_held {
                    body.extend(this.load_a_fragments(gemm, kind, (lead, row), a));
                }
                body.push(this.wgmma_stmt(gemm, kinds, (lead, row), (a, gemm.is_async)));
                body
            })
        })
    }

    /// `wgmma` for one row of fragments: all n columns and all of K. Without `is_async` it waits for the
    /// result.
    pub fn wgmma_stmt(
        &mut self,
        gemm: &TileGemm,
        (ty, b_is_mn_major): (MmaType, bool),
        (lead, row_tile): (ExprId, ExprId),
        (a, is_async): (Location, bool),
    ) -> Stmt {
        let (at, zero) = (gemm.acc.at.clone(), self.index(0));
        let k = gemm.k;
        let b = self.operand_location(gemm, (GemmOperand::B, &gemm.b), lead, (zero, zero));
        let slot =
            RegisterSlot { at: at.clone(), lead, row_tile, column_tile: zero, row_half: 0, column_half: 0 };
        let acc = Location { buffer: gemm.acc.buffer, offset: self.register_offset(&slot, &at) };
        Stmt::Cta(CtaStmt::Wgmma {
            ty,
            acc,
            a,
            b,
            n: at.n(),
            k,
            a_transposed: false,
            b_transposed: b_is_mn_major,
            is_async,
        })
    }
}

/// Most K of an A in shared memory: with several warp groups one panel of 64, as a group's rows of the next
/// panel would not follow.
pub(super) fn max_shared_a_k(groups: usize) -> usize {
    if groups == 1 { MAX_WGMMA_K } else { SWIZZLE_ROW }
}

/// Elements of A fragments per thread for so much K.
fn a_fragment_elems(k: usize) -> usize {
    k / FRAGMENT_K * FRAGMENT_ELEMS
}
