//! Elements of tiles as scalar expressions, and where tiles lie in memory.

use super::CpuBlockEmitter;
use super::plan::{Map, Work};
use crate::lower::partner;
use crate::op::{BinaryFn, Op, UnaryFn};
use orch_compute::{BufferId, ExprId};
use orch_ir::{self as ir, DType};

/// A tile in memory.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct TileView {
    /// The memory.
    pub buffer: BufferId,
    /// Its element type.
    pub dtype: DType,
    /// The place of the first element.
    pub offset: ExprId,
    /// Elements from one index to the next one, by dimension.
    pub strides: Vec<usize>,
}

impl CpuBlockEmitter<'_> {
    /// The place of an element of a view.
    pub fn place(&mut self, view: &TileView, index: &[ExprId]) -> ExprId {
        let distance = self.program.exprs.linear_index(index, &view.strides);
        self.program.exprs.add2(view.offset, distance)
    }

    /// Where a tile lies in memory, if it does.
    pub fn view(&mut self, tile: usize) -> Option<TileView> {
        if let Some(view) = &self.tiles[tile] {
            return Some(view.clone());
        }
        let node = self.plan.nodes[tile].clone();
        match node.work {
            Work::Load { tensor, parts } if self.request.graph.computed_mask(tensor).is_none() => {
                let starts: Vec<ExprId> = parts.iter().map(|part| self.span(part).0).collect();
                let stored = &self.request.stored[tensor.index()];
                let offset = self.program.exprs.index(stored.offset as i64);
                let whole = TileView {
                    buffer: self.inputs.iter().find(|(id, _)| *id == tensor)?.1,
                    dtype: stored.dtype,
                    offset,
                    strides: stored.strides.clone(),
                };
                Some(TileView { offset: self.place(&whole, &starts), ..whole })
            }
            Work::Transpose(perm) => {
                let view = self.view(node.args[0])?;
                let strides = perm.iter().map(|&dim| view.strides[dim]).collect();
                Some(TileView { strides, ..view })
            }
            Work::Slice { dim, start } => {
                let view = self.view(node.args[0])?;
                let skipped = (start * view.strides[dim]) as i64;
                Some(TileView { offset: self.program.exprs.add_const(view.offset, skipped), ..view })
            }
            _ => None,
        }
    }

    /// An element of a tile, as f32.
    pub fn element(&mut self, tile: usize, index: &[ExprId]) -> ExprId {
        if let Some(view) = self.view(tile) {
            let element = self.load(&view, index);
            return self.program.exprs.cast(DType::F32, element);
        }
        let node = self.plan.nodes[tile].clone();
        match node.work {
            Work::Map(map) => self.mapped(&map, &node.args, index),
            Work::Rotate { dim, group } => {
                let mut from = index.to_vec();
                let (partner, is_negated) = partner(&mut self.program.exprs, index[dim], group);
                from[dim] = partner;
                let element = self.element(node.args[0], &from);
                let exprs = &mut self.program.exprs;
                let opposite = exprs.neg(element);
                exprs.select(is_negated, opposite, element)
            }
            Work::Load { .. } => {
                let condition = self.condition(tile, index);
                self.program.exprs.cast(DType::F32, condition)
            }
            work => {
                let index = self.moved_index(&work, index);
                self.element(node.args[0], &index)
            }
        }
    }

    fn load(&mut self, view: &TileView, index: &[ExprId]) -> ExprId {
        let place = self.place(view, index);
        self.program.exprs.load(view.buffer, place, 1, None)
    }

    /// The index in its operand of an element of a tile that only moves elements.
    fn moved_index(&mut self, work: &Work, index: &[ExprId]) -> Vec<ExprId> {
        let mut moved = index.to_vec();
        match work {
            Work::Transpose(perm) => perm.iter().zip(index).for_each(|(&dim, &at)| moved[dim] = at),
            Work::Slice { dim, start } => {
                moved[*dim] = self.program.exprs.add_const(index[*dim], *start as i64);
            }
            Work::Repeat { dim, times } => {
                let times = self.program.exprs.index(*times as i64);
                moved[*dim] = self.program.exprs.floor_div(index[*dim], times);
            }
            work => unreachable!("{work:?} has a place in scratch"),
        }
        moved
    }

    /// An index where extents of 1 are repeated.
    pub fn repeated(&mut self, tile: usize, index: &[ExprId]) -> Vec<ExprId> {
        let zero = self.program.exprs.index(0);
        let shape = &self.plan.nodes[tile].shape;
        shape.iter().zip(index).map(|(extent, &at)| if extent.is_one() { zero } else { at }).collect()
    }

    /// True where an element of a mask is not 0.
    fn condition(&mut self, tile: usize, index: &[ExprId]) -> ExprId {
        let node = self.plan.nodes[tile].clone();
        match &node.work {
            _ if self.tiles[tile].is_some() => {}
            Work::Load { tensor, parts } => {
                if let Some(mask) = self.request.graph.computed_mask(*tensor).cloned() {
                    let starts: Vec<ExprId> = parts.iter().map(|part| self.span(part).0).collect();
                    let exprs = &mut self.program.exprs;
                    let index: Vec<ExprId> =
                        starts.iter().zip(index).map(|(&a, &b)| exprs.add2(a, b)).collect();
                    return self.mask(&mask, &index);
                }
                if let Some(view) = self.view(tile) {
                    let element = self.load(&view, index);
                    return self.is_not_zero(element);
                }
            }
            Work::Transpose(_) | Work::Slice { .. } | Work::Repeat { .. } => {
                let index = self.moved_index(&node.work, index);
                return self.condition(node.args[0], &index);
            }
            _ => {}
        }
        let element = self.element(tile, index);
        self.is_not_zero(element)
    }

    fn is_not_zero(&mut self, element: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        match exprs.dtype(element) {
            DType::Bool => element,
            dtype => {
                let zero = exprs.zero(dtype);
                exprs.ne(element, zero)
            }
        }
    }

    /// An element of a mask that indices say.
    fn mask(&mut self, mask: &Op, index: &[ExprId]) -> ExprId {
        let exprs = &mut self.program.exprs;
        match mask {
            Op::Causal { offset, .. } => {
                let diagonal = exprs.add_const(index[index.len() - 2], *offset);
                exprs.le(index[index.len() - 1], diagonal)
            }
            Op::Below { dim, limit, .. } => {
                let limit = exprs.index(i64::try_from(*limit).unwrap_or(i64::MAX));
                exprs.lt(index[*dim], limit)
            }
            _ => unreachable!("a mask that is computed"),
        }
    }

    fn mapped(&mut self, map: &Map, args: &[usize], index: &[ExprId]) -> ExprId {
        let at = self.repeated(args[0], index);
        let x = self.element(args[0], &at);
        match map {
            Map::Unary(f) => self.unary(*f, x),
            Map::Scale(c) => {
                let c = self.constant(*c);
                self.program.exprs.mul(x, c)
            }
            Map::Offset(c) => {
                let c = self.constant(*c);
                self.program.exprs.add2(x, c)
            }
            Map::Over(len) => {
                let len = self.len(len);
                let len = self.program.exprs.cast(DType::F32, len);
                self.program.exprs.binary(ir::BinaryFn::Div, x, len)
            }
            Map::Binary(f) => {
                let at = self.repeated(args[1], index);
                self.binary(*f, x, args[1], &at)
            }
        }
    }

    fn binary(&mut self, f: BinaryFn, x: ExprId, other: usize, at: &[ExprId]) -> ExprId {
        if f == BinaryFn::Mask {
            let (keep, nothing) = (self.condition(other, at), self.constant(f64::NEG_INFINITY));
            return self.program.exprs.select(keep, x, nothing);
        }
        let y = self.element(other, at);
        let f = match f {
            BinaryFn::Add => ir::BinaryFn::Add,
            BinaryFn::Sub => ir::BinaryFn::Sub,
            BinaryFn::Mul => ir::BinaryFn::Mul,
            BinaryFn::Div => ir::BinaryFn::Div,
            BinaryFn::Max | BinaryFn::Mask => ir::BinaryFn::Max,
        };
        self.program.exprs.binary(f, x, y)
    }

    /// An f32 constant.
    pub fn constant(&mut self, value: f64) -> ExprId {
        self.program.exprs.constant(DType::F32, value)
    }

    /// A function of one number, as [`UnaryFn`] says.
    pub fn unary(&mut self, f: UnaryFn, x: ExprId) -> ExprId {
        let [zero, one] = [0.0, 1.0].map(|c| self.constant(c));
        let exprs = &mut self.program.exprs;
        match f {
            UnaryFn::Exp => exprs.unary(ir::UnaryFn::Exp, x),
            UnaryFn::Square => exprs.mul(x, x),
            UnaryFn::Sqrt => exprs.unary(ir::UnaryFn::Sqrt, x),
            UnaryFn::Silu | UnaryFn::Sigmoid => {
                let opposite = exprs.neg(x);
                let e = exprs.unary(ir::UnaryFn::Exp, opposite);
                let below = exprs.add2(one, e);
                let above = if f == UnaryFn::Silu { x } else { one };
                exprs.binary(ir::BinaryFn::Div, above, below)
            }
            UnaryFn::Tanh => exprs.unary(ir::UnaryFn::Tanh, x),
            UnaryFn::Gelu => self.gelu(x),
            UnaryFn::Relu => exprs.max(x, zero),
            UnaryFn::Erf => exprs.unary(ir::UnaryFn::Erf, x),
            UnaryFn::Log => exprs.unary(ir::UnaryFn::Log, x),
            UnaryFn::Guard => {
                let nothing = self.constant(f64::NEG_INFINITY);
                let exprs = &mut self.program.exprs;
                let is_nothing = exprs.eq(x, nothing);
                exprs.select(is_nothing, zero, x)
            }
        }
    }

    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x³)))`
    fn gelu(&mut self, x: ExprId) -> ExprId {
        let [half, one, cubic, factor] =
            [0.5, 1.0, 0.044_715, 0.797_884_560_802_865_4].map(|c| self.constant(c));
        let exprs = &mut self.program.exprs;
        let square = exprs.mul(x, x);
        let cube = exprs.mul(square, x);
        let correction = exprs.mul(cubic, cube);
        let sum = exprs.add2(x, correction);
        let inner = exprs.mul(factor, sum);
        let tanh = exprs.unary(ir::UnaryFn::Tanh, inner);
        let twice = exprs.add2(one, tanh);
        let half = exprs.mul(half, x);
        exprs.mul(half, twice)
    }
}
