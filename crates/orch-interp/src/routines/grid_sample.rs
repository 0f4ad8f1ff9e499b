//! `GridSample`: reads a tensor at given coordinates.
//!
//! Operands: `x [n, c, d_0, .., d_r-1]`, `grid [n, e_0, .., e_r-1, r]` whose last dimension holds coordinates in
//! `-1..1`, that of the *last* dimension of `x` first. Result `[n, c, e_0, .., e_r-1]`. `r` is 1 to 3.
//!
//! - ints: `[align_corners]` (0 or 1)
//! - floats: `[]`
//! - texts: `[mode, padding_mode]`: `nearest`, `linear` or `cubic`; `zeros`, `border` or `reflection`

use super::Call;
use super::taps::{Interpolation, taps};
use crate::EvalError;
use crate::index::strides;
use orch_ir::Tensor;

/// What is read outside the tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// Runs the routine.
///
/// # Errors
/// If the operands or parameters are not those of the module documentation.
pub fn grid_sample(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x, grid] = call.operands()?;
    let [align_corners] = call.ints()?;
    let align_corners = align_corners != 0;
    let interpolation = match call.text(0)? {
        "nearest" => Interpolation::Nearest,
        "linear" => Interpolation::Linear,
        "cubic" => Interpolation::Cubic,
        other => return Err(call.error(format!("mode \"{other}\": nearest, linear or cubic expected"))),
    };
    let padding = match call.text(1)? {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => {
            return Err(call.error(format!("padding \"{other}\": zeros, border or reflection expected")));
        }
    };
    let rank = x.shape().rank().saturating_sub(2);
    let fits = (1..=3).contains(&rank)
        && grid.shape().rank() == rank + 2
        && grid.shape()[rank + 1] == rank
        && grid.shape()[0] == x.shape()[0];
    if !fits {
        return Err(call.error(format!("x is {}, grid {}", x.shape(), grid.shape())));
    }
    let extents = &x.shape()[2..];
    let plane: usize = extents.iter().product();
    let points: usize = grid.shape()[1..=rank].iter().product();
    let (channels, own) = (x.shape()[1], strides(extents));
    let (values, coordinates) = (x.to_f64(), grid.to_f64());
    let mut result = vec![0.0; x.shape()[0] * channels * points];
    for (index, coordinate) in coordinates.chunks(rank).enumerate() {
        let (batch, point) = (index / points, index % points);
        let mut reads = vec![(0, 1.0)];
        for dim in 0..rank {
            let at = denormalize(coordinate[rank - 1 - dim], extents[dim], align_corners);
            let at = if padding == Padding::Border { near_border(at, extents[dim]) } else { at };
            reads = reads
                .iter()
                .flat_map(|&(base, weight)| {
                    taps(at, interpolation).into_iter().map(move |tap| (base, weight, tap))
                })
                .filter_map(|(base, weight, (position, tap_weight))| {
                    let inside = resolve(position, extents[dim], padding, align_corners)?;
                    Some((base + inside * own[dim], weight * tap_weight))
                })
                .collect();
        }
        for channel in 0..channels {
            let source = &values[(batch * channels + channel) * plane..][..plane];
            result[(batch * channels + channel) * points + point] =
                reads.iter().map(|&(offset, weight)| weight * source[offset]).sum();
        }
    }
    let shape = [&x.shape()[..2], &grid.shape()[1..=rank]].concat();
    Ok(call.result(&shape, &result))
}

/// A coordinate in `-1..1` as a position: -1 and 1 are the centres of the border elements, or their outer edges.
fn denormalize(coordinate: f64, extent: usize, align_corners: bool) -> f64 {
    let extent = extent as f64;
    if align_corners {
        (coordinate + 1.0) / 2.0 * (extent - 1.0)
    } else {
        ((coordinate + 1.0) * extent - 1.0) / 2.0
    }
}

/// A position from where all taps lie on the same side of the elements, in the place of what lies further away: only there
/// does infinity have weights.
fn near_border(position: f64, extent: usize) -> f64 {
    position.clamp(-2.0, extent as f64 + 1.0)
}

/// The element read for a position, or `None` for zero.
fn resolve(position: i64, extent: usize, padding: Padding, align_corners: bool) -> Option<usize> {
    let last = i64::try_from(extent).ok()? - 1;
    if (0..=last).contains(&position) {
        return Some(position as usize);
    }
    let inside = match padding {
        Padding::Zeros => return None,
        _ if last < 0 => return None,
        Padding::Border => position.clamp(0, last),
        Padding::Reflection if align_corners && last == 0 => 0,
        Padding::Reflection if align_corners => {
            let folded = position.rem_euclid(2 * last);
            folded.min(2 * last - folded)
        }
        Padding::Reflection => {
            let folded = position.rem_euclid(2 * (last + 1));
            folded.min(2 * last + 1 - folded)
        }
    };
    Some(inside as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_border_all_taps_read_the_border() {
        let read = |coordinate: f64, interpolation| -> f64 {
            let at = near_border(denormalize(coordinate, 4, true), 4);
            let taps = taps(at, interpolation).into_iter();
            taps.map(|(position, weight)| {
                weight * resolve(position, 4, Padding::Border, true).unwrap() as f64
            })
            .sum()
        };
        for interpolation in [Interpolation::Nearest, Interpolation::Linear, Interpolation::Cubic] {
            for (coordinate, element) in
                [(f64::NEG_INFINITY, 0.0), (-9.0, 0.0), (9.0, 3.0), (f64::INFINITY, 3.0)]
            {
                assert!(
                    (read(coordinate, interpolation) - element).abs() < 1e-12,
                    "{interpolation:?} at {coordinate}"
                );
            }
        }
    }

    #[test]
    fn reflection_repeats_the_border_only_without_aligned_corners() {
        let read = |align: bool| {
            (-4..8).map(|at| resolve(at, 4, Padding::Reflection, align).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(read(true), [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]);
        assert_eq!(read(false), [3, 2, 1, 0, 0, 1, 2, 3, 3, 2, 1, 0]);
        assert_eq!(resolve(5, 1, Padding::Reflection, true), Some(0));
    }
}
