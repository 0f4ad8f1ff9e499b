//! InstanceNormalization and GroupNormalization: `y = (x - mean) / sqrt(variance + epsilon) scale + bias`, the
//! statistics per instance and channel, or per instance and group of channels.
//!
//! Scale and bias are per channel; before version 21 of the operator set those of GroupNormalization are per group.

use super::{Standard, scale_and_shift, stash_type};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};

pub(super) fn instance_normalization(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    let axes: Vec<usize> = (2..ctx.rank(x)).collect();
    let normalized = Standard::new(ctx, x, &axes, call.float_or("epsilon", 1e-5)?)?.normalized(ctx)?;
    let y = scale_and_shift(ctx, normalized, [call.tensor(1)?, call.tensor(2)?])?;
    one(ctx.cast(y, dtype)?)
}

pub(super) fn group_normalization(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, scale, bias) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (dtype, shape) = (ctx.dtype(x), ctx.shape(x));
    let (compute, _) = stash_type(call, dtype)?;
    let groups = call.int("num_groups")?.and_then(|groups| usize::try_from(groups).ok()).unwrap_or(0);
    if shape.rank() < 2 || groups == 0 || !shape[1].is_multiple_of(groups) {
        return Err(RuleError::invalid(format!("{groups} groups of the channels of {shape}")));
    }
    let size = shape[1] / groups;
    let x = ctx.cast(x, compute)?;
    let grouped = ctx.reshape(x, [&[shape[0], groups, size], &shape[2..]].concat())?;
    let axes: Vec<usize> = (2..shape.rank() + 1).collect();
    let standard = Standard::new(ctx, grouped, &axes, call.float_or("epsilon", 1e-5)?)?;
    let mut normalized = standard.normalized(ctx)?;
    if ctx.shape(scale)[..] == [groups] && size != 1 {
        normalized = scale_and_shift(ctx, normalized, [scale, bias])?;
        normalized = ctx.reshape(normalized, shape.to_vec())?;
    } else {
        normalized = ctx.reshape(normalized, shape.to_vec())?;
        normalized = scale_and_shift(ctx, normalized, [scale, bias])?;
    }
    one(ctx.cast(normalized, dtype)?)
}
