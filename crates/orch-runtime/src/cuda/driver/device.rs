//! Devices, and contexts on them.

use super::error::CudaError;
use super::loader::Driver;
use super::sys::{DeviceHandle, DriverHandle, device_attribute};
use serde::{Serialize, Serializer};
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

/// A version of CUDA, or of the PTX ISA.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// As 12 in 12.4.
    pub major: u32,
    /// As 4 in 12.4.
    pub minor: u32,
}

/// A compute capability: the version of a device's instruction set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Capability {
    /// As 9 in 9.0.
    pub major: u32,
    /// As 0 in 9.0.
    pub minor: u32,
}

/// What a device is.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeviceInfo {
    /// Its number, from 0.
    pub ordinal: usize,
    /// Its product name.
    pub name: String,
    /// Its instruction set.
    pub capability: Capability,
    /// Streaming multiprocessors (SMs).
    #[serde(rename = "multiprocessors")]
    pub sm_count: u32,
    /// Shared memory that one CTA may have, static and dynamic together, if its kernel opts in to more than 48 KiB.
    pub shared_bytes_per_block: u32,
    /// Shared memory of an SM.
    #[serde(rename = "shared_bytes_per_multiprocessor")]
    pub shared_bytes_per_sm: u32,
    /// 32-bit registers of an SM.
    #[serde(rename = "registers_per_multiprocessor")]
    pub registers_per_sm: u32,
    /// Threads that are resident on an SM at most.
    #[serde(rename = "threads_per_multiprocessor")]
    pub threads_per_sm: u32,
    /// Bytes of L2.
    pub l2_bytes: u64,
    /// Highest usual clock of the SMs.
    pub clock_mhz: u32,
    /// Clock of the memory; 0 if the driver does not report it.
    pub memory_clock_mhz: u32,
    /// Width of the memory interface.
    pub memory_bus_bits: u32,
    /// Memory of the device.
    pub memory_bytes: usize,
    /// The CUDA version that the driver supports.
    pub driver: Version,
}

/// A device of this machine.
#[derive(Clone)]
pub struct Device {
    driver: Arc<Driver>,
    handle: DeviceHandle,
    info: Arc<DeviceInfo>,
}

/// The primary context of a device: what all of this process's work on it belongs to. Clones are the same context.
#[derive(Clone)]
pub struct Context(Arc<Retained>);

struct Retained {
    device: Device,
    handle: DriverHandle,
}

// SAFETY: a context may be used from any thread; each call makes it the thread's current one first.
unsafe impl Send for Retained {}
// SAFETY: the driver's functions may be called from several threads at once.
unsafe impl Sync for Retained {}

