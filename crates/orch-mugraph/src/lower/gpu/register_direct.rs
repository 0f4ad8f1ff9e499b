//! Direct loads of B from global memory to registers, ahead of their use: skinny GEMM (small M), where
//! reading B is all that takes time. Shared memory would only add barriers, as a block needs each element of
//! B once. K is split over the warps.
//!
//! ```text
//! unit: 16 k x 8 v columns, v = 8 (or 4); g = lane / 4, c = lane % 4
//! lane loads   B[4c + line, v g .. v g + v], line = 0..4        8 lanes read 8 v consecutive columns
//! fragment j of v (mma.m16n8k16):  column g is column v g + j of the unit
//!              k = 2c, 2c + 1, 2c + 8, 2c + 9 of mma is k = 4c .. 4c + 4 of the unit: A's k is permuted in the same way
//! accumulators: columns interleaved, ColumnLayout::SplitKInterleaved
//! K steps of an iteration: warp w has the steps `step * warps + w`
//! registers: [unrolled copy, buffered step, column unit, line, v]
//! ```
//!
//! A unit's registers are loaded again as soon as it is multiplied, by the unit `buffered_steps` later, of a
//! later iteration if need be. Where iterations are short the loop is unrolled ([`TileSteps::unroll`]), each
//! copy with registers of its own, to have more bytes in flight.
//!
//! The limits were chosen for skinny GEMMs whose B comes from HBM; with a B that stays in L2, other loads may be faster.

use super::accumulate::LoopAccumulator;
use super::elements::ElementStore;
use super::emitter::BlockEmitter;
use super::layout::{
    ColumnLayout, FRAGMENT_COLUMNS, FRAGMENT_ROWS, FragmentLayout, RegisterSlot, RegisterTile, WarpGrid,
    direct_vector_width,
};
use super::steps::{BlockTile, TileStep, TileSteps};
use super::value::{SharedTile, TileHome};
use super::{BYTES_IN_FLIGHT, MANY_WARPS};
use crate::graph::Accumulation;
use crate::lower::Request;
use crate::op::Op;
use crate::tiling::Stage;
use orch_compute::{BufferId, ExprId};
use orch_ir::DType;
use orch_thread::OperandPrecision;
use orch_thread::cta::WARP;
use orch_thread::{CtaStmt, Location, LoopKind, Scope, Stmt};
use std::collections::BTreeMap;

/// K of a unit: one mma.
const UNIT_K: usize = 16;
/// Rows of B (values of k) of a unit that a thread loads.
const UNIT_LINES: usize = 4;
/// Most rows (M): above, reading B no longer dominates.
const MAX_ROWS: usize = 64;
/// Most accumulator registers of a thread, of all such products.
const MAX_ACCUMULATORS: usize = 128;
/// Most registers of a thread for loaded units; and for these and accumulators.
const MAX_LOADED: usize = 96;
const MAX_LOADED_AND_ACCUMULATORS: usize = 192;
/// Most copies of the loop body.
const MAX_UNROLL: usize = 8;
/// Interleaved columns that are stored at once.
const STORE_VECTOR: usize = 4;

/// How the B of a product is loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DirectLoad {
    /// K steps of a warp in an iteration, and units along the columns.
    steps: usize,
    column_units: usize,
    /// Columns that a thread loads at once.
    vector: usize,
    /// K steps whose units are in registers or in flight.
    buffered_steps: usize,
}

impl DirectLoad {
    /// Elements of a unit per thread.
    fn unit_elems(&self) -> usize {
        UNIT_LINES * self.vector
    }

    /// Registers of the units of one copy of the loop body, two elements each.
    fn registers_per_thread(&self) -> usize {
        self.buffered_steps * self.column_units * self.unit_elems() / 2
    }

    /// Times that all registers are filled in an iteration.
    fn rounds(&self) -> usize {
        self.steps / self.buffered_steps
    }
}

