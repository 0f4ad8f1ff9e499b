//! Why a text does not read as a thread program.

/// Where and why a text is not a thread program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ThreadTextError {
    /// Line, counted from 1.
    pub line: usize,
    /// What was expected, and what stands there.
    pub problem: String,
}
