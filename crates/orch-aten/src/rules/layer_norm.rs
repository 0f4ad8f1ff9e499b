//! Layer and group normalization: `(x - mean) / sqrt(variance + eps) weight + bias`, and the statistics.
//!
//! f16 and bf16 compute in f32 and are rounded once.

use super::reduce::mean_of;
use super::{Applied, Rule, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, invalid};
use orch_ir::Shape;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.native_layer_norm.default", "input normalized_shape weight bias eps", layer_norm),
    rule("aten.native_group_norm.default", "input weight bias N C HxW group eps", group_norm),
];

/// `x` less its mean, and statistics over axes, which stay with extent 1.
pub(super) struct Statistics {
    pub centred: Val,
    pub mean: Val,
    /// The biased variance.
    pub variance: Val,
}

impl Statistics {
    /// The statistics of `x` over axes.
    pub fn new(emitter: &mut Emitter, x: &Val, axes: &[usize]) -> Result<Self, Refusal> {
        let mean = mean_of(emitter, x, axes, true)?;
        let centred = emitter.binary("Sub", x, &mean)?;
        let squares = emitter.binary("Mul", &centred, &centred)?;
        let variance = mean_of(emitter, &squares, axes, true)?;
        Ok(Self { centred, mean, variance })
    }
}

/// `1 / sqrt(variance + eps)`.
pub(super) fn inverse_root(emitter: &mut Emitter, variance: &Val, eps: f64) -> Emitted {
    let shifted = emitter.binary_scalar("Add", variance, eps)?;
    let root = emitter.unary("Sqrt", &shifted);
    Ok(emitter.unary("Reciprocal", &root))
}

/// `x weight + bias`, which have the shape `dims` to broadcast.
pub(super) fn scale_and_shift(
    emitter: &mut Emitter,
    x: &Val,
    [weight, bias]: [Option<&Val>; 2],
    dims: &[usize],
) -> Emitted {
    let mut y = x.clone();
    for (op_type, operand) in [("Mul", weight), ("Add", bias)] {
        if let Some(operand) = operand {
            let operand = emitter.cast(operand, x.dtype);
            let operand = emitter.reshape(&operand, dims)?;
            y = emitter.binary(op_type, &y, &operand)?;
        }
    }
    Ok(y)
}

fn layer_norm(emitter: &mut Emitter, call: &Call) -> Applied {
    let input = call.float_tensor("input")?;
    let dims = call.dims("normalized_shape")?;
    if dims.rank() == 0 || !input.shape.ends_with(&dims) {
        return invalid(format!("{} is normalized over {dims}", input.describe()));
    }
    let axes: Vec<usize> = (input.rank() - dims.rank()..input.rank()).collect();
    let x = emitter.widen(input);
    let statistics = Statistics::new(emitter, &x, &axes)?;
    let inverse = inverse_root(emitter, &statistics.variance, call.float_or("eps", 1e-5)?)?;
    let normalized = emitter.binary("Mul", &statistics.centred, &inverse)?;
    let vectors = [call.optional_tensor("weight")?, call.optional_tensor("bias")?];
    let y = scale_and_shift(emitter, &normalized, vectors, &dims)?;
    results(emitter, call, &y, [&statistics.mean, &inverse], &statistics.mean.shape)
}

fn group_norm(emitter: &mut Emitter, call: &Call) -> Applied {
    let input = call.float_tensor("input")?;
    let sizes =
        ["N", "C", "HxW", "group"].map(|name| call.int(name).map(|size| usize::try_from(size).unwrap_or(0)));
    let [batch, channels, plane, groups] = sizes;
    let (batch, channels, plane, groups) = (batch?, channels?, plane?, groups?);
    let is_known = input.rank() >= 2
        && input.shape[..2] == [batch, channels]
        && input.shape[2..].iter().product::<usize>() == plane;
    if !is_known || groups == 0 || !channels.is_multiple_of(groups) {
        return invalid(format!("{groups} groups of {channels} channels of {}", input.describe()));
    }
    let x = emitter.widen(input);
    let Some(size) = (channels / groups).checked_mul(plane) else {
        return invalid("the groups are too large");
    };
    let grouped = emitter.reshape(&x, [batch, groups, size])?;
    let statistics = Statistics::new(emitter, &grouped, &[2])?;
    let inverse = inverse_root(emitter, &statistics.variance, call.float_or("eps", 1e-5)?)?;
    let normalized = emitter.binary("Mul", &statistics.centred, &inverse)?;
    let normalized = emitter.reshape(&normalized, input.shape.to_vec())?;
    let mut dims = vec![1; input.rank() - 1];
    dims[0] = channels;
    let vectors = [call.optional_tensor("weight")?, call.optional_tensor("bias")?];
    let y = scale_and_shift(emitter, &normalized, vectors, &dims)?;
    results(emitter, call, &y, [&statistics.mean, &inverse], &[batch, groups].into())
}

/// The result and the statistics in the types that the document says: on CPUs those of the weights, else f32.
fn results(emitter: &mut Emitter, call: &Call, y: &Val, statistics: [&Val; 2], shape: &Shape) -> Applied {
    let mut results = vec![Some(emitter.cast(y, call.dtype()?))];
    for (position, value) in statistics.into_iter().enumerate() {
        let value = emitter.reshape(value, shape.to_vec())?;
        // Nothing reads a result without a type.
        let dtype = call.result(position + 1).map_or(value.dtype, |known| known.0);
        results.push(Some(emitter.cast(&value, dtype)));
    }
    Ok(results)
}
