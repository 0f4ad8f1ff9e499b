//! The NVIDIA driver, loaded at run time.

use super::device::{Device, Version};
use super::error::{CudaError, code};
use super::search::{self, SearchPaths};
use super::sys::{DriverApi, DriverGetVersion, DriverHandle, DriverStatus, GraphAddEdges};
use crate::symbols::look_up;
use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

/// The driver, initialised.
pub struct Driver {
    pub(in crate::cuda) api: DriverApi,
    /// Missing before CUDA 12.3.
    pub(in crate::cuda) add_edges: Option<GraphAddEdges>,
    version: Version,
    path: String,
}

/// The oldest CUDA version whose driver is supported.
const OLDEST: Version = Version { major: 12, minor: 0 };

impl Driver {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// If there is none, if it is too old, or if it finds no device.
    pub fn load(paths: &SearchPaths) -> Result<Arc<Self>, CudaError> {
        let found = search::driver(paths)?;
        let (library, path) = (found.library, found.path);
        let missing = |symbol: &CStr, advice| CudaError::NoSymbol {
            library: path.clone(),
            symbol: symbol.to_string_lossy().into_owned(),
            advice,
        };
        // SAFETY: the type is that of the header, and the library is never unloaded.
        let get_version = unsafe { look_up::<DriverGetVersion>(library, c"cuDriverGetVersion") };
        let get_version = get_version
            .map_err(|lacks| missing(lacks.symbol, "this is not the library of an NVIDIA driver"))?;
        let mut number: c_int = 0;
        // SAFETY: the pointer is to a `c_int`.
        let status = unsafe { get_version(&raw mut number) };
        let version = Version::of_number(number);
        // A library that does not even report its version is no old driver: starting it reports what is wrong.
        if status == code::SUCCESS && version < OLDEST {
            return Err(CudaError::DriverTooOld { found: version, needed: OLDEST });
        }
        // SAFETY: this is the driver's library, by its version function, and it is never unloaded.
        let api = unsafe { DriverApi::new(library) };
        let api =
            api.map_err(|lacks| missing(lacks.symbol, "install the NVIDIA driver again, or a newer one"))?;
        // SAFETY: as above.
        let add_edges = unsafe { look_up(library, c"cuGraphAddDependencies_v2") }.ok();
        let driver = Self { api, add_edges, version, path };
        // SAFETY: 0 is the only value that the function takes.
        match unsafe { (driver.api.init)(0) } {
            code::SUCCESS if status == code::SUCCESS => Ok(Arc::new(driver)),
            code::SUCCESS => Err(driver.not_started(status)),
            code::NO_DEVICE => Err(CudaError::NoDevice),
            failed => Err(driver.not_started(failed)),
        }
    }

    fn not_started(&self, status: DriverStatus) -> CudaError {
        let (name, message) = self.words(status);
        CudaError::NotStarted { library: self.path.clone(), name, message }
    }

    /// The CUDA version that it supports.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The library's file, as it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Every device.
    ///
    /// # Errors
    /// If the driver does not answer.
    pub fn devices(self: &Arc<Self>) -> Result<Vec<Device>, CudaError> {
        (0..self.device_count()?).map(|ordinal| Device::new(self, ordinal)).collect()
    }

    /// The device of this number.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device(self: &Arc<Self>, ordinal: usize) -> Result<Device, CudaError> {
        match self.device_count()? {
            count if ordinal >= count => Err(CudaError::NoSuchDevice { ordinal, count }),
            _ => Device::new(self, ordinal),
        }
    }

    fn device_count(&self) -> Result<usize, CudaError> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a `c_int`.
        let status = unsafe { (self.api.device_count)(&raw mut count) };
        self.check(status, || "counting devices".into())?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// What a status means; `doing` says what the call was for.
    pub(in crate::cuda) fn check(
        &self,
        status: DriverStatus,
        doing: impl FnOnce() -> String,
    ) -> Result<(), CudaError> {
        if status == code::SUCCESS { Ok(()) } else { Err(self.error(status, doing())) }
    }

    /// The error of a status that is not success.
    #[cold]
    pub(in crate::cuda) fn error(&self, status: DriverStatus, doing: String) -> CudaError {
        let (name, message) = self.words(status);
        if code::FAULTS.contains(&status) {
            CudaError::Fault { doing, name }
        } else if code::LOST.contains(&status) {
            CudaError::DeviceLost { doing, name, message }
        } else if status == code::NOT_AVAILABLE {
            CudaError::NotAvailable { doing, name, message }
        } else if status == code::NO_DEVICE {
            CudaError::NoDevice
        } else if status == code::OUT_OF_MEMORY {
            let (free_bytes, total_bytes) = self.memory().unwrap_or((0, 0));
            CudaError::OutOfMemory { doing, needed_bytes: None, free_bytes, total_bytes }
        } else {
            CudaError::Driver { doing, name, message }
        }
    }

    /// Free and total bytes of the device whose context is current.
    pub(in crate::cuda) fn memory(&self) -> Result<(usize, usize), DriverStatus> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to numbers of the right size.
        match unsafe { (self.api.mem_get_info)(&raw mut free, &raw mut total) } {
            code::SUCCESS => Ok((free, total)),
            status => Err(status),
        }
    }

    /// What `create` makes.
    pub(in crate::cuda) fn create(
        &self,
        doing: impl FnOnce() -> String,
        create: impl FnOnce(*mut DriverHandle) -> DriverStatus,
    ) -> Result<DriverHandle, CudaError> {
        let mut handle: DriverHandle = std::ptr::null_mut();
        self.check(create(&raw mut handle), doing)?;
        Ok(handle)
    }

    /// The driver's name of a status, and its explanation.
    fn words(&self, status: DriverStatus) -> (String, String) {
        let name = self.text(self.api.error_name, status).unwrap_or_else(|| format!("error {status}"));
        let message = self.text(self.api.error_string, status).unwrap_or_else(|| "no explanation".to_owned());
        (name, message)
    }

    fn text(
        &self,
        query: unsafe extern "C" fn(DriverStatus, *mut *const c_char) -> DriverStatus,
        status: DriverStatus,
    ) -> Option<String> {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the pointer is to a pointer, which the driver sets to a constant string, or to null.
        let found = unsafe { query(status, &raw mut text) } == code::SUCCESS && !text.is_null();
        // SAFETY: the string is not null, and constant.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
