//! The operators of `ai.onnx.ml` that are tensor programs.

use crate::registry::{Applied, Rule, one};
use crate::{Call, Context, RuleError};
use orch_ir::{CompareFn, DType, ReduceOp, Tensor, UnaryFn};

/// A rule for an operator of the machine learning set.
const fn learning(op_type: &'static str, apply: fn(&mut Context<'_>, &Call<'_>) -> Applied) -> Rule {
    Rule::onnx(op_type, apply).in_domain("ai.onnx.ml")
}

/// The rules of this family.
pub const RULES: &[Rule] =
    &[learning("Binarizer", binarizer), learning("Scaler", scaler), learning("Normalizer", normalizer)];

/// Binarizer: `x > threshold ? 1 : 0`.
fn binarizer(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let above = ctx.compare_scalar(CompareFn::Gt, x, call.float_or("threshold", 0.0)?)?;
    one(ctx.cast(above, ctx.dtype(x))?)
}

/// Scaler: `(x - offset) scale` in f32, both one number or one per position of the last dimension.
fn scaler(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = ctx.cast(call.tensor(0)?, DType::F32)?;
    let mut list = |name: &str, default: f32| -> Result<orch_ir::TensorId, RuleError> {
        let values = call.floats(name)?.unwrap_or(&[]);
        let values = if values.is_empty() { vec![default] } else { values.to_vec() };
        Ok(ctx.tensor(Tensor::from_vec([values.len()], values)))
    };
    let (offset, scale) = (list("offset", 0.0)?, list("scale", 1.0)?);
    let shifted = ctx.sub(x, offset)?;
    one(ctx.mul(shifted, scale)?)
}

/// Normalizer: `x / n` per row in f32, `n` the row's maximum, the sum of sizes, or the root of the sum of squares;
/// `x` where `n` is 0.
fn normalizer(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = ctx.cast(call.tensor(0)?, DType::F32)?;
    let last = ctx.rank(x).checked_sub(1).ok_or_else(|| RuleError::invalid("operand 0 has no dimension"))?;
    let norm = match call.text_or("norm", "MAX")? {
        "MAX" => ctx.reduce_keep(ReduceOp::Max, x, &[last])?,
        "L1" => {
            let sizes = ctx.unary(UnaryFn::Abs, x)?;
            ctx.reduce_keep(ReduceOp::Sum, sizes, &[last])?
        }
        "L2" => {
            let squares = ctx.mul(x, x)?;
            let sum = ctx.reduce_keep(ReduceOp::Sum, squares, &[last])?;
            ctx.unary(UnaryFn::Sqrt, sum)?
        }
        other => return Err(RuleError::invalid(format!("norm is {other}, expected MAX, L1 or L2"))),
    };
    let zero = ctx.compare_scalar(CompareFn::Eq, norm, 0.0)?;
    let one_scalar = ctx.scalar_like(norm, 1.0);
    let divisor = ctx.select(zero, one_scalar, norm)?;
    one(ctx.div(x, divisor)?)
}
