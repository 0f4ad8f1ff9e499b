//! The entry of the crate: a document's bytes to an operator graph.

use crate::call::{Arg, Call, Source};
use crate::document::{
    Document, FORMAT, Given, Header, Input, InputKind, Mutation, Node, Reference, VERSION, float,
};
use crate::emit::{Emitter, Refusal, Val};
use crate::problem::{ImportErrors, ImportProblem, Location, Problems, Reason};
use crate::rules::{self, Rule};
use orch_ir::{DType, OperatorGraph, Shape, Tensor};
use std::collections::{BTreeMap, BTreeSet};

/// The most dimensions of a tensor, as in PyTorch.
const MAX_RANK: usize = 64;

/// An imported graph.
#[derive(Clone, Debug)]
pub struct Import {
    /// The graph. Its inputs are those of the document, its outputs those of the document that are tensors, and the
    /// check of indices after them if the document asks for it.
    pub graph: OperatorGraph,
    /// What the document says of the inputs besides their types.
    pub inputs: Vec<InputFacts>,
    /// What the document says of the outputs, in its order; `None` for outputs that are no tensors.
    pub outputs: Vec<Option<OutputFacts>>,
    /// Outputs (of the document) that are to be copied into inputs.
    pub mutations: Vec<Mutation>,
    /// True if the last output of the graph tells whether all indices were in range.
    pub checks_indices: bool,
    /// The program that traced the graph, with its version.
    pub producer: String,
}

/// A new value of an input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedUpdate {
    /// The number of the new value among the graph's outputs.
    pub output: usize,
    /// The input's name.
    pub input: String,
}

impl Import {
    /// The outputs of the graph that are new values of its inputs.
    pub fn updates(&self) -> Vec<NamedUpdate> {
        let number = |output: usize| self.outputs[..output].iter().flatten().count();
        let update = |mutation: &Mutation| {
            let input = *self.graph.inputs.get(mutation.input)?;
            Some(NamedUpdate {
                output: number(mutation.output),
                input: self.graph.values[input.index()].name.clone(),
            })
        };
        self.mutations.iter().filter_map(update).collect()
    }
}

/// What a document says of an input besides its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputFacts {
    /// What it is to the module.
    pub kind: InputKind,
    /// The strides it was traced with, in elements.
    pub strides: Vec<i64>,
}

/// What a document says of an output besides its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutputFacts {
    /// The strides it has to have, in elements.
    pub strides: Vec<i64>,
}

/// Imports the graph that `bytes` hold.
///
/// # Errors
/// Every problem that the document has.
pub fn import(bytes: &[u8]) -> Result<Import, ImportErrors> {
    let document = decode(bytes)?;
    let taken = BTreeSet::from([String::new()]);
    let mut importer = Importer {
        emitter: Emitter::new(&document.name, taken),
        values: BTreeMap::new(),
        problems: Problems::default(),
    };
    let inputs = document.inputs.iter().map(|input| importer.input(input)).collect();
    document.constants.iter().for_each(|constant| importer.constant(constant));
    document.nodes.iter().for_each(|node| importer.node(node));
    let outputs = importer.outputs(&document);
    importer.mutations(&document);
    importer.problems.into_result()?;
    Ok(Import {
        graph: importer.emitter.graph,
        inputs,
        outputs,
        mutations: document.mutations,
        checks_indices: document.index_check.is_some(),
        producer: document.producer,
    })
}

/// True if the bytes claim to be a document of ATen calls, of whatever version.
pub fn is_document(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Header>(bytes).is_ok_and(|header| header.format.as_deref() == Some(FORMAT))
}

fn decode(bytes: &[u8]) -> Result<Document, ImportErrors> {
    let whole = |reason| ImportErrors::from(ImportProblem { place: Location::Document, reason });
    let broken = |error: serde_json::Error| whole(Reason::NotADocument { detail: error.to_string() });
    let header: Header = serde_json::from_slice(bytes).map_err(broken)?;
    let format = header.format.unwrap_or_default();
    if format != FORMAT {
        return Err(whole(Reason::Format { given: format }));
    }
    match header.version {
        Some(VERSION) => serde_json::from_slice(bytes).map_err(broken),
        given => Err(whole(Reason::Version { given: given.unwrap_or(0), known: VERSION })),
    }
}

/// What a name of the document stands for: the results of a node, or one tensor.
struct Named {
    /// `None` where the node failed, whose problem is told already.
    results: Option<Vec<Option<Source>>>,
}

struct Importer {
    emitter: Emitter,
    values: BTreeMap<String, Named>,
    problems: Problems,
}

/// Why the arguments of a node are not there.
enum Missing {
    Reason(Reason),
    /// A node that it reads failed.
    Poisoned,
}

impl Importer {
    fn define(&mut self, name: &str, results: Option<Vec<Option<Source>>>, place: impl FnOnce() -> Location) {
        if self.values.contains_key(name) {
            self.problems.add(place(), Reason::Duplicate { name: name.to_owned() });
        } else {
            self.values.insert(name.to_owned(), Named { results });
        }
    }

