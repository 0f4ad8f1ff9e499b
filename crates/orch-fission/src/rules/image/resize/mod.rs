//! Resize and Upsample: an image under another size, one axis after the other. Nearest elements are a selection; linear
//! and cubic interpolation is a weighted sum of a few selections, or where many elements take part (antialiasing) a
//! product with a matrix.
//!
//! Which position reads what with which weight is computed when compiling, in f64; elements in f32 at least, integers
//! round to nearest.

mod coordinates;
mod geometry;
mod kernel;

use crate::registry::{Applied, one};
use crate::rules::index::select_along;
use crate::{Call, Context, RuleError};
use coordinates::Coordinates;
use geometry::{AxisSize, Crop};
use kernel::{Nearest, ResizeKernel};
use orch_ir::{BinaryFn, DType, Tensor, TensorId, UnaryFn};

/// Beyond this many taps per element a contraction is considered.
const MAX_SUMMED_TAPS: usize = 4;

/// How many multiplications of a contraction one tap of a sum is worth.
const CONTRACTED_PER_TAP: usize = 16;

/// How positions of the result become elements.
struct Sampling {
    coordinates: Coordinates,
    kernel: ResizeKernel,
    /// Positions outside take no part; else they read the border.
    exclude_outside: bool,
    /// What coordinates outside read, where the coordinates can be outside at all.
    extrapolation: f64,
}

pub(super) fn resize(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    if call.opset() < 11 {
        return upsample(ctx, call);
    }
    let sampling = Sampling {
        coordinates: Coordinates::read(call)?,
        kernel: ResizeKernel::read(call)?,
        exclude_outside: call.flag_or("exclude_outside", false)?,
        extrapolation: call.float_or("extrapolation_value", 0.0)?,
    };
    let sizes = geometry::of_resize(ctx, call, &ctx.shape(x), sampling.coordinates.crops())?;
    one(resampled(ctx, x, sizes, &sampling)?)
}

/// Upsample, and Resize before version 11: scales alone, from position `x / scale`.
pub(super) fn upsample(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let kernel = match call.text_or("mode", "nearest")? {
        "nearest" => ResizeKernel::Nearest(Nearest::FloorOrCeil),
        "linear" | "bilinear" => ResizeKernel::Linear { antialias: false },
        other => return Err(RuleError::invalid(format!("mode is {other}, expected nearest or linear"))),
    };
    let sizes = geometry::of_upsample(ctx, call, &ctx.shape(x))?;
    let sampling =
        Sampling { coordinates: Coordinates::Asymmetric, kernel, exclude_outside: false, extrapolation: 0.0 };
    one(resampled(ctx, x, sizes, &sampling)?)
}

/// All axes, those that shrink most first.
fn resampled(
    ctx: &mut Context<'_>,
    x: TensorId,
    mut sizes: Vec<AxisSize>,
    sampling: &Sampling,
) -> Result<TensorId, RuleError> {
    let dtype = ctx.dtype(x);
    sizes.sort_by(|lhs, rhs| lhs.scale.total_cmp(&rhs.scale));
    sizes.retain(|size| !size.is_identity());
    if matches!(sampling.kernel, ResizeKernel::Nearest(_)) {
        return sizes.iter().try_fold(x, |y, size| resampled_axis(ctx, y, size, sampling));
    }
    let mut y = if dtype.is_float() { ctx.widen(x)? } else { ctx.cast(x, DType::F32)? };
    for size in &sizes {
        y = resampled_axis(ctx, y, size, sampling)?;
    }
    if !dtype.is_float() {
        y = ctx.unary(UnaryFn::RoundEven, y)?;
    }
    ctx.cast(y, dtype)
}

