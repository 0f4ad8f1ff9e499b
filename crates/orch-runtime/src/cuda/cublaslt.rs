//! cuBLASLt: products of matrices by NVIDIA's library, where it is installed.
//!
//! Nothing depends on it: a launch that has a call of it beside it has its own kernel as well, which runs where the library
//! is not there, or does not take the call.

mod call;
mod sys;

pub(super) use call::{Handle, Product};

use super::device::Version;
use super::error::CudaError;
use super::search::{self, SearchPaths};
use super::vendor::{Release, Vendor};
use std::fmt;
use sys::{Api, STATUSES, Status};

/// The loaded library. Several threads may use it at the same time.
pub struct CublasLt {
    api: Api,
    release: Release,
}

const VENDOR: Vendor = Vendor {
    name: CublasLt::NAME,
    number: c"cublasLtGetVersion",
    version,
    oldest: Version { major: 12, minor: 0 },
    package: "nvidia-cublas",
    option: "--cublaslt",
    advice: "install cuBLASLt again (`pip install --upgrade nvidia-cublas`), or name another one (--cublaslt)",
};

impl CublasLt {
    /// What the library is called, in messages and records.
    pub const NAME: &'static str = "cuBLASLt";

    /// Loads the library.
    ///
    /// # Errors
    /// If there is none, or it is too old.
    pub fn load(paths: &SearchPaths) -> Result<Self, CudaError> {
        let found = search::cublaslt(paths)?;
        let library = found.library;
        let release = Release::of(&VENDOR, found)?;
        // SAFETY: this is cuBLASLt, by its version function, and it is never unloaded.
        let api = unsafe { Api::new(library) }.map_err(|lacks| release.missing(&lacks))?;
        Ok(Self { api, release })
    }

    /// Its release.
    pub fn version(&self) -> Version {
        self.release.version()
    }

    /// Name and full release: `cuBLASLt 13.10.0`. Others may choose other algorithms.
    pub fn release(&self) -> String {
        self.release.name()
    }

    /// The library's file, as it was found.
    pub fn path(&self) -> &str {
        self.release.path()
    }

    /// What a status means; `doing` says what was asked of the library.
    fn check(&self, status: Status, doing: impl FnOnce() -> String) -> Result<(), CudaError> {
        if status == sys::SUCCESS { Ok(()) } else { Err(self.error(status, doing())) }
    }

    #[cold]
    fn error(&self, status: Status, doing: String) -> CudaError {
        let known = STATUSES.iter().find(|(number, _)| *number == status);
        let status = known.map_or_else(|| format!("status {status}"), |(_, name)| (*name).to_owned());
        self.release.failed(status, doing)
    }
}

fn version(number: usize) -> Version {
    let part = |number: usize| u32::try_from(number).unwrap_or(0);
    Version { major: part(number / 10_000), minor: part(number / 100 % 100) }
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CublasLt({}, {})", self.release.name(), self.path())
    }
}

#[cfg(test)]
mod tests;
