//! Substitution: the value of a primitive's result at an index, in terms of its operands.

use super::builder::{Builder, compute_type};
use super::error::CannotFuse;
use crate::expr::ExprId;
use orch_ir::{DType, NodeId, PrimOp, ScalarFn, TensorId};

impl Builder<'_> {
    /// The value at `index` of the result of a node of this kernel.
    pub fn substitute(
        &mut self,
        node: NodeId,
        tensor: TensorId,
        index: &[ExprId],
        guard: Option<ExprId>,
    ) -> Result<ExprId, CannotFuse> {
        let graph = self.graph;
        let prim = graph.node(node);
        let inputs = &prim.inputs;
        match &prim.op {
            PrimOp::Map(function) => {
                let operands: Result<Vec<ExprId>, CannotFuse> =
                    inputs.iter().map(|&input| self.expr_at(input, index, guard)).collect();
                Ok(self.apply(*function, &operands?, graph.dtype(inputs[0])))
            }
            PrimOp::Iota { dtype, axis, .. } => Ok(self.exprs.cast(compute_type(*dtype), index[*axis])),
            PrimOp::Broadcast { .. }
            | PrimOp::Transpose { .. }
            | PrimOp::Reshape { .. }
            | PrimOp::Slice { .. }
            | PrimOp::Select { .. } => {
                let moved = match self.known_place(tensor, inputs[0], index) {
                    Some(place) => place,
                    None => self.source_index(node, index)?,
                };
                self.expr_at(inputs[0], &moved, guard)
            }
            PrimOp::Pad { mode, low, high } => self.padded(*mode, low, high, inputs, index, guard),
            PrimOp::Concat { axis } => self.joined(*axis, inputs, index, guard),
            PrimOp::Reduce { op, axes } => self.reduced(node, *op, axes, index, guard),
            PrimOp::Window { op, window } => self.windowed(node, *op, window, index, guard),
            PrimOp::Take { axis } => self.taken(*axis, inputs, index, guard),
            PrimOp::TakeAlong { axis } => self.taken_along(*axis, inputs, index, guard),
            PrimOp::GatherNd { batch_dims } => self.gathered(*batch_dims, inputs, index, guard),
            PrimOp::ConvTranspose { spec, .. } => self.transposed_convolution(node, spec, index, guard),
            PrimOp::Contract(contract) if self.main != Some(node) => {
                self.contracted(node, contract, index, guard)
            }
            PrimOp::Contract(_) | PrimOp::Conv(_) => Err(CannotFuse::OtherIndex(tensor)),
            PrimOp::ScatterAlong { .. } => Err(CannotFuse::Unsupported { node, op: "scatter" }),
            PrimOp::ScatterNd { .. } => Err(CannotFuse::Unsupported { node, op: "scatter_nd" }),
            PrimOp::Recurrence(_) => Err(CannotFuse::Unsupported { node, op: "recurrence" }),
            PrimOp::Opaque(_) => Err(CannotFuse::Unsupported { node, op: "opaque" }),
        }
    }

    /// The index of `input` that goes with `tensor` at `index`, if both lie in the anchor's index space and
    /// `tensor` is asked for at its place there.
    fn known_place(&self, tensor: TensorId, input: TensorId, index: &[ExprId]) -> Option<Vec<ExprId>> {
        let place = self.places.get(&tensor)?;
        if place == index { self.places.get(&input).cloned() } else { None }
    }

    /// A scalar function of values in their compute types; `dtype` is the first operand's element type.
    fn apply(&mut self, function: ScalarFn, operands: &[ExprId], dtype: DType) -> ExprId {
        let exprs = &mut self.exprs;
        match function {
            ScalarFn::Unary(f) => exprs.unary(f, operands[0]),
            ScalarFn::Binary(f) => exprs.binary(f, operands[0], operands[1]),
            ScalarFn::Compare(f) => exprs.compare(f, operands[0], operands[1]),
            ScalarFn::Select => exprs.select(operands[0], operands[1], operands[2]),
            ScalarFn::IsNan => exprs.is_nan(operands[0]),
            ScalarFn::IsInf => exprs.is_inf(operands[0]),
            ScalarFn::Cast(to) if to == dtype => operands[0],
            ScalarFn::Cast(to) => {
                // A conversion to half precision is there to round.
                let rounded = exprs.cast(to, operands[0]);
                exprs.cast(compute_type(to), rounded)
            }
        }
    }
}
