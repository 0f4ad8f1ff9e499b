//! Conv: `x [n, c, d_0, ..]`, `w [m, c / group, k_0, ..]`, bias `[m]` -> `[n, m, e_0, ..]`.

use super::super::window::WindowAttributes;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{ConvSpec, PrimOp, TensorId};

pub(super) fn conv(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let spec = conv_spec(ctx, call, x, w)?;
    one(conv_of(ctx, [x, w], spec, call.optional_tensor(2)?)?)
}

/// The window and groups that the attributes say.
pub(crate) fn conv_spec(
    ctx: &Context<'_>,
    call: &Call<'_>,
    x: TensorId,
    w: TensorId,
) -> Result<ConvSpec, RuleError> {
    let window = WindowAttributes::read(call, kernel(ctx, call, w)?)?.resolve(&ctx.shape(x))?;
    Ok(ConvSpec { window, groups: groups(call)? })
}

/// A convolution, and the bias added along the channels.
pub(crate) fn conv_of(
    ctx: &mut Context<'_>,
    [x, w]: [TensorId; 2],
    spec: ConvSpec,
    bias: Option<TensorId>,
) -> Result<TensorId, RuleError> {
    let y = ctx.emit(PrimOp::Conv(spec), &[x, w])?;
    add_bias(ctx, y, bias)
}

/// `y [n, m, ..] + bias [m]`.
pub(crate) fn add_bias(
    ctx: &mut Context<'_>,
    y: TensorId,
    bias: Option<TensorId>,
) -> Result<TensorId, RuleError> {
    let Some(bias) = bias else { return Ok(y) };
    let bias = ctx.broadcast(bias, &ctx.shape(y), &[1])?;
    ctx.add(y, bias)
}

/// The window's extents: those of the weight, which the attribute may only repeat.
pub(super) fn kernel(ctx: &Context<'_>, call: &Call<'_>, w: TensorId) -> Result<Vec<usize>, RuleError> {
    let shape = ctx.shape(w);
    let kernel = shape.get(2..).ok_or_else(|| RuleError::invalid(format!("a weight of shape {shape}")))?;
    match call.ints("kernel_shape")? {
        Some(given) if !given.iter().copied().eq(kernel.iter().map(|&extent| extent as i64)) => {
            Err(RuleError::invalid(format!("kernel_shape is {given:?}, the weight has shape {shape}")))
        }
        _ => Ok(kernel.to_vec()),
    }
}

/// The attribute `group`.
pub(super) fn groups(call: &Call<'_>) -> Result<usize, RuleError> {
    let group = call.int_or("group", 1)?;
    usize::try_from(group).map_err(|_| RuleError::invalid(format!("group is {group}")))
}
