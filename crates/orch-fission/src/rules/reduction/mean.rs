//! ReduceMean: `sum x / n`. Integers are summed as such and the quotient is truncated.

use super::Reduction;
use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::{BinaryFn, ReduceOp};

pub(super) fn mean(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let reduction = Reduction::read(ctx, call)?;
    let x = call.tensor(0)?;
    let (dtype, shape) = (ctx.dtype(x), ctx.shape(x));
    let count: usize = reduction.axes.iter().map(|&axis| shape[axis]).product();
    let x = ctx.widen(x)?;
    let sum = reduction.apply(ctx, ReduceOp::Sum, x)?;
    let mean = if count == 1 { sum } else { ctx.binary_scalar(BinaryFn::Div, sum, count as f64)? };
    one(ctx.cast(mean, dtype)?)
}
