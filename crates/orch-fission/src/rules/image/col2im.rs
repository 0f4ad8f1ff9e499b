//! Col2Im: adds the columns of blocks, `[n, c * block, positions]`, back into an image `[n, c, d_0, ..]` of a shape that
//! is known when compiling.
//!
//! Blocks side by side are the image in another order. Otherwise, along each dimension, row `k` holds the `k`th elements of all blocks
//! where they lie in the image, and the rows are added up:
//!
//! ```text
//! [k, position]    a b c      zeros between for a stride of 2    a 0 b 0 c 0
//!                  d e f                                         d 0 e 0 f 0
//!
//! rows of W elements, read as rows of W - 1, are each moved by one more:
//! a 0 b 0 c 0 . . | d 0 e 0 f 0 . .          a 0 b 0 c 0 .
//!                                            . d 0 e 0 f 0
//! ```

use super::super::operand_lists::extents;
use super::super::window::WindowAttributes;
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{ReduceOp, TensorId, Window};

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
    let rank = image.len();
    let positions: Option<Vec<usize>> = (0..rank).map(|dim| window.positions(dim, image[dim])).collect();
    let positions = positions.filter(|positions| positions.iter().product::<usize>() == shape[2]);
    let positions = positions.ok_or_else(|| {
        RuleError::invalid(format!("columns of shape {shape} for windows {window:?} of an image {image:?}"))
    })?;
    let x = ctx.reshape(x, [&result[..2], &window.kernel, &positions].concat())?;
    if is_side_by_side(&window, &image) {
        let perm: Vec<usize> =
            [0, 1].into_iter().chain((2..2 + rank).flat_map(|dim| [dim + rank, dim])).collect();
        let x = ctx.transpose(x, &perm)?;
        return one(ctx.reshape(x, result.to_vec())?);
    }
    let dtype = ctx.dtype(x);
    let x = ctx.widen(x)?;
    // [n, c, k_0, position_0, k_1, position_1, ..]
    let perm: Vec<usize> =
        [0, 1].into_iter().chain((2..2 + rank).flat_map(|dim| [dim, dim + rank])).collect();
    let mut rows = ctx.transpose(x, &perm)?;
    for (dim, &extent) in image.iter().enumerate() {
        rows = moved_rows(ctx, rows, 2 + 2 * dim, (&window, dim), extent)?;
    }
    let axes: Vec<usize> = (0..rank).map(|dim| 2 + 2 * dim).collect();
    let sum = ctx.reduce(ReduceOp::Sum, rows, &axes)?;
    one(ctx.cast(sum, dtype)?)
}

/// `[.., k, position, ..]` as `[.., k, d, ..]`: the `k`th elements of blocks at their place along a dimension of the image.
fn moved_rows(
    ctx: &mut Context<'_>,
    x: TensorId,
    axis: usize,
    (window, dim): (&Window, usize),
    image: usize,
) -> Result<TensorId, RuleError> {
    let (dilation, low) = (window.dilations[dim], window.low[dim]);
    let x = spread(ctx, x, axis + 1, window.strides[dim])?;
    let mut shape = ctx.shape(x).to_vec();
    let (rows, length) = (shape[axis], shape[axis + 1]);
    let width = (length + (rows - 1) * dilation).max(low + image);
    checked_shape(vec![rows, width + dilation])?;
    let x = ctx.pad_axis(x, axis + 1, [0, width + dilation - length], 0.0)?;
    shape.splice(axis..axis + 2, [rows * (width + dilation)]);
    let x = ctx.reshape(x, shape.clone())?;
    let x = ctx.slice_axis(x, axis, 0, rows * width)?;
    shape.splice(axis..=axis, [rows, width]);
    let x = ctx.reshape(x, shape)?;
    ctx.slice_axis(x, axis + 1, low, image)
}

/// True if each element of an image is in one block.
fn is_side_by_side(window: &Window, image: &[usize]) -> bool {
    let is_dense = |dim: usize| {
        let Window { kernel, strides, dilations, low, high } = window;
        let is_padded = low[dim] > 0 || high[dim] > 0;
        kernel[dim] == strides[dim]
            && dilations[dim] == 1
            && !is_padded
            && image[dim].is_multiple_of(kernel[dim])
    };
    (0..image.len()).all(is_dense)
}

