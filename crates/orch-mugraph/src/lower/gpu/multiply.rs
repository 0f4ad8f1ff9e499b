//! Matrix products: factors in shared memory or registers, sums in registers.
//!
//! Warps share the rows and columns of the result. Where it has too few of them, or where the first factor is in registers
//! and its columns are spread over warps, warps share the terms instead: each has sums of all columns, which are added
//! when all terms are done.

use super::layout::{Columns, Fragments, Registers, Rows, Site, TILE_COLUMNS, TILE_ROWS};
use super::lowering::Lowering;
use super::value::{Place, View};
use crate::tiling::Stage;
use orch_compute::{BufferId, ExprId, Type};
use orch_ir::DType;
use orch_thread::{CtaStmt, Location, LoopKind, MmaType, Scope, Stmt};

/// Most registers of a thread for the sums of a product.
const MOST_SUMS: usize = 256;
/// Most registers of a thread for sums of all columns, of which other warps have other summands.
const MOST_SUMMANDS: usize = 128;
/// Steps of a product that are written out.
const UNROLLED_STEPS: u32 = 4;

/// A product that is to be added to sums.
#[derive(Clone, Debug)]
pub(super) struct Product {
    pub sum: Registers,
    pub first: First,
    pub second: View,
    /// Leading extents of the factors.
    leads: [Vec<usize>; 2],
    pub terms: usize,
    /// Fragments of the first factor that were brought to registers before the loop.
    pub held: Option<BufferId>,
    /// Whether it may be under way when its statements end.
    pub runs_on: bool,
}

/// Where the first factor is.
#[derive(Clone, Debug)]
pub(super) enum First {
    Shared(View),
    /// In the layout of sums, of this tile.
    Registers(Fragments, usize),
}

/// Which factor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    First,
    Second,
}

