//! Normalisations: variance in two passes (`mean (x - mean)^2`), f16 and bf16 in f32.

use crate::registry::Rule;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, DType, TensorId, UnaryFn};

mod batch;
mod dropout;
mod group;
mod layer;
mod local_response;
mod lp;
mod mean_variance;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("BatchNormalization", batch::batch_normalization).since(7),
    Rule::onnx("InstanceNormalization", group::instance_normalization),
    Rule::onnx("GroupNormalization", group::group_normalization).since(18),
    Rule::onnx("LayerNormalization", layer::layer_normalization),
    Rule::onnx("RMSNormalization", layer::rms_normalization),
    Rule::onnx("LpNormalization", lp::lp_normalization),
    Rule::onnx("MeanVarianceNormalization", mean_variance::mean_variance_normalization),
    Rule::onnx("LRN", local_response::lrn),
    Rule::onnx("Dropout", dropout::dropout).since(7),
];

/// `x - mean`, and `1 / sqrt(variance + epsilon)`, over `axes`, which stay with extent 1.
struct Standard {
    mean: TensorId,
    centred: TensorId,
    inverse_deviation: TensorId,
}

impl Standard {
    fn new(ctx: &mut Context<'_>, x: TensorId, axes: &[usize], epsilon: f64) -> Result<Self, RuleError> {
        let mean = ctx.mean_keep(x, axes)?;
        let centred = ctx.sub(x, mean)?;
        let squares = ctx.mul(centred, centred)?;
        let variance = ctx.mean_keep(squares, axes)?;
        let inverse_deviation = inverse_root(ctx, variance, epsilon)?;
        Ok(Self { mean, centred, inverse_deviation })
    }

    /// `(x - mean) / sqrt(variance + epsilon)`.
    fn normalized(&self, ctx: &mut Context<'_>) -> Result<TensorId, RuleError> {
        ctx.mul(self.centred, self.inverse_deviation)
    }
}

/// `1 / sqrt(x + epsilon)`.
fn inverse_root(ctx: &mut Context<'_>, x: TensorId, epsilon: f64) -> Result<TensorId, RuleError> {
    let shifted = ctx.binary_scalar(BinaryFn::Add, x, epsilon)?;
    let root = ctx.unary(UnaryFn::Sqrt, shifted)?;
    ctx.unary(UnaryFn::Recip, root)
}

/// The type that statistics are computed in: that of `stash_type`, or f64 for f64 operands.
fn stash_type(call: &Call<'_>, operand: DType) -> Result<(DType, DType), RuleError> {
    let stash = call.dtype_attribute("stash_type")?.unwrap_or(DType::F32);
    if !stash.is_float() {
        return Err(RuleError::invalid(format!("stash_type is {stash}, expected a float type")));
    }
    let compute = if operand == DType::F64 { DType::F64 } else { stash };
    Ok((compute, stash))
}

/// A vector along the channels of `[n, c, ..]`, in type `dtype`, that broadcasts to that shape.
fn per_channel(
    ctx: &mut Context<'_>,
    vector: TensorId,
    rank: usize,
    dtype: DType,
) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(vector);
    if shape.rank() != 1 {
        return Err(RuleError::invalid(format!("a vector per channel is expected, {shape} is given")));
    }
    let vector = ctx.cast(vector, dtype)?;
    let mut dims = vec![1; rank.max(2) - 1];
    dims[0] = shape[0];
    ctx.reshape(vector, dims)
}

/// `x scale + bias`, scale and bias vectors along the channels.
fn scale_and_shift(
    ctx: &mut Context<'_>,
    x: TensorId,
    [scale, bias]: [TensorId; 2],
) -> Result<TensorId, RuleError> {
    let (rank, dtype) = (ctx.rank(x), ctx.dtype(x));
    let scale = per_channel(ctx, scale, rank, dtype)?;
    let bias = per_channel(ctx, bias, rank, dtype)?;
    let scaled = ctx.mul(x, scale)?;
    ctx.add(scaled, bias)
}
