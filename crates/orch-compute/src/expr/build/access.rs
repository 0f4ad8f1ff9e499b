//! Smart constructors of accesses to tensors and buffers, and of the index tuples they take.

use crate::expr::{ArgId, BufferId, Expr, ExprId, Exprs, StageId, VarId};
use orch_ir::{BinaryFn, DType};

impl Exprs {
    /// The element of a tensor argument at `index`; 0 where `guard` is false.
    pub fn read(&mut self, arg: ArgId, index: Vec<ExprId>, guard: Option<ExprId>) -> ExprId {
        let read = |guard| Expr::Read { arg, index, guard };
        match guard.and_then(|guard| self.as_bool(guard)) {
            Some(true) => self.add(read(None)),
            None => self.add(read(guard)),
            Some(false) => {
                let dtype = self.dtype_of(read(None));
                self.zero(dtype)
            }
        }
    }

    /// The result of an earlier stage at the current point.
    pub fn stage(&mut self, stage: StageId) -> ExprId {
        self.add(Expr::Stage(stage))
    }

    /// `lanes` elements of a buffer: consecutive ones from a scalar `offset` on, or those at a vector `offset`;
    /// 0 where `mask` is false. A ramp of stride 1 is a consecutive load.
    pub fn load(&mut self, buffer: BufferId, offset: ExprId, lanes: usize, mask: Option<ExprId>) -> ExprId {
        let offset = match *self.get(offset) {
            Expr::Ramp { base, stride: 1, .. } => base,
            _ => offset,
        };
        let load = |mask| Expr::Load { buffer, offset, lanes, mask };
        let mask = mask.map(|mask| self.splat(mask, lanes));
        match mask.and_then(|mask| self.as_bool(mask)) {
            Some(true) => self.add(load(None)),
            None => self.add(load(mask)),
            Some(false) => {
                let dtype = self.dtype_of(load(None));
                let zero = self.zero(dtype);
                self.splat(zero, lanes)
            }
        }
    }

    /// The element type that a node would have.
    fn dtype_of(&mut self, node: Expr) -> DType {
        let id = self.add(node);
        self.dtype(id)
    }

    /// `sum of index[d] * strides[d]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn linear_index(&mut self, index: &[ExprId], strides: &[usize]) -> ExprId {
        assert_eq!(index.len(), strides.len(), "one stride per index");
        let mut sum = self.index(0);
        for (&position, &stride) in index.iter().zip(strides) {
            let term = self.mul_const(position, stride as i64);
            sum = self.add2(sum, term);
        }
        sum
    }

    /// The index tuple of a row-major `[shape]` whose position is `linear`: inverse of [`Exprs::linear_index`]
    /// with row-major strides. The first index is not reduced, so that it shows positions out of range.
    pub fn unflatten(&mut self, linear: ExprId, shape: &[usize]) -> Vec<ExprId> {
        let mut rest = linear;
        let mut index = vec![linear; shape.len()];
        for (dim, &extent) in shape.iter().enumerate().skip(1).rev() {
            let extent = self.index(extent.max(1) as i64);
            index[dim] = self.floor_rem(rest, extent);
            rest = self.floor_div(rest, extent);
        }
        if let Some(first) = index.first_mut() {
            *first = rest;
        }
        index
    }

    /// Declares an index variable `0..extent` and returns it as an expression too.
    pub fn fresh_index(&mut self, name: impl Into<String>, extent: usize) -> (VarId, ExprId) {
        let var = self.declare_index(name, extent);
        (var, self.var(var))
    }

    /// True if the expression is an access that yields 0 wherever `condition` is false.
    pub(super) fn is_zero_unless(&self, access: ExprId, condition: ExprId) -> bool {
        let (Expr::Read { guard, .. } | Expr::Load { mask: guard, .. }) = self.get(access) else {
            return false;
        };
        let through_and = |node: &Expr, operands: &mut Vec<ExprId>| {
            if let Expr::Binary(BinaryFn::And, a, b) = *node {
                operands.extend([a, b]);
            }
        };
        guard.is_some_and(|guard| self.reachable_along(guard, through_and).contains(&condition))
    }

    /// True for the constant 0 (of floats, `+0.0`).
    pub(super) fn is_zero_bits(&self, id: ExprId) -> bool {
        self.as_const(id).is_some_and(|c| c.bits == 0)
    }
}
