//! QuantizeLinear: `y = saturate(round(x / scale) + zero_point)`, ties to even.
//!
//! The quotient is computed in `precision`, by default in f32 at least.

use super::{limited, number, range, spread};
use crate::registry::{Applied, one};
use crate::rules::encoded::{Rounding, encoded};
use crate::{Call, Context, ElementType};
use orch_ir::DType;

pub(super) fn quantize_linear(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let place = (call.int_or("axis", 1)?, call.int_or("block_size", 0)?);
    let scale = spread(ctx, call.tensor(1)?, &shape, place)?;
    let zero_point = match number(ctx, call, 2)? {
        Some(zero_point) => Some(spread(ctx, zero_point, &shape, place)?),
        None => None,
    };
    let stated =
        if call.int_or("output_dtype", 0)? == 0 { None } else { call.element_attribute("output_dtype")? };
    let to = match (call.encoding(2), zero_point) {
        (Some(encoding), _) => ElementType::Encoded(encoding),
        (None, Some(zero_point)) => ElementType::Plain(ctx.dtype(zero_point)),
        (None, None) => stated.unwrap_or(ElementType::Plain(DType::U8)),
    };
    let precision = match call.int_or("precision", 0)? {
        0 if ctx.dtype(x) == DType::F64 => DType::F64,
        0 => DType::F32,
        _ => call.dtype_attribute("precision")?.unwrap_or(DType::F32),
    };
    let x = ctx.cast(x, precision)?;
    let scale = ctx.cast(scale, precision)?;
    let quotient = ctx.div(x, scale)?;
    let quotient = ctx.widen(quotient)?;
    let encoding = match to {
        ElementType::Plain(dtype) => {
            let y = limited(ctx, quotient, zero_point, range(dtype)?)?;
            return one(ctx.cast(y, dtype)?);
        }
        ElementType::Encoded(encoding) => encoding,
    };
    let y = match (encoding.int_range(), zero_point) {
        (Some((low, high)), _) => limited(ctx, quotient, zero_point, (low.into(), high.into()))?,
        (None, Some(zero_point)) => ctx.add(quotient, zero_point)?,
        (None, None) => quotient,
    };
    let rounding = Rounding::read(call, encoding)?;
    Ok(vec![encoded(ctx, y, encoding, rounding)?])
}
