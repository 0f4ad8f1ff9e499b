//! Dropout when it drops nothing: in inference, or at a ratio of 0. The mask is all true.

use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::{DType, Tensor};

pub(super) fn dropout(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    if call.optional_tensor(2)?.is_some() && !is_zero(&ctx.constant_operand(call, 2, "training_mode")?) {
        let drops = match call.optional_tensor(1)? {
            Some(_) => !is_zero(&ctx.constant_operand(call, 1, "ratio")?),
            None => true,
        };
        if drops {
            return Err(RuleError::unsupported("training mode (random numbers)"));
        }
    }
    // The mask has the type of the operand before version 10 of the operator set.
    let mask_type = if call.opset() < 10 { ctx.dtype(x) } else { DType::Bool };
    let mask = ctx.full(mask_type, 1.0, &ctx.shape(x))?;
    Ok(vec![x.into(), mask.into()])
}

/// True if every element is 0.
fn is_zero(value: &Tensor) -> bool {
    value.to_f64().iter().all(|&element| element == 0.0)
}
