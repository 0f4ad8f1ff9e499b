//! Constants: `TensorProto` in all its encodings to and from [`Tensor`].
//!
//! Elements stand in `raw_data` (shared with the file, not copied), in a typed list (`float_data`, `int32_data`,
//! ...), or in another file. Sizes are checked against the bytes present before anything is allocated.

use crate::external::ExternalFiles;
use crate::options::ImportOptions;
use crate::packed::{packed_bytes, unpacked};
use crate::problem::ProblemClass;
use crate::proto::TensorProto;
use crate::proto::tensor_proto::{DataLocation, DataType};
use crate::types::{element, element_code};
use bytemuck::Pod;
use bytes::Bytes;
use orch_ir::{DType, Shape, Tensor};
use prost::Message;

/// Why a `TensorProto` is not a tensor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum TensorError {
    #[error("the protobuf data is broken or cut off: {detail}")]
    Protobuf { detail: String },
    #[error("the tensor states no element type")]
    NoType,
    #[error("elements of type {given} are not supported; bool and the numeric types up to 64 bits are")]
    ElementType { given: String },
    #[error("dimension {axis} is {given}; a size of 0 or more is expected")]
    NegativeDim { axis: usize, given: i64 },
    #[error("the shape {dims:?} holds more than 2^40 elements")]
    TooLarge { dims: Vec<i64> },
    #[error("{given} bytes are given, type and shape take {expected}")]
    ByteCount { given: u64, expected: usize },
    #[error("{given} elements are given in {field}, the shape has {expected}")]
    ElementCount { field: &'static str, given: usize, expected: usize },
    #[error("element {given} is out of the range of {dtype}")]
    OutOfRange { given: i128, dtype: DType },
    #[error("the tensor is one segment of several; whole tensors are supported")]
    Segment,
    #[error("external data has {key} = {value:?}; a number of bytes is expected")]
    ExternalEntry { key: String, value: String },
    #[error("external data is in {file:?}; a relative path without `..` is expected")]
    ExternalPath { file: String },
    #[error("external data is in {file:?}, but the model was not read from a file, so its folder is unknown")]
    NoBaseDir { file: String },
    #[error("cannot read external data from {path}: {detail}")]
    ExternalMissing { path: String, detail: String },
    #[error("external data is in {file:?}, which leads to {real:?}; a file below {} is expected", .roots.join(" or "))]
    ExternalOutside { file: String, real: String, roots: Vec<String> },
    #[error(
        "external data is at bytes {offset} to {offset} + {expected} of {file:?}, which has {file_bytes}"
    )]
    ExternalShort { file: String, offset: u64, expected: usize, file_bytes: usize },
}

/// Advice for tensors that contradict themselves.
const WRITE_AGAIN: &str = "write the tensor again";

impl TensorError {
    /// The code, class and advice of an error.
    pub(crate) fn facts(&self) -> (&'static str, ProblemClass, &'static str) {
        use ProblemClass::{Malformed, Request, Unsupported};
        match self {
            Self::Protobuf { .. } => ("tensor-protobuf", Malformed, WRITE_AGAIN),
            Self::NoType => ("tensor-no-type", Malformed, WRITE_AGAIN),
            Self::ElementType { .. } => ("element-type", Unsupported, "convert to a supported type before"),
            Self::NegativeDim { .. } => ("tensor-negative-dim", Malformed, WRITE_AGAIN),
            Self::TooLarge { .. } => ("tensor-too-large", Malformed, WRITE_AGAIN),
            Self::ByteCount { .. } => ("tensor-byte-count", Malformed, WRITE_AGAIN),
            Self::ElementCount { .. } => ("tensor-element-count", Malformed, WRITE_AGAIN),
            Self::OutOfRange { .. } => ("tensor-range", Malformed, WRITE_AGAIN),
            Self::Segment => ("tensor-segment", Unsupported, "store the tensor as a whole"),
            Self::ExternalEntry { .. } => ("external-entry", Malformed, WRITE_AGAIN),
            Self::ExternalPath { .. } => ("external-path", Malformed, "keep the data in the model's folder"),
            Self::NoBaseDir { .. } => ("external-no-folder", Request, "set ImportOptions::base_dir"),
            Self::ExternalMissing { .. } => {
                ("external-missing", Request, "put the data file beside the model, under that name")
            }
            Self::ExternalOutside { .. } => (
                "external-outside",
                Request,
                "copy the data there, or allow its folder with --external-data-root DIR",
            ),
            Self::ExternalShort { .. } => {
                ("external-short", Malformed, "fetch the data file again: it is cut off or of another model")
            }
        }
    }
}

/// Reads a stand-alone tensor file: the `.pb` files of ONNX's test data. Of a type that nothing computes in it has the
/// codes ([`Encoding`](orch_ir::Encoding)).
///
/// # Errors
/// If the bytes are not a tensor of a type we have. External data is not followed.
pub fn decode_tensor(bytes: Bytes) -> Result<Tensor, TensorError> {
    let proto =
        TensorProto::decode(bytes).map_err(|error| TensorError::Protobuf { detail: error.to_string() })?;
    let options = ImportOptions::default();
    decode(&proto, &mut ExternalFiles::new(&options))
}

