//! Where tiles live, and the value of an element.
//!
//! A tile without a home is recomputed from its operands at each use: [`BlockEmitter::value_at`] gives the
//! expression. Before that [`BlockEmitter::prepare`] makes what the element depends on readable, which may
//! copy registers to shared memory.

use super::elements::ElementStore;
use super::emitter::BlockEmitter;
use super::layout::{ColumnLayout, FragmentLayout, RegisterSlot, RegisterTile};
use super::reduce::reduction_of;
use super::steps::{BlockTile, TileStep};
use crate::graph::Accumulation;
use crate::lower::partner;
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use orch_compute::{BufferId, Expr, ExprId, Exprs};
use orch_ir::{BinaryFn as ScalarBinary, DType, UnaryFn as ScalarUnary};
use orch_thread::Stmt;

/// A tile in shared memory.
#[derive(Clone, Debug)]
pub(super) struct SharedTile {
    pub buffer: BufferId,
    /// Offset of the first element.
    pub base: ExprId,
    /// Elements from one index to the next, by dimension. Of a swizzled tile only those of leading dimensions
    /// count.
    pub strides: Vec<usize>,
    /// Extents with padding; elements in the padding are zero, or, in the rows of a skinny A, arbitrary.
    pub padded: Vec<usize>,
    /// The `[row, column]` dimensions of a swizzled tile (128-byte swizzle, rows of 64 elements of 16 bits);
    /// `None` if not swizzled.
    pub swizzle: Option<[usize; 2]>,
}

/// Where a tile lives.
#[derive(Clone, Debug)]
pub(super) enum TileHome {
    Registers(RegisterTile),
    Shared(SharedTile),
}

/// An element of a tile: its coordinates, and the register slot they are those of, if registers of that
/// layout may be read.
#[derive(Clone, Debug)]
pub(super) struct TilePoint {
    pub coords: Vec<ExprId>,
    pub slot: Option<RegisterSlot>,
}

