//! Piecewise linear gates: HardSigmoid and HardSwish.

use super::wide;
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId};

/// HardSigmoid: `clamp(alpha x + beta, 0, 1)`.
pub(super) fn hard_sigmoid(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (alpha, beta) = (call.float_or("alpha", 0.2)?, call.float_or("beta", 0.5)?);
    wide(ctx, call, |ctx, x| gate(ctx, x, alpha, beta))
}

/// HardSwish: `x clamp(x / 6 + 0.5, 0, 1)`.
pub(super) fn hard_swish(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    // The standard defines it by HardSigmoid, whose attributes are f32.
    let alpha = f64::from(1.0_f32 / 6.0);
    wide(ctx, call, |ctx, x| {
        let gate = gate(ctx, x, alpha, 0.5)?;
        ctx.mul(x, gate)
    })
}

/// `clamp(alpha x + beta, 0, 1)`.
fn gate(ctx: &mut Context<'_>, x: TensorId, alpha: f64, beta: f64) -> Result<TensorId, RuleError> {
    let scaled = ctx.binary_scalar(BinaryFn::Mul, x, alpha)?;
    let shifted = ctx.binary_scalar(BinaryFn::Add, scaled, beta)?;
    let positive = ctx.binary_scalar(BinaryFn::Max, shifted, 0.0)?;
    ctx.binary_scalar(BinaryFn::Min, positive, 1.0)
}
