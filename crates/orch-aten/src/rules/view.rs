//! What moves no element, or only moves elements: reshapes, permutations, parts, copies, conversions.

use super::{Applied, Rule, one, rule};
use crate::call::{Call, axis_of};
use crate::emit::{Emitter, Refusal, Val, invalid};
use orch_ir::Shape;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.view.default", "self size", view),
    rule("aten._unsafe_view.default", "self size", view),
    rule("aten.reshape.default", "self shape", reshape),
    rule("aten.permute.default", "self dims", permute),
    rule("aten.transpose.int", "self dim0 dim1", transpose),
    rule("aten.t.default", "self", transpose_matrix),
    rule("aten.expand.default", "self size implicit", expand),
    rule("aten.unsqueeze.default", "self dim", unsqueeze),
    rule("aten.squeeze.default", "self", squeeze_all),
    rule("aten.squeeze.dim", "self dim", squeeze),
    rule("aten.squeeze.dims", "self dim", squeeze),
    rule("aten.select.int", "self dim index", select),
    rule("aten.slice.Tensor", "self dim start end step", slice),
    rule("aten.split_with_sizes.default", "self split_sizes dim", split_with_sizes),
    rule("aten.split.Tensor", "self split_size dim", split),
    rule("aten.unbind.int", "self dim", unbind),
    rule("aten.diagonal.default", "self offset dim1 dim2", diagonal),
    rule("aten.alias.default", "self", same),
    rule("aten.detach.default", "self", same),
    rule("aten.lift_fresh_copy.default", "self", same),
    rule("aten.clone.default", "self memory_format", same),
    rule("aten.contiguous.default", "self memory_format", same),
    rule("aten._to_copy.default", "self dtype layout device pin_memory non_blocking memory_format", convert),
    rule("prims.convert_element_type.default", "a dtype", convert_element_type),
    rule("aten.cat.default", "tensors dim", cat),
    rule("aten.stack.default", "tensors dim", stack),
    rule("aten.repeat.default", "self repeats", repeat),
    rule("aten.flip.default", "self dims", flip),
    rule("aten.roll.default", "self shifts dims", roll),
    rule("aten.constant_pad_nd.default", "self pad value", constant_pad),
];

fn same(_: &mut Emitter, call: &Call) -> Applied {
    one(call.tensor("self")?.clone())
}

/// Float to integer truncates; values out of range saturate, where eager's result is not defined.
fn convert(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let dtype = call.optional_dtype("dtype")?.unwrap_or(x.dtype);
    one(emitter.cast(x, dtype))
}

fn convert_element_type(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("a")?;
    let dtype = call.optional_dtype("dtype")?.unwrap_or(x.dtype);
    one(emitter.cast(x, dtype))
}

fn view(emitter: &mut Emitter, call: &Call) -> Applied {
    reshaped(emitter, call, "size")
}

fn reshape(emitter: &mut Emitter, call: &Call) -> Applied {
    reshaped(emitter, call, "shape")
}

/// One extent may be -1: what remains.
fn reshaped(emitter: &mut Emitter, call: &Call, name: &str) -> Applied {
    let x = call.tensor("self")?;
    let size = call.ints(name)?;
    let refused = || Refusal::Invalid(format!("{} cannot have the shape {size:?}", x.describe()));
    let known = size.iter().filter(|&&extent| extent != -1);
    let known: Vec<usize> =
        known.map(|&extent| usize::try_from(extent)).collect::<Result<_, _>>().map_err(|_| refused())?;
    let others = Shape::checked(known.clone()).ok_or_else(refused)?.elems();
    let rest = match size.len() - known.len() {
        0 => 1,
        1 if others > 0 => x.shape.elems() / others,
        _ => return Err(refused()),
    };
    let dims: Vec<usize> = size.iter().map(|&extent| usize::try_from(extent).unwrap_or(rest)).collect();
    one(emitter.reshape(x, dims)?)
}

fn permute(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let perm = call.ints("dims")?.iter().map(|&dim| axis_of(dim, x.rank())).collect::<Result<Vec<_>, _>>()?;
    one(emitter.transpose(x, &perm)?)
}