impl Lowering<'_> {
    /// Whether a product has more sums than registers hold.
    pub fn is_large(&self, tile: usize) -> bool {
        let shape = &self.steps.tiles[tile].shape;
        let n = shape[shape.len() - 1];
        self.rows(shape).is_none_or(|rows| {
            let at = Fragments { rows, columns: Columns::Spread(n) };
            at.registers() > MOST_SUMS
        })
    }

    /// Multiplies two tiles.
    pub fn multiply(&mut self, tile: usize) {
        if self.is_streamed(tile) {
            self.multiply_streamed(tile);
            return;
        }
        if self.is_large(tile) {
            self.multiply_in_shared(tile);
            return;
        }
        let is_final = self.steps.tiles[tile].stage != Stage::Loop;
        let mut product = self.new_product(tile, is_final);
        product.runs_on = self.scores_run_on(tile, &product);
        let zero = self.float(0.0);
        let clear = self.filled(product.sum.buffer, product.sum.at.registers(), zero);
        self.run(clear);
        self.add_product(&product);
        self.place_later_product(&product);
        let shape = self.steps.tiles[tile].shape.clone();
        let registers = self.joined_summands(product.sum, &shape);
        self.places[tile].push(Place::Registers(registers));
    }

    /// Brings factors to where they are multiplied. Where `may_split`, warps may share the terms.
    pub fn new_product(&mut self, tile: usize, may_split: bool) -> Product {
        let (shape, args) = (self.steps.tiles[tile].shape.clone(), self.steps.tiles[tile].step.args());
        let shapes = [0, 1].map(|at| self.steps.tiles[args[at]].shape.clone());
        let (rank, terms) = (shape.len(), shapes[0][shape.len() - 1]);
        let whole = Rows { lead: Vec::new(), m: shape[0], row_warps: 1, column_warps: self.plan.warps };
        let rows = self.rows(&shape).unwrap_or(whole);
        let n = shape[rank - 1];
        let summands = Fragments { rows: rows.clone(), columns: Columns::Summands(n) };
        let may_split = may_split && summands.registers() <= MOST_SUMMANDS;
        let in_registers = self.home(args[0]).filter(|at| {
            let is_whole = at.columns == Columns::Spread(terms) && at.column_tiles().is_multiple_of(2);
            self.is_half() && at.rows == rows && is_whole && (may_split || rows.column_warps == 1)
        });
        let first = match in_registers {
            Some(at) => {
                self.prepare(args[0], Some(&at));
                First::Registers(at, args[0])
            }
            None => First::Shared(self.factor(args[0], rank - 1)),
        };
        let second = self.factor(args[1], rank - 2);
        let steps = terms.div_ceil(self.product_terms());
        let beside = rows.column_warps;
        let splits = match first {
            First::Registers(..) => beside > 1,
            First::Shared(_) => may_split && n.div_ceil(TILE_COLUMNS) < beside && steps >= beside,
        };
        let columns = if splits { Columns::Summands(n) } else { Columns::Spread(n) };
        let at = Fragments { rows, columns };
        let buffer = self.add_buffer("product", DType::F32, at.registers(), Scope::Scratch);
        let leads = shapes.map(|shape| shape[..rank - 2].to_vec());
        let sum = Registers { at, buffer };
        let mut product = Product { sum, first, second, leads, terms, held: None, runs_on: false };
        product.held = self.hold_first(tile, &product);
        product
    }

    /// Adds a product to its sums.
    pub fn add_product(&mut self, product: &Product) {
        let stmts = match (self.product_kind(), self.lines_are_terms(product)) {
            (Some(MmaType::Tf32), _) => self.add_words(product),
            (Some(kind), Some(transposed)) => self.add_tiles(product, kind, transposed),
            (Some(kind), None) => self.add_halves(product, kind),
            (None, _) => self.add_scalars(product),
        };
        self.run(stmts);
    }

    /// The place of an element of a factor: its row (or column, of the second one) and term.
    pub fn factor_place(
        &mut self,
        product: &Product,
        (side, view): (Side, &View),
        lead: ExprId,
        (row, term): (ExprId, ExprId),
    ) -> Location {
        let at = usize::from(side == Side::Second);
        let mut coords = self.program.exprs.unflatten(lead, &product.sum.at.rows.lead);
        for (coord, &extent) in coords.iter_mut().zip(&product.leads[at]) {
            if extent == 1 {
                *coord = self.program.exprs.index(0);
            }
        }
        coords.extend(if side == Side::First { [row, term] } else { [term, row] });
        Location { buffer: view.buffer, offset: self.offset(view, &coords) }
    }

    /// The first row of a tile of rows of the warp, or column of a tile of columns.
    fn tile_start(&mut self, at: &Fragments, side: Side, tile: ExprId) -> ExprId {
        let [warp_row, warp_column] = self.warp_place(at);
        let spread = matches!(at.columns, Columns::Spread(_));
        let (warp, tiles, size) = match side {
            Side::First => (warp_row, at.rows.row_tiles(), TILE_ROWS),
            Side::Second if spread => (warp_column, at.column_tiles(), TILE_COLUMNS),
            Side::Second => (self.index(0), at.column_tiles(), TILE_COLUMNS),
        };
        let tile = self.program.exprs.linear_index(&[warp, tile], &[tiles, 1]);
        self.program.exprs.mul_const(tile, size as i64)
    }

    /// Loops over the terms, `size` at a time, given the first one; those of the warp if warps share them.
    fn each_step(
        &mut self,
        product: &Product,
        size: usize,
        body: impl FnOnce(&mut Self, ExprId, ExprId) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let at = product.sum.at.clone();
        let all = product.terms.div_ceil(size);
        let beside = if at.has_summands() { at.rows.column_warps } else { 1 };
        let in_registers = match &product.first {
            First::Registers(from, _) => Some(from.column_tiles() / 2),
            First::Shared(_) => None,
        };
        let (own, kind) = match in_registers {
            Some(own) => (own, LoopKind::Unroll),
            None => (all.div_ceil(beside), LoopKind::UnrollBy(UNROLLED_STEPS)),
        };
        self.repeated("step", own, kind, |this, step| {
            let warp = if beside > 1 { this.warp_place(&at)[1] } else { this.index(0) };
            let exprs = &mut this.program.exprs;
            // Terms in registers are those of the warp's columns; others are dealt out one step at a time.
            let number = match in_registers {
                Some(_) => exprs.linear_index(&[warp, step], &[own, 1]),
                None => exprs.linear_index(&[step, warp], &[beside, 1]),
            };
            let exists = this.below(number, all);
            let number = if exists.is_some() { this.clamped(number, all) } else { number };
            let term = this.program.exprs.mul_const(number, size as i64);
            let stmts = body(this, step, term);
            // Registers beyond the last term hold zeros, which may be multiplied by any terms.
            match exists.filter(|_| in_registers.is_none()) {
                Some(condition) => vec![Stmt::If { condition, then: stmts, otherwise: Vec::new() }],
                None => stmts,
            }
        })
    }

    /// 16-bit factors: matrices of 8 x 8 from shared memory.
    fn add_halves(&mut self, product: &Product, kind: MmaType) -> Vec<Stmt> {
        let at = product.sum.at.clone();
        let (rows, columns) = (at.rows.row_tiles(), at.column_tiles());
        let a = self.add_buffer("a_part", kind.dtype(), rows * 8, Scope::Scratch);
        let b = self.add_buffer("b_part", kind.dtype(), 8, Scope::Scratch);
        self.repeated("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.each_step(product, 16, |this, step, term| {
                let mut body = Vec::new();
                for row in 0..rows {
                    let to = this.place(a, 8 * row);
                    let row = this.index(row);
                    body.extend(match &product.first {
                        First::Shared(view) => {
                            vec![this.load_matrices(product, (Side::First, view), (lead, row, term), (to, 4))]
                        }
                        First::Registers(from, tile) => this.pack(from, *tile, (lead, row, step), (kind, to)),
                    });
                }
                let pairs = columns.div_ceil(2);
                let loop_over_pairs = |this: &mut Self, pair: ExprId| {
                    let matrices = if columns > 1 { 4 } else { 2 };
                    let to = this.place(b, 0);
                    let column = this.program.exprs.mul_const(pair, 2);
                    let from = (Side::Second, &product.second);
                    let mut stmts =
                        vec![this.load_matrices(product, from, (lead, column, term), (to, matrices))];
                    for row in 0..rows {
                        for half in 0..matrices / 2 {
                            let row_tile = this.index(row);
                            let column_tile = this.program.exprs.add_const(column, half as i64);
                            let site = Site { at: at.clone(), lead, row_tile, column_tile, half: 0, side: 0 };
                            let offset = this.register(&site, &at);
                            let sum = Location { buffer: product.sum.buffer, offset };
                            let (a, b) = (this.place(a, 8 * row), this.place(b, 4 * half));
                            stmts.push(Stmt::Cta(CtaStmt::Mma { ty: kind, acc: sum, a, b }));
                        }
                    }
                    stmts
                };
                body.extend(this.repeated("pair", pairs, LoopKind::Unroll, loop_over_pairs));
                body
            })
        })
    }

    /// Reads the matrices of a tile of rows, or of two of columns, and 16 terms.
    pub fn load_matrices(
        &mut self,
        product: &Product,
        (side, view): (Side, &View),
        (lead, tile, term): (ExprId, ExprId, ExprId),
        (to, matrices): (Location, usize),
    ) -> Stmt {
        let rank = view.strides.len();
        let (row_dim, term_dim) =
            if side == Side::First { (rank - 2, rank - 1) } else { (rank - 1, rank - 2) };
        let along_terms = view.strides[term_dim] == 1;
        // Lane `8 i + r` gives the place of row `r` of matrix `i`.
        let within = self.of_lane(1, 8, 1);
        let (low, high) = (self.of_lane(8, 2, 8), self.of_lane(16, 2, 8));
        let (first_row, first_term) = if side == Side::First { (low, high) } else { (high, low) };
        let start = self.tile_start(&product.sum.at, side, tile);
        let exprs = &mut self.program.exprs;
        let (row, term) = (exprs.add2(start, first_row), exprs.add2(term, first_term));
        let (row, term) = match along_terms {
            true => {
                let row = exprs.add2(row, within);
                (self.clamped(row, view.padded[row_dim]), term)
            }
            false => {
                let term = exprs.add2(term, within);
                (self.clamped(row, view.padded[row_dim] - 7), term)
            }
        };
        let from = self.factor_place(product, (side, view), lead, (row, term));
        Stmt::Cta(CtaStmt::Ldmatrix { to, from, matrices, transposed: !along_terms })
    }

    /// Sums of an earlier product as a first factor: two of its tiles of columns are 16 terms.
    pub fn pack(
        &mut self,
        from: &Fragments,
        tile: usize,
        (lead, row_tile, step): (ExprId, ExprId, ExprId),
        (kind, to): (MmaType, Location),
    ) -> Vec<Stmt> {
        let shape = self.steps.tiles[tile].shape.clone();
        let mut stmts = Vec::new();
        for quarter in 0..4 {
            let (half, later) = (quarter % 2, quarter / 2);
            let column_tile = self.program.exprs.mul_const(step, 2);
            let column_tile = self.program.exprs.add_const(column_tile, later as i64);
            let pair = [0, 1].map(|side| {
                let site = Site { at: from.clone(), lead, row_tile, column_tile, half, side };
                let [_, column] = self.row_and_column(&site);
                let inside = self.below(column, from.n());
                let point = self.point(&site, &shape);
                let mut value = self.value(tile, &point);
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

    /// An element of a factor as f32; beyond the last row, that row.
    fn factor_element(
        &mut self,
        product: &Product,
        (side, view): (Side, &View),
        lead: ExprId,
        (row, term): (ExprId, ExprId),
    ) -> ExprId {
        let rank = view.strides.len();
        let row_dim = if side == Side::First { rank - 2 } else { rank - 1 };
        let row = self.clamped(row, view.padded[row_dim]);
        let from = self.factor_place(product, (side, view), lead, (row, term));
        let value = self.program.exprs.load(from.buffer, from.offset, 1, None);
        self.program.exprs.cast(DType::F32, value)
    }

    /// f32 factors on matrix units: fragments by single elements.
    fn add_words(&mut self, product: &Product) -> Vec<Stmt> {
        let First::Shared(first) = &product.first else { return Vec::new() };
        let kind = MmaType::Tf32;
        let at = product.sum.at.clone();
        let (rows, columns) = (at.rows.row_tiles(), at.column_tiles());
        let a = self.add_buffer("a_part", DType::F32, rows * 4, Scope::Scratch);
        let b = self.add_buffer("b_part", DType::F32, 2, Scope::Scratch);
        let (group, within) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, 1));
        self.repeated("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.each_step(product, 8, |this, _, term| {
                let mut body = Vec::new();
                let term = this.program.exprs.add2(term, within);
                let fetch = |this: &mut Self, side, view, (tile, row, later), to: Location| {
                    let start = this.tile_start(&at, side, tile);
                    let row_in = this.program.exprs.add_const(group, row);
                    let row = this.program.exprs.add2(start, row_in);
                    let term = this.program.exprs.add_const(term, later);
                    let value = this.factor_element(product, (side, view), lead, (row, term));
                    Stmt::Store { buffer: to.buffer, offset: to.offset, value, mask: None }
                };
                for element in 0..4 * rows {
                    let (tile, to) = (this.index(element / 4), this.place(a, element));
                    let part = (8 * (element % 2) as i64, 4 * (element % 4 / 2) as i64);
                    body.push(fetch(this, Side::First, first, (tile, part.0, part.1), to));
                }
                let each_column = |this: &mut Self, tile: ExprId| {
                    let mut stmts = Vec::new();
                    for element in 0..2 {
                        let to = this.place(b, element);
                        let part = (tile, 0, 4 * element as i64);
                        stmts.push(fetch(this, Side::Second, &product.second, part, to));
                    }
                    for row in 0..rows {
                        let row_tile = this.index(row);
                        let site =
                            Site { at: at.clone(), lead, row_tile, column_tile: tile, half: 0, side: 0 };
                        let sum = Location { buffer: product.sum.buffer, offset: this.register(&site, &at) };
                        let (a, b) = (this.place(a, 4 * row), this.place(b, 0));
                        stmts.push(Stmt::Cta(CtaStmt::Mma { ty: kind, acc: sum, a, b }));
                    }
                    stmts
                };
                body.extend(this.repeated("column_tile", columns, LoopKind::Unroll, each_column));
                body
            })
        })
    }

    /// Multiply-adds: a thread multiplies what it has sums of.
    fn add_scalars(&mut self, product: &Product) -> Vec<Stmt> {
        let First::Shared(first) = &product.first else { return Vec::new() };
        let at = product.sum.at.clone();
        let rows = at.rows.row_tiles();
        let a = self.add_buffer("a_part", DType::F32, rows * 2, Scope::Scratch);
        self.repeated("lead", at.rows.batch(), LoopKind::Unroll, |this, lead| {
            this.each_step(product, 1, |this, _, term| {
                let mut body = Vec::new();
                let zero = this.index(0);
                let site = |row_tile, column_tile, half, side| Site {
                    at: at.clone(),
                    lead,
                    row_tile,
                    column_tile,
                    half,
                    side,
                };
                for part in 0..2 * rows {
                    let row_tile = this.index(part / 2);
                    let [row, _] = this.row_and_column(&site(row_tile, zero, part % 2, 0));
                    let value = this.factor_element(product, (Side::First, first), lead, (row, term));
                    let Location { buffer, offset } = this.place(a, part);
                    body.push(Stmt::Store { buffer, offset, value, mask: None });
                }
                let columns = at.column_tiles();
                body.extend(this.repeated("column_tile", columns, LoopKind::Unroll, |this, tile| {
                    let mut stmts = Vec::new();
                    for side in 0..2 {
                        let [_, column] = this.row_and_column(&site(zero, tile, 0, side));
                        let from = (Side::Second, &product.second);
                        let value = this.factor_element(product, from, lead, (column, term));
                        let ty = Type::scalar(DType::F32);
                        let var = this.program.exprs.declare_register("b", ty);
                        stmts.push(Stmt::Let(var, value));
                        let b = this.program.exprs.var(var);
                        for part in 0..2 * rows {
                            let row_tile = this.index(part / 2);
                            let offset = this.register(&site(row_tile, tile, part % 2, side), &at);
                            let place = this.place(a, part);
                            let exprs = &mut this.program.exprs;
                            let a = exprs.load(place.buffer, place.offset, 1, None);
                            let buffer = product.sum.buffer;
                            let sum = exprs.load(buffer, offset, 1, None);
                            let value = exprs.fma(a, b, sum);
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
