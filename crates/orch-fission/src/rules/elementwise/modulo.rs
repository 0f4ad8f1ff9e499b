//! Mod: `a - floor(a / b) * b` (the divisor's sign), or with `fmod` `a - trunc(a / b) * b` (the dividend's sign).

use crate::registry::{Applied, one};
use crate::{Call, Context};
use orch_ir::BinaryFn;

pub(super) fn modulo(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let f = if call.flag_or("fmod", false)? { BinaryFn::TruncMod } else { BinaryFn::FloorMod };
    one(ctx.binary(f, call.tensor(0)?, call.tensor(1)?)?)
}
