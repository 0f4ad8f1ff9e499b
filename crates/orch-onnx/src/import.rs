//! The entry of the crate: a model's bytes to an operator graph.

use crate::dims::Dims;
use crate::external::ExternalFiles;
use crate::function::{Functions, domain};
use crate::graph::Importer;
use crate::options::ImportOptions;
use crate::problem::{ImportErrors, ImportProblem, Place, Problems, Reason};
use crate::proto::tensor_shape_proto::Dimension;
use crate::proto::tensor_shape_proto::dimension::Value as DimValue;
use crate::proto::type_proto::Value as TypeValue;
use crate::proto::{GraphProto, ModelProto, OperatorSetIdProto, ValueInfoProto};
use crate::scope::{Opsets, Scopes};
use crate::{sniff, types};
use bytes::Bytes;
use orch_ir::{DType, OperatorGraph, message};
use prost::Message;
use std::collections::HashSet;
use std::path::Path;

/// The oldest version of ONNX's operator set that is imported. Nodes below version 7 are raised to it, or refused
/// where their form is too old.
pub const OLDEST_OPSET: i64 = 1;
/// The newest version of ONNX's operator set that is known: that of onnx 1.23.
pub const NEWEST_OPSET: i64 = 28;
/// The newest version of the file format that is known: that of onnx 1.23.
pub const NEWEST_IR_VERSION: i64 = 14;

/// An imported model.
#[derive(Clone, Debug)]
pub struct Import {
    /// The model's graph.
    pub graph: OperatorGraph,
    /// The version of the file format.
    pub ir_version: i64,
    /// The program that wrote the file, with its version; empty if it does not say.
    pub producer: String,
}

/// Imports the model that `bytes` hold. Weights in the result share the memory of `bytes`.
///
/// # Errors
/// Every problem that the model has.
pub fn import(bytes: Bytes, options: &ImportOptions) -> Result<Import, ImportErrors> {
    let (model, graph) = decode(bytes)?;
    let graph = &graph;
    let mut problems = Problems::default();
    check_ir_version(&model, &mut problems);
    let opsets = opsets(&model.opset_import, &Place::File, &mut problems);
    let functions = Functions::new(&model.functions, &mut problems);
    let dims = bind_dims(graph, options);
    let files = ExternalFiles::new(options);
    let scopes = Scopes::default();
    let mut importer = Importer { functions: &functions, dims, files, problems, scopes, inlined_bytes: 0 };
    let imported = importer.main_graph(graph, &opsets);
    let Importer { dims, mut problems, .. } = importer;
    let inputs: Vec<String> = imported.inputs.iter().map(|&id| imported.value(id).name.clone()).collect();
    dims.check_all_used(&inputs, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into_errors());
    }
    let producer = format!("{} {}", model.producer_name(), model.producer_version()).trim().to_owned();
    Ok(Import { graph: imported, ir_version: model.ir_version(), producer })
}

/// What a model says of its inputs and outputs, before symbolic dimensions have sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// The inputs that a caller gives, in the model's order: those without a value in the file.
    pub inputs: Vec<DeclaredPort>,
    /// The outputs, in the model's order.
    pub outputs: Vec<DeclaredPort>,
}

/// An input or output as a model declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredPort {
    /// Its name.
    pub name: String,
    /// Its element type; `None` if the model does not say, or it is not supported.
    pub dtype: Option<DType>,
    /// Its dimensions.
    pub dims: Vec<DeclaredDim>,
}

/// A dimension as a model declares it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeclaredDim {
    /// Always of this size.
    Fixed(usize),
    /// Of a size that is given when importing, under this name (`INPUT.AXIS` where the model leaves it without one).
    Symbolic(String),
}

/// The inputs and outputs of the model in `bytes`.
///
/// # Errors
/// If the bytes are no model.
pub fn declaration(bytes: Bytes) -> Result<Declaration, ImportErrors> {
    let (_, graph) = decode(bytes)?;
    let sparse = graph.sparse_initializer.iter().filter_map(|tensor| Some(tensor.values.as_ref()?.name()));
    let fixed: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).chain(sparse).collect();
    let inputs = graph.input.iter().filter(|input| !fixed.contains(input.name()));
    Ok(Declaration {
        inputs: inputs.map(declared_port).collect(),
        outputs: graph.output.iter().map(declared_port).collect(),
    })
}

