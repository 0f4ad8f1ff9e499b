//! Functions of several elements, and activations with parameters.
//!
//! Operands are converted to the type of the result, comparisons to their common type. f16 and bf16 compute in f32
//! where a number or more than one rounding takes part: eager keeps numbers in f32 there.

use super::unary::floats;
use super::{Applied, Rule, one, rule};
use crate::call::Call;
use crate::emit::{Emitted, Emitter, Val, invalid, wide};
use crate::promote::{Number, Operand, common_type};
use orch_ir::DType;

/// A rule for a comparison.
macro_rules! comparison {
    ($name:literal, $op_type:literal) => {
        rule($name, "self other", |emitter, call| compare(emitter, call, $op_type))
    };
}

/// A rule for a function of truth values or bits.
macro_rules! bits {
    ($name:literal, $logical:literal, $bitwise:literal) => {
        rule($name, "self other", |emitter, call| bitwise(emitter, call, $logical, $bitwise))
    };
}

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    rule("aten.add.Tensor", "self other alpha", |emitter, call| sum(emitter, call, "Add")),
    rule("aten.add.Scalar", "self other alpha", |emitter, call| sum(emitter, call, "Add")),
    rule("aten.sub.Tensor", "self other alpha", |emitter, call| sum(emitter, call, "Sub")),
    rule("aten.sub.Scalar", "self other alpha", |emitter, call| sum(emitter, call, "Sub")),
    rule("aten.rsub.Scalar", "self other alpha", rsub),
    rule("aten.mul.Tensor", "self other", product),
    rule("aten.mul.Scalar", "self other", product),
    rule("aten.pow.Tensor_Scalar", "self exponent", power).when("no integer to a negative power"),
    rule("aten.pow.Tensor_Tensor", "self exponent", power),
    rule("aten.pow.Scalar", "self exponent", power),
    rule("aten.maximum.default", "self other", |emitter, call| extreme(emitter, call, "Max")),
    rule("aten.minimum.default", "self other", |emitter, call| extreme(emitter, call, "Min")),
    rule("aten.clamp.default", "self min max", clamp),
    rule("aten.clamp.Tensor", "self min max", clamp),
    rule("aten.clamp_min.default", "self min", clamp),
    rule("aten.clamp_max.default", "self max", clamp),
    rule("aten.hardtanh.default", "self min_val max_val", hardtanh),
    rule("aten.elu.default", "self alpha scale input_scale", elu),
    rule("aten.gelu.default", "self approximate", gelu),
    rule("aten.leaky_relu.default", "self negative_slope", leaky_relu),
    rule("aten.where.self", "condition self other", select),
    rule("aten.where.ScalarSelf", "condition self other", select),
    rule("aten.where.ScalarOther", "condition self other", select),
    rule("aten.where.Scalar", "condition self other", select),
    rule("aten.masked_fill.Scalar", "self mask value", masked_fill),
    rule("aten.masked_fill.Tensor", "self mask value", masked_fill),
    comparison!("aten.eq.Tensor", "Equal"),
    comparison!("aten.eq.Scalar", "Equal"),
    comparison!("aten.ne.Tensor", "NotEqual"),
    comparison!("aten.ne.Scalar", "NotEqual"),
    comparison!("aten.lt.Tensor", "Less"),
    comparison!("aten.lt.Scalar", "Less"),
    comparison!("aten.le.Tensor", "LessOrEqual"),
    comparison!("aten.le.Scalar", "LessOrEqual"),
    comparison!("aten.gt.Tensor", "Greater"),
    comparison!("aten.gt.Scalar", "Greater"),
    comparison!("aten.ge.Tensor", "GreaterOrEqual"),
    comparison!("aten.ge.Scalar", "GreaterOrEqual"),
    bits!("aten.bitwise_and.Tensor", "And", "BitwiseAnd"),
    bits!("aten.bitwise_and.Scalar", "And", "BitwiseAnd"),
    bits!("aten.bitwise_or.Tensor", "Or", "BitwiseOr"),
    bits!("aten.bitwise_or.Scalar", "Or", "BitwiseOr"),
    bits!("aten.bitwise_xor.Tensor", "Xor", "BitwiseXor"),
    bits!("aten.bitwise_xor.Scalar", "Xor", "BitwiseXor"),
    rule("aten.logical_and.default", "self other", |emitter, call| logical(emitter, call, "And")),
    rule("aten.logical_or.default", "self other", |emitter, call| logical(emitter, call, "Or")),
    rule("aten.logical_xor.default", "self other", |emitter, call| logical(emitter, call, "Xor")),
    rule("aten.addcmul.default", "self tensor1 tensor2 value", |emitter, call| fused(emitter, call, "Mul")),
    rule("aten.addcdiv.default", "self tensor1 tensor2 value", |emitter, call| fused(emitter, call, "Div")),
];

