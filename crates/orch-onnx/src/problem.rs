//! What can be wrong with a model, and how it is told.
//!
//! An import goes on after a problem, so that one run shows them all: a [`Reason`] at a [`Place`], each with what
//! was given, what was expected and what to do.

use crate::TensorError;
use orch_ir::message::{self, Problem, name as shown};
use std::fmt;

/// Every problem found in a model, in the order of discovery; never empty.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub struct ImportErrors(pub Vec<ImportProblem>);

/// One problem of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportProblem {
    /// Where in the model.
    pub place: Place,
    /// What is wrong.
    pub reason: Reason,
}

/// A place in a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// The file as a whole.
    File,
    /// The options given to the import.
    Options,
    /// A graph, or a local function's body, by name.
    Graph(String),
    /// An input of the main graph.
    Input(String),
    /// An output of a graph.
    Output(String),
    /// A constant.
    Initializer(String),
    /// A local function, as `domain::name`.
    Function(String),
    /// An operator.
    Node {
        /// Its name, or `OpType_position`; `call/inner` inside an inlined function.
        name: String,
        /// The operator, with its domain if that is not ONNX's own.
        operator: String,
    },
}

/// Who can do something about a problem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ProblemClass {
    /// The file breaks the rules of ONNX.
    Malformed,
    /// The file may be valid; the compiler does not handle it.
    Unsupported,
    /// The model is fine; something it needs was not given: a dimension's size, a file.
    Request,
}

