//! Batch normalization: `(x - mean) / sqrt(variance + eps) weight + bias` per channel of `[n, c, ..]`.
//!
//! In training the statistics are those of the batch, and the running ones move by `momentum`, the variance without
//! bias. f16 and bf16 compute in f32. Gradients arrive decomposed.

use super::layer_norm::{Statistics, inverse_root, scale_and_shift};
use super::{Applied, Rule, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, invalid, unsupported};
use orch_ir::DType;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule(
        "aten._native_batch_norm_legit_no_training.default",
        "input weight bias running_mean running_var momentum eps",
        inference,
    ),
    rule(
        "aten._native_batch_norm_legit_functional.default",
        "input weight bias running_mean running_var training momentum eps",
        functional,
    ),
    rule("aten._native_batch_norm_legit.no_stats", "input weight bias training momentum eps", no_statistics)
        .when("training"),
    rule(
        "aten.native_batch_norm.default",
        "input weight bias running_mean running_var training momentum eps",
        in_place,
    )
    .when("not training, or no running statistics"),
];

/// The operand in the type to compute in, with checks.
fn operand(emitter: &mut Emitter, call: &Call) -> Result<Val, Refusal> {
    let x = call.float_tensor("input")?;
    if x.rank() < 2 { invalid(format!("the channels of {}", x.describe())) } else { Ok(emitter.widen(x)) }
}

/// The shape of a vector per channel, to broadcast to `x`.
fn per_channel(x: &Val) -> Vec<usize> {
    let mut dims = vec![1; x.rank() - 1];
    dims[0] = x.shape[1];
    dims
}

fn affine(emitter: &mut Emitter, call: &Call, normalized: &Val) -> Emitted {
    let vectors = [call.optional_tensor("weight")?, call.optional_tensor("bias")?];
    let y = scale_and_shift(emitter, normalized, vectors, &per_channel(normalized))?;
    Ok(emitter.cast(&y, call.dtype()?))
}

/// With the running statistics. Saved statistics are empty on CPUs; on GPUs they are the running mean, and `1 / sqrt(variance + eps)`.
fn inference(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = operand(emitter, call)?;
    let dims = per_channel(&x);
    let mut vector = |name: &str| {
        let vector = emitter.cast(call.tensor(name)?, x.dtype);
        emitter.reshape(&vector, dims.clone())
    };
    let (mean, variance) = (vector("running_mean")?, vector("running_var")?);
    let inverse = inverse_root(emitter, &variance, call.float_or("eps", 1e-5)?)?;
    let centred = emitter.binary("Sub", &x, &mean)?;
    let normalized = emitter.binary("Mul", &centred, &inverse)?;
    let mut results = vec![Some(affine(emitter, call, &normalized)?)];
    for index in 1..3 {
        let (dtype, shape) = call.result(index)?;
        let saved = match (shape.elems(), index) {
            (0, _) => emitter.zeros(dtype, &shape)?,
            (_, 1) => call.tensor("running_mean")?.clone(),
            _ => emitter.reshape(&inverse, [inverse.shape.elems()])?,
        };
        if saved.shape != shape {
            return invalid(format!("saved statistics {} of {}", saved.describe(), x.describe()));
        }
        results.push(Some(emitter.cast(&saved, dtype)));
    }
    Ok(results)
}

/// What training computes.
struct Trained {
    y: Val,
    /// Mean and `1 / sqrt(variance + eps)` of the batch, to save.
    saved: [Val; 2],
    /// Mean and variance of the batch.
    statistics: [Val; 2],
    /// Elements per channel.
    count: usize,
}

fn train(emitter: &mut Emitter, call: &Call) -> Result<Trained, Refusal> {
    let x = operand(emitter, call)?;
    let axes: Vec<usize> = (0..x.rank()).filter(|&axis| axis != 1).collect();
    let channels = x.shape[1];
    let count = axes.iter().map(|&axis| x.shape[axis]).product();
    let Statistics { centred, mean, variance } = Statistics::new(emitter, &x, &axes)?;
    let inverse = inverse_root(emitter, &variance, call.float_or("eps", 1e-5)?)?;
    let normalized = emitter.binary("Mul", &centred, &inverse)?;
    let y = affine(emitter, call, &normalized)?;
    let mut vector = |value: &Val| emitter.reshape(value, [channels]);
    let (mean, variance, inverse) = (vector(&mean)?, vector(&variance)?, vector(&inverse)?);
    Ok(Trained { y, saved: [mean.clone(), inverse], statistics: [mean, variance], count })
}

/// The result and the saved statistics, in the types that the document says.
fn results(emitter: &mut Emitter, call: &Call, trained: &Trained) -> Applied {
    let mut results = vec![Some(trained.y.clone())];
    for (index, value) in (1..).zip(&trained.saved) {
        results.push(Some(emitter.cast(value, stated_type(call, index, value))));
    }
    Ok(results)
}

/// The type of a result in the document; that of another value where the document has none.
fn stated_type(call: &Call, index: usize, other: &Val) -> DType {
    call.result(index).map_or(other.dtype, |(dtype, _)| dtype)
}

/// The running statistics are results, in the types that the document says: PyTorch traces those of f16 and bf16 as f32 on GPUs, and
/// rounds them where it copies them back.
fn functional(emitter: &mut Emitter, call: &Call) -> Applied {
    if !call.flag_or("training", false)? {
        let mut results = inference(emitter, call)?;
        for name in ["running_mean", "running_var"] {
            results.push(Some(call.tensor(name)?.clone()));
        }
        return Ok(results);
    }
    let trained = train(emitter, call)?;
    let mut results = results(emitter, call, &trained)?;
    let momentum = call.float_or("momentum", 0.1)?;
    let unbiased = trained.count as f64 / (trained.count as f64 - 1.0).max(0.0);
    let statistics =
        ["running_mean", "running_var"].into_iter().zip(&trained.statistics).zip([1.0, unbiased]);
    for (index, ((name, current), factor)) in (3..).zip(statistics) {
        let running = call.tensor(name)?;
        let kept = emitter.cast(running, current.dtype);
        let kept = emitter.binary_scalar("Mul", &kept, 1.0 - momentum)?;
        let new =
            if factor == 1.0 { current.clone() } else { emitter.binary_scalar("Mul", current, factor)? };
        let new = emitter.binary_scalar("Mul", &new, momentum)?;
        let sum = emitter.binary("Add", &kept, &new)?;
        results.push(Some(emitter.cast(&sum, stated_type(call, index, running))));
    }
    Ok(results)
}

fn no_statistics(emitter: &mut Emitter, call: &Call) -> Applied {
    if !call.flag_or("training", false)? {
        return unsupported("inference without running statistics");
    }
    let trained = train(emitter, call)?;
    results(emitter, call, &trained)
}

fn in_place(emitter: &mut Emitter, call: &Call) -> Applied {
    if !call.flag_or("training", false)? {
        return inference(emitter, call);
    }
    if call.has("running_mean") || call.has("running_var") {
        return unsupported("training that changes the running statistics in place");
    }
    let trained = train(emitter, call)?;
    results(emitter, call, &trained)
}
