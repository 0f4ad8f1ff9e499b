//! Which elements a coordinate reads, with what weights.

use super::geometry::AxisSize;
use crate::{Call, RuleError};

/// How values between elements are found.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum ResizeKernel {
    /// One element.
    Nearest(Nearest),
    /// A triangle of width 2, widened when antialiasing.
    Linear { antialias: bool },
    /// Cubic convolution of width 4 with parameter `a`, widened when antialiasing.
    Cubic { a: f64, antialias: bool },
}

/// How a coordinate is rounded.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
    /// Down when the axis grows, up when it shrinks: the first versions of the operators.
    FloorOrCeil,
}

impl ResizeKernel {
    pub fn read(call: &Call<'_>) -> Result<Self, RuleError> {
        let antialias = call.flag_or("antialias", false)?;
        match call.text_or("mode", "nearest")? {
            "nearest" => Ok(ResizeKernel::Nearest(Nearest::read(call)?)),
            "linear" => Ok(ResizeKernel::Linear { antialias }),
            "cubic" => Ok(ResizeKernel::Cubic { a: call.float_or("cubic_coeff_a", -0.75)?, antialias }),
            other => Err(RuleError::invalid(format!("mode is {other}, expected nearest, linear or cubic"))),
        }
    }

    /// Positions inside the axis and their weights, whose sum is 1; at least one.
    pub fn taps(self, at: f64, size: &AxisSize, exclude_outside: bool) -> Vec<(usize, f64)> {
        let inside = |position: f64| position.clamp(0.0, size.from as f64 - 1.0);
        let (antialias, radius) = match self {
            ResizeKernel::Nearest(nearest) => return vec![(inside(nearest.round(at, size)) as usize, 1.0)],
            ResizeKernel::Linear { antialias } => (antialias, 1.0),
            ResizeKernel::Cubic { antialias, .. } => (antialias, 2.0),
        };
        let stretch = if antialias { size.scale.min(1.0) } else { 1.0 };
        let reach = radius / stretch;
        // Beyond the axis and the kernel's reach all taps read the same element. The smaller operand is a number.
        let at = at.max(-reach).min(size.from as f64 - 1.0 + reach);
        let (first, last) = ((at - reach).floor() + 1.0, (at + reach).ceil() - 1.0);
        let mut taps: Vec<(usize, f64)> = Vec::new();
        for step in 0..=(last - first).max(0.0) as usize {
            let position = first + step as f64;
            let weight = self.weight((position - at) * stretch);
            if weight != 0.0 && !(exclude_outside && inside(position) != position) {
                taps.push((inside(position) as usize, weight));
            }
        }
        let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
        if taps.is_empty() || sum == 0.0 {
            return vec![(inside(at.round_ties_even()) as usize, 1.0)];
        }
        if antialias || exclude_outside {
            taps.iter_mut().for_each(|(_, weight)| *weight /= sum);
        }
        merged(taps)
    }

    /// The kernel's value at a distance.
    fn weight(self, distance: f64) -> f64 {
        let d = distance.abs();
        match self {
            ResizeKernel::Nearest(_) => f64::from(u8::from(d == 0.0)),
            ResizeKernel::Linear { .. } => (1.0 - d).max(0.0),
            ResizeKernel::Cubic { a, .. } if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            ResizeKernel::Cubic { a, .. } if d < 2.0 => ((d - 5.0) * d + 8.0) * a * d - 4.0 * a,
            ResizeKernel::Cubic { .. } => 0.0,
        }
    }
}

/// Taps of neighbouring equal positions as one.
fn merged(taps: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    let mut merged: Vec<(usize, f64)> = Vec::with_capacity(taps.len());
    for (position, weight) in taps {
        match merged.last_mut() {
            Some((last, sum)) if *last == position => *sum += weight,
            _ => merged.push((position, weight)),
        }
    }
    merged
}

impl Nearest {
    fn read(call: &Call<'_>) -> Result<Self, RuleError> {
        Ok(match call.text_or("nearest_mode", "round_prefer_floor")? {
            "round_prefer_floor" => Nearest::RoundPreferFloor,
            "round_prefer_ceil" => Nearest::RoundPreferCeil,
            "floor" => Nearest::Floor,
            "ceil" => Nearest::Ceil,
            other => return Err(RuleError::invalid(format!("nearest_mode is {other}"))),
        })
    }

    fn round(self, at: f64, size: &AxisSize) -> f64 {
        match self {
            Nearest::RoundPreferFloor => (at - 0.5).ceil(),
            Nearest::RoundPreferCeil => (at + 0.5).floor(),
            Nearest::Floor => at.floor(),
            Nearest::Ceil => at.ceil(),
            Nearest::FloorOrCeil => {
                if size.scale < 1.0 {
                    at.ceil()
                } else {
                    at.floor()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::WHOLE;
    use super::*;

    #[test]
    fn weights_sum_to_one_wherever_the_coordinate_is() {
        let kernels = [
            ResizeKernel::Linear { antialias: false },
            ResizeKernel::Linear { antialias: true },
            ResizeKernel::Cubic { a: -0.75, antialias: false },
            ResizeKernel::Cubic { a: -0.5, antialias: true },
        ];
        for kernel in kernels {
            for scale in [0.1, 0.6, 1.0, 2.5] {
                for at in [-1e9, -3.5, -0.5, 0.0, 0.25, 1.0, 4.999, 5.0, 7.3, 1e9, f64::NAN] {
                    for exclude_outside in [false, true] {
                        let size = AxisSize { axis: 0, from: 6, to: 4, scale, crop: WHOLE };
                        let taps = kernel.taps(at, &size, exclude_outside);
                        let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
                        assert!((sum - 1.0).abs() < 1e-9, "{scale} {at} {taps:?}");
                        assert!(taps.iter().all(|&(position, _)| position < 6));
                    }
                }
            }
        }
    }
}
