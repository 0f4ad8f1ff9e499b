//! Element types by their number in ONNX's `TensorProto.DataType`.

use crate::{Call, Operand, RuleError};
use orch_ir::{DType, Encoding};

/// An element type of ONNX.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ElementType {
    /// One that primitives compute in.
    Plain(DType),
    /// One that models store alone.
    Encoded(Encoding),
}

/// The element type with this number in ONNX.
///
/// # Errors
/// If it is one that this compiler does not have, or no type at all.
pub fn element_from_onnx(code: i64) -> Result<ElementType, RuleError> {
    let encoding = match code {
        17 => Encoding::F8E4M3Fn,
        18 => Encoding::F8E4M3FnUz,
        19 => Encoding::F8E5M2,
        20 => Encoding::F8E5M2FnUz,
        21 => Encoding::U4,
        22 => Encoding::I4,
        23 => Encoding::F4E2M1,
        24 => Encoding::F8E8M0,
        25 => Encoding::U2,
        26 => Encoding::I2,
        _ => return plain_from_onnx(code).map(ElementType::Plain),
    };
    Ok(ElementType::Encoded(encoding))
}

/// The element type with this number in ONNX, one that primitives compute in.
///
/// # Errors
/// If it is another, or no type at all.
pub fn dtype_from_onnx(code: i64) -> Result<DType, RuleError> {
    match element_from_onnx(code)? {
        ElementType::Plain(dtype) => Ok(dtype),
        ElementType::Encoded(encoding) => {
            Err(RuleError::unsupported(format!("results of type {encoding} from this operator")))
        }
    }
}

fn plain_from_onnx(code: i64) -> Result<DType, RuleError> {
    Ok(match code {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        8 => return Err(RuleError::unsupported("strings")),
        14 | 15 => return Err(RuleError::unsupported("complex numbers")),
        27 | 28 => return Err(RuleError::unsupported("floats of 6 bits")),
        _ => return Err(RuleError::invalid(format!("{code} is no ONNX element type"))),
    })
}

impl Call<'_> {
    /// An attribute that names an element type.
    ///
    /// # Errors
    /// If the attribute is of another kind, or the type is not one that this compiler has.
    pub fn dtype_attribute(&self, name: &str) -> Result<Option<DType>, RuleError> {
        self.int(name)?.map(dtype_from_onnx).transpose()
    }

    /// Like [`Call::dtype_attribute`], for attributes that may name any type.
    ///
    /// # Errors
    /// If the attribute is of another kind, or names no type that this compiler has.
    pub fn element_attribute(&self, name: &str) -> Result<Option<ElementType>, RuleError> {
        self.int(name)?.map(element_from_onnx).transpose()
    }

    /// How operand `index` is encoded, if it is.
    pub fn encoding(&self, index: usize) -> Option<Encoding> {
        match self.operand(index) {
            Some(Operand::Encoded { encoding, .. }) => Some(*encoding),
            _ => None,
        }
    }
}
