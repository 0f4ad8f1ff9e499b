//! What there is of CUDA on this machine, and what is missing.

use orch_runtime::cuda::{
    Context, CublasLt, CudaError, Cudnn, DeviceInfo, Driver, Nvrtc, SearchPaths, Version,
};
use serde::Serialize;

/// Driver, devices and compiler.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct CudaReport {
    /// The driver; `None` if it cannot be used.
    pub driver: Option<CudaLibrary>,
    /// Devices, in the driver's order.
    pub devices: Vec<CudaDevice>,
    /// The compiler of kernels; `None` if it cannot be used.
    pub nvrtc: Option<CudaLibrary>,
    /// The library of matrix products; `None` if it cannot be used.
    pub cublaslt: Option<CudaLibrary>,
    /// Why it cannot be used. Nothing needs it.
    pub no_cublaslt: Option<String>,
    /// The library of convolutions; `None` if it cannot be used.
    pub cudnn: Option<CudaLibrary>,
    /// Why it cannot be used. Nothing needs it.
    pub no_cudnn: Option<String>,
    /// What keeps models from running, or from being compiled, and what to do about it.
    pub problems: Vec<String>,
}

/// A library of CUDA.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CudaLibrary {
    /// The CUDA version that it supports; of vendor libraries their own.
    pub version: Version,
    /// Its file, as it was found.
    pub path: String,
}

/// A device.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CudaDevice {
    /// What it is.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// Memory that is free; `None` if it cannot be opened.
    pub free_bytes: Option<usize>,
}

/// Looks for driver, devices and compiler.
pub fn examine(paths: &SearchPaths) -> CudaReport {
    let mut report = CudaReport::default();
    match Nvrtc::load(paths) {
        Ok(nvrtc) => {
            report.nvrtc = Some(CudaLibrary { version: nvrtc.version(), path: nvrtc.path().to_owned() });
        }
        Err(error) => report.problems.push(error.to_string()),
    }
    match CublasLt::load(paths) {
        Ok(library) => {
            let (version, path) = (library.version(), library.path().to_owned());
            report.cublaslt = Some(CudaLibrary { version, path });
        }
        Err(error) => report.no_cublaslt = Some(error.to_string()),
    }
    match Cudnn::load(paths) {
        Ok(library) => {
            let (version, path) = (library.version(), library.path().to_owned());
            report.cudnn = Some(CudaLibrary { version, path });
        }
        Err(error) => report.no_cudnn = Some(error.to_string()),
    }
    if let Err(error) = report.examine_driver(paths) {
        report.problems.push(error.to_string());
    }
    if let (Some(driver), Some(nvrtc)) = (&report.driver, &report.nvrtc) {
        let (driver, nvrtc) = (driver.version, nvrtc.version);
        if nvrtc.major > driver.major {
            report.problems.push(format!(
                "NVRTC {nvrtc} compiles kernels that a driver for CUDA {driver} may not load: install a newer driver, \
                 or NVRTC {} (`pip install nvidia-cuda-nvrtc-cu{}`)",
                driver.major, driver.major
            ));
        }
    }
    report
}

impl CudaReport {
    fn examine_driver(&mut self, paths: &SearchPaths) -> Result<(), CudaError> {
        let driver = Driver::load(paths)?;
        self.driver = Some(CudaLibrary { version: driver.version(), path: driver.path().to_owned() });
        for device in driver.devices()? {
            let memory = Context::new(&device).and_then(|context| context.memory());
            if let Err(error) = &memory {
                self.problems.push(format!("GPU {}: {error}", device.info().ordinal));
            }
            let free_bytes = memory.ok().map(|(free, _)| free);
            self.devices.push(CudaDevice { info: device.info().clone(), free_bytes });
        }
        Ok(())
    }

    /// Topic and finding, in order.
    pub fn findings(&self) -> Vec<(&'static str, String)> {
        let library = |library: &Option<CudaLibrary>| match library {
            Some(CudaLibrary { version, path }) => format!("{version} ({path})"),
            None => "none".to_owned(),
        };
        let mut findings = vec![("CUDA driver", library(&self.driver))];
        findings.extend(self.devices.iter().map(|device| ("GPU", device.described())));
        findings.push(("NVRTC", library(&self.nvrtc)));
        findings.push(("cuBLASLt", self.no_cublaslt.clone().unwrap_or_else(|| library(&self.cublaslt))));
        findings.push(("cuDNN", self.no_cudnn.clone().unwrap_or_else(|| library(&self.cudnn))));
        findings.extend(self.problems.iter().map(|problem| ("CUDA problem", problem.clone())));
        findings
    }
}

impl CudaDevice {
    fn described(&self) -> String {
        let info = &self.info;
        let gib = |bytes: usize| bytes as f64 / f64::from(1 << 30);
        let free = self.free_bytes.map_or(String::new(), |free| format!(" ({:.1} free)", gib(free)));
        let speed = match info.memory_gbs() {
            gbs if gbs > 0.0 => format!(" at {gbs:.0} GB/s"),
            _ => String::new(),
        };
        format!(
            "{}: {}, compute capability {}, {} SMs at {} MHz, {:.1} GiB{free}{speed}, {} KiB of L2 \
             cache, {} KiB of shared memory per block",
            info.ordinal,
            info.name,
            info.capability,
            info.sm_count,
            info.clock_mhz,
            gib(info.memory_bytes),
            info.l2_bytes >> 10,
            info.shared_bytes_per_block >> 10
        )
    }
}
