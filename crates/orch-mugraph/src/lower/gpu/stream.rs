//! Second factors that threads copy from global memory for themselves, ahead of their use.
//!
//! Where few rows are multiplied by a large factor, reading the factor is all that takes time, and a block needs each of its
//! elements once: barriers only delay it. Warps share the terms instead, 16 at a time, so that each has summands of all
//! columns, and each thread copies the elements that it multiplies.
//!
//! A unit is 16 terms of 64 columns (of 32, where there are no more). With `g = t / 4` and `c = t % 4`, thread `t` of a
//! warp copies columns `8g..8g + 8` (`4g..4g + 4`) of lines `4c..4c + 4`, so that eight threads read neighbouring memory.
//! Tile `j` of a unit's columns takes element `j` of each vector: its column `g` is column `8g + j` of the unit, and the
//! terms `2c, 2c + 1, 2c + 8, 2c + 9` that matrix instructions ask thread `t` for are terms `4c..4c + 4`. The first factor
//! has its terms in the same order, and the sums their columns ([`Columns::Streamed`]).
//!
//! A step is the units of 16 terms of each warp. So many steps are in a ring in shared memory, or on the way to it; as soon
//! as one has been multiplied, the one that is a ring later, of a later iteration if need be, is copied to its place. A
//! thread only reads what it has copied, so that waiting for its own copies is enough. Loading to registers ahead was
//! slower: all loads of a loop share a scoreboard, so that the first of them is not used before the last one is there.

use super::MANY_WARPS;
use super::accumulate::Accumulator;
use super::elements::Write;
use super::layout::{
    Columns, Fragments, Registers, Rows, Site, TILE_COLUMNS, TILE_ROWS, streamed_neighbours,
};
use super::lowering::Lowering;
use super::steps::{Step, Steps, Tile};
use super::value::{Place, View};
use crate::graph::Accumulation;
use crate::lower::Request;
use crate::op::Op;
use crate::tiling::Stage;
use orch_ir::DType;
use orch_tile::templates::gpu::Factors;
use orch_tile::thread_team::WARP;
use orch_tile::{BufferId, ExprId, GpuTarget, LoopKind, Scope, Spot, Stmt, TeamStmt};
use std::collections::BTreeMap;

/// Terms of a unit.
const UNIT_TERMS: usize = 16;
/// Lines of a unit that a thread loads from.
const LINES: usize = 4;
/// Blocks of a multiprocessor that are waited for together.
pub(super) const MOST_RESIDENT: usize = 2;
/// Most rows.
const MOST_ROWS: usize = 64;
/// Most registers of a thread for the sums of all streamed products.
const MOST_SUMS: usize = 128;
/// Bytes that the streams of the blocks of a multiprocessor have under way, and the fewest that a block has.
const BYTES_UNDER_WAY: usize = 96 << 10;
const LEAST_UNDER_WAY: usize = 24 << 10;
/// Steps of an iteration that are written out.
const UNROLLED_STEPS: u32 = 4;
/// Columns whose sums are stored at once.
const STORED_AT_ONCE: usize = 4;

/// How a factor is streamed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Stream {
    /// Parts of the terms, and of the columns, that are a warp's units in an iteration.
    steps: usize,
    groups: usize,
    /// Columns that a thread copies at once.
    neighbours: usize,
    /// Steps that are in the ring.
    ahead: usize,
}

/// A ring of units, the registers of one of them, and how many groups of copies may be under way when one is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    buffer: BufferId,
    unit: BufferId,
    later_groups: usize,
}

impl Stream {
    /// Elements of a unit that a thread has.
    fn unit_elems(&self) -> usize {
        LINES * self.neighbours
    }

    /// Elements of a step that a thread has.
    fn step_elems(&self) -> usize {
        self.groups * self.unit_elems()
    }
}

/// The bytes that the streams of one of so many blocks may have under way, most first.
pub(super) fn amounts(blocks: usize, target: &GpuTarget) -> impl Iterator<Item = usize> {
    let first = BYTES_UNDER_WAY / blocks.div_ceil(target.multiprocessors).clamp(1, MOST_RESIDENT);
    std::iter::successors(Some(first), |bytes| Some(bytes * 3 / 4))
        .take_while(|bytes| *bytes >= LEAST_UNDER_WAY)
}

/// Iterations whose other tiles are in shared memory at once, so many that waiting for a tile is not waiting for what rings
/// have under way: copies are waited for in the order in which they were started.
pub(super) fn stages(streams: &BTreeMap<usize, Stream>) -> usize {
    let ahead: usize = streams.values().map(|stream| stream.ahead).sum();
    let steps: usize = streams.values().map(|stream| stream.steps).sum();
    (ahead + 1).div_ceil(steps + 1) + 1
}

