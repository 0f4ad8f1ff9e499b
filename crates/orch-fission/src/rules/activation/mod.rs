//! Activation functions, softmax included.
//!
//! Composite functions compute in f32 for f16 and bf16 operands, so that they round once.

use crate::registry::{Applied, Rule, one};
use crate::{Call, Context, RuleError};
use orch_ir::TensorId;

mod gelu;
mod hard;
mod hardmax;
mod linear_units;
mod sigmoid;
mod softmax;

pub(crate) use sigmoid::swish_of;
pub(crate) use softmax::{log_softmax_of, softmax_of};

/// The rules of this family.
pub const RULES: &[Rule] = &[
    Rule::onnx("Relu", linear_units::relu),
    Rule::onnx("LeakyRelu", linear_units::leaky_relu),
    Rule::onnx("PRelu", linear_units::prelu).since(7),
    Rule::onnx("Elu", linear_units::elu),
    Rule::onnx("Celu", linear_units::celu),
    Rule::onnx("Selu", linear_units::selu),
    Rule::onnx("ThresholdedRelu", linear_units::thresholded_relu),
    Rule::onnx("Shrink", linear_units::shrink),
    Rule::onnx("Sigmoid", sigmoid::sigmoid),
    Rule::onnx("Swish", sigmoid::swish),
    Rule::onnx("SwiGLU", sigmoid::swiglu),
    Rule::onnx("Softplus", sigmoid::softplus),
    Rule::onnx("Mish", sigmoid::mish),
    Rule::onnx("Softsign", sigmoid::softsign),
    Rule::onnx("HardSigmoid", hard::hard_sigmoid),
    Rule::onnx("HardSwish", hard::hard_swish),
    Rule::onnx("Gelu", gelu::gelu),
    Rule::onnx("Softmax", softmax::softmax),
    Rule::onnx("LogSoftmax", softmax::log_softmax),
    Rule::onnx("Hardmax", hardmax::hardmax),
];

/// A composite function of operand 0: computed in f32 for narrower floats, rounded once.
fn wide(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    f: impl FnOnce(&mut Context<'_>, TensorId) -> Result<TensorId, RuleError>,
) -> Applied {
    let x = call.tensor(0)?;
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    let y = f(ctx, x)?;
    one(ctx.cast(y, dtype)?)
}
