//! cuDNN: convolutions by NVIDIA's library, where it is installed.
//!
//! Nothing depends on it: a launch that has a call of it beside it has its own kernel as well, which runs where the library
//! is not there, or does not take the call.

mod call;
mod sys;

pub(super) use call::{Handle, Prepared};

use super::device::Version;
use super::error::CudaError;
use super::search::{self, SearchPaths};
use super::vendor::{Release, Vendor};
use std::ffi::CStr;
use std::fmt;
use sys::{Api, Status};

/// The loaded library. Several threads may use it at the same time.
pub struct Cudnn {
    api: Api,
    release: Release,
}

const VENDOR: Vendor = Vendor {
    name: Cudnn::NAME,
    number: c"cudnnGetVersion",
    version,
    oldest: Version { major: 9, minor: 0 },
    package: "nvidia-cudnn-cu13",
    option: "--cudnn",
    advice: "install cuDNN again (`pip install --upgrade nvidia-cudnn-cu13`), or name another one (--cudnn)",
};

impl Cudnn {
    /// What the library is called, in messages and records.
    pub const NAME: &'static str = "cuDNN";

    /// Loads the library.
    ///
    /// # Errors
    /// If there is none, or it is too old.
    pub fn load(paths: &SearchPaths) -> Result<Self, CudaError> {
        let found = search::cudnn(paths)?;
        let library = found.library;
        let release = Release::of(&VENDOR, found)?;
        // SAFETY: this is cuDNN, by its version function, and it is never unloaded.
        let api = unsafe { Api::new(library) }.map_err(|lacks| release.missing(&lacks))?;
        Ok(Self { api, release })
    }

    /// Its release.
    pub fn version(&self) -> Version {
        self.release.version()
    }

    /// Name and full release: `cuDNN 9.28.1`. Others may choose other algorithms.
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
        // SAFETY: the function takes any status, and returns a text that is never freed, or null.
        let text = unsafe { (self.api.error_string)(status) };
        let status = if text.is_null() {
            format!("status {status}")
        } else {
            // SAFETY: it is not null, and ends with NUL.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        self.release.failed(status, doing)
    }
}

/// Releases before 9 counted `1000 * major + 100 * minor + patch`.
fn version(number: usize) -> Version {
    let part = |number: usize| u32::try_from(number).unwrap_or(0);
    let major = if number < 10_000 { number / 1000 } else { number / 10_000 };
    Version { major: part(major), minor: part(number / 100 % if number < 10_000 { 10 } else { 100 }) }
}

impl fmt::Debug for Cudnn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cudnn({}, {})", self.release.name(), self.path())
    }
}

#[cfg(test)]
mod tests;