/// One axis.
fn resampled_axis(
    ctx: &mut Context<'_>,
    x: TensorId,
    size: &AxisSize,
    sampling: &Sampling,
) -> Result<TensorId, RuleError> {
    if size.to > 0 && size.from == 0 {
        return Err(RuleError::invalid(format!("axis {} is empty and cannot grow", size.axis)));
    }
    let mut outside = vec![false; size.to];
    let mut rows: Vec<Vec<(usize, f64)>> = Vec::with_capacity(size.to);
    for (position, outside) in outside.iter_mut().enumerate() {
        let at = sampling.coordinates.source(position, size);
        *outside = sampling.coordinates.crops() && !(0.0..=size.from as f64 - 1.0).contains(&at);
        rows.push(sampling.kernel.taps(at, size, sampling.exclude_outside));
    }
    let y = weighted(ctx, x, size, &rows)?;
    if !outside.contains(&true) {
        return Ok(y);
    }
    let mut dims = vec![1; ctx.rank(y)];
    dims[size.axis] = size.to;
    let outside = ctx.tensor(Tensor::from_bools(dims, &outside));
    let value = ctx.scalar_like(y, sampling.extrapolation);
    ctx.select(outside, value, y)
}

/// Each position of the result is a weighted sum of elements along the axis.
fn weighted(
    ctx: &mut Context<'_>,
    x: TensorId,
    size: &AxisSize,
    rows: &[Vec<(usize, f64)>],
) -> Result<TensorId, RuleError> {
    let taps = rows.iter().map(Vec::len).max().unwrap_or(0);
    if rows.iter().all(|row| matches!(row[..], [(_, 1.0)])) {
        return select_along(ctx, x, size.axis, rows.iter().map(|row| row[0].0).collect());
    }
    if taps > MAX_SUMMED_TAPS && size.from <= taps.saturating_mul(CONTRACTED_PER_TAP) {
        return contracted(ctx, x, size, rows);
    }
    let mut dims = vec![1; ctx.rank(x)];
    dims[size.axis] = size.to;
    let mut sum = None;
    let rows: Vec<Vec<(usize, f64)>> = rows.iter().map(|row| lengthened(row, taps)).collect();
    for tap in 0..taps {
        let (positions, weights): (Vec<usize>, Vec<f64>) = rows.iter().map(|row| row[tap]).unzip();
        let weights = ctx.tensor(Tensor::from_f64(ctx.dtype(x), dims.clone(), &weights));
        let selected = select_along(ctx, x, size.axis, positions)?;
        let term = ctx.mul(selected, weights)?;
        sum = Some(match sum {
            None => term,
            Some(sum) => ctx.binary(BinaryFn::Add, sum, term)?,
        });
    }
    sum.ok_or_else(|| RuleError::invalid("a resize reads nothing"))
}

/// A row of so many taps with the same sum: the first one in halves of halves, all of which are exact. Taps of weight 0
/// would make infinities NaN.
fn lengthened(row: &[(usize, f64)], taps: usize) -> Vec<(usize, f64)> {
    let mut row = row.to_vec();
    while row.len() < taps {
        row[0].1 /= 2.0;
        row.insert(1, row[0]);
    }
    row
}

/// The same as a product with a matrix `[to, from]`. An element that is not finite makes its whole line NaN or infinite,
/// because it is multiplied by the zeros of the matrix, too.
fn contracted(
    ctx: &mut Context<'_>,
    x: TensorId,
    size: &AxisSize,
    rows: &[Vec<(usize, f64)>],
) -> Result<TensorId, RuleError> {
    let mut matrix = vec![0.0; size.to * size.from];
    for (row, taps) in rows.iter().enumerate() {
        taps.iter().for_each(|&(position, weight)| matrix[row * size.from + position] += weight);
    }
    let matrix = ctx.tensor(Tensor::from_f64(ctx.dtype(x), [size.to, size.from], &matrix));
    let rank = ctx.rank(x);
    let fresh =
        u8::try_from(rank).map_err(|_| RuleError::unsupported(format!("a tensor of {rank} dimensions")))?;
    let source: Vec<u8> = (0..fresh).collect();
    let summed = source[size.axis];
    let result: Vec<u8> = source.iter().map(|&label| if label == summed { fresh } else { label }).collect();
    ctx.contract(x, matrix, [&source, &[fresh, summed], &result])
}

