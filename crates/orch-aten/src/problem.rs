//! What can be wrong with a document, and how it is told.
//!
//! An import goes on after a problem, so that one run shows them all: a [`Reason`] at a [`Location`], each with what was
//! given and what was expected.

use orch_ir::message::{self, Problem, name as shown};
use std::fmt;

/// Every problem found in a document, in the order of discovery; never empty.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub struct ImportErrors(pub Vec<ImportProblem>);

/// One problem of a document.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportProblem {
    /// Where in the document.
    pub place: Location,
    /// What is wrong.
    pub reason: Reason,
}

/// A place in a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// The document as a whole.
    Document,
    /// An input, by name.
    Input(String),
    /// A constant, by name.
    Constant(String),
    /// A node.
    Node {
        /// Its name.
        name: String,
        /// What it calls.
        target: String,
        /// The line of the program that it was traced from; empty if it is not known.
        source: String,
    },
    /// An output, by position.
    Output(usize),
    /// A mutation, by position.
    Mutation(usize),
}

/// What is wrong at a [`Location`].
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages are the documentation")]
pub enum Reason {
    #[error("this is no document of ATen calls: {detail}")]
    NotADocument { detail: String },
    #[error("the format is `{}`, `orchestrion-aten` is expected", shown(.given))]
    Format { given: String },
    #[error("version {given} of the format is given, version {known} is known")]
    Version { given: u64, known: u64 },
    #[error("the name `{}` is given twice; names are to be unique", shown(.name))]
    Duplicate { name: String },
    #[error("the element type is `{}`; bool, i8 to i64, u8 to u64, f16, bf16, f32 and f64 are known", shown(.given))]
    ElementType { given: String },
    #[error("the shape {dims:?} holds more than 2^40 elements")]
    TooLarge { dims: Vec<usize> },
    #[error("{given} dimensions are given, at most {most} are taken")]
    Rank { given: usize, most: usize },
    #[error("{given} strides are given for {expected} dimensions")]
    Strides { given: usize, expected: usize },
    #[error("{detail}")]
    Elements { detail: String },
    #[error("`{}` is read, but no input, constant or earlier node has that name", shown(.value))]
    Dangling { value: String },
    #[error("result {index} of `{}` is read; it has {count} results", shown(.value))]
    NoResult { value: String, index: usize, count: usize },
    #[error("argument {argument}: {detail}")]
    Argument { argument: String, detail: String },
    #[error("this target is not supported")]
    UnknownTarget,
    #[error("not supported: {0}")]
    Unsupported(String),
    #[error("{0}")]
    Invalid(String),
    #[error("result {index} is {given} in the document, {expected} by the arguments")]
    ResultType { index: usize, given: String, expected: String },
    #[error("{given} results are given, the target has {expected}")]
    ResultCount { given: usize, expected: usize },
    #[error("{what} {given} is named; there are {count}")]
    NoPosition { what: &'static str, given: usize, count: usize },
    #[error("output {output} is {given}, input {input} is {expected}; they are to be of one type")]
    MutationType { output: usize, given: String, input: usize, expected: String },
    #[error("{count} more problems are not shown")]
    More { count: usize },
}

/// Collects the problems of one import.
#[derive(Default)]
pub(crate) struct Problems(message::Capped<ImportProblem>);

impl Problems {
    /// Adds a problem.
    pub fn add(&mut self, place: Location, reason: Reason) {
        self.0.add(ImportProblem { place, reason });
    }

    /// Ok if there are none.
    pub fn into_result(self) -> Result<(), ImportErrors> {
        let more = |count| ImportProblem { place: Location::Document, reason: Reason::More { count } };
        let found = self.0.into_found(more);
        if found.is_empty() { Ok(()) } else { Err(ImportErrors(found)) }
    }
}

impl ImportErrors {
    /// True if the document may be valid in all places: only limits of this compiler are met.
    pub fn are_limits(&self) -> bool {
        self.0.iter().all(|problem| matches!(problem.reason, Reason::UnknownTarget | Reason::Unsupported(_)))
    }
}

impl From<ImportProblem> for ImportErrors {
    fn from(problem: ImportProblem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(f, "the graph has {} problem{plural}:", self.0.len())?;
        let problems = self.0.iter().map(|problem| {
            let text = problem.reason.to_string();
            Problem { place: problem.place.to_string(), cause: problem.cause(), text }
        });
        message::lines(problems).iter().try_for_each(|line| write!(f, "\n  {line}"))
    }
}

impl ImportProblem {
    /// What problems have in common that are told together: unknown targets are told once each.
    fn cause(&self) -> String {
        match (&self.place, &self.reason) {
            (Location::Node { target, .. }, Reason::UnknownTarget) => message::name(target),
            _ => message::sentence(&self.reason.to_string()),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Document => f.write_str("document"),
            Location::Input(name) => write!(f, "input `{}`", shown(name)),
            Location::Constant(name) => write!(f, "constant `{}`", shown(name)),
            Location::Node { name, target, source } => {
                let short = |text: &str| message::shortened(text, 60);
                write!(f, "node `{}` ({})", short(name), short(target))?;
                if source.is_empty() { Ok(()) } else { write!(f, " at {}", short(source)) }
            }
            Location::Output(position) => write!(f, "output {position}"),
            Location::Mutation(position) => write!(f, "mutation {position}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::message::MAX_PROBLEMS;

    #[test]
    fn a_problem_says_where_and_what() {
        let place =
            Location::Node { name: "mm".into(), target: "aten.mm.default".into(), source: "m.py:3".into() };
        let errors =
            ImportErrors::from(ImportProblem { place, reason: Reason::Dangling { value: "w".into() } });
        assert_eq!(
            errors.to_string(),
            "the graph has 1 problem:\n  node `mm` (aten.mm.default) at m.py:3: `w` is read, but no input, constant \
             or earlier node has that name"
        );
    }

    #[test]
    fn problems_beyond_the_limit_are_counted() {
        let mut problems = Problems::default();
        for _ in 0..MAX_PROBLEMS + 7 {
            problems.add(Location::Document, Reason::UnknownTarget);
        }
        let errors = problems.into_result().unwrap_err();
        assert_eq!(errors.0[MAX_PROBLEMS].reason, Reason::More { count: 7 });
    }
}
