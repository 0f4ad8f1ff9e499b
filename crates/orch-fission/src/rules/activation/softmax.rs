//! Softmax: `e^(x - max) / sum e^(x - max)`, and LogSoftmax: `x - max - ln sum e^(x - max)`.
//!
//! The row's maximum is subtracted, so that nothing overflows; f16 and bf16 compute in f32. Before version 13 of
//! the operator set the row is everything from `axis` (default 1) on, since then `axis` alone (default -1).

use super::wide;
use crate::registry::Applied;
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{ReduceOp, TensorId, UnaryFn};

pub(super) fn softmax(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let axes = row_axes(ctx, call)?;
    wide(ctx, call, |ctx, x| softmax_of(ctx, x, &axes))
}

pub(super) fn log_softmax(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let axes = row_axes(ctx, call)?;
    wide(ctx, call, |ctx, x| log_softmax_of(ctx, x, &axes))
}

/// `x - max - ln sum e^(x - max)` over `axes`.
pub(crate) fn log_softmax_of(
    ctx: &mut Context<'_>,
    x: TensorId,
    axes: &[usize],
) -> Result<TensorId, RuleError> {
    let max = ctx.reduce_keep(ReduceOp::Max, x, axes)?;
    let shifted = ctx.sub(x, max)?;
    let powers = ctx.unary(UnaryFn::Exp, shifted)?;
    let sum = ctx.reduce_keep(ReduceOp::Sum, powers, axes)?;
    let log = ctx.unary(UnaryFn::Log, sum)?;
    ctx.sub(shifted, log)
}

/// `e^(x - max) / sum e^(x - max)` over `axes`.
pub(crate) fn softmax_of(ctx: &mut Context<'_>, x: TensorId, axes: &[usize]) -> Result<TensorId, RuleError> {
    let max = ctx.reduce_keep(ReduceOp::Max, x, axes)?;
    let shifted = ctx.sub(x, max)?;
    let powers = ctx.unary(UnaryFn::Exp, shifted)?;
    let sum = ctx.reduce_keep(ReduceOp::Sum, powers, axes)?;
    ctx.div(powers, sum)
}

/// The axes that make up a row, by version of the operator set.
pub(super) fn row_axes(ctx: &Context<'_>, call: &Call<'_>) -> Result<Vec<usize>, RuleError> {
    let rank = ctx.rank(call.tensor(0)?);
    if call.opset() >= 13 {
        // A scalar is a row of one element.
        return match rank {
            0 => Ok(Vec::new()),
            _ => Ok(vec![normalize_axis(call.int_or("axis", -1)?, rank)?]),
        };
    }
    let axis = call.int_or("axis", 1)?;
    let first = if axis == rank as i64 { rank } else { normalize_axis(axis, rank)? };
    Ok((first..rank).collect())
}