    fn input(&mut self, input: &Input) -> InputFacts {
        let place = || Location::Input(input.name.clone());
        let result = match typed(&input.dtype, &input.shape, Some(&input.strides)) {
            Ok((dtype, shape)) => {
                let value = self.emitter.input(&input.name, dtype, shape);
                Some(vec![Some(Source { value, strides: input.strides.clone() })])
            }
            Err(reason) => {
                self.problems.add(place(), reason);
                None
            }
        };
        self.define(&input.name, result, place);
        InputFacts { kind: input.kind, strides: input.strides.clone() }
    }

    fn constant(&mut self, constant: &crate::document::Constant) {
        let place = || Location::Constant(constant.name.clone());
        let result = match tensor(constant) {
            Ok(tensor) => {
                let strides = tensor.shape().strides().iter().map(|&stride| stride as i64).collect();
                let value = self.emitter.constant(tensor);
                Some(vec![Some(Source { value, strides })])
            }
            Err(reason) => {
                self.problems.add(place(), reason);
                None
            }
        };
        self.define(&constant.name, result, place);
    }

    fn node(&mut self, node: &Node) {
        let place = || Location::Node {
            name: node.name.clone(),
            target: node.target.clone(),
            source: node.source.clone(),
        };
        let results = match self.call(node) {
            Ok(results) => Some(results),
            Err(Missing::Poisoned) => None,
            Err(Missing::Reason(reason)) => {
                self.problems.add(place(), reason);
                None
            }
        };
        self.define(&node.name, results, place);
    }

    /// Translates one call.
    fn call(&mut self, node: &Node) -> Result<Vec<Option<Source>>, Missing> {
        let rule = rules::find(&node.target).ok_or(Missing::Reason(Reason::UnknownTarget))?;
        let arguments = self.arguments(node, rule)?;
        let mut results = Vec::with_capacity(node.results.len());
        let mut strides = Vec::with_capacity(node.results.len());
        for result in &node.results {
            let known = result.as_ref().map(|known| typed(&known.dtype, &known.shape, Some(&known.strides)));
            results.push(known.transpose().map_err(Missing::Reason)?);
            strides.push(result.as_ref().map(|known| known.strides.clone()));
        }
        let call = Call { arguments, results, strides };
        self.emitter.begin(&node.name);
        let values =
            (rule.apply)(&mut self.emitter, &call).map_err(|refusal| Missing::Reason(refusal.into()))?;
        check_results(&call, &values).map_err(Missing::Reason)?;
        let sources = values.into_iter().zip(call.strides).map(|(value, strides)| {
            value.map(|value| Source { value, strides: strides.unwrap_or_default() })
        });
        Ok(sources.collect())
    }

