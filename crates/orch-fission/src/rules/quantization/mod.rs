//! Quantisation, and products of quantised operands: integers are multiplied and added in i32, exactly.

use crate::registry::Rule;
use crate::rules::encoded::decoded;
use crate::{Call, Context, Operand, RuleError, normalize_axis};
use orch_ir::{BinaryFn, DType, TensorId, UnaryFn};

mod dequantize;
mod dynamic;
mod integer_product;
mod quantize;
mod requantized;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("QuantizeLinear", quantize::quantize_linear),
    Rule::onnx("DequantizeLinear", dequantize::dequantize_linear),
    Rule::onnx("DynamicQuantizeLinear", dynamic::dynamic_quantize_linear),
    Rule::onnx("MatMulInteger", integer_product::matmul_integer),
    Rule::onnx("ConvInteger", integer_product::conv_integer),
    Rule::onnx("QLinearMatMul", requantized::qlinear_matmul),
    Rule::onnx("QLinearConv", requantized::qlinear_conv),
];

/// The integers that a quantised type holds.
fn range(dtype: DType) -> Result<(f64, f64), RuleError> {
    match dtype {
        DType::U8 => Ok((0.0, 255.0)),
        DType::I8 => Ok((-128.0, 127.0)),
        DType::U16 => Ok((0.0, 65535.0)),
        DType::I16 => Ok((-32768.0, 32767.0)),
        other => Err(RuleError::unsupported(format!("quantisation to {other}"))),
    }
}

/// `saturate(round(x) + zero_point)` in type `dtype`, `x` in f32 or f64.
fn saturate(
    ctx: &mut Context<'_>,
    x: TensorId,
    zero_point: Option<TensorId>,
    dtype: DType,
) -> Result<TensorId, RuleError> {
    let y = limited(ctx, x, zero_point, range(dtype)?)?;
    ctx.cast(y, dtype)
}

/// `round(x) + zero_point`, limited to a range of integers.
fn limited(
    ctx: &mut Context<'_>,
    x: TensorId,
    zero_point: Option<TensorId>,
    (low, high): (f64, f64),
) -> Result<TensorId, RuleError> {
    let mut y = ctx.unary(UnaryFn::RoundEven, x)?;
    if let Some(zero_point) = zero_point {
        let zero_point = ctx.cast(zero_point, ctx.dtype(y))?;
        y = ctx.add(y, zero_point)?;
    }
    y = ctx.binary_scalar(BinaryFn::Max, y, low)?;
    ctx.binary_scalar(BinaryFn::Min, y, high)
}

/// Optional operand `index` as a number; one of an encoded type is decoded.
fn number(ctx: &mut Context<'_>, call: &Call<'_>, index: usize) -> Result<Option<TensorId>, RuleError> {
    match call.operand(index) {
        Some(&Operand::Encoded { codes, encoding }) => decoded(ctx, codes, encoding).map(Some),
        _ => call.optional_tensor(index),
    }
}

/// `x - zero_point` in i32.
fn centred(ctx: &mut Context<'_>, x: TensorId, zero_point: Option<TensorId>) -> Result<TensorId, RuleError> {
    let x = ctx.cast(x, DType::I32)?;
    match zero_point {
        None => Ok(x),
        Some(zero_point) => {
            let zero_point = ctx.cast(zero_point, DType::I32)?;
            ctx.sub(x, zero_point)
        }
    }
}

/// A scale or zero point, so that it broadcasts with an operand of shape `shape`: one for all, one per position of
/// `axis`, or with a block size one per block of positions of `axis`.
fn spread(
    ctx: &mut Context<'_>,
    parameter: TensorId,
    shape: &[usize],
    (axis, block_size): (i64, i64),
) -> Result<TensorId, RuleError> {
    let given = ctx.shape(parameter);
    if given.elems() == 1 && given.rank() <= 1 {
        return ctx.reshape(parameter, []);
    }
    let axis = normalize_axis(axis, shape.len())?;
    if block_size == 0 && given.rank() == 1 {
        let mut dims = vec![1; shape.len()];
        dims[axis] = given[0];
        return ctx.reshape(parameter, dims);
    }
    let block = usize::try_from(block_size).ok().filter(|&block| block > 0);
    let fits = given.rank() == shape.len()
        && (0..shape.len()).all(|dim| match block {
            Some(block) if dim == axis => given[dim] == shape[dim].div_ceil(block),
            _ => given[dim] == shape[dim],
        });
    let (Some(block), true) = (block, fits) else {
        return Err(RuleError::invalid(format!(
            "a scale or zero point of shape {given} for an operand of shape {shape:?} with block_size {block_size}"
        )));
    };
    let blocks = ctx.unsqueeze(parameter, axis + 1)?;
    let mut repeated = ctx.shape(blocks).to_vec();
    repeated[axis + 1] = block;
    let repeated = ctx.broadcast_to(blocks, &crate::build::checked_shape(repeated)?)?;
    let mut dims = shape.to_vec();
    dims[axis] = given[axis] * block;
    let joined = ctx.reshape(repeated, dims)?;
    ctx.slice_axis(joined, axis, 0, shape[axis])
}
