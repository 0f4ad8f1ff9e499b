//! Transpose: permutes the dimensions; without `perm` it reverses their order.

use super::super::operand_lists::extents;
use crate::registry::{Applied, one};
use crate::{Call, Context};

pub(super) fn transpose(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let perm = match call.ints("perm")? {
        Some(perm) => extents(perm, "perm")?,
        None => (0..ctx.rank(x)).rev().collect(),
    };
    one(ctx.transpose(x, &perm)?)
}