/// A stand-alone tensor file: what [`decode_tensor`] reads.
pub fn encode_tensor(name: &str, tensor: &Tensor) -> Vec<u8> {
    to_proto(name, tensor).encode_to_vec()
}

/// The message for a tensor, its elements as `raw_data`.
pub(crate) fn to_proto(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        dims: tensor.shape().iter().map(|&size| size as i64).collect(),
        data_type: Some(element_code(tensor.dtype())),
        name: Some(name.to_owned()),
        raw_data: Some(tensor.bytes().clone()),
        ..TensorProto::default()
    }
}

/// The tensor of a message; of an encoded type, its codes.
pub(crate) fn decode(proto: &TensorProto, files: &mut ExternalFiles) -> Result<Tensor, TensorError> {
    if proto.segment.is_some() {
        return Err(TensorError::Segment);
    }
    let (dtype, encoding) = match element(proto.data_type()) {
        Ok(known) => known,
        Err(_) if proto.data_type() == DataType::Undefined as i32 => return Err(TensorError::NoType),
        Err(given) => return Err(TensorError::ElementType { given }),
    };
    let shape = shape(&proto.dims)?;
    let expected = match encoding {
        Some(encoding) => packed_bytes(encoding, shape.elems()),
        None => shape.elems() * dtype.size_bytes(),
    };
    let external = proto.data_location == Some(DataLocation::External as i32);
    let data = match &proto.raw_data {
        _ if external => files.bytes(proto, expected)?,
        Some(raw) if !raw.is_empty() => raw.clone(),
        _ if encoding.is_some() => typed(proto, DType::U8, expected)?,
        _ => typed(proto, dtype, shape.elems())?,
    };
    if data.len() != expected {
        return Err(TensorError::ByteCount { given: data.len() as u64, expected });
    }
    let data = match encoding {
        Some(encoding) => unpacked(encoding, data, shape.elems()),
        None if dtype == DType::Bool => normalized_bools(data),
        None => data,
    };
    Tensor::from_bytes(dtype, shape, data)
        .map_err(|error| TensorError::ByteCount { given: error.given as u64, expected: error.expected })
}

/// The shape with these dimensions.
fn shape(dims: &[i64]) -> Result<Shape, TensorError> {
    let mut sizes = Vec::with_capacity(dims.len());
    for (axis, &given) in dims.iter().enumerate() {
        sizes.push(usize::try_from(given).map_err(|_| TensorError::NegativeDim { axis, given })?);
    }
    Shape::checked(sizes).ok_or_else(|| TensorError::TooLarge { dims: dims.to_vec() })
}

/// The bytes with every non-zero one as 1; shared if they all are already.
fn normalized_bools(data: Bytes) -> Bytes {
    if data.iter().all(|&byte| byte <= 1) {
        return data;
    }
    data.iter().map(|&byte| u8::from(byte != 0)).collect()
}

/// The elements of a tensor that are listed one by one, in the list that its type asks for.
fn typed(proto: &TensorProto, dtype: DType, expected: usize) -> Result<Bytes, TensorError> {
    let ints = List { field: "int32_data", values: &proto.int32_data, dtype, expected };
    let wide = List { field: "uint64_data", values: &proto.uint64_data, dtype, expected };
    match dtype {
        DType::F32 => {
            List { field: "float_data", values: &proto.float_data, dtype, expected }.pack(Ok::<f32, _>)
        }
        DType::F64 => {
            List { field: "double_data", values: &proto.double_data, dtype, expected }.pack(Ok::<f64, _>)
        }
        DType::I64 => {
            List { field: "int64_data", values: &proto.int64_data, dtype, expected }.pack(Ok::<i64, _>)
        }
        DType::U64 => wide.pack(Ok::<u64, _>),
        DType::U32 => wide.pack(|v| u32::try_from(v).map_err(|_| v.into())),
        DType::I32 => ints.pack(Ok::<i32, _>),
        DType::I16 => ints.pack(|v| i16::try_from(v).map_err(|_| v.into())),
        DType::I8 => ints.pack(|v| i8::try_from(v).map_err(|_| v.into())),
        DType::U16 => ints.pack(|v| u16::try_from(v).map_err(|_| v.into())),
        DType::U8 => ints.pack(|v| u8::try_from(v).map_err(|_| v.into())),
        DType::Bool => ints.pack(|v| Ok(u8::from(v != 0))),
        DType::F16 | DType::BF16 => ints.pack(float_bits),
    }
}

/// The bit pattern of a 16-bit float as `int32_data` holds it; some writers extend its sign.
fn float_bits(value: i32) -> Result<u16, i128> {
    let sign_extended = || i16::try_from(value).map(|bits| bits as u16);
    u16::try_from(value).or_else(|_| sign_extended()).map_err(|_| value.into())
}

