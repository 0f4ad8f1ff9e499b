//! Second factors that threads load straight from global memory to registers, ahead of their use.
//!
//! Where few rows are multiplied by a large factor, reading the factor is all that takes time, and a block needs each of its
//! elements once: shared memory and the barriers around it only delay it. Warps share the terms instead, 16 at a time, so
//! that each has summands of all columns, and each loads its own lines.
//!
//! A unit is 16 terms of 64 columns (of 32, where there are no more). With `g = t / 4` and `c = t % 4`, thread `t` of a
//! warp loads columns `8g..8g + 8` (`4g..4g + 4`) of lines `4c..4c + 4`, so that eight threads read neighbouring memory.
//! Tile `j` of a unit's columns takes element `j` of each vector: its column `g` is column `8g + j` of the unit, and the
//! terms `2c, 2c + 1, 2c + 8, 2c + 9` that matrix instructions ask thread `t` for are terms `4c..4c + 4`. The first factor
//! has its terms in the same order, and the sums their columns ([`Columns::Streamed`]).
//!
//! As soon as a unit has been multiplied, the one that is some units later is loaded to its registers, of a later iteration
//! if need be. Where iterations are short, registers hold the units of several, which are written out ([`Steps::turns`]).

use super::accumulate::Accumulator;
use super::elements::Write;
use super::layout::{
    Columns, Fragments, Registers, Rows, Site, TILE_COLUMNS, TILE_ROWS, streamed_neighbours,
};
use super::lowering::Lowering;
use super::steps::{Step, Steps, Tile};
use super::value::{Place, View};
use super::{BYTES_UNDER_WAY, MANY_WARPS};
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

/// Terms of a unit.
const UNIT_TERMS: usize = 16;
/// Lines of a unit that a thread loads from.
const LINES: usize = 4;
/// Most rows.
const MOST_ROWS: usize = 64;
/// Most registers of a thread for the sums of all streamed products.
const MOST_SUMS: usize = 128;
/// Most registers of a thread for the units that it has loaded, and for these and the sums.
const MOST_LOADED: usize = 96;
const MOST_IN_ALL: usize = 192;
/// Most iterations that are written out.
const MOST_TURNS: usize = 8;
/// Columns whose sums are stored at once.
const STORED_AT_ONCE: usize = 4;

/// How a factor is streamed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stream {
    /// Parts of the terms, and of the columns, that are a warp's units in an iteration.
    steps: usize,
    groups: usize,
    /// Columns that a thread loads at once.
    neighbours: usize,
    /// Steps of an iteration whose units are in registers or on the way.
    ahead: usize,
}

impl Stream {
    /// Elements of a unit that a thread has.
    fn unit_elems(&self) -> usize {
        LINES * self.neighbours
    }

    /// Registers of the units of an iteration that are on the way.
    fn registers(&self) -> usize {
        self.ahead * self.groups * self.unit_elems() / 2
    }

    /// Times that all registers are filled in an iteration.
    fn rounds(&self) -> usize {
        self.steps / self.ahead
    }
}

/// The products whose second factors are streamed, and the iterations whose units registers hold.
pub(super) fn streams(
    request: &Request<'_>,
    steps: &Steps,
    factors: OperandPrecision,
) -> (BTreeMap<usize, Stream>, usize) {
    let none = (BTreeMap::new(), 1);
    let dtype = match factors {
        OperandPrecision::F32 | OperandPrecision::Tf32 => return none,
        OperandPrecision::F16 => DType::F16,
        OperandPrecision::Bf16 => DType::BF16,
    };
    let suits = |&tile: &usize| suits(request, steps, tile, dtype);
    let products: Vec<usize> = (0..steps.tiles.len()).filter(suits).collect();
    let sums: usize = products.iter().map(|&tile| registers(&steps.tiles[tile].shape)).sum();
    if sums > MOST_SUMS || products.is_empty() {
        return none;
    }
    let registers = MOST_LOADED.min(MOST_IN_ALL - sums);
    let each = registers / products.len();
    let streams = products.into_iter().filter_map(|tile| Some((tile, stream(steps, tile, each)?)));
    let streams: BTreeMap<usize, Stream> = streams.collect();
    let turns = turns(&streams, steps.loop_range, registers);
    (streams, turns)
}

