//! The best elements of an axis and their positions. NaN counts as larger than any number, as in eager; of equal elements the
//! first comes first.

use super::{Applied, Rule, rule};
use crate::call::Call;
use crate::emit::{Emitter, Val, checked, invalid};
use orch_ir::{Attribute, DType};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.topk.default", "self k dim largest sorted", top_k),
    rule("aten.sort.default", "self dim descending", sort),
    rule("aten.sort.stable", "self stable dim descending", sort),
];

fn top_k(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let (axis, k) = (call.axis("dim", -1, x.rank())?, call.int("k")?);
    let extent = x.shape.get(axis).copied().unwrap_or(1);
    match usize::try_from(k) {
        Ok(k) if k <= extent && (x.rank() > 0 || k == 1) => {
            best(emitter, x, axis, k, call.flag_or("largest", true)?)
        }
        _ => invalid(format!("the best {k} of {} along axis {axis}", x.describe())),
    }
}

fn sort(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let axis = call.axis("dim", -1, x.rank())?;
    let extent = x.shape.get(axis).copied().unwrap_or(1);
    best(emitter, x, axis, extent, call.flag_or("descending", false)?)
}

fn best(emitter: &mut Emitter, x: &Val, axis: usize, k: usize, largest: bool) -> Applied {
    if x.rank() == 0 {
        let first = emitter.scalar_int(DType::I64, 0);
        return Ok(vec![Some(x.clone()), Some(first)]);
    }
    let mut dims = x.shape.to_vec();
    dims[axis] = k;
    let shape = checked(dims)?;
    let compute = if x.dtype == DType::Bool { DType::U8 } else { x.dtype };
    let (numbers, count) = (emitter.cast(x, compute), emitter.ints(&[k as i64]));
    let attributes = [("axis", Attribute::Int(axis as i64)), ("largest", Attribute::Int(largest.into()))];
    let results = [(compute, shape.clone()), (DType::I64, shape)];
    let found = emitter.many("TopK", &[Some(&numbers), Some(&count)], &attributes, &results);
    Ok(vec![Some(emitter.cast(&found[0], x.dtype)), Some(found[1].clone())])
}