    /// The arguments of a call by the names of the target's schema.
    fn arguments(&self, node: &Node, rule: &'static Rule) -> Result<BTreeMap<&'static str, Arg>, Missing> {
        let problem = |argument: &str, detail: String| {
            Missing::Reason(Reason::Argument { argument: argument.to_owned(), detail })
        };
        let parameters: Vec<&'static str> = rule.target.parameters.split_whitespace().collect();
        let mut arguments = BTreeMap::new();
        if node.args.len() > parameters.len() {
            let detail = format!("{} arguments are given, {} are known", node.args.len(), parameters.len());
            return Err(problem(&parameters.len().to_string(), detail));
        }
        let positional = parameters.iter().zip(&node.args).map(|(&name, json)| (name, json));
        let mut given: Vec<(&'static str, &serde_json::Value)> = positional.collect();
        for (name, json) in &node.kwargs {
            // What decides about memory alone means nothing here.
            if ["device", "layout", "memory_format", "pin_memory", "requires_grad", "non_blocking"]
                .contains(&name.as_str())
            {
                continue;
            }
            match parameters.iter().find(|known| *known == name) {
                Some(&known) => given.push((known, json)),
                None => return Err(problem(name, "the target has no argument of this name".to_owned())),
            }
        }
        let source = |tensor: Reference| self.source(&tensor.name, tensor.index).cloned();
        for (name, json) in given {
            let read = Given::read(json).map_err(|detail| problem(name, detail))?;
            if arguments.insert(name, read.try_map(&source)?).is_some() {
                return Err(problem(name, "it is given twice".to_owned()));
            }
        }
        Ok(arguments)
    }

    /// The tensor that a name stands for.
    fn source(&self, name: &str, index: Option<usize>) -> Result<&Source, Missing> {
        let dangling = || Missing::Reason(Reason::Dangling { value: name.to_owned() });
        let named = self.values.get(name).ok_or_else(dangling)?;
        let results = named.results.as_ref().ok_or(Missing::Poisoned)?;
        let (index, count) = (index.unwrap_or(0), results.len());
        let missing = || Missing::Reason(Reason::NoResult { value: name.to_owned(), index, count });
        results.get(index).and_then(Option::as_ref).ok_or_else(missing)
    }

    fn outputs(&mut self, document: &Document) -> Vec<Option<OutputFacts>> {
        let mut facts = Vec::with_capacity(document.outputs.len());
        self.emitter.begin("output");
        for (position, output) in document.outputs.iter().enumerate() {
            facts.push(output.as_ref().map(|output| OutputFacts { strides: output.strides.clone() }));
            let Some(output) = output else { continue };
            let place = Location::Output(position);
            match self.source(&output.value, output.index).cloned() {
                Ok(source) if source.value.rank() != output.strides.len() => {
                    let (given, expected) = (output.strides.len(), source.value.rank());
                    self.problems.add(place, Reason::Strides { given, expected });
                }
                Ok(source) => {
                    let name = match output.index {
                        None => output.value.clone(),
                        Some(index) => format!("{}.{index}", output.value),
                    };
                    self.emitter.output(&name, &source.value);
                }
                Err(Missing::Poisoned) => {}
                Err(Missing::Reason(reason)) => self.problems.add(place, reason),
            }
        }
        if let Some(name) = &document.index_check {
            match self.emitter.all_indices() {
                Ok(all) => self.emitter.output(name, &all),
                Err(refusal) => self.problems.add(Location::Document, refusal.into()),
            }
        }
        facts
    }

    fn mutations(&mut self, document: &Document) {
        for (position, mutation) in document.mutations.iter().enumerate() {
            let place = Location::Mutation(position);
            let (outputs, inputs) = (document.outputs.len(), document.inputs.len());
            let output = document.outputs.get(mutation.output).and_then(Option::as_ref);
            let (Some(output), Some(input)) = (output, document.inputs.get(mutation.input)) else {
                let reason = match mutation.input < inputs {
                    true => Reason::NoPosition { what: "output", given: mutation.output, count: outputs },
                    false => Reason::NoPosition { what: "input", given: mutation.input, count: inputs },
                };
                self.problems.add(place, reason);
                continue;
            };
            let (given, expected) =
                (self.source(&output.value, output.index), self.source(&input.name, None));
            if let (Ok(given), Ok(expected)) = (given, expected)
                && (given.value.dtype, &given.value.shape) != (expected.value.dtype, &expected.value.shape)
            {
                let (given, expected) = (given.value.describe(), expected.value.describe());
                let reason =
                    Reason::MutationType { output: mutation.output, given, input: mutation.input, expected };
                self.problems.add(place, reason);
            }
        }
    }
}

/// The results of a rule are of the types that the document says.
fn check_results(call: &Call, values: &[Option<Val>]) -> Result<(), Reason> {
    if values.len() != call.results.len() {
        return Err(Reason::ResultCount { given: call.results.len(), expected: values.len() });
    }
    for (index, (known, value)) in call.results.iter().zip(values).enumerate() {
        if let (Some((dtype, shape)), Some(value)) = (known, value)
            && (*dtype, shape) != (value.dtype, &value.shape)
        {
            let (given, expected) = (format!("{dtype}{shape}"), value.describe());
            return Err(Reason::ResultType { index, given, expected });
        }
    }
    Ok(())
}

/// An element type and a shape that the document writes.
fn typed(dtype: &str, dims: &[usize], strides: Option<&[i64]>) -> Result<(DType, Shape), Reason> {
    let dtype = DType::from_name(dtype).ok_or_else(|| Reason::ElementType { given: dtype.to_owned() })?;
    if dims.len() > MAX_RANK {
        return Err(Reason::Rank { given: dims.len(), most: MAX_RANK });
    }
    let shape = Shape::checked(dims).ok_or_else(|| Reason::TooLarge { dims: dims.to_vec() })?;
    match strides {
        Some(strides) if strides.len() != shape.rank() => {
            Err(Reason::Strides { given: strides.len(), expected: shape.rank() })
        }
        _ => Ok((dtype, shape)),
    }
}

/// The tensor that a constant is.
fn tensor(constant: &crate::document::Constant) -> Result<Tensor, Reason> {
    let (dtype, shape) = typed(&constant.dtype, &constant.shape, None)?;
    let (given, expected) = (constant.values.len(), shape.elems());
    if given != expected {
        return Err(Reason::Elements {
            detail: format!("{given} elements are given, the shape has {expected}"),
        });
    }
    let no_number = |value: &serde_json::Value| Reason::Elements { detail: format!("{value} is no {dtype}") };
    if dtype.is_float() {
        let element = |value: &serde_json::Value| value.as_f64().or_else(|| value.as_str().and_then(float));
        let values: Vec<f64> = (constant.values.iter())
            .map(|value| element(value).ok_or_else(|| no_number(value)))
            .collect::<Result<_, _>>()?;
        return Ok(Tensor::from_f64(dtype, shape, &values));
    }
    let element =
        |value: &serde_json::Value| value.as_i64().or_else(|| value.as_u64().map(|bits| bits as i64));
    let values: Vec<i64> = (constant.values.iter())
        .map(|value| element(value).ok_or_else(|| no_number(value)))
        .collect::<Result<_, _>>()?;
    Ok(Tensor::from_i64(dtype, shape, &values))
}

impl From<Refusal> for Reason {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsupported(what) => Self::Unsupported(what),
            Refusal::Invalid(what) => Self::Invalid(what),
            Refusal::Argument { argument, detail } => Self::Argument { argument, detail },
        }
    }
}