fn declared_port(info: &ValueInfoProto) -> DeclaredPort {
    let dtype = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::TensorType(tensor)) => {
            types::element(tensor.elem_type()).ok().map(|(dtype, _)| dtype)
        }
        _ => None,
    };
    let dims = dimensions(info).iter().enumerate().map(|(axis, dim)| match &dim.value {
        Some(DimValue::DimValue(size)) => DeclaredDim::Fixed(usize::try_from(*size).unwrap_or_default()),
        Some(DimValue::DimParam(symbol)) if !symbol.is_empty() => DeclaredDim::Symbolic(symbol.clone()),
        Some(DimValue::DimParam(_)) | None => DeclaredDim::Symbolic(Dims::unnamed(info.name(), axis)),
    });
    DeclaredPort { name: info.name().to_owned(), dtype, dims: dims.collect() }
}

/// The model in these bytes, and its main graph taken out of it.
fn decode(bytes: Bytes) -> Result<(ModelProto, GraphProto), ImportErrors> {
    if bytes.is_empty() {
        return Err(whole_file(Reason::Empty));
    }
    let looks_like = sniff::guess(&bytes);
    let mut model = ModelProto::decode(bytes).map_err(|error| {
        // The decoder names every message that it is inside of, and the problem last.
        whole_file(Reason::Protobuf { detail: message::name(&error.to_string()), looks_like })
    })?;
    // Protobuf accepts much that is no model.
    let graph = model.graph.take().ok_or_else(|| whole_file(Reason::NotOnnx { looks_like }))?;
    Ok((model, graph))
}

/// Imports the model in a file. External data is looked for in the file's folder, unless `options` name another.
///
/// # Errors
/// That the file cannot be read, or every problem that the model has.
pub fn import_file(path: &Path, options: &ImportOptions) -> Result<Import, ImportErrors> {
    let bytes = options.files.read(path).map_err(|error| {
        let path = path.display().to_string();
        whole_file(Reason::Unreadable { path, detail: error.to_string() })
    })?;
    import(bytes, &options.clone().beside(path))
}

/// A problem that leaves nothing else to look at.
fn whole_file(reason: Reason) -> ImportErrors {
    ImportProblem { place: Place::File, reason }.into()
}

/// Checks the version of the file format; before version 3 there were no operator sets.
fn check_ir_version(model: &ModelProto, problems: &mut Problems) {
    let given = model.ir_version();
    if !(3..=NEWEST_IR_VERSION).contains(&given) {
        problems.add(Place::File, Reason::IrVersion { given, newest: NEWEST_IR_VERSION });
    }
}

/// The operator sets that a model or function imports, checked.
pub(crate) fn opsets(imports: &[OperatorSetIdProto], place: &Place, problems: &mut Problems) -> Opsets {
    let mut opsets = Opsets::new();
    for import in imports {
        let (name, given) = (domain(import.domain()), import.version());
        if name.is_empty() && !(OLDEST_OPSET..=NEWEST_OPSET).contains(&given) {
            let reason = Reason::Opset { given, oldest: OLDEST_OPSET, newest: NEWEST_OPSET };
            problems.add(place.clone(), reason);
        }
        if opsets.insert(name.to_owned(), given).is_some_and(|before| before != given) {
            let reason = Reason::Duplicate { what: "operator set", name: name.to_owned() };
            problems.add(place.clone(), reason);
        }
    }
    opsets
}

/// The sizes of symbols that the options give, directly or by the shapes of inputs.
fn bind_dims<'o>(graph: &GraphProto, options: &'o ImportOptions) -> Dims<'o> {
    let mut dims = Dims::new(options);
    for input in &graph.input {
        dims.infer(input.name(), dimensions(input));
    }
    for output in &graph.output {
        dims.note(dimensions(output));
    }
    dims
}

/// The declared dimensions of a tensor; none for others.
fn dimensions(info: &ValueInfoProto) -> &[Dimension] {
    match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::TensorType(tensor)) => tensor.shape.as_ref().map_or(&[], |shape| &shape.dim),
        _ => &[],
    }
}