/// The products whose B is loaded directly, with how, and the unrolling of the loop.
pub(super) fn direct_loads(
    request: &Request<'_>,
    steps: &TileSteps,
    precision: OperandPrecision,
) -> (BTreeMap<usize, DirectLoad>, usize) {
    let none = (BTreeMap::new(), 1);
    let dtype = match precision {
        OperandPrecision::F32 | OperandPrecision::Tf32 => return none,
        OperandPrecision::F16 => DType::F16,
        OperandPrecision::Bf16 => DType::BF16,
    };
    let suits = |&tile: &usize| takes_direct_b(request, steps, tile, dtype);
    let products: Vec<usize> = (0..steps.tiles.len()).filter(suits).collect();
    let sums: usize = products.iter().map(|&tile| accumulator_registers(&steps.tiles[tile].shape)).sum();
    if sums > MAX_ACCUMULATORS || products.is_empty() {
        return none;
    }
    let registers = MAX_LOADED.min(MAX_LOADED_AND_ACCUMULATORS - sums);
    let each = registers / products.len();
    let loads = products.into_iter().filter_map(|tile| Some((tile, direct_load(steps, tile, each)?)));
    let loads: BTreeMap<usize, DirectLoad> = loads.collect();
    let unroll = unroll_count(&loads, steps.loop_range, registers);
    (loads, unroll)
}

/// Copies of the loop body: the fewest that bring [`BYTES_IN_FLIGHT`] per SM, else as many as fit into
/// registers.
fn unroll_count(loads: &BTreeMap<usize, DirectLoad>, loop_range: usize, registers: usize) -> usize {
    let all: usize = loads.values().map(DirectLoad::registers_per_thread).sum();
    if all == 0 || loads.values().any(|direct| direct.rounds() > 1) {
        return 1;
    }
    let bytes = all * size_of::<u32>() * WARP * MANY_WARPS;
    let fits = |unroll: &usize| loop_range.is_multiple_of(*unroll) && unroll * all <= registers;
    let fitting: Vec<usize> = (1..=MAX_UNROLL).filter(fits).collect();
    let enough = fitting.iter().find(|&unroll| unroll * bytes >= BYTES_IN_FLIGHT);
    enough.or(fitting.last()).copied().unwrap_or(1)
}

/// Accumulator registers of a product per thread, with all columns.
fn accumulator_registers(shape: &[usize]) -> usize {
    let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    4 * m.div_ceil(FRAGMENT_ROWS) * n / FRAGMENT_COLUMNS
}

