//! DFT: the discrete Fourier transform of one axis; the last dimension holds real, or real and imaginary parts.
//!
//! Short transforms are products with a constant matrix. Longer ones whose length `L` is `L1 * L2` are transforms of length `L1`,
//! a rotation, and transforms of length `L2` (Cooley and Tukey):
//!
//! ```text
//! position t = t1 * L2 + t2, frequency k = k1 + L1 * k2
//! y[k1, t2]  =  sum over t1 of x[t1, t2] w(L1)^(t1 k1)
//! X[k2, k1]  =  sum over t2 of y[k1, t2] w(L)^(t2 k1) w(L2)^(t2 k2)         w(n) = exp(-2 pi i / n)
//! ```

use super::super::operand_lists::{extent, single_int};
use super::Routine;
use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError, normalize_axis};
use orch_ir::{BinaryFn, ScalarFn, Tensor, TensorId};
use std::f64::consts::TAU;

/// Elements of the largest matrix of a transform.
const MAX_MATRIX: usize = 1 << 22;

pub(super) fn dft(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let shape = ctx.shape(x);
    let axis = match (call.opset() < 20, call.optional_tensor(2)?) {
        (true, _) => call.int_or("axis", 1)?,
        (false, None) => -2,
        (false, Some(_)) => single_int(ctx, call, 2, "axis")?,
    };
    let axis = normalize_axis(axis, shape.rank())?;
    let (inverse, onesided) = (call.flag_or("inverse", false)?, call.flag_or("onesided", false)?);
    let length = match call.optional_tensor(1)? {
        Some(_) => extent(single_int(ctx, call, 1, "dft_length")?, "dft_length")?,
        // One side of a spectrum of even length.
        None if inverse && onesided => 2 * shape[axis].saturating_sub(1),
        None => shape[axis],
    };
    one(transform(ctx, x, axis, Transform { length, inverse, onesided })?)
}

/// Which transform.
#[derive(Clone, Copy)]
pub(super) struct Transform {
    /// The signal is cut or filled with zeros to this length.
    pub length: usize,
    /// From the spectrum to the signal.
    pub inverse: bool,
    /// The half of the spectrum that determines the other, of a real signal.
    pub onesided: bool,
}

/// The transform of one axis of `x`.
pub(super) fn transform(
    ctx: &mut Context<'_>,
    x: TensorId,
    axis: usize,
    transform: Transform,
) -> Result<TensorId, RuleError> {
    let Transform { length, inverse, onesided } = transform;
    let mut dims = ctx.shape(x).to_vec();
    let last = dims.len().saturating_sub(1);
    if axis >= last || length == 0 || !(1..=2).contains(&dims[last]) {
        return Err(RuleError::invalid(format!(
            "a transform of length {length} along axis {axis} of {dims:?}; the last dimension holds 1 or 2 parts"
        )));
    }
    let (extent, parts) = (dims[axis], dims[last]);
    dims[axis] = if onesided && !inverse { length / 2 + 1 } else { length };
    dims[last] = if onesided && inverse { 1 } else { 2 };
    let result = checked_shape(dims)?;
    // What is read: the rest is cut off, or zeros.
    let read = extent.min(if onesided && inverse { length / 2 + 1 } else { length });
    let matrix = (read * parts).checked_mul(result[axis] * result[last]);
    let dtype = ctx.dtype(x);
    if matrix.is_some_and(|elements| elements <= MAX_MATRIX) {
        let wide = ctx.widen(x)?;
        let read = ctx.slice_axis(wide, axis, 0, read)?;
        let transformed = multiplied(ctx, read, axis, transform, [result[axis], result[last]])?;
        return ctx.cast(transformed, dtype);
    }
    if let Some(divisor) = long_divisor(length)
        && !(onesided && inverse)
    {
        let wide = ctx.widen(x)?;
        let read = ctx.slice_axis(wide, axis, 0, read)?;
        let transformed = factored(ctx, read, axis, (length, divisor), inverse)?;
        let transformed = ctx.slice_axis(transformed, axis, 0, result[axis])?;
        return ctx.cast(transformed, dtype);
    }
    let ints = vec![axis as i64, length as i64, inverse.into(), onesided.into()];
    Routine { name: "DFT", ints, ..Routine::default() }.emit(ctx, &[x], (dtype, result))
}

