//! RoiAlign and MaxRoiPool: regions of an image pooled to one size.

use super::super::operand_lists::extent;
use super::Routine;
use crate::build::checked_shape;
use crate::registry::Applied;
use crate::{Call, Context, RuleError};
use orch_ir::TensorId;

pub(super) fn roi_align(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, rois, batches) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let mode = match call.text_or("mode", "avg")? {
        mode @ ("avg" | "max") => mode,
        other => return Err(RuleError::invalid(format!("mode is {other}, expected avg or max"))),
    };
    // Before version 16 coordinates were not shifted.
    let default = if call.opset() < 16 { "output_half_pixel" } else { "half_pixel" };
    let half_pixel = match call.text_or("coordinate_transformation_mode", default)? {
        "half_pixel" => 1,
        "output_half_pixel" => 0,
        other => {
            return Err(RuleError::invalid(format!(
                "coordinate_transformation_mode is {other}, expected half_pixel or output_half_pixel"
            )));
        }
    };
    let pooled = [call.int_or("output_height", 1)?, call.int_or("output_width", 1)?];
    let ratio = call.int_or("sampling_ratio", 0)?;
    let (channels, regions) = regions(ctx, x, rois, 4)?;
    let result = [regions, channels, extent(pooled[0], "output_height")?, extent(pooled[1], "output_width")?];
    let routine = Routine {
        name: "RoiAlign",
        ints: vec![pooled[0], pooled[1], ratio, half_pixel],
        floats: vec![call.float_or("spatial_scale", 1.0)?],
        texts: &[mode],
    };
    routine.apply(ctx, &[x, rois, batches], (ctx.dtype(x), checked_shape(result.to_vec())?))
}

pub(super) fn max_roi_pool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, rois) = (call.tensor(0)?, call.tensor(1)?);
    let &[height, width] = call.ints("pooled_shape")?.unwrap_or(&[]) else {
        return Err(RuleError::invalid("pooled_shape is missing or not two extents"));
    };
    let (channels, regions) = regions(ctx, x, rois, 5)?;
    let result = [regions, channels, extent(height, "pooled_shape")?, extent(width, "pooled_shape")?];
    let routine = Routine {
        name: "MaxRoiPool",
        ints: vec![height, width],
        floats: vec![call.float_or("spatial_scale", 1.0)?],
        ..Routine::default()
    };
    routine.apply(ctx, &[x, rois], (ctx.dtype(x), checked_shape(result.to_vec())?))
}

/// The channels of `x [n, c, h, w]` and the number of `rois [r, columns]`.
fn regions(
    ctx: &Context<'_>,
    x: TensorId,
    rois: TensorId,
    columns: usize,
) -> Result<(usize, usize), RuleError> {
    let (shape, roi_shape) = (ctx.shape(x), ctx.shape(rois));
    match (shape.dims(), roi_shape.dims()) {
        (&[_, channels, _, _], &[regions, given]) if given == columns => Ok((channels, regions)),
        _ => Err(RuleError::invalid(format!("regions of shape {roi_shape} of an operand of shape {shape}"))),
    }
}
