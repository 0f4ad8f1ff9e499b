//! A model: an ONNX file, or a document of ATen calls, as a primitive graph.

use crate::manifest::{Manifest, ModelInfo, Update};
use crate::updatable::{UpdatableConstant, take_updatable};
use crate::{Error, Options, Precision};
use bytes::Bytes;
use orch_fission::{FissionErrors, FissionOptions, fission};
use orch_ir::{OperatorGraph, PrimGraph, Tensor};
use orch_mugraph::MuGraph;
use orch_onnx::{Declaration, FileSource, ImportErrors, ImportOptions, ProblemClass};
use std::path::Path;

/// A model that has been read and checked.
#[derive(Clone, Debug)]
pub struct Model {
    /// Where it comes from.
    pub info: ModelInfo,
    /// Operators of its main graph.
    pub operators: usize,
    /// What it computes, in primitives. Its inputs are those of the model, then the updatable constants.
    pub graph: PrimGraph,
    /// Constants that can be replaced after compiling.
    pub updatable: Vec<UpdatableConstant>,
    /// Outputs that are new values of inputs, by their positions in the graph: kernels update these in place where that is right.
    pub updates: Vec<Update>,
}

impl Model {
    /// Reads an ONNX file, a document of ATen calls if it is named `.json`, or a program of predefined operators in the text form
    /// of µGraphs if it is named `.txt`. Weights stay where they are in the mapped files.
    ///
    /// # Errors
    /// If the file cannot be read, is not a valid model, or needs what is not supported: all problems at once.
    pub fn load(path: &Path, options: &Options) -> Result<Self, Error> {
        let bytes =
            orch_runtime::map_file(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        if is_document(path) {
            return Self::document(&bytes, &path.display().to_string(), options);
        }
        if is_text(path) {
            return Self::text(&bytes, path);
        }
        let import = import_options(options).beside(path);
        Self::import(bytes, &path.display().to_string(), &import, options)
    }

    /// Reads the file that an executable was compiled from. Symbolic dimensions have the sizes that they have in the
    /// executable's inputs.
    ///
    /// # Errors
    /// If it is another model, or as [`Model::load`].
    pub fn load_for(manifest: &Manifest, path: &Path, options: &Options) -> Result<Self, Error> {
        let bytes =
            orch_runtime::map_file(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        if digest(&bytes) != manifest.model.digest {
            let path = path.display();
            return Err(Error::Input(format!(
                "{path} is not the model that the .orc file was compiled from"
            )));
        }
        if is_document(path) {
            return Self::document(&bytes, &path.display().to_string(), options);
        }
        if is_text(path) {
            return Self::text(&bytes, path);
        }
        let input_shapes =
            manifest.inputs.iter().map(|port| (port.name.clone(), port.shape.clone())).collect();
        let import = ImportOptions { input_shapes, ..import_options(options) }.beside(path);
        let updatable = manifest.updatable.iter().map(|constant| constant.port.name.clone()).collect();
        let options = Options { updatable, ..options.clone() };
        Self::import(bytes, &path.display().to_string(), &import, &options)
    }

    /// Reads a model from memory; `base_dir` is where external data lies.
    ///
    /// # Errors
    /// As [`Model::load`].
    pub fn parse(
        bytes: Bytes,
        path: &str,
        base_dir: Option<&Path>,
        options: &Options,
    ) -> Result<Self, Error> {
        let import = ImportOptions { base_dir: base_dir.map(Path::to_owned), ..import_options(options) };
        Self::import(bytes, path, &import, options)
    }

    /// The inputs and outputs of the model in `bytes`, with symbolic dimensions as it declares them.
    ///
    /// # Errors
    /// If the bytes are no model.
    pub fn declaration(bytes: Bytes) -> Result<Declaration, Error> {
        orch_onnx::declaration(bytes).map_err(import_error)
    }

    /// Reads a document of ATen calls (`orch_aten::document` describes the format). The model's inputs are those of the
    /// document, its outputs those of the document that are tensors, all row-major, and after them the check of indices if the
    /// document asks for it.
    ///
    /// # Errors
    /// If it is no such document, or holds what is not supported: all problems at once.
    pub fn from_aten(bytes: &[u8], options: &Options) -> Result<Self, Error> {
        Self::document(bytes, "", options)
    }

    fn text(bytes: &[u8], path: &Path) -> Result<Self, Error> {
        let path = path.display().to_string();
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|error| Error::Model(format!("{path}: not text: {error}")))?;
        Self::from_program(text, &path)
    }

    /// The model that a program of predefined operators in the text form of µGraphs is; `path` is where the text comes from.
    ///
    /// # Errors
    /// If the text is not valid, or has kernels that are defined by block graphs.
    pub fn from_program(text: &str, path: &str) -> Result<Self, Error> {
        let program = read_program(text, path)?;
        let graph = orch_mugraph::primitives(&program);
        let graph = graph.map_err(|error| Error::Unsupported(format!("{path}: {error}")))?;
        let info =
            ModelInfo { name: program.name.clone(), path: path.to_owned(), digest: digest(text.as_bytes()) };
        let operators = program.nodes().count() - program.inputs().count();
        Ok(Self { info, operators, graph, updatable: Vec::new(), updates: Vec::new() })
    }

    fn document(bytes: &[u8], path: &str, options: &Options) -> Result<Self, Error> {
        let imported = orch_aten::import(bytes).map_err(|errors| {
            let text = errors.to_string();
            if errors.are_limits() { Error::Unsupported(text) } else { Error::Model(text) }
        })?;
        let info =
            ModelInfo { name: imported.graph.name.clone(), path: path.to_owned(), digest: digest(bytes) };
        let model = Self::from_operators(&imported.graph, info, options)?;
        // Inputs whose values are fixed are no inputs of the graph.
        let position = |name: &str| model.graph.inputs.iter().position(|(input, _)| input == name);
        let update = |update: orch_aten::NamedUpdate| {
            position(&update.input).map(|input| Update { output: update.output, input })
        };
        let updates = imported.updates().into_iter().filter_map(update).collect();
        Ok(Self { updates, ..model })
    }

    fn import(bytes: Bytes, path: &str, import: &ImportOptions, options: &Options) -> Result<Self, Error> {
        let digest = digest(&bytes);
        let mut imported = orch_onnx::import(bytes, import).map_err(import_error)?;
        let updatable = take_updatable(&mut imported.graph, &options.updatable)?;
        let info = ModelInfo { name: imported.graph.name.clone(), path: path.to_owned(), digest };
        let model = Self::from_operators(&imported.graph, info, options)?;
        Ok(Self { updatable, ..model })
    }

    /// A model from an operator graph.
    ///
    /// # Errors
    /// If an operator is invalid or not supported: all such operators at once.
    pub fn from_operators(
        operators: &OperatorGraph,
        info: ModelInfo,
        options: &Options,
    ) -> Result<Self, Error> {
        let fission_options =
            FissionOptions { fixed_inputs: options.fixed_inputs.clone(), ..FissionOptions::default() };
        let graph = fission(operators, &fission_options).map_err(fission_error)?;
        Ok(Self { info, operators: operators.nodes.len(), graph, updatable: Vec::new(), updates: Vec::new() })
    }

    /// A model that is a graph of primitives already.
    pub fn from_graph(graph: PrimGraph) -> Self {
        let info = ModelInfo { name: graph.name.clone(), ..ModelInfo::default() };
        Self { info, operators: 0, graph, updatable: Vec::new(), updates: Vec::new() }
    }

    /// The model with the operands of contractions rounded to what `precision` multiplies: how far that is from f32 tells
    /// how much rounding grows on its way through the model.
    pub fn with_precision(&self, precision: Precision) -> Self {
        let graph = orch_rewrite::rewrite(&self.graph, &orch_rewrite::RewriteOptions::default()).0;
        let graph = match precision.rounds_to() {
            None => graph,
            Some(dtype) => orch_rewrite::narrow_contractions(&graph, dtype).0,
        };
        Self { graph, ..self.clone() }
    }

    /// What the reference interpreter computes: in `f64` throughout if `wide`, else rounded after every primitive. `inputs` are those
    /// of the graph.
    ///
    /// # Errors
    /// If the inputs are not those of the model.
    pub fn interpret(&self, inputs: &[Tensor], wide: bool) -> Result<Vec<Tensor>, Error> {
        use orch_interp::EvalOptions;
        let options = if wide { EvalOptions::wide() } else { EvalOptions::default() };
        orch_interp::evaluate(&self.graph, inputs, &options).map_err(|error| Error::Input(error.to_string()))
    }
}

/// True for files that are named as documents of ATen calls.
fn is_document(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

/// A valid µGraph of its text form; `place` is where it comes from, for messages.
pub(crate) fn read_program(text: &str, place: &str) -> Result<MuGraph, Error> {
    let wrong = |reason: String| Error::Model(format!("{place}: {reason}"));
    let graph = orch_mugraph::parse(text).map_err(|error| wrong(error.to_string()))?;
    let problems = orch_mugraph::validate(&graph);
    if problems.is_empty() {
        return Ok(graph);
    }
    let lines: Vec<String> = problems.iter().map(|problem| format!("\n  {problem}")).collect();
    Err(wrong(format!("not a valid µGraph:{}", lines.concat())))
}

/// True for files that are named as programs in the text form of µGraphs.
fn is_text(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "txt")
}

/// BLAKE3 of a model's file.
fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// What the options say of reading a model.
fn import_options(options: &Options) -> ImportOptions {
    ImportOptions {
        dims: options.dims.clone(),
        input_shapes: options.input_shapes.clone(),
        data_roots: options.external_data_roots.clone(),
        files: FileSource::disk(orch_files::open_regular, orch_runtime::map_open_file),
        ..ImportOptions::default()
    }
}

fn import_error(errors: ImportErrors) -> Error {
    let text = errors.to_string();
    if errors.0.iter().all(|problem| problem.class() == ProblemClass::Unsupported) {
        Error::Unsupported(text)
    } else {
        Error::Model(text)
    }
}

fn fission_error(errors: FissionErrors) -> Error {
    let text = errors.to_string();
    if errors.are_limits() { Error::Unsupported(text) } else { Error::Model(text) }
}
