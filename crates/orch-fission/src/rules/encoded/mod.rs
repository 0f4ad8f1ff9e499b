//! Elements of types that nothing computes in ([`Encoding`]): what they are, and which code a number gets.

use crate::{Context, Operand, RuleError};
use orch_ir::{BinaryFn, DType, Encoding, PrimOp, Tensor, TensorId};

mod rounding;

pub(super) use rounding::Rounding;

/// The numbers that codes stand for: integers as they are, floats in f32.
pub(super) fn decoded(
    ctx: &mut Context<'_>,
    codes: TensorId,
    encoding: Encoding,
) -> Result<TensorId, RuleError> {
    if !encoding.is_float() {
        return Ok(codes);
    }
    let values = encoding.float_values();
    let table = ctx.tensor(Tensor::from_vec([values.len()], values));
    ctx.emit(PrimOp::Take { axis: 0 }, &[table, codes])
}

/// Codes of numbers. In an encoding of integers numbers lose their fraction, and wrap if they do not fit; in an encoding
/// of floats they are rounded.
pub(super) fn encoded(
    ctx: &mut Context<'_>,
    x: TensorId,
    encoding: Encoding,
    rounding: Rounding,
) -> Result<Operand, RuleError> {
    let codes = match encoding.int_range() {
        Some((lowest, _)) => {
            let x = ctx.cast(x, DType::I32)?;
            let low_bits = ctx.binary_scalar(BinaryFn::And, x, f64::from((1 << encoding.bits()) - 1))?;
            // The sign bit counts negative: flipped, then taken away.
            let sign = -f64::from(lowest);
            let flipped = ctx.binary_scalar(BinaryFn::Xor, low_bits, sign)?;
            ctx.binary_scalar(BinaryFn::Sub, flipped, sign)?
        }
        None => rounding.codes(ctx, x, encoding)?,
    };
    Ok(Operand::Encoded { codes: ctx.cast(codes, encoding.carrier())?, encoding })
}
