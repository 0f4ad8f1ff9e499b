//! GridSample: reads `x [n, c, d_0, .., d_r-1]` at the coordinates of `grid [n, e_0, .., e_r-1, r]`, which are in `-1..1`, that of
//! the *last* dimension of `x` first.
//!
//! ```text
//! position of a coordinate g along a dimension of extent d:     (g + 1) / 2 * (d - 1) with aligned corners, ((g + 1) * d - 1) / 2
//! taps of a position p, with f = floor(p) and t = p - f:        nearest: round(p)     linear: f, f + 1     cubic: f - 1, .., f + 2
//!
//! x as [c, n * d_0 * .. * d_r-1]                     one gather along the last axis, at
//! indices, weights [n, taps_0, .., taps_r-1, points] n * d_0 * d_1 * .. + tap_0 * d_1 * .. + tap_1 * .. + ..
//! result [c, n, points]                              the sum over taps of weighted elements
//! ```

use crate::build::checked_shape;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, CompareFn, DType, PrimOp, ReduceOp, Shape, TensorId, UnaryFn};

/// How values between elements are found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interpolation {
    /// The element at the position rounded to nearest, ties to even.
    Nearest,
    /// Between the two neighbours.
    Linear,
    /// Over four neighbours by cubic convolution with `a = -0.75`.
    Cubic,
}

/// What is read outside of the tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// How a grid is sampled.
struct Sampling {
    interpolation: Interpolation,
    padding: Padding,
    align_corners: bool,
}

/// The elements that are read for each point: tensors `[n, taps_0, .., points]`, 1 where they do not vary.
struct Taps {
    /// Their indices, within the extent.
    index: TensorId,
    /// What they are multiplied with; `None` is 1.
    weight: Option<TensorId>,
    /// Where they count; `None` is everywhere.
    inside: Option<TensorId>,
}

pub(super) fn grid_sample(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let (x, grid) = (call.tensor(0)?, call.tensor(1)?);
    let sampling = Sampling::read(call)?;
    let (shape, grid_shape, dtype) = (ctx.shape(x), ctx.shape(grid), ctx.dtype(x));
    let rank = shape.rank().saturating_sub(2);
    let fits = (1..=3).contains(&rank)
        && grid_shape.rank() == rank + 2
        && grid_shape[0] == shape[0]
        && grid_shape[rank + 1] == rank;
    if !fits {
        return Err(RuleError::invalid(format!(
            "a grid of shape {grid_shape} over an operand of shape {shape}"
        )));
    }
    let result = checked_shape([&shape[..2], &grid_shape[1..=rank]].concat())?;
    let points = grid_shape[1..=rank].iter().product();
    let plane = shape[2..].iter().product::<usize>();
    if plane == 0 || result.elems() == 0 {
        return one(ctx.full(dtype, 0.0, &result)?);
    }
    let computed = if dtype.is_float() && dtype != DType::F64 { DType::F32 } else { DType::F64 };
    let x = ctx.cast(x, computed)?;
    let grid = ctx.cast(grid, computed)?;
    let grid = ctx.reshape(grid, vec![shape[0], points, rank])?;
    let taps = taps_of_planes(ctx, grid, &shape, &sampling)?;
    let sampled = weighted_sum(ctx, x, &taps)?;
    // [c, n, points]
    let sampled = ctx.transpose(sampled, &[1, 0, 2])?;
    let sampled = ctx.reshape(sampled, result.to_vec())?;
    one(ctx.cast(sampled, dtype)?)
}

impl Sampling {
    fn read(call: &Call<'_>) -> Result<Self, RuleError> {
        let interpolation = match call.text_or("mode", "linear")? {
            "linear" | "bilinear" => Interpolation::Linear,
            "nearest" => Interpolation::Nearest,
            "cubic" | "bicubic" => Interpolation::Cubic,
            other => {
                return Err(RuleError::invalid(format!(
                    "mode is {other}, expected linear, nearest or cubic"
                )));
            }
        };
        let padding = match call.text_or("padding_mode", "zeros")? {
            "zeros" => Padding::Zeros,
            "border" => Padding::Border,
            "reflection" => Padding::Reflection,
            other => {
                return Err(RuleError::invalid(format!(
                    "padding_mode is {other}, expected zeros, border or reflection"
                )));
            }
        };
        Ok(Self { interpolation, padding, align_corners: call.flag_or("align_corners", false)? })
    }
}

