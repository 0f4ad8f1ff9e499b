//! Where tiles are, and what their elements are at a point.
//!
//! A tile without a place of its own is computed from its operands wherever an element of it is needed. Before that,
//! [`Lowering::prepare`] brings what the element needs to places where it can be read.

use super::elements::Write;
use super::layout::{Columns, Fragments, Registers, Site};
use super::lowering::Lowering;
use super::reduce::reduction_of;
use super::steps::Step;
use crate::lower::partner;
use crate::op::{BinaryFn, Op, UnaryFn};
use orch_compute::{BufferId, Expr, ExprId, Exprs};
use orch_ir::{BinaryFn as ScalarBinary, DType, UnaryFn as ScalarUnary};
use orch_thread::Stmt;

/// A tile in shared memory.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub buffer: BufferId,
    /// The place of the first element.
    pub base: ExprId,
    pub strides: Vec<usize>,
    /// Extents with what is added to them; elements there are zero.
    pub padded: Vec<usize>,
    /// If the tile is swizzled, the dimensions of its lines and of their elements; strides are those within a part.
    pub lines: Option<[usize; 2]>,
}

/// Where a tile is.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Registers(Registers),
    Shared(View),
}

/// Where elements are needed: coordinates, and the register that holds them if they are those of a layout.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub coords: Vec<ExprId>,
    pub site: Option<Site>,
}

