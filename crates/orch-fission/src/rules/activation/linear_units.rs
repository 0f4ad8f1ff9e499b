//! Piecewise functions around zero: Relu, LeakyRelu, PRelu, Elu, Celu, Selu, ThresholdedRelu, Shrink.
//!
//! `e^x - 1` is the accurate `expm1`; where it might overflow its result is not selected.

use super::wide;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, TensorId, UnaryFn};

/// Relu: `max(x, 0)`.
pub(super) fn relu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    one(ctx.binary_scalar(BinaryFn::Max, call.tensor(0)?, 0.0)?)
}

/// LeakyRelu: `x < 0 ? alpha x : x`.
pub(super) fn leaky_relu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let alpha = call.float_or("alpha", 0.01)?;
    wide(ctx, call, |ctx, x| {
        let scaled = ctx.binary_scalar(BinaryFn::Mul, x, alpha)?;
        below_zero(ctx, x, scaled, x)
    })
}

/// PRelu: `x < 0 ? slope x : x`; the slope broadcasts to `x`.
pub(super) fn prelu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, slope) = (call.tensor(0)?, call.tensor(1)?);
    let slope = ctx.broadcast_to(slope, &ctx.shape(x))?;
    let scaled = ctx.mul(x, slope)?;
    one(below_zero(ctx, x, scaled, x)?)
}

/// Elu: `x < 0 ? alpha (e^x - 1) : x`.
pub(super) fn elu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let alpha = call.float_or("alpha", 1.0)?;
    wide(ctx, call, |ctx, x| elu_of(ctx, x, alpha))
}

/// Celu: `max(x, 0) + min(0, alpha (e^(x / alpha) - 1))`.
pub(super) fn celu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let alpha = call.float_or("alpha", 1.0)?;
    wide(ctx, call, |ctx, x| {
        let scaled = ctx.binary_scalar(BinaryFn::Div, x, alpha)?;
        let grown = ctx.unary(UnaryFn::Expm1, scaled)?;
        let grown = ctx.binary_scalar(BinaryFn::Mul, grown, alpha)?;
        let negative = ctx.binary_scalar(BinaryFn::Min, grown, 0.0)?;
        let positive = ctx.binary_scalar(BinaryFn::Max, x, 0.0)?;
        ctx.add(positive, negative)
    })
}

/// Selu: `gamma elu(x, alpha)`.
pub(super) fn selu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let alpha = call.float_or("alpha", 1.673_263_192_176_818_8)?;
    let gamma = call.float_or("gamma", 1.050_701_022_148_132_3)?;
    wide(ctx, call, |ctx, x| {
        let y = elu_of(ctx, x, alpha)?;
        ctx.binary_scalar(BinaryFn::Mul, y, gamma)
    })
}

/// ThresholdedRelu: `x > alpha ? x : 0`.
pub(super) fn thresholded_relu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let above = ctx.compare_scalar(CompareFn::Gt, x, call.float_or("alpha", 1.0)?)?;
    let zero = ctx.scalar_like(x, 0.0);
    one(ctx.select(above, x, zero)?)
}

/// Shrink: `x < -lambd ? x + bias : x > lambd ? x - bias : 0`.
pub(super) fn shrink(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let (lambd, bias) = (call.float_or("lambd", 0.5)?, call.float_or("bias", 0.0)?);
    let low = ctx.compare_scalar(CompareFn::Lt, x, -lambd)?;
    let high = ctx.compare_scalar(CompareFn::Gt, x, lambd)?;
    let raised = ctx.binary_scalar(BinaryFn::Add, x, bias)?;
    let lowered = ctx.binary_scalar(BinaryFn::Sub, x, bias)?;
    let zero = ctx.scalar_like(x, 0.0);
    let upper = ctx.select(high, lowered, zero)?;
    one(ctx.select(low, raised, upper)?)
}

/// `x < 0 ? alpha (e^x - 1) : x`.
fn elu_of(ctx: &mut Context<'_>, x: TensorId, alpha: f64) -> Result<TensorId, RuleError> {
    let grown = ctx.unary(UnaryFn::Expm1, x)?;
    let negative = if alpha == 1.0 { grown } else { ctx.binary_scalar(BinaryFn::Mul, grown, alpha)? };
    below_zero(ctx, x, negative, x)
}

/// `x < 0 ? negative : other`.
fn below_zero(
    ctx: &mut Context<'_>,
    x: TensorId,
    negative: TensorId,
    other: TensorId,
) -> Result<TensorId, RuleError> {
    let below = ctx.compare_scalar(CompareFn::Lt, x, 0.0)?;
    ctx.select(below, negative, other)
}