/// The larger of two divisors whose product is a length and whose transforms are short, if there are such.
fn long_divisor(length: usize) -> Option<usize> {
    let root = (1..).take_while(|root| root * root <= length).last()?;
    let small = (2..=root).rev().find(|&small| length.is_multiple_of(small))?;
    let large = length / small;
    (large.checked_mul(large)?.checked_mul(4)? <= MAX_MATRIX).then_some(large)
}

/// The transform as a product: `[.., t, .., p]` with a matrix `[t, p, k, q]`.
fn multiplied(
    ctx: &mut Context<'_>,
    x: TensorId,
    axis: usize,
    Transform { length, inverse, onesided }: Transform,
    [frequencies, parts]: [usize; 2],
) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(x);
    let (positions, given) = (shape[axis], shape[shape.rank() - 1]);
    let scale = if inverse { 1.0 / length as f64 } else { 1.0 };
    let sign = if inverse { 1.0 } else { -1.0 };
    let mut matrix = Vec::with_capacity(positions * given * frequencies * parts);
    for position in 0..positions {
        // One side of a spectrum stands for the other as well, but for the mean and the highest frequency of an even length.
        let is_single = position == 0 || 2 * position == length;
        let weight = if onesided && inverse && !is_single { 2.0 } else { 1.0 };
        for part in 0..given {
            let is_left_out = onesided && inverse && is_single && part == 1;
            let weight = if is_left_out { 0.0 } else { weight * scale };
            for frequency in 0..frequencies {
                let (sin, cos) = rotation(position * frequency, length);
                let (re, im) = if part == 0 { (cos, sign * sin) } else { (-sign * sin, cos) };
                matrix.extend([re * weight, im * weight].iter().take(parts));
            }
        }
    }
    let matrix = Tensor::from_f64(ctx.dtype(x), [positions, given, frequencies, parts], &matrix);
    let matrix = ctx.tensor(matrix);
    // Labels: of the dimensions of `x`, then of the frequency and its part.
    let rank = shape.rank() as u8;
    let lhs: Vec<u8> = (0..rank).collect();
    let mut out = lhs.clone();
    (out[axis], out[shape.rank() - 1]) = (rank, rank + 1);
    ctx.contract(x, matrix, [&lhs, &[axis as u8, rank - 1, rank, rank + 1], &out])
}

/// Sine and cosine of the angle `phase / length` of a turn.
fn rotation(phase: usize, length: usize) -> (f64, f64) {
    (TAU * (phase % length) as f64 / length as f64).sin_cos()
}

/// The transform of both parts by two divisors whose product is its length; `second` is the longer.
fn factored(
    ctx: &mut Context<'_>,
    x: TensorId,
    axis: usize,
    (length, second): (usize, usize),
    inverse: bool,
) -> Result<TensorId, RuleError> {
    let first = length / second;
    let mut shape = ctx.shape(x).to_vec();
    let rank = shape.len();
    let x = ctx.pad_axis(x, axis, [0, length - shape[axis]], 0.0)?;
    shape.splice(axis..=axis, [first, second]);
    // [.., t1, t2, .., p] to [.., k1, t2, .., q]
    let x = ctx.reshape(x, shape.clone())?;
    let whole = |length: usize| Transform { length, inverse, onesided: false };
    let y = multiplied(ctx, x, axis, whole(first), [first, 2])?;
    let y = rotated(ctx, y, axis, length, inverse)?;
    // [.., k1, t2, .., q] to [.., k1, k2, .., r] to [.., k2, k1, .., r]
    let y = multiplied(ctx, y, axis + 1, whole(second), [second, 2])?;
    let mut perm: Vec<usize> = (0..=rank).collect();
    perm.swap(axis, axis + 1);
    let y = ctx.transpose(y, &perm)?;
    shape.splice(axis..axis + 2, [length]);
    shape[rank - 1] = 2;
    ctx.reshape(y, shape)
}

