//! Tensors out of nothing: constants, ranges, windows, random numbers.

use crate::registry::{Applied, Rule};
use crate::{Call, Context, RuleError};
use orch_ir::Shape;

mod constant;
mod eye_like;
mod mel_weight;
mod range;
mod window;

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("Constant", constant::constant),
    Rule::onnx("ConstantOfShape", constant::constant_of_shape),
    Rule::onnx("Range", range::range),
    Rule::onnx("EyeLike", eye_like::eye_like),
    Rule::onnx("HannWindow", |ctx, call| window::window(ctx, call, &[0.5, 0.5])),
    Rule::onnx("HammingWindow", |ctx, call| window::window(ctx, call, &[25.0 / 46.0, 21.0 / 46.0])),
    Rule::onnx("BlackmanWindow", |ctx, call| window::window(ctx, call, &[0.42, 0.5, 0.08])),
    Rule::onnx("MelWeightMatrix", mel_weight::mel_weight_matrix),
    Rule::onnx("Bernoulli", random),
    Rule::onnx("Multinomial", random),
    Rule::onnx("RandomNormal", random),
    Rule::onnx("RandomNormalLike", random),
    Rule::onnx("RandomUniform", random),
    Rule::onnx("RandomUniformLike", random),
];

/// The largest table that is computed when compiling.
const MAX_GENERATED_ELEMS: usize = 1 << 26;

/// The shape of a table that is computed when compiling.
fn generated_shape(dims: Vec<usize>) -> Result<Shape, RuleError> {
    let shape = crate::build::checked_shape(dims)?;
    if shape.elems() > MAX_GENERATED_ELEMS {
        return Err(RuleError::unsupported(format!("a computed table of shape {shape}")));
    }
    Ok(shape)
}

/// Random numbers: a compiled model gives the same results every time.
fn random(_: &mut Context<'_>, _: &Call<'_>) -> Applied {
    Err(RuleError::unsupported("random numbers; make them an input of the model"))
}
