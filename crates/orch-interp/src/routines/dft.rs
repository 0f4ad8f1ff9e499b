//! `DFT`: the discrete Fourier transform, by its definition.
//!
//! Operand: `x [.., n, .., z]`, `z` = 1 (real) or 2 (real and imaginary part). The operand is cut or filled with zeros to
//! `length` along `axis`. Result: complex `[.., length or length / 2 + 1, .., 2]`; the inverse of a one-sided spectrum is
//! real: `[.., length, .., 1]`. The inverse divides by `length`.
//!
//! - ints: `[axis, length, inverse, onesided]` (`axis` not the last; flags 0 or 1)
//! - floats: `[]`
//! - texts: `[]`

use super::Call;
use crate::EvalError;
use orch_ir::Tensor;
use std::f64::consts::TAU;

/// A complex number: real and imaginary part.
type Complex = (f64, f64);

/// Runs the routine.
///
/// # Errors
/// If the operand or parameters are not those of the module documentation.
pub fn dft(call: &Call<'_>) -> Result<Vec<Tensor>, EvalError> {
    let [x] = call.operands()?;
    let [axis, length, inverse, onesided] = call.ints()?;
    let (axis, length) = (call.size(axis)?, call.size(length)?);
    let (inverse, onesided) = (inverse != 0, onesided != 0);
    let rank = x.shape().rank();
    let parts = x.shape().last().copied().unwrap_or(0);
    if axis + 1 >= rank || !(1..=2).contains(&parts) || length == 0 || length > 1 << 31 {
        return Err(call.error(format!("x is {}, axis {axis}, length {length}", x.shape())));
    }
    let extent = x.shape()[axis];
    let outer: usize = x.shape()[..axis].iter().product();
    let inner: usize = x.shape()[axis + 1..rank - 1].iter().product();
    let kept = if onesided && !inverse { length / 2 + 1 } else { length };
    let result_parts = if onesided && inverse { 1 } else { 2 };
    let mut dims = x.shape().to_vec();
    dims[axis] = kept;
    dims[rank - 1] = result_parts;
    call.expect_shape(&dims)?;
    let values = x.to_f64();
    let mut result = vec![0.0; outer * kept * inner * result_parts];
    for line in 0..outer * inner {
        let (block, lane) = (line / inner, line % inner);
        let element = |position: usize| {
            let at = ((block * extent + position) * inner + lane) * parts;
            (values[at], if parts == 2 { values[at + 1] } else { 0.0 })
        };
        let mut signal: Vec<Complex> = (0..extent.min(length)).map(element).collect();
        signal.resize(length, (0.0, 0.0));
        if onesided && inverse {
            mirror(&mut signal, extent.min(length / 2 + 1));
        }
        for (position, value) in transform(&signal, inverse).into_iter().take(kept).enumerate() {
            let at = ((block * kept + position) * inner + lane) * result_parts;
            result[at] = value.0;
            if result_parts == 2 {
                result[at + 1] = value.1;
            }
        }
    }
    Ok(call.result(&dims, &result))
}

/// Completes a spectrum, of which the first `given` values count, to that of a real signal.
fn mirror(spectrum: &mut [Complex], given: usize) {
    let length = spectrum.len();
    spectrum[given.min(length)..].fill((0.0, 0.0));
    for position in 1..length.div_ceil(2) {
        spectrum[length - position] = (spectrum[position].0, -spectrum[position].1);
    }
    // The mean and, for an even length, the highest frequency of a real signal are real.
    spectrum[0].1 = 0.0;
    if length.is_multiple_of(2) {
        spectrum[length / 2].1 = 0.0;
    }
}

/// The transform of a whole signal.
fn transform(signal: &[Complex], inverse: bool) -> Vec<Complex> {
    let length = signal.len();
    let (sign, scale) = if inverse { (1.0, 1.0 / length as f64) } else { (-1.0, 1.0) };
    let turns = TAU / length as f64;
    let twiddles: Vec<Complex> =
        (0..length).map(|at| (turns * at as f64).sin_cos()).map(|(s, c)| (c, sign * s)).collect();
    let frequency = |k: usize| {
        let terms = signal.iter().enumerate().map(|(at, x)| {
            let w = twiddles[k * at % length];
            (x.0 * w.0 - x.1 * w.1, x.0 * w.1 + x.1 * w.0)
        });
        let (re, im) = terms.fold((0.0, 0.0), |acc, term| (acc.0 + term.0, acc.1 + term.1));
        (re * scale, im * scale)
    };
    (0..length).map(frequency).collect()
}
