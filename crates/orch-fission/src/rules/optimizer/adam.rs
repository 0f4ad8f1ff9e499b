//! Adam: `v' = alpha v + (1 - alpha) g'`, `h' = beta h + (1 - beta) g'^2`,
//! `x' = (1 - norm_coefficient_post) (x - r' v' / (sqrt(h') + epsilon))`, where
//! `r' = r sqrt(1 - beta^t) / (1 - alpha^t)`, or `r` for the first update.

use super::{adapted, after_first, blend, update_all};
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId, UnaryFn};

pub(super) fn adam(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let epsilon = call.float_or("epsilon", 1e-6)?;
    let (alpha, beta) = (call.float_or("alpha", 0.9)?, call.float_or("beta", 0.999)?);
    let kept = 1.0 - call.float_or("norm_coefficient_post", 0.0)?;
    let rate = call.tensor(0)?;
    let root = {
        let rest = one_minus_power(ctx, call, beta)?;
        ctx.unary(UnaryFn::Sqrt, rest)?
    };
    let grown = ctx.mul(rate, root)?;
    let divisor = one_minus_power(ctx, call, alpha)?;
    let adjusted = ctx.div(grown, divisor)?;
    let rate = after_first(ctx, call, adjusted, rate)?;
    update_all(ctx, call, |ctx, [x, gradient], [v, h]| {
        let v = blend(ctx, (alpha, v), (1.0 - alpha, gradient))?;
        let square = ctx.mul(gradient, gradient)?;
        let h = blend(ctx, (beta, h), (1.0 - beta, square))?;
        let direction = adapted(ctx, v, h, epsilon)?;
        let step = ctx.mul(direction, rate)?;
        let new = ctx.sub(x, step)?;
        Ok((ctx.binary_scalar(BinaryFn::Mul, new, kept)?, [v, h]))
    })
}

/// `1 - base^t`, in the type of the learning rate.
fn one_minus_power(ctx: &mut Context<'_>, call: &Call<'_>, base: f64) -> Result<TensorId, RuleError> {
    let dtype = ctx.dtype(call.tensor(0)?);
    let count = ctx.cast(call.tensor(1)?, dtype)?;
    let base = ctx.scalar(dtype, base);
    let power = ctx.binary(BinaryFn::Pow, base, count)?;
    let one = ctx.scalar(dtype, 1.0);
    ctx.sub(one, power)
}
