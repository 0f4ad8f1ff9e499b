//! CausalConvWithState: a depthwise convolution over the last `k` positions, `x [n, c, d]`, `w [c, 1, k]`.
//!
//! The state is the `k - 1` positions before the first one, zeros if not given; the second result is the state after
//! the last. The optional activation is `x sigmoid(x)`, in f32 at least.

use super::conv::conv_of;
use crate::registry::Applied;
use crate::rules::activation::swish_of;
use crate::{Call, Context, RuleError};
use orch_ir::{ConvSpec, Window};

pub(super) fn causal_conv(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let (dtype, shape, weight) = (ctx.dtype(x), ctx.shape(x), ctx.shape(w));
    if shape.rank() != 3 || weight.rank() != 3 || weight[2] == 0 {
        return Err(RuleError::invalid(format!("operands have shapes {shape} and {weight}")));
    }
    let kernel = weight[2];
    let padded = match call.optional_tensor(3)? {
        Some(state) => ctx.concat(&[state, x], 2)?,
        None => ctx.pad_axis(x, 2, [kernel - 1, 0], 0.0)?,
    };
    let window =
        Window { kernel: vec![kernel], strides: vec![1], dilations: vec![1], low: vec![0], high: vec![0] };
    let spec = ConvSpec { window, groups: shape[1] };
    let mut y = conv_of(ctx, [padded, w], spec, call.optional_tensor(2)?)?;
    match call.text_or("activation", "none")? {
        "none" => {}
        "silu" | "swish" => {
            y = ctx.widen(y)?;
            y = swish_of(ctx, y, 1.0)?;
            y = ctx.cast(y, dtype)?;
        }
        other => {
            return Err(RuleError::invalid(format!("activation is {other}, expected silu, swish or none")));
        }
    }
    let length = ctx.shape(padded)[2];
    let first = (length + 1).checked_sub(kernel).ok_or_else(|| {
        RuleError::invalid(format!("{length} positions with state are fewer than the state holds"))
    })?;
    let state = ctx.slice_axis(padded, 2, first, kernel - 1)?;
    Ok(vec![y.into(), state.into()])
}