/// A typed list of a `TensorProto`, for a tensor of `expected` elements of `dtype`.
struct List<'p, S> {
    field: &'static str,
    values: &'p [S],
    dtype: DType,
    expected: usize,
}

impl<S: Copy> List<'_, S> {
    /// The bytes of the converted values; `convert` returns a value that is out of range as an error.
    fn pack<D: Pod>(&self, convert: impl Fn(S) -> Result<D, i128>) -> Result<Bytes, TensorError> {
        let (field, given, expected) = (self.field, self.values.len(), self.expected);
        if given != expected {
            return Err(TensorError::ElementCount { field, given, expected });
        }
        let packed: Result<Vec<D>, i128> = self.values.iter().map(|&value| convert(value)).collect();
        let packed = packed.map_err(|given| TensorError::OutOfRange { given, dtype: self.dtype })?;
        Ok(Bytes::copy_from_slice(bytemuck::cast_slice(&packed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn proto(dtype: DType, dims: &[i64]) -> TensorProto {
        TensorProto { dims: dims.to_vec(), data_type: Some(element_code(dtype)), ..TensorProto::default() }
    }

    fn read(proto: &TensorProto) -> Result<Tensor, TensorError> {
        decode_tensor(proto.encode_to_vec().into())
    }

    #[test]
    fn tensors_are_read_back() {
        for dtype in DType::ALL {
            let tensor = Tensor::from_f64(dtype, [2, 3], &[0.0, 1.0, 1.0, 0.0, 1.0, 7.0]);
            assert_eq!(decode_tensor(encode_tensor("t", &tensor).into()), Ok(tensor), "{dtype}");
        }
    }

    #[test]
    fn typed_lists_are_read() {
        let ints = |dtype, values: &[i32]| {
            read(&TensorProto { int32_data: values.to_vec(), ..proto(dtype, &[values.len() as i64]) })
        };
        assert_eq!(ints(DType::I8, &[-128, 127]).unwrap().to_i64().unwrap(), [-128, 127]);
        assert_eq!(ints(DType::Bool, &[0, 5]).unwrap().bytes().as_ref(), [0, 1]);
        let half = f16::from_f32(-1.5).to_bits();
        assert_eq!(ints(DType::F16, &[half.into(), half as i16 as i32]).unwrap().to_f64(), [-1.5, -1.5]);
        let brain = bf16::from_f32(3.0).to_bits();
        assert_eq!(ints(DType::BF16, &[brain.into()]).unwrap().to_f64(), [3.0]);
        assert_eq!(ints(DType::U8, &[256]), Err(TensorError::OutOfRange { given: 256, dtype: DType::U8 }));
        let wide = TensorProto { uint64_data: vec![u32::MAX.into()], ..proto(DType::U32, &[]) };
        assert_eq!(read(&wide).unwrap().to_i64().unwrap(), [i64::from(u32::MAX)]);
        let double = TensorProto { double_data: vec![0.1], ..proto(DType::F64, &[1]) };
        assert_eq!(read(&double).unwrap().to_f64(), [0.1]);
    }

    #[test]
    fn contradictions_are_refused() {
        let short = TensorProto { float_data: vec![1.0], ..proto(DType::F32, &[2]) };
        let field = "float_data";
        assert_eq!(read(&short), Err(TensorError::ElementCount { field, given: 1, expected: 2 }));
        let raw = TensorProto { raw_data: Some(Bytes::from_static(&[0; 7])), ..proto(DType::F32, &[2]) };
        assert_eq!(read(&raw), Err(TensorError::ByteCount { given: 7, expected: 8 }));
        let negative = proto(DType::F32, &[2, -1]);
        assert_eq!(read(&negative), Err(TensorError::NegativeDim { axis: 1, given: -1 }));
        let huge = proto(DType::F32, &[1 << 32, 1 << 32, 0]);
        assert!(matches!(read(&huge), Err(TensorError::TooLarge { .. })));
        let absent = proto(DType::F32, &[1 << 40]);
        assert!(matches!(read(&absent), Err(TensorError::ElementCount { given: 0, .. })));
        assert_eq!(read(&TensorProto::default()), Err(TensorError::NoType));
    }

    #[test]
    fn empty_and_scalar_tensors_are_read() {
        assert_eq!(read(&proto(DType::I64, &[0, 3])).unwrap().shape().dims(), [0, 3]);
        let scalar = TensorProto { int64_data: vec![9], ..proto(DType::I64, &[]) };
        assert_eq!(read(&scalar), Ok(Tensor::scalar(9i64)));
    }

    #[test]
    fn odd_booleans_become_one() {
        let raw =
            TensorProto { raw_data: Some(Bytes::from_static(&[0, 2, 255])), ..proto(DType::Bool, &[3]) };
        assert_eq!(read(&raw), Ok(Tensor::from_bools([3], &[false, true, true])));
    }
}
