//! cuDNN: convolutions by NVIDIA's library, where it is installed.

mod call;
mod sys;

pub(in crate::cuda) use call::{CudnnSession, PreparedConvolution};

use super::loaded::{LoadedVendor, Vendor, VendorApi};
use crate::cuda::driver::device::Version;
use crate::cuda::driver::search;
use crate::symbols::MissingSymbol;
use libloading::Library;
use std::ffi::CStr;
use sys::{CudnnApi, CudnnStatus};

/// cuDNN, loaded. Several threads may use it at the same time.
pub type Cudnn = LoadedVendor<CudnnApi>;

impl VendorApi for CudnnApi {
    const VENDOR: Vendor = Vendor {
        name: "cuDNN",
        number: c"cudnnGetVersion",
        version,
        oldest: Version { major: 9, minor: 0 },
        package: "nvidia-cudnn-cu13",
        option: "--cudnn",
        advice: "install cuDNN again (`pip install --upgrade nvidia-cudnn-cu13`), or name another one (--cudnn)",
        find: search::cudnn,
    };

    unsafe fn look_up(library: &'static Library) -> Result<Self, MissingSymbol> {
        // SAFETY: the caller's promise.
        unsafe { Self::new(library) }
    }

    fn status_text(&self, status: CudnnStatus) -> Option<String> {
        // SAFETY: the function takes any status, and returns a text that is never freed, or null.
        let text = unsafe { (self.error_string)(status) };
        // SAFETY: it is not null, and ends with NUL.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// `10000 * major + 100 * minor + patch`; releases before 9 counted `1000 * major + 100 * minor + patch`.
fn version(number: usize) -> Version {
    let part = |number: usize| u32::try_from(number).unwrap_or(0);
    let major = if number < 10_000 { number / 1000 } else { number / 10_000 };
    Version { major: part(major), minor: part(number / 100 % if number < 10_000 { 10 } else { 100 }) }
}

#[cfg(test)]
mod tests;