/// The products whose second factors are streamed, with `bytes` of all of them under way.
pub(super) fn streams(
    request: &Request<'_>,
    steps: &Steps,
    factors: Factors,
    bytes: usize,
) -> BTreeMap<usize, Stream> {
    let dtype = match factors {
        Factors::F32 | Factors::Tf32 => return BTreeMap::new(),
        Factors::F16 => DType::F16,
        Factors::Bf16 => DType::BF16,
    };
    let suits = |&tile: &usize| suits(request, steps, tile, dtype);
    let products: Vec<usize> = (0..steps.tiles.len()).filter(suits).collect();
    let sums: usize = products.iter().map(|&tile| registers(&steps.tiles[tile].shape)).sum();
    if sums > MOST_SUMS {
        return BTreeMap::new();
    }
    let each = bytes / products.len().max(1);
    products.into_iter().filter_map(|tile| Some((tile, stream(steps, tile, each)?))).collect()
}

/// Registers of the sums of a product.
fn registers(shape: &[usize]) -> usize {
    let (m, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    4 * m.div_ceil(TILE_ROWS) * n / TILE_COLUMNS
}

/// How the second factor of a product is streamed, with at most so many bytes under way, but those of one step.
fn stream(steps: &Steps, tile: usize, bytes: usize) -> Option<Stream> {
    let shape = factor(steps, tile)?.shape.as_slice();
    let (terms, n) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let neighbours = streamed_neighbours(n);
    let all = terms / (UNIT_TERMS * MANY_WARPS);
    let one = Stream { steps: all, groups: n / (TILE_COLUMNS * neighbours), neighbours, ahead: 1 };
    let step_bytes = one.step_elems() * DType::F16.size_bytes() * WARP * MANY_WARPS;
    let ahead = (bytes / step_bytes).clamp(1, all * steps.loop_range);
    Some(Stream { ahead, ..one })
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

    /// The streamed products in the order in which they are multiplied.
    fn streamed_products(&self) -> Vec<usize> {
        let product = |tile: usize| match &self.steps.tiles[tile].step {
            Step::Accumulate { tile: from, .. } if self.is_streamed(*from) => Some(*from),
            Step::Op { .. } if self.is_streamed(tile) && self.steps.loop_range == 1 => Some(tile),
            _ => None,
        };
        let stages = [Stage::Invariant, Stage::Loop, Stage::After];
        let stages = stages.into_iter().filter(|stage| *stage == Stage::Loop || self.steps.loop_range == 1);
        let mut found: Vec<usize> =
            stages.flat_map(|stage| self.steps.in_stage(stage)).filter_map(product).collect();
        found.dedup();
        found
    }

    /// The steps of products, counted over all iterations, that rings hold at first, in the order of their use.
    fn first_steps(&self, products: &[usize]) -> Vec<(usize, usize)> {
        let streams = &self.steps.streams;
        let of = |place: usize| {
            let (tile, stream) = (products[place], &streams[&products[place]]);
            (0..stream.ahead).map(move |step| (step / stream.steps, place, step, tile))
        };
        let mut all: Vec<_> = (0..products.len()).flat_map(of).collect();
        all.sort_unstable();
        all.into_iter().map(|(_, _, step, tile)| (tile, step)).collect()
    }

    /// Groups of copies that streams start before the loop, and in an iteration.
    pub fn stream_groups(&self) -> (usize, usize) {
        let streams = || self.steps.streams.values();
        (streams().map(|stream| stream.ahead).sum(), streams().map(|stream| stream.steps).sum())
    }

    /// Starts copying the first steps of all streams; `others` are the groups of other copies that an iteration starts
    /// before them.
    pub fn start_streams(&mut self, others: usize) {
        let products = self.streamed_products();
        for (tile, later_groups) in self.groups_after(&products, others) {
            let stream = &self.steps.streams[&tile];
            let elems = stream.ahead * stream.step_elems() * self.threads();
            let buffer = self.add_buffer("stream", self.factor_type(), elems, Scope::Shared);
            let unit = self.add_buffer("unit", self.factor_type(), stream.unit_elems(), Scope::Scratch);
            self.streamed.insert(tile, Ring { buffer, unit, later_groups });
        }
        for (tile, step) in self.first_steps(&products) {
            let stream = &self.steps.streams[&tile];
            let place = [step / stream.steps, step % stream.steps, step].map(|at| self.index(at));
            let stmts = self.copy_step(tile, stream, place);
            self.body.extend(stmts);
            self.body.push(Stmt::Team(TeamStmt::Commit));
        }
    }

    /// For each product, how many groups of copies have been started after one of its steps when this one is read, at least.
    fn groups_after(&self, products: &[usize], others: usize) -> BTreeMap<usize, usize> {
        let mut started: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        let mut fewest: BTreeMap<usize, usize> = products.iter().map(|&tile| (tile, usize::MAX)).collect();
        let mut groups = 0;
        for step in self.first_steps(products) {
            started.insert(step, groups);
            groups += 1;
        }
        for iteration in 0..self.steps.loop_range {
            groups += others;
            for (&tile, stream) in products.iter().map(|tile| (tile, &self.steps.streams[tile])) {
                for step in iteration * stream.steps..(iteration + 1) * stream.steps {
                    let later = groups - started[&(tile, step)] - 1;
                    fewest.entry(tile).and_modify(|fewest| *fewest = later.min(*fewest));
                    started.insert((tile, step + stream.ahead), groups);
                    groups += 1;
                }
            }
        }
        fewest
    }

    /// Copies what the thread multiplies in a step of an iteration to a slot of the ring.
    fn copy_step(&mut self, tile: usize, stream: &Stream, [iteration, step, slot]: [ExprId; 3]) -> Vec<Stmt> {
        let load = self.steps.tiles[tile].step.args()[1];
        let Some(tensor) = self.tensor_in_memory(load) else { return Vec::new() };
        let Some(from) = self.arguments[tensor.index()] else { return Vec::new() };
        let rank = self.steps.tiles[load].shape.len();
        let (first_line, own) = (self.of_lane(1, 4, LINES), self.of_lane(4, 8, stream.neighbours));
        let first_term = self.first_term(step);
        let first_term = self.program.exprs.add2(first_term, first_line);
        let mut stmts = Vec::new();
        for (group, line) in (0..stream.groups).flat_map(|group| (0..LINES).map(move |line| (group, line))) {
            let mut coords = vec![self.index(0); rank];
            coords[rank - 2] = self.program.exprs.add_const(first_term, line as i64);
            coords[rank - 1] =
                self.program.exprs.add_const(own, (group * TILE_COLUMNS * stream.neighbours) as i64);
            let (position, mask) = self.position(load, &coords, iteration);
            let from = Spot { buffer: from, offset: self.tensor_offset(tensor, &position) };
            let to = self.place_in_ring(tile, stream, (slot, group, line));
            stmts.push(Stmt::Team(TeamStmt::Copy { to, from, elems: stream.neighbours, mask }));
        }
        stmts
    }

    /// The thread's place in a ring for a line of a unit: threads are neighbours.
    fn place_in_ring(
        &mut self,
        tile: usize,
        stream: &Stream,
        (slot, group, line): (ExprId, usize, usize),
    ) -> Spot {
        let (threads, neighbours) = (self.threads(), stream.neighbours);
        let exprs = &mut self.program.exprs;
        let number = exprs.mul_const(slot, (stream.groups * LINES) as i64);
        let number = exprs.add_const(number, (group * LINES + line) as i64);
        let offset = exprs.linear_index(&[number, self.thread], &[threads * neighbours, neighbours]);
        let offset = self.simplifier.simplify(&mut self.program.exprs, offset);
        Spot { buffer: self.streamed[&tile].buffer, offset }
    }

    /// Brings a unit from the ring to registers.
    fn read_unit(&mut self, tile: usize, stream: &Stream, (slot, group): (ExprId, usize)) -> Vec<Stmt> {
        let mut stmts = Vec::new();
        for line in 0..LINES {
            let from = self.place_in_ring(tile, stream, (slot, group, line));
            let value = self.program.exprs.load(from.buffer, from.offset, stream.neighbours, None);
            let Spot { buffer, offset } = self.place(self.streamed[&tile].unit, line * stream.neighbours);
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

    /// Multiplies the steps of an iteration, and copies later ones.
    fn add_streamed(&mut self, tile: usize, sums: &Registers) {
        let (Some(stream), Some(kind)) = (self.steps.streams.get(&tile), self.product_kind()) else { return };
        let (args, rank) = (self.steps.tiles[tile].step.args(), self.steps.tiles[tile].shape.len());
        let first = self.factor(args[0], rank - 1);
        let tiles = sums.at.rows.row_tiles();
        let [a, x, b] = [("a_part", 8 * tiles), ("x_part", LINES), ("b_part", 4)]
            .map(|(name, elems)| self.add_buffer(name, kind.dtype(), elems, Scope::Scratch));
        let Ring { unit, later_groups, .. } = self.streamed[&tile];
        let loop_kind = LoopKind::UnrollBy(UNROLLED_STEPS);
        let stmts = self.repeated("step", stream.steps, loop_kind, |this, step| {
            let iteration = this.iteration;
            let number = this.program.exprs.linear_index(&[iteration, step], &[stream.steps, 1]);
            let all = this.steps.loop_range * stream.steps;
            let mut body = vec![Stmt::Team(TeamStmt::Wait(later_groups))];
            let count = this.index(stream.ahead);
            let slot = this.program.exprs.floor_rem(number, count);
            let slot = this.bind(&mut body, "ring_slot", slot, (stream.ahead, 1));
            body.extend(this.load_rows(&first, step, sums.at.rows.m, (a, x)));
            for group in 0..stream.groups {
                body.extend(this.read_unit(tile, stream, (slot, group)));
                for column in 0..stream.neighbours {
                    body.extend(this.columns_of(unit, stream.neighbours, column, b));
                    for row in 0..tiles {
                        let [row_tile, column_tile] =
                            [row, group * stream.neighbours + column].map(|at| this.index(at));
                        let lead = this.index(0);
                        let site =
                            Site { at: sums.at.clone(), lead, row_tile, column_tile, half: 0, side: 0 };
                        let sum = Spot { buffer: sums.buffer, offset: this.register(&site, &sums.at) };
                        let (a, b) = (this.place(a, 8 * row), this.place(b, 0));
                        body.push(Stmt::Team(TeamStmt::Multiply { product: kind, sum, a, b }));
                    }
                }
            }
            body.extend(this.copy_later(tile, stream, (number, slot, all)));
            body
        });
        self.run(stmts);
    }

    /// Copies the step that is a ring later than a step of `all` to the same slot, if there is one.
    fn copy_later(
        &mut self,
        tile: usize,
        stream: &Stream,
        (number, slot, all): (ExprId, ExprId, usize),
    ) -> Vec<Stmt> {
        let commit = Stmt::Team(TeamStmt::Commit);
        if stream.ahead == all {
            return vec![commit];
        }
        let mut copies = Vec::new();
        let later = self.program.exprs.add_const(number, stream.ahead as i64);
        let exists = self.below(later, all);
        let steps = self.index(stream.steps);
        let (iteration, step) =
            (self.program.exprs.floor_div(later, steps), self.program.exprs.floor_rem(later, steps));
        let iteration = self.bind(&mut copies, "later_iteration", iteration, (self.steps.loop_range, 1));
        let step = self.bind(&mut copies, "later_step", step, (stream.steps, 1));
        copies.extend(self.copy_step(tile, stream, [iteration, step, slot]));
        match exists {
            Some(condition) => vec![Stmt::If { condition, then: copies, otherwise: Vec::new() }, commit],
            None => copies.into_iter().chain([commit]).collect(),
        }
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
                stmts.extend(to.map(|Spot { buffer, offset }| Stmt::Store {
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
                let Spot { buffer, offset } = self.place(x, 0);
                stmts.push(Stmt::Store { buffer, offset, value, mask: None });
            }
            for (pair, Spot { buffer, offset }) in to.into_iter().enumerate() {
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
    fn columns_of(&mut self, unit: BufferId, neighbours: usize, column: usize, b: BufferId) -> Vec<Stmt> {
        let mut stmts = Vec::new();
        for pair in 0..2 {
            let [left, right] = [2 * pair, 2 * pair + 1].map(|line| {
                let Spot { buffer, offset } = self.place(unit, line * neighbours + column);
                self.program.exprs.load(buffer, offset, 1, None)
            });
            let value = self.program.exprs.interleave(left, right);
            let Spot { buffer, offset } = self.place(b, 2 * pair);
            stmts.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        stmts
    }

    /// Adds the summands of all warps: to registers if there is one tile of rows, else tile by tile in shared memory.
    pub fn join_streamed(&mut self, registers: &Registers, shape: &[usize]) -> Place {
        let (m, n) = (registers.at.rows.m, registers.at.n());
        let parts = self.summands([self.plan.warps, m.min(TILE_ROWS), n]);
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

    /// Room for the summands of all warps, which products of the same shape share.
    fn summands(&mut self, shape: [usize; 3]) -> View {
        if let Some(view) = self.summands.iter().find(|view| view.padded == shape) {
            return view.clone();
        }
        let view = self.new_view("summands", DType::F32, &shape, 2);
        self.summands.push(view.clone());
        view
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