/// The taps of each point in `x` as `[c, n * plane]`.
fn taps_of_planes(
    ctx: &mut Context<'_>,
    grid: TensorId,
    shape: &Shape,
    sampling: &Sampling,
) -> Result<Taps, RuleError> {
    let (extents, batch) = (&shape[2..], shape[0]);
    let (rank, points) = (extents.len(), ctx.shape(grid)[1]);
    let plane: usize = extents.iter().product();
    let index_type = if i32::try_from(batch * plane).is_ok() { DType::I32 } else { DType::I64 };
    let mut start = vec![1; rank + 2];
    start[0] = batch;
    let image = ctx.iota(index_type, start, 0)?;
    let mut all = Taps { index: image, weight: None, inside: None };
    for (dim, &extent) in extents.iter().enumerate() {
        let coordinate = ctx.slice_axis(grid, 2, rank - 1 - dim, 1)?;
        let mut dims = vec![1; rank + 2];
        (dims[0], dims[rank + 1]) = (batch, points);
        let coordinate = ctx.reshape(coordinate, dims)?;
        let taps = taps_along(ctx, coordinate, (dim, extent), sampling)?;
        let index = ctx.cast(taps.index, index_type)?;
        let before = ctx.binary_scalar(BinaryFn::Mul, all.index, extent as f64)?;
        all = Taps {
            index: ctx.add(before, index)?,
            weight: both(ctx, BinaryFn::Mul, all.weight, taps.weight)?,
            inside: both(ctx, BinaryFn::And, all.inside, taps.inside)?,
        };
    }
    Ok(all)
}

/// A function of two values, of which one or both may not be there.
fn both(
    ctx: &mut Context<'_>,
    f: BinaryFn,
    a: Option<TensorId>,
    b: Option<TensorId>,
) -> Result<Option<TensorId>, RuleError> {
    match (a, b) {
        (Some(a), Some(b)) => ctx.binary(f, a, b).map(Some),
        (one, other) => Ok(one.or(other)),
    }
}

/// The taps along one dimension of `coordinate [n, 1, .., points]`; their indices as floats.
fn taps_along(
    ctx: &mut Context<'_>,
    coordinate: TensorId,
    (dim, extent): (usize, usize),
    sampling: &Sampling,
) -> Result<Taps, RuleError> {
    let mut position = position(ctx, coordinate, extent, sampling.align_corners)?;
    if sampling.padding == Padding::Border {
        // From here on all taps lie on the same side of the elements; at infinity there are no weights.
        position = clamp(ctx, position, [-2.0, extent as f64 + 1.0])?;
    }
    let (first, count) = match sampling.interpolation {
        Interpolation::Nearest => {
            let nearest = ctx.unary(UnaryFn::RoundEven, position)?;
            return within(ctx, nearest, None, extent, sampling);
        }
        Interpolation::Linear => (0.0, 2),
        Interpolation::Cubic => (-1.0, 4),
    };
    let mut dims = vec![1; ctx.rank(position)];
    dims[1 + dim] = count;
    let steps = ctx.iota(ctx.dtype(position), dims, 1 + dim)?;
    let steps = ctx.binary_scalar(BinaryFn::Add, steps, first)?;
    let floor = ctx.unary(UnaryFn::Floor, position)?;
    let fraction = ctx.sub(position, floor)?;
    let at = ctx.add(floor, steps)?;
    let distance = ctx.sub(fraction, steps)?;
    let distance = ctx.unary(UnaryFn::Abs, distance)?;
    let weight = match sampling.interpolation {
        Interpolation::Cubic => cubic_weight(ctx, distance)?,
        _ => subtracted_from(ctx, 1.0, distance)?,
    };
    within(ctx, at, Some(weight), extent, sampling)
}

