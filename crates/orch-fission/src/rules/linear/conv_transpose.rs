//! ConvTranspose: `x [n, c, d_0, ..]`, `w [c, m / group, k_0, ..]`, bias `[m]` -> `[n, m, e_0, ..]`.
//!
//! `output_shape`, or `auto_pad` (`e = d stride`), decides the padding from the extent that an unpadded result
//! would have. Where more is asked for than there is, zeros follow at the end.

use super::super::window::{AutoPad, WindowAttributes, check_rank, extents, reach};
use super::conv::{add_bias, groups, kernel};
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{ConvSpec, MAX_ELEMS, PrimOp, Shape, TensorId, Window};

pub(super) fn conv_transpose(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, w) = (call.tensor(0)?, call.tensor(1)?);
    let WindowAttributes { mut window, auto_pad } = WindowAttributes::read(call, kernel(ctx, call, w)?)?;
    let shape = ctx.shape(x);
    check_rank(&window, &shape)?;
    let mut output_padding = extents(call, "output_padding", window.rank(), 0)?;
    let wanted = wanted_extents(call, &window, auto_pad, &shape)?;
    if let Some(wanted) = &wanted {
        pad_for(&mut window, &mut output_padding, wanted, (auto_pad, &shape))?;
    } else if auto_pad == AutoPad::Valid {
        window.low.fill(0);
        window.high.fill(0);
    }
    let spec = ConvSpec { window, groups: groups(call)? };
    // ONNX has no such attribute: operators of PyTorch do.
    let may_pad = call.int_or("may_pad", 0)? != 0;
    let y = match shape[2..].contains(&0) {
        true => sums_of_nothing(ctx, [x, w], &spec, &output_padding, wanted)?,
        false => ctx.emit(PrimOp::ConvTranspose { spec, output_padding, may_pad }, &[x, w])?,
    };
    one(add_bias(ctx, y, call.optional_tensor(2)?)?)
}

/// The result for images without pixels: zeros, of which there may be some where windows are longer than strides.
fn sums_of_nothing(
    ctx: &mut Context<'_>,
    [x, w]: [TensorId; 2],
    spec: &ConvSpec,
    output_padding: &[usize],
    wanted: Option<Vec<usize>>,
) -> Result<TensorId, RuleError> {
    let (shape, weights, window) = (ctx.shape(x), ctx.shape(w), &spec.window);
    let fits =
        weights.rank() == shape.rank() && weights[0] == shape[1] && shape[1].is_multiple_of(spec.groups);
    if !fits || ctx.dtype(x) != ctx.dtype(w) {
        return Err(RuleError::invalid(format!(
            "weights of shape {weights} for an operand of shape {shape}"
        )));
    }
    let extent = |dim: usize| {
        let full = shape[dim + 2] * window.strides[dim] + reach(window, dim)? + output_padding[dim];
        let extent = full.checked_sub(window.strides[dim] + window.low[dim] + window.high[dim]);
        extent.ok_or_else(|| RuleError::invalid(format!("no window fits into an operand of shape {shape}")))
    };
    let spatial = match wanted {
        Some(wanted) => wanted,
        None => (0..window.rank()).map(extent).collect::<Result<_, _>>()?,
    };
    let result = checked_shape([&[shape[0], weights[1].saturating_mul(spec.groups)], &spatial[..]].concat())?;
    ctx.full(ctx.dtype(x), 0.0, &result)
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

#[cfg(test)]
mod tests {
    use crate::rules::testing::{Application, apply};
    use orch_ir::Attribute;

    fn transposed(x: [usize; 3], w: [usize; 3], strides: i64, pads: [i64; 2]) -> Application {
        let elems = |dims: [usize; 3]| vec![1.0; dims.iter().product()];
        apply("ConvTranspose", 11)
            .floats(&x, &elems(x))
            .floats(&w, &elems(w))
            .floats(&[w[1]], &vec![3.0; w[1]])
            .with("strides", Attribute::Ints(vec![strides]))
            .with("pads", Attribute::Ints(pads.to_vec()))
    }

    #[test]
    fn images_without_pixels_give_the_bias() {
        assert_eq!(transposed([1, 1, 0], [1, 2, 3], 1, [0, 0]).first(), (vec![1, 2, 2], vec![3.0; 4]));
        assert_eq!(transposed([1, 1, 0], [1, 1, 2], 2, [0, 0]).first(), (vec![1, 1, 0], vec![]));
        assert_eq!(transposed([0, 1, 2], [1, 1, 2], 1, [0, 0]).first(), (vec![0, 1, 3], vec![]));
        assert_eq!(transposed([1, 0, 2], [0, 1, 2], 1, [0, 0]).first(), (vec![1, 1, 3], vec![3.0; 3]));
        assert!(transposed([1, 1, 0], [1, 1, 2], 3, [0, 0]).run().is_err());
        let same = transposed([1, 1, 0], [1, 1, 5], 1, [0, 0]);
        let same = same.with("auto_pad", Attribute::String("SAME_UPPER".to_owned()));
        assert_eq!(same.first().0, [1, 1, 0]);
    }

    #[test]
    fn weights_reach_what_they_are_multiplied_for() {
        let infinite = apply("ConvTranspose", 11)
            .floats(&[1, 1, 2], &[1.0, 1.0])
            .floats(&[1, 1, 2], &[1.0, f32::INFINITY])
            .with("strides", Attribute::Ints(vec![2]));
        assert_eq!(infinite.first().1, [1.0, f64::INFINITY, 1.0, f64::INFINITY]);
    }
}
