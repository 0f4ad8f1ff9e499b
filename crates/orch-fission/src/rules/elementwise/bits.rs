//! BitShift: `y = x << n` or `x >> n` (arithmetic for signed types).
//!
//! A negative `n` counts as one beyond the width: 0, or -1 for a right shift of a negative number.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn};

pub(super) fn bit_shift(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let f = match call.text("direction")? {
        Some("LEFT") => BinaryFn::Shl,
        Some("RIGHT") => BinaryFn::Shr,
        other => {
            let given = other.unwrap_or("nothing");
            return Err(RuleError::invalid(format!("direction is {given}, expected LEFT or RIGHT")));
        }
    };
    let (x, mut amount) = (call.tensor(0)?, call.tensor(1)?);
    let dtype = ctx.dtype(amount);
    if dtype.is_signed_int() {
        let negative = ctx.compare_scalar(CompareFn::Lt, amount, 0.0)?;
        let width = ctx.scalar_int(dtype, 8 * dtype.size_bytes() as i64);
        amount = ctx.select(negative, width, amount)?;
    }
    one(ctx.binary(f, x, amount)?)
}