impl Lowering<'_> {
    /// The layout in which a tile is best computed: that of the registers from which it is made.
    pub fn home(&self, tile: usize) -> Option<Fragments> {
        let shape = &self.steps.tiles[tile].shape;
        for place in &self.places[tile] {
            if let Place::Registers(registers) = place {
                return Some(registers.at.clone());
            }
        }
        let Step::Op { op, args } = &self.steps.tiles[tile].step else { return None };
        if !op.is_elementwise() || !self.places[tile].is_empty() {
            return None;
        }
        let rows = self.rows(shape)?;
        let homes = args.iter().filter_map(|&arg| self.home(arg)).filter(|at| at.rows == rows);
        let homes: Vec<Fragments> = homes.collect();
        let n = shape[shape.len() - 1];
        let full = homes.iter().find(|at| at.columns == Columns::Spread(n));
        let per_row = || match n {
            1 => Fragments::per_row(&rows),
            n => Fragments { rows: rows.clone(), columns: Columns::Spread(n) },
        };
        full.cloned().or_else(|| (!homes.is_empty()).then(per_row))
    }

    /// Brings what a tile is made of to where it can be read at the places of a layout, or anywhere.
    pub fn prepare(&mut self, tile: usize, at: Option<&Fragments>) {
        if self.is_readable(tile, at) {
            return;
        }
        if !self.places[tile].is_empty() {
            self.share(tile);
            return;
        }
        let step = self.steps.tiles[tile].step.clone();
        let keeps_place = matches!(&step, Step::Op { op, .. } if op.is_elementwise());
        for arg in step.args() {
            self.prepare(arg, at.filter(|_| keeps_place));
        }
    }

    fn is_readable(&self, tile: usize, at: Option<&Fragments>) -> bool {
        self.places[tile].iter().any(|place| match place {
            Place::Shared(_) => true,
            Place::Registers(registers) => at.is_some_and(|at| at.sees(&registers.at)),
        })
    }

    /// Copies a tile from registers to shared memory.
    pub fn share(&mut self, tile: usize) {
        let registers = self.places[tile].iter().find_map(|place| match place {
            Place::Registers(registers) => Some(registers.clone()),
            Place::Shared(_) => None,
        });
        if let Some(registers) = registers {
            let view = self.shared_copy(&registers, &self.steps.tiles[tile].shape.clone());
            self.places[tile].push(Place::Shared(view));
        }
    }

    /// A copy of registers in shared memory.
    pub fn shared_copy(&mut self, registers: &Registers, shape: &[usize]) -> View {
        let view = self.new_view("tile", DType::F32, shape, shape.len().saturating_sub(1));
        let place = Place::Registers(registers.clone());
        let stmts = self.at_sites(&registers.at, shape, &view, |this, point| this.read_place(&place, point));
        self.run(stmts);
        view
    }

    /// Statements by which threads store what they have of a layout to a tile in shared memory.
    pub fn at_sites(
        &mut self,
        at: &Fragments,
        shape: &[usize],
        view: &View,
        value: impl Fn(&mut Self, &Point) -> ExprId,
    ) -> Vec<Stmt> {
        let dtype = self.program.buffer(view.buffer).dtype;
        let last = shape.len() - 1;
        let lines_are_even =
            (0..last).all(|dim| view.strides[dim].is_multiple_of(2)) && shape[last].is_multiple_of(2);
        let in_pairs = at.has_pairs() && view.strides[last] == 1 && lines_are_even;
        self.each_site_stored(at, in_pairs, |this, site| {
            let mask = this.site_exists(site, true);
            let point = this.point(site, shape);
            let value = value(this, &point);
            let value = this.program.exprs.cast(dtype, value);
            let offset = this.offset(view, &point.coords);
            Write { buffer: view.buffer, offset, value, mask }
        })
    }

    /// Stores of every register of a layout; two neighbours at a time where they are `in_pairs` in the buffer.
    pub fn each_site_stored(
        &mut self,
        at: &Fragments,
        in_pairs: bool,
        mut write: impl FnMut(&mut Self, &Site) -> Write,
    ) -> Vec<Stmt> {
        let mut first: Option<Write> = None;
        self.each_site(at, |this, site| {
            let Write { buffer, offset, value, mask } = write(this, &site);
            if !in_pairs {
                return vec![Stmt::Store { buffer, offset, value, mask }];
            }
            match first.take() {
                None => {
                    first = Some(Write { buffer, offset, value, mask });
                    Vec::new()
                }
                Some(Write { offset, value: left, mask, .. }) => {
                    let value = this.program.exprs.interleave(left, value);
                    let mask = mask.map(|mask| this.program.exprs.splat(mask, 2));
                    vec![Stmt::Store { buffer, offset, value, mask }]
                }
            }
        })
    }

    /// Unrolled statements for every register of a layout.
    pub fn each_site(
        &mut self,
        at: &Fragments,
        mut body: impl FnMut(&mut Self, Site) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let sides = if at.columns == Columns::One { 1 } else { 2 };
        self.each_tile(at, |this, [lead, row_tile, column_tile]| {
            let mut stmts = Vec::new();
            for half in 0..2 {
                for side in 0..sides {
                    let site = Site { at: at.clone(), lead, row_tile, column_tile, half, side };
                    stmts.extend(body(this, site));
                }
            }
            stmts
        })
    }

    /// Whether the row, and the column, of a site exist; with `once`, whether its thread is the only one that has it.
    pub fn site_exists(&mut self, site: &Site, once: bool) -> Option<ExprId> {
        let [row, column] = self.row_and_column(site);
        let row_in = self.below(row, site.at.rows.m);
        let column_in = self.below(column, site.at.n());
        let mut inside = self.program.exprs.and_guard(row_in, column_in);
        if once && site.at.columns == Columns::One {
            let (zero, within) = (self.index(0), self.of_lane(1, 4, 1));
            let [_, warp_column] = self.warp_place(&site.at);
            for place in [within, warp_column] {
                let is_first = self.program.exprs.eq(place, zero);
                inside = self.program.exprs.and_guard(inside, Some(is_first));
            }
        }
        inside
    }

    /// The point of a tile at a site; beyond its last row or column, that row or column.
    pub fn point(&mut self, site: &Site, shape: &[usize]) -> Point {
        let [row, column] = self.row_and_column(site);
        let mut coords = self.program.exprs.unflatten(site.lead, &site.at.rows.lead);
        coords.push(self.clamped(row, site.at.rows.m));
        coords.push(self.clamped(column, site.at.n()));
        for (coord, &extent) in coords.iter_mut().zip(shape) {
            if extent == 1 {
                *coord = self.program.exprs.index(0);
            }
        }
        Point { coords, site: Some(site.clone()) }
    }

    /// The place of an element of a tile in shared memory.
    pub fn offset(&mut self, view: &View, coords: &[ExprId]) -> ExprId {
        let within = match view.lines {
            Some(lines) => self.place_in_tile(view, lines, coords),
            None => self.program.exprs.linear_index(coords, &view.strides),
        };
        let offset = self.program.exprs.add2(view.base, within);
        self.simplifier.simplify(&mut self.program.exprs, offset)
    }

    /// An element of a tile, as f32. What it needs has been [prepared](Lowering::prepare).
    pub fn value(&mut self, tile: usize, point: &Point) -> ExprId {
        let seen = |place: &&Place| match place {
            Place::Registers(registers) => {
                point.site.as_ref().is_some_and(|site| site.at.sees(&registers.at))
            }
            Place::Shared(_) => false,
        };
        let place = self.places[tile].iter().find(seen);
        let shared = |place: &&Place| matches!(place, Place::Shared(_));
        if let Some(place) = place.or_else(|| self.places[tile].iter().find(shared)).cloned() {
            return self.read_place(&place, point);
        }
        match self.steps.tiles[tile].step.clone() {
            Step::Load { .. } => {
                let iteration = self.iteration;
                self.read_tensor(tile, &point.coords, iteration)
            }
            Step::Op { op, args } => self.computed(&op, &args, point),
            // Accumulators and maxima have places before anybody reads them.
            Step::Accumulate { tile, .. } | Step::RunningMax { tile } => self.value(tile, point),
        }
    }

    /// An element of a place.
    pub fn read_place(&mut self, place: &Place, point: &Point) -> ExprId {
        let value = match place {
            Place::Registers(registers) => {
                let offset = match &point.site {
                    Some(site) => self.register(site, &registers.at),
                    None => self.index(0),
                };
                self.program.exprs.load(registers.buffer, offset, 1, None)
            }
            Place::Shared(view) => {
                let offset = self.offset(view, &point.coords);
                self.program.exprs.load(view.buffer, offset, 1, None)
            }
        };
        self.program.exprs.cast(DType::F32, value)
    }

    fn computed(&mut self, op: &Op, args: &[usize], point: &Point) -> ExprId {
        match op {
            Op::Unary(f) => {
                let value = self.operand(args[0], point);
                self.unary(*f, value)
            }
            Op::Scale(factor) => {
                let (value, factor) = (self.operand(args[0], point), self.float(factor.to_f64()));
                self.program.exprs.mul(value, factor)
            }
            Op::Offset(summand) => {
                let (value, summand) = (self.operand(args[0], point), self.float(summand.to_f64()));
                self.program.exprs.add2(value, summand)
            }
            Op::Binary(BinaryFn::Mask) => {
                let value = self.operand(args[0], point);
                let masked = self.float(f64::NEG_INFINITY);
                let mask = self.operand(args[1], point);
                let zero = self.float(0.0);
                let keeps = match *self.program.exprs.get(mask) {
                    // A mask that is computed from indices.
                    Expr::Select(condition, _, otherwise) if otherwise == zero => condition,
                    _ => self.program.exprs.ne(mask, zero),
                };
                self.program.exprs.select(keeps, value, masked)
            }
            Op::Binary(f) => {
                let (lhs, rhs) = (self.operand(args[0], point), self.operand(args[1], point));
                self.program.exprs.binary(binary(*f), lhs, rhs)
            }
            Op::Rotate { dim, group } => {
                let mut coords = point.coords.clone();
                let (partner, is_negated) = partner(&mut self.program.exprs, coords[*dim], *group);
                coords[*dim] = self.simplifier.simplify(&mut self.program.exprs, partner);
                let value = self.value(args[0], &Point { coords, site: None });
                let exprs = &mut self.program.exprs;
                let opposite = exprs.neg(value);
                exprs.select(is_negated, opposite, value)
            }
            op => match reduction_of(op) {
                Some(reduction) => self.combined_parts(args[0], reduction, point),
                None => self.moved(op, args, &point.coords),
            },
        }
    }

    /// An element of an operand whose extents of 1 are repeated.
    pub fn operand(&mut self, tile: usize, point: &Point) -> ExprId {
        let point = self.repeated_point(tile, point);
        self.value(tile, &point)
    }

    /// The point of a tile whose extents of 1 are repeated to those of the tile that the point is of.
    pub fn repeated_point(&mut self, tile: usize, point: &Point) -> Point {
        let mut point = point.clone();
        for (coord, &extent) in point.coords.iter_mut().zip(&self.steps.tiles[tile].shape) {
            if extent == 1 {
                *coord = self.program.exprs.index(0);
            }
        }
        point
    }

    /// Operators that only move elements.
    fn moved(&mut self, op: &Op, args: &[usize], coords: &[ExprId]) -> ExprId {
        let mut from = coords.to_vec();
        match op {
            Op::Transpose(perm) => {
                perm.iter().zip(coords).for_each(|(&dim, &coord)| from[dim] = coord);
            }
            Op::Slice { dim, start, .. } => {
                from[*dim] = self.program.exprs.add_const(coords[*dim], *start as i64);
            }
            Op::Repeat { dim, times } => {
                let times = self.index(*times);
                from[*dim] = self.program.exprs.floor_div(coords[*dim], times);
            }
            Op::Concat { dim } => return self.joined(args, *dim, coords),
            _ => {}
        }
        self.value(args[0], &Point { coords: from, site: None })
    }

    /// The element of whichever operand has the coordinate along `dim`.
    fn joined(&mut self, args: &[usize], dim: usize, coords: &[ExprId]) -> ExprId {
        let mut starts = Vec::new();
        let mut total = 0;
        for &arg in args {
            starts.push(total);
            total += self.steps.tiles[arg].shape[dim];
        }
        let mut result = None;
        for (&arg, &start) in args.iter().zip(&starts).rev() {
            let extent = self.steps.tiles[arg].shape[dim];
            let mut from = coords.to_vec();
            let first = self.program.exprs.add_const(coords[dim], -(start as i64));
            let (low, last) = (self.index(0), self.index(extent - 1));
            let from_first = self.program.exprs.max(first, low);
            from[dim] = self.program.exprs.min(from_first, last);
            let value = self.value(arg, &Point { coords: from, site: None });
            result = Some(match result {
                None => value,
                Some(later) => {
                    let end = self.index(start + extent);
                    let before = self.program.exprs.lt(coords[dim], end);
                    self.program.exprs.select(before, value, later)
                }
            });
        }
        result.unwrap_or_else(|| self.float(0.0))
    }

    /// A function of one number.
    pub fn unary(&mut self, f: UnaryFn, x: ExprId) -> ExprId {
        let (zero, one) = (self.float(0.0), self.float(1.0));
        let lowest = self.float(f64::NEG_INFINITY);
        let (linear, cubic, half) =
            (self.float(0.797_884_560_802_865_4), self.float(0.044_715), self.float(0.5));
        let exprs = &mut self.program.exprs;
        let scalar = |exprs: &mut Exprs, f| exprs.unary(f, x);
        match f {
            UnaryFn::Exp => scalar(exprs, ScalarUnary::Exp),
            UnaryFn::Square => exprs.mul(x, x),
            UnaryFn::Sqrt => scalar(exprs, ScalarUnary::Sqrt),
            UnaryFn::Silu | UnaryFn::Sigmoid => {
                let opposite = exprs.neg(x);
                let power = exprs.unary(ScalarUnary::Exp, opposite);
                let divisor = exprs.add2(one, power);
                let dividend = if f == UnaryFn::Silu { x } else { one };
                exprs.binary(ScalarBinary::Div, dividend, divisor)
            }
            UnaryFn::Tanh => scalar(exprs, ScalarUnary::Tanh),
            UnaryFn::Gelu => {
                let square = exprs.mul(x, x);
                let cube = exprs.mul(square, x);
                let cube = exprs.mul(cubic, cube);
                let inner = exprs.add2(x, cube);
                let inner = exprs.mul(linear, inner);
                let tanh = exprs.unary(ScalarUnary::Tanh, inner);
                let sum = exprs.add2(one, tanh);
                let halved = exprs.mul(half, x);
                exprs.mul(halved, sum)
            }
            UnaryFn::Relu => exprs.max(x, zero),
            UnaryFn::Erf => scalar(exprs, ScalarUnary::Erf),
            UnaryFn::Log => scalar(exprs, ScalarUnary::Log),
            UnaryFn::Guard => {
                let is_lowest = exprs.eq(x, lowest);
                exprs.select(is_lowest, zero, x)
            }
        }
    }
}

/// The same function of the expression language; masks are selections there.
fn binary(f: BinaryFn) -> ScalarBinary {
    match f {
        BinaryFn::Add => ScalarBinary::Add,
        BinaryFn::Sub => ScalarBinary::Sub,
        BinaryFn::Mul | BinaryFn::Mask => ScalarBinary::Mul,
        BinaryFn::Div => ScalarBinary::Div,
        BinaryFn::Max => ScalarBinary::Max,
    }
}
