//! Sum, Mean, Max and Min of one or more operands, which broadcast together.
//!
//! Mean adds f16 and bf16 in f32.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId};

pub(super) fn sum(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    one(fold(ctx, BinaryFn::Add, &call.tensors()?)?)
}

pub(super) fn max(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    one(fold(ctx, BinaryFn::Max, &call.tensors()?)?)
}

pub(super) fn min(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    one(fold(ctx, BinaryFn::Min, &call.tensors()?)?)
}

pub(super) fn mean(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let operands = call.tensors()?;
    let dtype = ctx.dtype(operands[0]);
    let wide = operands.iter().map(|&operand| ctx.widen(operand)).collect::<Result<Vec<_>, _>>()?;
    let sum = fold(ctx, BinaryFn::Add, &wide)?;
    let mean = ctx.binary_scalar(BinaryFn::Div, sum, operands.len() as f64)?;
    one(ctx.cast(mean, dtype)?)
}

/// `f(f(x_0, x_1), x_2) ..`.
fn fold(ctx: &mut Context<'_>, f: BinaryFn, operands: &[TensorId]) -> Result<TensorId, RuleError> {
    let mut result = operands[0];
    for &operand in &operands[1..] {
        result = ctx.binary(f, result, operand)?;
    }
    Ok(result)
}
