//! Adagrad: `h' = h + g'^2`, `x' = x - r / (1 + t decay_factor) g' / (sqrt(h') + epsilon)`.

use super::{adapted, update_all};
use crate::registry::Applied;
use crate::{Call, Context};
use orch_ir::BinaryFn;

pub(super) fn adagrad(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let epsilon = call.float_or("epsilon", 1e-6)?;
    let rate = call.tensor(0)?;
    let count = ctx.cast(call.tensor(1)?, ctx.dtype(rate))?;
    let decay = ctx.binary_scalar(BinaryFn::Mul, count, call.float_or("decay_factor", 0.0)?)?;
    let divisor = ctx.binary_scalar(BinaryFn::Add, decay, 1.0)?;
    let rate = ctx.div(rate, divisor)?;
    update_all(ctx, call, |ctx, [x, gradient], [h]| {
        let square = ctx.mul(gradient, gradient)?;
        let h = ctx.add(h, square)?;
        let direction = adapted(ctx, gradient, h, epsilon)?;
        let step = ctx.mul(direction, rate)?;
        Ok((ctx.sub(x, step)?, [h]))
    })
}