fn transpose(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let (a, b) = (call.axis("dim0", 0, x.rank())?, call.axis("dim1", 0, x.rank())?);
    let mut perm: Vec<usize> = (0..x.rank()).collect();
    if !perm.is_empty() {
        perm.swap(a, b);
    }
    one(emitter.transpose(x, &perm)?)
}

fn transpose_matrix(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    if x.rank() > 2 {
        return invalid(format!("the transpose of {}", x.describe()));
    }
    one(emitter.transpose_last(x)?)
}

fn expand(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let size = call.ints("size")?;
    let Some(added) = size.len().checked_sub(x.rank()) else {
        return invalid(format!("{} cannot be expanded to {size:?}", x.describe()));
    };
    let extent = |(position, &extent): (usize, &i64)| match extent {
        -1 if position >= added => Some(x.shape[position - added]),
        extent => usize::try_from(extent).ok(),
    };
    let dims: Option<Vec<usize>> = size.iter().enumerate().map(extent).collect();
    let shape = dims.and_then(Shape::checked);
    match shape {
        Some(shape) => one(emitter.expand(x, &shape)?),
        None => invalid(format!("{} cannot be expanded to {size:?}", x.describe())),
    }
}

fn unsqueeze(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank() + 1)?;
    one(insert_unit(emitter, x, axis)?)
}

/// A dimension of extent 1 before `axis`.
pub(super) fn insert_unit(emitter: &mut Emitter, x: &Val, axis: usize) -> Result<Val, Refusal> {
    let mut dims = x.shape.to_vec();
    dims.insert(axis, 1);
    emitter.reshape(x, dims)
}

fn squeeze_all(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let dims: Vec<usize> = x.shape.iter().copied().filter(|&extent| extent != 1).collect();
    one(emitter.reshape(x, dims)?)
}

fn squeeze(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let axes =
        call.ints("dim")?.iter().map(|&axis| axis_of(axis, x.rank())).collect::<Result<Vec<_>, _>>()?;
    let kept = x.shape.iter().enumerate().filter(|(axis, extent)| !(axes.contains(axis) && **extent == 1));
    let dims: Vec<usize> = kept.map(|(_, &extent)| extent).collect();
    one(emitter.reshape(x, dims)?)
}

fn select(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let (axis, at) = selected(call, x)?;
    one(element(emitter, x, axis, at)?)
}

/// The axis and the position along it of a selection.
pub(super) fn selected(call: &Call, x: &Val) -> Result<(usize, usize), Refusal> {
    let axis = call.axis("dim", 0, x.rank())?;
    let index = call.int("index")?;
    match x.shape.get(axis) {
        Some(&extent) if (-(extent as i64)..extent as i64).contains(&index) => {
            Ok((axis, index.rem_euclid(extent as i64) as usize))
        }
        _ => invalid(format!("index {index} of axis {axis} of {}", x.describe())),
    }
}

/// `x` at one position of an axis, which disappears.
fn element(emitter: &mut Emitter, x: &Val, axis: usize, at: usize) -> Result<Val, Refusal> {
    let part = emitter.slice(x, axis, (at, 1, 1))?;
    let mut dims = x.shape.to_vec();
    dims.remove(axis);
    emitter.reshape(&part, dims)
}

fn slice(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let (axis, range) = sliced(call, x)?;
    one(emitter.slice(x, axis, range)?)
}

/// The axis of a slice, with start, step and number of its positions.
pub(super) fn sliced(call: &Call, x: &Val) -> Result<(usize, (usize, i64, usize)), Refusal> {
    let axis = call.axis("dim", 0, x.rank())?;
    let Some(&extent) = x.shape.get(axis) else { return invalid("a slice of a scalar") };
    let step = call.int_or("step", 1)?;
    if step < 1 {
        return invalid(format!("a slice by {step}"));
    }
    let position = |at: i64| {
        let at = if at < 0 { at.saturating_add(extent as i64) } else { at };
        at.clamp(0, extent as i64) as usize
    };
    let (start, end) = (position(call.int_or("start", 0)?), position(call.int_or("end", i64::MAX)?));
    let count = end.saturating_sub(start).div_ceil(usize::try_from(step).unwrap_or(usize::MAX));
    // The step of one position means nothing, and may be larger than any extent.
    Ok((axis, (start, if count > 1 { step } else { 1 }, count)))
}

