//! cuBLASLt: matrix products by NVIDIA's library, where it is installed.

mod call;
mod sys;

pub(in crate::cuda) use call::{CublasLtSession, PreparedMatmul};

use super::loaded::{LoadedVendor, Vendor, VendorApi};
use crate::cuda::driver::device::Version;
use crate::cuda::driver::search;
use crate::symbols::MissingSymbol;
use libloading::Library;
use sys::{CublasLtApi, CublasLtStatus, STATUSES};

/// cuBLASLt, loaded. Several threads may use it at the same time.
pub type CublasLt = LoadedVendor<CublasLtApi>;

impl VendorApi for CublasLtApi {
    const VENDOR: Vendor = Vendor {
        name: "cuBLASLt",
        number: c"cublasLtGetVersion",
        version,
        oldest: Version { major: 12, minor: 0 },
        package: "nvidia-cublas",
        option: "--cublaslt",
        advice: "install cuBLASLt again (`pip install --upgrade nvidia-cublas`), or name another one (--cublaslt)",
        find: search::cublaslt,
    };

    unsafe fn look_up(library: &'static Library) -> Result<Self, MissingSymbol> {
        // SAFETY: the caller's promise.
        unsafe { Self::new(library) }
    }

    fn status_text(&self, status: CublasLtStatus) -> Option<String> {
        let known = STATUSES.iter().find(|(number, _)| *number == status);
        known.map(|(_, name)| (*name).to_owned())
    }
}

/// `10000 * major + 100 * minor + patch`.
fn version(number: usize) -> Version {
    let part = |number: usize| u32::try_from(number).unwrap_or(0);
    Version { major: part(number / 10_000), minor: part(number / 100 % 100) }
}

#[cfg(test)]
mod tests;