impl Device {
    pub(in crate::cuda) fn new(driver: &Arc<Driver>, ordinal: usize) -> Result<Self, CudaError> {
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let doing = || format!("describing device {ordinal}");
        let mut handle: DeviceHandle = 0;
        // SAFETY: the pointer is to a device handle.
        driver.check(unsafe { (driver.api.device_get)(&raw mut handle, number) }, doing)?;
        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer has the length that is passed; the driver ends the name with NUL.
        let status = unsafe { (driver.api.device_name)(name.as_mut_ptr(), name.len() as c_int - 1, handle) };
        driver.check(status, doing)?;
        // SAFETY: the last byte of the buffer is 0.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        let mut memory_bytes = 0;
        // SAFETY: the pointer is to a number of the right size.
        driver.check(unsafe { (driver.api.device_total_mem)(&raw mut memory_bytes, handle) }, doing)?;
        let attribute = |id: c_int| -> Result<u32, CudaError> {
            let mut value: c_int = 0;
            // SAFETY: the pointer is to a `c_int`.
            driver.check(unsafe { (driver.api.device_attribute)(&raw mut value, id, handle) }, doing)?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let info = DeviceInfo {
            ordinal,
            name,
            capability: Capability {
                major: attribute(device_attribute::COMPUTE_CAPABILITY_MAJOR)?,
                minor: attribute(device_attribute::COMPUTE_CAPABILITY_MINOR)?,
            },
            sm_count: attribute(device_attribute::MULTIPROCESSOR_COUNT)?,
            shared_bytes_per_block: attribute(device_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_bytes_per_sm: attribute(device_attribute::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            registers_per_sm: attribute(device_attribute::MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            threads_per_sm: attribute(device_attribute::MAX_THREADS_PER_MULTIPROCESSOR)?,
            l2_bytes: attribute(device_attribute::L2_CACHE_SIZE)?.into(),
            clock_mhz: attribute(device_attribute::CLOCK_RATE)? / 1000,
            memory_clock_mhz: attribute(device_attribute::MEMORY_CLOCK_RATE)? / 1000,
            memory_bus_bits: attribute(device_attribute::GLOBAL_MEMORY_BUS_WIDTH)?,
            memory_bytes,
            driver: driver.version(),
        };
        Ok(Self { driver: Arc::clone(driver), handle, info: Arc::new(info) })
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }
}

impl DeviceInfo {
    /// Bytes per second that the memory's clock and width allow, in units of 10^9: two transfers a clock.
    pub fn memory_gbs(&self) -> f64 {
        2e6 * f64::from(self.memory_clock_mhz) * f64::from(self.memory_bus_bits / 8) / 1e9
    }
}

impl Context {
    /// The context of this device, made if the process has none yet.
    ///
    /// # Errors
    /// If the device is taken, or has no memory for it.
    pub fn new(device: &Device) -> Result<Self, CudaError> {
        let (driver, handle) = (&device.driver, device.handle);
        let doing = || format!("opening {}", device.info.name);
        // SAFETY: the pointer is to a handle.
        let context = driver.create(doing, |made| unsafe { (driver.api.context_retain)(made, handle) });
        let context = context.map_err(|error| match error {
            // Without a context the driver cannot report how much memory is free.
            CudaError::OutOfMemory { doing, needed_bytes, .. } => {
                CudaError::OutOfMemory { doing, needed_bytes, free_bytes: 0, total_bytes: 0 }
            }
            error => error,
        })?;
        Ok(Self(Arc::new(Retained { device: device.clone(), handle: context })))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Free and total bytes of the device's memory.
    ///
    /// # Errors
    /// If the device is lost.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        let driver = self.enter()?;
        driver.memory().map_err(|status| driver.error(status, "counting free memory".into()))
    }

    /// Makes the context current for the calling thread: every call of the driver that concerns the device follows this.
    pub(in crate::cuda) fn enter(&self) -> Result<&Driver, CudaError> {
        let driver = &*self.0.device.driver;
        // SAFETY: the context lives as long as `self`.
        let status = unsafe { (driver.api.context_set_current)(self.0.handle) };
        driver.check(status, || format!("using {}", self.0.device.info.name))?;
        Ok(driver)
    }

    /// For destructors: runs `release` if the context still works. A failure means that the device is lost, and its
    /// memory with it; the next call that can report it does.
    pub(in crate::cuda) fn release(&self, release: impl FnOnce(&Driver) -> super::sys::DriverStatus) {
        if let Ok(driver) = self.enter() {
            let _ = release(driver);
        }
    }

    pub(in crate::cuda) fn handle(&self) -> DriverHandle {
        self.0.handle
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once when this was made. There is nothing to be done about a failure.
        let _ = unsafe { (self.device.driver.api.context_release)(self.device.handle) };
    }
}

impl Version {
    /// The version that CUDA writes as `1000 * major + 10 * minor`.
    pub(in crate::cuda) fn of_number(number: c_int) -> Self {
        let number = u32::try_from(number).unwrap_or(0);
        Self { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl Capability {
    /// The capability that tools write as one number: 9.0 as 90, 12.0 as 120.
    pub fn of_number(number: u32) -> Self {
        Self { major: number / 10, minor: number % 10 }
    }

    /// True if a device of this capability runs code for a target: for `sm_XY` devices of its generation do, from X.Y on, and for
    /// `compute_XY`, which is PTX, all from X.Y on. (Code that uses features of one version only, like `sm_90a`, runs on
    /// that version alone.)
    pub fn runs(self, target: &str) -> bool {
        let of = |digits: &str| digits.parse().ok().map(Self::of_number);
        if let Some(needed) = target.strip_prefix("compute_").and_then(of) {
            return needed <= self;
        }
        let needed = target.strip_prefix("sm_").and_then(of);
        needed.is_some_and(|needed| needed.major == self.major && needed.minor <= self.minor)
    }

    /// The compiler's name of the instruction set, with the features that only this generation has: `sm_90a`, and
    /// `sm_80` where there are no such.
    pub fn arch(self) -> String {
        let specific = if self.major >= 9 { "a" } else { "" };
        format!("sm_{}{}{specific}", self.major, self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Capability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("info", &self.info).finish_non_exhaustive()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.0.device).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Capability;

    #[test]
    fn binaries_run_within_a_generation_and_ptx_on_later_ones() {
        let runs = |device, target| Capability::of_number(device).runs(target);
        assert!(runs(86, "sm_80") && runs(90, "sm_90") && runs(120, "sm_120"));
        assert!(!runs(80, "sm_86") && !runs(90, "sm_80") && !runs(120, "sm_100"));
        assert!(runs(80, "compute_80") && runs(90, "compute_80") && runs(120, "compute_80"));
        assert!(!runs(75, "compute_80") && !runs(80, "compute_90"));
        assert!(!runs(90, "90") && !runs(90, "sm_") && !runs(90, "compute_x"));
    }
}