/// A coordinate in `-1..1` as a position: -1 and 1 are the centres of the border elements, or their outer edges.
fn position(
    ctx: &mut Context<'_>,
    coordinate: TensorId,
    extent: usize,
    align_corners: bool,
) -> Result<TensorId, RuleError> {
    let extent = extent as f64;
    let from_start = ctx.binary_scalar(BinaryFn::Add, coordinate, 1.0)?;
    if align_corners {
        return ctx.binary_scalar(BinaryFn::Mul, from_start, (extent - 1.0) / 2.0);
    }
    let scaled = ctx.binary_scalar(BinaryFn::Mul, from_start, extent / 2.0)?;
    ctx.binary_scalar(BinaryFn::Sub, scaled, 0.5)
}

/// The cubic convolution kernel at a distance up to 2.
fn cubic_weight(ctx: &mut Context<'_>, distance: TensorId) -> Result<TensorId, RuleError> {
    const A: f64 = -0.75;
    let near = polynomial(ctx, distance, [A + 2.0, -(A + 3.0), 0.0, 1.0])?;
    let far = polynomial(ctx, distance, [A, -5.0 * A, 8.0 * A, -4.0 * A])?;
    let is_near = ctx.compare_scalar(CompareFn::Le, distance, 1.0)?;
    ctx.select(is_near, near, far)
}

/// A cubic polynomial, the coefficient of the highest power first.
fn polynomial(
    ctx: &mut Context<'_>,
    x: TensorId,
    [highest, rest @ ..]: [f64; 4],
) -> Result<TensorId, RuleError> {
    let mut value = ctx.binary_scalar(BinaryFn::Mul, x, highest)?;
    for (at, coefficient) in rest.into_iter().enumerate() {
        value = ctx.binary_scalar(BinaryFn::Add, value, coefficient)?;
        if at < 2 {
            value = ctx.mul(value, x)?;
        }
    }
    Ok(value)
}

/// The taps at whole positions, which may lie outside of the extent.
fn within(
    ctx: &mut Context<'_>,
    position: TensorId,
    weight: Option<TensorId>,
    extent: usize,
    sampling: &Sampling,
) -> Result<Taps, RuleError> {
    let last = extent as f64 - 1.0;
    let mut inside = None;
    let position = match sampling.padding {
        Padding::Zeros => {
            let start = ctx.compare_scalar(CompareFn::Ge, position, 0.0)?;
            let end = ctx.compare_scalar(CompareFn::Le, position, last)?;
            inside = Some(ctx.binary(BinaryFn::And, start, end)?);
            position
        }
        Padding::Border => position,
        // The elements and their mirror image, without the elements at the border twice, repeat.
        Padding::Reflection if sampling.align_corners && extent == 1 => position,
        Padding::Reflection if sampling.align_corners => folded(ctx, position, 2.0 * last, 2.0 * last)?,
        Padding::Reflection => folded(ctx, position, 2.0 * last + 2.0, 2.0 * last + 1.0)?,
    };
    Ok(Taps { index: clamp(ctx, position, [0.0, last])?, weight, inside })
}

/// `min(p, mirror - p)` for a position modulo `period`.
fn folded(
    ctx: &mut Context<'_>,
    position: TensorId,
    period: f64,
    mirror: f64,
) -> Result<TensorId, RuleError> {
    let periods = ctx.binary_scalar(BinaryFn::Div, position, period)?;
    let periods = ctx.unary(UnaryFn::Floor, periods)?;
    let before = ctx.binary_scalar(BinaryFn::Mul, periods, period)?;
    let within = ctx.sub(position, before)?;
    let mirrored = subtracted_from(ctx, mirror, within)?;
    ctx.binary(BinaryFn::Min, within, mirrored)
}

