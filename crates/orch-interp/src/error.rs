//! Why an evaluation failed.

use orch_ir::{DType, InferError, NodeId, Shape};

/// Why a graph or node could not be evaluated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EvalError {
    /// The caller gave another number of inputs than the graph has.
    #[error("graph \"{graph}\" takes {expected} inputs, {given} were given")]
    InputCount {
        /// The graph's name.
        graph: String,
        /// Inputs the graph has.
        expected: usize,
        /// Inputs given.
        given: usize,
    },
    /// An input has another type or shape than the graph declares.
    #[error(
        "input \"{name}\" of graph \"{graph}\" is {expected_dtype}{expected_shape}, {given_dtype}{given_shape} was given"
    )]
    InputType {
        /// The graph's name.
        graph: String,
        /// The input's external name.
        name: String,
        /// The declared element type.
        expected_dtype: DType,
        /// The declared shape.
        expected_shape: Shape,
        /// The element type given.
        given_dtype: DType,
        /// The shape given.
        given_shape: Shape,
    },
    /// A node of the graph failed.
    #[error("node {node} (from \"{origin}\"): {source}")]
    Node {
        /// The node.
        node: NodeId,
        /// The operator of the user's model that the node comes from.
        origin: String,
        /// What went wrong.
        source: Box<EvalError>,
    },
    /// The operands do not suit the primitive.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// A result would be larger than the caller allows.
    #[error("result {dtype}{shape} takes {needed_bytes} bytes, the limit is {limit_bytes}")]
    TooLarge {
        /// The result's element type.
        dtype: DType,
        /// The result's shape.
        shape: Shape,
        /// Bytes the result takes.
        needed_bytes: usize,
        /// [`EvalOptions::max_result_bytes`](crate::EvalOptions::max_result_bytes).
        limit_bytes: usize,
    },
    /// The operands of an opaque operation do not suit it, or data it depends on is out of range.
    #[error("{operation}: {problem}")]
    Operation {
        /// The operation.
        operation: String,
        /// What was expected and what was given.
        problem: String,
    },
}

impl EvalError {
    /// An [`EvalError::Operation`].
    pub(crate) fn operation(operation: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Operation { operation: operation.into(), problem: problem.into() }
    }
}

/// Returns an [`EvalError::Operation`] with the message after the condition unless the condition holds.
macro_rules! require {
    ($condition:expr, $operation:expr, $($message:tt)*) => {
        if !$condition { return Err($crate::EvalError::operation($operation, format!($($message)*))); }
    };
}

pub(crate) use require;
