//! Data-dependent layout: Gather, Scatter, TopK, ...
//!
//! Indices of ONNX count from the end when negative; those of the primitives do not. Results whose shape depends on
//! data need operands that are known when compiling.

use crate::registry::Rule;
use crate::{Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, DType, Tensor, TensorId};

mod compress;
mod cumulative;
mod feature_extractor;
mod gather;
mod gather_nd;
mod nms;
mod non_zero;
mod one_hot;
mod placement;
mod reverse_sequence;
mod scatter;
mod selection;
mod tensor_scatter;
mod top_k;
mod trilu;
mod unique;

pub(super) use selection::select_along;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("Gather", gather::gather).moves(),
    Rule::onnx("GatherElements", gather::gather_elements).moves(),
    Rule::onnx("GatherND", gather_nd::gather_nd).moves(),
    Rule::onnx("Scatter", scatter::scatter_elements),
    Rule::onnx("ScatterElements", scatter::scatter_elements),
    Rule::onnx("ScatterND", scatter::scatter_nd),
    Rule::onnx("TensorScatter", tensor_scatter::tensor_scatter),
    Rule::onnx("OneHot", one_hot::one_hot),
    Rule::onnx("Trilu", trilu::trilu),
    Rule::onnx("TopK", top_k::top_k),
    Rule::onnx("CumSum", cumulative::sum),
    Rule::onnx("CumProd", cumulative::product),
    Rule::onnx("ReverseSequence", reverse_sequence::reverse_sequence).moves(),
    Rule::onnx("Compress", compress::compress).moves(),
    Rule::onnx("NonZero", non_zero::non_zero),
    Rule::onnx("Unique", unique::unique),
    Rule::onnx("NonMaxSuppression", nms::non_max_suppression),
    Rule::onnx("ArrayFeatureExtractor", feature_extractor::array_feature_extractor).in_domain("ai.onnx.ml"),
];

/// Indices into dimensions of these extents (one for all, or one per position of the last dimension), counted from
/// the front.
fn from_front(ctx: &mut Context<'_>, indices: TensorId, extents: &[usize]) -> Result<TensorId, RuleError> {
    let dtype = ctx.dtype(indices);
    if !dtype.is_int() {
        return Err(RuleError::invalid(format!("indices are {dtype}, integers are expected")));
    }
    if dtype.is_unsigned_int() || never_negative(ctx, indices) {
        return Ok(indices);
    }
    // A narrow integer holds its negative indices, but perhaps not the extent.
    let indices = ctx.cast(indices, DType::I64)?;
    let extents: Vec<i64> = extents.iter().map(|&extent| extent as i64).collect();
    let extents = match extents.as_slice() {
        [extent] => ctx.scalar_int(DType::I64, *extent),
        _ => ctx.tensor(Tensor::from_vec([extents.len()], extents)),
    };
    let negative = ctx.compare_scalar(CompareFn::Lt, indices, 0.0)?;
    let shifted = ctx.binary(BinaryFn::Add, indices, extents)?;
    ctx.select(negative, shifted, indices)
}

/// True if the indices are known, and none is negative.
fn never_negative(ctx: &mut Context<'_>, indices: TensorId) -> bool {
    let values = ctx.constant(indices).and_then(|value| value.to_i64());
    values.is_some_and(|values| values.iter().all(|&value| value >= 0))
}
