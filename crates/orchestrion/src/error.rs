//! The three families of errors: the user's, a limit of ours, a bug of ours.

use orch_runtime::cuda::{CudaError, ExecutableError};
use orch_runtime::program::RunError;
use std::path::PathBuf;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model, its data or an option is wrong, or needs something that is not supported; the message lists
    /// every problem with its place.
    #[error("{0}")]
    Model(String),
    /// The model is valid but needs something that is not supported; the message lists every such place.
    #[error("{0}")]
    Unsupported(String),
    /// A tensor given to a model does not fit.
    #[error("{0}")]
    Input(String),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The machine lacks something that is needed.
    #[error("{0}")]
    Environment(String),
    /// A bug in Orchestrion.
    #[error(
        "internal error: {0}\nThis is a bug in Orchestrion; please report it with the model or its graph"
    )]
    Internal(String),
    /// The user stopped the work; finished parts stay in the cache.
    #[error("interrupted; finished kernels stay in the cache, so the same command resumes")]
    Interrupted,
}

impl Error {
    /// A bug, by what went wrong.
    pub(crate) fn internal(error: impl std::fmt::Display) -> Self {
        let text = error.to_string();
        // Errors of the runtime that are bugs start with the same words as this error.
        Self::Internal(text.strip_prefix("internal error: ").unwrap_or(&text).to_owned())
    }

    /// The process exit code: 1 for errors in what was given, 2 is left to usage errors, 3 for what is not supported,
    /// 4 for the environment, 70 for bugs, 130 for interruption.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Model(_) | Error::Input(_) | Error::File { .. } => 1,
            Error::Unsupported(_) => 3,
            Error::Environment(_) => 4,
            Error::Internal(_) => 70,
            Error::Interrupted => 130,
        }
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Host { step, reason } => {
                Self::Input(format!("`{step}` cannot work on these values: {reason}"))
            }
            RunError::Count { .. }
            | RunError::Size { .. }
            | RunError::NotUpdated { .. }
            | RunError::Captured { .. }
            | RunError::CapturedInput { .. } => Self::Input(error.to_string()),
        }
    }
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Self {
        if error.is_internal() { Self::internal(error) } else { Self::Environment(error.to_string()) }
    }
}

impl From<ExecutableError> for Error {
    fn from(error: ExecutableError) -> Self {
        match error {
            ExecutableError::Run(error) => error.into(),
            ExecutableError::Cuda(error) => error.into(),
            // What is compiled here is checked before it is loaded.
            ExecutableError::Program(error) => Self::Model(format!(
                "the .orc file is inconsistent: {}; compile the model again",
                error.violations.join("; ")
            )),
        }
    }
}
