//! Pooling over 1 to 3 spatial dimensions, with or without a batch.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, checked, invalid, unsupported};
use orch_ir::{Attribute, DType, Shape, Tensor};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule(
        "aten.max_pool2d_with_indices.default",
        "self kernel_size stride padding dilation ceil_mode",
        |emitter, call| max(emitter, call, 2),
    ),
    rule(
        "aten.max_pool3d_with_indices.default",
        "self kernel_size stride padding dilation ceil_mode",
        |emitter, call| max(emitter, call, 3),
    ),
    rule(
        "aten.avg_pool1d.default",
        "self kernel_size stride padding ceil_mode count_include_pad",
        |emitter, call| average(emitter, call, 1),
    ),
    rule(
        "aten.avg_pool2d.default",
        "self kernel_size stride padding ceil_mode count_include_pad divisor_override",
        |emitter, call| average(emitter, call, 2),
    ),
    rule(
        "aten.avg_pool3d.default",
        "self kernel_size stride padding ceil_mode count_include_pad divisor_override",
        |emitter, call| average(emitter, call, 3),
    ),
    rule("aten._adaptive_avg_pool2d.default", "self output_size", |emitter, call| adaptive(emitter, call, 2)),
    rule("aten._adaptive_avg_pool3d.default", "self output_size", |emitter, call| adaptive(emitter, call, 3)),
];

/// A sliding window; one entry per spatial dimension.
pub(super) struct Pool {
    pub kernel: Vec<usize>,
    pub strides: Vec<usize>,
    pub padding: Vec<usize>,
    pub dilations: Vec<usize>,
    /// The extents of the operand.
    pub from: Vec<usize>,
    /// The extents of the result.
    pub to: Vec<usize>,
}

impl Pool {
    /// Reads the window of a call over `x` of shape `[n, c, ..]`.
    pub fn read(call: &Call, x: &Val) -> Result<Self, Refusal> {
        let rank = x.rank() - 2;
        let kernel = call.extents("kernel_size", rank, 1)?;
        let strides = call.optional_ints("stride")?.unwrap_or_default();
        let strides = if strides.is_empty() { kernel.clone() } else { call.extents("stride", rank, 1)? };
        let mut pool = Self {
            kernel,
            strides,
            padding: call.extents("padding", rank, 0)?,
            dilations: call.extents("dilation", rank, 1)?,
            from: x.shape[2..].to_vec(),
            to: Vec::new(),
        };
        let too_much = |(&padding, &kernel): (&usize, &usize)| padding > kernel / 2;
        let steps = pool.kernel.iter().chain(&pool.strides).chain(&pool.dilations);
        if steps.clone().any(|&step| step == 0) || pool.padding.iter().zip(&pool.kernel).any(too_much) {
            return invalid(format!(
                "a window {:?} by {:?}, padded by {:?}, dilated by {:?}",
                pool.kernel, pool.strides, pool.padding, pool.dilations
            ));
        }
        let ceil = call.flag_or("ceil_mode", false)?;
        let to: Option<Vec<usize>> = (0..rank).map(|dim| pool.windows(dim, ceil)).collect();
        pool.to = to.ok_or_else(|| Refusal::Invalid(format!("no window fits into {}", x.describe())))?;
        Ok(pool)
    }

    /// The number of windows along a dimension. With `ceil` a last one may begin inside and end outside.
    fn windows(&self, dim: usize, ceil: bool) -> Option<usize> {
        let (padding, stride) = (self.padding[dim], self.strides[dim]);
        let spare = (self.from[dim] + 2 * padding).checked_sub(self.reach(dim)?)?;
        let mut windows = spare / stride + 1;
        if ceil && !spare.is_multiple_of(stride) && windows * stride < self.from[dim] + padding {
            windows += 1;
        }
        Some(windows)
    }

    fn reach(&self, dim: usize) -> Option<usize> {
        (self.kernel[dim] - 1).checked_mul(self.dilations[dim])?.checked_add(1)
    }

    /// Padding after each dimension so that the last window is complete; elements that no window reaches are cropped.
    fn high(&self) -> Vec<i64> {
        let high = |dim: usize| {
            let reached = (self.to[dim] - 1) * self.strides[dim] + self.reach(dim).unwrap_or(1);
            reached as i64 - (self.from[dim] + self.padding[dim]) as i64
        };
        (0..self.from.len()).map(high).collect()
    }

