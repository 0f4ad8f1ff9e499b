//! Elements and slices by index.
//!
//! Indices of `index` wrap once, so that -1 is the last; those of the other targets do not, as in eager. All are noted for
//! the check of indices. What reads is safe whatever they are: the primitives clamp.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Refusal, Val, checked, invalid, unsupported};
use orch_ir::{Attribute, DType, Shape};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.embedding.default", "weight indices padding_idx scale_grad_by_freq sparse", embedding),
    rule("aten.index_select.default", "self dim index", index_select),
    rule("aten.gather.default", "self dim index sparse_grad", gather),
    rule("aten.index.Tensor", "self indices", index).when("indices are integers"),
    rule("aten._unsafe_index.Tensor", "self indices", index).when("indices are integers"),
];

fn embedding(emitter: &mut Emitter, call: &Call) -> Applied {
    let (weight, indices) = (call.tensor("weight")?, call.int_tensor("indices")?);
    if weight.rank() != 2 {
        return invalid(format!("rows of {}", weight.describe()));
    }
    emitter.check_indices(indices, 0, weight.shape[0] as i64)?;
    one(taken(emitter, weight, indices, 0)?)
}

/// A gather from an axis that may be empty: only no indices are in range then.
pub(super) fn taken(emitter: &mut Emitter, data: &Val, indices: &Val, axis: usize) -> Emitted {
    if data.shape[axis] > 0 {
        return emitter.gather(data, indices, axis);
    }
    let shape = checked([&data.shape[..axis], &indices.shape, &data.shape[axis + 1..]].concat())?;
    emitter.zeros(data.dtype, &shape)
}

fn index_select(emitter: &mut Emitter, call: &Call) -> Applied {
    let (x, indices) = (call.tensor("self")?, call.int_tensor("index")?);
    let axis = call.axis("dim", 0, x.rank())?;
    if indices.rank() > 1 {
        return invalid(format!("a selection by {}", indices.describe()));
    }
    emitter.check_indices(indices, 0, x.shape.get(axis).copied().unwrap_or(1) as i64)?;
    if x.rank() == 0 {
        return one(x.clone());
    }
    let indices = emitter.reshape(indices, [indices.shape.elems()])?;
    one(taken(emitter, x, &indices, axis)?)
}

fn gather(emitter: &mut Emitter, call: &Call) -> Applied {
    let (x, indices) = (call.tensor("self")?, call.int_tensor("index")?);
    let axis = call.axis("dim", 0, x.rank())?;
    emitter.check_indices(indices, 0, x.shape.get(axis).copied().unwrap_or(1) as i64)?;
    if x.rank() == 0 || indices.rank() == 0 {
        let first = emitter.reshape(x, [x.shape.elems()])?;
        let flat = emitter.reshape(indices, [indices.shape.elems()])?;
        let result = taken(emitter, &first, &flat, 0)?;
        return one(emitter.reshape(&result, indices.shape.to_vec())?);
    }
    if indices.shape.elems() == 0 {
        return one(emitter.zeros(x.dtype, &indices.shape)?);
    }
    let Some(x) = along(emitter, x, &indices.shape, axis)? else {
        return invalid(format!("elements of {} at {} along axis {axis}", x.describe(), indices.describe()));
    };
    let attributes = [("axis", Attribute::Int(axis as i64))];
    one(emitter.one("GatherElements", &[&x, indices], &attributes, (x.dtype, indices.shape.clone())))
}

/// The part of `x` that indices of this shape reach along an axis; `None` if they do not fit.
pub(super) fn along(
    emitter: &mut Emitter,
    x: &Val,
    indices: &Shape,
    axis: usize,
) -> Result<Option<Val>, Refusal> {
    if x.rank() != indices.rank() {
        return Ok(None);
    }
    let mut part = x.clone();
    for dim in (0..x.rank()).filter(|&dim| dim != axis) {
        if indices[dim] > x.shape[dim] {
            return Ok(None);
        }
        part = emitter.slice(&part, dim, (0, 1, indices[dim]))?;
    }
    Ok((x.shape[axis] > 0).then_some(part))
}