/// How the B of a product is loaded, with as many buffered steps as `registers` allow.
fn direct_load(steps: &TileSteps, tile: usize, registers: usize) -> Option<DirectLoad> {
    let shape = b_operand(steps, tile)?.shape.as_slice();
    let (k, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let neighbours = direct_vector_width(n);
    let groups = n / (FRAGMENT_COLUMNS * neighbours);
    let all = k / (UNIT_K * MANY_WARPS);
    let fits = |ahead: &usize| {
        all.is_multiple_of(*ahead) && ahead * groups * UNIT_LINES * neighbours / 2 <= registers
    };
    let ahead = (1..=all).rev().find(fits)?;
    Some(DirectLoad { steps: all, column_units: groups, vector: neighbours, buffered_steps: ahead })
}

/// The B of a product.
fn b_operand(steps: &TileSteps, tile: usize) -> Option<&BlockTile> {
    match &steps.tiles[tile].step {
        TileStep::Op { op: Op::Matmul, args } => Some(&steps.tiles[args[1]]),
        _ => None,
    }
}

/// Whether a product is skinny, is only summed up, and its B is a load in aligned vectors that nothing else
/// reads.
fn takes_direct_b(request: &Request<'_>, steps: &TileSteps, tile: usize, dtype: DType) -> bool {
    let gemm = &steps.tiles[tile];
    let (TileStep::Op { op: Op::Matmul, args }, Some(b)) = (&gemm.step, b_operand(steps, tile)) else {
        return false;
    };
    let TileStep::Load { tensor, .. } = &b.step else { return false };
    let (shape, last) = (&b.shape, b.shape.len() - 1);
    let (k, n) = (shape[last - 1], shape[last]);
    let is_final = match gemm.stage {
        Stage::Loop => steps.only_reader(tile).is_some_and(|reader| match &steps.tiles[reader].step {
            TileStep::Accumulate { how, tile: from } => *how == Accumulation::Sum && *from == tile,
            TileStep::Load { .. } | TileStep::Inside { .. } => false,
            TileStep::Op { .. } | TileStep::RunningMax { .. } => false,
        }),
        Stage::Invariant | Stage::After => steps.loop_range == 1,
    };
    let is_plain = crate::op::elems(&gemm.shape[..last - 1]) == 1
        && crate::op::elems(&shape[..last - 1]) == 1
        && gemm.shape[last - 1] <= MAX_ROWS
        && n.is_multiple_of(4 * FRAGMENT_COLUMNS)
        && k.is_multiple_of(UNIT_K * MANY_WARPS);
    let is_read_once =
        gemm.readers > 0 && b.readers == 1 && b.stage == gemm.stage && request.is_in_memory(*tensor);
    if !(is_final && is_plain && is_read_once) || depends_on_product(steps, args[0]) {
        return false;
    }
    let (stored, full) = (&request.stored[tensor.index()], request.graph.shape(*tensor));
    let neighbours = direct_vector_width(n);
    let is_whole = |at: usize| at.is_multiple_of(neighbours);
    stored.dtype == dtype
        && stored.strides[last] == 1
        && is_whole(stored.offset)
        && (0..last).all(|dim| !b.ragged[dim] && (full[dim] == 1 || is_whole(stored.strides[dim])))
        && (!b.ragged[last] || is_whole(full[last]))
}

/// Whether a tile is computed from a product, as weights of attention: those are A fragments in registers,
/// which mma and wgmma take.
fn depends_on_product(steps: &TileSteps, tile: usize) -> bool {
    let step = &steps.tiles[tile].step;
    matches!(step, TileStep::Op { op: Op::Matmul, .. })
        || step.args().into_iter().any(|arg| depends_on_product(steps, arg))
}

impl BlockEmitter<'_> {
    /// Whether the B of a product is loaded directly.
    pub fn has_direct_b(&self, tile: usize) -> bool {
        self.plan.steps.direct_loads.contains_key(&tile)
    }

    /// Whether a load is the directly loaded B of a product.
    pub fn is_direct_load(&self, load: usize) -> bool {
        self.plan.steps.direct_loads.keys().any(|&gemm| self.plan.steps.tiles[gemm].step.args()[1] == load)
    }

    /// Loads the first units of all direct loads, before the loop.
    pub fn start_direct_loads(&mut self) {
        for (&tile, direct) in &self.plan.steps.direct_loads {
            let unroll = self.plan.steps.unroll;
            let elems = unroll * direct.buffered_steps * direct.column_units * direct.unit_elems();
            let buffer = self.add_buffer("stream", self.operand_dtype(), elems, Scope::Scratch);
            self.tiles.direct_registers.insert(tile, buffer);
            for (copy, step) in
                (0..unroll).flat_map(|copy| (0..direct.buffered_steps).map(move |step| (copy, step)))
            {
                let [copy, number] = [copy, step].map(|at| self.index(at));
                self.unroll_index = copy;
                for group in 0..direct.column_units {
                    let stmts = self.load_unit(tile, direct, (copy, number, None), (step, group));
                    self.emit(stmts);
                }
            }
            self.unroll_index = self.index(0);
        }
    }

    /// Loads a unit of a K step of an iteration to its registers, masked by `is_needed`.
    fn load_unit(
        &mut self,
        tile: usize,
        direct: &DirectLoad,
        (iteration, step, is_needed): (ExprId, ExprId, Option<ExprId>),
        (buffered, group): (usize, usize),
    ) -> Vec<Stmt> {
        let load = self.plan.steps.tiles[tile].step.args()[1];
        let Some(tensor) = self.tensor_in_memory(load) else { return Vec::new() };
        let Some(from) = self.arguments[tensor.index()] else { return Vec::new() };
        let rank = self.plan.steps.tiles[load].shape.len();
        let (first_line, own) = (self.lane_field(1, 4, UNIT_LINES), self.lane_field(4, 8, direct.vector));
        let column = self.program.exprs.add_const(own, (group * FRAGMENT_COLUMNS * direct.vector) as i64);
        let first_term = self.first_k(step);
        let first_term = self.program.exprs.add2(first_term, first_line);
        let mut stmts = Vec::new();
        for line in 0..UNIT_LINES {
            let mut coords = vec![self.index(0); rank];
            coords[rank - 2] = self.program.exprs.add_const(first_term, line as i64);
            coords[rank - 1] = column;
            let (position, exists) = self.tensor_coords(load, &coords, iteration);
            let offset = self.tensor_offset(tensor, &position);
            // A mask, not a branch around the loads: their results would be copied, and waited for, where branches meet.
            let mask = self.program.exprs.and_guard(is_needed, exists);
            let value = self.program.exprs.load(from, offset, direct.vector, mask);
            let Location { buffer, offset } = self.unit_location(tile, direct, (buffered, group), (line, 0));
            stmts.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        stmts
    }

    /// The first k of a K step of the warp: `16 * (step * warps + warp)`.
    fn first_k(&mut self, step: ExprId) -> ExprId {
        let warps = self.plan.schedule.warps;
        let number = self.program.exprs.linear_index(&[step, self.ids.warp], &[warps, 1]);
        self.program.exprs.mul_const(number, UNIT_K as i64)
    }

    /// The register of an element of a unit: `[unrolled copy, buffered step, column unit, line, column]`.
    fn unit_location(
        &mut self,
        tile: usize,
        direct: &DirectLoad,
        (buffered, group): (usize, usize),
        (line, column): (usize, usize),
    ) -> Location {
        let per_copy = direct.buffered_steps * direct.column_units * direct.unit_elems();
        let first = self.program.exprs.mul_const(self.unroll_index, per_copy as i64);
        let within =
            (buffered * direct.column_units + group) * direct.unit_elems() + line * direct.vector + column;
        Location {
            buffer: self.tiles.direct_registers[&tile],
            offset: self.program.exprs.add_const(first, within as i64),
        }
    }

    /// Emits a product that is not fused with an accumulation.
    pub fn emit_direct_matmul(&mut self, tile: usize) {
        let registers = self.direct_accumulators(tile);
        let zero = self.float(0.0);
        let clear = self.fill_registers(registers.buffer, registers.at.registers_per_thread(), zero);
        self.emit(clear);
        self.emit_direct_gemm(tile, &registers);
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let place = self.reduce_split_k(registers, &shape);
        self.tiles.homes[tile].push(place);
    }

    /// Adds this iteration's product to an accumulation.
    pub fn accumulate_direct(&mut self, tile: usize) -> LoopAccumulator {
        let registers = self.direct_accumulators(tile);
        let zero = self.float(0.0);
        let start = self.fill_registers(registers.buffer, registers.at.registers_per_thread(), zero);
        self.code.before_loop.extend(start);
        self.emit_direct_gemm(tile, &registers);
        LoopAccumulator::Registers(registers)
    }

    /// Accumulators of all columns in every warp (split-K).
    fn direct_accumulators(&mut self, tile: usize) -> RegisterTile {
        let shape = &self.plan.steps.tiles[tile].shape;
        let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let lead = shape[..shape.len() - 2].to_vec();
        let rows = WarpGrid { lead, m, row_warps: 1, column_warps: self.plan.schedule.warps };
        let at = FragmentLayout { rows, columns: ColumnLayout::SplitKInterleaved(n) };
        let buffer = self.add_buffer("product", DType::F32, at.registers_per_thread(), Scope::Scratch);
        RegisterTile { at, buffer }
    }

    /// Multiplies the units of an iteration by mma, loading each unit's successor to its registers.
    fn emit_direct_gemm(&mut self, tile: usize, sums: &RegisterTile) {
        let (Some(direct), Some(kind)) = (self.plan.steps.direct_loads.get(&tile), self.mma_type()) else {
            return;
        };
        let (args, rank) = (self.plan.steps.tiles[tile].step.args(), self.plan.steps.tiles[tile].shape.len());
        let first = self.shared_operand(args[0], rank - 1);
        let tiles = sums.at.rows.row_tiles();
        let [a, x, b] = [("a_part", 8 * tiles), ("x_part", UNIT_LINES), ("b_part", 4)]
            .map(|(name, elems)| self.add_buffer(name, kind.dtype(), elems, Scope::Scratch));
        let stmts = self.loop_of("round", direct.rounds(), LoopKind::Serial, |this, round| {
            let mut body = Vec::new();
            let (next, is_needed) = this.next_round(direct, round);
            for buffered in 0..direct.buffered_steps {
                let step = this.program.exprs.linear_index(&[round], &[direct.buffered_steps]);
                let step = this.program.exprs.add_const(step, buffered as i64);
                body.extend(this.load_direct_a(&first, step, sums.at.rows.m, (a, x)));
                for group in 0..direct.column_units {
                    for column in 0..direct.vector {
                        body.extend(this.direct_b_fragment(tile, direct, (buffered, group), column, b));
                        for row in 0..tiles {
                            let [row_tile, column_tile] =
                                [row, group * direct.vector + column].map(|at| this.index(at));
                            let lead = this.index(0);
                            let slot = RegisterSlot {
                                at: sums.at.clone(),
                                lead,
                                row_tile,
                                column_tile,
                                row_half: 0,
                                column_half: 0,
                            };
                            let sum = Location {
                                buffer: sums.buffer,
                                offset: this.register_offset(&slot, &sums.at),
                            };
                            let (a, b) = (this.location(a, 8 * row), this.location(b, 0));
                            body.push(Stmt::Cta(CtaStmt::Mma { ty: kind, acc: sum, a, b }));
                        }
                    }
                    let (iteration, later) = next;
                    let later = this.program.exprs.linear_index(&[later], &[direct.buffered_steps]);
                    let later = this.program.exprs.add_const(later, buffered as i64);
                    body.extend(this.load_unit(
                        tile,
                        direct,
                        (iteration, later, is_needed),
                        (buffered, group),
                    ));
                }
            }
            body
        });
        self.emit(stmts);
    }

    /// The `(iteration, round)` after a round, and whether it exists (`None` if always).
    fn next_round(&mut self, direct: &DirectLoad, round: ExprId) -> ((ExprId, ExprId), Option<ExprId>) {
        let (rounds, unroll) = (self.index(direct.rounds()), self.plan.steps.unroll);
        let exprs = &mut self.program.exprs;
        let next = exprs.add_const(round, 1);
        let (more, next) = (exprs.floor_div(next, rounds), exprs.floor_rem(next, rounds));
        let more = exprs.mul_const(more, unroll as i64);
        let iteration = exprs.add2(self.iteration, more);
        let [iteration, next] =
            [iteration, next].map(|id| self.simplifier.simplify(&mut self.program.exprs, id));
        let is_needed = self.is_below(iteration, self.plan.steps.loop_range);
        ((iteration, next), is_needed)
    }

    /// A fragments of a K step from shared memory, k permuted as in units: `a[row_tile, k half, row half,
    /// 2]`. Rows beyond M are zero or copies of the last row.
    fn load_direct_a(
        &mut self,
        view: &SharedTile,
        step: ExprId,
        m: usize,
        (a, x): (BufferId, BufferId),
    ) -> Vec<Stmt> {
        let rank = view.strides.len();
        let (group, within) = (self.lane_field(4, 8, 1), self.lane_field(1, 4, UNIT_LINES));
        let term = self.first_k(step);
        let term = self.program.exprs.add2(term, within);
        let dtype = self.operand_dtype();
        let mut stmts = Vec::new();
        for half in 0..2 * m.div_ceil(FRAGMENT_ROWS) {
            let to = [0, 4].map(|later| self.location(a, 8 * (half / 2) + 2 * (half % 2) + later));
            if 8 * half >= m {
                let zero = self.program.exprs.zero(dtype);
                let value = self.program.exprs.splat(zero, 2);
                stmts.extend(to.map(|Location { buffer, offset }| Stmt::Store {
                    buffer,
                    offset,
                    value,
                    mask: None,
                }));
                continue;
            }
            let mut coords = vec![self.index(0); rank];
            let row = self.program.exprs.add_const(group, 8 * half as i64);
            coords[rank - 2] = self.clamped_below(row, m);
            coords[rank - 1] = term;
            let from = self.shared_offset(view, &coords);
            let is_line = view.strides[rank - 1] == 1 && view.strides[rank - 2].is_multiple_of(UNIT_LINES);
            if is_line {
                let value = self.program.exprs.load(view.buffer, from, UNIT_LINES, None);
                let Location { buffer, offset } = self.location(x, 0);
                stmts.push(Stmt::Store { buffer, offset, value, mask: None });
            }
            for (pair, Location { buffer, offset }) in to.into_iter().enumerate() {
                let exprs = &mut self.program.exprs;
                let value = match is_line {
                    true => {
                        let from = exprs.index(2 * pair as i64);
                        exprs.load(x, from, 2, None)
                    }
                    false => {
                        let stride = view.strides[rank - 1] as i64;
                        let [left, right] = [2 * pair as i64, 2 * pair as i64 + 1].map(|at| {
                            let from = exprs.add_const(from, at * stride);
                            exprs.load(view.buffer, from, 1, None)
                        });
                        exprs.interleave(left, right)
                    }
                };
                stmts.push(Stmt::Store { buffer, offset, value, mask: None });
            }
        }
        stmts
    }

    /// The B fragment of one interleaved column of a unit: element `column` of the lane's four vectors.
    fn direct_b_fragment(
        &mut self,
        tile: usize,
        direct: &DirectLoad,
        unit: (usize, usize),
        column: usize,
        b: BufferId,
    ) -> Vec<Stmt> {
        let mut stmts = Vec::new();
        for pair in 0..2 {
            let [left, right] = [2 * pair, 2 * pair + 1].map(|line| {
                let Location { buffer, offset } = self.unit_location(tile, direct, unit, (line, column));
                self.program.exprs.load(buffer, offset, 1, None)
            });
            let value = self.program.exprs.interleave(left, right);
            let Location { buffer, offset } = self.location(b, 2 * pair);
            stmts.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        stmts
    }

    /// Adds the partial sums of all warps through shared memory `[warp, 16 rows, n]`: to registers if there
    /// is one row of fragments, else row by row to shared memory.
    pub fn reduce_direct_split_k(&mut self, registers: &RegisterTile, shape: &[usize]) -> TileHome {
        let (m, n) = (registers.at.rows.m, registers.at.n());
        let parts = self.alloc_shared(
            "summands",
            DType::F32,
            &[self.plan.schedule.warps, m.min(FRAGMENT_ROWS), n],
            2,
        );
        let rows = registers.at.rows.clone();
        if rows.row_tiles() > 1 {
            let view = self.alloc_shared("sum", DType::F32, shape, shape.len() - 1);
            for row_tile in 0..rows.row_tiles() {
                let stmts = self.share_partial_sums(registers, row_tile, &parts);
                self.emit(stmts);
                let height = FRAGMENT_ROWS.min(m - row_tile * FRAGMENT_ROWS);
                let stmts = self.for_each_element(&[height, n], |this, coords| {
                    let value = this.sum_over_warps(&parts, (coords[0], coords[1]));
                    let mut to = vec![this.index(0); shape.len()];
                    to[shape.len() - 2] =
                        this.program.exprs.add_const(coords[0], (row_tile * FRAGMENT_ROWS) as i64);
                    to[shape.len() - 1] = coords[1];
                    let offset = this.shared_offset(&view, &to);
                    vec![ElementStore { buffer: view.buffer, offset, value, mask: None }]
                });
                self.emit(stmts);
            }
            return TileHome::Shared(view);
        }
        let stmts = self.share_partial_sums(registers, 0, &parts);
        self.emit(stmts);
        let at = FragmentLayout { rows, columns: ColumnLayout::Partitioned(n) };
        let buffer = self.add_buffer("sum", DType::F32, at.registers_per_thread(), Scope::Scratch);
        let stmts = self.for_each_slot(&at, |this, slot| {
            let [row, column] = this.element_coords(&slot);
            let place = (this.clamped_below(row, m), this.clamped_below(column, n));
            let value = this.sum_over_warps(&parts, place);
            let offset = this.register_offset(&slot, &at);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.emit(stmts);
        TileHome::Registers(RegisterTile { at, buffer })
    }

    /// The sum over all warps of one element of `parts`, `[warp, row, column]`.
    fn sum_over_warps(&mut self, parts: &SharedTile, (row, column): (ExprId, ExprId)) -> ExprId {
        let mut total = None;
        for warp in 0..self.plan.schedule.warps {
            let warp = self.index(warp);
            let offset = self.shared_offset(parts, &[warp, row, column]);
            let part = self.program.exprs.load(parts.buffer, offset, 1, None);
            total = Some(total.map_or(part, |total| self.program.exprs.add2(total, part)));
        }
        total.unwrap_or_else(|| self.float(0.0))
    }

    /// Stores a thread's partial sums of one row of fragments to `parts`, four interleaved (adjacent) columns
    /// at once.
    fn share_partial_sums(
        &mut self,
        registers: &RegisterTile,
        row_tile: usize,
        parts: &SharedTile,
    ) -> Vec<Stmt> {
        let RegisterTile { at, buffer } = registers;
        let (row_tile, lead) = (self.index(row_tile), self.index(0));
        let mut stmts = Vec::new();
        for first in (0..at.column_tiles()).step_by(STORE_VECTOR) {
            for place in 0..4 {
                let (row_half, column_half) = (place / 2, place % 2);
                let slot = |this: &mut Self, tile: usize| {
                    let column_tile = this.index(tile);
                    RegisterSlot { at: at.clone(), lead, row_tile, column_tile, row_half, column_half }
                };
                let from = slot(self, first);
                let [row, column] = self.element_coords(&from);
                let exists = self.is_below(row, at.rows.m);
                let group = self.lane_field(4, 8, 1);
                let row = self.program.exprs.add_const(group, 8 * row_half as i64);
                let row = self.clamped_below(row, parts.padded[1]);
                let offset = self.shared_offset(parts, &[self.ids.warp, row, column]);
                let [a, b, c, d] = [0, 1, 2, 3].map(|later| {
                    let slot = slot(self, first + later);
                    let offset = self.register_offset(&slot, at);
                    self.program.exprs.load(*buffer, offset, 1, None)
                });
                let exprs = &mut self.program.exprs;
                let (even, odd) = (exprs.interleave(a, c), exprs.interleave(b, d));
                let value = exprs.interleave(even, odd);
                let mask = exists.map(|exists| exprs.splat(exists, STORE_VECTOR));
                if exists.and_then(|exists| exprs.as_bool(exists)) == Some(false) {
                    continue;
                }
                stmts.push(Stmt::Store { buffer: parts.buffer, offset, value, mask });
            }
        }
        stmts
    }
}
