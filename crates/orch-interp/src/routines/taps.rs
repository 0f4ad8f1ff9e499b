//! Interpolation along one dimension: which elements a fractional coordinate reads, and with what weight.

/// How values between elements are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interpolation {
    /// The element at the coordinate rounded to nearest, ties to even.
    Nearest,
    /// Between the two neighbours.
    Linear,
    /// Over four neighbours by cubic convolution with `a = -0.75`.
    Cubic,
}

/// Positions and weights; positions may lie outside the tensor.
pub fn taps(coordinate: f64, interpolation: Interpolation) -> Vec<(i64, f64)> {
    let floor = coordinate.floor();
    let (base, fraction) = (floor as i64, coordinate - floor);
    match interpolation {
        Interpolation::Nearest => vec![(coordinate.round_ties_even() as i64, 1.0)],
        Interpolation::Linear => vec![(base, 1.0 - fraction), (base.saturating_add(1), fraction)],
        Interpolation::Cubic => (-1..=2)
            .map(|step: i64| (base.saturating_add(step), cubic_weight((fraction - step as f64).abs())))
            .collect(),
    }
}

/// The cubic convolution kernel at a distance below 2.
fn cubic_weight(distance: f64) -> f64 {
    const A: f64 = -0.75;
    if distance <= 1.0 {
        ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0
    } else {
        ((A * distance - 5.0 * A) * distance + 8.0 * A) * distance - 4.0 * A
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_sum_to_one() {
        for interpolation in [Interpolation::Nearest, Interpolation::Linear, Interpolation::Cubic] {
            for coordinate in [-1.7, 0.0, 0.25, 2.5, 7.99] {
                let sum: f64 = taps(coordinate, interpolation).iter().map(|(_, weight)| weight).sum();
                assert!((sum - 1.0).abs() < 1e-12, "{interpolation:?} at {coordinate}");
            }
        }
        assert_eq!(taps(2.5, Interpolation::Nearest), [(2, 1.0)]);
        assert_eq!(taps(2.25, Interpolation::Linear), [(2, 0.75), (3, 0.25)]);
    }
}
