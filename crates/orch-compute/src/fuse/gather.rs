//! Substitution through primitives whose index is itself a tensor: indices are read, converted and clamped.

use super::builder::Builder;
use super::error::CannotFuse;
use crate::expr::ExprId;
use orch_ir::{DType, TensorId};

impl Builder<'_> {
    /// An element of `indices` as an index into a dimension of this extent.
    fn index_value(
        &mut self,
        indices: TensorId,
        at: &[ExprId],
        extent: usize,
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        if extent == 1 {
            return Ok(self.exprs.index(0));
        }
        let value = self.expr_at(indices, at, guard)?;
        let wide = self.exprs.cast(DType::I64, value);
        Ok(self.clamped(wide, extent))
    }

    /// An element of [`orch_ir::PrimOp::Take`].
    pub fn taken(
        &mut self,
        axis: usize,
        inputs: &[TensorId],
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let (data, indices) = (graph.shape(inputs[0]), graph.shape(inputs[1]));
        let picked = self.index_value(inputs[1], &at[axis..axis + indices.rank()], data[axis], guard)?;
        let source = [&at[..axis], &[picked], &at[axis + indices.rank()..]].concat();
        self.expr_at(inputs[0], &source, guard)
    }

    /// An element of [`orch_ir::PrimOp::TakeAlong`].
    pub fn taken_along(
        &mut self,
        axis: usize,
        inputs: &[TensorId],
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let mut source = at.to_vec();
        source[axis] = self.index_value(inputs[1], at, self.graph.shape(inputs[0])[axis], guard)?;
        self.expr_at(inputs[0], &source, guard)
    }

    /// An element of [`orch_ir::PrimOp::GatherNd`].
    pub fn gathered(
        &mut self,
        batch_dims: usize,
        inputs: &[TensorId],
        at: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let (data, indices) = (graph.shape(inputs[0]), graph.shape(inputs[1]));
        let outer = indices.rank() - 1;
        let mut source = at[..batch_dims].to_vec();
        for position in 0..indices[outer] {
            let mut tuple = at[..outer].to_vec();
            tuple.push(self.exprs.index(position as i64));
            source.push(self.index_value(inputs[1], &tuple, data[batch_dims + position], guard)?);
        }
        source.extend(&at[outer..]);
        self.expr_at(inputs[0], &source, guard)
    }
}
