//! Softmax, its logarithm and their gradients: in f32 for f16 and bf16, rounded once.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitter, wide};
use orch_ir::Attribute;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten._softmax.default", "self dim half_to_float", |emitter, call| {
        softmax(emitter, call, "Softmax")
    }),
    rule("aten._log_softmax.default", "self dim half_to_float", |emitter, call| {
        softmax(emitter, call, "LogSoftmax")
    }),
    rule("aten._softmax_backward_data.default", "grad_output output dim input_dtype", softmax_backward),
    rule(
        "aten._log_softmax_backward_data.default",
        "grad_output output dim input_dtype",
        log_softmax_backward,
    ),
];

fn softmax(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let x = call.float_tensor("self")?;
    let dtype = call.dtype()?;
    let axis = call.axis("dim", -1, x.rank())?;
    let x = emitter.widen(x);
    let y = emitter.one(op_type, &[&x], &[("axis", Attribute::Int(axis as i64))], (x.dtype, x.shape.clone()));
    one(emitter.cast(&y, dtype))
}

/// `y (g - sum g y)`.
fn softmax_backward(emitter: &mut Emitter, call: &Call) -> Applied {
    let (gradient, output) = (call.float_tensor("grad_output")?, call.float_tensor("output")?);
    let axes = axes(call, output.rank())?;
    let (gradient, output) = (emitter.widen(gradient), emitter.cast(output, wide(gradient.dtype)));
    let products = emitter.binary("Mul", &gradient, &output)?;
    let sum = emitter.reduce("ReduceSum", &products, &axes, true);
    let difference = emitter.binary("Sub", &gradient, &sum)?;
    let y = emitter.binary("Mul", &output, &difference)?;
    one(emitter.cast(&y, call.dtype()?))
}

/// `g - e^y sum g`.
fn log_softmax_backward(emitter: &mut Emitter, call: &Call) -> Applied {
    let (gradient, output) = (call.float_tensor("grad_output")?, call.float_tensor("output")?);
    let axes = axes(call, output.rank())?;
    let (gradient, output) = (emitter.widen(gradient), emitter.cast(output, wide(gradient.dtype)));
    let sum = emitter.reduce("ReduceSum", &gradient, &axes, true);
    let powers = emitter.unary("Exp", &output);
    let scaled = emitter.binary("Mul", &powers, &sum)?;
    let y = emitter.binary("Sub", &gradient, &scaled)?;
    one(emitter.cast(&y, call.dtype()?))
}

/// The axis that is summed over; a scalar has none.
fn axes(call: &Call, rank: usize) -> Result<Vec<usize>, crate::emit::Refusal> {
    let axis = call.axis("dim", -1, rank)?;
    Ok((axis..(axis + 1).min(rank)).collect())
}