/// What is wrong at a [`Place`].
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum Reason {
    #[error("the file is empty; an ONNX model is expected")]
    Empty,
    #[error("this is not an ONNX model{}", likeness(.looks_like))]
    NotOnnx { looks_like: Option<&'static str> },
    #[error("the protobuf data is broken or cut off{}: {detail}", likeness(.looks_like))]
    Protobuf { detail: String, looks_like: Option<&'static str> },
    #[error("cannot read {path}: {detail}")]
    Unreadable { path: String, detail: String },
    #[error("IR version {given} is given, 3 to {newest} are known")]
    IrVersion { given: i64, newest: i64 },
    #[error("operator set version {given} is given, {oldest} to {newest} are supported")]
    Opset { given: i64, oldest: i64, newest: i64 },
    #[error("the {what} of operator set version {opset} has no counterpart in version 7")]
    OldOperator { opset: i64, what: &'static str },
    #[error("operator set `{}` has no version; an opset_import entry is expected for each set in use", set_name(.domain))]
    NoOpset { domain: String },
    #[error("the {what} `{}` is declared twice; names are to be unique", shown(.name))]
    Duplicate { what: &'static str, name: String },
    #[error("{what} without a name; a name is expected")]
    Nameless { what: &'static str },
    #[error("`{}` is an output here, but it already is an input, an initializer or another output", shown(.value))]
    ProducedTwice { value: String },
    #[error("`{}` is read, but nothing produces it", shown(.value))]
    Dangling { value: String },
    #[error("these nodes wait for each other's outputs: {}", joined(.nodes, " -> "))]
    Cycle { nodes: Vec<String> },
    #[error("no type is declared; a tensor type is expected")]
    NoType,
    #[error("a {kind} is given; tensors are supported")]
    NotATensor { kind: &'static str },
    #[error("elements of type {given} are not supported; the numeric types of 8 to 64 bits and bool are")]
    ElementType { given: String },
    #[error("no shape is declared; the number and size of the dimensions are expected")]
    NoShape,
    #[error("dimension {axis} is the symbol `{0}`; a size is expected: bind it with --dim {0}=N", shown(.symbol))]
    UnboundDim { axis: usize, symbol: String },
    #[error("dimension {axis} has no size; one is expected: bind it with --dim {}=N", shown(.key))]
    UnnamedDim { axis: usize, key: String },
    #[error("dimension {axis} is {given}; a size of 0 or more is expected")]
    NegativeDim { axis: usize, given: i64 },
    #[error("--dim {} binds nothing; the model has {}", shown(.name), list_or(.known, "no dimension to bind"))]
    UnknownDim { name: String, known: Vec<String> },
    #[error("a shape is given for the input `{}`; the model has {}", shown(.name), list_or(.known, "no input"))]
    UnknownInput { name: String, known: Vec<String> },
    #[error("the shape {given:?} is given, which does not fit the declared {declared}")]
    ShapeConflict { declared: String, given: Vec<usize> },
    #[error("the shape {dims:?} holds more than 2^40 elements")]
    TooLarge { dims: Vec<usize> },
    #[error("{0}")]
    Tensor(TensorError),
    #[error("attribute `{}`: {error}", shown(.attribute))]
    AttributeTensor { attribute: String, error: TensorError },
    #[error("a sparse tensor is given; dense ones are supported")]
    SparseInitializer,
    #[error("attribute `{}` is of kind {code}; kinds 1 to 14 are expected", shown(.attribute))]
    AttributeKind { attribute: String, code: i32 },
    #[error("attribute `{}` has no {expected}, though it claims to hold one", shown(.attribute))]
    AttributeValue { attribute: String, expected: &'static str },
    #[error("attribute `{}` refers to `{}`, but stands outside of any function", shown(.attribute), shown(.reference))]
    AttributeReference { attribute: String, reference: String },
    #[error("{given} {what} are given, the function declares {declared}")]
    FunctionArity { what: &'static str, given: usize, declared: usize },
    #[error("the function calls itself: {}", joined(.chain, " -> "))]
    Recursion { chain: Vec<String> },
    #[error("output `{}` is an input that the call leaves out", shown(.output))]
    AbsentOutput { output: String },
    #[error("functions and subgraphs nest more than {limit} deep")]
    TooDeep { limit: usize },
    #[error("inlining the local functions makes the model larger than {limit_bytes} bytes")]
    TooMuchInlining { limit_bytes: usize },
    #[error("{count} more problems are not shown")]
    More { count: usize },
}

/// Collects the problems of one import.
#[derive(Default)]
pub(crate) struct Problems(message::Capped<ImportProblem>);

impl Problems {
    /// Adds a problem.
    pub(crate) fn add(&mut self, place: Place, reason: Reason) {
        self.0.add(ImportProblem { place, reason });
    }

    /// True if there are none yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The error to return.
    pub(crate) fn into_errors(self) -> ImportErrors {
        let more = |count| ImportProblem { place: Place::File, reason: Reason::More { count } };
        ImportErrors(self.0.into_found(more))
    }
}

impl ImportProblem {
    /// Who can do something about it.
    pub fn class(&self) -> ProblemClass {
        self.reason.facts().1
    }

    /// A short stable name of the kind of problem, for statistics and tests.
    pub fn code(&self) -> &'static str {
        self.reason.facts().0
    }

    /// What is wrong and what to do about it.
    fn text(&self) -> String {
        let class = match self.class() {
            ProblemClass::Unsupported => " (unsupported)",
            ProblemClass::Malformed | ProblemClass::Request => "",
        };
        format!("{}{class}; {}", message::sentence(&self.reason.to_string()), self.advice())
    }

    /// What to do about it.
    pub fn advice(&self) -> &'static str {
        self.reason.facts().2
    }
}

impl From<ImportProblem> for ImportErrors {
    fn from(problem: ImportProblem) -> Self {
        Self(vec![problem])
    }
}

/// Advice for files that break the rules of ONNX where no better is known.
const EXPORT_AGAIN: &str = "check the file with onnx.checker and export it again";
/// Advice for names that are not unique.
const RENAME: &str = "give each its own name in the exporter";

impl Reason {
    /// The code, class and advice of a reason.
    fn facts(&self) -> (&'static str, ProblemClass, &'static str) {
        use ProblemClass::{Malformed, Request, Unsupported};
        match self {
            Self::Empty => ("empty-file", Malformed, "export or download the model again"),
            Self::NotOnnx { .. } => ("not-onnx", Malformed, "give an .onnx file"),
            Self::Protobuf { .. } => ("protobuf", Malformed, "export or download the model again"),
            Self::Unreadable { .. } => ("unreadable-file", Request, "check the path and its permissions"),
            Self::IrVersion { .. } => ("ir-version", Unsupported, "export for an IR version in that range"),
            Self::Opset { .. } => {
                ("opset", Unsupported, "convert it with onnx.version_converter or export for another opset")
            }
            Self::OldOperator { .. } => {
                ("old-operator", Unsupported, "convert the model with onnx.version_converter")
            }
            Self::NoOpset { .. } => ("no-opset", Malformed, EXPORT_AGAIN),
            Self::Duplicate { .. } => ("duplicate-name", Malformed, RENAME),
            Self::Nameless { .. } => ("nameless", Malformed, EXPORT_AGAIN),
            Self::ProducedTwice { .. } => ("produced-twice", Malformed, RENAME),
            Self::Dangling { .. } => ("dangling-name", Malformed, EXPORT_AGAIN),
            Self::Cycle { .. } => {
                ("cycle", Malformed, "break the cycle: a graph has no feedback; use Loop or Scan")
            }
            Self::NoType => ("no-type", Malformed, EXPORT_AGAIN),
            Self::NotATensor { .. } => ("not-a-tensor", Unsupported, "pass the elements as separate tensors"),
            Self::ElementType { .. } => ("element-type", Unsupported, "convert to a supported type before"),
            Self::NoShape => {
                ("no-shape", Request, "export the model with input shapes, or give the input's shape")
            }
            Self::UnboundDim { .. } => ("unbound-dim", Request, "all shapes are fixed at compile time"),
            Self::UnnamedDim { .. } => ("unnamed-dim", Request, "all shapes are fixed at compile time"),
            Self::NegativeDim { .. } => ("negative-dim", Malformed, "export with a symbolic name or a size"),
            Self::UnknownDim { .. } => ("unknown-dim", Request, "correct the name or leave it out"),
            Self::UnknownInput { .. } => ("unknown-input", Request, "correct the name or leave it out"),
            Self::ShapeConflict { .. } => ("shape-conflict", Request, "give an input of the declared shape"),
            Self::TooLarge { .. } => ("too-large", Malformed, "check the sizes"),
            Self::Tensor(error) | Self::AttributeTensor { error, .. } => error.facts(),
            Self::SparseInitializer => ("sparse", Unsupported, "store the tensor densely"),
            Self::AttributeKind { .. } => ("attribute-kind", Malformed, EXPORT_AGAIN),
            Self::AttributeValue { .. } => ("attribute-value", Malformed, EXPORT_AGAIN),
            Self::AttributeReference { .. } => ("attribute-reference", Malformed, EXPORT_AGAIN),
            Self::FunctionArity { .. } => ("function-arity", Malformed, EXPORT_AGAIN),
            Self::Recursion { .. } => ("recursion", Malformed, "functions may not be recursive; use Loop"),
            Self::AbsentOutput { .. } => ("absent-output", Malformed, EXPORT_AGAIN),
            Self::TooDeep { .. } => ("too-deep", Unsupported, "inline functions with onnx.inliner"),
            Self::TooMuchInlining { .. } => {
                ("too-much-inlining", Unsupported, "reduce the calls of large functions")
            }
            Self::More { .. } => ("more", Malformed, "repair those above first"),
        }
    }
}

impl fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "the model has {} problem{plural}:", self.0.len())?;
        let problems = self.0.iter().map(|problem| {
            let text = problem.text();
            Problem { place: problem.place.to_string(), cause: message::sentence(&text), text }
        });
        message::lines(problems).iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl fmt::Display for ImportProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File => f.write_str("model"),
            Place::Options => f.write_str("options"),
            Place::Graph(name) => write!(f, "graph `{}`", shown(name)),
            Place::Input(name) => write!(f, "input `{}`", shown(name)),
            Place::Output(name) => write!(f, "output `{}`", shown(name)),
            Place::Initializer(name) => write!(f, "initializer `{}`", shown(name)),
            Place::Function(name) => write!(f, "function `{}`", shown(name)),
            Place::Node { name, operator } => write!(f, "node `{}` ({})", shown(name), shown(operator)),
        }
    }
}

/// The name of an operator set; that of ONNX itself may be left out in files.
fn set_name(domain: &str) -> String {
    if domain.is_empty() { "ai.onnx".to_owned() } else { shown(domain) }
}

/// `; it looks like ...`, or nothing.
fn likeness(guess: &Option<&'static str>) -> String {
    guess.map(|guess| format!("; it looks like {guess}")).unwrap_or_default()
}

/// The names with something between.
fn joined(names: &[String], separator: &str) -> String {
    names.iter().map(|name| shown(name)).collect::<Vec<_>>().join(separator)
}

/// The names with commas between, or `none`.
fn list_or(names: &[String], none: &str) -> String {
    if names.is_empty() { none.to_owned() } else { joined(names, ", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::message::MAX_PROBLEMS;

    #[test]
    fn a_problem_says_where_what_and_what_to_do() {
        let place = Place::Node { name: "conv1".into(), operator: "Conv".into() };
        let problem = ImportProblem { place, reason: Reason::Dangling { value: "w".into() } };
        let errors = ImportErrors::from(problem);
        assert_eq!(
            errors.to_string(),
            "the model has 1 problem:\n  node `conv1` (Conv): `w` is read, but nothing produces it; \
             check the file with onnx.checker and export it again"
        );
    }

    #[test]
    fn problems_of_one_text_are_told_once() {
        let at = |place: Place, symbol: &str| {
            let reason = Reason::UnboundDim { axis: 0, symbol: symbol.into() };
            ImportProblem { place, reason }
        };
        let input = |name: &str| Place::Input(name.into());
        let errors = ImportErrors(vec![at(input("x"), "n"), at(input("y"), "n"), at(input("z"), "m")]);
        let text = |symbol: &str| {
            format!(
                "dimension 0 is the symbol `{symbol}`; a size is expected: bind it with --dim {symbol}=N; all shapes are fixed at \
                 compile time"
            )
        };
        assert_eq!(
            errors.to_string(),
            format!(
                "the model has 3 problems:\n  input `x`: {} (and 1 more such place)\n  input `z`: {}",
                text("n"),
                text("m")
            )
        );
    }

    #[test]
    fn long_names_and_lists_are_cut() {
        let long = "n".repeat(1 << 20);
        let reasons = [
            Reason::Cycle { nodes: vec![long.clone(), long.clone()] },
            Reason::ShapeConflict { declared: long.clone(), given: vec![7; 1 << 20] },
            Reason::TooLarge { dims: vec![7; 1 << 20] },
            Reason::UnknownDim { name: long.clone(), known: vec![long.clone(); 9] },
            Reason::Unreadable { path: long.clone(), detail: long.clone() },
            Reason::Tensor(TensorError::ExternalPath { file: long.clone() }),
            Reason::ElementType { given: long.clone() },
        ];
        for reason in reasons {
            let problem = ImportProblem { place: Place::Initializer(long.clone()), reason };
            let text = ImportErrors::from(problem).to_string();
            assert!(text.len() < 1500, "{} bytes: {text}", text.len());
        }
    }

    #[test]
    fn problems_beyond_the_limit_are_counted() {
        let mut problems = Problems::default();
        for _ in 0..MAX_PROBLEMS + 7 {
            problems.add(Place::File, Reason::Empty);
        }
        let errors = problems.into_errors();
        assert_eq!(errors.0.len(), MAX_PROBLEMS + 1);
        assert_eq!(errors.0[MAX_PROBLEMS].reason, Reason::More { count: 7 });
    }
}
