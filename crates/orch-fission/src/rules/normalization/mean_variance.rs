//! MeanVarianceNormalization: `y = (x - mean) / (sqrt(variance) + 1e-9)` over `axes`, by default `[0, 2, 3]`.

use crate::registry::{Applied, one};
use crate::{Call, Context, normalize_axes};
use orch_ir::{BinaryFn, UnaryFn};

pub(super) fn mean_variance_normalization(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    const DEFAULT_AXES: &[i64] = &[0, 2, 3];
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let axes = normalize_axes(call.ints("axes")?.unwrap_or(DEFAULT_AXES), ctx.rank(x))?;
    let x = ctx.widen(x)?;
    let mean = ctx.mean_keep(x, &axes)?;
    let centred = ctx.sub(x, mean)?;
    let squares = ctx.mul(centred, centred)?;
    let variance = ctx.mean_keep(squares, &axes)?;
    let deviation = ctx.unary(UnaryFn::Sqrt, variance)?;
    let divisor = ctx.binary_scalar(BinaryFn::Add, deviation, 1e-9)?;
    let y = ctx.div(centred, divisor)?;
    one(ctx.cast(y, dtype)?)
}
