//! Gelu: `x / 2 (1 + erf(x / sqrt(2)))`, or with `approximate = tanh`
//! `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`. The standard's function has `2 / pi` and `0.044715` as f32 and
//! widens them for f64.

use super::wide;
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, DType, TensorId, UnaryFn};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, FRAC_2_SQRT_PI, SQRT_2};

pub(super) fn gelu(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let inner: fn(&mut Context<'_>, TensorId) -> Result<TensorId, RuleError> = match call
        .text_or("approximate", "none")?
    {
        "none" => |ctx, x| {
            let scaled = ctx.binary_scalar(BinaryFn::Mul, x, FRAC_1_SQRT_2)?;
            ctx.unary(UnaryFn::Erf, scaled)
        },
        "tanh" => tanh_inner,
        other => return Err(RuleError::invalid(format!("approximate is {other}, expected none or tanh"))),
    };
    wide(ctx, call, |ctx, x| {
        let inner = inner(ctx, x)?;
        let gate = ctx.binary_scalar(BinaryFn::Add, inner, 1.0)?;
        let half = ctx.binary_scalar(BinaryFn::Mul, x, 0.5)?;
        ctx.mul(half, gate)
    })
}

/// `tanh(sqrt(2 / pi) (x + 0.044715 x^3))`.
fn tanh_inner(ctx: &mut Context<'_>, x: TensorId) -> Result<TensorId, RuleError> {
    let (outer, inner) = match ctx.dtype(x) {
        DType::F64 => (f64::from(FRAC_2_PI as f32).sqrt(), f64::from(0.044715_f32)),
        _ => (FRAC_2_SQRT_PI / SQRT_2, 0.044715),
    };
    let square = ctx.mul(x, x)?;
    let cube = ctx.mul(square, x)?;
    let scaled = ctx.binary_scalar(BinaryFn::Mul, cube, inner)?;
    let sum = ctx.add(x, scaled)?;
    let angle = ctx.binary_scalar(BinaryFn::Mul, sum, outer)?;
    ctx.unary(UnaryFn::Tanh, angle)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::{Attribute, Tensor};

    #[test]
    fn constants_of_f64_are_those_of_the_standards_function() {
        let call = apply("Gelu", 20).on(Tensor::from_vec([2], vec![-1.5_f64, 0.75]));
        let (_, values) = call.with("approximate", Attribute::String("tanh".to_owned())).first();
        for (value, expected) in values.iter().zip([-0.10042842877952132, 0.5799605517746279]) {
            assert!((value - expected).abs() < 1e-14, "{value} instead of {expected}");
        }
    }
}
