//! Vendor libraries whose calls stand beside kernels, and what they are called for.

use super::convolution::Convolution;
use super::cublaslt::CublasLt;
use super::cudnn::Cudnn;
use super::product::MatrixProduct;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::search::SearchPaths;
use crate::program::BufferRef;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A vendor library that does what some kernels do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// NVIDIA's matrix products.
    CublasLt,
    /// NVIDIA's convolutions.
    Cudnn,
}

/// What a library computes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Computation {
    /// By cuBLASLt.
    Product(MatrixProduct),
    /// By cuDNN.
    Convolution(Convolution),
}

/// Libraries that were looked for: each is there, or it is known why it is not.
#[derive(Clone, Debug, Default)]
pub struct Libraries {
    cublaslt: Option<Result<Arc<CublasLt>, CudaError>>,
    cudnn: Option<Result<Arc<Cudnn>, CudaError>>,
}

/// A call of a library that computes what a kernel computes, from the same tensors; of a library that is not there the
/// reason.
#[derive(Clone, Debug)]
pub enum LibraryCall {
    /// Of cuBLASLt.
    Product(Result<Arc<CublasLt>, CudaError>, MatrixProduct),
    /// Of cuDNN.
    Convolution(Result<Arc<Cudnn>, CudaError>, Convolution),
}

impl Library {
    /// Every library.
    pub const ALL: [Library; 2] = [Library::CublasLt, Library::Cudnn];

    /// The name in options: `cublaslt`, `cudnn`.
    pub fn name(self) -> &'static str {
        match self {
            Library::CublasLt => "cublaslt",
            Library::Cudnn => "cudnn",
        }
    }

    /// What its releases are called by, in messages and records.
    pub fn label(self) -> &'static str {
        match self {
            Library::CublasLt => CublasLt::NAME,
            Library::Cudnn => Cudnn::NAME,
        }
    }
}

impl Computation {
    /// The library that is called.
    pub fn library(&self) -> Library {
        match self {
            Computation::Product(_) => Library::CublasLt,
            Computation::Convolution(_) => Library::Cudnn,
        }
    }
}

impl Libraries {
    /// Looks for these.
    pub fn load(wanted: impl IntoIterator<Item = Library>, paths: &SearchPaths) -> Self {
        let mut libraries = Self::default();
        for library in wanted {
            match library {
                Library::CublasLt if libraries.cublaslt.is_none() => {
                    libraries.cublaslt = Some(CublasLt::load(paths).map(Arc::new));
                }
                Library::Cudnn if libraries.cudnn.is_none() => {
                    libraries.cudnn = Some(Cudnn::load(paths).map(Arc::new));
                }
                Library::CublasLt | Library::Cudnn => {}
            }
        }
        libraries
    }

    /// Name and full release of a library, or why it is not there; `None` if it was not looked for.
    pub fn release(&self, library: Library) -> Option<Result<String, &CudaError>> {
        match library {
            Library::CublasLt => self.cublaslt.as_ref().map(|found| found.as_ref().map(|it| it.release())),
            Library::Cudnn => self.cudnn.as_ref().map(|found| found.as_ref().map(|it| it.release())),
        }
    }

    /// The call for a computation; `None` if its library was not looked for.
    pub fn call(&self, computation: &Computation) -> Option<LibraryCall> {
        Some(match computation {
            Computation::Product(product) => LibraryCall::Product(self.cublaslt.clone()?, product.clone()),
            Computation::Convolution(convolution) => {
                LibraryCall::Convolution(self.cudnn.clone()?, convolution.clone())
            }
        })
    }
}

impl LibraryCall {
    /// What is wrong with it for a launch with these tensors, as clauses that begin with a verb.
    pub(in crate::cuda) fn violations(&self, buffers: &[BufferRef]) -> Vec<String> {
        match self {
            LibraryCall::Product(_, product) => product.violations(buffers),
            LibraryCall::Convolution(_, convolution) => convolution.violations(buffers),
        }
    }
}
