//! ReduceLogSum: `ln sum x`, ReduceLogSumExp: `max + ln sum e^(x - max)`.
//!
//! An infinite maximum is not subtracted (`inf - inf` would be NaN): the result is then that infinity, and the
//! one of an empty sum is -inf.

use super::{Reduction, as_float};
use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::{ReduceOp, ScalarFn, UnaryFn};

pub(super) fn log_sum(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let reduction = Reduction::read(ctx, call)?;
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = as_float(ctx, x)?;
    let sum = reduction.apply(ctx, ReduceOp::Sum, x)?;
    let y = ctx.unary(UnaryFn::Log, sum)?;
    one(ctx.cast(y, dtype)?)
}

pub(super) fn log_sum_exp(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let reduction = Reduction::read(ctx, call)?;
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = as_float(ctx, x)?;
    let max = ctx.reduce_keep(ReduceOp::Max, x, &reduction.axes)?;
    let infinite = ctx.map(ScalarFn::IsInf, &[max])?;
    let zero = ctx.scalar_like(max, 0.0);
    let shift = ctx.select(infinite, zero, max)?;
    let shifted = ctx.sub(x, shift)?;
    let powers = ctx.unary(UnaryFn::Exp, shifted)?;
    let sum = reduction.apply(ctx, ReduceOp::Sum, powers)?;
    let log = ctx.unary(UnaryFn::Log, sum)?;
    let shift = ctx.reshape(shift, ctx.shape(log).to_vec())?;
    let y = ctx.add(log, shift)?;
    one(ctx.cast(y, dtype)?)
}
