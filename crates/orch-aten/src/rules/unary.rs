//! Functions of one element. Integers are converted to the result's type first; f16 and bf16 compute in f32, so that
//! composite functions round once.

use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, invalid, wide};
use orch_ir::DType;
use std::f64::consts::{LN_2, LN_10};

/// A rule for a function that is one operator.
macro_rules! operator {
    ($name:literal, $op_type:literal) => {
        rule($name, "self", |emitter, call| {
            floats(emitter, call, |emitter, x| Ok(emitter.unary($op_type, x)))
        })
    };
}

/// A rule for a function that ONNX lacks.
macro_rules! function {
    ($name:literal, $op_type:literal) => {
        rule($name, "self", |emitter, call| {
            floats(emitter, call, |emitter, x| Ok(emitter.scalar_function($op_type, x)))
        })
    };
}

/// A rule for a function that leaves integers as they are.
macro_rules! rounding {
    ($name:literal, $apply:expr) => {
        rule($name, "self", |emitter, call| match call.tensor("self")? {
            x if x.dtype.is_float() => floats(emitter, call, $apply),
            x => one(x.clone()),
        })
    };
}

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    operator!("aten.exp.default", "Exp"),
    operator!("aten.log.default", "Log"),
    operator!("aten.erf.default", "Erf"),
    operator!("aten.tanh.default", "Tanh"),
    operator!("aten.sigmoid.default", "Sigmoid"),
    operator!("aten.sqrt.default", "Sqrt"),
    operator!("aten.reciprocal.default", "Reciprocal"),
    operator!("aten.sin.default", "Sin"),
    operator!("aten.cos.default", "Cos"),
    operator!("aten.tan.default", "Tan"),
    operator!("aten.asin.default", "Asin"),
    operator!("aten.acos.default", "Acos"),
    operator!("aten.atan.default", "Atan"),
    operator!("aten.sinh.default", "Sinh"),
    operator!("aten.cosh.default", "Cosh"),
    operator!("aten.asinh.default", "Asinh"),
    operator!("aten.acosh.default", "Acosh"),
    operator!("aten.atanh.default", "Atanh"),
    function!("aten.expm1.default", "Expm1"),
    function!("aten.log1p.default", "Log1p"),
    rule("aten.log2.default", "self", |emitter, call| logarithm(emitter, call, LN_2)),
    rule("aten.log10.default", "self", |emitter, call| logarithm(emitter, call, LN_10)),
    rule("aten.rsqrt.default", "self", rsqrt),
    rule("aten.silu.default", "self", silu),
    rounding!("aten.floor.default", |emitter, x| Ok(emitter.unary("Floor", x))),
    rounding!("aten.ceil.default", |emitter, x| Ok(emitter.unary("Ceil", x))),
    rounding!("aten.round.default", |emitter, x| Ok(emitter.unary("Round", x))),
    rounding!("aten.trunc.default", |emitter, x| Ok(emitter.scalar_function("Trunc", x))),
    rule("aten.neg.default", "self", |emitter, call| one(emitter.unary("Neg", call.tensor("self")?))),
    rule("aten.abs.default", "self", abs),
    rule("aten.sign.default", "self", sign),
    rule("aten.relu.default", "self", |emitter, call| one(emitter.unary("Relu", call.tensor("self")?))),
    rule("aten.logical_not.default", "self", logical_not),
    rule("aten.bitwise_not.default", "self", bitwise_not),
    rule("aten.isnan.default", "self", |emitter, call| class(emitter, call, "IsNaN")),
    rule("aten.isinf.default", "self", |emitter, call| class(emitter, call, "IsInf")),
];

/// A function of floats: f16 and bf16 in f32.
pub(super) fn floats(
    emitter: &mut Emitter,
    call: &Call,
    f: impl FnOnce(&mut Emitter, &Val) -> Emitted,
) -> Applied {
    let dtype = call.dtype()?;
    if !dtype.is_float() {
        return invalid(format!("the result is {dtype}, floats are expected"));
    }
    let x = emitter.cast(call.tensor("self")?, wide(dtype));
    let y = f(emitter, &x)?;
    one(emitter.cast(&y, dtype))
}

fn logarithm(emitter: &mut Emitter, call: &Call, base: f64) -> Applied {
    floats(emitter, call, |emitter, x| {
        // In f64, so that powers of the base give integers.
        let precise = emitter.cast(x, DType::F64);
        let log = emitter.unary("Log", &precise);
        let log = emitter.binary_scalar("Div", &log, base)?;
        Ok(emitter.cast(&log, x.dtype))
    })
}

fn rsqrt(emitter: &mut Emitter, call: &Call) -> Applied {
    floats(emitter, call, |emitter, x| {
        let root = emitter.unary("Sqrt", x);
        Ok(emitter.unary("Reciprocal", &root))
    })
}

fn silu(emitter: &mut Emitter, call: &Call) -> Applied {
    floats(emitter, call, |emitter, x| {
        let gate = emitter.unary("Sigmoid", x);
        emitter.binary("Mul", x, &gate)
    })
}

/// Booleans stay as they are.
fn abs(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    one(if x.dtype == DType::Bool { x.clone() } else { emitter.unary("Abs", x) })
}

/// Booleans stay as they are; NaN has the sign 0, as in eager.
fn sign(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    if x.dtype == DType::Bool {
        return one(x.clone());
    }
    let sign = emitter.unary("Sign", x);
    if !x.dtype.is_float() {
        return one(sign);
    }
    let nan = emitter.one("IsNaN", &[x], &[], (DType::Bool, x.shape.clone()));
    let zero = emitter.scalar(x.dtype, 0.0);
    one(emitter.select(&nan, &zero, &sign)?)
}

fn logical_not(emitter: &mut Emitter, call: &Call) -> Applied {
    let truth = emitter.truth(call.tensor("self")?);
    one(emitter.unary("Not", &truth))
}

fn bitwise_not(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    match x.dtype {
        DType::Bool => one(emitter.unary("Not", x)),
        dtype if dtype.is_int() => one(emitter.unary("BitwiseNot", x)),
        dtype => invalid(format!("the bits of {dtype}")),
    }
}

/// Integers are neither NaN nor infinite.
fn class(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let x = call.tensor("self")?;
    if !x.dtype.is_float() {
        return one(emitter.zeros(DType::Bool, &x.shape)?);
    }
    one(emitter.one(op_type, &[x], &[], (DType::Bool, x.shape.clone())))
}
