//! DeformConv: a two-dimensional convolution that reads at learned offsets, with an optional mask and bias.

use super::super::operand_lists::extent;
use super::super::window::WindowAttributes;
use super::Routine;
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::rules::linear::add_bias;
use crate::{Call, Context, RuleError};

pub(super) fn deform_conv(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, w, offset) = (call.tensor(0)?, call.tensor(1)?, call.tensor(2)?);
    let (shape, weight) = (ctx.shape(x), ctx.shape(w));
    let (&[n, _, height, width], &[m, _, kernel_height, kernel_width]) = (shape.dims(), weight.dims()) else {
        return Err(RuleError::unsupported(format!(
            "an operand of shape {shape} and a weight of shape {weight}: two spatial dimensions are"
        )));
    };
    let window = WindowAttributes::read(call, vec![kernel_height, kernel_width])?.resolve(&shape)?;
    let offset_groups = call.int_or("offset_group", 1)?;
    let positions = window.positions(0, height).zip(window.positions(1, width));
    let (rows, columns) = positions
        .ok_or_else(|| RuleError::invalid(format!("a weight of shape {weight} does not fit into {shape}")))?;
    let mask = match call.optional_tensor(4)? {
        Some(mask) => mask,
        None => {
            let taps = extent(offset_groups, "offset_group")?.saturating_mul(kernel_height * kernel_width);
            ctx.full(ctx.dtype(x), 1.0, &checked_shape(vec![n, taps, rows, columns])?)?
        }
    };
    let steps = [&window.strides, &window.dilations, &window.low].into_iter().flatten();
    let mut ints: Vec<i64> = steps.map(|&step| step as i64).collect();
    ints.extend([call.int_or("group", 1)?, offset_groups]);
    let result = checked_shape(vec![n, m, rows, columns])?;
    let routine = Routine { name: "DeformConv", ints, ..Routine::default() };
    let y = routine.emit(ctx, &[x, w, offset, mask], (ctx.dtype(x), result))?;
    one(add_bias(ctx, y, call.optional_tensor(3)?)?)
}
