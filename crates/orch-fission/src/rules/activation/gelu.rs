//! Gelu: `x / 2 (1 + erf(x / sqrt(2)))`, or with `approximate = tanh`
//! `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.

use super::wide;
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId, UnaryFn};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, SQRT_2};

pub(super) fn gelu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let inner: fn(&mut Context<'_>, TensorId) -> Result<TensorId, RuleError> = match call
        .text_or("approximate", "none")?
    {
        "none" => |ctx, x| {
            let scaled = ctx.binary_scalar(BinaryFn::Mul, x, FRAC_1_SQRT_2)?;
            ctx.unary(UnaryFn::Erf, scaled)
        },
        "tanh" => tanh_inner,
        other => return Err(RuleError::invalid(format!("approximate is {other}, expected none or tanh"))),
    };
    wide(ctx, call, |ctx, x| {
        let inner = inner(ctx, x)?;
        let gate = ctx.binary_scalar(BinaryFn::Add, inner, 1.0)?;
        let half = ctx.binary_scalar(BinaryFn::Mul, x, 0.5)?;
        ctx.mul(half, gate)
    })
}

/// `tanh(sqrt(2 / pi) (x + 0.044715 x^3))`.
fn tanh_inner(ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
    let square = ctx.mul(x, x)?;
    let cube = ctx.mul(square, x)?;
    let scaled = ctx.binary_scalar(BinaryFn::Mul, cube, 0.044715)?;
    let sum = ctx.add(x, scaled)?;
    let angle = ctx.binary_scalar(BinaryFn::Mul, sum, FRAC_2_SQRT_PI / SQRT_2)?;
    ctx.unary(UnaryFn::Tanh, angle)
}
