//! Gradients of pooling. f16 and bf16 compute in f32.

use super::pooling::{Pool, Windows, batched, unbatched};
use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, checked, invalid, unsupported};
use orch_ir::{Attribute, DType, Tensor};

/// The most elements of a table of shares.
const MAX_SHARES: usize = 1 << 20;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule(
        "aten.max_pool2d_with_indices_backward.default",
        "grad_output self kernel_size stride padding dilation ceil_mode indices",
        max,
    ),
    rule(
        "aten.avg_pool2d_backward.default",
        "grad_output self kernel_size stride padding ceil_mode count_include_pad divisor_override",
        average,
    ),
    rule("aten._adaptive_avg_pool2d_backward.default", "grad_output self", adaptive),
];

/// Each gradient is added at the position that its window took.
fn max(emitter: &mut Emitter, call: &Call) -> Applied {
    let like = call.float_tensor("self")?;
    let x = batched(emitter, like, 2)?;
    let gradient = batched(emitter, call.float_tensor("grad_output")?, 2)?;
    let indices = batched(emitter, call.int_tensor("indices")?, 2)?;
    if gradient.shape != indices.shape || gradient.shape[..2] != x.shape[..2] || gradient.dtype != x.dtype {
        let (gradient, indices) = (gradient.describe(), indices.describe());
        return invalid(format!("the gradient {gradient} at {indices} of {}", x.describe()));
    }
    let planes = x.shape[0] * x.shape[1];
    let (plane, windows) = (x.shape[2] * x.shape[3], gradient.shape[2] * gradient.shape[3]);
    emitter.check_indices(&indices, 0, plane as i64)?;
    let updates = emitter.widen(&gradient);
    let updates = emitter.reshape(&updates, [planes, windows])?;
    let indices = emitter.reshape(&indices, [planes, windows])?;
    let zeros = emitter.zeros(updates.dtype, &[planes, plane].into())?;
    let attributes = [("axis", Attribute::Int(1)), ("reduction", Attribute::String("add".to_owned()))];
    let result = (zeros.dtype, zeros.shape.clone());
    let sums = emitter.one("ScatterElements", &[&zeros, &indices, &updates], &attributes, result);
    finish(emitter, &sums, &x, like)
}

fn finish(emitter: &mut Emitter, y: &Val, x: &Val, like: &Val) -> Applied {
    let y = emitter.reshape(y, x.shape.to_vec())?;
    let y = emitter.cast(&y, x.dtype);
    one(unbatched(emitter, &y, like)?)
}

/// Each gradient, divided as its window was, is added to all elements of the window: a transposed convolution with ones.
fn average(emitter: &mut Emitter, call: &Call) -> Applied {
    let like = call.float_tensor("self")?;
    let x = batched(emitter, like, 2)?;
    let gradient = batched(emitter, call.float_tensor("grad_output")?, 2)?;
    let pool = Pool::read(call, &x)?;
    if gradient.shape[..2] != x.shape[..2] || gradient.shape[2..] != pool.to[..] || gradient.dtype != x.dtype
    {
        return invalid(format!("the gradient {} of windows {:?}", gradient.describe(), pool.to));
    }
    let wide = emitter.widen(&gradient);
    let divisors = pool.divisors(emitter, call, wide.dtype)?;
    let shares = emitter.binary("Div", &wide, &divisors)?;
    let planes = x.shape[0] * x.shape[1];
    let shares = emitter.reshape(&shares, [planes, 1, pool.to[0], pool.to[1]])?;
    let spread = spread(emitter, &shares, &pool)?;
    finish(emitter, &spread, &x, like)
}