/// The type to compute in: that of the result, f32 for f16 and bf16 if a number takes part.
pub(super) fn compute_type(dtype: DType, operands: &[&Operand]) -> DType {
    if operands.iter().any(|operand| operand.is_number()) { wide(dtype) } else { dtype }
}

/// `self + alpha other` or `self - alpha other`; the sum of booleans is their disjunction.
fn sum(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let dtype = call.dtype()?;
    let (a, b) = (call.operand("self")?, call.operand("other")?);
    let alpha = call.number_or("alpha", Number::Int(1))?;
    if dtype == DType::Bool {
        if op_type == "Sub" || !alpha.is(1.0) {
            return invalid("a difference or scaled sum of booleans");
        }
        let (a, b) = (a.emit(emitter, dtype), b.emit(emitter, dtype));
        return one(emitter.binary("Or", &a, &b)?);
    }
    let compute = if alpha.is(1.0) { compute_type(dtype, &[&a, &b]) } else { wide(dtype) };
    let (a, mut b) = (a.emit(emitter, compute), b.emit(emitter, compute));
    if !alpha.is(1.0) {
        let alpha = alpha.emit(emitter, compute);
        b = emitter.binary("Mul", &b, &alpha)?;
    }
    let y = emitter.binary(op_type, &a, &b)?;
    one(emitter.cast(&y, dtype))
}

/// `other - alpha self`.
fn rsub(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    let compute = wide(dtype);
    let alpha = call.number_or("alpha", Number::Int(1))?.emit(emitter, compute);
    let (a, b) =
        (call.operand("self")?.emit(emitter, compute), call.operand("other")?.emit(emitter, compute));
    let scaled = emitter.binary("Mul", &a, &alpha)?;
    let y = emitter.binary("Sub", &b, &scaled)?;
    one(emitter.cast(&y, dtype))
}

/// The product of booleans is their conjunction.
fn product(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    let (a, b) = (call.operand("self")?, call.operand("other")?);
    let compute = compute_type(dtype, &[&a, &b]);
    let (a, b) = (a.emit(emitter, compute), b.emit(emitter, compute));
    let y = emitter.binary(if dtype == DType::Bool { "And" } else { "Mul" }, &a, &b)?;
    one(emitter.cast(&y, dtype))
}

/// Integers wrap; a tensor of negative exponents gives 0, 1 or -1 for integers, as in eager.
fn power(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    let (base, exponent) = (call.operand("self")?, call.operand("exponent")?);
    if dtype == DType::Bool {
        return invalid("a power of booleans");
    }
    if let (Operand::Number(exponent), true) = (&exponent, dtype.is_int())
        && exponent.as_f64() < 0.0
    {
        return invalid("an integer to a negative power");
    }
    let compute = wide(dtype);
    let base = base.emit(emitter, compute);
    // Eager takes the reciprocal of the root, which differs from the power at -inf and -0.
    if matches!(&exponent, Operand::Number(number) if number.is(-0.5)) && dtype.is_float() {
        let root = emitter.unary("Sqrt", &base);
        let y = emitter.unary("Reciprocal", &root);
        return one(emitter.cast(&y, dtype));
    }
    let exponent = exponent.emit(emitter, compute);
    let y = emitter.binary("Pow", &base, &exponent)?;
    one(emitter.cast(&y, dtype))
}

/// NaN if either is NaN.
fn extreme(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let dtype = call.dtype()?;
    let (a, b) = (call.operand("self")?.emit(emitter, dtype), call.operand("other")?.emit(emitter, dtype));
    one(emitter.binary(op_type, &a, &b)?)
}

/// `min(max(self, min), max)`: NaN stays NaN, and a bound that is NaN gives NaN.
fn clamp(emitter: &mut Emitter, call: &Call) -> Applied {
    bounded(emitter, call, call.optional_operand("min")?, call.optional_operand("max")?)
}

fn hardtanh(emitter: &mut Emitter, call: &Call) -> Applied {
    let bound = |name: &str, default: i64| call.number_or(name, Number::Int(default)).map(Operand::Number);
    bounded(emitter, call, Some(bound("min_val", -1)?), Some(bound("max_val", 1)?))
}

fn bounded(emitter: &mut Emitter, call: &Call, low: Option<Operand>, high: Option<Operand>) -> Applied {
    let dtype = call.dtype()?;
    let mut y = emitter.cast(call.tensor("self")?, dtype);
    if let Some(low) = low {
        let low = low.emit(emitter, dtype);
        y = emitter.binary("Max", &y, &low)?;
    }
    if let Some(high) = high {
        let high = high.emit(emitter, dtype);
        y = emitter.binary("Min", &y, &high)?;
    }
    one(y)
}