fn split_with_sizes(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let sizes = call.counts("split_sizes")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let total = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if x.shape.get(axis).copied() != total {
        return invalid(format!("axis {axis} of {} is split into {sizes:?}", x.describe()));
    }
    parts(emitter, x, axis, &sizes)
}

fn parts(emitter: &mut Emitter, x: &Val, axis: usize, sizes: &[usize]) -> Applied {
    let mut start = 0;
    let mut results = Vec::new();
    for &size in sizes {
        results.push(Some(emitter.slice(x, axis, (start, 1, size))?));
        start += size;
    }
    Ok(results)
}

fn split(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let size = usize::try_from(call.int("split_size")?).ok().filter(|&size| size > 0);
    let (Some(size), Some(&extent)) = (size, x.shape.get(axis)) else {
        return invalid(format!("{} is split along axis {axis}", x.describe()));
    };
    check_count(call, extent.div_ceil(size).max(1))?;
    let sizes: Vec<usize> = (0..extent.max(1)).step_by(size).map(|start| size.min(extent - start)).collect();
    parts(emitter, x, axis, &sizes)
}

/// A call has as many results as the document says, before so many are made.
fn check_count(call: &Call, count: usize) -> Result<(), Refusal> {
    if call.results.len() == count {
        return Ok(());
    }
    invalid(format!("{} results are given, there are {count} by the arguments", call.results.len()))
}

fn unbind(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let Some(&extent) = x.shape.get(axis) else { return invalid("the elements of a scalar") };
    check_count(call, extent)?;
    (0..extent).map(|at| element(emitter, x, axis, at).map(Some)).collect()
}

/// The flattened plane is sliced by one row and one element.
fn diagonal(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let rank = x.rank();
    let (a, b) = (call.axis("dim1", 0, rank)?, call.axis("dim2", 1, rank)?);
    let offset = call.int_or("offset", 0)?;
    if rank < 2 || a == b {
        return invalid(format!("the diagonal of axes {a} and {b} of {}", x.describe()));
    }
    let mut perm: Vec<usize> = (0..rank).filter(|&axis| axis != a && axis != b).collect();
    perm.extend([a, b]);
    let x = emitter.transpose(x, &perm)?;
    let (rows, columns) = (x.shape[rank - 2], x.shape[rank - 1]);
    let skipped = |amount: i64| usize::try_from(amount).unwrap_or(0);
    let (down, right) = (skipped(offset.saturating_neg()), skipped(offset));
    let count = rows.saturating_sub(down).min(columns.saturating_sub(right));
    let plane = emitter.reshape(&x, [&x.shape[..rank - 2], &[rows * columns]].concat())?;
    let start = if count > 0 { down * columns + right } else { 0 };
    let step = if count > 1 { columns as i64 + 1 } else { 1 };
    one(emitter.slice(&plane, rank - 2, (start, step, count))?)
}

/// Operands are of the result's type; empty vectors are left out, as eager does.
fn cat(emitter: &mut Emitter, call: &Call) -> Applied {
    let tensors = call.tensors("tensors")?;
    let dtype = call.dtype()?;
    let rank = tensors.iter().map(Val::rank).max().unwrap_or(0);
    let axis = call.axis("dim", 0, rank)?;
    let counts = |part: &&Val| rank == 1 || part.shape[..] != [0];
    let mut parts: Vec<Val> = tensors.iter().filter(counts).map(|part| emitter.cast(part, dtype)).collect();
    if parts.is_empty() {
        parts.extend(tensors.first().map(|part| emitter.cast(part, dtype)));
    }
    one(emitter.concat(&parts, axis)?)
}

