//! GridSample: reads `x [n, c, d_0, ..]` at the coordinates of `grid [n, e_0, .., r]`.

use super::Routine;
use crate::build::checked_shape;
use crate::registry::Applied;
use crate::{Call, Context, RuleError};

pub(super) fn grid_sample(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, grid) = (call.tensor(0)?, call.tensor(1)?);
    let mode = match call.text_or("mode", "linear")? {
        "linear" | "bilinear" => "linear",
        "nearest" => "nearest",
        "cubic" | "bicubic" => "cubic",
        other => {
            return Err(RuleError::invalid(format!("mode is {other}, expected linear, nearest or cubic")));
        }
    };
    let padding = match call.text_or("padding_mode", "zeros")? {
        padding @ ("zeros" | "border" | "reflection") => padding,
        other => {
            return Err(RuleError::invalid(format!(
                "padding_mode is {other}, expected zeros, border or reflection"
            )));
        }
    };
    let (shape, grid_shape) = (ctx.shape(x), ctx.shape(grid));
    let fits = shape.rank() >= 3
        && grid_shape.rank() == shape.rank()
        && grid_shape[0] == shape[0]
        && grid_shape[shape.rank() - 1] == shape.rank() - 2;
    if !fits {
        return Err(RuleError::invalid(format!(
            "a grid of shape {grid_shape} over an operand of shape {shape}"
        )));
    }
    let result = checked_shape([&shape[..2], &grid_shape[1..shape.rank() - 1]].concat())?;
    let align_corners = call.flag_or("align_corners", false)?;
    let routine = Routine {
        name: "GridSample",
        ints: vec![align_corners.into()],
        texts: &[mode, padding],
        ..Routine::default()
    };
    routine.apply(ctx, &[x, grid], (ctx.dtype(x), result))
}
