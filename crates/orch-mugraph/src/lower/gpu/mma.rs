//! Matrix products, `acc[m, n] += a[m, k] * b[k, n]`: the choice of layouts, and the loops of `mma.sync` and
//! of FMA.
//!
//! ```text
//! A: shared memory (ldmatrix), or registers: accumulators of an earlier product, as weights of attention
//! B: shared memory
//! warps: row_warps x column_warps over [m, n]; split-K over the column warps, if n has too few columns for them,
//!        or if A is in registers partitioned along its columns, which are K here
//! ```
//!
//! `wgmma` is in `wgmma`, a B that is loaded directly to registers in `register_direct`.

use super::emitter::BlockEmitter;
use super::layout::{
    ColumnLayout, FRAGMENT_COLUMNS, FRAGMENT_ROWS, FragmentLayout, RegisterSlot, RegisterTile, WarpGrid,
};
use super::value::{SharedTile, TileHome};
use crate::tiling::Stage;
use orch_compute::{BufferId, ExprId, Type};
use orch_ir::DType;
use orch_thread::{CtaStmt, Location, LoopKind, MmaType, Scope, Stmt};

/// Most accumulator registers of a thread for one product; above, the product is computed in shared memory.
const MAX_ACCUMULATORS: usize = 256;
/// Most accumulator registers of a thread with split-K over warps.
const MAX_SPLIT_K_ACCUMULATORS: usize = 128;
/// K steps that are unrolled.
const UNROLLED_K_STEPS: u32 = 4;

/// A product whose operands are ready, to be added to accumulators.
#[derive(Clone, Debug)]
pub(super) struct TileGemm {
    pub acc: RegisterTile,
    pub a: OperandA,
    pub b: SharedTile,
    /// Leading extents of A and of B; those of 1 are broadcast.
    batch_extents: [Vec<usize>; 2],
    /// K.
    pub k: usize,
    /// A fragments that are loaded to registers before the loop and stay there, for wgmma.
    pub resident_a: Option<BufferId>,
    /// Whether wgmma may be in flight when the product's statements end.
    pub is_async: bool,
}

/// Where A is.
#[derive(Clone, Debug)]
pub(super) enum OperandA {
    Shared(SharedTile),
    /// In this accumulator layout, computed from this tile when fragments are packed.
    Registers(FragmentLayout, usize),
}

/// Names an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum GemmOperand {
    A,
    B,
}