impl BlockEmitter<'_> {
    /// The register layout in which a tile is or should be computed: its own home's, or for elementwise tiles
    /// that of operands in registers. `None` if it is computed by coordinates, through shared memory.
    pub fn register_layout(&self, tile: usize) -> Option<FragmentLayout> {
        let shape = &self.plan.steps.tiles[tile].shape;
        for place in &self.tiles.homes[tile] {
            if let TileHome::Registers(registers) = place {
                return Some(registers.at.clone());
            }
        }
        let TileStep::Op { op, args } = &self.plan.steps.tiles[tile].step else { return None };
        if !op.is_elementwise() || !self.tiles.homes[tile].is_empty() {
            return None;
        }
        let rows = self.warp_grid(shape)?;
        let homes = args.iter().filter_map(|&arg| self.register_layout(arg)).filter(|at| at.rows == rows);
        let homes: Vec<FragmentLayout> = homes.collect();
        let n = shape[shape.len() - 1];
        let full = homes.iter().find(|at| at.columns == ColumnLayout::Partitioned(n));
        let per_row = || match n {
            1 => FragmentLayout::per_row(&rows),
            n => FragmentLayout { rows: rows.clone(), columns: ColumnLayout::Partitioned(n) },
        };
        full.cloned().or_else(|| (!homes.is_empty()).then(per_row))
    }

    /// Makes a tile readable at the slots of a layout (`Some`), or at any coordinates (`None`): recursively
    /// for tiles that are recomputed.
    pub fn prepare(&mut self, tile: usize, at: Option<&FragmentLayout>) {
        if self.is_readable(tile, at) {
            return;
        }
        if !self.tiles.homes[tile].is_empty() {
            self.copy_to_shared(tile);
            return;
        }
        let step = self.plan.steps.tiles[tile].step.clone();
        // Elementwise operators read operands at the same slot; others at other coordinates.
        let keeps_place = matches!(&step, TileStep::Op { op, .. } if op.is_elementwise());
        for arg in step.args() {
            self.prepare(arg, at.filter(|_| keeps_place));
        }
    }

    /// Whether a tile has a home that can be read at the slots of a layout, or anywhere.
    fn is_readable(&self, tile: usize, at: Option<&FragmentLayout>) -> bool {
        self.tiles.homes[tile].iter().any(|place| match place {
            TileHome::Shared(_) => true,
            TileHome::Registers(registers) => at.is_some_and(|at| at.covers(&registers.at)),
        })
    }

    /// Copies a tile from registers to shared memory, as a second home.
    pub fn copy_to_shared(&mut self, tile: usize) {
        let registers = self.tiles.homes[tile].iter().find_map(|place| match place {
            TileHome::Registers(registers) => Some(registers.clone()),
            TileHome::Shared(_) => None,
        });
        if let Some(registers) = registers {
            let view = self.shared_copy(&registers, &self.plan.steps.tiles[tile].shape.clone());
            self.tiles.homes[tile].push(TileHome::Shared(view));
        }
    }

    /// A new f32 tile in shared memory with the content of registers.
    pub fn shared_copy(&mut self, registers: &RegisterTile, shape: &[usize]) -> SharedTile {
        let view = self.alloc_shared("tile", DType::F32, shape, shape.len().saturating_sub(1));
        let place = TileHome::Registers(registers.clone());
        let stmts = self
            .store_slots_to_shared(&registers.at, shape, &view, |this, point| this.read_home(&place, point));
        self.emit(stmts);
        view
    }

    /// Stores of a value per slot of a layout to a tile in shared memory, in pairs of columns where these are
    /// adjacent and aligned.
    pub fn store_slots_to_shared(
        &mut self,
        at: &FragmentLayout,
        shape: &[usize],
        view: &SharedTile,
        value: impl Fn(&mut Self, &TilePoint) -> ExprId,
    ) -> Vec<Stmt> {
        let dtype = self.program.buffer(view.buffer).dtype;
        let last = shape.len() - 1;
        let lines_are_even =
            (0..last).all(|dim| view.strides[dim].is_multiple_of(2)) && shape[last].is_multiple_of(2);
        let in_pairs = at.has_column_pairs() && view.strides[last] == 1 && lines_are_even;
        self.store_each_slot(at, in_pairs, |this, slot| {
            let mask = this.slot_exists(slot, true);
            let point = this.point_of_slot(slot, shape);
            let value = value(this, &point);
            let value = this.program.exprs.cast(dtype, value);
            let offset = this.shared_offset(view, &point.coords);
            ElementStore { buffer: view.buffer, offset, value, mask }
        })
    }

    /// Stores for every slot of a layout; with `in_pairs`, columns `2c` and `2c + 1` by one store.
    pub fn store_each_slot(
        &mut self,
        at: &FragmentLayout,
        in_pairs: bool,
        mut write: impl FnMut(&mut Self, &RegisterSlot) -> ElementStore,
    ) -> Vec<Stmt> {
        let mut first: Option<ElementStore> = None;
        self.for_each_slot(at, |this, slot| {
            let ElementStore { buffer, offset, value, mask } = write(this, &slot);
            if !in_pairs {
                return vec![Stmt::Store { buffer, offset, value, mask }];
            }
            match first.take() {
                None => {
                    first = Some(ElementStore { buffer, offset, value, mask });
                    Vec::new()
                }
                Some(ElementStore { offset, value: left, mask, .. }) => {
                    let value = this.program.exprs.interleave(left, value);
                    let mask = mask.map(|mask| this.program.exprs.splat(mask, 2));
                    vec![Stmt::Store { buffer, offset, value, mask }]
                }
            }
        })
    }

    /// Statements for every register of a layout, unrolled.
    pub fn for_each_slot(
        &mut self,
        at: &FragmentLayout,
        mut body: impl FnMut(&mut Self, RegisterSlot) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let column_halves = if at.columns == ColumnLayout::PerRow { 1 } else { 2 };
        self.for_each_fragment(at, |this, [lead, row_tile, column_tile]| {
            let mut stmts = Vec::new();
            for row_half in 0..2 {
                for column_half in 0..column_halves {
                    let slot =
                        RegisterSlot { at: at.clone(), lead, row_tile, column_tile, row_half, column_half };
                    stmts.extend(body(this, slot));
                }
            }
            stmts
        })
    }

    /// Whether a slot's row and column exist; `None` if they always do. With `once`, true only in one of the
    /// threads that share a value per row.
    pub fn slot_exists(&mut self, slot: &RegisterSlot, once: bool) -> Option<ExprId> {
        let [row, column] = self.element_coords(slot);
        let row_in = self.is_below(row, slot.at.rows.m);
        let column_in = self.is_below(column, slot.at.n());
        let mut inside = self.program.exprs.and_guard(row_in, column_in);
        if once && slot.at.columns == ColumnLayout::PerRow {
            let (zero, within) = (self.index(0), self.lane_field(1, 4, 1));
            let [_, warp_column] = self.warp_coords(&slot.at);
            for place in [within, warp_column] {
                let is_first = self.program.exprs.eq(place, zero);
                inside = self.program.exprs.and_guard(inside, Some(is_first));
            }
        }
        inside
    }

    /// The point of a tile at a slot; slots beyond the last row or column give the last one.
    pub fn point_of_slot(&mut self, slot: &RegisterSlot, shape: &[usize]) -> TilePoint {
        let [row, column] = self.element_coords(slot);
        let mut coords = self.program.exprs.unflatten(slot.lead, &slot.at.rows.lead);
        coords.push(self.clamped_below(row, slot.at.rows.m));
        coords.push(self.clamped_below(column, slot.at.n()));
        for (coord, &extent) in coords.iter_mut().zip(shape) {
            if extent == 1 {
                *coord = self.program.exprs.index(0);
            }
        }
        TilePoint { coords, slot: Some(slot.clone()) }
    }

    /// The offset of an element of a tile in shared memory.
    pub fn shared_offset(&mut self, view: &SharedTile, coords: &[ExprId]) -> ExprId {
        let within = match view.swizzle {
            Some(lines) => self.swizzled_offset_in(view, lines, coords),
            None => self.program.exprs.linear_index(coords, &view.strides),
        };
        let offset = self.program.exprs.add2(view.base, within);
        self.simplifier.simplify(&mut self.program.exprs, offset)
    }

    /// An element of a tile, as f32: from registers if the slot covers them, else from shared memory, else
    /// recomputed. Requires [`prepare`](BlockEmitter::prepare).
    pub fn value_at(&mut self, tile: usize, point: &TilePoint) -> ExprId {
        let seen = |place: &&TileHome| match place {
            TileHome::Registers(registers) => {
                point.slot.as_ref().is_some_and(|slot| slot.at.covers(&registers.at))
            }
            TileHome::Shared(_) => false,
        };
        let place = self.tiles.homes[tile].iter().find(seen);
        let shared = |place: &&TileHome| matches!(place, TileHome::Shared(_));
        if let Some(place) = place.or_else(|| self.tiles.homes[tile].iter().find(shared)).cloned() {
            return self.read_home(&place, point);
        }
        match self.plan.steps.tiles[tile].step.clone() {
            TileStep::Load { .. } => {
                let iteration = self.iteration;
                self.read_tensor(tile, &point.coords, iteration)
            }
            TileStep::Inside { dim, extent } => self.inside_value(tile, (dim, extent), &point.coords),
            TileStep::Op { op, args } => self.computed_value(&op, &args, point),
            // Accumulators and maxima have places before anybody reads them.
            TileStep::Accumulate { tile, .. } | TileStep::RunningMax { tile } => self.value_at(tile, point),
        }
    }

    /// An element of a home, as f32.
    pub fn read_home(&mut self, place: &TileHome, point: &TilePoint) -> ExprId {
        let value = match place {
            TileHome::Registers(registers) => {
                let offset = match &point.slot {
                    Some(slot) => self.register_offset(slot, &registers.at),
                    None => self.index(0),
                };
                self.program.exprs.load(registers.buffer, offset, 1, None)
            }
            TileHome::Shared(view) => {
                let offset = self.shared_offset(view, &point.coords);
                self.program.exprs.load(view.buffer, offset, 1, None)
            }
        };
        self.program.exprs.cast(DType::F32, value)
    }

    /// An element of an operator's result, from elements of its operands.
    fn computed_value(&mut self, op: &Op, args: &[usize], point: &TilePoint) -> ExprId {
        match op {
            Op::Unary(f) => {
                let value = self.broadcast_operand(args[0], point);
                self.unary_value(*f, value)
            }
            Op::Scale(factor) => {
                let (value, factor) = (self.broadcast_operand(args[0], point), self.float(factor.to_f64()));
                self.program.exprs.mul(value, factor)
            }
            Op::Offset(summand) => {
                let (value, summand) = (self.broadcast_operand(args[0], point), self.float(summand.to_f64()));
                self.program.exprs.add2(value, summand)
            }
            Op::Binary(BinaryFn::Mask) => {
                let value = self.broadcast_operand(args[0], point);
                let masked = self.float(f64::NEG_INFINITY);
                let mask = self.broadcast_operand(args[1], point);
                let zero = self.float(0.0);
                let keeps = match *self.program.exprs.get(mask) {
                    // A mask that is computed from indices.
                    Expr::Select(condition, _, otherwise) if otherwise == zero => condition,
                    _ => self.program.exprs.ne(mask, zero),
                };
                self.program.exprs.select(keeps, value, masked)
            }
            Op::Binary(f) => {
                let (lhs, rhs) =
                    (self.broadcast_operand(args[0], point), self.broadcast_operand(args[1], point));
                if *f == BinaryFn::Div && self.is_softmax_sum(args[1]) {
                    let one = self.float(1.0);
                    let reciprocal = self.program.exprs.binary(ScalarBinary::Div, one, rhs);
                    return self.program.exprs.mul(lhs, reciprocal);
                }
                self.program.exprs.binary(binary(*f), lhs, rhs)
            }
            Op::Rotate { dim, group } => {
                let mut coords = point.coords.clone();
                let (partner, is_negated) = partner(&mut self.program.exprs, coords[*dim], *group);
                coords[*dim] = self.simplifier.simplify(&mut self.program.exprs, partner);
                let value = self.value_at(args[0], &TilePoint { coords, slot: None });
                let exprs = &mut self.program.exprs;
                let opposite = exprs.neg(value);
                exprs.select(is_negated, opposite, value)
            }
            op => match reduction_of(op) {
                Some(reduction) => self.reduce_in_thread(args[0], reduction, point),
                None => self.moved_value(op, args, &point.coords),
            },
        }
    }

    /// Whether a tile is sums of exponentials relative to the maxima of their rows, by which whole rows are divided. They are at least
    /// about 1, so that a row may be multiplied by the reciprocal: an exact division takes some ten instructions, of which a few wait for
    /// each other.
    fn is_softmax_sum(&self, tile: usize) -> bool {
        let BlockTile { step, shape, .. } = &self.plan.steps.tiles[tile];
        let TileStep::Accumulate { how: Accumulation::RescaledSum { .. }, tile: from } = step else {
            return false;
        };
        let is_sum = |op: &Op| reduction_of(op).is_some_and(|(f, ..)| f == ReduceFn::Sum);
        let adds_exponentials = |args: &[usize]| {
            matches!(&self.plan.steps.tiles[args[0]].step, TileStep::Op { op: Op::Unary(UnaryFn::Exp), .. })
        };
        let sums = &self.plan.steps.tiles[*from].step;
        shape.last() == Some(&1)
            && matches!(sums, TileStep::Op { op, args } if is_sum(op) && adds_exponentials(args))
    }

    /// An element of an operand of an elementwise operator: extents of 1 are broadcast.
    pub fn broadcast_operand(&mut self, tile: usize, point: &TilePoint) -> ExprId {
        let point = self.broadcast_point(tile, point);
        self.value_at(tile, &point)
    }

    /// The point of a tile that is broadcast to another: 0 in dimensions of extent 1.
    pub fn broadcast_point(&mut self, tile: usize, point: &TilePoint) -> TilePoint {
        let mut point = point.clone();
        for (coord, &extent) in point.coords.iter_mut().zip(&self.plan.steps.tiles[tile].shape) {
            if extent == 1 {
                *coord = self.program.exprs.index(0);
            }
        }
        point
    }

    /// An element of a result that is an element of an operand: transposition, slice, repetition,
    /// concatenation.
    fn moved_value(&mut self, op: &Op, args: &[usize], coords: &[ExprId]) -> ExprId {
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
            Op::Concat { dim } => return self.concatenated_value(args, *dim, coords),
            _ => {}
        }
        self.value_at(args[0], &TilePoint { coords: from, slot: None })
    }

    /// An element of a concatenation along `dim`: selects among operands, each read at a clamped coordinate.
    fn concatenated_value(&mut self, args: &[usize], dim: usize, coords: &[ExprId]) -> ExprId {
        let mut starts = Vec::new();
        let mut total = 0;
        for &arg in args {
            starts.push(total);
            total += self.plan.steps.tiles[arg].shape[dim];
        }
        let mut result = None;
        for (&arg, &start) in args.iter().zip(&starts).rev() {
            let extent = self.plan.steps.tiles[arg].shape[dim];
            let mut from = coords.to_vec();
            let first = self.program.exprs.add_const(coords[dim], -(start as i64));
            let (low, last) = (self.index(0), self.index(extent - 1));
            let from_first = self.program.exprs.max(first, low);
            from[dim] = self.program.exprs.min(from_first, last);
            let value = self.value_at(arg, &TilePoint { coords: from, slot: None });
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

    /// A unary function of a value.
    pub fn unary_value(&mut self, f: UnaryFn, x: ExprId) -> ExprId {
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

/// The scalar function of a binary operator; masks are selections and do not come here.
fn binary(f: BinaryFn) -> ScalarBinary {
    match f {
        BinaryFn::Add => ScalarBinary::Add,
        BinaryFn::Sub => ScalarBinary::Sub,
        BinaryFn::Mul | BinaryFn::Mask => ScalarBinary::Mul,
        BinaryFn::Div => ScalarBinary::Div,
        BinaryFn::Max => ScalarBinary::Max,
    }
}
