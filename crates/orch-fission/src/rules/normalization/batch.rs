//! BatchNormalization: `y = (x - mean) / sqrt(variance + epsilon) scale + bias` per channel of `[n, c, ..]`.
//!
//! Inference takes mean and variance as operands. Where all four vectors are constants they fold into one factor
//! and one summand. In training mode the statistics are those of the batch, and the running ones are updated.

use super::{Standard, inverse_root, per_channel, scale_and_shift};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId};

pub(super) fn batch_normalization(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    if !call.flag_or("spatial", true)? {
        return Err(RuleError::unsupported("spatial = 0 (statistics per position)"));
    }
    let epsilon = call.float_or("epsilon", 1e-5)?;
    if call.flag_or("training_mode", false)? {
        return training(ctx, call, epsilon);
    }
    let x = call.tensor(0)?;
    let (dtype, rank) = (ctx.dtype(x), ctx.rank(x));
    let x = ctx.widen(x)?;
    let wide = ctx.dtype(x);
    let mut vectors = Vec::new();
    for index in 1..5 {
        let vector = call.tensor(index)?;
        vectors.push(per_channel(ctx, vector, rank, wide)?);
    }
    let [scale, bias, mean, variance] = [vectors[0], vectors[1], vectors[2], vectors[3]];
    let inverse = inverse_root(ctx, variance, epsilon)?;
    let factor = ctx.mul(scale, inverse)?;
    let y = if ctx.is_known(factor) && ctx.is_known(mean) && ctx.is_known(bias) {
        let shift = ctx.mul(mean, factor)?;
        let summand = ctx.sub(bias, shift)?;
        let scaled = ctx.mul(x, factor)?;
        ctx.add(scaled, summand)?
    } else {
        let centred = ctx.sub(x, mean)?;
        let scaled = ctx.mul(centred, factor)?;
        ctx.add(scaled, bias)?
    };
    one(ctx.cast(y, dtype)?)
}

fn training(ctx: &mut Context<'_>, call: &Call<'_>, epsilon: f64) -> Applied {
    let momentum = call.float_or("momentum", 0.9)?;
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    let axes: Vec<usize> = (0..ctx.rank(x)).filter(|&axis| axis != 1).collect();
    let standard = Standard::new(ctx, x, &axes, epsilon)?;
    let normalized = standard.normalized(ctx)?;
    let y = scale_and_shift(ctx, normalized, [call.tensor(1)?, call.tensor(2)?])?;
    let squares = ctx.mul(standard.centred, standard.centred)?;
    let variance = ctx.mean_keep(squares, &axes)?;
    let mut results = vec![ctx.cast(y, dtype)?.into()];
    for (running, current) in [(call.tensor(3)?, standard.mean), (call.tensor(4)?, variance)] {
        results.push(blend(ctx, running, current, momentum)?.into());
    }
    Ok(results)
}

/// `running momentum + current (1 - momentum)`, as a vector.
fn blend(
    ctx: &mut Context<'_>,
    running: TensorId,
    current: TensorId,
    momentum: f64,
) -> Result<TensorId, RuleError> {
    let dtype = ctx.dtype(running);
    let current = ctx.reshape(current, ctx.shape(running).to_vec())?;
    let kept = ctx.cast(running, ctx.dtype(current))?;
    let kept = ctx.binary_scalar(BinaryFn::Mul, kept, momentum)?;
    let new = ctx.binary_scalar(BinaryFn::Mul, current, 1.0 - momentum)?;
    let sum = ctx.add(kept, new)?;
    ctx.cast(sum, dtype)
}