/// `x > 0 ? scale x : scale alpha (e^(input_scale x) - 1)`.
fn elu(emitter: &mut Emitter, call: &Call) -> Applied {
    let parameter = |name: &str| call.float_or(name, 1.0);
    let (alpha, scale, input_scale) = (parameter("alpha")?, parameter("scale")?, parameter("input_scale")?);
    floats(emitter, call, |emitter, x| {
        let scaled = emitter.binary_scalar("Mul", x, input_scale)?;
        let grown = emitter.scalar_function("Expm1", &scaled);
        let negative = emitter.binary_scalar("Mul", &grown, alpha * scale)?;
        let positive = emitter.binary_scalar("Mul", x, scale)?;
        let below = emitter.compare_scalar("LessOrEqual", x, 0.0)?;
        emitter.select(&below, &negative, &positive)
    })
}

fn gelu(emitter: &mut Emitter, call: &Call) -> Applied {
    let approximate = call.text_or("approximate", "none")?;
    if !["none", "tanh"].contains(&approximate) {
        return invalid(format!("approximate is `{approximate}`, `none` or `tanh` is expected"));
    }
    let is_tanh = approximate == "tanh";
    let approximate = orch_ir::Attribute::String(approximate.to_owned());
    floats(emitter, call, |emitter, x| {
        // ONNX's function has constants of f32 there.
        if is_tanh && x.dtype == DType::F64 {
            return gelu_by_tanh(emitter, x);
        }
        Ok(emitter.one("Gelu", &[x], &[("approximate", approximate)], (x.dtype, x.shape.clone())))
    })
}

/// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
fn gelu_by_tanh(emitter: &mut Emitter, x: &Val) -> Emitted {
    let square = emitter.binary("Mul", x, x)?;
    let cube = emitter.binary("Mul", &square, x)?;
    let cube = emitter.binary_scalar("Mul", &cube, 0.044715)?;
    let sum = emitter.binary("Add", x, &cube)?;
    let inner = emitter.binary_scalar(
        "Mul",
        &sum,
        std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2,
    )?;
    let tanh = emitter.unary("Tanh", &inner);
    let weight = emitter.binary_scalar("Add", &tanh, 1.0)?;
    let half = emitter.binary_scalar("Mul", x, 0.5)?;
    emitter.binary("Mul", &half, &weight)
}

fn leaky_relu(emitter: &mut Emitter, call: &Call) -> Applied {
    let slope = call.float_or("negative_slope", 0.01)?;
    floats(emitter, call, |emitter, x| {
        let scaled = emitter.binary_scalar("Mul", x, slope)?;
        let above = emitter.compare_scalar("Greater", x, 0.0)?;
        emitter.select(&above, x, &scaled)
    })
}

fn select(emitter: &mut Emitter, call: &Call) -> Applied {
    let dtype = call.dtype()?;
    let condition = emitter.truth(call.tensor("condition")?);
    let (a, b) = (call.operand("self")?.emit(emitter, dtype), call.operand("other")?.emit(emitter, dtype));
    one(emitter.select(&condition, &a, &b)?)
}

fn masked_fill(emitter: &mut Emitter, call: &Call) -> Applied {
    let x = call.tensor("self")?;
    let mask = emitter.truth(call.tensor("mask")?);
    let value = call.operand("value")?.emit(emitter, x.dtype);
    one(emitter.select(&mask, &value, x)?)
}

fn compare(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let (a, b) = (call.operand("self")?, call.operand("other")?);
    let dtype = common_type(&[&a, &b])?;
    let (a, b) = (a.emit(emitter, dtype), b.emit(emitter, dtype));
    if op_type == "NotEqual" {
        let equal = emitter.compare("Equal", &a, &b)?;
        return one(emitter.unary("Not", &equal));
    }
    one(emitter.compare(op_type, &a, &b)?)
}

fn bitwise(emitter: &mut Emitter, call: &Call, logical: &str, bitwise: &str) -> Applied {
    let dtype = call.dtype()?;
    if dtype.is_float() {
        return invalid(format!("the bits of {dtype}"));
    }
    let (a, b) = (call.operand("self")?.emit(emitter, dtype), call.operand("other")?.emit(emitter, dtype));
    one(emitter.binary(if dtype == DType::Bool { logical } else { bitwise }, &a, &b)?)
}

fn logical(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let (a, b) = (emitter.truth(call.tensor("self")?), emitter.truth(call.tensor("other")?));
    one(emitter.binary(op_type, &a, &b)?)
}

/// `self + value (tensor1 op tensor2)`.
fn fused(emitter: &mut Emitter, call: &Call, op_type: &str) -> Applied {
    let dtype = call.dtype()?;
    let compute = wide(dtype);
    let [x, a, b] = [call.tensor("self")?, call.tensor("tensor1")?, call.tensor("tensor2")?];
    let [x, a, b] = [x, a, b].map(|operand| emitter.cast(operand, compute));
    let value = call.number_or("value", Number::Int(1))?.emit(emitter, compute);
    // The order of eager: (value a) op b.
    let scaled = emitter.binary("Mul", &a, &value)?;
    let term = emitter.binary(op_type, &scaled, &b)?;
    let y = emitter.binary("Add", &x, &term)?;
    one(emitter.cast(&y, dtype))
}
