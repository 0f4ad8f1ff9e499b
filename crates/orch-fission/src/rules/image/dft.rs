//! DFT: the discrete Fourier transform of one axis; the last dimension holds real, or real and imaginary parts.

use super::super::operand_lists::{extent, single_int};
use super::Routine;
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::TensorId;

pub(super) fn dft(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let axis = match (call.opset() < 20, call.optional_tensor(2)?) {
        (true, _) => call.int_or("axis", 1)?,
        (false, None) => -2,
        (false, Some(_)) => single_int(ctx, call, 2, "axis")?,
    };
    let axis = normalize_axis(axis, shape.rank())?;
    let (inverse, onesided) = (call.flag_or("inverse", false)?, call.flag_or("onesided", false)?);
    let length = match call.optional_tensor(1)? {
        Some(_) => extent(single_int(ctx, call, 1, "dft_length")?, "dft_length")?,
        // One side of a spectrum of even length.
        None if inverse && onesided => 2 * shape[axis].saturating_sub(1),
        None => shape[axis],
    };
    one(transform(ctx, x, axis, Transform { length, inverse, onesided })?)
}

/// Which transform.
pub(super) struct Transform {
    /// The signal is cut or filled with zeros to this length.
    pub length: usize,
    /// From the spectrum to the signal.
    pub inverse: bool,
    /// The half of the spectrum that determines the other, of a real signal.
    pub onesided: bool,
}

/// The transform of one axis of `x`.
pub(super) fn transform(
    ctx: &mut Context<'_>,
    x: TensorId,
    axis: usize,
    transform: Transform,
) -> Result<TensorId, RuleError> {
    let Transform { length, inverse, onesided } = transform;
    let mut dims = ctx.shape(x).to_vec();
    let last = dims.len().saturating_sub(1);
    if axis >= last || length == 0 || !(1..=2).contains(&dims[last]) {
        return Err(RuleError::invalid(format!(
            "a transform of length {length} along axis {axis} of {dims:?}; the last dimension holds 1 or 2 parts"
        )));
    }
    dims[axis] = if onesided && !inverse { length / 2 + 1 } else { length };
    dims[last] = if onesided && inverse { 1 } else { 2 };
    let result = (ctx.dtype(x), checked_shape(dims)?);
    let ints = vec![axis as i64, length as i64, inverse.into(), onesided.into()];
    Routine { name: "DFT", ints, ..Routine::default() }.emit(ctx, &[x], result)
}
