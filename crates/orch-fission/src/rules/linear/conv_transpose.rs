//! ConvTranspose: `x [n, c, d_0, ..]`, `w [c, m / group, k_0, ..]`, bias `[m]` -> `[n, m, e_0, ..]`.
//!
//! `output_shape`, or `auto_pad` (`e = d stride`), decides the padding from the extent that an unpadded result
//! would have. Where more is asked for than there is, zeros follow at the end.

use super::super::window::{AutoPad, WindowAttributes, check_rank, extents, reach};
use super::conv::{add_bias, groups, kernel};
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{ConvSpec, MAX_ELEMS, PrimOp, Shape, Window};

pub(super) fn conv_transpose(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let WindowAttributes { mut window, auto_pad } = WindowAttributes::read(call, kernel(ctx, call, w)?)?;
    let shape = ctx.shape(x);
    check_rank(&window, &shape)?;
    let mut output_padding = extents(call, "output_padding", window.rank(), 0)?;
    if let Some(wanted) = wanted_extents(call, &window, auto_pad, &shape)? {
        pad_for(&mut window, &mut output_padding, &wanted, (auto_pad, &shape))?;
    } else if auto_pad == AutoPad::Valid {
        window.low.fill(0);
        window.high.fill(0);
    }
    let spec = ConvSpec { window, groups: groups(call)? };
    let y = ctx.emit(PrimOp::ConvTranspose { spec, output_padding }, &[x, w])?;
    one(add_bias(ctx, y, call.optional_tensor(2)?)?)
}

/// The spatial extents that the attributes ask for, if they do.
fn wanted_extents(
    call: &Call<'_>,
    window: &Window,
    auto_pad: AutoPad,
    shape: &Shape,
) -> Result<Option<Vec<usize>>, RuleError> {
    let rank = window.rank();
    if let Some(given) = call.ints("output_shape")?.filter(|given| !given.is_empty()) {
        // Some exporters write batch and channels too.
        let spatial = if given.len() == rank + 2 { &given[2..] } else { given };
        let spatial: Option<Vec<usize>> =
            spatial.iter().map(|&extent| usize::try_from(extent).ok()).collect();
        let spatial = spatial.filter(|spatial| spatial.len() == rank);
        return match spatial.filter(|spatial| spatial.iter().all(|&extent| extent <= MAX_ELEMS)) {
            Some(spatial) => Ok(Some(spatial)),
            None => Err(RuleError::invalid(format!("output_shape is {given:?}, expected {rank} extents"))),
        };
    }
    Ok(match auto_pad {
        AutoPad::SameUpper | AutoPad::SameLower => {
            Some((0..rank).map(|dim| shape[dim + 2] * window.strides[dim]).collect())
        }
        AutoPad::Explicit | AutoPad::Valid => None,
    })
}

/// Sets the padding so that the result has these extents.
fn pad_for(
    window: &mut Window,
    output_padding: &mut [usize],
    wanted: &[usize],
    (auto_pad, shape): (AutoPad, &Shape),
) -> Result<(), RuleError> {
    for dim in 0..window.rank() {
        let steps = shape[dim + 2].saturating_sub(1) * window.strides[dim];
        let full = steps + reach(window, dim)? + output_padding[dim];
        let total = full.saturating_sub(wanted[dim]);
        output_padding[dim] += wanted[dim].saturating_sub(full);
        let smaller = total / 2;
        (window.low[dim], window.high[dim]) = match auto_pad {
            AutoPad::SameUpper => (smaller, total - smaller),
            AutoPad::SameLower | AutoPad::Explicit | AutoPad::Valid => (total - smaller, smaller),
        };
    }
    Ok(())
}
