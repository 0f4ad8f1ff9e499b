//! Expand: numpy broadcasting with a shape, in both directions.

use super::super::operand_lists::extents;
use crate::build::{broadcast_shapes, checked_shape};
use crate::registry::{Applied, one};
use crate::{Call, Context};

pub(super) fn expand(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let wanted = ctx.int_operand(call, 1, "shape")?;
    let wanted = checked_shape(extents(&wanted, "shape")?)?;
    let shape = broadcast_shapes([&ctx.shape(x), &wanted])?;
    one(ctx.broadcast_to(x, &shape)?)
}
