//! What can go wrong on a CUDA device.

use super::device::{Capability, Version};

/// Why something was not done with CUDA.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CudaError {
    /// A library is not installed, or does not load.
    #[error("{library} is not there: {}\n{advice}", .tried.join("; "))]
    NoLibrary {
        /// What the library is.
        library: &'static str,
        /// Each place that was tried, with what the loader said.
        tried: Vec<String>,
        /// What to do.
        advice: &'static str,
    },
    /// A library lacks a function, so it is not the expected one or too old.
    #[error("{library} has no function `{symbol}`; {advice}")]
    NoSymbol {
        /// The library's file.
        library: String,
        /// The function.
        symbol: String,
        /// What to do.
        advice: &'static str,
    },
    /// The driver is older than what is supported.
    #[error(
        "the NVIDIA driver supports CUDA {found}, but {needed} or later is needed: install a newer driver \
         (https://www.nvidia.com/drivers)"
    )]
    DriverTooOld {
        /// The CUDA version that the driver supports.
        found: Version,
        /// The oldest that will do.
        needed: Version,
    },
    /// A library is older than what is supported.
    #[error(
        "{library} {found} ({path}) is too old, {needed} or later is needed: `pip install --upgrade {package}`, or name \
         another one with the option {option}"
    )]
    LibraryTooOld {
        /// What the library is.
        library: &'static str,
        /// The library's file.
        path: String,
        /// Its release.
        found: Version,
        /// The oldest that will do.
        needed: Version,
        /// The Python package that brings it.
        package: &'static str,
        /// The option that names another one.
        option: &'static str,
    },
    /// A call of a vendor library failed.
    #[error("{library} reports {status} while {doing}; without it ({option} none) the own kernels run")]
    Library {
        /// The library and its release.
        library: String,
        /// Its name of the error.
        status: String,
        /// What was being done.
        doing: String,
        /// The option that names another one, or none.
        option: &'static str,
    },
    /// The driver does not start.
    #[error(
        "the NVIDIA driver ({library}) does not start: {name} ({message}); see whether `nvidia-smi` works. After an update \
         of the driver the machine must be restarted; a container needs the driver's library of its host"
    )]
    NotStarted {
        /// The driver's file.
        library: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's explanation.
        message: String,
    },
    /// The driver is there, but no device that it may use.
    #[error(
        "the NVIDIA driver finds no GPU: see what `nvidia-smi` lists; containers must be given the GPU (Docker: \
         `--gpus all`), and CUDA_VISIBLE_DEVICES must not hide it"
    )]
    NoDevice,
    /// There is no device of this number.
    #[error("there is no CUDA device {ordinal}: this machine has {count}, numbered from 0")]
    NoSuchDevice {
        /// The requested number.
        ordinal: usize,
        /// Devices there are.
        count: usize,
    },
    /// The device has too little memory.
    #[error("out of device memory while {doing}: {}", out_of_memory(*.needed_bytes, *.free_bytes, *.total_bytes))]
    OutOfMemory {
        /// What was being done.
        doing: String,
        /// Requested bytes, if the call reports them.
        needed_bytes: Option<usize>,
        /// Bytes that were free.
        free_bytes: usize,
        /// Bytes that the device has; 0 if neither this nor what is free is known.
        total_bytes: usize,
    },
    /// Kernels are for another device.
    #[error(
        "`{module}` holds code for {arch}, which {device} (compute capability {capability}) does not run; compile the \
         model for this device"
    )]
    WrongArch {
        /// The module.
        module: String,
        /// What its code is for.
        arch: String,
        /// The device's name.
        device: String,
        /// The device's capability.
        capability: Capability,
    },
    /// The driver does not load a module.
    #[error(
        "the driver (CUDA {driver}) does not load `{module}`: {name} ({message}); kernels compiled by a later CUDA \
         release than the driver's need a newer driver, or an NVRTC of the driver's release"
    )]
    NotLoadable {
        /// The module.
        module: String,
        /// The CUDA version that the driver supports.
        driver: Version,
        /// The driver's name of the error.
        name: String,
        /// The driver's explanation.
        message: String,
    },
    /// The driver does not compile PTX.
    #[error(
        "the driver (CUDA {driver}) does not compile the PTX of `{module}` for {device}: {reason}; install a newer \
         driver, or compile the model with NVRTC {driver} (`pip install nvidia-cuda-nvrtc=={driver}.*`). A container needs the \
         driver's compiler (libnvidia-ptxjitcompiler.so.1) of its host{}", said(.log)
    )]
    NotCompiled {
        /// The module.
        module: String,
        /// The CUDA version that the driver supports.
        driver: Version,
        /// The device's name.
        device: String,
        /// The driver's name of the error, and its explanation.
        reason: String,
        /// What the driver's compiler said.
        log: String,
    },
    /// PTX is of a version that the driver does not have.
    #[error(
        "`{module}` is PTX of version {found}, and the driver (CUDA {driver}) compiles versions up to {newest}: install a \
         newer driver, or compile the model with NVRTC {driver} (`pip install nvidia-cuda-nvrtc=={driver}.*`)"
    )]
    PtxTooNew {
        /// The module.
        module: String,
        /// The version that it is written in.
        found: Version,
        /// The newest that the driver compiles.
        newest: Version,
        /// The CUDA version that the driver supports.
        driver: Version,
    },
    /// A kernel broke the rules: the process has lost this device.
    #[error(
        "internal error: {} ({name}) while {doing}. The device stays unusable until this process ends. `orchestrion \
         explain` shows what a step computes; running the same under `compute-sanitizer` finds the place", fault(.name)
    )]
    Fault {
        /// What was being done, with the names of kernels.
        doing: String,
        /// The driver's name of the error.
        name: String,
    },
    /// The device does not accept this process.
    #[error(
        "the device is not available while {doing}: {name} ({message}); end the process that has it for itself \
         (`nvidia-smi` lists them, and the compute mode that allows it), or wait for it"
    )]
    NotAvailable {
        /// What was being done.
        doing: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's explanation.
        message: String,
    },
    /// The device, or the process's hold on it, is gone.
    #[error(
        "the device was lost while {doing}: {name} ({message}); start the program again, and if that does not help, see \
         `nvidia-smi` and `dmesg | grep -i xid` for what happened"
    )]
    DeviceLost {
        /// What was being done.
        doing: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's explanation.
        message: String,
    },
    /// A host tensor has another size than the device memory that it is copied to or from.
    #[error("internal error: a copy of {given} bytes at {offset} leaves a buffer of {size} bytes")]
    OutOfRange {
        /// First byte in the buffer.
        offset: usize,
        /// Bytes to copy.
        given: usize,
        /// The buffer's size.
        size: usize,
    },
    /// Anything else that the driver reports.
    #[error("the driver reports {name} ({message}) while {doing}")]
    Driver {
        /// What was being done.
        doing: String,
        /// The driver's name of the error.
        name: String,
        /// The driver's explanation.
        message: String,
    },
}