fn stack(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    let tensors = call.tensors("tensors")?;
    let rank = tensors.iter().map(Val::rank).max().unwrap_or(0);
    let axis = call.axis("dim", 0, rank + 1)?;
    let mut parts = Vec::new();
    for part in &tensors {
        if part.rank() != rank {
            return invalid(format!("{} among tensors of {rank} dimensions", part.describe()));
        }
        let part = emitter.cast(part, dtype);
        parts.push(insert_unit(emitter, &part, axis)?);
    }
    one(emitter.concat(&parts, axis)?)
}

fn repeat(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let repeats = call.dims("repeats")?;
    let Some(added) = repeats.rank().checked_sub(x.rank()) else {
        return invalid(format!("{} is repeated {repeats} times", x.describe()));
    };
    // [a, b] repeated [r, s] times: [1, a, 1, b] -> [r, a, s, b] -> [r a, s b].
    let mut units = Vec::new();
    let mut repeated = Vec::new();
    let mut joined = Vec::new();
    for (position, &times) in repeats.iter().enumerate() {
        let extent = position.checked_sub(added).map_or(1, |dim| x.shape[dim]);
        units.extend([1, extent]);
        repeated.extend([times, extent]);
        joined.push(times.saturating_mul(extent));
    }
    crate::emit::checked(joined.clone())?;
    let x = emitter.reshape(x, units)?;
    let x = emitter.expand(&x, &crate::emit::checked(repeated)?)?;
    one(emitter.reshape(&x, joined)?)
}

fn flip(emitter: &mut Emitter, call: &Call) -> Applied {
    let mut x = call.tensor("self")?.clone();
    if x.rank() > 0 {
        for axis in call.ints("dims")? {
            let axis = axis_of(axis, x.rank())?;
            let extent = x.shape[axis];
            if extent > 1 {
                x = emitter.slice(&x, axis, (extent - 1, -1, extent))?;
            }
        }
    }
    one(x)
}

fn roll(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let (shifts, dims) = (call.ints("shifts")?, call.optional_ints("dims")?.unwrap_or_default());
    if dims.is_empty() && shifts.len() == 1 {
        let flat = emitter.reshape(x, [x.shape.elems()])?;
        let rolled = rolled(emitter, &flat, 0, shifts[0])?;
        return one(emitter.reshape(&rolled, x.shape.to_vec())?);
    }
    if dims.len() != shifts.len() {
        return invalid(format!("axes {dims:?} are rolled by {shifts:?}"));
    }
    let mut result = x.clone();
    for (&axis, &shift) in dims.iter().zip(&shifts) {
        if x.rank() > 0 {
            result = rolled(emitter, &result, axis_of(axis, x.rank())?, shift)?;
        }
    }
    one(result)
}

fn rolled(emitter: &mut Emitter, x: &Val, axis: usize, shift: i64) -> Result<Val, Refusal> {
    let extent = x.shape[axis];
    if extent == 0 {
        return Ok(x.clone());
    }
    let first = (-i128::from(shift)).rem_euclid(extent as i128) as usize;
    let parts = [emitter.slice(x, axis, (first, 1, extent - first))?, emitter.slice(x, axis, (0, 1, first))?];
    emitter.concat(&parts, axis)
}

/// `pad` lists the amounts before and after each dimension, the last one first.
fn constant_pad(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let pad = call.ints("pad")?;
    if !pad.len().is_multiple_of(2) || pad.len() > 2 * x.rank() {
        return invalid(format!("{} is padded by {pad:?}", x.describe()));
    }
    let (mut low, mut high) = (vec![0; x.rank()], vec![0; x.rank()]);
    for (position, amounts) in pad.chunks_exact(2).enumerate() {
        let dim = x.rank() - 1 - position;
        (low[dim], high[dim]) = (amounts[0], amounts[1]);
    }
    let value = call.number_or("value", crate::promote::Number::Int(0))?.emit(emitter, x.dtype);
    one(emitter.pad(x, &low, &high, &value)?)
}
