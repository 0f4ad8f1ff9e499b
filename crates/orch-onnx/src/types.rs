//! Declared types: element type codes and the shapes of values.

use crate::dims::Dims;
use crate::problem::{Place, Problems, Reason};
use crate::proto::tensor_proto::DataType;
use crate::proto::tensor_shape_proto::Dimension;
use crate::proto::tensor_shape_proto::dimension::Value as DimValue;
use crate::proto::type_proto::Value as TypeValue;
use crate::proto::{TensorProto, TensorShapeProto, ValueInfoProto};
use orch_ir::{DType, Encoding, Shape, Value};

/// The plain element type with this code, or a name for the one we do not have.
fn element_type(code: i32) -> Result<DType, String> {
    let Ok(kind) = DataType::try_from(code) else { return Err(format!("number {code}")) };
    Ok(match kind {
        DataType::Bool => DType::Bool,
        DataType::Int8 => DType::I8,
        DataType::Int16 => DType::I16,
        DataType::Int32 => DType::I32,
        DataType::Int64 => DType::I64,
        DataType::Uint8 => DType::U8,
        DataType::Uint16 => DType::U16,
        DataType::Uint32 => DType::U32,
        DataType::Uint64 => DType::U64,
        DataType::Float16 => DType::F16,
        DataType::Bfloat16 => DType::BF16,
        DataType::Float => DType::F32,
        DataType::Double => DType::F64,
        DataType::Undefined
        | DataType::String
        | DataType::Complex64
        | DataType::Complex128
        | DataType::Float8e4m3fn
        | DataType::Float8e4m3fnuz
        | DataType::Float8e5m2
        | DataType::Float8e5m2fnuz
        | DataType::Uint4
        | DataType::Int4
        | DataType::Float4e2m1
        | DataType::Float8e8m0
        | DataType::Uint2
        | DataType::Int2
        | DataType::Float6e2m3
        | DataType::Float6e3m2 => return Err(kind.as_str_name().to_lowercase()),
    })
}

/// The encoding with this code.
fn encoding(code: i32) -> Option<Encoding> {
    Some(match DataType::try_from(code).ok()? {
        DataType::Float8e4m3fn => Encoding::F8E4M3Fn,
        DataType::Float8e4m3fnuz => Encoding::F8E4M3FnUz,
        DataType::Float8e5m2 => Encoding::F8E5M2,
        DataType::Float8e5m2fnuz => Encoding::F8E5M2FnUz,
        DataType::Float8e8m0 => Encoding::F8E8M0,
        DataType::Float4e2m1 => Encoding::F4E2M1,
        DataType::Int4 => Encoding::I4,
        DataType::Uint4 => Encoding::U4,
        DataType::Int2 => Encoding::I2,
        DataType::Uint2 => Encoding::U2,
        _ => return None,
    })
}

/// The element type with this code, that of the codes where elements are encoded; or a name for the one we do not
/// have.
pub(crate) fn element(code: i32) -> Result<(DType, Option<Encoding>), String> {
    match encoding(code) {
        Some(encoding) => Ok((encoding.carrier(), Some(encoding))),
        None => element_type(code).map(|dtype| (dtype, None)),
    }
}

/// The code of an element type.
pub(crate) fn element_code(dtype: DType) -> i32 {
    let kind = match dtype {
        DType::Bool => DataType::Bool,
        DType::I8 => DataType::Int8,
        DType::I16 => DataType::Int16,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::U8 => DataType::Uint8,
        DType::U16 => DataType::Uint16,
        DType::U32 => DataType::Uint32,
        DType::U64 => DataType::Uint64,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::F32 => DataType::Float,
        DType::F64 => DataType::Double,
    };
    kind as i32
}

/// What a declaration tells about a value; what it leaves open, or we have no type for, is `None`.
pub(crate) fn declared(info: &ValueInfoProto, dims: &Dims) -> Value {
    let mut value = Value { name: info.name().to_owned(), ..Value::default() };
    if let Some(TypeValue::TensorType(tensor)) = info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        (value.dtype, value.encoding) = optional(element(tensor.elem_type()).ok());
        value.shape = tensor.shape.as_ref().and_then(|shape| plausible(declared_shape(shape, dims)));
    }
    value
}

/// What the header of a constant tells about it.
pub(crate) fn constant(tensor: &TensorProto) -> Value {
    let shape = tensor.dims.iter().map(|&size| usize::try_from(size).ok()).collect();
    let (dtype, encoding) = optional(element(tensor.data_type()).ok());
    Value { name: tensor.name().to_owned(), dtype, encoding, shape: plausible(shape) }
}

