//! Products with weights in registers, by multiply-adds or by `mma.sync`. Each warp has a part of the K dimension, of all columns of
//! its CTA: column `gate * units + unit`.

use super::emitter::{Emitter, HiddenSource, RegisterBuffers};
use super::schedule::{Engine, FRAGMENTS_IN_FLIGHT, MMA_BLOCK_K, MMA_COLUMNS, MMA_SEQUENCES};
use orch_compute::expr::{BufferId, ExprId, Type};
use orch_compute::recurrence::RecurrenceProgram;
use orch_ir::DType;
use orch_thread::cta::{CtaStmt, Location, MmaType, WARP};
use orch_thread::program::Stmt;

/// Where a thread is in its CTA.
struct Lane {
    /// The part of K: the number of the warp.
    part: ExprId,
    lane: ExprId,
}

impl Emitter<'_> {
    /// Blocks of 32 indices of K in a warp's part.
    fn blocks(&self) -> usize {
        self.schedule.part_k(self.recurrence) / MMA_BLOCK_K
    }

    fn lane(&mut self, body: &mut Vec<Stmt>) -> Lane {
        let exprs = &mut self.program.exprs;
        let warp = exprs.index(WARP as i64);
        let [part, lane] = [exprs.floor_div(self.thread, warp), exprs.floor_rem(self.thread, warp)];
        let part = self.bind(body, "part", part, self.schedule.parts);
        Lane { part, lane: self.bind(body, "lane", lane, WARP) }
    }

    /// Loads the weights of a thread.
    pub(super) fn load_weights(&mut self) -> Vec<Stmt> {
        let Some(registers) = &self.registers else { return Vec::new() };
        let weights = registers.weights;
        match self.schedule.engine {
            Engine::Mma(_) => self.load_fragments(weights),
            Engine::SharedWeights | Engine::RegisterWeights => self.load_lane_weights(weights),
        }
    }

    /// Of each block of 32 along K the weights of the lane's index, unit by unit.
    fn load_lane_weights(&mut self, weights: BufferId) -> Vec<Stmt> {
        let units = self.schedule.units;
        let gates = self.recurrence.spec.cell.gates();
        let vector = [4, 2, 1].into_iter().find(|&lanes| units.is_multiple_of(lanes)).unwrap_or(1);
        let mut out = Vec::new();
        let lane = self.lane(&mut out);
        for block in 0..self.blocks() {
            let k = self.lane_k(&lane, block);
            for column in (0..gates * units).step_by(vector) {
                let exprs = &mut self.program.exprs;
                let [gate, own] = [column / units, column % units].map(|value| exprs.index(value as i64));
                let unit = self.unit(own);
                let from = self.weight_offset(k, gate, unit);
                let value = self.program.exprs.load(self.buffer(RecurrenceProgram::R), from, vector, None);
                let to = self.program.exprs.index((block * gates * units + column) as i64);
                out.push(Stmt::Store { buffer: weights, offset: to, value, mask: None });
            }
        }
        out
    }

    /// The lane's index along K in a block of its part.
    fn lane_k(&mut self, lane: &Lane, block: usize) -> ExprId {
        let blocks = self.blocks();
        let exprs = &mut self.program.exprs;
        let first = exprs.linear_index(&[lane.part, lane.lane], &[blocks * MMA_BLOCK_K, 1]);
        exprs.add_const(first, (block * MMA_BLOCK_K) as i64)
    }

    /// The first of the 8 indices along K that a thread has of a block, for both instructions of it: thread `c` of a row those from
    /// `8 c` on, the first four for the first instruction. The order of indices along K is the same in A and B.
    fn fragment_k(&mut self, lane: &Lane, block: usize) -> ExprId {
        let blocks = self.blocks();
        let exprs = &mut self.program.exprs;
        let four = exprs.index(4);
        let in_row = exprs.floor_rem(lane.lane, four);
        let first = exprs.linear_index(&[lane.part, in_row], &[blocks * MMA_BLOCK_K, 8]);
        exprs.add_const(first, (block * MMA_BLOCK_K) as i64)
    }

    /// Fragments of A: columns are its rows, `g` and `g + 8` of each tile.
    fn load_fragments(&mut self, weights: BufferId) -> Vec<Stmt> {
        let (units, blocks) = (self.schedule.units, self.blocks());
        let columns = self.schedule.columns(self.recurrence);
        let line = self.recurrence.spec.cell.gates() * self.recurrence.extents.hidden;
        let mut out = Vec::new();
        let lane = self.lane(&mut out);
        let exprs = &mut self.program.exprs;
        let four = exprs.index(4);
        let group = exprs.floor_div(lane.lane, four);
        for half_tile in 0..columns.div_ceil(MMA_COLUMNS) * 2 {
            let (tile, half) = (half_tile / 2, half_tile % 2);
            let first = half_tile * MMA_COLUMNS / 2;
            if first >= columns {
                // Rows of A past the last column are zeros.
                for fragment in 0..blocks * 2 {
                    for pair in 0..2 {
                        let ty = self.program.buffer(weights).dtype;
                        let zero = self.program.exprs.zero(ty);
                        let value = self.program.exprs.splat(zero, 2);
                        out.push(self.store_pair(weights, (tile, fragment), pair, half, value));
                    }
                }
                continue;
            }
            let column = self.program.exprs.add_const(group, first as i64);
            let extent = (first + MMA_COLUMNS / 2).min(columns);
            let column = self.bind(&mut out, "column", column, extent.next_multiple_of(8));
            let exprs = &mut self.program.exprs;
            let per_gate = exprs.index(units as i64);
            let [gate, own] = [exprs.floor_div(column, per_gate), exprs.floor_rem(column, per_gate)];
            let unit = self.unit(own);
            let exists = (extent < first + MMA_COLUMNS / 2).then(|| {
                let all = self.program.exprs.index(columns as i64);
                self.program.exprs.lt(column, all)
            });
            for fragment in 0..blocks * 2 {
                let k = self.fragment_k(&lane, fragment / 2);
                for pair in 0..2 {
                    let k = self.program.exprs.add_const(k, (4 * (fragment % 2) + 2 * pair) as i64);
                    let from = self.weight_offset(k, gate, unit);
                    let exprs = &mut self.program.exprs;
                    let from = exprs.ramp(from, line as i64, 2);
                    let mask = exists.map(|exists| exprs.splat(exists, 2));
                    let value = self.program.exprs.load(self.buffer(RecurrenceProgram::R), from, 2, mask);
                    out.push(self.store_pair(weights, (tile, fragment), pair, half, value));
                }
            }
        }
        out
    }

    /// Stores two neighbours along K of a row of A: `a` is rows `g, g, g + 8, g + 8` of the first pair, then of the second.
    fn store_pair(
        &mut self,
        weights: BufferId,
        (tile, fragment): (usize, usize),
        pair: usize,
        half: usize,
        value: ExprId,
    ) -> Stmt {
        let fragments = self.blocks() * 2;
        let offset = (tile * fragments + fragment) * 8 + 4 * pair + 2 * half;
        let offset = self.program.exprs.index(offset as i64);
        Stmt::Store { buffer: weights, offset, value, mask: None }
    }

    /// A warp's part of the product, which goes to shared memory.
    pub(super) fn register_product(&mut self, hidden: HiddenSource) -> Vec<Stmt> {
        match self.schedule.engine {
            Engine::Mma(ty) => self.mma_product(ty, hidden),
            Engine::SharedWeights | Engine::RegisterWeights => self.lane_product(hidden),
        }
    }

    /// Hidden states of a sequence, from index `k` of it on, into a variable; those of the last sequence past it.
    fn hidden_states(
        &mut self,
        out: &mut Vec<Stmt>,
        hidden: HiddenSource,
        row: ExprId,
        k: ExprId,
        lanes: usize,
    ) -> ExprId {
        let extents = self.recurrence.extents;
        let exprs = &mut self.program.exprs;
        let sequence = exprs.add2(self.first_row, row);
        let last = exprs.index(extents.batch as i64 - 1);
        let sequence = match extents.batch.is_multiple_of(self.schedule.rows) {
            true => sequence,
            false => {
                let is_past = exprs.lt(last, sequence);
                exprs.select(is_past, last, sequence)
            }
        };
        match hidden {
            HiddenSource::Exchanged(before) => self.exchanged_states(out, before, sequence, k, lanes),
            HiddenSource::Initial(arg) => {
                let offset = self.state_offset(sequence, k);
                let value = self.program.exprs.load(self.buffer(arg), offset, lanes, None);
                self.let_value(out, "hidden", value)
            }
            HiddenSource::Shared | HiddenSource::Zeros => unreachable!("states are not read from there"),
        }
    }

    fn mma_product(&mut self, ty: MmaType, hidden: HiddenSource) -> Vec<Stmt> {
        let Some(RegisterBuffers { weights, accumulators: Some(accs), states: Some(states) }) =
            self.registers
        else {
            return Vec::new();
        };
        let blocks = self.blocks();
        let tiles = self.schedule.columns(self.recurrence).div_ceil(MMA_COLUMNS);
        let row_tiles = self.schedule.rows / MMA_SEQUENCES;
        let mut out = Vec::new();
        let lane = self.lane(&mut out);
        let exprs = &mut self.program.exprs;
        let four = exprs.index(4);
        let [group, in_row] = [exprs.floor_div(lane.lane, four), exprs.floor_rem(lane.lane, four)];
        let zero = exprs.zero(DType::F32);
        for element in 0..tiles * row_tiles * 4 {
            let offset = self.program.exprs.index(element as i64);
            out.push(Stmt::Store { buffer: accs, offset, value: zero, mask: None });
        }
        let at_once = (FRAGMENTS_IN_FLIGHT / row_tiles).max(1);
        for first in (0..blocks).step_by(at_once) {
            let chunk = first..blocks.min(first + at_once);
            for (slot, block) in chunk.clone().enumerate() {
                let k = self.fragment_k(&lane, block);
                for row_tile in 0..row_tiles {
                    let row = self.program.exprs.add_const(group, (row_tile * MMA_SEQUENCES) as i64);
                    let value = self.hidden_states(&mut out, hidden, row, k, 8);
                    let exprs = &mut self.program.exprs;
                    let value = exprs.cast(ty.dtype(), value);
                    let offset = exprs.index(((slot * row_tiles + row_tile) * 8) as i64);
                    out.push(Stmt::Store { buffer: states, offset, value, mask: None });
                }
            }
            for (slot, block) in chunk.enumerate() {
                for half in 0..2 {
                    for tile in 0..tiles {
                        for row_tile in 0..row_tiles {
                            let exprs = &mut self.program.exprs;
                            let mut location = |buffer, offset: usize| Location {
                                buffer,
                                offset: exprs.index(offset as i64),
                            };
                            let acc = location(accs, (tile * row_tiles + row_tile) * 4);
                            let a = location(weights, ((tile * blocks + block) * 2 + half) * 8);
                            let b = location(states, (slot * row_tiles + row_tile) * 8 + 4 * half);
                            out.push(Stmt::Cta(CtaStmt::Mma { ty, acc, a, b }));
                        }
                    }
                }
            }
        }
        // [part, sequence, column]: an accumulator has columns g and g + 8, sequences 2 c and 2 c + 1.
        let line = self.schedule.accumulators_of_row(self.recurrence);
        let first = {
            let strides = [self.schedule.rows * line, 2 * line, 1];
            let first = self.program.exprs.linear_index(&[lane.part, in_row, group], &strides);
            let extent = self.schedule.parts * self.schedule.rows * line;
            self.bind(&mut out, "first_accumulator", first, extent)
        };
        for tile in 0..tiles {
            for row_tile in 0..row_tiles {
                for element in 0..4 {
                    let exprs = &mut self.program.exprs;
                    let from = exprs.index(((tile * row_tiles + row_tile) * 4 + element) as i64);
                    let value = exprs.load(accs, from, 1, None);
                    let sequence = row_tile * MMA_SEQUENCES + element % 2;
                    let column = tile * MMA_COLUMNS + element / 2 * 8;
                    let offset = exprs.add_const(first, (sequence * line + column) as i64);
                    let buffer = self.shared.accumulators;
                    out.push(Stmt::Store { buffer, offset, value, mask: None });
                }
            }
        }
        out
    }

    /// The lanes of a warp accumulate products of their own indices along K, and add them up among each other: every exchange halves
    /// the columns of a lane while their number is even.
    fn lane_product(&mut self, hidden: HiddenSource) -> Vec<Stmt> {
        let Some(RegisterBuffers { weights, .. }) = self.registers else { return Vec::new() };
        let (blocks, rows) = (self.blocks(), self.schedule.rows);
        let columns = self.schedule.columns(self.recurrence);
        let mut out = Vec::new();
        let lane = self.lane(&mut out);
        let mut states = Vec::with_capacity(rows * blocks);
        for row in 0..rows {
            let row = self.program.exprs.index(row as i64);
            for block in 0..blocks {
                let k = self.lane_k(&lane, block);
                let value = self.hidden_states(&mut out, hidden, row, k, 1);
                states.push(self.program.exprs.cast(DType::F32, value));
            }
        }
        for (row, states) in states.chunks(blocks).enumerate() {
            let mut accs = Vec::with_capacity(columns);
            for column in 0..columns {
                let exprs = &mut self.program.exprs;
                let mut acc = exprs.zero(DType::F32);
                for (block, &state) in states.iter().enumerate() {
                    let at = exprs.index((block * columns + column) as i64);
                    let weight = exprs.load(weights, at, 1, None);
                    acc = if block == 0 { exprs.mul(state, weight) } else { exprs.fma(state, weight, acc) };
                }
                accs.push(self.let_value(&mut out, "acc", acc));
            }
            let LaneAccumulators { accs, first, duplicates } =
                self.reduced_in_warp(&mut out, accs, lane.lane);
            let first = self.bind(&mut out, "first_column", first, columns);
            let line = self.schedule.accumulators_of_row(self.recurrence);
            let exprs = &mut self.program.exprs;
            let at = exprs.linear_index(&[lane.part, first], &[rows * line, 1]);
            let mut then = Vec::with_capacity(accs.len());
            for (number, &value) in accs.iter().enumerate() {
                let offset = self.program.exprs.add_const(at, (row * line + number) as i64);
                let buffer = self.shared.accumulators;
                then.push(Stmt::Store { buffer, offset, value, mask: None });
            }
            let exprs = &mut self.program.exprs;
            let (of, zero) = (exprs.index(duplicates as i64), exprs.index(0));
            let within = exprs.floor_rem(lane.lane, of);
            let condition = exprs.eq(within, zero);
            match duplicates {
                1 => out.extend(then),
                _ => out.push(Stmt::If { condition, then, otherwise: Vec::new() }),
            }
        }
        out
    }

    /// The accumulators of all lanes of a warp, added up.
    fn reduced_in_warp(
        &mut self,
        out: &mut Vec<Stmt>,
        mut accs: Vec<ExprId>,
        lane: ExprId,
    ) -> LaneAccumulators {
        let mut first = self.program.exprs.index(0);
        let mut duplicates = 1;
        for with in [16, 8, 4, 2, 1] {
            let exprs = &mut self.program.exprs;
            let (of, zero, two) = (exprs.index(with), exprs.index(0), exprs.index(2));
            let number = exprs.floor_div(lane, of);
            let bit = exprs.floor_rem(number, two);
            let is_upper = exprs.ne(bit, zero);
            if accs.len().is_multiple_of(2) {
                let half = accs.len() / 2;
                let skipped = self.program.exprs.mul_const(bit, half as i64);
                first = self.program.exprs.add2(first, skipped);
                let is_upper = self.let_value(out, "is_upper", is_upper);
                let (low, high) = (accs[..half].to_vec(), accs[half..].to_vec());
                accs = (low.into_iter().zip(high))
                    .map(|(low, high)| {
                        let exprs = &mut self.program.exprs;
                        let (kept, sent) =
                            (exprs.select(is_upper, high, low), exprs.select(is_upper, low, high));
                        self.added_from(out, kept, sent, with as usize)
                    })
                    .collect();
            } else {
                duplicates *= 2;
                accs = accs.into_iter().map(|acc| self.added_from(out, acc, acc, with as usize)).collect();
            }
        }
        LaneAccumulators { accs, first, duplicates }
    }

    /// A lane's own value and what another lane sends.
    fn added_from(&mut self, out: &mut Vec<Stmt>, kept: ExprId, sent: ExprId, with: usize) -> ExprId {
        let var = self.program.exprs.declare_register("other", Type::scalar(DType::F32));
        out.push(Stmt::Cta(CtaStmt::Shuffle { var, value: sent, with }));
        let exprs = &mut self.program.exprs;
        let other = exprs.var(var);
        let both = exprs.add2(kept, other);
        self.let_value(out, "acc", both)
    }
}

/// What the lanes of a warp have accumulated together, of columns that differ by lane.
struct LaneAccumulators {
    /// Of consecutive columns.
    accs: Vec<ExprId>,
    /// The first of these columns.
    first: ExprId,
    /// Consecutive lanes that have the same.
    duplicates: usize,
}