/// What windows give to elements, of the operand's extents: without the padding, with zeros where no window reaches.
fn spread(emitter: &mut Emitter, shares: &Val, pool: &Pool) -> Emitted {
    let one = emitter.scalar(shares.dtype, 1.0);
    let ones = emitter.full(&one, &[1, 1, pool.kernel[0], pool.kernel[1]].into())?;
    let strides = Attribute::Ints(pool.strides.iter().map(|&stride| stride as i64).collect());
    let full = |dim: usize| {
        let last = (pool.to[dim] - 1).checked_mul(pool.strides[dim])?;
        last.checked_add(pool.kernel[dim])
    };
    let (Some(rows), Some(columns)) = (full(0), full(1)) else { return unsupported("windows that large") };
    let shape = checked(vec![shares.shape[0], 1, rows, columns])?;
    let full = emitter.one("ConvTranspose", &[shares, &ones], &[("strides", strides)], (shares.dtype, shape));
    let zero = emitter.scalar(shares.dtype, 0.0);
    let low = |dim: usize| -(pool.padding[dim] as i64);
    let high = |dim: usize, extent: usize| (pool.from[dim] + pool.padding[dim]) as i64 - extent as i64;
    emitter.pad(&full, &[0, 0, low(0), low(1)], &[0, 0, high(0, rows), high(1, columns)], &zero)
}

/// Each element gets the shares of the windows that it is in: those of all others are zero. `A^T g B`, where row `i` of
/// `A: [windows, elements]` has one over the length of window `i` at its elements.
fn adaptive(emitter: &mut Emitter, call: &Call) -> Applied {
    let like = call.float_tensor("self")?;
    let x = batched(emitter, like, 2)?;
    let gradient = batched(emitter, call.float_tensor("grad_output")?, 2)?;
    let (from, to) = ([x.shape[2], x.shape[3]], [gradient.shape[2], gradient.shape[3]]);
    if gradient.shape[..2] != x.shape[..2] || gradient.dtype != x.dtype || to.contains(&0) {
        return invalid(format!("the gradient {} of {}", gradient.describe(), x.describe()));
    }
    let planes = x.shape[0] * x.shape[1];
    let wide = emitter.widen(&gradient);
    if (0..2).all(|dim| from[dim].is_multiple_of(to[dim])) {
        let sizes = [from[0] / to[0], from[1] / to[1]];
        let shares = emitter.binary_scalar("Div", &wide, (sizes[0] * sizes[1]) as f64)?;
        let shares = emitter.reshape(&shares, [planes, to[0], 1, to[1], 1])?;
        let repeated = emitter.expand(&shares, &[planes, to[0], sizes[0], to[1], sizes[1]].into())?;
        return finish(emitter, &repeated, &x, like);
    }
    // [p, h', w'] -> [p, h', w] -> [p, w, h'] -> [p, w, h] -> [p, h, w]
    let columns = shares_of(emitter, wide.dtype, from[1], to[1])?;
    let rows = shares_of(emitter, wide.dtype, from[0], to[0])?;
    let y = emitter.reshape(&wide, [planes * to[0], to[1]])?;
    let y = emitter.matmul(&y, &columns)?;
    let y = emitter.reshape(&y, [planes, to[0], from[1]])?;
    let y = emitter.transpose_last(&y)?;
    let y = emitter.reshape(&y, [planes * from[1], to[0]])?;
    let y = emitter.matmul(&y, &rows)?;
    let y = emitter.reshape(&y, [planes, from[1], from[0]])?;
    let y = emitter.transpose_last(&y)?;
    finish(emitter, &y, &x, like)
}

/// `[windows, elements]`: what each element of a window counts in its mean.
fn shares_of(emitter: &mut Emitter, dtype: DType, extent: usize, count: usize) -> Emitted {
    let windows = Windows::new(extent, count)?;
    let shape = checked(vec![count, extent])?;
    if shape.elems() > MAX_SHARES {
        return unsupported(format!("the gradient of {count} windows over {extent} elements"));
    }
    let mut shares = vec![0.0; shape.elems()];
    for (window, (&start, &length)) in windows.starts.iter().zip(&windows.lengths).enumerate() {
        shares[window * extent + start..][..length].fill(1.0 / length as f64);
    }
    emitter.table(Tensor::from_f64(dtype, shape, &shares))
}
