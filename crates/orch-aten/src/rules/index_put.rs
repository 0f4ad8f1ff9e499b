//! Elements and slices replaced or added to, by index.
//!
//! Of two indices to one element without `accumulate`, the last in row-major order counts; eager promises none.

use super::index::{Addressed, taken};
use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitter, Val, broadcast, checked, invalid, unsupported, wide};
use orch_ir::permutation::inverse;
use orch_ir::{Attribute, DType};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.index_put.default", "self indices values accumulate", index_put)
        .when("indices are integers, or one mask and one value; sums of numbers only"),
    rule("aten._unsafe_index_put.default", "self indices values accumulate", index_put)
        .when("indices are integers, or one mask and one value; sums of numbers only"),
    rule("aten.masked_scatter.default", "self mask source", masked_scatter),
    rule(
        "aten.embedding_dense_backward.default",
        "grad_output indices num_weights padding_idx scale_grad_by_freq",
        embedding_backward,
    )
    .when("no scaling by frequency"),
];

fn index_put(emitter: &mut Emitter, call: &Call) -> Applied {
    let (x, values) = (call.tensor("self")?, call.tensor("values")?);
    let accumulate = call.flag_or("accumulate", false)?;
    let indices = call.optional_tensors("indices")?;
    if let [Some(mask)] = &indices[..]
        && mask.dtype == DType::Bool
        && values.shape.elems() == 1
        && !accumulate
    {
        return masked(emitter, x, mask, values);
    }
    if accumulate && x.dtype == DType::Bool {
        return unsupported("a sum of truths");
    }
    let addressed = Addressed::read(emitter, call, x)?;
    let (flat, rest) = addressed.flattened(emitter, x)?;
    // The values broadcast to the form that `index` would give; its dimensions are brought into the order of `flat`.
    let order = addressed.order(rest.len());
    let extents = [&addressed.positions.shape[..], &rest].concat();
    let form = checked(order.iter().map(|&dim| extents[dim]).collect())?;
    let values = emitter.cast(values, x.dtype);
    let values = emitter.expand(&values, &form)?;
    let updates = emitter.transpose(&values, &inverse(&order))?;
    let result = if flat.shape.elems() == 0 || updates.shape.elems() == 0 {
        flat.clone()
    } else {
        scattered(emitter, &flat, &addressed.positions, &updates, accumulate)?
    };
    let dims: Vec<usize> = addressed.perm.iter().map(|&dim| x.shape[dim]).collect();
    let turned = emitter.reshape(&result, dims)?;
    one(emitter.transpose(&turned, &inverse(&addressed.perm))?)
}

/// One value wherever the mask, over leading dimensions, is true.
fn masked(emitter: &mut Emitter, x: &Val, mask: &Val, value: &Val) -> Applied {
    if !x.shape.starts_with(&mask.shape) {
        return invalid(format!("a mask {} of {}", mask.describe(), x.describe()));
    }
    let mut dims = vec![1; x.rank()];
    dims[..mask.rank()].copy_from_slice(&mask.shape);
    let mask = emitter.reshape(mask, dims)?;
    let value = emitter.cast(value, x.dtype);
    let value = emitter.reshape(&value, [])?;
    one(emitter.select(&mask, &value, x)?)
}

/// The elements of `source` in turn, wherever the mask is true: as many as it has true elements before.
fn masked_scatter(emitter: &mut Emitter, call: &Call) -> Applied {
    let (x, mask, source) = (call.tensor("self")?, call.tensor("mask")?, call.tensor("source")?);
    if mask.dtype != DType::Bool || source.dtype != x.dtype {
        return invalid(format!("{} of {} by {}", source.describe(), x.describe(), mask.describe()));
    }
    // The functional form broadcasts `self` to the mask as well.
    let shape = broadcast(&[&x.shape, &mask.shape])?;
    let x = &emitter.expand(x, &shape)?;
    let count = shape.elems();
    if count == 0 {
        return one(x.clone());
    }
    let mask = emitter.expand(mask, &shape)?;
    let mask = emitter.reshape(&mask, [count])?;
    let ones = emitter.cast(&mask, DType::I64);
    let axis = emitter.scalar_int(DType::I64, 0);
    let counted = emitter.one("CumSum", &[&ones, &axis], &[], (DType::I64, ones.shape.clone()));
    let before = emitter.binary_scalar("Sub", &counted, 1.0)?;
    let zero = emitter.scalar_int(DType::I64, 0);
    let positions = emitter.select(&mask, &before, &zero)?;
    let length = source.shape.elems();
    // Where nothing is replaced, an empty source will do.
    let last = emitter.reduce("ReduceMax", &counted, &[0], false);
    emitter.check_indices(&last, 0, length as i64 + 1)?;
    let flat = emitter.reshape(source, [length])?;
    let values = taken(emitter, &flat, &positions, 0)?;
    let flat = emitter.reshape(x, [count])?;
    let result = emitter.select(&mask, &values, &flat)?;
    one(emitter.reshape(&result, x.shape.to_vec())?)
}

/// Rows `positions` of `data` replaced by `updates`, or with those added (f16 and bf16 in f32).
pub(super) fn scattered(
    emitter: &mut Emitter,
    data: &Val,
    positions: &Val,
    updates: &Val,
    add: bool,
) -> Result<Val, crate::emit::Refusal> {
    let compute = if add { wide(data.dtype) } else { data.dtype };
    let (wide, updates) = (emitter.cast(data, compute), emitter.cast(updates, compute));
    let indices = emitter.reshape(positions, [&positions.shape[..], &[1]].concat())?;
    let reduction = Attribute::String(if add { "add" } else { "none" }.to_owned());
    let result = (compute, data.shape.clone());
    let y = emitter.one("ScatterND", &[&wide, &indices, &updates], &[("reduction", reduction)], result);
    Ok(emitter.cast(&y, data.dtype))
}

/// Rows of gradients added up by index; those at `padding_idx` are left out.
fn embedding_backward(emitter: &mut Emitter, call: &Call) -> Applied {
    let (gradient, indices) = (call.float_tensor("grad_output")?, call.int_tensor("indices")?);
    if call.flag_or("scale_grad_by_freq", false)? {
        return unsupported("gradients scaled by frequency");
    }
    let (rows, columns) = (usize::try_from(call.int("num_weights")?), gradient.shape.last().copied());
    let (Ok(rows), Some(columns), true) =
        (rows, columns, gradient.shape.get(..indices.rank()) == Some(&indices.shape[..]))
    else {
        return invalid(format!("gradients {} at {}", gradient.describe(), indices.describe()));
    };
    let shape = checked(vec![rows, columns])?;
    emitter.check_indices(indices, 0, rows as i64)?;
    let count = indices.shape.elems();
    let zeros = emitter.zeros(gradient.dtype, &shape)?;
    if count == 0 || shape.elems() == 0 {
        return one(zeros);
    }
    let indices = emitter.cast(indices, DType::I64);
    let indices = emitter.reshape(&indices, [count])?;
    let padding = emitter.scalar_int(DType::I64, call.int_or("padding_idx", -1)?);
    let left_out = emitter.compare("Equal", &indices, &padding)?;
    let left_out = emitter.reshape(&left_out, [count, 1])?;
    let zero = emitter.scalar(gradient.dtype, 0.0);
    let gradient = emitter.reshape(gradient, [count, columns])?;
    let updates = emitter.select(&left_out, &zero, &gradient)?;
    one(scattered(emitter, &zeros, &indices, &updates, true)?)
}
