//! The files of a case: its model, and per data set the values given and expected.

use bytes::Bytes;
use orch_ir::{DType, Tensor};
use orch_onnx::decode_tensor;
use orch_onnx::proto::type_proto::Value as TypeValue;
use orch_onnx::proto::{ModelProto, TypeProto, ValueInfoProto};
use orch_runtime::map_file;
use prost::Message;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A value that is given or expected.
#[derive(Clone)]
pub(super) enum Datum {
    /// A tensor, or an optional that holds one.
    Tensor(Tensor),
    /// A sequence, or an optional that holds one.
    Sequence(Vec<Tensor>),
    /// An optional that holds nothing.
    Absent,
}

impl Datum {
    /// The tensors it consists of, with the names that fission gives them.
    pub(super) fn tensors(&self, name: &str) -> Vec<(String, Tensor)> {
        match self {
            Datum::Tensor(tensor) => vec![(name.to_owned(), tensor.clone())],
            Datum::Sequence(tensors) => {
                let named =
                    |(position, tensor): (usize, &Tensor)| (format!("{name}[{position}]"), tensor.clone());
                tensors.iter().enumerate().map(named).collect()
            }
            Datum::Absent => Vec::new(),
        }
    }
}

/// How a file states a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueEncoding {
    /// `TensorProto`.
    Tensor,
    /// `SequenceProto`.
    Sequence,
    /// `OptionalProto`.
    Optional,
    /// Sparse tensors, maps.
    Other,
}

/// A named input or output of a model.
pub(super) struct DeclaredPort {
    pub name: String,
    pub encoding: ValueEncoding,
}

/// `SequenceProto` of ONNX, its tensors not decoded.
#[derive(Message)]
struct SequenceFile {
    #[prost(bytes = "bytes", repeated, tag = "3")]
    tensors: Vec<Bytes>,
}

/// `OptionalProto` of ONNX, what it holds not decoded.
#[derive(Message)]
struct OptionalFile {
    #[prost(bytes = "bytes", optional, tag = "3")]
    tensor: Option<Bytes>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    sequence: Option<Bytes>,
}

/// What is known of a model before it is imported.
pub(super) struct Declared {
    /// Inputs; those that the model also stores are left out.
    pub inputs: Vec<DeclaredPort>,
    pub outputs: Vec<DeclaredPort>,
    /// The operators of its nodes.
    pub operators: BTreeSet<String>,
}

/// What the model declares.
pub(super) fn declared(model: &Bytes) -> Result<Declared, String> {
    let model = ModelProto::decode(model.clone()).map_err(|error| error.to_string())?;
    let graph = model.graph.unwrap_or_default();
    let stored = |info: &&ValueInfoProto| graph.initializer.iter().all(|tensor| tensor.name != info.name);
    Ok(Declared {
        inputs: graph.input.iter().filter(stored).map(port).collect(),
        outputs: graph.output.iter().map(port).collect(),
        operators: graph.node.iter().map(|node| node.op_type().to_owned()).collect(),
    })
}

fn port(info: &ValueInfoProto) -> DeclaredPort {
    let encoding = match info.r#type.as_ref() {
        Some(TypeProto { value: Some(TypeValue::SequenceType(_)), .. }) => ValueEncoding::Sequence,
        Some(TypeProto { value: Some(TypeValue::OptionalType(_)), .. }) => ValueEncoding::Optional,
        Some(TypeProto { value: Some(TypeValue::TensorType(_)), .. }) | None => ValueEncoding::Tensor,
        Some(_) => ValueEncoding::Other,
    };
    DeclaredPort { name: info.name().to_owned(), encoding }
}

/// The values `KIND_0.pb`, `KIND_1.pb`, .. of a data set, one for each port.
pub(super) fn read_all(set: &Path, kind: &str, ports: &[DeclaredPort]) -> Result<Vec<Datum>, String> {
    let read = |(index, port): (usize, &DeclaredPort)| {
        let bytes = map_file(&set.join(format!("{kind}_{index}.pb"))).map_err(|error| error.to_string())?;
        decode(bytes, port.encoding)
    };
    ports.iter().enumerate().map(read).collect()
}

fn decode(bytes: Bytes, encoding: ValueEncoding) -> Result<Datum, String> {
    let broken = |error: prost::DecodeError| error.to_string();
    match encoding {
        ValueEncoding::Tensor => decode_tensor(bytes).map(Datum::Tensor).map_err(|error| error.to_string()),
        ValueEncoding::Sequence => {
            let tensors = SequenceFile::decode(bytes).map_err(broken)?.tensors;
            let tensors: Result<Vec<Tensor>, _> = tensors.into_iter().map(decode_tensor).collect();
            tensors.map(Datum::Sequence).map_err(|error| error.to_string())
        }
        ValueEncoding::Optional => match OptionalFile::decode(bytes).map_err(broken)? {
            OptionalFile { tensor: Some(tensor), .. } => decode(tensor, ValueEncoding::Tensor),
            OptionalFile { sequence: Some(sequence), .. } => decode(sequence, ValueEncoding::Sequence),
            _ => Ok(Datum::Absent),
        },
        ValueEncoding::Other => Err("neither a tensor, nor a sequence, nor an optional".to_owned()),
    }
}

/// Early releases store bf16 as the bits, in tensors of type u16.
pub(super) fn as_declared(tensor: Tensor, declared: Option<DType>) -> Tensor {
    if declared == Some(DType::BF16) && tensor.dtype() == DType::U16 {
        let bits = tensor.bytes().clone();
        return Tensor::from_bytes(DType::BF16, tensor.shape().clone(), bits).expect("types of one width");
    }
    tensor
}

/// The entries of a folder, sorted.
pub(super) fn sorted_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths
}
