//! Compress: the positions of an axis (or of the flattened operand) where a condition that is known when compiling
//! holds.

use super::select_along;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};

pub(super) fn compress(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let condition = ctx.int_operand(call, 1, "condition")?;
    let shape = ctx.shape(x);
    let (x, axis, extent) = match call.int("axis")? {
        Some(axis) => {
            let axis = normalize_axis(axis, shape.rank())?;
            (x, axis, shape[axis])
        }
        None => (ctx.reshape(x, [shape.elems()])?, 0, shape.elems()),
    };
    let positions: Vec<usize> = (0..condition.len()).filter(|&at| condition[at] != 0).collect();
    if positions.last().is_some_and(|&last| last >= extent) {
        return Err(RuleError::invalid(format!("the condition chooses beyond the extent {extent}")));
    }
    one(select_along(ctx, x, axis, positions)?)
}
