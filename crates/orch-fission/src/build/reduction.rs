//! Reductions and products.

use super::Built;
use crate::Context;
use orch_ir::{BinaryFn, Contract, PrimOp, ReduceOp, TensorId};

impl Context<'_> {
    /// Reduces `axes` (sorted), which disappear from the shape.
    ///
    /// # Errors
    /// If the axes are not sorted or out of range, or the operation is not defined for the type.
    pub fn reduce(&mut self, op: ReduceOp, x: TensorId, axes: &[usize]) -> Built {
        if axes.is_empty() && !op.is_arg() {
            return Ok(x);
        }
        self.emit(PrimOp::Reduce { op, axes: axes.to_vec() }, &[x])
    }

    /// Reduces `axes` (sorted), which stay with extent 1.
    ///
    /// # Errors
    /// As [`Context::reduce`].
    pub fn reduce_keep(&mut self, op: ReduceOp, x: TensorId, axes: &[usize]) -> Built {
        let mut dims = self.shape(x).to_vec();
        let reduced = self.reduce(op, x, axes)?;
        for &axis in axes {
            dims[axis] = 1;
        }
        self.reshape(reduced, dims)
    }

    /// The arithmetic mean over `axes` (sorted) of a float tensor; reduced axes stay with extent 1.
    ///
    /// # Errors
    /// As [`Context::reduce`].
    pub fn mean_keep(&mut self, x: TensorId, axes: &[usize]) -> Built {
        let shape = self.shape(x);
        let count: usize = axes.iter().map(|&axis| shape[axis]).product();
        let sum = self.reduce_keep(ReduceOp::Sum, x, axes)?;
        self.binary_scalar(BinaryFn::Div, sum, count as f64)
    }

    /// A contraction by labels; see [`Contract`].
    ///
    /// # Errors
    /// If labels and shapes do not agree.
    pub fn contract(&mut self, lhs: TensorId, rhs: TensorId, labels: [&[u8]; 3]) -> Built {
        let [lhs_labels, rhs_labels, out] = labels.map(<[u8]>::to_vec);
        self.emit(PrimOp::Contract(Contract { lhs: lhs_labels, rhs: rhs_labels, out }), &[lhs, rhs])
    }
}
