//! DequantizeLinear: `y = (x - zero_point) scale`, the difference in i32 (of floats in f32), the product in
//! f32 at least.

use super::{centred, number, spread};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};

pub(super) fn dequantize_linear(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = number(ctx, call, 0)?.ok_or(RuleError::MissingOperand(0))?;
    let shape = ctx.shape(x);
    let place = (call.int_or("axis", 1)?, call.int_or("block_size", 0)?);
    let scale = spread(ctx, call.tensor(1)?, &shape, place)?;
    let zero_point = match number(ctx, call, 2)? {
        Some(zero_point) => Some(spread(ctx, zero_point, &shape, place)?),
        None => None,
    };
    let stated =
        if call.int_or("output_dtype", 0)? == 0 { None } else { call.dtype_attribute("output_dtype")? };
    let to = stated.unwrap_or(ctx.dtype(scale));
    let scale = ctx.widen(scale)?;
    let difference = match zero_point {
        Some(zero_point) if ctx.dtype(x).is_float() => ctx.sub(x, zero_point)?,
        None if ctx.dtype(x).is_float() => x,
        _ => centred(ctx, x, zero_point)?,
    };
    let difference = ctx.cast(difference, ctx.dtype(scale))?;
    let y = ctx.mul(difference, scale)?;
    one(ctx.cast(y, to)?)
}
