//! Operators that fit no other family.

use crate::registry::{Applied, Rule};
use crate::{Call, Context, RuleError};

mod bit_cast;
mod det;
mod loss;
mod tf_idf;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("Det", det::det),
    Rule::onnx("BitCast", bit_cast::bit_cast),
    Rule::onnx("NegativeLogLikelihoodLoss", loss::negative_log_likelihood),
    Rule::onnx("SoftmaxCrossEntropyLoss", loss::softmax_cross_entropy),
    Rule::onnx("TfIdfVectorizer", tf_idf::tf_idf_vectorizer),
    Rule::onnx("StringNormalizer", text),
    Rule::onnx("StringConcat", text),
    Rule::onnx("StringSplit", text),
    Rule::onnx("RegexFullMatch", text),
    Rule::onnx("ImageDecoder", image_file),
    Rule::onnx("Gradient", gradient).in_domain("ai.onnx.preview.training"),
];

/// Strings are no tensors here.
fn text(_: &mut Context<'_>, _: &Call<'_>) -> Applied {
    Err(RuleError::unsupported("strings"))
}

/// The shape of a decoded image depends on data.
fn image_file(_: &mut Context<'_>, _: &Call<'_>) -> Applied {
    Err(RuleError::unsupported("image files; decode them before the model"))
}

/// Derivatives of a part of the model.
fn gradient(_: &mut Context<'_>, _: &Call<'_>) -> Applied {
    Err(RuleError::unsupported("derivatives"))
}
