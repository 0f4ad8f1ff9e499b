//! Functions of one element of each operand; operands broadcast as in numpy.

use crate::registry::{Applied, Rule, one};
use crate::{Call, Context};
use orch_ir::{BinaryFn, CompareFn, ScalarFn, UnaryFn};

mod bits;
mod cast;
mod clip;
mod float_class;
mod modulo;
mod pow;
mod scalar_set;
mod select;
mod variadic;

/// A rule for an operator that is one scalar function.
macro_rules! scalar {
    ($op_type:literal, $f:expr) => {
        Rule::onnx($op_type, |ctx, call| apply(ctx, call, $f))
    };
}

/// The rules of this family. Operator sets before 7 broadcast by attributes.
pub const RULES: &[Rule] = &[
    scalar!("Abs", ScalarFn::Unary(UnaryFn::Abs)),
    scalar!("Neg", ScalarFn::Unary(UnaryFn::Neg)),
    scalar!("Sign", ScalarFn::Unary(UnaryFn::Sign)),
    scalar!("Ceil", ScalarFn::Unary(UnaryFn::Ceil)),
    scalar!("Floor", ScalarFn::Unary(UnaryFn::Floor)),
    scalar!("Round", ScalarFn::Unary(UnaryFn::RoundEven)),
    scalar!("Sqrt", ScalarFn::Unary(UnaryFn::Sqrt)),
    scalar!("Reciprocal", ScalarFn::Unary(UnaryFn::Recip)),
    scalar!("Exp", ScalarFn::Unary(UnaryFn::Exp)),
    scalar!("Log", ScalarFn::Unary(UnaryFn::Log)),
    scalar!("Sin", ScalarFn::Unary(UnaryFn::Sin)),
    scalar!("Cos", ScalarFn::Unary(UnaryFn::Cos)),
    scalar!("Tan", ScalarFn::Unary(UnaryFn::Tan)),
    scalar!("Asin", ScalarFn::Unary(UnaryFn::Asin)),
    scalar!("Acos", ScalarFn::Unary(UnaryFn::Acos)),
    scalar!("Atan", ScalarFn::Unary(UnaryFn::Atan)),
    scalar!("Sinh", ScalarFn::Unary(UnaryFn::Sinh)),
    scalar!("Cosh", ScalarFn::Unary(UnaryFn::Cosh)),
    scalar!("Tanh", ScalarFn::Unary(UnaryFn::Tanh)),
    scalar!("Asinh", ScalarFn::Unary(UnaryFn::Asinh)),
    scalar!("Acosh", ScalarFn::Unary(UnaryFn::Acosh)),
    scalar!("Atanh", ScalarFn::Unary(UnaryFn::Atanh)),
    scalar!("Erf", ScalarFn::Unary(UnaryFn::Erf)),
    scalar!("Not", ScalarFn::Unary(UnaryFn::Not)),
    scalar!("BitwiseNot", ScalarFn::Unary(UnaryFn::Not)),
    scalar!("Add", ScalarFn::Binary(BinaryFn::Add)).since(7),
    scalar!("Sub", ScalarFn::Binary(BinaryFn::Sub)).since(7),
    scalar!("Mul", ScalarFn::Binary(BinaryFn::Mul)).since(7),
    scalar!("Div", ScalarFn::Binary(BinaryFn::Div)).since(7),
    scalar!("And", ScalarFn::Binary(BinaryFn::And)).since(7),
    scalar!("Or", ScalarFn::Binary(BinaryFn::Or)).since(7),
    scalar!("Xor", ScalarFn::Binary(BinaryFn::Xor)).since(7),
    scalar!("BitwiseAnd", ScalarFn::Binary(BinaryFn::And)),
    scalar!("BitwiseOr", ScalarFn::Binary(BinaryFn::Or)),
    scalar!("BitwiseXor", ScalarFn::Binary(BinaryFn::Xor)),
    scalar!("Equal", ScalarFn::Compare(CompareFn::Eq)).since(7),
    scalar!("Less", ScalarFn::Compare(CompareFn::Lt)).since(7),
    scalar!("LessOrEqual", ScalarFn::Compare(CompareFn::Le)),
    scalar!("Greater", ScalarFn::Compare(CompareFn::Gt)).since(7),
    scalar!("GreaterOrEqual", ScalarFn::Compare(CompareFn::Ge)),
    Rule::onnx("Where", select::select),
    Rule::onnx("Mod", modulo::modulo),
    Rule::onnx("Pow", pow::pow).since(7),
    Rule::onnx("Clip", clip::clip),
    Rule::onnx("Sum", variadic::sum),
    Rule::onnx("Mean", variadic::mean),
    Rule::onnx("Max", variadic::max),
    Rule::onnx("Min", variadic::min),
    Rule::onnx("IsNaN", float_class::is_nan),
    Rule::onnx("IsInf", float_class::is_inf),
    Rule::onnx("BitShift", bits::bit_shift),
    Rule::onnx("Cast", cast::cast),
    Rule::onnx("CastLike", cast::cast_like),
    scalar_set::EXPM1,
    scalar_set::PHILOX,
    scalar_set::LOG1P,
    scalar_set::TRUNC,
];

/// `y = f(x_0, x_1, ..)`.
fn apply(ctx: &mut Context<'_>, call: &Call<'_>, f: ScalarFn) -> Applied {
    let operands = (0..f.arity()).map(|index| call.tensor(index)).collect::<Result<Vec<_>, _>>()?;
    one(ctx.map(f, &operands)?)
}