impl CudaError {
    /// True if nothing works on this device any more until the process ends.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Fault { .. } | Self::DeviceLost { .. })
    }

    /// True if neither the user nor the machine is the cause.
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::Fault { .. } | Self::OutOfRange { .. })
    }
}

/// The driver's error numbers that are distinguished here (`CUresult` in `cuda.h`).
pub(in crate::cuda) mod code {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NO_DEVICE: i32 = 100;
    /// Not for this device, or not a module: invalid image, no binary for the device, invalid PTX, no compiler of PTX, a version of
    /// PTX, and compiling that is switched off.
    pub(crate) const NOT_LOADABLE: [i32; 6] = [200, 209, 218, 221, 222, 223];
    /// Of a kernel: illegal address, timeout, assertion, stack, instruction, alignment, address space, program counter,
    /// and what has no other name.
    pub(crate) const FAULTS: [i32; 9] = [700, 702, 710, 714, 715, 716, 717, 718, 719];
    pub(crate) const NOT_AVAILABLE: i32 = 46;
    /// Of the device: driver shut down, memory or link defect, contained defect, context gone, other device, unknown.
    pub(crate) const LOST: [i32; 7] = [4, 214, 220, 226, 709, 911, 999];
}

/// A log as the end of a message.
fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!(". It says:\n{log}") }
}

fn fault(name: &str) -> &'static str {
    match name {
        "CUDA_ERROR_ILLEGAL_ADDRESS" => "illegal address",
        "CUDA_ERROR_MISALIGNED_ADDRESS" => "misaligned address",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION" => "illegal instruction",
        "CUDA_ERROR_LAUNCH_TIMEOUT" => "time limit of the system exceeded",
        "CUDA_ERROR_ASSERT" => "failed assertion",
        _ => "a kernel failed",
    }
}

fn out_of_memory(needed: Option<usize>, free: usize, total: usize) -> String {
    let needed = needed.map_or(String::new(), |needed| format!("{} needed, ", size(needed)));
    let free = match total {
        0 => "how much is free is not known".to_owned(),
        total => format!("{} of {} free", size(free), size(total)),
    };
    format!(
        "{needed}{free}; end other programs on the device (`nvidia-smi` lists them), or compile the model for smaller \
         shapes or a smaller batch"
    )
}

/// A number of bytes for people.
pub(in crate::cuda) fn size(bytes: usize) -> String {
    const MIB: f64 = (1 << 20) as f64;
    let mib = bytes as f64 / MIB;
    if mib < 1.0 {
        format!("{bytes} bytes")
    } else if mib < 1024.0 {
        format!("{mib:.1} MiB")
    } else {
        format!("{:.1} GiB", mib / 1024.0)
    }
}
