//! AveragePool: the mean of each window, of the elements that are not padding, or with `count_include_pad` of the
//! explicit padding too (never of what `ceil_mode` adds). f16 and bf16 are summed in f32.
//!
//! How many elements each window holds is known when compiling.

use super::pool_window;
use crate::registry::{Applied, one};
use crate::{Call, Context, RuleError};
use orch_ir::{BinaryFn, DType, PrimOp, ReduceOp, Shape, Tensor, TensorId, Window};

/// The most windows over one plane whose element counts are stored.
const MAX_WINDOWS: usize = 1 << 26;

pub(super) fn average_pool(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    let x = call.tensor(0)?;
    let (window, explicit_high) = pool_window(ctx, call, x)?;
    let include_padding = call.flag_or("count_include_pad", false)?;
    let dtype = ctx.dtype(x);
    let shape = ctx.shape(x);
    let x = ctx.widen(x)?;
    let sum = ctx.emit(PrimOp::Window { op: ReduceOp::Sum, window: window.clone() }, &[x])?;
    if ctx.shape(sum)[2..].iter().product::<usize>() > MAX_WINDOWS {
        return Err(RuleError::unsupported(format!("a result of shape {}", ctx.shape(sum))));
    }
    let counts: Vec<Vec<usize>> = (0..window.rank())
        .map(|dim| {
            let first = if include_padding { -(window.low[dim] as i64) } else { 0 };
            let beyond = shape[dim + 2] + if include_padding { explicit_high[dim] } else { 0 };
            counts(&window, dim, ctx.shape(sum)[dim + 2], first..beyond as i64)
        })
        .collect();
    let mean = divide(ctx, sum, &counts)?;
    one(ctx.cast(mean, dtype)?)
}

/// For each window along one dimension, how many of its positions are in `range`.
fn counts(window: &Window, dim: usize, windows: usize, range: std::ops::Range<i64>) -> Vec<usize> {
    let (stride, dilation) = (window.strides[dim] as i64, window.dilations[dim] as i64);
    let taps = window.kernel[dim] as i64;
    // How many positions `begin + tap * dilation` lie before `bound`.
    let before = |begin: i64, bound: i64| (bound - begin + dilation - 1).div_euclid(dilation).clamp(0, taps);
    (0..windows as i64)
        .map(|at| {
            let begin = at * stride - window.low[dim] as i64;
            (before(begin, range.end) - before(begin, range.start)) as usize
        })
        .collect()
}

/// `sum [n, c, e_0, ..]` divided by the product of the counts along each dimension.
fn divide(ctx: &mut Context<'_>, sum: TensorId, counts: &[Vec<usize>]) -> Result<TensorId, RuleError> {
    let uniform = |counts: &Vec<usize>| counts.windows(2).all(|pair| pair[0] == pair[1]);
    if counts.iter().all(uniform) {
        let count: usize = counts.iter().map(|counts| counts.first().copied().unwrap_or(1)).product();
        return ctx.binary_scalar(BinaryFn::Div, sum, count as f64);
    }
    let products = counts.iter().fold(vec![1usize], |outer, inner| {
        outer.iter().flat_map(|&count| inner.iter().map(move |&other| count * other)).collect()
    });
    let values: Vec<f64> = products.into_iter().map(|count| count as f64).collect();
    let shape: Shape = ctx.shape(sum)[2..].into();
    let dtype: DType = ctx.dtype(sum);
    let divisor = ctx.tensor(Tensor::from_f64(dtype, shape, &values));
    ctx.div(sum, divisor)
}
