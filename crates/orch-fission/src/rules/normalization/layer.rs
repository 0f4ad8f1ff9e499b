//! LayerNormalization: `y = (x - mean) / sqrt(variance + epsilon) scale + bias`, and RMSNormalization:
//! `y = x / sqrt(mean x^2 + epsilon) scale`; the statistics over all dimensions from `axis` on.
//!
//! Statistics are computed in `stash_type`. Scale and bias are applied in that type too, so that the result is
//! rounded once.

use super::{Standard, inverse_root, stash_type};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::TensorId;

pub(super) fn layer_normalization(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let axes = trailing_axes(ctx, call, x)?;
    let (compute, stash) = stash_type(call, dtype)?;
    let x = ctx.cast(x, compute)?;
    let standard = Standard::new(ctx, x, &axes, call.float_or("epsilon", 1e-5)?)?;
    let mut y = standard.normalized(ctx)?;
    let scale = ctx.cast(call.tensor(1)?, compute)?;
    y = ctx.mul(y, scale)?;
    if let Some(bias) = call.optional_tensor(2)? {
        let bias = ctx.cast(bias, compute)?;
        y = ctx.add(y, bias)?;
    }
    let results =
        [ctx.cast(y, dtype)?, ctx.cast(standard.mean, stash)?, ctx.cast(standard.inverse_deviation, stash)?];
    Ok(results.map(Into::into).to_vec())
}

pub(super) fn rms_normalization(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let axes = trailing_axes(ctx, call, x)?;
    let (compute, _) = stash_type(call, dtype)?;
    let x = ctx.cast(x, compute)?;
    let squares = ctx.mul(x, x)?;
    let mean = ctx.mean_keep(squares, &axes)?;
    let inverse = inverse_root(ctx, mean, call.float_or("epsilon", 1e-5)?)?;
    let normalized = ctx.mul(x, inverse)?;
    let scale = ctx.cast(call.tensor(1)?, compute)?;
    let y = ctx.mul(normalized, scale)?;
    one(ctx.cast(y, dtype)?)
}

/// The dimensions from attribute `axis` on.
fn trailing_axes(ctx: &Context<'_>, call: &Call<'_>, x: TensorId) -> Result<Vec<usize>, RuleError> {
    let rank = ctx.rank(x);
    Ok((normalize_axis(call.int_or("axis", -1)?, rank)?..rank).collect())
}