/// `y[k1, t2]`, along `axis` and the next one, rotated by `k1 * t2` parts of a turn.
fn rotated(
    ctx: &mut Context<'_>,
    y: TensorId,
    axis: usize,
    length: usize,
    inverse: bool,
) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(y);
    let (rank, dtype) = (shape.rank(), ctx.dtype(y));
    let (rows, columns) = (shape[axis], shape[axis + 1]);
    let angles = (0..rows).flat_map(|row| (0..columns).map(move |column| rotation(row * column, length)));
    let (sines, cosines): (Vec<f64>, Vec<f64>) = angles.unzip();
    let mut unit = vec![1; rank];
    (unit[axis], unit[axis + 1]) = (rows, columns);
    let mut constant = |values: &[f64]| ctx.tensor(Tensor::from_f64(dtype, unit.clone(), values));
    let (sine, cosine) = (constant(&sines), constant(&cosines));
    let (re, im) = (ctx.slice_axis(y, rank - 1, 0, 1)?, ctx.slice_axis(y, rank - 1, 1, 1)?);
    let mut product = |a, b| ctx.mul(a, b);
    let [re_cos, re_sin] = [product(re, cosine)?, product(re, sine)?];
    let [im_cos, im_sin] = [product(im, cosine)?, product(im, sine)?];
    let (less, more) = (ScalarFn::Binary(BinaryFn::Sub), ScalarFn::Binary(BinaryFn::Add));
    let (to_re, to_im) = if inverse { (less, more) } else { (more, less) };
    let parts = [ctx.map(to_re, &[re_cos, im_sin])?, ctx.map(to_im, &[im_cos, re_sin])?];
    ctx.concat(&parts, rank - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::testing::apply;
    use orch_interp::{EvalOptions, evaluate_node};
    use orch_ir::{Attribute, DType, OpaqueKind, OpaqueOp, PrimOp, Shape};

    /// The largest difference between the rule and the routine of the interpreter.
    fn difference(shape: &[usize], axis: i64, length: usize, (inverse, onesided): (bool, bool)) -> f64 {
        let elements: usize = shape.iter().product();
        let values: Vec<f32> = (0..elements).map(|at| ((at * 37 + 11) % 23) as f32 / 11.0 - 1.0).collect();
        let call = apply("DFT", 20).floats(shape, &values).on(Tensor::scalar(length as i64));
        let call = call.on(Tensor::scalar(axis)).with("inverse", Attribute::Int(inverse.into()));
        let (dims, given) = call.with("onesided", Attribute::Int(onesided.into())).first();
        let name = "DFT";
        let ints = vec![axis, length as i64, inverse.into(), onesided.into()];
        let kind = OpaqueKind::Routine { name, ints, floats: Vec::new(), texts: Vec::new() };
        let results = vec![(DType::F32, Shape::from(dims))];
        let op = PrimOp::Opaque(Box::new(OpaqueOp { kind, results }));
        let x = Tensor::from_vec(shape, values);
        let expected = evaluate_node(&op, &[&x], &EvalOptions::wide()).expect("it is valid")[0].to_f64();
        assert_eq!(given.len(), expected.len());
        let reach = expected.iter().fold(1.0f64, |reach, value| reach.max(value.abs()));
        given.iter().zip(&expected).fold(0.0, |most, (a, b)| (a - b).abs().max(most)) / reach
    }

    #[test]
    fn transforms_of_all_kinds() {
        for (shape, axis, length) in [
            (&[2, 8, 1][..], 1, 8),
            (&[2, 8, 2], 1, 8),
            (&[7, 3, 2], 0, 7),
            (&[2, 5, 3, 1], 1, 9),
            (&[2, 12, 2], 1, 6),
            (&[1, 1, 2], 1, 1),
        ] {
            for inverse in [false, true] {
                for onesided in [false, true] {
                    let error = difference(shape, axis, length, (inverse, onesided));
                    assert!(error < 1e-6, "{shape:?} {axis} {length} {inverse} {onesided}: {error}");
                }
            }
        }
    }

    #[test]
    fn long_transforms_have_divisors() {
        assert_eq!(long_divisor(4096), Some(64));
        assert_eq!(long_divisor(2 * 1021), Some(1021));
        assert_eq!((long_divisor(2053), long_divisor(2 * 2053)), (None, None));
        for (shape, length, kind) in [
            (&[1, 2040, 1][..], 2048, (false, true)),
            (&[1, 2048, 2], 2048, (false, false)),
            (&[1, 2050, 2], 2048, (true, false)),
            (&[2, 3000, 1], 3000, (false, false)),
        ] {
            assert!(difference(shape, 1, length, kind) < 1e-5, "{shape:?} {length} {kind:?}");
        }
    }
}
