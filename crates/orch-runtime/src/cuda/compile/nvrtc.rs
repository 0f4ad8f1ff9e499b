//! NVRTC: CUDA C++ to cubins or PTX, without a GPU and without any header.
//!
//! NVRTC brings no headers (neither `cuda_fp16.h` nor `stdint.h`), and none are searched for: sources declare what they
//! need. Multiply-adds are fused, as is CUDA's default; nothing else departs from IEEE semantics.

use super::resources::{self, KernelResources};
use crate::cuda::driver::device::Version;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::search::{self, SearchPaths};
use crate::kernels::Source;
use crate::symbols::symbol_table;
use bytes::Bytes;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The loaded compiler. Several threads may compile at the same time.
#[derive(Debug)]
pub struct Nvrtc {
    api: NvrtcApi,
    version: Version,
    path: String,
    archs: Vec<u32>,
}

/// What code is generated for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvrtcTarget {
    /// The instruction set, like `sm_80` or `sm_90a`; like `compute_80` for PTX, which drivers compile.
    pub arch: String,
    /// Further options of NVRTC, one each.
    pub options: Vec<String>,
}

/// Compiled kernels.
#[derive(Clone, PartialEq, Eq)]
pub struct DeviceCode {
    /// A cubin or PTX, for [`Module::load`](crate::cuda::Module::load).
    pub bytes: Bytes,
    /// What the compiler said.
    pub log: String,
    /// The resources of each kernel, in the compiler's order; none of PTX, whose registers the driver allocates.
    pub kernels: Vec<KernelResources>,
}

/// Why there is no code.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NvrtcError {
    /// This release does not know the instruction set.
    #[error(
        "NVRTC {version} ({path}) does not compile for {arch}, only for {}; install one that does (`pip install \
         --upgrade nvidia-cuda-nvrtc`), or name it with the option --nvrtc", .known.join(", ")
    )]
    UnknownArch {
        /// The instruction set.
        arch: String,
        /// NVRTC's version.
        version: Version,
        /// NVRTC's file.
        path: String,
        /// What it compiles for.
        known: Vec<String>,
    },
    /// The compiler refused a generated source: a bug in code generation.
    #[error("internal error: NVRTC does not compile generated source `{name}`, kept at {}:\n{log}", .source_file.display())]
    Rejected {
        /// The caller's name for the source.
        name: String,
        /// Where the source is kept.
        source_file: PathBuf,
        /// What the compiler said.
        log: String,
    },
    /// The compiler failed through nothing that the source could do.
    #[error(
        "NVRTC {version} ({path}) failed on `{name}`: {reason}; install it again, or name another one (--nvrtc)"
    )]
    Failed {
        /// The caller's name for the source.
        name: String,
        /// NVRTC's version.
        version: Version,
        /// NVRTC's file.
        path: String,
        /// What it said.
        reason: String,
    },
    /// The caller cancelled the compilation.
    #[error("compilation was cancelled")]
    Cancelled,
    /// The cache's folder is not safe to use.
    #[error("{0}")]
    Folder(String),
    /// The cache's folder cannot be used.
    #[error("cannot write kernels to the cache in {}: {reason}; make room there or choose another folder (--cache-dir)", .folder.display())]
    Cache {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        reason: String,
    },
}

type NvrtcStatus = c_int;
/// `nvrtcProgram`.
type NvrtcProgram = *mut c_void;