/// The parts of an element type that may be unknown.
fn optional(element: Option<(DType, Option<Encoding>)>) -> (Option<DType>, Option<Encoding>) {
    element.map_or((None, None), |(dtype, encoding)| (Some(dtype), encoding))
}

/// A declared shape, unless its size is absurd.
fn plausible(shape: Vec<Option<usize>>) -> Option<Vec<Option<usize>>> {
    let known: Vec<usize> = shape.iter().copied().flatten().collect();
    Shape::checked(known).map(|_| shape)
}

/// The sizes that are known of a declared shape.
fn declared_shape(shape: &TensorShapeProto, dims: &Dims) -> Vec<Option<usize>> {
    let size = |dim: &Dimension| match &dim.value {
        Some(DimValue::DimValue(size)) => usize::try_from(*size).ok(),
        Some(DimValue::DimParam(symbol)) => dims.get(symbol),
        None => None,
    };
    shape.dim.iter().map(size).collect()
}

/// The type of an input of the main graph: a tensor with every dimension bound, or problems. Sequences and optionals
/// pass without a type: what they hold is up to the caller of the stages that follow.
pub(crate) fn input(info: &ValueInfoProto, dims: &mut Dims, problems: &mut Problems) -> Value {
    let name = info.name();
    let mut value = Value { name: name.to_owned(), ..Value::default() };
    let mut problem = |reason| problems.add(Place::Input(name.to_owned()), reason);
    let tensor = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::TensorType(tensor)) => tensor,
        Some(TypeValue::SequenceType(_) | TypeValue::OptionalType(_)) => return value,
        Some(other) => {
            problem(Reason::NotATensor { kind: kind_name(other) });
            return value;
        }
        None => {
            problem(Reason::NoType);
            return value;
        }
    };
    match element(tensor.elem_type()) {
        Ok(known) => (value.dtype, value.encoding) = optional(Some(known)),
        Err(_) if tensor.elem_type() == DataType::Undefined as i32 => problem(Reason::NoType),
        Err(given) => problem(Reason::ElementType { given }),
    }
    let bound = match (&tensor.shape, dims.given_shape(name)) {
        (Some(shape), _) => dims.bind(name, &shape.dim),
        (None, Some(given)) => Ok(given.to_vec()),
        (None, None) => Err(vec![Reason::NoShape]),
    };
    match bound {
        Ok(bound) if Shape::checked(bound.clone()).is_none() => problem(Reason::TooLarge { dims: bound }),
        Ok(bound) => value.shape = Some(bound.into_iter().map(Some).collect()),
        Err(reasons) => reasons.into_iter().for_each(problem),
    }
    value
}

/// Reports an output of the main graph that is not a tensor of a type we have, nor made of tensors.
pub(crate) fn check_output(info: &ValueInfoProto, problems: &mut Problems) {
    let reason = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        None | Some(TypeValue::SequenceType(_) | TypeValue::OptionalType(_)) => return,
        Some(TypeValue::TensorType(tensor)) => match element(tensor.elem_type()) {
            Err(given) if tensor.elem_type() != DataType::Undefined as i32 => Reason::ElementType { given },
            _ => return,
        },
        Some(other) => Reason::NotATensor { kind: kind_name(other) },
    };
    problems.add(Place::Output(info.name().to_owned()), reason);
}

/// The name of a type's kind in messages.
fn kind_name(value: &TypeValue) -> &'static str {
    match value {
        TypeValue::TensorType(_) => "tensor",
        TypeValue::SequenceType(_) => "sequence",
        TypeValue::MapType(_) => "map",
        TypeValue::OptionalType(_) => "optional value",
        TypeValue::SparseTensorType(_) => "sparse tensor",
        TypeValue::OpaqueType(_) => "opaque value",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_codes_are_read_back() {
        for dtype in DType::ALL {
            assert_eq!(element_type(element_code(dtype)), Ok(dtype));
        }
        assert_eq!(element(17), Ok((DType::U8, Some(Encoding::F8E4M3Fn))));
        assert_eq!(element(22), Ok((DType::I8, Some(Encoding::I4))));
        assert_eq!(element(8), Err("string".to_owned()));
        assert_eq!(element(-1), Err("number -1".to_owned()));
    }
}
