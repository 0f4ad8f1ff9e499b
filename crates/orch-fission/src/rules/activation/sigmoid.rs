//! Smooth gates: Sigmoid, Swish, SwiGLU, Softplus, Mish, Softsign.
//!
//! All forms are safe for any finite `x`: `1 / (1 + e^-x)` overflows to `1 / inf = 0`, and softplus is
//! `max(x, 0) + ln(1 + e^-|x|)`.

use super::wide;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId, UnaryFn};

/// Sigmoid: `1 / (1 + e^-x)`.
pub(super) fn sigmoid(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    wide(ctx, call, sigmoid_of)
}

/// Swish: `x sigmoid(alpha x)`.
pub(super) fn swish(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let alpha = call.float_or("alpha", 1.0)?;
    wide(ctx, call, |ctx, x| swish_of(ctx, x, alpha))
}

/// SwiGLU: `swish(a, alpha) b`.
pub(super) fn swiglu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (a, b) = (call.tensor(0)?, call.tensor(1)?);
    if ctx.shape(a) != ctx.shape(b) {
        let (a, b) = (ctx.shape(a), ctx.shape(b));
        return Err(RuleError::invalid(format!("operands have shapes {a} and {b}, expected equal ones")));
    }
    let dtype = ctx.dtype(a);
    let (a, b) = (ctx.widen(a)?, ctx.widen(b)?);
    let gate = swish_of(ctx, a, call.float_or("alpha", 1.0)?)?;
    let y = ctx.mul(gate, b)?;
    one(ctx.cast(y, dtype)?)
}

/// Softplus: `ln(1 + e^x)`.
pub(super) fn softplus(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    wide(ctx, call, softplus_of)
}

/// Mish: `x tanh(softplus(x))`.
pub(super) fn mish(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    wide(ctx, call, |ctx, x| {
        let soft = softplus_of(ctx, x)?;
        let gate = ctx.unary(UnaryFn::Tanh, soft)?;
        ctx.mul(x, gate)
    })
}

/// Softsign: `x / (1 + |x|)`.
pub(super) fn softsign(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    wide(ctx, call, |ctx, x| {
        let size = ctx.unary(UnaryFn::Abs, x)?;
        let divisor = ctx.binary_scalar(BinaryFn::Add, size, 1.0)?;
        ctx.div(x, divisor)
    })
}

/// `1 / (1 + e^-x)`.
fn sigmoid_of(ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
    let negated = ctx.unary(UnaryFn::Neg, x)?;
    let decay = ctx.unary(UnaryFn::Exp, negated)?;
    let divisor = ctx.binary_scalar(BinaryFn::Add, decay, 1.0)?;
    ctx.unary(UnaryFn::Recip, divisor)
}

/// `x / (1 + e^(-alpha x))`.
pub(crate) fn swish_of(ctx: &mut Context<'_>, x: TensorId, alpha: f64) -> Result<TensorId, RuleError> {
    let scaled = if alpha == 1.0 { x } else { ctx.binary_scalar(BinaryFn::Mul, x, alpha)? };
    let gate = sigmoid_of(ctx, scaled)?;
    ctx.mul(x, gate)
}

/// `max(x, 0) + ln(1 + e^-|x|)`.
fn softplus_of(ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
    let size = ctx.unary(UnaryFn::Abs, x)?;
    let negated = ctx.unary(UnaryFn::Neg, size)?;
    let decay = ctx.unary(UnaryFn::Exp, negated)?;
    let rest = ctx.unary(UnaryFn::Log1p, decay)?;
    let positive = ctx.binary_scalar(BinaryFn::Max, x, 0.0)?;
    ctx.add(positive, rest)
}
