//! Attention: `softmax(softcap(scale q k') + mask) v`, per head.
//!
//! Softmax is computed in `softmax_precision`, in f32 at least. Mode 0 to 3 of the fourth result: the scaled
//! product, after the soft cap, after the mask, after softmax. A query that attends no key gives zeros.

use super::heads::Heads;
use super::mask::Mask;
use crate::registry::Applied;
use crate::rules::activation::softmax_of;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId, UnaryFn};

pub(super) fn attention(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let past = [call.optional_tensor(4)?, call.optional_tensor(5)?];
    if past[0].is_some() != past[1].is_some() {
        return Err(RuleError::invalid("past_key and past_value must be given together"));
    }
    let past_keys = past[0].map_or(0, |past| ctx.shape(past).get(2).copied().unwrap_or(0));
    let heads = Heads::read(ctx, call, past)?;
    let mask = Mask::read(ctx, call, &heads, past_keys)?;
    let dtype = ctx.dtype(call.tensor(0)?);

    let scale = call.float("scale")?.unwrap_or(1.0 / (heads.size as f64).sqrt());
    let product = heads.scores(ctx, scale)?;
    let capped = soft_cap(ctx, product, call.float_or("softcap", 0.0)?)?;
    let masked = mask.apply(ctx, capped)?;
    let logits = match call.int_or("softmax_precision", 0)? {
        0 => ctx.widen(masked)?,
        code => {
            let precise = ctx.cast(masked, crate::dtype_from_onnx(code)?)?;
            ctx.widen(precise)?
        }
    };
    let weights = softmax_of(ctx, logits, &[3])?;
    let weights = mask.clear_hidden(ctx, weights)?;
    let weights = ctx.cast(weights, dtype)?;
    let y = heads.weighted(ctx, weights)?;

    let shown = match call.int_or("qk_matmul_output_mode", 0)? {
        0 => product,
        1 => capped,
        2 => masked,
        3 => weights,
        other => return Err(RuleError::invalid(format!("qk_matmul_output_mode is {other}"))),
    };
    Ok([y, heads.key, heads.value, shown].map(Into::into).to_vec())
}

/// `cap tanh(x / cap)`; no cap is 0.
fn soft_cap(ctx: &mut Context<'_>, x: TensorId, cap: f64) -> Result<TensorId, RuleError> {
    if cap <= 0.0 {
        return Ok(x);
    }
    let scaled = ctx.binary_scalar(BinaryFn::Div, x, cap)?;
    let bounded = ctx.unary(UnaryFn::Tanh, scaled)?;
    ctx.binary_scalar(BinaryFn::Mul, bounded, cap)
}