symbol_table! {
    /// The functions of NVRTC that are used here: all are in CUDA 12.0.
    struct NvrtcApi {
        version = c"nvrtcVersion": fn(*mut c_int, *mut c_int) -> NvrtcStatus;
        error_string = c"nvrtcGetErrorString": fn(NvrtcStatus) -> *const c_char;
        arch_count = c"nvrtcGetNumSupportedArchs": fn(*mut c_int) -> NvrtcStatus;
        archs = c"nvrtcGetSupportedArchs": fn(*mut c_int) -> NvrtcStatus;
        // Source, name, and headers with their names.
        create = c"nvrtcCreateProgram":
            fn(*mut NvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> NvrtcStatus;
        destroy = c"nvrtcDestroyProgram": fn(*mut NvrtcProgram) -> NvrtcStatus;
        compile = c"nvrtcCompileProgram": fn(NvrtcProgram, c_int, *const *const c_char) -> NvrtcStatus;
        log_size = c"nvrtcGetProgramLogSize": fn(NvrtcProgram, *mut usize) -> NvrtcStatus;
        log = c"nvrtcGetProgramLog": fn(NvrtcProgram, *mut c_char) -> NvrtcStatus;
        cubin_size = c"nvrtcGetCUBINSize": fn(NvrtcProgram, *mut usize) -> NvrtcStatus;
        cubin = c"nvrtcGetCUBIN": fn(NvrtcProgram, *mut c_char) -> NvrtcStatus;
        ptx_size = c"nvrtcGetPTXSize": fn(NvrtcProgram, *mut usize) -> NvrtcStatus;
        ptx = c"nvrtcGetPTX": fn(NvrtcProgram, *mut c_char) -> NvrtcStatus;
    }
}

const SUCCESS: NvrtcStatus = 0;
/// What names of instruction sets begin with for which PTX is generated.
const PTX: &str = "compute_";
/// `NVRTC_ERROR_COMPILATION`, and `NVRTC_ERROR_INTERNAL_ERROR`: sources can bring that about, too.
const REJECTED: [NvrtcStatus; 2] = [6, 11];

/// Options of every compilation. Resources of kernels are read from ptxas's report.
const BASE_OPTIONS: [&str; 3] = ["--std=c++17", "--device-as-default-execution-space", "--ptxas-options=-v"];

impl NvrtcTarget {
    /// An instruction set, with the usual options.
    pub fn new(arch: &str) -> Self {
        Self { arch: arch.to_owned(), options: Vec::new() }
    }

    /// All options of the NVRTC call.
    pub(in crate::cuda) fn all_options(&self) -> Vec<String> {
        let arch = format!("--gpu-architecture={}", self.arch);
        [arch]
            .into_iter()
            .chain(BASE_OPTIONS.map(str::to_owned))
            .chain(self.options.iter().cloned())
            .collect()
    }

    /// True if PTX is generated.
    pub fn is_ptx(&self) -> bool {
        self.arch.starts_with(PTX)
    }

    /// The number of the instruction set: 90 of `sm_90a`, 80 of `compute_80`.
    fn number(&self) -> Option<u32> {
        let digits = self.arch.strip_prefix("sm_").or_else(|| self.arch.strip_prefix(PTX))?;
        digits.strip_suffix(['a', 'f']).unwrap_or(digits).parse().ok()
    }
}

impl Nvrtc {
    /// Loads NVRTC. It stays loaded until the process ends.
    ///
    /// # Errors
    /// If it is not found, or is not NVRTC of CUDA 12 or later.
    pub fn load(paths: &SearchPaths) -> Result<Self, CudaError> {
        let found = search::nvrtc(paths)?;
        // SAFETY: a library with all these names is taken to be NVRTC, and it is never unloaded.
        let api = unsafe { NvrtcApi::new(found.library) }.map_err(|lacks| CudaError::NoSymbol {
            library: found.path.clone(),
            symbol: lacks.symbol.to_string_lossy().into_owned(),
            advice: "NVRTC of CUDA 12.0 or later is needed: `pip install nvidia-cuda-nvrtc`, or name another one with \
                     the option --nvrtc",
        })?;
        let (mut major, mut minor, mut count): (c_int, c_int, c_int) = (0, 0, 0);
        // SAFETY: the pointers are to numbers of this type.
        let status = unsafe { (api.version)(&raw mut major, &raw mut minor) };
        let version = match status {
            SUCCESS => Version { major: major.unsigned_abs(), minor: minor.unsigned_abs() },
            _ => Version { major: 0, minor: 0 },
        };
        // SAFETY: as above.
        let status = unsafe { (api.arch_count)(&raw mut count) };
        let mut archs: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the list is as long as the library has said.
        if status != SUCCESS || unsafe { (api.archs)(archs.as_mut_ptr()) } != SUCCESS {
            archs.clear();
        }
        let archs = archs.into_iter().map(c_int::unsigned_abs).collect();
        Ok(Self { api, version, path: found.path, archs })
    }

    /// Its release.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The library's file, as it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The numbers of the instruction sets it compiles for: 90 for `sm_90` and `sm_90a`.
    pub fn archs(&self) -> &[u32] {
        &self.archs
    }

    /// Compiles a source. One that is refused is kept in `folder`.
    ///
    /// # Errors
    /// [`NvrtcError::Rejected`] if the source is not accepted; otherwise if the compiler cannot do its work.
    pub fn compile(
        &self,
        source: &Source,
        target: &NvrtcTarget,
        folder: &Path,
    ) -> Result<DeviceCode, NvrtcError> {
        if target.number().is_none_or(|number| !self.archs.contains(&number)) {
            return Err(NvrtcError::UnknownArch {
                arch: target.arch.clone(),
                version: self.version,
                path: self.path.clone(),
                known: self.archs.iter().map(|number| format!("sm_{number}")).collect(),
            });
        }
        let program = self.create(source)?;
        let options: Vec<CString> =
            target.all_options().into_iter().map(|option| CString::new(option).unwrap_or_default()).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).unwrap_or(0);
        // SAFETY: the program is alive, and there are `count` options, which end with NUL.
        let status = unsafe { (self.api.compile)(program.handle, count, options.as_ptr()) };
        let log = program.log();
        match status {
            SUCCESS => {}
            status if REJECTED.contains(&status) => {
                return Err(rejected(source, folder, self.reason(status, &log)));
            }
            _ => return Err(self.failed(source, status, &log)),
        }
        let bytes = program.code(target).map_err(|status| self.failed(source, status, &log))?;
        Ok(DeviceCode { bytes: bytes.into(), kernels: resources::of_log(&log), log })
    }

    fn create(&self, source: &Source) -> Result<Compilation<'_>, NvrtcError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| self.failed(source, SUCCESS, "a name or text with a NUL in it"))
        };
        let (name, text) = (text(&format!("{}.cu", source.name))?, text(&source.text)?);
        let (mut handle, none) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: the pointers are to a program and to texts that end with NUL, and there are no headers.
        let status =
            unsafe { (self.api.create)(&raw mut handle, text.as_ptr(), name.as_ptr(), 0, none, none) };
        if status == SUCCESS {
            Ok(Compilation { api: &self.api, handle })
        } else {
            Err(self.failed(source, status, ""))
        }
    }

    fn failed(&self, source: &Source, status: NvrtcStatus, log: &str) -> NvrtcError {
        NvrtcError::Failed {
            name: source.name.clone(),
            version: self.version,
            path: self.path.clone(),
            reason: self.reason(status, log),
        }
    }

    /// NVRTC's name of a status, unless it is success, and the log.
    fn reason(&self, status: NvrtcStatus, log: &str) -> String {
        // SAFETY: the function returns a constant string, or null.
        let text = unsafe { (self.api.error_string)(status) };
        let status = if status == SUCCESS || text.is_null() {
            String::new()
        } else {
            // SAFETY: not null, and constant.
            format!("{} ", unsafe { CStr::from_ptr(text) }.to_string_lossy())
        };
        format!("{status}{log}").trim().to_owned()
    }
}

