//! Pow: `y = x^n` in the type of `x`; the exponent may be of another type.
//!
//! Exponents 1, 2, 3, -1 and 0.5 known when compiling become products, reciprocals and square roots. (A square
//! root differs from `pow(x, 0.5)` at -inf and in the sign of zero alone.) An integer raised to a float is
//! computed in floats: f64 for integers of 32 bits and more.

use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, DType, TensorId, UnaryFn};

pub(super) fn pow(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (base, exponent) = (call.tensor(0)?, call.tensor(1)?);
    let dtype = ctx.dtype(base);
    if let Some(n) = uniform(ctx, exponent)
        && let Some(y) = special(ctx, base, n)?
    {
        // The exponent may still broadcast the base.
        let shape = crate::build::broadcast_shapes(&[ctx.shape(base), ctx.shape(exponent)])?;
        return one(ctx.broadcast_to(y, &shape)?);
    }
    let common = match (dtype, ctx.dtype(exponent)) {
        (base, exponent) if base.is_float() || exponent.is_int() => base,
        (DType::I32 | DType::I64 | DType::U32 | DType::U64, _) => DType::F64,
        (_, DType::F64) => DType::F64,
        _ => DType::F32,
    };
    let (base, exponent) = (ctx.cast(base, common)?, ctx.cast(exponent, common)?);
    let y = ctx.binary(BinaryFn::Pow, base, exponent)?;
    one(ctx.cast(y, dtype)?)
}

/// The one value of a small constant, if all its elements are equal.
fn uniform(ctx: &mut Context<'_>, tensor: TensorId) -> Option<f64> {
    const SMALL_ELEMS: usize = 1 << 16;
    if ctx.shape(tensor).elems() > SMALL_ELEMS {
        return None;
    }
    let values = ctx.constant(tensor)?.to_f64();
    let first = *values.first()?;
    values.iter().all(|&value| value == first).then_some(first)
}

/// `x^n` without a power function, for the exponents that allow it.
fn special(ctx: &mut Context<'_>, x: TensorId, n: f64) -> Result<Option<TensorId>, RuleError> {
    let is_float = ctx.dtype(x).is_float();
    Ok(Some(match n {
        1.0 => x,
        2.0 => ctx.mul(x, x)?,
        3.0 => {
            let square = ctx.mul(x, x)?;
            ctx.mul(square, x)?
        }
        -1.0 if is_float => ctx.unary(UnaryFn::Recip, x)?,
        0.5 if is_float => ctx.unary(UnaryFn::Sqrt, x)?,
        _ => return Ok(None),
    }))
}
