//! STFT: Fourier transforms of overlapping frames of a signal `[batch, time, parts]`, each weighted by a window.
//! Result: `[batch, frames, bins, 2]`.

use super::super::operand_lists::{extent, single_int};
use super::dft::{Transform, transform};
use crate::registry::{Applied, one};
use crate::rules::index::select_along;
use crate::{Call, Context, RuleError};

/// The largest sum of the lengths of all frames: what each position reads is listed when compiling.
const MAX_POSITIONS: usize = 1 << 26;

pub(super) fn stft(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let step = extent(single_int(ctx, call, 1, "frame_step")?, "frame_step")?;
    let window = call.optional_tensor(2)?;
    let shape = ctx.shape(x);
    let &[batch, time, parts] = shape.dims() else {
        return Err(RuleError::invalid(format!("a signal of shape {shape}, expected [batch, time, parts]")));
    };
    let length = match (call.optional_tensor(3)?, window) {
        (Some(_), _) => extent(single_int(ctx, call, 3, "frame_length")?, "frame_length")?,
        (None, Some(window)) => ctx.shape(window).elems(),
        (None, None) => time,
    };
    let Some(spare) = time.checked_sub(length).filter(|_| step > 0 && length > 0) else {
        return Err(RuleError::invalid(format!(
            "frames of length {length} every {step} positions of a signal of length {time}"
        )));
    };
    let frames = spare / step + 1;
    if frames.saturating_mul(length) > MAX_POSITIONS {
        return Err(RuleError::unsupported(format!("{frames} frames of length {length}")));
    }
    let positions = (0..frames).flat_map(|frame| frame * step..frame * step + length).collect();
    let framed = select_along(ctx, x, 1, positions)?;
    let mut framed = ctx.reshape(framed, [batch, frames, length, parts])?;
    if let Some(window) = window {
        let window = ctx.reshape(window, [length, 1])?;
        framed = ctx.mul(framed, window)?;
    }
    let onesided = call.flag_or("onesided", true)?;
    one(transform(ctx, framed, 2, Transform { length, inverse: false, onesided })?)
}
