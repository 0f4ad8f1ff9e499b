//! Error figures between a result and its reference.

use orch_ir::{DType, Tensor};

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
    if let (Some(got), Some(want)) = (exact(got), exact(want)) {
        difference.mismatched = got.iter().zip(&want).filter(|(a, b)| a != b).count();
    }
    for (a, b) in got.to_f64().into_iter().zip(want.to_f64()) {
        if a.is_finite() && b.is_finite() {
            difference.absolute = difference.absolute.max((a - b).abs());
            magnitude = magnitude.max(b.abs());
        } else if !(a.is_nan() && b.is_nan() || a == b) {
            difference.mismatched += 1;
        }
    }
    difference.scaled =
        if difference.absolute == 0.0 { 0.0 } else { difference.absolute / magnitude.max(1e-30) };
    difference
}

/// The elements of a tensor of integers or truth values.
fn exact(tensor: &Tensor) -> Option<Vec<i128>> {
    match tensor.dtype() {
        DType::U64 => Some(
            tensor
                .bytes()
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()).into())
                .collect(),
        ),
        dtype if dtype.is_float() => None,
        _ => Some(tensor.to_i64()?.into_iter().map(i128::from).collect()),
    }
}

/// Why a comparison with this reference says little, however close the result is.
pub fn says_little(want: &Tensor, tolerance: f64) -> Option<String> {
    /// A result that is half as large as the reference, or zero where it is largest, is no result.
    const MOST: f64 = 0.5;
    let values = want.to_f64();
    let is_float = want.dtype().is_float();
    if values.is_empty() {
        Some("the output is empty".to_owned())
    } else if values.iter().all(|value| value.is_nan()) {
        Some("the reference is NaN throughout".to_owned())
    } else if values.iter().all(|&value| value == 0.0) {
        Some("the reference is zero throughout".to_owned())
    } else if is_float && values.iter().all(|value| !value.is_finite()) {
        Some("the reference has no finite element".to_owned())
    } else if is_float && tolerance >= MOST {
        Some(format!("an error of {:.0} % of the largest magnitude is allowed", tolerance * 100.0))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_compared_exactly() {
        let of = |values: [i64; 2]| Tensor::from_vec([2], values.to_vec());
        assert_eq!(compare(&of([1 << 53, 1]), &of([(1 << 53) + 1, 1])).mismatched, 1);
        assert_eq!(compare(&of([i64::MIN, -1]), &of([i64::MIN, -1])), Difference::default());
        let words = |values: [u64; 2]| Tensor::from_vec([2], values.to_vec());
        assert_eq!(compare(&words([u64::MAX, 1]), &words([u64::MAX - 1, 1])).mismatched, 1);
        let bools = |values| Tensor::from_bools([2], values);
        assert_eq!(compare(&bools(&[true, true]), &bools(&[true, false])).mismatched, 1);
    }

    #[test]
    fn comparisons_that_say_little_are_told() {
        let of = |values: Vec<f64>| Tensor::from_vec([values.len()], values);
        assert_eq!(says_little(&of(vec![0.0, 2.0]), 1e-4), None);
        assert_eq!(says_little(&of(vec![0.0, f64::NAN]), 1e-4), None);
        for (values, tolerance, part) in [
            (vec![], 0.0, "empty"),
            (vec![0.0, -0.0], 0.0, "zero"),
            (vec![f64::NAN; 3], 0.0, "NaN"),
            (vec![f64::NAN, f64::INFINITY], 0.0, "finite"),
            (vec![1.0, 2.0], 0.97, "97 %"),
            (vec![1.0, 2.0], 1.0, "100 %"),
        ] {
            let said = says_little(&of(values), tolerance).unwrap_or_default();
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(
            says_little(&Tensor::from_vec([1], vec![3i64]), 1.0),
            None,
            "integers are compared exactly"
        );
    }

    #[test]
    fn special_values_must_agree() {
        let got = Tensor::from_vec([4], vec![1.0f32, f32::NAN, f32::INFINITY, 5.0]);
        let want = Tensor::from_vec([4], vec![1.5f64, f64::NAN, f64::INFINITY, f64::NAN]);
        assert_eq!(compare(&got, &want), Difference { absolute: 0.5, scaled: 0.5 / 1.5, mismatched: 1 });
    }
}
