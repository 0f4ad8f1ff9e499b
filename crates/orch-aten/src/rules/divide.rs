//! Quotients and remainders.
//!
//! Integers divided by zero give 0, where eager raises an error on CPUs.

use super::pointwise::compute_type;
use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, invalid, wide};
use orch_ir::{Attribute, DType};

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.div.Tensor", "self other", divide),
    rule("aten.div.Scalar", "self other", divide),
    rule("aten.div.Tensor_mode", "self other rounding_mode", divide_mode),
    rule("aten.div.Scalar_mode", "self other rounding_mode", divide_mode),
    rule("aten.floor_divide.default", "self other", floor_divide),
    rule("aten.fmod.Tensor", "self other", |emitter, call| remainder(emitter, call, true)),
    rule("aten.fmod.Scalar", "self other", |emitter, call| remainder(emitter, call, true)),
    rule("aten.remainder.Tensor", "self other", |emitter, call| remainder(emitter, call, false)),
    rule("aten.remainder.Scalar", "self other", |emitter, call| remainder(emitter, call, false)),
];

/// The quotient in floats, of integers too.
fn divide(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    if !dtype.is_float() {
        return invalid(format!("the result is {dtype}, floats are expected"));
    }
    let (a, b) = (call.operand("self")?, call.operand("other")?);
    let compute = compute_type(dtype, &[&a, &b]);
    let (a, b) = (a.emit(emitter, compute), b.emit(emitter, compute));
    let y = emitter.binary("Div", &a, &b)?;
    one(emitter.cast(&y, dtype))
}

fn divide_mode(emitter: &mut Emitter, call: &Call) -> Applied {
    match call.text_or("rounding_mode", "")? {
        "" => divide(emitter, call),
        "trunc" => rounded(emitter, call, |emitter, a, b| {
            let quotient = emitter.binary("Div", a, b)?;
            Ok(if a.dtype.is_float() { emitter.scalar_function("Trunc", &quotient) } else { quotient })
        }),
        "floor" => floor_divide(emitter, call),
        other => invalid(format!("rounding_mode is `{other}`, `trunc` or `floor` is expected")),
    }
}

fn floor_divide(emitter: &mut Emitter, call: &Call) -> Applied {
    rounded(emitter, call, |emitter, a, b| match a.dtype.is_float() {
        true => floor_of_floats(emitter, a, b),
        false => floor_of_integers(emitter, a, b),
    })
}

/// A function of both operands in the type of the result; f16 and bf16 in f32.
fn rounded(
    emitter: &mut Emitter,
    call: &Call,
    f: impl FnOnce(&mut Emitter, &Val, &Val) -> Emitted,
) -> Applied {
    let dtype = call.dtype()?;
    if dtype == DType::Bool {
        return invalid("a quotient of booleans");
    }
    let (a, b) = (call.operand("self")?, call.operand("other")?);
    let (a, b) = (a.emit(emitter, wide(dtype)), b.emit(emitter, wide(dtype)));
    let y = f(emitter, &a, &b)?;
    one(emitter.cast(&y, dtype))
}

/// The truncated quotient, less one where the remainder and the divisor have different signs.
fn floor_of_integers(emitter: &mut Emitter, a: &Val, b: &Val) -> Emitted {
    let quotient = emitter.binary("Div", a, b)?;
    if a.dtype.is_unsigned_int() {
        return Ok(quotient);
    }
    let corrects = remainder_differs(emitter, a, b)?.1;
    let correction = emitter.cast(&corrects, a.dtype);
    emitter.binary("Sub", &quotient, &correction)
}

/// The remainder with the sign of `a`, and where it is not zero and has another sign than `b`.
fn remainder_differs(emitter: &mut Emitter, a: &Val, b: &Val) -> Result<(Val, Val), crate::emit::Refusal> {
    let remainder = modulo(emitter, a, b, true)?;
    let below = emitter.compare_scalar("Less", &remainder, 0.0)?;
    let divisor_below = emitter.compare_scalar("Less", b, 0.0)?;
    let zero = emitter.compare_scalar("Equal", &remainder, 0.0)?;
    let nonzero = emitter.unary("Not", &zero);
    let differs = emitter.binary("Xor", &below, &divisor_below)?;
    Ok((remainder, emitter.binary("And", &nonzero, &differs)?))
}

/// Python's floor division as eager computes it: from the exact remainder, so that no quotient is rounded up to the
/// next integer. A division by zero gives the quotient itself.
fn floor_of_floats(emitter: &mut Emitter, a: &Val, b: &Val) -> Emitted {
    let (remainder, corrects) = remainder_differs(emitter, a, b)?;
    let exact = emitter.binary("Sub", a, &remainder)?;
    let quotient = emitter.binary("Div", &exact, b)?;
    let lowered = emitter.binary_scalar("Sub", &quotient, 1.0)?;
    let quotient = emitter.select(&corrects, &lowered, &quotient)?;
    let floor = emitter.unary("Floor", &quotient);
    let rest = emitter.binary("Sub", &quotient, &floor)?;
    let raises = emitter.compare_scalar("Greater", &rest, 0.5)?;
    let raised = emitter.binary_scalar("Add", &floor, 1.0)?;
    let floor = emitter.select(&raises, &raised, &floor)?;
    let plain = emitter.binary("Div", a, b)?;
    let by_zero = emitter.compare_scalar("Equal", b, 0.0)?;
    emitter.select(&by_zero, &plain, &floor)
}

fn modulo(emitter: &mut Emitter, a: &Val, b: &Val, truncated: bool) -> Emitted {
    let shape = crate::emit::broadcast(&[&a.shape, &b.shape])?;
    Ok(emitter.one("Mod", &[a, b], &[("fmod", Attribute::Int(truncated.into()))], (a.dtype, shape)))
}

/// The sign of the dividend if `truncated` (C's `fmod`), else that of the divisor (Python's `%`).
fn remainder(emitter: &mut Emitter, call: &Call, truncated: bool) -> Applied {
    rounded(emitter, call, |emitter, a, b| modulo(emitter, a, b, truncated))
}