/// `x` with zeros after each element of a dimension, which becomes `stride` times as long.
fn spread(ctx: &mut Context<'_>, x: TensorId, axis: usize, stride: usize) -> Result<TensorId, RuleError> {
    if stride == 1 {
        return Ok(x);
    }
    let mut shape = ctx.shape(x).to_vec();
    let x = ctx.unsqueeze(x, axis + 1)?;
    let x = ctx.pad_axis(x, axis + 1, [0, stride - 1], 0.0)?;
    shape[axis] *= stride;
    ctx.reshape(x, shape)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    /// One dimension or two; lists as the attributes have them.
    struct Case {
        image: Vec<i64>,
        block: Vec<i64>,
        strides: Vec<i64>,
        dilations: Vec<i64>,
        low: Vec<i64>,
        high: Vec<i64>,
        positions: usize,
    }

    /// Adds up element by element.
    fn added(case: &Case, columns: &[f32]) -> Vec<f64> {
        let (rank, plane) = (case.image.len(), case.image.iter().product::<i64>() as usize);
        let area = case.block.iter().product::<i64>() as usize;
        let steps: Vec<i64> = (0..rank)
            .map(|dim| {
                let reach = (case.block[dim] - 1) * case.dilations[dim] + 1;
                (case.image[dim] + case.low[dim] + case.high[dim] - reach) / case.strides[dim] + 1
            })
            .collect();
        let unflat = |mut flat: usize, extents: &[i64]| {
            let mut at = vec![0; rank];
            for dim in (0..rank).rev() {
                at[dim] = (flat % extents[dim] as usize) as i64;
                flat /= extents[dim] as usize;
            }
            at
        };
        let mut image = vec![0.0; columns.len() / (area * case.positions) * plane];
        for (flat, &value) in columns.iter().enumerate() {
            let (row, position) = (flat / case.positions, unflat(flat % case.positions, &steps));
            let element = unflat(row % area, &case.block);
            let at = |dim: usize| {
                position[dim] * case.strides[dim] + element[dim] * case.dilations[dim] - case.low[dim]
            };
            if (0..rank).all(|dim| (0..case.image[dim]).contains(&at(dim))) {
                let inside = (0..rank).fold(0, |flat, dim| flat * case.image[dim] + at(dim)) as usize;
                image[row / area * plane + inside] += f64::from(value);
            }
        }
        image
    }

    fn is_added_up(case: &Case) {
        let area: i64 = case.block.iter().product();
        let columns = [2, 3 * area as usize, case.positions];
        let elements: usize = columns.iter().product();
        let values: Vec<f32> = (0..elements).map(|at| ((at * 37) % 101) as f32 - 50.0).collect();
        let ints = |list: &[i64]| Attribute::Ints(list.to_vec());
        let call = apply("Col2Im", 18).floats(&columns, &values).ints(&case.image).ints(&case.block);
        let call = call.with("strides", ints(&case.strides)).with("dilations", ints(&case.dilations));
        let given = call.with("pads", ints(&[&case.low[..], &case.high].concat())).first().1;
        assert_eq!(given, added(case, &values), "{:?}", case.block);
    }

    #[test]
    fn blocks_of_all_kinds() {
        let case = |image: &[i64],
                    block: &[i64],
                    strides: &[i64],
                    dilations: &[i64],
                    pads: [&[i64]; 2],
                    positions| Case {
            image: image.to_vec(),
            block: block.to_vec(),
            strides: strides.to_vec(),
            dilations: dilations.to_vec(),
            low: pads[0].to_vec(),
            high: pads[1].to_vec(),
            positions,
        };
        is_added_up(&case(&[4, 6], &[2, 3], &[2, 3], &[1, 1], [&[0, 0], &[0, 0]], 4));
        is_added_up(&case(&[5, 6], &[2, 3], &[2, 3], &[1, 1], [&[0, 0], &[0, 0]], 4));
        is_added_up(&case(&[6, 5], &[3, 2], &[1, 2], &[1, 2], [&[1, 0], &[1, 1]], 12));
        is_added_up(&case(&[7, 8], &[5, 5], &[2, 3], &[1, 1], [&[2, 2], &[2, 2]], 12));
        is_added_up(&case(&[9], &[3], &[2], &[2], [&[2], &[2]], 5));
        is_added_up(&case(&[1, 1], &[3, 3], &[1, 1], &[1, 1], [&[1, 1], &[1, 1]], 1));
        is_added_up(&case(&[9, 9], &[9, 9], &[1, 1], &[1, 1], [&[0, 0], &[0, 0]], 1));
    }
}
