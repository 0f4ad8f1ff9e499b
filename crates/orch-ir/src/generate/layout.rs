//! Random layout nodes: results have the values of their operand.

use super::{Generator, TensorFacts};
use crate::{DType, PadMode, PrimOp, Shape, Tensor, TensorId};

/// Any tensor.
fn any(g: &mut Generator<'_>) -> Option<TensorId> {
    g.pick(|_, _, _| true)
}

/// New dimensions, and repetition along dimensions of extent 1.
pub fn broadcast(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.pick(|graph, id, _| graph.shape(id).rank() <= 4)?;
    let (mut shape, mut dims) = (Vec::new(), Vec::new());
    for extent in g.dims(x) {
        while shape.len() < 5 && g.rng.one_in(4) {
            shape.push(g.extent());
        }
        dims.push(shape.len());
        shape.push(if extent == 1 { g.extent() } else { extent });
    }
    if g.rng.one_in(4) {
        shape.push(g.extent());
    }
    let facts = g.facts(x);
    g.add(PrimOp::Broadcast { shape: Shape::checked(shape)?, dims }, &[x], facts)
}

/// A permutation of the dimensions.
pub fn transpose(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.pick(|graph, id, _| graph.shape(id).rank() >= 2)?;
    let perm = g.rng.permutation(g.graph.shape(x).rank());
    let facts = g.facts(x);
    g.add(PrimOp::Transpose { perm }, &[x], facts)
}

/// Merges neighbouring dimensions, splits one, or adds one of extent 1.
pub fn reshape(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = any(g)?;
    let mut shape = g.dims(x);
    if shape.len() >= 2 && g.rng.one_in(2) {
        let at = g.rng.below(shape.len() - 1);
        shape[at] *= shape.remove(at + 1);
    }
    let divisible = |shape: &[usize]| shape.iter().position(|&extent| extent > 3 && extent.is_multiple_of(2));
    if let Some(at) = divisible(&shape) {
        shape[at] /= 2;
        shape.insert(at + g.rng.below(2), 2);
    } else if g.rng.one_in(2) {
        shape.insert(g.rng.below(shape.len() + 1), 1);
    }
    let facts = g.facts(x);
    g.add(PrimOp::Reshape { shape: Shape::checked(shape)? }, &[x], facts)
}

/// A part of each dimension, forward or backward.
pub fn slice(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = any(g)?;
    let (mut starts, mut steps, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
    for extent in g.dims(x) {
        let step = *g.rng.choose(&[1, 1, 1, 2, 3, -1, -2]);
        let reach = if extent == 0 { 0 } else { (extent as i64 - 1) / i64::abs(step) + 1 };
        let size = if g.rng.one_in(2) { reach } else { g.rng.between(0, reach).max(reach.min(1)) };
        let span = (size - 1).max(0) * i64::abs(step);
        let slack = g.rng.between(0, (extent as i64 - 1 - span).max(0));
        starts.push(if step > 0 { slack } else { slack + span });
        steps.push(step);
        sizes.push(size as usize);
    }
    let facts = g.facts(x);
    g.add(PrimOp::Slice { starts, steps, sizes }, &[x], facts)
}

/// A border of any mode.
pub fn pad(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = g.pick(|_, _, facts| facts.magnitude() <= 1e3)?;
    let rank = g.graph.shape(x).rank();
    let mut amounts = || (0..rank).map(|_| if g.rng.one_in(2) { 0 } else { g.rng.below(4) }).collect();
    let (low, high): (Vec<usize>, Vec<usize>) = (amounts(), amounts());
    let mode = *g.rng.choose(&PadMode::ALL);
    let mut operands = vec![x];
    let mut facts = g.facts(x);
    if mode == PadMode::Constant {
        let value = if g.graph.dtype(x) == DType::Bool { 1.0 } else { g.rng.between(0, 3) as f64 };
        let fill = Tensor::from_f64(g.graph.dtype(x), Shape::scalar(), &[value]);
        operands.push(g.constant(fill, TensorFacts::exact(value, value)));
        facts = facts.union(TensorFacts::exact(value, value));
    }
    g.add(PrimOp::Pad { mode, low, high }, &operands, facts)
}

/// One to four operands, some of them slices of the first.
pub fn concat(g: &mut Generator<'_>) -> Option<TensorId> {
    let first = g.pick(|graph, id, _| graph.shape(id).rank() > 0)?;
    let (dtype, dims) = (g.graph.dtype(first), g.dims(first));
    let axis = g.rng.below(dims.len());
    let mut operands = vec![first];
    for _ in 0..g.rng.below(4) {
        let suits = |shape: &Shape| {
            let others = |dim: usize| dim == axis || shape.get(dim) == dims.get(dim);
            shape.rank() == dims.len() && (0..dims.len()).all(others)
        };
        operands.extend(g.pick(|graph, id, _| graph.dtype(id) == dtype && suits(graph.shape(id))));
    }
    let facts = operands.iter().map(|&id| g.facts(id)).reduce(TensorFacts::union)?;
    g.add(PrimOp::Concat { axis }, &operands, facts)
}

/// Positions in any order along some dimensions.
pub fn pick(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = any(g)?;
    let mut positions = Vec::new();
    for extent in g.dims(x) {
        let list = |g: &mut Generator<'_>| (0..g.extent()).map(|_| g.rng.below(extent)).collect();
        positions.push(if extent == 0 || g.rng.one_in(2) { None } else { Some(list(g)) });
    }
    let facts = g.facts(x);
    g.add(PrimOp::Select { positions }, &[x], facts)
}

/// Positions along an axis.
pub fn iota(g: &mut Generator<'_>) -> Option<TensorId> {
    let rank = 1 + g.rng.below(3);
    let shape = g.shape(rank);
    let axis = g.rng.below(rank);
    let float = *g.rng.choose(&g.options.dtypes);
    let dtype = *g.rng.choose(&[DType::I32, DType::I64, DType::U8, float]);
    let high = shape[axis].saturating_sub(1) as f64;
    g.add(PrimOp::Iota { dtype, shape: Shape::checked(shape)?, axis }, &[], TensorFacts::exact(0.0, high))
}