impl BlockEmitter<'_> {
    /// Whether a product has more accumulators than [`MAX_ACCUMULATORS`].
    pub fn exceeds_registers(&self, tile: usize) -> bool {
        let shape = &self.plan.steps.tiles[tile].shape;
        let n = shape[shape.len() - 1];
        self.warp_grid(shape).is_none_or(|rows| {
            let at = FragmentLayout { rows, columns: ColumnLayout::Partitioned(n) };
            at.registers_per_thread() > MAX_ACCUMULATORS
        })
    }

    /// Emits a product that is not fused with an accumulation; its result is in registers (in shared memory,
    /// if there are too many).
    pub fn emit_matmul(&mut self, tile: usize) {
        if self.has_direct_b(tile) {
            self.emit_direct_matmul(tile);
            return;
        }
        if self.exceeds_registers(tile) {
            self.matmul_in_shared(tile);
            return;
        }
        let is_final = self.plan.steps.tiles[tile].stage != Stage::Loop;
        let mut gemm = self.prepare_gemm(tile, is_final);
        gemm.is_async = self.scores_are_async(tile, &gemm);
        let zero = self.float(0.0);
        let clear = self.fill_registers(gemm.acc.buffer, gemm.acc.at.registers_per_thread(), zero);
        self.emit(clear);
        self.emit_gemm(&gemm);
        self.mark_delayed_position(&gemm);
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let registers = self.reduce_split_k_registers(gemm.acc, &shape);
        self.tiles.homes[tile].push(TileHome::Registers(registers));
    }

    /// Brings operands to where they are multiplied, and chooses the layout of the accumulators, which are
    /// not yet set. `may_split` allows split-K over warps.
    pub fn prepare_gemm(&mut self, tile: usize, may_split: bool) -> TileGemm {
        let (shape, args) =
            (self.plan.steps.tiles[tile].shape.clone(), self.plan.steps.tiles[tile].step.args());
        let shapes = [0, 1].map(|at| self.plan.steps.tiles[args[at]].shape.clone());
        let (rank, k) = (shape.len(), shapes[0][shape.len() - 1]);
        let whole =
            WarpGrid { lead: Vec::new(), m: shape[0], row_warps: 1, column_warps: self.plan.schedule.warps };
        let rows = self.warp_grid(&shape).unwrap_or(whole);
        let n = shape[rank - 1];
        let split_k = FragmentLayout { rows: rows.clone(), columns: ColumnLayout::SplitK(n) };
        let may_split = may_split && split_k.registers_per_thread() <= MAX_SPLIT_K_ACCUMULATORS;
        let in_registers = self.register_layout(args[0]).filter(|at| {
            let is_whole = at.columns == ColumnLayout::Partitioned(k) && at.column_tiles().is_multiple_of(2);
            self.has_16bit_operands() && at.rows == rows && is_whole && (may_split || rows.column_warps == 1)
        });
        let held = self.load_of_held_fragments(args[0]);
        let a = match (in_registers, &held) {
            (Some(at), _) => {
                self.prepare(args[0], Some(&at));
                OperandA::Registers(at, args[0])
            }
            (None, Some((_, view))) => OperandA::Shared(view.clone()),
            (None, None) => OperandA::Shared(self.shared_operand(args[0], rank - 1)),
        };
        let b = self.shared_operand(args[1], rank - 2);
        let steps = k.div_ceil(self.mma_k());
        let column_warps = rows.column_warps;
        let splits = match a {
            OperandA::Registers(..) => column_warps > 1,
            OperandA::Shared(_) => {
                may_split && n.div_ceil(FRAGMENT_COLUMNS) < column_warps && steps >= column_warps
            }
        };
        let columns = if splits { ColumnLayout::SplitK(n) } else { ColumnLayout::Partitioned(n) };
        let at = FragmentLayout { rows, columns };
        let buffer = self.add_buffer("product", DType::F32, at.registers_per_thread(), Scope::Scratch);
        let batch_extents = shapes.map(|shape| shape[..rank - 2].to_vec());
        let acc = RegisterTile { at, buffer };
        let mut gemm = TileGemm { acc, a, b, batch_extents, k, resident_a: None, is_async: false };
        let source = held.map(|(load, _)| load);
        gemm.resident_a = self.hold_a_in_registers(tile, &gemm, source);
        if source.is_some() && gemm.resident_a.is_none() {
            gemm.a = OperandA::Shared(self.shared_operand(args[0], rank - 1));
        }
        gemm
    }

    /// Adds a product to its accumulators, by wgmma, mma or FMA.
    pub fn emit_gemm(&mut self, gemm: &TileGemm) {
        let stmts = match (self.mma_type(), self.wgmma_b_is_mn_major(gemm)) {
            (Some(MmaType::Tf32), _) => self.mma_tf32(gemm),
            (Some(kind), Some(b_is_mn_major)) => self.wgmma_stmts(gemm, kind, b_is_mn_major),
            (Some(kind), None) => self.mma_16bit(gemm, kind),
            (None, _) => self.fma_f32(gemm),
        };
        self.emit(stmts);
    }

    /// The location of an element of an operand: `[lead.., row, k]` of A, `[lead.., k, row]` of B,
    /// whose `row` is a column.
    pub fn operand_location(
        &mut self,
        gemm: &TileGemm,
        (which, view): (GemmOperand, &SharedTile),
        lead: ExprId,
        (row, k_index): (ExprId, ExprId),
    ) -> Location {
        let at = usize::from(which == GemmOperand::B);
        let mut coords = self.program.exprs.unflatten(lead, &gemm.acc.at.rows.lead);
        for (coord, &extent) in coords.iter_mut().zip(&gemm.batch_extents[at]) {
            if extent == 1 {
                *coord = self.program.exprs.index(0);
            }
        }
        coords.extend(if which == GemmOperand::A { [row, k_index] } else { [k_index, row] });
        Location { buffer: view.buffer, offset: self.shared_offset(view, &coords) }
    }

    /// The first row of fragment row `tile` of the warp (A), or the first column of fragment column `tile`
    /// (B).
    fn fragment_start(&mut self, at: &FragmentLayout, which: GemmOperand, tile: ExprId) -> ExprId {
        let [warp_row, warp_column] = self.warp_coords(at);
        let spread = matches!(at.columns, ColumnLayout::Partitioned(_));
        let (warp, tiles, size) = match which {
            GemmOperand::A => (warp_row, at.rows.row_tiles(), FRAGMENT_ROWS),
            GemmOperand::B if spread => (warp_column, at.column_tiles(), FRAGMENT_COLUMNS),
            GemmOperand::B => (self.index(0), at.column_tiles(), FRAGMENT_COLUMNS),
        };
        let tile = self.program.exprs.linear_index(&[warp, tile], &[tiles, 1]);
        self.program.exprs.mul_const(tile, size as i64)
    }

    /// A loop over K in steps of `size`, given the step and its first k. With split-K a warp has the steps
    /// `step * column_warps + column_warp`, or those that its registers hold.
    fn for_each_k_step(
        &mut self,
        gemm: &TileGemm,
        size: usize,
        body: impl FnOnce(&mut Self, ExprId, ExprId) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let at = gemm.acc.at.clone();
        let all = gemm.k.div_ceil(size);
        let column_warps = if at.is_split_k() { at.rows.column_warps } else { 1 };
        let in_registers = match &gemm.a {
            OperandA::Registers(from, _) => Some(from.column_tiles() / 2),
            OperandA::Shared(_) => None,
        };
        let (own, kind) = match in_registers {
            Some(own) => (own, LoopKind::Unroll),
            None => (all.div_ceil(column_warps), LoopKind::UnrollBy(UNROLLED_K_STEPS)),
        };
        self.loop_of("step", own, kind, |this, step| {
            let warp = if column_warps > 1 { this.warp_coords(&at)[1] } else { this.index(0) };
            let exprs = &mut this.program.exprs;
            // K in registers is the warp's columns, consecutive; otherwise steps are dealt round robin.
            let number = match in_registers {
                Some(_) => exprs.linear_index(&[warp, step], &[own, 1]),
                None => exprs.linear_index(&[step, warp], &[column_warps, 1]),
            };
            let exists = this.is_below(number, all);
            let number = if exists.is_some() { this.clamped_below(number, all) } else { number };
            let k_index = this.program.exprs.mul_const(number, size as i64);
            let stmts = body(this, step, k_index);
            // A registers beyond K are zero, so B may be read at a clamped k.
            match exists.filter(|_| in_registers.is_none()) {
                Some(condition) => vec![Stmt::If { condition, then: stmts, otherwise: Vec::new() }],
                None => stmts,
            }
        })
    }

    /// `mma.m16n8k16` with f16 or bf16: A by `ldmatrix.x4` or packed from accumulators, B by `ldmatrix` for
    /// two fragments of columns.
    fn mma_16bit(&mut self, gemm: &TileGemm, kind: MmaType) -> Vec<Stmt> {
        let at = gemm.acc.at.clone();
        let (rows, columns) = (at.rows.row_tiles(), at.column_tiles());
        let a = self.add_buffer("a_part", kind.dtype(), rows * 8, Scope::Scratch);
        let b = self.add_buffer("b_part", kind.dtype(), 8, Scope::Scratch);
        self.loop_of("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.for_each_k_step(gemm, 16, |this, step, k_index| {
                let mut body = Vec::new();
                for row in 0..rows {
                    let to = this.location(a, 8 * row);
                    let row = this.index(row);
                    body.extend(match &gemm.a {
                        OperandA::Shared(view) => {
                            vec![this.ldmatrix(gemm, (GemmOperand::A, view), (lead, row, k_index), (to, 4))]
                        }
                        OperandA::Registers(from, tile) => {
                            this.pack_accumulators(from, *tile, (lead, row, step), (kind, to))
                        }
                    });
                }
                let pairs = columns.div_ceil(2);
                let loop_over_pairs = |this: &mut Self, pair: ExprId| {
                    let matrices = if columns > 1 { 4 } else { 2 };
                    let to = this.location(b, 0);
                    let column = this.program.exprs.mul_const(pair, 2);
                    let from = (GemmOperand::B, &gemm.b);
                    let mut stmts = vec![this.ldmatrix(gemm, from, (lead, column, k_index), (to, matrices))];
                    for row in 0..rows {
                        for half in 0..matrices / 2 {
                            let row_tile = this.index(row);
                            let column_tile = this.program.exprs.add_const(column, half as i64);
                            let slot = RegisterSlot {
                                at: at.clone(),
                                lead,
                                row_tile,
                                column_tile,
                                row_half: 0,
                                column_half: 0,
                            };
                            let offset = this.register_offset(&slot, &at);
                            let acc = Location { buffer: gemm.acc.buffer, offset };
                            let (a, b) = (this.location(a, 8 * row), this.location(b, 4 * half));
                            stmts.push(Stmt::Cta(CtaStmt::Mma { ty: kind, acc, a, b }));
                        }
                    }
                    stmts
                };
                body.extend(this.loop_of("pair", pairs, LoopKind::Unroll, loop_over_pairs));
                body
            })
        })
    }

    /// `ldmatrix` of a 16 x 16 block: matrices are `[row half, k half]`, ordered as mma takes A (rows first)
    /// or B (k first). Transposed if K is not contiguous.
    pub fn ldmatrix(
        &mut self,
        gemm: &TileGemm,
        (which, view): (GemmOperand, &SharedTile),
        (lead, tile, k_index): (ExprId, ExprId, ExprId),
        (to, matrices): (Location, usize),
    ) -> Stmt {
        let rank = view.strides.len();
        let (row_dim, term_dim) =
            if which == GemmOperand::A { (rank - 2, rank - 1) } else { (rank - 1, rank - 2) };
        let along_terms = view.strides[term_dim] == 1;
        // Lane `8 i + r` addresses row `r` of matrix `i`: low = i % 2 * 8, high = i / 2 * 8.
        let within = self.lane_field(1, 8, 1);
        let (low, high) = (self.lane_field(8, 2, 8), self.lane_field(16, 2, 8));
        let (first_row, first_term) = if which == GemmOperand::A { (low, high) } else { (high, low) };
        let start = self.fragment_start(&gemm.acc.at, which, tile);
        let exprs = &mut self.program.exprs;
        let (row, k_index) = (exprs.add2(start, first_row), exprs.add2(k_index, first_term));
        let (row, k_index) = match along_terms {
            true => {
                let row = exprs.add2(row, within);
                (self.clamped_below(row, view.padded[row_dim]), k_index)
            }
            false => {
                let k_index = exprs.add2(k_index, within);
                (self.clamped_below(row, view.padded[row_dim] - 7), k_index)
            }
        };
        let from = self.operand_location(gemm, (which, view), lead, (row, k_index));
        Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices, transposed: !along_terms })
    }

    /// Accumulators of an earlier product as an A fragment: fragment columns `2 step` and `2 step + 1` are k
    /// = 16 step .. 16 step + 16, converted to 16 bits in pairs. Elements are computed from `tile`, such as
    /// exponentials of scores.
    pub fn pack_accumulators(
        &mut self,
        from: &FragmentLayout,
        tile: usize,
        (lead, row_tile, step): (ExprId, ExprId, ExprId),
        (kind, to): (MmaType, Location),
    ) -> Vec<Stmt> {
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let mut stmts = Vec::new();
        for quarter in 0..4 {
            // a[quarter]: rows g, g + 8, g, g + 8; k in the first, first, second, second fragment
            let (row_half, later) = (quarter % 2, quarter / 2);
            let column_tile = self.program.exprs.mul_const(step, 2);
            let column_tile = self.program.exprs.add_const(column_tile, later as i64);
            let pair = [0, 1].map(|column_half| {
                let slot =
                    RegisterSlot { at: from.clone(), lead, row_tile, column_tile, row_half, column_half };
                let [_, column] = self.element_coords(&slot);
                let inside = self.is_below(column, from.n());
                let point = self.point_of_slot(&slot, &shape);
                let mut value = self.value_at(tile, &point);
                if let Some(inside) = inside {
                    let zero = self.float(0.0);
                    value = self.program.exprs.select(inside, value, zero);
                }
                self.program.exprs.cast(kind.dtype(), value)
            });
            let value = self.program.exprs.interleave(pair[0], pair[1]);
            let offset = self.program.exprs.add_const(to.offset, 2 * quarter as i64);
            stmts.push(Stmt::Store { buffer: to.buffer, offset, value, mask: None });
        }
        stmts
    }

    /// An element of an operand as f32; beyond the last row, that row.
    fn operand_element(
        &mut self,
        gemm: &TileGemm,
        (which, view): (GemmOperand, &SharedTile),
        lead: ExprId,
        (row, k_index): (ExprId, ExprId),
    ) -> ExprId {
        let rank = view.strides.len();
        let row_dim = if which == GemmOperand::A { rank - 2 } else { rank - 1 };
        let row = self.clamped_below(row, view.padded[row_dim]);
        let from = self.operand_location(gemm, (which, view), lead, (row, k_index));
        let value = self.program.exprs.load(from.buffer, from.offset, 1, None);
        self.program.exprs.cast(DType::F32, value)
    }

    /// `mma.m16n8k8` with tf32: fragments are loaded by element, as ldmatrix moves 16-bit elements.
    fn mma_tf32(&mut self, gemm: &TileGemm) -> Vec<Stmt> {
        let OperandA::Shared(first) = &gemm.a else { return Vec::new() };
        let kind = MmaType::Tf32;
        let at = gemm.acc.at.clone();
        let (rows, columns) = (at.rows.row_tiles(), at.column_tiles());
        let a = self.add_buffer("a_part", DType::F32, rows * 4, Scope::Scratch);
        let b = self.add_buffer("b_part", DType::F32, 2, Scope::Scratch);
        let (group, within) = (self.lane_field(4, 8, 1), self.lane_field(1, 4, 1));
        self.loop_of("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.for_each_k_step(gemm, 8, |this, _, k_index| {
                let mut body = Vec::new();
                let k_index = this.program.exprs.add2(k_index, within);
                let fetch = |this: &mut Self, which, view, (tile, row, later), to: Location| {
                    let start = this.fragment_start(&at, which, tile);
                    let row_in = this.program.exprs.add_const(group, row);
                    let row = this.program.exprs.add2(start, row_in);
                    let k_index = this.program.exprs.add_const(k_index, later);
                    let value = this.operand_element(gemm, (which, view), lead, (row, k_index));
                    Stmt::Store { buffer: to.buffer, offset: to.offset, value, mask: None }
                };
                for element in 0..4 * rows {
                    let (tile, to) = (this.index(element / 4), this.location(a, element));
                    // a0: (g, c), a1: (g + 8, c), a2: (g, c + 4), a3: (g + 8, c + 4)
                    let part = (8 * (element % 2) as i64, 4 * (element % 4 / 2) as i64);
                    body.push(fetch(this, GemmOperand::A, first, (tile, part.0, part.1), to));
                }
                let each_column = |this: &mut Self, tile: ExprId| {
                    let mut stmts = Vec::new();
                    for element in 0..2 {
                        let to = this.location(b, element);
                        let part = (tile, 0, 4 * element as i64);
                        stmts.push(fetch(this, GemmOperand::B, &gemm.b, part, to));
                    }
                    for row in 0..rows {
                        let row_tile = this.index(row);
                        let slot = RegisterSlot {
                            at: at.clone(),
                            lead,
                            row_tile,
                            column_tile: tile,
                            row_half: 0,
                            column_half: 0,
                        };
                        let acc =
                            Location { buffer: gemm.acc.buffer, offset: this.register_offset(&slot, &at) };
                        let (a, b) = (this.location(a, 4 * row), this.location(b, 0));
                        stmts.push(Stmt::Cta(CtaStmt::Mma { ty: kind, acc, a, b }));
                    }
                    stmts
                };
                body.extend(this.loop_of("column_tile", columns, LoopKind::Unroll, each_column));
                body
            })
        })
    }

    /// FMA in f32: outer product of the thread's 2 * row_tiles rows and its columns, for each k.
    fn fma_f32(&mut self, gemm: &TileGemm) -> Vec<Stmt> {
        let OperandA::Shared(first) = &gemm.a else { return Vec::new() };
        let at = gemm.acc.at.clone();
        let rows = at.rows.row_tiles();
        let a = self.add_buffer("a_part", DType::F32, rows * 2, Scope::Scratch);
        self.loop_of("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.for_each_k_step(gemm, 1, |this, _, k_index| {
                let mut body = Vec::new();
                let zero = this.index(0);
                let slot = |row_tile, column_tile, row_half, column_half| RegisterSlot {
                    at: at.clone(),
                    lead,
                    row_tile,
                    column_tile,
                    row_half,
                    column_half,
                };
                for part in 0..2 * rows {
                    let row_tile = this.index(part / 2);
                    let [row, _] = this.element_coords(&slot(row_tile, zero, part % 2, 0));
                    let value = this.operand_element(gemm, (GemmOperand::A, first), lead, (row, k_index));
                    let Location { buffer, offset } = this.location(a, part);
                    body.push(Stmt::Store { buffer, offset, value, mask: None });
                }
                let columns = at.column_tiles();
                body.extend(this.loop_of("column_tile", columns, LoopKind::Unroll, |this, tile| {
                    let mut stmts = Vec::new();
                    for column_half in 0..2 {
                        let [_, column] = this.element_coords(&slot(zero, tile, 0, column_half));
                        let from = (GemmOperand::B, &gemm.b);
                        let value = this.operand_element(gemm, from, lead, (column, k_index));
                        let ty = Type::scalar(DType::F32);
                        let var = this.program.exprs.declare_register("b", ty);
                        stmts.push(Stmt::Let(var, value));
                        let b = this.program.exprs.var(var);
                        for part in 0..2 * rows {
                            let row_tile = this.index(part / 2);
                            let offset =
                                this.register_offset(&slot(row_tile, tile, part % 2, column_half), &at);
                            let place = this.location(a, part);
                            let exprs = &mut this.program.exprs;
                            let a = exprs.load(place.buffer, place.offset, 1, None);
                            let buffer = gemm.acc.buffer;
                            let acc = exprs.load(buffer, offset, 1, None);
                            let value = exprs.fma(a, b, acc);
                            stmts.push(Stmt::Store { buffer, offset, value, mask: None });
                        }
                    }
                    stmts
                }));
                body
            })
        })
    }
}
