//! Operations that C has an operator for, so that they need no function of the prelude.

use super::super::types::scalar_name;
use super::op::Op;
use orch_ir::{BinaryFn, DType, UnaryFn};

/// The operator text of a scalar operation, if there is one.
pub fn scalar(op: Op, dtype: DType, args: &[&str]) -> Option<String> {
    let ty = scalar_name(dtype);
    match op {
        Op::Unary(UnaryFn::Neg) if dtype.is_float() => Some(format!("(-{})", args[0])),
        Op::Unary(UnaryFn::Not) => Some(format!("(({ty})~{})", args[0])),
        Op::Binary(f) => binary_operator(f, dtype).map(|op| format!("({} {op} {})", args[0], args[1])),
        Op::Compare(f) => Some(format!("({} {} {})", args[0], f.symbol(), args[1])),
        Op::Select => Some(format!("({} ? {} : {})", args[0], args[1], args[2])),
        Op::QuotientBy(divisor) => Some(format!("({} / {divisor})", args[0])),
        Op::RemainderBy(divisor) => Some(format!("({} % {divisor})", args[0])),
        Op::Splat => Some(args[0].to_owned()),
        Op::Load => Some(format!("(*{})", args[0])),
        Op::Cast(from) if from == dtype => Some(args[0].to_owned()),
        Op::Cast(from) => {
            let saturates = from.is_float() && !dtype.is_float();
            (!from.is_half() && !dtype.is_half() && !saturates).then(|| format!("(({ty}){})", args[0]))
        }
        _ => None,
    }
}

/// The operator text of a vector operation, if there is one.
pub fn vector(op: Op, dtype: DType, args: &[&str]) -> Option<String> {
    match op {
        Op::Unary(UnaryFn::Neg) if dtype.is_float() => Some(format!("(-{})", args[0])),
        Op::Unary(UnaryFn::Not) => Some(format!("(~{})", args[0])),
        Op::Binary(f) => binary_operator(f, dtype).map(|op| format!("({} {op} {})", args[0], args[1])),
        _ => None,
    }
}

/// The C operator of a function on floats, or of a bitwise function.
pub fn binary_operator(f: BinaryFn, dtype: DType) -> Option<&'static str> {
    match f {
        BinaryFn::Add if dtype.is_float() => Some("+"),
        BinaryFn::Sub if dtype.is_float() => Some("-"),
        BinaryFn::Mul if dtype.is_float() => Some("*"),
        BinaryFn::Div if dtype.is_float() => Some("/"),
        BinaryFn::And => Some("&"),
        BinaryFn::Or => Some("|"),
        BinaryFn::Xor => Some("^"),
        _ => None,
    }
}
