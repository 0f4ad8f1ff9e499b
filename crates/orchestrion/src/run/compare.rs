//! Error figures between a result and its reference.

use orch_ir::Tensor;

/// How many times the error that rounding every intermediate value to its type makes by itself a result may have:
/// sums are made in another order, and functions are a little less exact than the interpreter's.
pub const ROUNDING_FACTOR: f64 = 16.0;

/// How far a tensor is from its reference.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Difference {
    /// Largest absolute difference of finite elements.
    pub absolute: f64,
    /// That, relative to the reference's largest finite magnitude.
    pub scaled: f64,
    /// Elements that are NaN or infinite in one and not the same in the other, integers that differ, and all
    /// elements if the shapes do.
    pub mismatched: usize,
}

/// Compares a result with its reference, which may be of a wider type.
pub fn compare(got: &Tensor, want: &Tensor) -> Difference {
    if got.shape() != want.shape() {
        return Difference { mismatched: want.shape().elems().max(1), ..Difference::default() };
    }
    let mut difference = Difference::default();
    let mut magnitude = 0.0f64;
    let is_float = want.dtype().is_float();
    for (a, b) in got.to_f64().into_iter().zip(want.to_f64()) {
        if a.is_finite() && b.is_finite() {
            difference.absolute = difference.absolute.max((a - b).abs());
            magnitude = magnitude.max(b.abs());
            difference.mismatched += usize::from(!is_float && a != b);
        } else if !(a.is_nan() && b.is_nan() || a == b) {
            difference.mismatched += 1;
        }
    }
    difference.scaled =
        if difference.absolute == 0.0 { 0.0 } else { difference.absolute / magnitude.max(1e-30) };
    difference
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_values_must_agree() {
        let got = Tensor::from_vec([4], vec![1.0f32, f32::NAN, f32::INFINITY, 5.0]);
        let want = Tensor::from_vec([4], vec![1.5f64, f64::NAN, f64::INFINITY, f64::NAN]);
        assert_eq!(compare(&got, &want), Difference { absolute: 0.5, scaled: 0.5 / 1.5, mismatched: 1 });
    }
}
