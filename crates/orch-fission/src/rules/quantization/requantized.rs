//! QLinearMatMul and QLinearConv: the product of quantised operands, quantised again:
//! `y = saturate(round(product scale_a scale_b / scale_y) + zero_point_y)`.

use super::integer_product::{per_output_channel, per_row};
use super::{centred, saturate};
use crate::registry::{Applied, one};
use crate::rules::linear::{conv_of, conv_spec, matmul_of};
use crate::{Call, Context, RuleError};
use orch_ir::{DType, TensorId};

pub(super) fn qlinear_matmul(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (a, b) = (call.tensor(0)?, call.tensor(3)?);
    let a_scale = per_row(ctx, call.tensor(1)?, a)?;
    let a_zero = per_row(ctx, call.tensor(2)?, a)?;
    let lhs = centred(ctx, a, Some(a_zero))?;
    let rhs = centred(ctx, b, Some(call.tensor(5)?))?;
    let product = matmul_of(ctx, lhs, rhs)?;
    one(requantized(ctx, product, [a_scale, call.tensor(4)?, call.tensor(6)?], call.tensor(7)?)?)
}

pub(super) fn qlinear_conv(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, w) = (call.tensor(0)?, call.tensor(3)?);
    let spec = conv_spec(ctx, call, x, w)?;
    let w_zero = per_output_channel(ctx, call.tensor(5)?, w)?;
    let lhs = centred(ctx, x, Some(call.tensor(2)?))?;
    let rhs = centred(ctx, w, Some(w_zero))?;
    let product = conv_of(ctx, [lhs, rhs], spec, call.optional_tensor(8)?)?;
    // The weight's scales follow the result's channels.
    let mut w_scale = call.tensor(4)?;
    let scales = ctx.shape(w_scale);
    if scales.rank() == 1 && scales[0] != 1 {
        let mut dims = vec![1; ctx.rank(product) - 1];
        dims[0] = scales[0];
        w_scale = ctx.reshape(w_scale, dims)?;
    }
    one(requantized(ctx, product, [call.tensor(1)?, w_scale, call.tensor(6)?], call.tensor(7)?)?)
}

/// `saturate(round(product a b / y) + zero_point)`, in f32.
fn requantized(
    ctx: &mut Context<'_>,
    product: TensorId,
    scales: [TensorId; 3],
    zero_point: TensorId,
) -> Result<TensorId, RuleError> {
    let dtype = ctx.dtype(zero_point);
    let shape = ctx.shape(product);
    let mut wide = scales;
    for scale in &mut wide {
        *scale = ctx.cast(*scale, DType::F32)?;
    }
    let [a, b, y] = wide;
    let scale = ctx.mul(a, b)?;
    let scale = ctx.div(scale, y)?;
    let product = ctx.cast(product, DType::F32)?;
    let scaled = ctx.mul(product, scale)?;
    let y = saturate(ctx, scaled, Some(zero_point), dtype)?;
    // Scales and zero points may come as vectors of one element.
    ctx.reshape(y, shape.to_vec())
}
