//! How large each axis becomes: from scales, or from sizes with or without the aspect ratio kept.

use super::WHOLE;
use crate::rules::operand_lists::{attribute_or_operand, extents};
use crate::{Call, Context, RuleError, normalize_axes, normalize_axis};
use orch_ir::{MAX_ELEMS, Shape};

/// One axis that is resized.
pub(super) struct AxisSize {
    pub axis: usize,
    /// Extent of the operand.
    pub from: usize,
    /// Extent of the result.
    pub to: usize,
    /// Result over operand; with given scales their product with `from` need not be whole.
    pub scale: f64,
    /// The part of the operand that is read.
    pub crop: Crop,
}

/// A part of an axis, in units of its length.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Crop {
    pub start: f64,
    pub end: f64,
}

impl AxisSize {
    /// True if nothing changes.
    pub fn is_identity(&self) -> bool {
        self.from == self.to && (self.scale - 1.0).abs() < 1e-9 && self.crop == WHOLE
    }
}

/// The largest extent that an axis is resized to: what each position reads is listed when compiling.
const MAX_EXTENT: usize = 1 << 24;

/// Refuses axes that are too long for a list of their positions.
fn check_extents(resized: Vec<(usize, f64)>) -> Result<Vec<(usize, f64)>, RuleError> {
    match resized.iter().find(|(to, _)| *to > MAX_EXTENT) {
        Some((to, _)) => Err(RuleError::unsupported(format!("an axis of extent {to} after resizing"))),
        None => Ok(resized),
    }
}

/// What operands and attributes of Resize say; `crops` if the operand `roi` counts.
pub(super) fn of_resize(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    shape: &Shape,
    crops: bool,
) -> Result<Vec<AxisSize>, RuleError> {
    let axes: Vec<usize> = match call.ints("axes")? {
        Some(axes) => {
            normalize_axes(axes, shape.rank())?;
            axes.iter().map(|&axis| normalize_axis(axis, shape.rank())).collect::<Result<_, _>>()?
        }
        None => (0..shape.rank()).collect(),
    };
    let scales = optional_floats(ctx, call, 2, "scales")?;
    let sizes = attribute_or_operand(ctx, call, "sizes", 3)?.filter(|sizes| !sizes.is_empty());
    let extents: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
    let resized = match (scales, sizes) {
        (Some(scales), None) => by_scales(&extents, &scales)?,
        (None, Some(sizes)) => {
            by_sizes(&extents, &sizes, call.text_or("keep_aspect_ratio_policy", "stretch")?)?
        }
        _ => return Err(RuleError::invalid("one of the operands scales and sizes is expected")),
    };
    let resized = check_extents(resized)?;
    let crops = if crops { read_crops(ctx, call, axes.len())? } else { vec![WHOLE; axes.len()] };
    let parts = axes.into_iter().zip(extents).zip(resized).zip(crops);
    Ok(parts.map(|(((axis, from), (to, scale)), crop)| AxisSize { axis, from, to, scale, crop }).collect())
}

/// What Upsample and the first version of Resize say: scales as attribute or operand 1.
pub(super) fn of_upsample(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    shape: &Shape,
) -> Result<Vec<AxisSize>, RuleError> {
    let scales = match call.floats("scales")? {
        Some(scales) => Some(scales.to_vec()),
        None => optional_floats(ctx, call, 1, "scales")?,
    };
    let resized = check_extents(by_scales(shape, &scales.ok_or(RuleError::MissingOperand(1))?)?)?;
    let parts = shape.iter().zip(resized).enumerate();
    Ok(parts.map(|(axis, (&from, (to, scale)))| AxisSize { axis, from, to, scale, crop: WHOLE }).collect())
}

/// The result's extent and the scale of each axis. The extent is rounded as a product of f32, as other
/// implementations do.
fn by_scales(extents: &[usize], scales: &[f32]) -> Result<Vec<(usize, f64)>, RuleError> {
    let resized = |(&from, &scale): (&usize, &f32)| {
        let to = (from as f32 * scale).floor();
        (scale > 0.0 && to <= MAX_ELEMS as f32).then_some((to as usize, f64::from(scale)))
    };
    let resized: Option<Vec<_>> =
        if scales.len() == extents.len() { extents.iter().zip(scales).map(resized).collect() } else { None };
    resized.ok_or_else(|| RuleError::invalid(format!("scales {scales:?} of extents {extents:?}")))
}

fn by_sizes(from: &[usize], sizes: &[i64], policy: &str) -> Result<Vec<(usize, f64)>, RuleError> {
    let to = extents(sizes, "sizes")?;
    if to.len() != from.len() {
        return Err(RuleError::invalid(format!("sizes {sizes:?} of extents {from:?}")));
    }
    let scales: Vec<f64> = from.iter().zip(&to).map(|(&from, &to)| to as f64 / from as f64).collect();
    let shared = match policy {
        "stretch" => return Ok(to.into_iter().zip(scales).collect()),
        "not_larger" => scales.into_iter().fold(f64::INFINITY, f64::min),
        "not_smaller" => scales.into_iter().fold(0.0, f64::max),
        other => {
            return Err(RuleError::invalid(format!(
                "keep_aspect_ratio_policy is {other}, expected stretch, not_larger or not_smaller"
            )));
        }
    };
    if !shared.is_finite() {
        return Err(RuleError::invalid(format!("sizes {sizes:?} of extents {from:?}")));
    }
    Ok(from.iter().map(|&extent| ((shared * extent as f64 + 0.5).floor() as usize, shared)).collect())
}

/// The operand `roi`: all starts, then all ends.
fn read_crops(ctx: &mut Context<'_>, call: &Call<'_>, count: usize) -> Result<Vec<Crop>, RuleError> {
    let roi = ctx.constant_operand(call, 1, "roi")?.to_f64();
    if roi.len() != 2 * count {
        return Err(RuleError::invalid(format!("roi has {} entries, expected {}", roi.len(), 2 * count)));
    }
    let (starts, ends) = roi.split_at(count);
    Ok(starts.iter().zip(ends).map(|(&start, &end)| Crop { start, end }).collect())
}

/// The floats of a constant operand; `None` if it is left out or empty.
fn optional_floats(
    ctx: &mut Context<'_>,
    call: &Call<'_>,
    index: usize,
    what: &str,
) -> Result<Option<Vec<f32>>, RuleError> {
    if call.optional_tensor(index)?.is_none() {
        return Ok(None);
    }
    let value = ctx.constant_operand(call, index, what)?;
    match value.to_vec::<f32>() {
        Some(values) => Ok(Some(values).filter(|values| !values.is_empty())),
        None => Err(RuleError::invalid(format!("{what} is {}, f32 is expected", value.dtype()))),
    }
}
