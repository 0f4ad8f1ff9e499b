//! The window attributes that convolutions and pools share: `strides`, `dilations`, `pads`, `auto_pad`,
//! `ceil_mode`.

use crate::{Call, RuleError};
use orch_ir::{Shape, Window};

/// How ONNX chooses the padding.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum AutoPad {
    /// As `pads` says.
    Explicit,
    /// `ceil(extent / stride)` positions, the odd element of padding after.
    SameUpper,
    /// The same, the odd element before.
    SameLower,
    /// None.
    Valid,
}

/// Window attributes before the padding is resolved.
pub(super) struct WindowAttributes {
    /// Strides, dilations, explicit padding; every list has one entry per spatial dimension.
    pub window: Window,
    /// What replaces the explicit padding.
    pub auto_pad: AutoPad,
}

impl WindowAttributes {
    /// Reads the attributes of an operator whose window has these extents.
    pub fn read(call: &Call<'_>, kernel: Vec<usize>) -> Result<Self, RuleError> {
        let rank = kernel.len();
        let pads = extents(call, "pads", 2 * rank, 0)?;
        let strides = extents(call, "strides", rank, 1)?;
        let dilations = extents(call, "dilations", rank, 1)?;
        if strides.iter().chain(&dilations).any(|&step| step == 0) {
            return Err(RuleError::invalid("a stride or dilation is 0"));
        }
        let auto_pad = match call.text_or("auto_pad", "NOTSET")? {
            "NOTSET" | "" => AutoPad::Explicit,
            "SAME_UPPER" => AutoPad::SameUpper,
            "SAME_LOWER" => AutoPad::SameLower,
            "VALID" => AutoPad::Valid,
            other => return Err(RuleError::invalid(format!("auto_pad is {other}"))),
        };
        let (low, high) = pads.split_at(rank);
        let window = Window { kernel, strides, dilations, low: low.to_vec(), high: high.to_vec() };
        Ok(Self { window, auto_pad })
    }

    /// The window with its padding, over the trailing dimensions of `[n, c, d_0, ..]`.
    pub fn resolve(self, shape: &Shape) -> Result<Window, RuleError> {
        let mut window = self.window;
        check_rank(&window, shape)?;
        if self.auto_pad == AutoPad::Explicit {
            return Ok(window);
        }
        for dim in 0..window.rank() {
            let extent = shape[dim + 2];
            let total = match self.auto_pad {
                AutoPad::SameUpper | AutoPad::SameLower => {
                    let last = extent.div_ceil(window.strides[dim]).saturating_sub(1) * window.strides[dim];
                    (last + reach(&window, dim)?).saturating_sub(extent)
                }
                AutoPad::Valid | AutoPad::Explicit => 0,
            };
            let smaller = total / 2;
            (window.low[dim], window.high[dim]) = match self.auto_pad {
                AutoPad::SameLower => (total - smaller, smaller),
                _ => (smaller, total - smaller),
            };
        }
        Ok(window)
    }
}

/// The window has one extent per spatial dimension of `[n, c, d_0, ..]`.
pub(super) fn check_rank(window: &Window, shape: &Shape) -> Result<(), RuleError> {
    if shape.rank() == window.rank() + 2 {
        Ok(())
    } else {
        Err(RuleError::invalid(format!("a window {:?} over an operand of shape {shape}", window.kernel)))
    }
}

/// The distance from the first to beyond the last element of a window.
pub(super) fn reach(window: &Window, dim: usize) -> Result<usize, RuleError> {
    (window.kernel[dim].checked_sub(1))
        .and_then(|steps| steps.checked_mul(window.dilations[dim]))
        .and_then(|span| span.checked_add(1))
        .ok_or_else(|| {
            RuleError::invalid(format!("window {:?} dilated by {:?}", window.kernel, window.dilations))
        })
}

/// With `ceil_mode` a last window may begin inside the operand and end beyond its padding: extends the padding
/// for it. Windows that would begin in the padding after the operand do not count.
pub(super) fn extend_to_ceil(window: &mut Window, shape: &Shape) -> Result<(), RuleError> {
    for dim in 0..window.rank() {
        let extent = shape[dim + 2];
        let (reach, stride, low) = (reach(window, dim)?, window.strides[dim], window.low[dim]);
        let Some(spare) = (extent + low + window.high[dim]).checked_sub(reach) else { continue };
        let mut last = spare.div_ceil(stride) * stride;
        if last >= extent + low && last >= stride {
            last -= stride;
        }
        window.high[dim] = (last + reach).saturating_sub(extent + low);
    }
    Ok(())
}

/// A list of `count` non-negative integers, all `default` where the attribute is missing.
pub(super) fn extents(
    call: &Call<'_>,
    name: &str,
    count: usize,
    default: usize,
) -> Result<Vec<usize>, RuleError> {
    let Some(values) = call.ints(name)? else {
        return Ok(vec![default; count]);
    };
    if values.is_empty() {
        return Ok(vec![default; count]);
    }
    if values.len() != count {
        return Err(RuleError::invalid(format!("{name} has {} entries, expected {count}", values.len())));
    }
    // The bound keeps all sums of extents far from overflow.
    let extent = |value: i64| usize::try_from(value).ok().filter(|&value| value < 1 << 31);
    values.iter().map(|&value| extent(value)).collect::<Option<Vec<_>>>().ok_or_else(|| {
        RuleError::unsupported(format!("{name} = {values:?}: entries must not be negative, nor beyond 2^31"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kernel: usize, stride: usize, pads: (usize, usize)) -> Window {
        Window {
            kernel: vec![kernel],
            strides: vec![stride],
            dilations: vec![1],
            low: vec![pads.0],
            high: vec![pads.1],
        }
    }

    #[test]
    fn same_padding_keeps_the_extent() {
        for (extent, kernel, stride) in [(1, 3, 1), (7, 2, 1), (7, 3, 2), (8, 3, 2), (5, 1, 3), (5, 7, 4)] {
            for auto_pad in [AutoPad::SameUpper, AutoPad::SameLower] {
                let attributes = WindowAttributes { window: window(kernel, stride, (0, 0)), auto_pad };
                let resolved = attributes.resolve(&[1, 1, extent].into()).expect("fits");
                assert_eq!(resolved.positions(0, extent), Some(extent.div_ceil(stride)));
            }
        }
    }

    #[test]
    fn ceil_mode_counts_windows_that_begin_inside() {
        // (extent, kernel, stride, pads) -> windows, by enumeration.
        for extent in 1..9 {
            for (kernel, stride, pads) in [(3, 2, (0, 0)), (2, 2, (1, 1)), (1, 2, (0, 1)), (2, 3, (0, 1))] {
                let mut extended = window(kernel, stride, pads);
                let padded = extent + pads.0 + pads.1;
                if padded < kernel {
                    continue;
                }
                let full = (padded - kernel).div_ceil(stride) + 1;
                let begins_inside = |at: &usize| at * stride < extent + pads.0;
                let expected = (0..full).filter(begins_inside).count();
                extend_to_ceil(&mut extended, &[1, 1, extent].into()).expect("fits");
                assert_eq!(
                    extended.positions(0, extent),
                    Some(expected),
                    "{extent} {kernel} {stride} {pads:?}"
                );
            }
        }
    }
}
