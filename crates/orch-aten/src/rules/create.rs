//! Tensors from numbers: full, arange, scalar_tensor.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitter, invalid};
use crate::promote::Number;
use orch_ir::DType;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.full.default", "size fill_value dtype", full),
    rule("aten.full_like.default", "self fill_value dtype", full_like),
    rule("aten.zeros_like.default", "self dtype", zeros_like),
    rule("aten.ones_like.default", "self dtype", ones_like),
    rule("aten.zeros.default", "size dtype", zeros),
    rule("aten.ones.default", "size dtype", ones),
    rule("aten.empty.memory_format", "size dtype", zeros),
    rule("aten.new_zeros.default", "self size dtype", zeros),
    rule("aten.scalar_tensor.default", "s dtype", scalar_tensor),
    rule("aten.fill.Scalar", "self value", fill),
    rule("aten.arange.default", "end dtype", arange),
    rule("aten.arange.start", "start end dtype", arange),
    rule("aten.arange.start_step", "start end step dtype", arange),
    rule("prims.iota.default", "length start step dtype", iota),
];

/// The number in the shape and type of the result.
fn filled(emitter: &mut Emitter, call: &Call, shape: &orch_ir::Shape, value: Number) -> Applied {
    let value = value.emit(emitter, call.dtype()?);
    one(emitter.full(&value, shape)?)
}

fn full(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &call.dims("size")?, call.number("fill_value")?)
}

fn full_like(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &call.tensor("self")?.shape, call.number("fill_value")?)
}

fn zeros_like(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &call.tensor("self")?.shape, Number::Int(0))
}

fn ones_like(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &call.tensor("self")?.shape, Number::Int(1))
}

/// What `empty` leaves open is zero too.
fn zeros(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &call.dims("size")?, Number::Int(0))
}

fn ones(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &call.dims("size")?, Number::Int(1))
}

fn scalar_tensor(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &orch_ir::Shape::scalar(), call.number("s")?)
}

fn fill(emitter: &mut Emitter, call: &Call) -> Applied {
    filled(emitter, call, &call.tensor("self")?.shape, call.number("value")?)
}

fn arange(emitter: &mut Emitter, call: &Call) -> Applied {
    let start = call.number_or("start", Number::Int(0))?;
    let step = call.number_or("step", Number::Int(1))?;
    let end = call.number("end")?;
    if step.is(0.0) || step.as_f64().is_nan() {
        return invalid(format!("the step is {}", step.as_f64()));
    }
    let count = if let (Number::Int(start), Number::Int(end), Number::Int(step)) = (start, end, step) {
        let span = (i128::from(end) - i128::from(start)) * i128::from(step.signum());
        (span.max(0) as u128).div_ceil(u128::from(step.unsigned_abs())) as f64
    } else {
        ((end.as_f64() - start.as_f64()) / step.as_f64()).ceil().max(0.0)
    };
    progression(emitter, call, count, start, step)
}

fn iota(emitter: &mut Emitter, call: &Call) -> Applied {
    let count = call.int("length")?.max(0) as f64;
    progression(emitter, call, count, call.number("start")?, call.number("step")?)
}

/// `start + i step` for `i < count`: in integers, or in f64 and rounded once.
fn progression(emitter: &mut Emitter, call: &Call, count: f64, start: Number, step: Number) -> Applied {
    if count.is_nan() || count > orch_ir::MAX_ELEMS as f64 {
        return invalid(format!("{count} elements"));
    }
    let dtype = call.dtype()?;
    let integers = matches!((start, step), (Number::Int(_), Number::Int(_)));
    let compute = if integers { DType::I64 } else { DType::F64 };
    let mut values = emitter.iota(count as usize);
    values = emitter.cast(&values, compute);
    if !step.is(1.0) {
        let step = step.emit(emitter, compute);
        values = emitter.binary("Mul", &values, &step)?;
    }
    if !start.is(0.0) {
        let start = start.emit(emitter, compute);
        values = emitter.binary("Add", &values, &start)?;
    }
    one(emitter.cast(&values, dtype))
}
