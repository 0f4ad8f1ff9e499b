//! Random contractions and convolutions.

use super::reduce::random_window;
use super::{Generator, TensorFacts};
use crate::{Contract, ConvSpec, PrimOp, TensorId};

/// A sum of `count` products.
fn products(x: TensorFacts, y: TensorFacts, count: usize) -> TensorFacts {
    let reach = count as f64 * x.magnitude() * y.magnitude();
    TensorFacts::rounded(-reach, reach)
}

/// A contraction over random labels; the second operand is made to fit the first.
pub fn contract(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.float_of_rank(1..=4);
    let dims = g.dims(x);
    let lhs: Vec<u8> = (0..dims.len() as u8).collect();
    let (mut rhs, mut out, mut count, mut shape) = (Vec::new(), Vec::new(), 1, Vec::new());
    for (label, &extent) in lhs.iter().zip(&dims) {
        let (shared, kept) =
            *g.rng.choose(&[(true, true), (true, false), (true, false), (false, true), (false, true)]);
        if shared {
            rhs.push(*label);
            shape.push(extent);
        }
        if kept { out.push(*label) } else { count *= extent }
    }
    for label in 0..g.rng.below(3) as u8 {
        rhs.push(lhs.len() as u8 + label);
        shape.push(g.extent());
        out.push(lhs.len() as u8 + label);
    }
    let order = g.rng.permutation(rhs.len());
    let (rhs, shape): (Vec<u8>, Vec<usize>) = order.into_iter().map(|at| (rhs[at], shape[at])).unzip();
    let out = g.rng.permutation(out.len()).into_iter().map(|at| out[at]).collect();
    if shape.iter().product::<usize>() > g.options.max_elems {
        return None;
    }
    let y = weights(g, x, &shape);
    let facts = products(g.facts(x), g.facts(y), count);
    let (operands, lhs, rhs) = if g.rng.one_in(2) { ([x, y], lhs, rhs) } else { ([y, x], rhs, lhs) };
    g.add(PrimOp::Contract(Contract { lhs, rhs, out }), &operands, facts)
}

/// A second operand of this shape: an existing tensor, or a constant in -1..1.
fn weights(g: &mut Generator<'_>, like: TensorId, shape: &[usize]) -> TensorId {
    let dtype = g.graph.dtype(like);
    let existing = g.pick(|graph, id, facts| {
        graph.dtype(id) == dtype && graph.shape(id)[..] == *shape && facts.magnitude() <= 10.0
    });
    match existing {
        Some(id) if g.rng.one_in(2) => id,
        _ => g.floats(dtype, shape, -1.0, 1.0),
    }
}

/// One of the divisors of `n`.
fn divisor(g: &mut Generator<'_>, n: usize) -> usize {
    let divisors: Vec<usize> = (1..=n.max(1)).filter(|d| n.is_multiple_of(*d)).collect();
    *g.rng.choose(&divisors)
}

/// A convolution with constant weights: plain, grouped or depthwise.
pub fn conv(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.float_of_rank(3..=5);
    let dims = g.dims(x);
    let window = random_window(g, &dims)?;
    let groups = if g.rng.one_in(2) { 1 } else { divisor(g, dims[1]) };
    let filters = groups * (1 + g.rng.below(3));
    let shape = [&[filters, dims[1] / groups][..], &window.kernel].concat();
    let w = weights(g, x, &shape);
    let facts = products(g.facts(x), g.facts(w), shape[1..].iter().product());
    g.add(PrimOp::Conv(ConvSpec { window, groups }), &[x, w], facts)
}

/// A transposed convolution with constant weights.
pub fn conv_transpose(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.float_of_rank(3..=5);
    let dims = g.dims(x);
    let window = random_window(g, &dims)?;
    let groups = if g.rng.one_in(2) { 1 } else { divisor(g, dims[1]) };
    let output_padding = window.strides.iter().map(|&stride| g.rng.below(stride)).collect();
    let shape = [&[dims[1], 1 + g.rng.below(3)][..], &window.kernel].concat();
    let w = weights(g, x, &shape);
    let count = dims[1] / groups * window.kernel.iter().product::<usize>();
    let facts = products(g.facts(x), g.facts(w), count);
    let spec = ConvSpec { window, groups };
    // Either, and nothing is drawn for it.
    let may_pad = count.is_multiple_of(2);
    g.add(PrimOp::ConvTranspose { spec, output_padding, may_pad }, &[x, w], facts)
}