    /// By what the sum of each window is divided, as a tensor of the result's extents that broadcasts.
    pub fn divisors(&self, emitter: &mut Emitter, call: &Call, dtype: DType) -> Emitted {
        if call.has("divisor_override") {
            let divisor = call.int("divisor_override")?;
            return if divisor == 0 {
                invalid("the divisor is 0")
            } else {
                Ok(emitter.scalar_int(dtype, divisor))
            };
        }
        let include = call.flag_or("count_include_pad", true)?;
        let mut product = emitter.scalar(dtype, 1.0);
        for dim in 0..self.from.len() {
            let counts = self.counts(dim, include)?;
            let mut dims = vec![1; self.from.len()];
            dims[dim] = counts.len();
            let counts = if counts.iter().all(|count| *count == counts[0]) {
                emitter.scalar(dtype, counts[0])
            } else {
                emitter.table(Tensor::from_f64(dtype, dims, &counts))?
            };
            product = emitter.binary("Mul", &product, &counts)?;
        }
        Ok(product)
    }

    /// How many elements each window holds along a dimension: of the padding too if `include`, but never what is beyond it.
    fn counts(&self, dim: usize, include: bool) -> Result<Vec<f64>, Refusal> {
        const MAX_WINDOWS: usize = 1 << 20;
        if self.to[dim] > MAX_WINDOWS {
            return unsupported(format!("{} windows along one dimension", self.to[dim]));
        }
        let (padding, extent) = (self.padding[dim] as i64, self.from[dim] as i64);
        let range = if include { -padding..extent + padding } else { 0..extent };
        let count = |at: usize| {
            let begin = (at * self.strides[dim]) as i64 - padding;
            let end = (begin + self.kernel[dim] as i64).min(range.end);
            (end - begin.max(range.start)).max(0) as f64
        };
        Ok((0..self.to[dim]).map(count).collect())
    }
}

/// The operand as `[n, c, ..]`, for so many spatial dimensions.
pub(super) fn batched(emitter: &mut Emitter, x: &Val, spatial: usize) -> Emitted {
    match x.rank().checked_sub(spatial) {
        Some(2) => Ok(x.clone()),
        Some(1) => emitter.reshape(x, [&[1], &x.shape[..]].concat()),
        _ => invalid(format!("a window over {spatial} dimensions of {}", x.describe())),
    }
}

/// The result in the operand's form, with a batch or without.
pub(super) fn unbatched(emitter: &mut Emitter, y: &Val, like: &Val) -> Emitted {
    if y.rank() == like.rank() { Ok(y.clone()) } else { emitter.reshape(y, y.shape[1..].to_vec()) }
}

fn ints(values: &[usize]) -> Attribute {
    Attribute::Ints(values.iter().map(|&value| value as i64).collect())
}

/// Positions are those in one plane: ONNX counts through all planes.
fn max(emitter: &mut Emitter, call: &Call, spatial: usize) -> Applied {
    let like = call.tensor("self")?;
    let x = batched(emitter, like, spatial)?;
    let pool = Pool::read(call, &x)?;
    let pads = [pool.padding.clone(), pool.padding.clone()].concat();
    let attributes = [
        ("kernel_shape", ints(&pool.kernel)),
        ("strides", ints(&pool.strides)),
        ("pads", ints(&pads)),
        ("dilations", ints(&pool.dilations)),
        ("ceil_mode", Attribute::Int(call.flag_or("ceil_mode", false)?.into())),
    ];
    let shape = checked([&x.shape[..2], &pool.to].concat())?;
    let results = [(x.dtype, shape.clone()), (DType::I64, shape)];
    let results = emitter.many("MaxPool", &[Some(&x)], &attributes, &results);
    let plane: usize = x.shape[2..].iter().product();
    let plane = emitter.scalar_int(DType::I64, plane as i64);
    let indices = emitter.binary("Mod", &results[1], &plane)?;
    Ok(vec![Some(unbatched(emitter, &results[0], like)?), Some(unbatched(emitter, &indices, like)?)])
}

/// The sum of each window divided by what eager counts. f16 and bf16 in f32.
fn average(emitter: &mut Emitter, call: &Call, spatial: usize) -> Applied {
    let like = call.float_tensor("self")?;
    let x = batched(emitter, like, spatial)?;
    let pool = Pool::read(call, &x)?;
    let wide = emitter.widen(&x);
    let zero = emitter.scalar(wide.dtype, 0.0);
    let low: Vec<i64> = [0, 0].into_iter().chain(pool.padding.iter().map(|&amount| amount as i64)).collect();
    let high: Vec<i64> = [0, 0].into_iter().chain(pool.high()).collect();
    let padded = emitter.pad(&wide, &low, &high, &zero)?;
    let attributes = [("kernel_shape", ints(&pool.kernel)), ("strides", ints(&pool.strides))];
    let shape = checked([&x.shape[..2], &pool.to].concat())?;
    let mean = emitter.one("AveragePool", &[&padded], &attributes, (wide.dtype, shape));
    let area = pool.kernel.iter().try_fold(1usize, |area, &extent| area.checked_mul(extent));
    let area = emitter.scalar(wide.dtype, area.map_or(f64::INFINITY, |area| area as f64));
    let divisors = pool.divisors(emitter, call, wide.dtype)?;
    let factor = emitter.binary("Div", &area, &divisors)?;
    let y = emitter.binary("Mul", &mean, &factor)?;
    let y = emitter.cast(&y, x.dtype);
    one(unbatched(emitter, &y, like)?)
}

