//! MatMulInteger and ConvInteger: the product of `x - zero point` and `w - zero point`, in i32.
//!
//! Zero points are scalars, or for matrices one per row of the left and column of the right operand, for
//! convolutions one per output channel of the weight. Padding is zero after the subtraction.

use super::centred;
use crate::registry::{Applied, one};
use crate::rules::linear::{conv_of, conv_spec, matmul_of};
use crate::{Call, Context, RuleError};
use orch_ir::TensorId;

pub(super) fn matmul_integer(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let lhs_zero = call.optional_tensor(2)?;
    let lhs_zero = lhs_zero.map(|zero| per_row(ctx, zero, call.tensor(0)?)).transpose()?;
    let lhs = centred(ctx, call.tensor(0)?, lhs_zero)?;
    let rhs = centred(ctx, call.tensor(1)?, call.optional_tensor(3)?)?;
    one(matmul_of(ctx, lhs, rhs)?)
}

pub(super) fn conv_integer(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let spec = conv_spec(ctx, call, x, w)?;
    let w_zero = call.optional_tensor(3)?;
    let w_zero = w_zero.map(|zero| per_output_channel(ctx, zero, w)).transpose()?;
    let x = centred(ctx, x, call.optional_tensor(2)?)?;
    let w = centred(ctx, w, w_zero)?;
    one(conv_of(ctx, [x, w], spec, None)?)
}

/// A scale or zero point of a left operand: a vector has one entry per row.
pub(super) fn per_row(
    ctx: &mut Context<'_>,
    parameter: TensorId,
    matrix: TensorId,
) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(parameter);
    if shape.rank() == 1 && shape[0] != 1 && ctx.rank(matrix) > 1 {
        ctx.unsqueeze(parameter, 1)
    } else {
        Ok(parameter)
    }
}

/// A scale or zero point of a weight `[m, c, k_0, ..]`: a vector has one entry per output channel.
pub(super) fn per_output_channel(
    ctx: &mut Context<'_>,
    parameter: TensorId,
    w: TensorId,
) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(parameter);
    if shape.rank() != 1 {
        return Ok(parameter);
    }
    let mut dims = vec![1; ctx.rank(w)];
    if let Some(first) = dims.first_mut() {
        *first = shape[0];
    }
    ctx.reshape(parameter, dims)
}
