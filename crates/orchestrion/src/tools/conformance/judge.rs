//! Whether results are as expected, with the tolerances of ONNX's own runner.

use super::data::as_declared;
use orch_ir::{DType, Tensor};

/// By how much results may differ from what is expected.
#[derive(Clone, Copy)]
pub(super) struct CaseTolerance {
    pub relative: f64,
    pub absolute: f64,
}

impl CaseTolerance {
    /// What the text of a case's `data.json` states; else that of ONNX's runner.
    pub(super) fn stated(text: &str) -> Self {
        let field = |name: &str| -> Option<f64> {
            let (_, rest) = text.split_once(&format!("\"{name}\":"))?;
            rest.trim_start().split([',', '}']).next()?.trim().parse().ok()
        };
        Self { relative: field("rtol").unwrap_or(1e-3), absolute: field("atol").unwrap_or(1e-7) }
    }

    fn accepts(self, got: f64, want: f64) -> bool {
        got == want
            || (got.is_nan() && want.is_nan())
            || (got - want).abs() <= self.absolute + self.relative * want.abs()
    }
}

/// What the relative tolerance is at least, by type: two units in the last place. The expectations for narrow
/// floats round after every step, so that a more exact result differs from them by that.
fn narrow_tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2f64.powi(-9),
        DType::BF16 => 2f64.powi(-6),
        _ => 0.0,
    }
}

/// The first difference between results and what is expected.
pub(super) fn difference(
    results: &[Tensor],
    expected: &[Tensor],
    tolerance: CaseTolerance,
) -> Option<String> {
    if results.len() != expected.len() {
        return Some(format!("{} results, {} expected", results.len(), expected.len()));
    }
    let pairs = results.iter().zip(expected).enumerate();
    pairs.into_iter().find_map(|(position, (result, wanted))| {
        let wanted = as_declared(wanted.clone(), Some(result.dtype()));
        difference_of(result, &wanted, tolerance).map(|difference| format!("result {position} {difference}"))
    })
}

fn difference_of(result: &Tensor, wanted: &Tensor, tolerance: CaseTolerance) -> Option<String> {
    if (result.dtype(), result.shape()) != (wanted.dtype(), wanted.shape()) {
        return Some(format!("is {result:?}, expected {wanted:?}"));
    }
    let relative = tolerance.relative.max(narrow_tolerance(wanted.dtype()));
    let tolerance = CaseTolerance { relative, ..tolerance };
    let pairs = result.to_f64().into_iter().zip(wanted.to_f64());
    let off: Vec<(usize, (f64, f64))> =
        pairs.enumerate().filter(|(_, (got, want))| !tolerance.accepts(*got, *want)).collect();
    let (at, (got, want)) = off.first()?;
    let (dtype, shape) = (result.dtype(), result.shape());
    Some(format!("{dtype}{shape} at {at}: {got}, expected {want} ({} differ)", off.len()))
}