/// Which elements a list of indices addresses.
pub(super) struct Addressed {
    /// The dimensions of the tensor: those that are indexed, then the others.
    pub perm: Vec<usize>,
    /// How many are indexed.
    pub indexed: usize,
    /// The position of each element in the indexed dimensions, flattened.
    pub positions: Val,
    /// Where the dimensions of the indices stand in the result.
    pub at: usize,
}

impl Addressed {
    /// Reads the list `indices` of a call on `x`.
    pub fn read(emitter: &mut Emitter, call: &Call, x: &Val) -> Result<Self, Refusal> {
        let list = call.optional_tensors("indices")?;
        let given: Vec<(usize, &Val)> =
            list.iter().enumerate().filter_map(|(dim, index)| Some((dim, index.as_ref()?))).collect();
        if list.len() > x.rank() || given.is_empty() {
            return invalid(format!("{} indices into {}", list.len(), x.describe()));
        }
        // Eager reads indices of type u8 as a mask.
        let is_index = |index: &Val| index.dtype.is_int() && index.dtype != DType::U8;
        if let Some((_, index)) = given.iter().find(|(_, index)| !is_index(index)) {
            return unsupported(format!(
                "{} as an index: the result's shape depends on it",
                index.describe()
            ));
        }
        let dims: Vec<usize> = given.iter().map(|&(dim, _)| dim).collect();
        let adjacent = dims.windows(2).all(|pair| pair[1] == pair[0] + 1);
        let shapes: Vec<&Shape> = given.iter().map(|(_, index)| &index.shape).collect();
        let shape = crate::emit::broadcast(&shapes)?;
        let mut positions = None;
        for (dim, index) in given {
            let extent = x.shape[dim] as i64;
            emitter.check_indices(index, -extent, extent)?;
            let wrapped = wrapped(emitter, index, extent)?;
            positions = Some(match positions {
                None => wrapped,
                Some(before) => {
                    let extent = emitter.scalar_int(DType::I64, extent);
                    let scaled = emitter.binary("Mul", &before, &extent)?;
                    emitter.binary("Add", &scaled, &wrapped)?
                }
            });
        }
        let Some(positions) = positions else { return invalid("no index") };
        let positions = emitter.expand(&positions, &shape)?;
        let others = (0..x.rank()).filter(|dim| !dims.contains(dim));
        let perm = dims.iter().copied().chain(others).collect();
        Ok(Self { perm, indexed: dims.len(), positions, at: if adjacent { dims[0] } else { 0 } })
    }

    /// `x` with the indexed dimensions flattened in front of the others, and the extents of those.
    pub fn flattened(&self, emitter: &mut Emitter, x: &Val) -> Result<(Val, Vec<usize>), Refusal> {
        let turned = emitter.transpose(x, &self.perm)?;
        let (front, rest) = turned.shape.split_at(self.indexed);
        let (front, rest): (usize, Vec<usize>) = (front.iter().product(), rest.to_vec());
        let flat = emitter.reshape(&turned, [&[front], &rest[..]].concat())?;
        Ok((flat, rest))
    }

    /// The order that moves the dimensions of the indices from the front to their place among `rest` others.
    pub fn order(&self, rest: usize) -> Vec<usize> {
        let of_indices = self.positions.rank();
        let others = of_indices..of_indices + rest;
        let (before, after) = (others.start..others.start + self.at, others.start + self.at..others.end);
        before.chain(0..of_indices).chain(after).collect()
    }
}

/// An index as `i64`, counted from the front.
fn wrapped(emitter: &mut Emitter, index: &Val, extent: i64) -> Emitted {
    let index = emitter.cast(index, DType::I64);
    let extent = emitter.scalar_int(DType::I64, extent);
    let below = emitter.compare_scalar("Less", &index, 0.0)?;
    let shifted = emitter.binary("Add", &index, &extent)?;
    emitter.select(&below, &shifted, &index)
}

fn index(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let addressed = Addressed::read(emitter, call, x)?;
    let (flat, rest) = addressed.flattened(emitter, x)?;
    let result = taken(emitter, &flat, &addressed.positions, 0)?;
    one(emitter.transpose(&result, &addressed.order(rest.len()))?)
}
