//! How close two tensors are, and how close they must be.

use orch_ir::{DType, Tensor};

/// A permitted difference: `|expected - actual| <= absolute + relative * |expected|`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Share of the expected value.
    pub relative: f64,
    /// Permitted whatever the value.
    pub absolute: f64,
}

impl Tolerance {
    /// No difference; NaN equals NaN, and zeros are equal.
    pub const EXACT: Tolerance = Tolerance { relative: 0.0, absolute: 0.0 };

    /// A few units in the last place of a type: what separates two correct implementations of one primitive.
    pub fn rounding(dtype: DType) -> Self {
        let relative = match dtype {
            DType::F64 => 1e-13,
            DType::F32 => 1e-6,
            DType::F16 => 2e-3,
            DType::BF16 => 2e-2,
            _ => return Self::EXACT,
        };
        Self { relative, absolute: relative * 1e-1 }
    }

    /// What separates executions of whole models that sum in different orders.
    pub fn model(dtype: DType) -> Self {
        let relative = match dtype {
            DType::F64 => 1e-9,
            DType::F32 => 1e-3,
            DType::F16 => 2e-2,
            DType::BF16 => 1e-1,
            _ => return Self::EXACT,
        };
        Self { relative, absolute: relative * 1e-1 }
    }
}

/// Where two tensors differ most.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Difference {
    /// They have different types or shapes.
    #[error("{expected} expected, {actual} found")]
    Type {
        /// The type and shape expected.
        expected: String,
        /// The type and shape found.
        actual: String,
    },
    /// Elements differ by more than is permitted.
    #[error("{count} of {total} elements differ; at {position:?}: {expected} expected, {actual} found")]
    Elements {
        /// Elements that differ.
        count: usize,
        /// All elements.
        total: usize,
        /// The one that exceeds its tolerance by most.
        position: Vec<usize>,
        /// Its expected value.
        expected: f64,
        /// Its value.
        actual: f64,
    },
}

/// Compares values; the element types may differ only between floating-point types, so that a wide reference can judge
/// a narrow result.
///
/// # Errors
/// If shapes or kinds of type differ, or an element differs by more than `tolerance`.
pub fn compare(expected: &Tensor, actual: &Tensor, tolerance: Tolerance) -> Result<(), Difference> {
    let both_float = expected.dtype().is_float() && actual.dtype().is_float();
    if expected.shape() != actual.shape() || !(both_float || expected.dtype() == actual.dtype()) {
        let name = |t: &Tensor| format!("{}{}", t.dtype(), t.shape());
        return Err(Difference::Type { expected: name(expected), actual: name(actual) });
    }
    if expected.bytes() == actual.bytes() && expected.dtype() == actual.dtype() {
        return Ok(());
    }
    let (expected_values, actual_values) = (expected.to_f64(), actual.to_f64());
    let excess = |index: usize| excess(expected_values[index], actual_values[index], tolerance);
    let differing: Vec<usize> = (0..expected_values.len()).filter(|&index| excess(index) > 0.0).collect();
    let Some(&worst) = differing.iter().max_by(|&&a, &&b| excess(a).total_cmp(&excess(b))) else {
        return Ok(());
    };
    let strides = expected.shape().strides();
    let position = strides.iter().zip(expected.shape().iter());
    Err(Difference::Elements {
        count: differing.len(),
        total: expected_values.len(),
        position: position.map(|(&stride, &extent)| worst / stride % extent).collect(),
        expected: expected_values[worst],
        actual: actual_values[worst],
    })
}

/// By how much a difference exceeds the tolerance; 0 if it does not.
fn excess(expected: f64, actual: f64, tolerance: Tolerance) -> f64 {
    if expected == actual || (expected.is_nan() && actual.is_nan()) {
        return 0.0;
    }
    let difference = (expected - actual).abs();
    if !difference.is_finite() {
        return f64::INFINITY;
    }
    (difference - tolerance.absolute - tolerance.relative * expected.abs()).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_located() {
        let expected = Tensor::from_vec([2, 2], vec![1.0f64, 2.0, f64::NAN, f64::INFINITY]);
        let close = Tensor::from_vec([2, 2], vec![1.0f32, 2.000_000_2, f32::NAN, f32::INFINITY]);
        assert_eq!(compare(&expected, &close, Tolerance::rounding(DType::F32)), Ok(()));
        assert!(compare(&expected, &close, Tolerance::EXACT).is_err());
        let far = Tensor::from_vec([2, 2], vec![1.0f32, 2.5, f32::NAN, 3.0]);
        let error = compare(&expected, &far, Tolerance::rounding(DType::F32)).unwrap_err();
        assert_eq!(error.to_string(), "2 of 4 elements differ; at [1, 1]: inf expected, 3 found");
    }

    #[test]
    fn types_must_be_of_one_kind() {
        let ints = Tensor::from_vec([1], vec![1i32]);
        let floats = Tensor::from_vec([1], vec![1f32]);
        assert!(matches!(compare(&ints, &floats, Tolerance::EXACT), Err(Difference::Type { .. })));
        assert!(compare(&floats, &floats.reshaped([1, 1]), Tolerance::EXACT).is_err());
    }
}
