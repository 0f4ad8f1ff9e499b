//! CenterCropPad: crops or pads with zeros around the centre, so that `axes` get the extents asked for. The odd
//! element is cropped, or added, at the end.

use super::super::operand_lists::extents;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axes, normalize_axis};
use orch_ir::PadMode;

pub(super) fn center_crop_pad(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let mut x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let rank = shape.rank();
    let wanted = extents(&ctx.int_operand(call, 1, "shape")?, "shape")?;
    let axes: Vec<i64> = call.ints("axes")?.map_or_else(|| (0..rank as i64).collect(), <[i64]>::to_vec);
    normalize_axes(&axes, rank)?;
    if wanted.len() != axes.len() {
        return Err(RuleError::invalid(format!("{} extents for {} axes", wanted.len(), axes.len())));
    }
    let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
    for (&axis, &extent) in axes.iter().zip(&wanted) {
        let axis = normalize_axis(axis, rank)?;
        match shape[axis].checked_sub(extent) {
            Some(cropped) => x = ctx.slice_axis(x, axis, cropped / 2, extent)?,
            None => {
                let added = extent - shape[axis];
                low[axis] = added / 2;
                high[axis] = added - low[axis];
            }
        }
    }
    one(ctx.pad(x, PadMode::Constant, (&low, &high), None)?)
}
