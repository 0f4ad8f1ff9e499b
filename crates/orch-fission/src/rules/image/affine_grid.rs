//! AffineGrid: the coordinates that `theta [n, r, r + 1]` maps a regular grid over `-1..1` to, `[n, d_0, .., r]` of a
//! size that is known when compiling.

use super::super::operand_lists::extents;
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, TensorId};

pub(super) fn affine_grid(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let theta = call.tensor(0)?;
    let size = extents(&ctx.int_operand(call, 1, "size")?, "size")?;
    let align_corners = call.flag_or("align_corners", false)?;
    let theta_shape = ctx.shape(theta);
    let rank = size.len().saturating_sub(2);
    if rank == 0 || theta_shape[..] != [size[0], rank, rank + 1] {
        return Err(RuleError::invalid(format!("theta has shape {theta_shape}, size is {size:?}")));
    }
    let spatial = &size[2..];
    // theta [n, 1, .., r, r + 1]; its column j belongs to the spatial dimension r - 1 - j, the last to the shift.
    let mut dims = vec![1; rank + 3];
    (dims[0], dims[rank + 1], dims[rank + 2]) = (size[0], rank, rank + 1);
    let theta = ctx.reshape(theta, dims)?;
    let mut sum = column(ctx, theta, rank)?;
    for dim in 0..rank {
        let factor = column(ctx, theta, rank - 1 - dim)?;
        let positions = positions(ctx, theta, spatial, dim, align_corners)?;
        let term = ctx.mul(factor, positions)?;
        sum = ctx.add(sum, term)?;
    }
    let shape = checked_shape([&size[..1], spatial, &[rank]].concat())?;
    one(ctx.broadcast_to(sum, &shape)?)
}

/// Column `at` of the last dimension, which disappears.
fn column(ctx: &mut Context<'_>, theta: TensorId, at: usize) -> Result<TensorId, RuleError> {
    let mut dims = ctx.shape(theta).to_vec();
    let column = ctx.slice_axis(theta, dims.len() - 1, at, 1)?;
    dims.pop();
    ctx.reshape(column, dims)
}

/// The grid's coordinates along one spatial dimension, `[1, .., extent, .., 1]`.
fn positions(
    ctx: &mut Context<'_>,
    theta: TensorId,
    spatial: &[usize],
    dim: usize,
    align_corners: bool,
) -> Result<TensorId, RuleError> {
    let extent = spatial[dim] as f64;
    // The corners are the centres of the outermost elements, or their outer edges.
    let step = if align_corners { 2.0 / (extent - 1.0) } else { 2.0 / extent };
    let start = if align_corners { -1.0 } else { step / 2.0 - 1.0 };
    let step = if step.is_finite() { step } else { 0.0 };
    let mut dims = vec![1; spatial.len() + 2];
    dims[dim + 1] = spatial[dim];
    let positions = ctx.iota(ctx.dtype(theta), checked_shape(dims)?, dim + 1)?;
    let scaled = ctx.binary_scalar(BinaryFn::Mul, positions, step)?;
    ctx.binary_scalar(BinaryFn::Add, scaled, start)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    #[test]
    fn the_identity_gives_the_grid() {
        let theta = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        let grid = |align: i64| {
            let call = apply("AffineGrid", 20).floats(&[1, 2, 3], &theta).ints(&[1, 1, 2, 2]);
            call.with("align_corners", Attribute::Int(align)).first()
        };
        assert_eq!(grid(1), (vec![1, 2, 2, 2], vec![-1.0, -1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 1.0]));
        assert_eq!(grid(0).1, [-0.5, -0.5, 0.5, -0.5, -0.5, 0.5, 0.5, 0.5]);
    }
}
