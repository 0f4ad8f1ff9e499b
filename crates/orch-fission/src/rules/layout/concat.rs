//! Concat: joins tensors along `axis`.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};

pub(super) fn concat(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let parts = call.tensors()?;
    let axis = call.int("axis")?.ok_or_else(|| RuleError::invalid("attribute axis is missing"))?;
    let axis = normalize_axis(axis, ctx.rank(parts[0]))?;
    one(ctx.concat(&parts, axis)?)
}
