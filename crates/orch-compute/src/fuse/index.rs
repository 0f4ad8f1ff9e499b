//! Index arithmetic during a build. Every index is kept in the simplifier's normal form, so that what one reshape
//! linearizes the next takes apart again, and equal indices are equal expressions.

use super::builder::Builder;
use crate::block::Stage;
use crate::bounds::IntRange;
use crate::expr::{Expr, ExprId};

impl Builder<'_> {
    /// The normal form of an index or condition.
    pub fn normal(&mut self, id: ExprId) -> ExprId {
        self.simplifier.simplify(&mut self.exprs, id)
    }

    /// What is known of an index.
    pub fn range(&mut self, index: ExprId) -> IntRange {
        self.simplifier.range(&mut self.exprs, index)
    }

    /// `a + b`.
    pub fn sum(&mut self, a: ExprId, b: ExprId) -> ExprId {
        let sum = self.exprs.add2(a, b);
        self.normal(sum)
    }

    /// `a * factor + constant`.
    pub fn affine(&mut self, a: ExprId, factor: i64, constant: i64) -> ExprId {
        let scaled = self.exprs.mul_const(a, factor);
        let moved = self.exprs.add_const(scaled, constant);
        self.normal(moved)
    }

    /// `floor(a / divisor)`, `divisor > 0`.
    pub fn quotient(&mut self, a: ExprId, divisor: usize) -> ExprId {
        let divisor = self.exprs.index(divisor as i64);
        let quotient = self.exprs.floor_div(a, divisor);
        self.normal(quotient)
    }

    /// `a - floor(a / divisor) * divisor`, `divisor > 0`.
    pub fn remainder(&mut self, a: ExprId, divisor: usize) -> ExprId {
        let divisor = self.exprs.index(divisor as i64);
        let remainder = self.exprs.floor_rem(a, divisor);
        self.normal(remainder)
    }

    /// `a < bound`.
    pub fn below(&mut self, a: ExprId, bound: usize) -> ExprId {
        let bound = self.exprs.index(bound as i64);
        let below = self.exprs.lt(a, bound);
        self.normal(below)
    }

    /// `0 <= a < extent`; `None` if that always holds.
    pub fn in_range(&mut self, a: ExprId, extent: usize) -> Option<ExprId> {
        let inside = self.exprs.in_range(a, 0, extent as i64);
        let inside = self.normal(inside);
        (self.exprs.as_bool(inside) != Some(true)).then_some(inside)
    }

    /// `a` limited to `0..extent`.
    pub fn clamped(&mut self, a: ExprId, extent: usize) -> ExprId {
        let (zero, last) = (self.exprs.index(0), self.exprs.index(extent as i64 - 1));
        let above = self.exprs.max(a, zero);
        let clamped = self.exprs.min(above, last);
        self.normal(clamped)
    }

    /// The row-major offset of an index tuple.
    pub fn linearized(&mut self, index: &[ExprId], dims: &[usize]) -> ExprId {
        let offset = self.exprs.linear_index(index, &orch_ir::Shape::from(dims).strides());
        self.normal(offset)
    }

    /// The index tuple of a row-major offset; dimensions of extent 1 have index 0.
    pub fn delinearized(&mut self, offset: ExprId, dims: &[usize]) -> Vec<ExprId> {
        let long: Vec<usize> = dims.iter().copied().filter(|&extent| extent != 1).collect();
        let mut index = self.exprs.unflatten(offset, &long).into_iter();
        let mut component = |extent: usize| if extent == 1 { None } else { index.next() };
        let components: Vec<Option<ExprId>> = dims.iter().map(|&extent| component(extent)).collect();
        let zero = self.exprs.index(0);
        components.into_iter().map(|id| id.map_or(zero, |id| self.normal(id))).collect()
    }

    /// The index components of all reads and stores so far.
    pub fn access_indices(&self) -> Vec<ExprId> {
        let mut roots = Vec::new();
        let mut indices = Vec::new();
        for stage in &self.stages {
            match stage {
                Stage::Reduce { body, .. } => roots.push(*body),
                Stage::Store { index, body, .. } => {
                    roots.push(*body);
                    indices.extend(index);
                }
            }
        }
        for id in self.exprs.reachable(&roots) {
            if let Expr::Read { index, .. } = self.exprs.get(id) {
                indices.extend(index);
            }
        }
        indices
    }
}