fn clamp(ctx: &mut Context<'_>, x: TensorId, [low, high]: [f64; 2]) -> Result<TensorId, RuleError> {
    let x = ctx.binary_scalar(BinaryFn::Max, x, low)?;
    ctx.binary_scalar(BinaryFn::Min, x, high)
}

/// `value - x`.
fn subtracted_from(ctx: &mut Context<'_>, value: f64, x: TensorId) -> Result<TensorId, RuleError> {
    let value = ctx.scalar_like(x, value);
    ctx.sub(value, x)
}

/// `[c, n, points]`: the taps of `x [n, c, ..]`, weighted and added up.
fn weighted_sum(ctx: &mut Context<'_>, x: TensorId, taps: &Taps) -> Result<TensorId, RuleError> {
    let shape = ctx.shape(x);
    let [batch, channels] = [shape[0], shape[1]];
    let planes = ctx.reshape(x, vec![batch, channels, shape[2..].iter().product()])?;
    let planes = ctx.transpose(planes, &[1, 0, 2])?;
    let planes = ctx.reshape(planes, vec![channels, shape.elems() / channels])?;
    // [c, n, taps_0, .., points]
    let mut value = ctx.emit(PrimOp::Take { axis: 1 }, &[planes, taps.index])?;
    if let Some(weight) = taps.weight {
        value = ctx.mul(value, weight)?;
    }
    if let Some(inside) = taps.inside {
        let zero = ctx.scalar_like(value, 0.0);
        value = ctx.select(inside, value, zero)?;
    }
    let axes: Vec<usize> = (2..shape.rank()).collect();
    ctx.reduce(ReduceOp::Sum, value, &axes)
}

#[cfg(test)]
mod tests {
    use crate::rules::testing::apply;
    use orch_ir::Attribute;

    /// What is read of `[0, 1, 2, 3]` at coordinates.
    fn sampled(coordinates: &[f32], mode: &str, padding: &str, align_corners: bool) -> Vec<f64> {
        let call = apply("GridSample", 20).floats(&[1, 1, 4], &[0.0, 1.0, 2.0, 3.0]);
        let call = call.floats(&[1, coordinates.len(), 1], coordinates);
        let call = call
            .with("mode", Attribute::String(mode.into()))
            .with("padding_mode", Attribute::String(padding.into()))
            .with("align_corners", Attribute::Int(align_corners.into()));
        call.first().1
    }

    #[test]
    fn beyond_the_border_all_taps_read_the_border() {
        let far = [f32::NEG_INFINITY, -9.0, 9.0, f32::INFINITY];
        for mode in ["nearest", "linear", "cubic"] {
            assert_eq!(sampled(&far, mode, "border", true), [0.0, 0.0, 3.0, 3.0], "{mode}");
            assert_eq!(sampled(&far, mode, "zeros", true), [0.0; 4], "{mode}");
        }
    }

    #[test]
    fn reflection_repeats_the_border_only_without_aligned_corners() {
        let at = |align: bool| {
            let coordinates = (-4..8).map(|position| {
                let position = position as f32;
                if align { position / 1.5 - 1.0 } else { (position + 0.5) / 2.0 - 1.0 }
            });
            sampled(&coordinates.collect::<Vec<_>>(), "nearest", "reflection", align)
        };
        assert_eq!(at(true), [2.0, 3.0, 2.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0, 1.0, 0.0, 1.0]);
        assert_eq!(at(false), [3.0, 2.0, 1.0, 0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 2.0, 1.0, 0.0]);
    }

    #[test]
    fn values_between_elements_are_interpolated() {
        // Positions 1.5, and -0.5, half of which is outside.
        assert_eq!(sampled(&[0.0, -1.0], "linear", "zeros", false), [1.5, 0.0]);
        assert_eq!(sampled(&[1.0], "linear", "zeros", false), [1.5]);
        assert_eq!(sampled(&[0.0], "cubic", "border", false), [1.5]);
        assert_eq!(sampled(&[1.0], "cubic", "border", true), [3.0]);
    }
}
