//! TensorScatter: writes `update` into a cache along the sequence `axis`, at a position per batch (0 without one); in
//! mode `circular` positions wrap around.

use super::scatter::scatter_along;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{BinaryFn, DType};

pub(super) fn tensor_scatter(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (cache, update) = (call.tensor(0)?, call.tensor(1)?);
    let (shape, written) = (ctx.shape(cache), ctx.shape(update));
    let rank = shape.rank();
    let axis = normalize_axis(call.int_or("axis", -2)?, rank)?;
    let circular = match call.text_or("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(RuleError::invalid(format!("mode is {other}, expected linear or circular"))),
    };
    if axis == 0 || written.rank() != rank || written[axis] > shape[axis] {
        return Err(RuleError::invalid(format!("an update of shape {written} along axis {axis} of {shape}")));
    }
    let along = |dim: usize| {
        let mut dims = vec![1; rank];
        dims[dim] = written[dim];
        dims
    };
    let mut positions = ctx.iota(DType::I64, along(axis), axis)?;
    if let Some(first) = call.optional_tensor(2)? {
        let first = ctx.cast(first, DType::I64)?;
        let first = ctx.reshape(first, along(0))?;
        positions = ctx.add(positions, first)?;
    }
    if circular {
        positions = ctx.binary_scalar(BinaryFn::FloorMod, positions, shape[axis] as f64)?;
    }
    let positions = ctx.broadcast_to(positions, &written)?;
    one(scatter_along(ctx, [cache, positions, update], axis, None)?)
}
