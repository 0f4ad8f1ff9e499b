//! LpNormalization: `y = x / (sum |x|^p)^(1/p)` along `axis`; 0 where that norm is 0.

use crate::registry::{Applied, one};
use crate::rules::reduction::norm::{from_power, to_power};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{CompareFn, ReduceOp};

pub(super) fn lp_normalization(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let p = call.int_or("p", 2)?;
    if !(1..=2).contains(&p) {
        return Err(RuleError::invalid(format!("p is {p}, expected 1 or 2")));
    }
    let dtype = ctx.dtype(x);
    let axis = normalize_axis(call.int_or("axis", -1)?, ctx.rank(x))?;
    let x = ctx.widen(x)?;
    let powers = to_power(ctx, x, p)?;
    let sum = ctx.reduce_keep(ReduceOp::Sum, powers, &[axis])?;
    let norm = from_power(ctx, sum, p)?;
    let quotient = ctx.div(x, norm)?;
    let empty = ctx.compare_scalar(CompareFn::Eq, norm, 0.0)?;
    let zero = ctx.scalar_like(x, 0.0);
    let y = ctx.select(empty, zero, quotient)?;
    one(ctx.cast(y, dtype)?)
}
