//! RotaryEmbedding: pairs `(a, b)` of elements of each head turn by the angle of their position,
//! `(a cos - b sin, a sin + b cos)`.
//!
//! Pairs are the two halves of the rotated part of a head, or with `interleaved` neighbours. f16 and bf16 compute in
//! f32.

use super::heads::{head_count, split_heads};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{PrimOp, TensorId};

pub(super) fn rotary_embedding(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let operand = call.tensor(0)?;
    let (dtype, shape) = (ctx.dtype(operand), ctx.shape(operand));
    // Dimensions of batch and sequence, with the operand seen as four dimensions.
    let (mut x, sequence) = match shape.rank() {
        3 => (split_heads(ctx, operand, head_count(call, "num_heads")?)?, 1),
        4 => (operand, 2),
        _ => return Err(RuleError::invalid(format!("operand 0 has shape {shape}"))),
    };
    x = ctx.widen(x)?;
    let size = ctx.shape(x)[3];
    let given = call.int_or("rotary_embedding_dim", 0)?;
    let rotated = if given == 0 { size } else { usize::try_from(given).unwrap_or(usize::MAX) };
    if rotated > size || !rotated.is_multiple_of(2) {
        return Err(RuleError::invalid(format!("rotary_embedding_dim {given} of heads of size {size}")));
    }
    let part = ctx.slice_axis(x, 3, 0, rotated)?;
    let rest = ctx.slice_axis(x, 3, rotated, size - rotated)?;
    let mut angles = [call.tensor(1)?, call.tensor(2)?];
    for cache in &mut angles {
        *cache = at_positions(ctx, call, *cache, (part, sequence))?;
    }
    let turned = turn(ctx, part, angles, call.flag_or("interleaved", false)?)?;
    let y = ctx.concat(&[turned, rest], 3)?;
    let y = ctx.cast(y, dtype)?;
    one(ctx.reshape(y, shape.to_vec())?)
}

/// Sines or cosines for each position, broadcast to half of `part`.
fn at_positions(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    cache: TensorId,
    (part, sequence): (TensorId, usize),
) -> Result<TensorId, RuleError> {
    let mut values = cache;
    if let Some(positions) = call.optional_tensor(3)? {
        values = ctx.emit(PrimOp::Take { axis: 0 }, &[values, positions])?;
    }
    let mut half = ctx.shape(part).to_vec();
    half[3] /= 2;
    let shape = ctx.shape(values);
    if shape.rank() != 3 || shape[2] != half[3] {
        return Err(RuleError::invalid(format!(
            "sines or cosines of shape {shape}, expected [batch, sequence, {}]",
            half[3]
        )));
    }
    let values = ctx.cast(values, ctx.dtype(part))?;
    ctx.broadcast(values, &half.into(), &[0, sequence, 3])
}

/// `(a cos - b sin, a sin + b cos)`.
fn turn(
    ctx: &mut Context<'_>,
    x: TensorId,
    [cos, sin]: [TensorId; 2],
    interleaved: bool,
) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(x);
    let half = ctx.shape(cos);
    let pick = |ctx: &mut Context<'_>, which: i64| {
        let (start, step) = if interleaved { (which, 2) } else { (which * half[3] as i64, 1) };
        ctx.slice(x, &[0, 0, 0, start], &[1, 1, 1, step], &half)
    };
    let (a, b) = (pick(ctx, 0)?, pick(ctx, 1)?);
    let (a_cos, b_sin) = (ctx.mul(a, cos)?, ctx.mul(b, sin)?);
    let (a_sin, b_cos) = (ctx.mul(a, sin)?, ctx.mul(b, cos)?);
    let (first, second) = (ctx.sub(a_cos, b_sin)?, ctx.add(a_sin, b_cos)?);
    if !interleaved {
        return ctx.concat(&[first, second], 3);
    }
    let (first, second) = (ctx.unsqueeze(first, 4)?, ctx.unsqueeze(second, 4)?);
    let pairs = ctx.concat(&[first, second], 4)?;
    ctx.reshape(pairs, shape.to_vec())
}
