//! Flatten: the dimensions before `axis` as one, those from `axis` on as another.

use crate::registry::{Applied, one};
use crate::{Call, Context, normalize_axis};

pub(super) fn flatten(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let axis = call.int_or("axis", 1)?;
    let rank = shape.rank();
    let axis = if axis == rank as i64 { rank } else { normalize_axis(axis, rank)? };
    let (rows, columns) = shape.split_at(axis);
    one(ctx.reshape(x, [rows.iter().product(), columns.iter().product()])?)
}
