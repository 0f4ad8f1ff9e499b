//! Largest and smallest elements and their positions. NaN wins, as in eager; of equal elements the first is taken.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, invalid, reduced};
use orch_ir::{Attribute, DType};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.amax.default", "self dim keepdim", |emitter, call| extreme(emitter, call, "ReduceMax")),
    rule("aten.amin.default", "self dim keepdim", |emitter, call| extreme(emitter, call, "ReduceMin")),
    rule("aten.max.default", "self", |emitter, call| extreme(emitter, call, "ReduceMax")),
    rule("aten.min.default", "self", |emitter, call| extreme(emitter, call, "ReduceMin")),
    rule("aten.max.dim", "self dim keepdim", |emitter, call| both(emitter, call, "ReduceMax", "ArgMax")),
    rule("aten.min.dim", "self dim keepdim", |emitter, call| both(emitter, call, "ReduceMin", "ArgMin")),
    rule("aten.argmax.default", "self dim keepdim", |emitter, call| position(emitter, call, "ArgMax")),
    rule("aten.argmin.default", "self dim keepdim", |emitter, call| position(emitter, call, "ArgMin")),
];

fn extreme(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let x = call.tensor("self")?;
    let axes = call.axes("dim", x.rank())?;
    check_not_empty(x, &axes)?;
    one(emitter.reduce(op_type, x, &axes, call.flag_or("keepdim", false)?))
}

/// Nothing has no largest element.
fn check_not_empty(x: &Val, axes: &[usize]) -> Result<(), crate::emit::Refusal> {
    match axes.iter().any(|&axis| x.shape[axis] == 0) {
        true => invalid(format!("the largest or smallest of no elements of {}", x.describe())),
        false => Ok(()),
    }
}

fn both(emitter: &mut Emitter, call: &Call, op_type: &str, arg: &str) -> Applied {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", 0, x.rank())?;
    let keep = call.flag_or("keepdim", false)?;
    let axes: Vec<usize> = (axis..(axis + 1).min(x.rank())).collect();
    check_not_empty(x, &axes)?;
    let value = emitter.reduce(op_type, x, &axes, keep);
    Ok(vec![Some(value), Some(position_of(emitter, x, axis, keep, arg)?)])
}

/// Without an axis, the position in the flattened tensor.
fn position(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let x = call.tensor("self")?;
    let keep = call.flag_or("keepdim", false)?;
    if call.has("dim") {
        let axis = call.axis("dim", 0, x.rank())?;
        return one(position_of(emitter, x, axis, keep, op_type)?);
    }
    let flat = emitter.reshape(x, [x.shape.elems()])?;
    let at = position_of(emitter, &flat, 0, false, op_type)?;
    one(emitter.reshape(&at, if keep { vec![1; x.rank()] } else { Vec::new() })?)
}

fn position_of(emitter: &mut Emitter, x: &Val, axis: usize, keep: bool, op_type: &str) -> Emitted {
    if x.rank() == 0 {
        return Ok(emitter.scalar_int(DType::I64, 0));
    }
    check_not_empty(x, &[axis])?;
    let attributes = [("axis", Attribute::Int(axis as i64)), ("keepdims", Attribute::Int(keep.into()))];
    Ok(emitter.one(op_type, &[x], &attributes, (DType::I64, reduced(&x.shape, &[axis], keep))))
}
