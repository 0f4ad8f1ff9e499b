//! Elements replaced or added to along one axis. Indices do not wrap, and are noted for the check of indices.

use super::index::along;
use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitter, Val, invalid, unsupported, wide};
use orch_ir::{Attribute, DType};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.scatter.src", "self dim index src", |emitter, call| scatter(emitter, call, "none")),
    rule("aten.scatter.value", "self dim index value", |emitter, call| scatter(emitter, call, "none")),
    rule("aten.scatter_add.default", "self dim index src", |emitter, call| scatter(emitter, call, "add"))
        .when("numbers"),
    rule("aten.scatter_reduce.two", "self dim index src reduce include_self", reduce)
        .when("numbers; sum, prod, amax or amin, with self"),
];

fn reduce(emitter: &mut Emitter, call: &Call) -> Applied {
    if !call.flag_or("include_self", true)? {
        return unsupported("a reduction without self");
    }
    let reduction = match call.text_or("reduce", "")? {
        "sum" => "add",
        "prod" => "mul",
        "amax" => "max",
        "amin" => "min",
        other => return unsupported(format!("the reduction `{other}`")),
    };
    scatter(emitter, call, reduction)
}

/// f16 and bf16 are combined in f32.
fn scatter(emitter: &mut Emitter, call: &Call, reduction: &str) -> Applied {
    let (x, indices) = (call.tensor("self")?, call.int_tensor("index")?);
    let axis = call.axis("dim", 0, x.rank())?;
    // Without indices, PyTorch does not look at their rank.
    if indices.shape.elems() == 0 {
        return one(x.clone());
    }
    if x.rank() != indices.rank() {
        return invalid(format!("elements of {} at {}", x.describe(), indices.describe()));
    }
    let compute = if reduction == "none" { x.dtype } else { wide(x.dtype) };
    let updates = updates(emitter, call, indices, compute)?;
    emitter.check_indices(indices, 0, x.shape.get(axis).copied().unwrap_or(1) as i64)?;
    if reduction != "none" && x.dtype == DType::Bool {
        return unsupported("a reduction of truths");
    }
    if x.rank() == 0 {
        return unsupported("a scatter into a scalar");
    }
    if along(emitter, x, &indices.shape, axis)?.is_none() {
        return invalid(format!("elements of {} at {} along axis {axis}", x.describe(), indices.describe()));
    }
    let data = emitter.cast(x, compute);
    let attributes =
        [("axis", Attribute::Int(axis as i64)), ("reduction", Attribute::String(reduction.to_owned()))];
    let result = (compute, x.shape.clone());
    let y = emitter.one("ScatterElements", &[&data, indices, &updates], &attributes, result);
    one(emitter.cast(&y, x.dtype))
}

/// One update per index: the first elements of `src`, or a number.
fn updates(
    emitter: &mut Emitter,
    call: &Call,
    indices: &Val,
    compute: orch_ir::DType,
) -> Result<Val, crate::emit::Refusal> {
    if call.has("value") {
        let value = call.operand("value")?.emit(emitter, compute);
        return emitter.expand(&value, &indices.shape);
    }
    let src = emitter.cast(call.tensor("src")?, compute);
    let fits = src.rank() == indices.rank()
        && indices.shape.iter().zip(src.shape.iter()).all(|(&wanted, &extent)| wanted <= extent);
    if !fits {
        return invalid(format!("updates {} at {}", src.describe(), indices.describe()));
    }
    let mut part = src;
    for dim in 0..indices.rank() {
        part = emitter.slice(&part, dim, (0, 1, indices.shape[dim]))?;
    }
    Ok(part)
}