/// The most positions per dimension that windows of different extents read: they are stored.
const MAX_POSITIONS: usize = 1 << 20;

/// Window `i` of `n` over an extent `e` holds the elements from `floor(i e / n)` up to `ceil((i + 1) e / n)`. They are
/// gathered, with zeros after short ones, and summed.
fn adaptive(emitter: &mut Emitter, call: &Call, spatial: usize) -> Applied {
    let like = call.float_tensor("self")?;
    let x = batched(emitter, like, spatial)?;
    let to = call.extents("output_size", spatial, 1)?;
    if x.shape[2..].contains(&0) {
        return invalid(format!("a mean over no elements of {}", x.describe()));
    }
    let mut y = emitter.widen(&x);
    let mut divisors = emitter.scalar(y.dtype, 1.0);
    // [n, c, d, e] -> [n, c, d', k, e] -> [n, c, d', k, e', l]; then sums over k and l.
    let mut axes = Vec::new();
    for (dim, &count) in to.iter().enumerate() {
        let axis = 2 + 2 * dim;
        let windows = Windows::new(x.shape[dim + 2], count)?;
        y = windows.gathered(emitter, &y, axis)?;
        let mut dims = vec![1; spatial];
        dims[dim] = count;
        let counts: Vec<f64> = windows.lengths.iter().map(|&length| length as f64).collect();
        let counts = emitter.table(Tensor::from_f64(y.dtype, dims, &counts))?;
        divisors = emitter.binary("Mul", &divisors, &counts)?;
        axes.push(axis + 1);
    }
    let sum = emitter.reduce("ReduceSum", &y, &axes, false);
    let mean = emitter.binary("Div", &sum, &divisors)?;
    let mean = emitter.cast(&mean, x.dtype);
    one(unbatched(emitter, &mean, like)?)
}

/// The windows of adaptive pooling along one dimension.
pub(super) struct Windows {
    pub extent: usize,
    pub starts: Vec<usize>,
    pub lengths: Vec<usize>,
}

impl Windows {
    pub fn new(extent: usize, count: usize) -> Result<Self, Refusal> {
        if count > MAX_POSITIONS || extent > MAX_POSITIONS {
            return unsupported(format!("{count} windows over {extent} elements"));
        }
        let starts: Vec<usize> = (0..count).map(|at| at * extent / count).collect();
        let lengths = (0..count).map(|at| ((at + 1) * extent).div_ceil(count) - starts[at]).collect();
        Ok(Self { extent, starts, lengths })
    }

    /// Dimension `axis` as windows and their elements.
    fn gathered(&self, emitter: &mut Emitter, x: &Val, axis: usize) -> Emitted {
        let count = self.starts.len();
        let longest = self.lengths.iter().copied().max().unwrap_or(1);
        if count * longest == self.extent {
            return emitter.reshape(x, [&x.shape[..axis], &[count, longest], &x.shape[axis + 1..]].concat());
        }
        if count * longest > MAX_POSITIONS {
            return unsupported(format!("{count} windows of {longest} elements"));
        }
        let at = |window: usize, tap: usize| (self.starts[window] + tap).min(self.extent - 1) as i64;
        let every = || (0..count).flat_map(|window| (0..longest).map(move |tap| (window, tap)));
        let positions: Vec<i64> = every().map(|(window, tap)| at(window, tap)).collect();
        let positions = emitter.table(Tensor::from_vec([count, longest], positions))?;
        let gathered = emitter.gather(x, &positions, axis)?;
        let held: Vec<bool> = every().map(|(window, tap)| tap < self.lengths[window]).collect();
        let dims: Vec<usize> = [count, longest].into_iter().chain(vec![1; x.rank() - axis - 1]).collect();
        let held = emitter.table(Tensor::from_bools(Shape::from(dims), &held))?;
        let zero = emitter.scalar(x.dtype, 0.0);
        emitter.select(&held, &gathered, &zero)
    }
}
