//! A vendor's library that is loaded: its functions, which release it is, and what its errors say.

use crate::cuda::driver::device::Version;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::search::{Found, SearchPaths};
use crate::symbols::{MissingSymbol, look_up};
use libloading::Library;
use std::ffi::{CStr, c_int};
use std::fmt;

/// What is known of a library before it is found.
pub struct Vendor {
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
    /// Finds and opens its file.
    pub(super) find: fn(&SearchPaths) -> Result<Found, CudaError>,
}

/// The functions of one vendor's library. The module is private: only the tables of this crate implement it.
pub trait VendorApi: Sized {
    /// The library.
    const VENDOR: Vendor;

    /// Loads its functions.
    ///
    /// # Safety
    /// The file must be this library, and is never unloaded.
    unsafe fn look_up(library: &'static Library) -> Result<Self, MissingSymbol>;

    /// The name or text of a status other than 0, where the library has one.
    fn status_text(&self, status: c_int) -> Option<String>;
}

/// The loaded library. Several threads may use it at the same time.
pub struct LoadedVendor<A> {
    /// Its functions.
    pub(super) api: A,
    /// As the library counts: `10000 * major + 100 * minor + patch`.
    number: usize,
    path: String,
}

/// The status of success of every vendor's library.
const SUCCESS: c_int = 0;

impl<A: VendorApi> LoadedVendor<A> {
    /// What the library is called, in messages and records.
    pub const NAME: &'static str = A::VENDOR.name;

    /// Loads the library.
    ///
    /// # Errors
    /// If there is none, it is too old, or the file is another library.
    pub fn load(paths: &SearchPaths) -> Result<Self, CudaError> {
        let Found { library, path } = (A::VENDOR.find)(paths)?;
        // SAFETY: the type is that of the header, and the library is never unloaded.
        let number = unsafe { look_up::<unsafe extern "C" fn() -> usize>(library, A::VENDOR.number) };
        let number = number.map_err(|lacks| missing::<A>(&path, &lacks))?;
        // SAFETY: the function takes nothing, and needs no device.
        let number = unsafe { number() };
        let found = (A::VENDOR.version)(number);
        if found < A::VENDOR.oldest {
            return Err(CudaError::LibraryTooOld {
                library: A::VENDOR.name,
                found,
                path,
                needed: A::VENDOR.oldest,
                package: A::VENDOR.package,
                option: A::VENDOR.option,
            });
        }
        // SAFETY: this is the vendor's library, by its version function, and it is never unloaded.
        let api = unsafe { A::look_up(library) }.map_err(|lacks| missing::<A>(&path, &lacks))?;
        Ok(Self { api, number, path })
    }

    /// Its release.
    pub fn version(&self) -> Version {
        (A::VENDOR.version)(self.number)
    }

    /// Name and full release: `cuBLASLt 13.10.0`. Others may choose other algorithms.
    pub fn release(&self) -> String {
        format!("{} {}.{}", A::VENDOR.name, self.version(), self.number % 100)
    }

    /// The library's file, as it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Turns a status other than success into an error; `doing` completes the sentence "while ...".
    pub(super) fn check(&self, status: c_int, doing: impl FnOnce() -> String) -> Result<(), CudaError> {
        if status == SUCCESS { Ok(()) } else { Err(self.error(status, doing())) }
    }

    /// The error of a status.
    #[cold]
    pub(super) fn error(&self, status: c_int, doing: String) -> CudaError {
        let status = self.api.status_text(status).unwrap_or_else(|| format!("status {status}"));
        CudaError::Library { library: self.release(), status, doing, option: A::VENDOR.option }
    }
}

/// The error that the library at `path` lacks a function.
fn missing<A: VendorApi>(path: &str, lacks: &MissingSymbol) -> CudaError {
    let symbol = lacks.symbol.to_string_lossy().into_owned();
    CudaError::NoSymbol { library: path.to_owned(), symbol, advice: A::VENDOR.advice }
}

impl<A: VendorApi> fmt::Debug for LoadedVendor<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.release(), self.path())
    }
}
