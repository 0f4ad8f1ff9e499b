//! Cast and CastLike: conversion to another element type.
//!
//! Float to integer truncates toward zero (values out of range, undefined in ONNX, saturate), integer to integer
//! wraps. The attributes `saturate` and `round_mode` concern encoded floats alone.

use crate::registry::{Applied, one};
use crate::rules::encoded::{Rounding, decoded, encoded};
use crate::{Call, Context, ElementType, Operand, RuleError};

pub(super) fn cast(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let to = call.element_attribute("to")?.ok_or_else(|| RuleError::invalid("attribute to is missing"))?;
    convert(ctx, call, to)
}

pub(super) fn cast_like(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let to = match call.encoding(1) {
        Some(encoding) => ElementType::Encoded(encoding),
        None => ElementType::Plain(ctx.dtype(call.tensor(1)?)),
    };
    convert(ctx, call, to)
}

/// Operand 0 in another type.
fn convert(ctx: &mut Context<'_>, call: &Call<'_>, to: ElementType) -> Applied {
    let x = match (call.operand(0), to) {
        (Some(&Operand::Encoded { encoding, .. }), ElementType::Encoded(same)) if encoding == same => {
            return Ok(call.operand(0).cloned().into_iter().collect());
        }
        (Some(&Operand::Encoded { codes, encoding }), _) => decoded(ctx, codes, encoding)?,
        _ => call.tensor(0)?,
    };
    match to {
        ElementType::Plain(dtype) => one(ctx.cast(x, dtype)?),
        ElementType::Encoded(encoding) => {
            let rounding = Rounding::read(call, encoding)?;
            Ok(vec![encoded(ctx, x, encoding, rounding)?])
        }
    }
}
