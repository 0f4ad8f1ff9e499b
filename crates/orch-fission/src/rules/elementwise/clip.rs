//! Clip: `y = min(max(x, low), high)`; `high` where `low > high`, NaN stays NaN.
//!
//! Bounds are attributes before version 11 of the operator set, optional operands since.

use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::BinaryFn;

pub(super) fn clip(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let (low, high) = if call.opset() < 11 {
        let low = call.float("min")?.map(|bound| ctx.scalar_like(x, bound));
        let high = call.float("max")?.map(|bound| ctx.scalar_like(x, bound));
        (low, high)
    } else {
        (call.optional_tensor(1)?, call.optional_tensor(2)?)
    };
    let mut y = x;
    if let Some(low) = low {
        y = ctx.binary(BinaryFn::Max, y, low)?;
    }
    if let Some(high) = high {
        y = ctx.binary(BinaryFn::Min, y, high)?;
    }
    one(y)
}
