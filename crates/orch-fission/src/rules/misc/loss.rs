//! NegativeLogLikelihoodLoss: `-w[t] x[t]` of log probabilities `x [n, c, d..]` at targets `t [n, d..]`, and its sum or
//! weighted mean. SoftmaxCrossEntropyLoss: the same of the log-softmax of scores. Ignored targets weigh nothing.

use crate::registry::Applied;
use crate::rules::activation::log_softmax_of;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, PrimOp, ReduceOp, TensorId, UnaryFn};

pub(super) fn negative_log_likelihood(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let wide = ctx.widen(x)?;
    let loss = loss_of(ctx, call, wide)?;
    Ok(vec![ctx.cast(loss, dtype)?.into()])
}

pub(super) fn softmax_cross_entropy(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let scores = call.tensor(0)?;
    let dtype = ctx.dtype(scores);
    if ctx.rank(scores) < 2 {
        return Err(RuleError::invalid(format!(
            "scores have shape {}, expected [n, c, ..]",
            ctx.shape(scores)
        )));
    }
    let wide = ctx.widen(scores)?;
    let log_prob = log_softmax_of(ctx, wide, &[1])?;
    let loss = loss_of(ctx, call, log_prob)?;
    Ok(vec![ctx.cast(loss, dtype)?.into(), ctx.cast(log_prob, dtype)?.into()])
}

/// The loss of log probabilities.
fn loss_of(ctx: &mut Context<'_>, call: &Call<'_>, log_prob: TensorId) -> Result<TensorId, RuleError> {
    let mut target = call.tensor(1)?;
    let (shape, target_shape) = (ctx.shape(log_prob), ctx.shape(target));
    if shape.rank() < 2 || target_shape[..] != [&shape[..1], &shape[2..]].concat() {
        return Err(RuleError::invalid(format!(
            "targets of shape {target_shape} for classes of shape {shape}"
        )));
    }
    let ignored = match call.int("ignore_index")? {
        None => None,
        Some(index) => {
            let index = ctx.scalar_int(ctx.dtype(target), index);
            let ignored = ctx.compare(CompareFn::Eq, target, index)?;
            // An ignored target need not be a class.
            let first = ctx.scalar_int(ctx.dtype(target), 0);
            target = ctx.select(ignored, first, target)?;
            Some(ignored)
        }
    };
    let weight = weight_of(ctx, call, log_prob, target, ignored)?;
    let at = ctx.unsqueeze(target, 1)?;
    let picked = ctx.emit(PrimOp::TakeAlong { axis: 1 }, &[log_prob, at])?;
    let picked = ctx.reshape(picked, target_shape.to_vec())?;
    let mut loss = ctx.unary(UnaryFn::Neg, picked)?;
    if let Some(weight) = weight {
        loss = ctx.mul(loss, weight)?;
    }
    if let Some(ignored) = ignored {
        let zero = ctx.scalar_like(loss, 0.0);
        loss = ctx.select(ignored, zero, loss)?;
    }
    let axes: Vec<usize> = (0..target_shape.rank()).collect();
    match call.text_or("reduction", "mean")? {
        "none" => Ok(loss),
        "sum" => ctx.reduce(ReduceOp::Sum, loss, &axes),
        "mean" => {
            let sum = ctx.reduce(ReduceOp::Sum, loss, &axes)?;
            match weight {
                Some(weight) => {
                    let total = ctx.reduce(ReduceOp::Sum, weight, &axes)?;
                    ctx.div(sum, total)
                }
                None => ctx.binary_scalar(BinaryFn::Div, sum, target_shape.elems() as f64),
            }
        }
        other => Err(RuleError::invalid(format!("reduction is {other}, expected none, sum or mean"))),
    }
}

/// The weight of each target, if not all weigh the same.
fn weight_of(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    log_prob: TensorId,
    target: TensorId,
    ignored: Option<TensorId>,
) -> Result<Option<TensorId>, RuleError> {
    let weight = match call.optional_tensor(2)? {
        Some(weight) => {
            let weight = ctx.cast(weight, ctx.dtype(log_prob))?;
            Some(ctx.emit(PrimOp::Take { axis: 0 }, &[weight, target])?)
        }
        None => None,
    };
    let Some(ignored) = ignored else { return Ok(weight) };
    let zero = ctx.scalar_like(log_prob, 0.0);
    let one = ctx.scalar_like(log_prob, 1.0);
    Ok(Some(ctx.select(ignored, zero, weight.unwrap_or(one))?))
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    #[test]
    fn ignored_targets_do_not_count() {
        let log_prob = [-1.0, -2.0, -3.0, -4.0, f32::NEG_INFINITY, -6.0];
        let call = || apply("NegativeLogLikelihoodLoss", 13).floats(&[3, 2], &log_prob).ints(&[0, 1, -5]);
        let call = || call().with("ignore_index", Attribute::Int(-5));
        assert_eq!(call().first().1, [2.5]);
        let none = Attribute::String("none".to_owned());
        assert_eq!(call().with("reduction", none).first().1, [1.0, 4.0, 0.0]);
        let weighted = call().floats(&[2], &[1.0, 3.0]);
        assert_eq!(weighted.first().1, [13.0 / 4.0]);
    }
}
