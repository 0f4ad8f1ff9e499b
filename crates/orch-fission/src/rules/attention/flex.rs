//! FlexAttention: `prob_mod(softmax(score_mod(scale q k'))) v`, the modifiers given as subgraphs.
//!
//! Scores are computed in `softmax_precision`: by default f32, or f64 for f64 operands.

use super::heads::Heads;
use crate::registry::{Applied, one};
use crate::rules::activation::softmax_of;
use crate::{Call, Context, Operand, RuleError};
use orch_ir::{DType, TensorId};

pub(super) fn flex_attention(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let operands = [call.tensor(0)?, call.tensor(1)?, call.tensor(2)?];
    let dtype = ctx.dtype(operands[0]);
    let default = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let precision = call.dtype_attribute("softmax_precision")?.unwrap_or(default);
    let mut precise = operands;
    for operand in &mut precise {
        *operand = ctx.cast(*operand, precision)?;
    }
    let heads = Heads::new(ctx, precise, [false, false])?;
    let scale = call.float("scale")?.unwrap_or(1.0 / (heads.size as f64).sqrt());
    let scores = heads.scores(ctx, scale)?;
    let scores = modified(ctx, call, "score_mod", scores)?;
    let weights = softmax_of(ctx, scores, &[3])?;
    let weights = modified(ctx, call, "prob_mod", weights)?;
    let y = heads.weighted(ctx, weights)?;
    one(ctx.cast(y, dtype)?)
}

/// The result of a modifier subgraph, which keeps type and shape.
fn modified(ctx: &mut Context<'_>, call: &Call<'_>, name: &str, x: TensorId) -> Result<TensorId, RuleError> {
    let Some(subgraph) = call.graph(name)? else {
        return Ok(x);
    };
    match ctx.inline(subgraph, &[x.into()])?.as_slice() {
        [Operand::Tensor(y)] if ctx.shape(*y) == ctx.shape(x) && ctx.dtype(*y) == ctx.dtype(x) => Ok(*y),
        _ => Err(RuleError::invalid(format!("{name} does not return one tensor like its input"))),
    }
}