/// What the crop of an axis that is not cropped is.
const WHOLE: Crop = Crop { start: 0.0, end: 1.0 };

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    fn resized(x: &[f32], size: i64, attributes: &[(&str, &str)]) -> Vec<f64> {
        let mut call = apply("Resize", 19).floats(&[1, x.len()], x).without().without().ints(&[1, size]);
        for (name, value) in attributes {
            call = call.with(name, Attribute::String((*value).to_owned()));
        }
        call.first().1
    }

    #[test]
    fn nearest_elements_by_coordinate_mode() {
        let x = [1.0, 2.0, 3.0, 4.0];
        let nearest = |mode: &str, rounding: &str| {
            resized(&x, 8, &[("coordinate_transformation_mode", mode), ("nearest_mode", rounding)])
        };
        let doubled = [1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0];
        assert_eq!(nearest("asymmetric", "floor"), doubled);
        assert_eq!(nearest("half_pixel", "round_prefer_floor"), doubled);
        assert_eq!(nearest("asymmetric", "ceil"), [1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 4.0]);
    }

    #[test]
    fn interpolation_keeps_constants_and_ramps() {
        for mode in ["linear", "cubic"] {
            let attributes = [("mode", mode), ("coordinate_transformation_mode", "align_corners")];
            let flat = resized(&[5.0; 7], 11, &attributes);
            assert!(flat.iter().all(|value| (value - 5.0).abs() < 1e-5), "{mode} {flat:?}");
        }
        let attributes = [("mode", "linear"), ("coordinate_transformation_mode", "align_corners")];
        assert_eq!(resized(&[0.0, 1.0, 2.0], 5, &attributes), [0.0, 0.5, 1.0, 1.5, 2.0]);
    }

    /// An element of a row with fewer taps than others is no product of an infinity and 0.
    #[test]
    fn infinities_reach_what_they_are_read_for() {
        let x = [1.0, 2.0, f32::INFINITY, 4.0, 5.0, 6.0];
        for (mode, size) in [("linear", 11), ("linear", 16), ("cubic", 11)] {
            let y = resized(&x, size, &[("mode", mode), ("coordinate_transformation_mode", "align_corners")]);
            let unit = (size - 1) / 5;
            for (position, &value) in y.iter().enumerate() {
                let (at, exact) = (position as i64 / unit, position as i64 % unit == 0);
                if exact {
                    assert_eq!(value, f64::from(x[at as usize]), "{mode} {size} at {position}");
                } else {
                    let is_near = if mode == "linear" { (1..=2).contains(&at) } else { at <= 3 };
                    assert_eq!(value.is_infinite(), is_near, "{mode} {size}: {value} at {position}");
                }
            }
        }
    }

    #[test]
    fn antialiasing_averages() {
        let x: Vec<f32> = (0..64).map(|at| (at % 2) as f32).collect();
        let call = apply("Resize", 19).floats(&[1, 64], &x).without().without().ints(&[1, 4]);
        let call = call
            .with("mode", Attribute::String("linear".to_owned()))
            .with("antialias", Attribute::Int(1))
            .with("exclude_outside", Attribute::Int(1));
        let (_, values) = call.first();
        assert!(values.iter().all(|value| (value - 0.5).abs() < 0.05), "{values:?}");
    }

    #[test]
    fn one_of_scales_and_sizes_is_given() {
        let call = || apply("Resize", 13).floats(&[1, 2], &[1.0, 2.0]).without();
        assert!(call().run().is_err());
        assert!(call().floats(&[2], &[1.0, 2.0]).ints(&[1, 4]).run().is_err());
        assert_eq!(call().floats(&[2], &[1.0, 2.0]).first().0, [1, 4]);
        assert_eq!(call().floats(&[0], &[]).ints(&[1, 3]).first().0, [1, 3]);
        assert!(call().floats(&[2], &[1.0, -2.0]).run().is_err());
        assert!(call().floats(&[2], &[1.0, f32::INFINITY]).run().is_err());
    }
}
