//! Random data-dependent reads and writes. Most indices are constants in range, some lie outside and are limited.

use super::{Generator, MAX_MAGNITUDE, TensorFacts};
use crate::{DType, PrimOp, ReduceOp, TensorId};

/// A tensor with at least one dimension and element.
fn indexed(g: &mut Generator<'_>) -> Option<TensorId> {
    g.pick(|graph, id, facts| {
        let shape = graph.shape(id);
        shape.rank() > 0 && shape.elems() > 0 && facts.magnitude() <= MAX_MAGNITUDE
    })
}

/// Indices of an axis of this extent.
fn indices(g: &mut Generator<'_>, shape: &[usize], extent: usize) -> TensorId {
    let dtype = *g.rng.choose(&[DType::I64, DType::I64, DType::I32]);
    let outside = if g.rng.one_in(8) { 2 } else { 0 };
    g.integers(dtype, shape, -outside, extent as i64 - 1 + outside)
}

/// Whole slices along an axis, by constant or computed indices.
pub fn take(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = indexed(g)?;
    let dims = g.dims(x);
    let axis = g.rng.below(dims.len());
    let computed = g.pick(|graph, id, _| graph.dtype(id).is_int() && graph.shape(id).rank() <= 2);
    let index = match computed {
        Some(id) if g.rng.one_in(2) => id,
        _ => {
            let rank = g.rng.below(3);
            let shape = g.shape(rank);
            indices(g, &shape, dims[axis])
        }
    };
    let facts = g.facts(x);
    g.add(PrimOp::Take { axis }, &[x, index], facts)
}

/// The shape of `dims` with smaller extents, and any along `axis`.
fn part(g: &mut Generator<'_>, dims: &[usize], axis: usize) -> Vec<usize> {
    let mut shape: Vec<usize> = dims.iter().map(|&extent| if g.rng.one_in(3) { 1 } else { extent }).collect();
    shape[axis] = g.extent();
    shape
}

/// Elements along an axis.
pub fn take_along(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = indexed(g)?;
    let dims = g.dims(x);
    let axis = g.rng.below(dims.len());
    let shape = part(g, &dims, axis);
    let index = indices(g, &shape, dims[axis]);
    let facts = g.facts(x);
    g.add(PrimOp::TakeAlong { axis }, &[x, index], facts)
}

/// Slices addressed by coordinates.
pub fn gather_nd(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = indexed(g)?;
    let dims = g.dims(x);
    let batch_dims = g.rng.below(dims.len().min(2));
    let depth = 1 + g.rng.below(dims.len() - batch_dims);
    let rows = g.extent();
    let shape = [&dims[..batch_dims], &[rows, depth]].concat();
    let smallest = dims[batch_dims..batch_dims + depth].iter().copied().min()?;
    let index = indices(g, &shape, smallest);
    let facts = g.facts(x);
    g.add(PrimOp::GatherNd { batch_dims }, &[x, index], facts)
}

/// How updates combine with elements, and what of: values of one reduction apart from the element's.
fn combination(g: &mut Generator<'_>, x: TensorId, updates: TensorId) -> (Option<ReduceOp>, TensorFacts) {
    const OPS: [Option<ReduceOp>; 4] = [None, Some(ReduceOp::Sum), Some(ReduceOp::Max), Some(ReduceOp::Min)];
    let op = *g.rng.choose(&OPS);
    let (a, b) = (g.facts(x), g.facts(updates));
    let updates = g.graph.shape(updates).elems() as f64;
    let reach = a.magnitude() + updates * b.magnitude();
    let sum = TensorFacts { low: -reach, high: reach, exact: !g.graph.dtype(x).is_float() };
    (op, if op == Some(ReduceOp::Sum) { sum } else { a.union(b) })
}

/// Updates along an axis.
pub fn scatter_along(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = indexed(g)?;
    let dims = g.dims(x);
    let axis = g.rng.below(dims.len());
    let shape = part(g, &dims, axis);
    let index = indices(g, &shape, dims[axis]);
    let updates = update_values(g, x, &shape);
    let (combine, facts) = combination(g, x, updates);
    g.add(PrimOp::ScatterAlong { axis, combine }, &[x, index, updates], facts)
}

/// Updates of slices addressed by coordinates.
pub fn scatter_nd(g: &mut Generator<'_>) -> Option<TensorId> {
    let x = indexed(g)?;
    let dims = g.dims(x);
    let depth = 1 + g.rng.below(dims.len());
    let rows = g.extent();
    let smallest = dims[..depth].iter().copied().min()?;
    let index = indices(g, &[rows, depth], smallest);
    let updates = update_values(g, x, &[&[rows], &dims[depth..]].concat());
    let (combine, facts) = combination(g, x, updates);
    g.add(PrimOp::ScatterNd { combine }, &[x, index, updates], facts)
}

/// Constants of the type of `x`.
fn update_values(g: &mut Generator<'_>, x: TensorId, shape: &[usize]) -> TensorId {
    let dtype = g.graph.dtype(x);
    if dtype.is_float() { g.floats(dtype, shape, -1.0, 1.0) } else { g.integers(dtype, shape, 0, 1) }
}
