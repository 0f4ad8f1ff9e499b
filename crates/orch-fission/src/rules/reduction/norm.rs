//! ReduceL1: `sum |x|`, ReduceL2: `sqrt(sum x^2)`, ReduceSumSquare: `sum x^2`; the powers that other p-norms need.

use super::{Reduction, as_float};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, ReduceOp, TensorId, UnaryFn};

pub(super) fn norm(ctx: &mut Context<'_>, call: &Call<'_>, p: i64) -> Applied {
    let reduction = Reduction::read(ctx, call)?;
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = if p == 1 { ctx.widen(x)? } else { as_float(ctx, x)? };
    let powers = to_power(ctx, x, p)?;
    let sum = reduction.apply(ctx, ReduceOp::Sum, powers)?;
    let y = from_power(ctx, sum, p)?;
    one(ctx.cast(y, dtype)?)
}

pub(super) fn sum_square(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let reduction = Reduction::read(ctx, call)?;
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    let squares = ctx.mul(x, x)?;
    let y = reduction.apply(ctx, ReduceOp::Sum, squares)?;
    one(ctx.cast(y, dtype)?)
}

/// `|x|^p`.
pub(crate) fn to_power(ctx: &mut Context<'_>, x: TensorId, p: i64) -> Result<TensorId, RuleError> {
    match p {
        1 if ctx.dtype(x).is_unsigned_int() => Ok(x),
        2 => ctx.mul(x, x),
        1 => ctx.unary(UnaryFn::Abs, x),
        _ => {
            let size = ctx.unary(UnaryFn::Abs, x)?;
            ctx.binary_scalar(BinaryFn::Pow, size, p as f64)
        }
    }
}

/// `x^(1/p)` of a number that is not negative.
pub(crate) fn from_power(ctx: &mut Context<'_>, x: TensorId, p: i64) -> Result<TensorId, RuleError> {
    match p {
        1 => Ok(x),
        2 => ctx.unary(UnaryFn::Sqrt, x),
        _ => ctx.binary_scalar(BinaryFn::Pow, x, 1.0 / p as f64),
    }
}
