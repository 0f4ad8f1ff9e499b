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
use crate::symbols::look_up;
use std::fmt;
use sys::{Api, GetVersion, STATUSES, Status};

/// The loaded library. Several threads may use it at the same time.
pub struct CublasLt {
    api: Api,
    /// As the library counts: `10000 * major + 100 * minor + patch`.
    number: usize,
    path: String,
}

/// The oldest release that is supported.
const OLDEST: Version = Version { major: 12, minor: 0 };

/// The option that names it, in messages.
const OPTION: &str = "--cublaslt";

impl CublasLt {
    /// What the library is called, in messages and records.
    pub const NAME: &'static str = "cuBLASLt";

    /// Loads the library.
    ///
    /// # Errors
    /// If there is none, or it is too old.
    pub fn load(paths: &SearchPaths) -> Result<Self, CudaError> {
        let found = search::cublaslt(paths)?;
        let (library, path) = (found.library, found.path);
        let missing = |symbol: &std::ffi::CStr| CudaError::NoSymbol {
            library: path.clone(),
            symbol: symbol.to_string_lossy().into_owned(),
            advice: "install cuBLASLt again (`pip install --upgrade nvidia-cublas`), or name another one (--cublaslt)",
        };
        // SAFETY: the type is that of the header, and the library is never unloaded.
        let get_version = unsafe { look_up::<GetVersion>(library, c"cublasLtGetVersion") };
        let get_version = get_version.map_err(|lacks| missing(lacks.symbol))?;
        // SAFETY: the function takes nothing, and needs no device.
        let number = unsafe { get_version() };
        if version(number) < OLDEST {
            let (library, found, needed) = (Self::NAME, version(number), OLDEST);
            let (package, option) = ("nvidia-cublas", OPTION);
            return Err(CudaError::LibraryTooOld { library, path, found, needed, package, option });
        }
        // SAFETY: this is cuBLASLt, by its version function, and it is never unloaded.
        let api = unsafe { Api::new(library) }.map_err(|lacks| missing(lacks.symbol))?;
        Ok(Self { api, number, path })
    }

    /// Its release.
    pub fn version(&self) -> Version {
        version(self.number)
    }

    /// Name and full release: `cuBLASLt 13.10.0`. Others may choose other algorithms.
    pub fn release(&self) -> String {
        format!("{} {}.{}", Self::NAME, self.version(), self.number % 100)
    }

    /// The library's file, as it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What a status means; `doing` says what was asked of the library.
    fn check(&self, status: Status, doing: impl FnOnce() -> String) -> Result<(), CudaError> {
        if status == sys::SUCCESS { Ok(()) } else { Err(self.error(status, doing())) }
    }

    #[cold]
    fn error(&self, status: Status, doing: String) -> CudaError {
        let known = STATUSES.iter().find(|(number, _)| *number == status);
        let status = known.map_or_else(|| format!("status {status}"), |(_, name)| (*name).to_owned());
        CudaError::Library { library: self.release(), status, doing, option: OPTION }
    }
}

fn version(number: usize) -> Version {
    let part = |number: usize| u32::try_from(number).unwrap_or(0);
    Version { major: part(number / 10_000), minor: part(number / 100 % 100) }
}

impl fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CublasLt({}, {})", self.release(), self.path)
    }
}

#[cfg(test)]
mod tests;
