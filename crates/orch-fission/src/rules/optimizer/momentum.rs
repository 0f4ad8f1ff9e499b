//! Momentum: `v' = alpha v + b g'` with `b = beta`, or 1 for the first update; then `x' = x - r v'`, or with
//! `mode = nesterov` `x' = x - r (g' + alpha v')`.

use super::{after_first, update_all};
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::BinaryFn;

pub(super) fn momentum(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let required = |name: &str| -> Result<f64, RuleError> {
        call.float(name)?.ok_or_else(|| RuleError::invalid(format!("attribute {name} is missing")))
    };
    let (alpha, beta) = (required("alpha")?, required("beta")?);
    let nesterov = match call.text("mode")? {
        Some("nesterov") => true,
        Some("standard") => false,
        _ => return Err(RuleError::invalid("attribute mode is not one of nesterov and standard")),
    };
    let rate = call.tensor(0)?;
    let (beta, one) = (ctx.scalar_like(rate, beta), ctx.scalar_like(rate, 1.0));
    let weight = after_first(ctx, call, beta, one)?;
    update_all(ctx, call, |ctx, [x, gradient], [v]| {
        let kept = ctx.binary_scalar(BinaryFn::Mul, v, alpha)?;
        let new = ctx.mul(gradient, weight)?;
        let v = ctx.add(kept, new)?;
        let direction = if nesterov {
            let ahead = ctx.binary_scalar(BinaryFn::Mul, v, alpha)?;
            ctx.add(gradient, ahead)?
        } else {
            v
        };
        let step = ctx.mul(direction, rate)?;
        Ok((ctx.sub(x, step)?, [v]))
    })
}
