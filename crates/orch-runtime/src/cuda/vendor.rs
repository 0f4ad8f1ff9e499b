//! A vendor's library as a file: which release it is, and what errors say of it.

use super::device::Version;
use super::error::CudaError;
use super::search::Found;
use crate::symbols::{MissingSymbol, look_up};
use std::ffi::CStr;

/// What is known of a library before it is found.
pub(super) struct Vendor {
    /// What it is called, in messages and records.
    pub(super) name: &'static str,
    /// Its function that gives its number, which libraries of any age have: `size_t (void)`.
    pub(super) number: &'static CStr,
    /// The release that a number means.
    pub(super) version: fn(usize) -> Version,
    /// The oldest release that is supported.
    pub(super) oldest: Version,
    /// The Python package that brings it.
    pub(super) package: &'static str,
    /// The option that names it.
    pub(super) option: &'static str,
    /// What to do where a function is missing.
    pub(super) advice: &'static str,
}

/// A library that was found, of a release that is supported.
pub(super) struct Release {
    vendor: &'static Vendor,
    /// As the library counts: `10000 * major + 100 * minor + patch`.
    number: usize,
    path: String,
}

impl Release {
    /// The release of a file.
    ///
    /// # Errors
    /// If it is too old, or not this library.
    pub(super) fn of(vendor: &'static Vendor, found: Found) -> Result<Self, CudaError> {
        let mut release = Self { vendor, number: 0, path: found.path };
        // SAFETY: the type is that of the header, and the library is never unloaded.
        let number = unsafe { look_up::<unsafe extern "C" fn() -> usize>(found.library, vendor.number) };
        let number = number.map_err(|lacks| release.missing(&lacks))?;
        // SAFETY: the function takes nothing, and needs no device.
        release.number = unsafe { number() };
        if release.version() < vendor.oldest {
            return Err(CudaError::LibraryTooOld {
                library: vendor.name,
                found: release.version(),
                path: release.path,
                needed: vendor.oldest,
                package: vendor.package,
                option: vendor.option,
            });
        }
        Ok(release)
    }

    /// That a function is missing.
    pub(super) fn missing(&self, lacks: &MissingSymbol) -> CudaError {
        let (library, symbol) = (self.path.clone(), lacks.symbol.to_string_lossy().into_owned());
        CudaError::NoSymbol { library, symbol, advice: self.vendor.advice }
    }

    pub(super) fn version(&self) -> Version {
        (self.vendor.version)(self.number)
    }

    /// Name and full release: `cuBLASLt 13.10.0`. Others may choose other algorithms.
    pub(super) fn name(&self) -> String {
        format!("{} {}.{}", self.vendor.name, self.version(), self.number % 100)
    }

    /// The library's file, as it was found.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// That the library did not do something.
    pub(super) fn failed(&self, status: String, doing: String) -> CudaError {
        CudaError::Library { library: self.name(), status, doing, option: self.vendor.option }
    }
}
