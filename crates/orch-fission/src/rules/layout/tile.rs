//! Tile: repeats the operand along each dimension. `[d] -> [r, d]` (a broadcast) `-> [r d]` per dimension.

use super::super::operand_lists::extents;
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};

pub(super) fn tile(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let repeats = extents(&ctx.int_operand(call, 1, "repeats")?, "repeats")?;
    if repeats.len() != shape.rank() {
        return Err(RuleError::invalid(format!("{} repeats for a tensor of shape {shape}", repeats.len())));
    }
    let (mut blocks, mut own, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for (&extent, &count) in shape.iter().zip(&repeats) {
        if count != 1 && extent != 1 {
            blocks.push(count);
        }
        own.push(blocks.len());
        blocks.push(if extent == 1 { count } else { extent });
        joined.push(extent.saturating_mul(count));
    }
    let (blocks, joined) = (checked_shape(blocks)?, checked_shape(joined)?);
    let repeated = ctx.broadcast(x, &blocks, &own)?;
    one(ctx.reshape(repeated, joined.to_vec())?)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;

    #[test]
    fn repeats_follow_each_other() {
        let (dims, values) = apply("Tile", 13).floats(&[1, 2], &[1.0, 2.0]).ints(&[2, 2]).first();
        assert_eq!((dims, values), (vec![2, 4], vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]));
        assert_eq!(apply("Tile", 13).floats(&[2], &[1.0, 2.0]).ints(&[0]).first().0, [0]);
        assert!(apply("Tile", 13).floats(&[2], &[1.0, 2.0]).ints(&[1, 1]).run().is_err());
        assert!(apply("Tile", 13).floats(&[2], &[1.0, 2.0]).ints(&[i64::MAX]).run().is_err());
    }
}
