//! Col2Im: adds the columns of blocks, `[n, c * block, positions]`, back into an image `[n, c, d_0, ..]` of a shape that
//! is known when compiling.

use super::super::operand_lists::extents;
use super::super::window::WindowAttributes;
use super::Routine;
use crate::build::checked_shape;
use crate::registry::Applied;
use crate::{Call, Context, RuleError};

pub(super) fn col2im(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let image = extents(&ctx.int_operand(call, 1, "image_shape")?, "image_shape")?;
    let block = extents(&ctx.int_operand(call, 2, "block_shape")?, "block_shape")?;
    let shape = ctx.shape(x);
    let area = checked_shape(block.clone())?.elems();
    if shape.rank() != 3 || area == 0 || !shape[1].is_multiple_of(area) || image.len() != block.len() {
        return Err(RuleError::invalid(format!(
            "columns of shape {shape} with blocks {block:?} in an image {image:?}"
        )));
    }
    let window = WindowAttributes::read(call, block)?.window;
    let result = checked_shape([&[shape[0], shape[1] / area], &image[..]].concat())?;
    let lists = [&image, &window.kernel, &window.dilations, &window.low, &window.high, &window.strides];
    let ints = lists.into_iter().flatten().map(|&value| value as i64).collect();
    let routine = Routine { name: "Col2Im", ints, ..Routine::default() };
    routine.apply(ctx, &[x], (ctx.dtype(x), result))
}