/// Keeps a source that was refused.
fn rejected(source: &Source, folder: &Path, log: String) -> NvrtcError {
    let hash = blake3::hash(source.text.as_bytes()).to_hex();
    let source_file = folder.join(format!("rejected-{hash}.cu"));
    match orch_files::whole_file::write(&source_file, |out| out.write_all(source.text.as_bytes())) {
        Ok(()) => NvrtcError::Rejected { name: source.name.clone(), source_file, log },
        Err(error) => NvrtcError::Cache { folder: folder.to_owned(), reason: error.to_string() },
    }
}

/// One program inside NVRTC.
struct Compilation<'a> {
    api: &'a NvrtcApi,
    handle: NvrtcProgram,
}

impl Compilation<'_> {
    /// What the compiler said.
    fn log(&self) -> String {
        let log = self.read(self.api.log_size, self.api.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines = log.trim_end_matches('\0').lines();
        // The same source has the same log: without the time that it took.
        lines.filter(|line| !line.contains(": Compile time = ")).flat_map(|line| [line, "\n"]).collect()
    }

    /// The cubin or PTX.
    fn code(&self, target: &NvrtcTarget) -> Result<Vec<u8>, NvrtcStatus> {
        if !target.is_ptx() {
            return self.read(self.api.cubin_size, self.api.cubin);
        }
        let mut text = self.read(self.api.ptx_size, self.api.ptx)?;
        // It comes with a NUL.
        text.truncate(text.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
        Ok(text)
    }

    fn read(
        &self,
        size: unsafe extern "C" fn(NvrtcProgram, *mut usize) -> NvrtcStatus,
        content: unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> NvrtcStatus,
    ) -> Result<Vec<u8>, NvrtcStatus> {
        let checked = |status| if status == SUCCESS { Ok(()) } else { Err(status) };
        let mut len = 0;
        // SAFETY: the program is alive, and the pointer is to a number of this type.
        checked(unsafe { size(self.handle, &raw mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: the buffer is as long as the library has said.
        checked(unsafe { content(self.handle, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and not used after this. There is nothing to be done about a failure.
        let _ = unsafe { (self.api.destroy)(&raw mut self.handle) };
    }
}

impl std::fmt::Debug for DeviceCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceCode({} bytes, {:?})", self.bytes.len(), self.kernels)
    }
}

impl std::fmt::Debug for NvrtcApi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NvrtcApi")
    }
}

#[cfg(test)]
mod tests;
