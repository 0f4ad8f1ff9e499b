//! What can go wrong: one [`RuleError`] per operator, all collected into [`FissionErrors`].

use orch_ir::InferError;
use orch_ir::message::{self, Problem};
use std::fmt;

/// Why a rule could not translate its operator.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum RuleError {
    /// The model asks for something that this compiler does not do. Says what, and the way round if there is one.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The model breaks the operator's specification.
    #[error("invalid: {0}")]
    Invalid(String),
    /// An operand that decides about shapes must be known when compiling.
    #[error(
        "operand {0} must be a constant: shapes are static; store it in the model, or fix its value when compiling; if it depends on \
         other inputs (as the choice of boxes after a detector does), leave this part out of the export"
    )]
    NotConstant(String),
    /// A required operand is left out.
    #[error("operand {0} is missing")]
    MissingOperand(usize),
    /// A primitive was given operands that do not suit it.
    #[error("operands do not fit: {0}")]
    Operands(#[from] InferError),
    /// Problems inside a subgraph of a control-flow operator.
    #[error("in its subgraph: {0}")]
    Subgraph(Box<FissionErrors>),
}

impl RuleError {
    /// A limit of this compiler.
    pub fn unsupported(message: impl Into<String>) -> Self {
        RuleError::Unsupported(message.into())
    }

    /// A fault of the model.
    pub fn invalid(message: impl Into<String>) -> Self {
        RuleError::Invalid(message.into())
    }
}

/// One problem, with its place in the user's model.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{}: {}", message::name(.place), message::sentence(&.error.to_string()))]
pub struct FissionError {
    /// The operator as `name (OpType)`, or the graph input or output.
    pub place: String,
    /// What is wrong there.
    pub error: RuleError,
}

/// All problems of a model, in the order of its nodes; consequences of a problem are not listed.
#[derive(Clone, PartialEq, Debug)]
pub struct FissionErrors(pub Vec<FissionError>);

impl fmt::Display for FissionErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut problems = Vec::new();
        self.collect("", &mut problems);
        f.write_str(&message::lines(problems).join("\n"))
    }
}

impl std::error::Error for FissionErrors {}

impl FissionErrors {
    /// True if the model may be valid in all places: only limits of this compiler are met.
    pub fn are_limits(&self) -> bool {
        self.0.iter().all(|problem| match &problem.error {
            RuleError::Unsupported(_) | RuleError::NotConstant(_) => true,
            RuleError::Subgraph(inner) => inner.are_limits(),
            RuleError::Invalid(_) | RuleError::MissingOperand(_) | RuleError::Operands(_) => false,
        })
    }

    /// Adds every problem, those of subgraphs by the path to them.
    fn collect(&self, around: &str, problems: &mut Vec<Problem>) {
        for FissionError { place, error } in &self.0 {
            let place = format!("{around}{}", message::name(place));
            match error {
                RuleError::Subgraph(inner) => inner.collect(&format!("{place} / "), problems),
                _ => {
                    let text = message::sentence(&error.to_string());
                    problems.push(Problem { place, cause: message::without_values(&text), text });
                }
            }
        }
    }
}
