//! Python's numbers, and the type in which PyTorch computes with operands of several types.

use crate::emit::{Emitter, Refusal, Val, invalid};
use orch_ir::DType;

/// A number of Python.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Number {
    /// The number as a float.
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Bool(value) => f64::from(u8::from(value)),
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// True if the number is `value`.
    pub fn is(self, value: f64) -> bool {
        self.as_f64() == value
    }

    /// The number as a scalar of a type.
    pub fn emit(self, emitter: &mut Emitter, dtype: DType) -> Val {
        match self {
            Self::Bool(value) => emitter.scalar_int(dtype, value.into()),
            Self::Int(value) => emitter.scalar_int(dtype, value),
            Self::Float(value) => emitter.scalar(dtype, value),
        }
    }
}

/// An operand that may be a tensor or a number.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Operand {
    Tensor(Val),
    Number(Number),
}

impl Operand {
    /// The operand as a tensor of a type.
    pub fn emit(&self, emitter: &mut Emitter, dtype: DType) -> Val {
        match self {
            Self::Tensor(value) => emitter.cast(value, dtype),
            Self::Number(number) => number.emit(emitter, dtype),
        }
    }

    /// True for a number.
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Number(_))
    }
}

/// The type in which operands are compared: tensors with dimensions decide, then tensors without, then numbers, unless
/// one of a later group is of a higher category (booleans, integers, floats).
pub(crate) fn common_type(operands: &[&Operand]) -> Result<DType, Refusal> {
    let mut groups: [Option<DType>; 3] = [None; 3];
    for operand in operands {
        let (group, dtype) = match operand {
            Operand::Tensor(value) if value.rank() > 0 => (0, value.dtype),
            Operand::Tensor(value) => (1, value.dtype),
            Operand::Number(Number::Bool(_)) => (2, DType::Bool),
            Operand::Number(Number::Int(_)) => (2, DType::I64),
            Operand::Number(Number::Float(_)) => (2, DType::F32),
        };
        groups[group] = Some(match groups[group] {
            None => dtype,
            Some(known) => promoted(known, dtype)?,
        });
    }
    let [dims, scalars, numbers] = groups;
    let lower = combined(scalars, numbers)?;
    combined(dims, lower)?.map_or_else(|| invalid("nothing is compared"), Ok)
}

fn combined(higher: Option<DType>, lower: Option<DType>) -> Result<Option<DType>, Refusal> {
    Ok(match (higher, lower) {
        (Some(high), Some(low)) if category(high) < category(low) => Some(promoted(high, low)?),
        (high, low) => high.or(low),
    })
}

fn category(dtype: DType) -> u8 {
    match dtype {
        DType::Bool => 0,
        dtype if dtype.is_float() => 2,
        _ => 1,
    }
}

/// The smallest type that both are converted to.
fn promoted(a: DType, b: DType) -> Result<DType, Refusal> {
    if a == b {
        return Ok(a);
    }
    Ok(match (category(a), category(b)) {
        (x, y) if x < y => b,
        (x, y) if x > y => a,
        (2, _) if a.is_half() && b.is_half() => DType::F32,
        (1, _) if a.is_signed_int() == b.is_signed_int() => larger(a, b),
        (1, _) => {
            let (signed, unsigned) = if a.is_signed_int() { (a, b) } else { (b, a) };
            match (signed, unsigned) {
                (DType::I8, DType::U8) => DType::I16,
                (signed, DType::U8) => signed,
                _ => return invalid(format!("{a} and {b} have no common type")),
            }
        }
        _ => larger(a, b),
    })
}

fn larger(a: DType, b: DType) -> DType {
    if a.size_bytes() >= b.size_bytes() { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::ValueId;

    fn tensor(dtype: DType, rank: usize) -> Operand {
        Operand::Tensor(Val { id: ValueId::new(0), dtype, shape: vec![1; rank].into() })
    }

    #[test]
    fn types_are_promoted_as_in_torch() {
        let of = |operands: &[Operand]| common_type(&operands.iter().collect::<Vec<_>>());
        let float = Operand::Number(Number::Float(2.5));
        let int = Operand::Number(Number::Int(2));
        assert_eq!(of(&[tensor(DType::I64, 1), float.clone()]), Ok(DType::F32));
        assert_eq!(of(&[tensor(DType::F16, 1), float.clone()]), Ok(DType::F16));
        assert_eq!(of(&[tensor(DType::U8, 1), int.clone()]), Ok(DType::U8));
        assert_eq!(of(&[tensor(DType::Bool, 1), int]), Ok(DType::I64));
        assert_eq!(of(&[tensor(DType::F16, 1), tensor(DType::F64, 0)]), Ok(DType::F16));
        assert_eq!(of(&[tensor(DType::I32, 1), tensor(DType::F64, 0)]), Ok(DType::F64));
        assert_eq!(of(&[tensor(DType::F16, 1), tensor(DType::BF16, 2)]), Ok(DType::F32));
        assert_eq!(of(&[tensor(DType::I8, 1), tensor(DType::U8, 2)]), Ok(DType::I16));
        assert!(of(&[tensor(DType::I8, 1), tensor(DType::U16, 2)]).is_err());
    }
}