/// How many iterations registers hold: as few as are enough, or as many as fit.
fn turns(streams: &BTreeMap<usize, Stream>, loop_range: usize, registers: usize) -> usize {
    let all: usize = streams.values().map(Stream::registers).sum();
    if all == 0 || streams.values().any(|stream| stream.rounds() > 1) {
        return 1;
    }
    let bytes = all * size_of::<u32>() * WARP * MANY_WARPS;
    let fits = |turns: &usize| loop_range.is_multiple_of(*turns) && turns * all <= registers;
    let fitting: Vec<usize> = (1..=MOST_TURNS).filter(fits).collect();
    let enough = fitting.iter().find(|&turns| turns * bytes >= BYTES_UNDER_WAY);
    enough.or(fitting.last()).copied().unwrap_or(1)
}

/// Registers of the sums of a product.
fn registers(shape: &[usize]) -> usize {
    let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    4 * m.div_ceil(TILE_ROWS) * n / TILE_COLUMNS
}

/// How the second factor of a product is streamed, if `registers` suffice.
fn stream(steps: &Steps, tile: usize, registers: usize) -> Option<Stream> {
    let shape = factor(steps, tile)?.shape.as_slice();
    let (terms, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let neighbours = streamed_neighbours(n);
    let groups = n / (TILE_COLUMNS * neighbours);
    let all = terms / (UNIT_TERMS * MANY_WARPS);
    let fits =
        |ahead: &usize| all.is_multiple_of(*ahead) && ahead * groups * LINES * neighbours / 2 <= registers;
    let ahead = (1..=all).rev().find(fits)?;
    Some(Stream { steps: all, groups, neighbours, ahead })
}

/// The second factor of a product.
fn factor(steps: &Steps, tile: usize) -> Option<&Tile> {
    match &steps.tiles[tile].step {
        Step::Op { op: Op::Matmul, args } => Some(&steps.tiles[args[1]]),
        _ => None,
    }
}

/// Whether a product has few rows and a second factor that only it reads, once, in whole vectors.
fn suits(request: &Request<'_>, steps: &Steps, tile: usize, dtype: DType) -> bool {
    let product = &steps.tiles[tile];
    let (Step::Op { op: Op::Matmul, args }, Some(factor)) = (&product.step, factor(steps, tile)) else {
        return false;
    };
    let Step::Load { tensor, .. } = &factor.step else { return false };
    let (shape, last) = (&factor.shape, factor.shape.len() - 1);
    let (terms, n) = (shape[last - 1], shape[last]);
    let is_final = match product.stage {
        Stage::Loop => steps.only_reader(tile).is_some_and(|reader| match &steps.tiles[reader].step {
            Step::Accumulate { how, tile: from } => *how == Accumulation::Sum && *from == tile,
            Step::Load { .. } | Step::Op { .. } | Step::RunningMax { .. } => false,
        }),
        Stage::Invariant | Stage::After => steps.loop_range == 1,
    };
    let is_plain = crate::op::elems(&product.shape[..last - 1]) == 1
        && crate::op::elems(&shape[..last - 1]) == 1
        && product.shape[last - 1] <= MOST_ROWS
        && n.is_multiple_of(4 * TILE_COLUMNS)
        && terms.is_multiple_of(UNIT_TERMS * MANY_WARPS);
    let is_read_once = product.readers > 0
        && factor.readers == 1
        && factor.stage == product.stage
        && request.graph.computed_mask(*tensor).is_none();
    if !(is_final && is_plain && is_read_once) || has_product(steps, args[0]) {
        return false;
    }
    let (stored, full) = (&request.stored[tensor.index()], request.graph.shape(*tensor));
    let neighbours = streamed_neighbours(n);
    let is_whole = |at: usize| at.is_multiple_of(neighbours);
    stored.dtype == dtype
        && stored.strides[last] == 1
        && is_whole(stored.offset)
        && (0..last).all(|dim| !factor.ragged[dim] && (full[dim] == 1 || is_whole(stored.strides[dim])))
        && (!factor.ragged[last] || is_whole(full[last]))
}

/// Whether a tile is made of a product, as weights of attention are, which stay in registers as a first factor.
fn has_product(steps: &Steps, tile: usize) -> bool {
    let step = &steps.tiles[tile].step;
    matches!(step, Step::Op { op: Op::Matmul, .. })
        || step.args().into_iter().any(|arg| has_product(steps, arg))
}

impl Lowering<'_> {
    /// Whether the second factor of a product is streamed.
    pub fn is_streamed(&self, tile: usize) -> bool {
        self.steps.streams.contains_key(&tile)
    }

    /// Whether a load is the streamed factor of a product.
    pub fn is_stream(&self, load: usize) -> bool {
        self.steps.streams.keys().any(|&product| self.steps.tiles[product].step.args()[1] == load)
    }

    /// Loads the first units of all streams.
    pub fn start_streams(&mut self) {
        for (&tile, stream) in &self.steps.streams {
            let turns = self.steps.turns;
            let elems = turns * stream.ahead * stream.groups * stream.unit_elems();
            let buffer = self.add_buffer("stream", self.factor_type(), elems, Scope::Scratch);
            self.streamed.insert(tile, buffer);
            for (turn, step) in (0..turns).flat_map(|turn| (0..stream.ahead).map(move |step| (turn, step))) {
                let [turn, number] = [turn, step].map(|at| self.index(at));
                self.turn = turn;
                for group in 0..stream.groups {
                    let stmts = self.load_unit(tile, stream, (turn, number, None), (step, group));
                    self.run(stmts);
                }
            }
            self.turn = self.index(0);
        }
    }

    /// Loads a unit of a step of an iteration to registers, if it is needed.
    fn load_unit(
        &mut self,
        tile: usize,
        stream: &Stream,
        (iteration, step, is_needed): (ExprId, ExprId, Option<ExprId>),
        (slot, group): (usize, usize),
    ) -> Vec<Stmt> {
        let load = self.steps.tiles[tile].step.args()[1];
        let Some(tensor) = self.tensor_in_memory(load) else { return Vec::new() };
        let Some(from) = self.arguments[tensor.index()] else { return Vec::new() };
        let rank = self.steps.tiles[load].shape.len();
        let (first_line, own) = (self.of_lane(1, 4, LINES), self.of_lane(4, 8, stream.neighbours));
        let column = self.program.exprs.add_const(own, (group * TILE_COLUMNS * stream.neighbours) as i64);
        let first_term = self.first_term(step);
        let first_term = self.program.exprs.add2(first_term, first_line);
        let mut stmts = Vec::new();
        for line in 0..LINES {
            let mut coords = vec![self.index(0); rank];
            coords[rank - 2] = self.program.exprs.add_const(first_term, line as i64);
            coords[rank - 1] = column;
            let (position, exists) = self.position(load, &coords, iteration);
            let offset = self.tensor_offset(tensor, &position);
            // A mask, not a branch around the loads: their results would be copied, and waited for, where branches meet.
            let mask = self.program.exprs.and_guard(is_needed, exists);
            let value = self.program.exprs.load(from, offset, stream.neighbours, mask);
            let Location { buffer, offset } = self.loaded(tile, stream, (slot, group), (line, 0));
            stmts.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        stmts
    }

    /// The first term of a step of the warp.
    fn first_term(&mut self, step: ExprId) -> ExprId {
        let warps = self.plan.warps;
        let number = self.program.exprs.linear_index(&[step, self.warp], &[warps, 1]);
        self.program.exprs.mul_const(number, UNIT_TERMS as i64)
    }

    /// The register of an element of a unit, of this turn.
    fn loaded(
        &mut self,
        tile: usize,
        stream: &Stream,
        (slot, group): (usize, usize),
        (line, column): (usize, usize),
    ) -> Location {
        let per_turn = stream.ahead * stream.groups * stream.unit_elems();
        let first = self.program.exprs.mul_const(self.turn, per_turn as i64);
        let within = (slot * stream.groups + group) * stream.unit_elems() + line * stream.neighbours + column;
        Location { buffer: self.streamed[&tile], offset: self.program.exprs.add_const(first, within as i64) }
    }

    /// Multiplies two tiles, the second one streamed.
    pub fn multiply_streamed(&mut self, tile: usize) {
        let registers = self.streamed_sums(tile);
        let zero = self.float(0.0);
        let clear = self.filled(registers.buffer, registers.at.registers(), zero);
        self.run(clear);
        self.add_streamed(tile, &registers);
        let shape = self.steps.tiles[tile].shape.clone();
        let place = self.joined_sums(registers, &shape);
        self.places[tile].push(place);
    }

    /// Adds this iteration's product to an accumulator.
    pub fn accumulate_streamed(&mut self, tile: usize) -> Accumulator {
        let registers = self.streamed_sums(tile);
        let zero = self.float(0.0);
        let start = self.filled(registers.buffer, registers.at.registers(), zero);
        self.before_loop.extend(start);
        self.add_streamed(tile, &registers);
        Accumulator::Registers(registers)
    }

    fn streamed_sums(&mut self, tile: usize) -> Registers {
        let shape = &self.steps.tiles[tile].shape;
        let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
        let lead = shape[..shape.len() - 2].to_vec();
        let rows = Rows { lead, m, row_warps: 1, column_warps: self.plan.warps };
        let at = Fragments { rows, columns: Columns::Streamed(n) };
        let buffer = self.add_buffer("product", DType::F32, at.registers(), Scope::Scratch);
        Registers { at, buffer }
    }

    /// Multiplies the units of an iteration, and loads later ones.
    fn add_streamed(&mut self, tile: usize, sums: &Registers) {
        let (Some(stream), Some(kind)) = (self.steps.streams.get(&tile), self.product_kind()) else { return };
        let (args, rank) = (self.steps.tiles[tile].step.args(), self.steps.tiles[tile].shape.len());
        let first = self.factor(args[0], rank - 1);
        let tiles = sums.at.rows.row_tiles();
        let [a, x, b] = [("a_part", 8 * tiles), ("x_part", LINES), ("b_part", 4)]
            .map(|(name, elems)| self.add_buffer(name, kind.dtype(), elems, Scope::Scratch));
        let stmts = self.repeated("round", stream.rounds(), LoopKind::Serial, |this, round| {
            let mut body = Vec::new();
            let (next, is_needed) = this.next_round(stream, round);
            for slot in 0..stream.ahead {
                let step = this.program.exprs.linear_index(&[round], &[stream.ahead]);
                let step = this.program.exprs.add_const(step, slot as i64);
                body.extend(this.load_rows(&first, step, sums.at.rows.m, (a, x)));
                for group in 0..stream.groups {
                    for column in 0..stream.neighbours {
                        body.extend(this.columns_of(tile, stream, (slot, group), column, b));
                        for row in 0..tiles {
                            let [row_tile, column_tile] =
                                [row, group * stream.neighbours + column].map(|at| this.index(at));
                            let lead = this.index(0);
                            let site =
                                Site { at: sums.at.clone(), lead, row_tile, column_tile, half: 0, side: 0 };
                            let sum =
                                Location { buffer: sums.buffer, offset: this.register(&site, &sums.at) };
                            let (a, b) = (this.place(a, 8 * row), this.place(b, 0));
                            body.push(Stmt::Cta(CtaStmt::Mma { ty: kind, acc: sum, a, b }));
                        }
                    }
                    let (iteration, later) = next;
                    let later = this.program.exprs.linear_index(&[later], &[stream.ahead]);
                    let later = this.program.exprs.add_const(later, slot as i64);
                    body.extend(this.load_unit(tile, stream, (iteration, later, is_needed), (slot, group)));
                }
            }
            body
        });
        self.run(stmts);
    }

    /// The iteration and round after a round, and whether there is one, unless there always is.
    fn next_round(&mut self, stream: &Stream, round: ExprId) -> ((ExprId, ExprId), Option<ExprId>) {
        let (rounds, turns) = (self.index(stream.rounds()), self.steps.turns);
        let exprs = &mut self.program.exprs;
        let next = exprs.add_const(round, 1);
        let (more, next) = (exprs.floor_div(next, rounds), exprs.floor_rem(next, rounds));
        let more = exprs.mul_const(more, turns as i64);
        let iteration = exprs.add2(self.iteration, more);
        let [iteration, next] =
            [iteration, next].map(|id| self.simplifier.simplify(&mut self.program.exprs, id));
        let is_needed = self.below(iteration, self.steps.loop_range);
        ((iteration, next), is_needed)
    }

    /// The terms of a step, of all rows, as a first factor.
    fn load_rows(&mut self, view: &View, step: ExprId, m: usize, (a, x): (BufferId, BufferId)) -> Vec<Stmt> {
        let rank = view.strides.len();
        let (group, within) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, LINES));
        let term = self.first_term(step);
        let term = self.program.exprs.add2(term, within);
        let dtype = self.factor_type();
        let mut stmts = Vec::new();
        for half in 0..2 * m.div_ceil(TILE_ROWS) {
            let to = [0, 4].map(|later| self.place(a, 8 * (half / 2) + 2 * (half % 2) + later));
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
            coords[rank - 2] = self.clamped(row, m);
            coords[rank - 1] = term;
            let from = self.offset(view, &coords);
            let is_line = view.strides[rank - 1] == 1 && view.strides[rank - 2].is_multiple_of(LINES);
            if is_line {
                let value = self.program.exprs.load(view.buffer, from, LINES, None);
                let Location { buffer, offset } = self.place(x, 0);
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

    /// A tile of columns of a unit, as a second factor.
    fn columns_of(
        &mut self,
        tile: usize,
        stream: &Stream,
        unit: (usize, usize),
        column: usize,
        b: BufferId,
    ) -> Vec<Stmt> {
        let mut stmts = Vec::new();
        for pair in 0..2 {
            let [left, right] = [2 * pair, 2 * pair + 1].map(|line| {
                let Location { buffer, offset } = self.loaded(tile, stream, unit, (line, column));
                self.program.exprs.load(buffer, offset, 1, None)
            });
            let value = self.program.exprs.interleave(left, right);
            let Location { buffer, offset } = self.place(b, 2 * pair);
            stmts.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        stmts
    }

    /// Adds the summands of all warps: to registers if there is one tile of rows, else tile by tile in shared memory.
    pub fn join_streamed(&mut self, registers: &Registers, shape: &[usize]) -> Place {
        let (m, n) = (registers.at.rows.m, registers.at.n());
        let parts = self.new_view("summands", DType::F32, &[self.plan.warps, m.min(TILE_ROWS), n], 2);
        let rows = registers.at.rows.clone();
        if rows.row_tiles() > 1 {
            let view = self.new_view("sum", DType::F32, shape, shape.len() - 1);
            for row_tile in 0..rows.row_tiles() {
                let stmts = self.share_summands(registers, row_tile, &parts);
                self.run(stmts);
                let height = TILE_ROWS.min(m - row_tile * TILE_ROWS);
                let stmts = self.each_element(&[height, n], |this, coords| {
                    let value = this.total(&parts, (coords[0], coords[1]));
                    let mut to = vec![this.index(0); shape.len()];
                    to[shape.len() - 2] =
                        this.program.exprs.add_const(coords[0], (row_tile * TILE_ROWS) as i64);
                    to[shape.len() - 1] = coords[1];
                    let offset = this.offset(&view, &to);
                    vec![Write { buffer: view.buffer, offset, value, mask: None }]
                });
                self.run(stmts);
            }
            return Place::Shared(view);
        }
        let stmts = self.share_summands(registers, 0, &parts);
        self.run(stmts);
        let at = Fragments { rows, columns: Columns::Spread(n) };
        let buffer = self.add_buffer("sum", DType::F32, at.registers(), Scope::Scratch);
        let stmts = self.each_site(&at, |this, site| {
            let [row, column] = this.row_and_column(&site);
            let place = (this.clamped(row, m), this.clamped(column, n));
            let value = this.total(&parts, place);
            let offset = this.register(&site, &at);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.run(stmts);
        Place::Registers(Registers { at, buffer })
    }

    /// The sum of the summands of all warps.
    fn total(&mut self, parts: &View, (row, column): (ExprId, ExprId)) -> ExprId {
        let mut total = None;
        for warp in 0..self.plan.warps {
            let warp = self.index(warp);
            let offset = self.offset(parts, &[warp, row, column]);
            let part = self.program.exprs.load(parts.buffer, offset, 1, None);
            total = Some(total.map_or(part, |total| self.program.exprs.add2(total, part)));
        }
        total.unwrap_or_else(|| self.float(0.0))
    }

    /// Stores what threads have of a tile of rows for the others.
    fn share_summands(&mut self, registers: &Registers, row_tile: usize, parts: &View) -> Vec<Stmt> {
        let Registers { at, buffer } = registers;
        let (row_tile, lead) = (self.index(row_tile), self.index(0));
        let mut stmts = Vec::new();
        for first in (0..at.column_tiles()).step_by(STORED_AT_ONCE) {
            for place in 0..4 {
                let (half, side) = (place / 2, place % 2);
                let site = |this: &mut Self, tile: usize| {
                    let column_tile = this.index(tile);
                    Site { at: at.clone(), lead, row_tile, column_tile, half, side }
                };
                let from = site(self, first);
                let [row, column] = self.row_and_column(&from);
                let exists = self.below(row, at.rows.m);
                let group = self.of_lane(4, 8, 1);
                let row = self.program.exprs.add_const(group, 8 * half as i64);
                let row = self.clamped(row, parts.padded[1]);
                let offset = self.offset(parts, &[self.warp, row, column]);
                let [a, b, c, d] = [0, 1, 2, 3].map(|later| {
                    let site = site(self, first + later);
                    let offset = self.register(&site, at);
                    self.program.exprs.load(*buffer, offset, 1, None)
                });
                let exprs = &mut self.program.exprs;
                let (even, odd) = (exprs.interleave(a, c), exprs.interleave(b, d));
                let value = exprs.interleave(even, odd);
                let mask = exists.map(|exists| exprs.splat(exists, STORED_AT_ONCE));
                if exists.and_then(|exists| exprs.as_bool(exists)) == Some(false) {
                    continue;
                }
                stmts.push(Stmt::Store { buffer: parts.buffer, offset, value, mask });
            }
        }
        stmts
    }
}
