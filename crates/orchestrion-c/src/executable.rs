//! Executables: made, kept in files, and asked what they take and give.

use crate::options::orc_options;
use crate::status::{Failure, at, destroy, give, guarded, list_at, orc_status, text_at};
use crate::tensor::{Ports, orc_port};
use bytes::Bytes;
use orchestrion::{AlignedBuffer, Artifact, Executable, Model, Options, RunOptions};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// A compiled model with its weights, ready to run. Any number of threads may use it at the same time.
pub struct orc_executable {
    pub(crate) executable: Executable,
    pub(crate) ports: Arc<Ports>,
}

impl orc_executable {
    fn load(artifact: Artifact, options: RunOptions) -> Result<Self, Failure> {
        let executable = Executable::load(artifact, options)?;
        let ports = Arc::new(Ports::new(executable.manifest())?);
        Ok(Self { executable, ports })
    }
}

/// Compiles an ONNX file and loads what that gives. Every symbolic dimension needs a "dim". `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_compile_file(
    path: *const c_char,
    options: *const orc_options,
    out: *mut *mut orc_executable,
) -> orc_status {
    let make = || {
        // SAFETY: the promise of all callers.
        let (path, options) = unsafe { (path_at(path, "`path`")?, Both::at(options)) };
        let artifact = Model::load(path, &options.compile)?.compile(&options.compile)?;
        orc_executable::load(artifact, options.run)
    };
    // SAFETY: the promise of all callers.
    unsafe { give(out, make) }
}

/// Compiles an ONNX model of `size` bytes, which are not needed afterwards. Its external data lies below `folder`; if that is NULL, it
/// has none. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_compile_bytes(
    bytes: *const c_void,
    size: usize,
    folder: *const c_char,
    options: *const orc_options,
    out: *mut *mut orc_executable,
) -> orc_status {
    let make = || {
        // SAFETY: the promise of all callers.
        let (bytes, options) = unsafe { (bytes_at(bytes, size)?, Both::at(options)) };
        // SAFETY: the promise of all callers.
        let folder = if folder.is_null() { None } else { Some(unsafe { path_at(folder, "`folder`") }?) };
        let model = Model::parse(bytes, "model in memory", folder, &options.compile)?;
        orc_executable::load(model.compile(&options.compile)?, options.run)
    };
    // SAFETY: the promise of all callers.
    unsafe { give(out, make) }
}

/// Compiles the ONNX file `path` to the .orc file `orc_path` and loads nothing: the target may be another machine. A file of that
/// name is replaced once the new one is complete. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_compile_to_file(
    path: *const c_char,
    options: *const orc_options,
    orc_path: *const c_char,
) -> orc_status {
    guarded(|| {
        // SAFETY: the promise of all callers.
        let (path, options) = unsafe { (path_at(path, "`path`")?, Both::at(options)) };
        // SAFETY: the promise of all callers.
        let orc_path = unsafe { path_at(orc_path, "`orc_path`") }?;
        if orc_path == path {
            return Err(Failure::usage("the executable would replace the model"));
        }
        Model::load(path, &options.compile)?.compile(&options.compile)?.save(orc_path)?;
        Ok(())
    })
}

/// Loads an .orc file. It holds native code, which runs with the rights of this process: load only what you would start as a program.
/// Of the options, "threads" and those of CUDA's libraries matter; `options` may be NULL. The file is not needed afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_load_file(
    path: *const c_char,
    options: *const orc_options,
    out: *mut *mut orc_executable,
) -> orc_status {
    let make = || {
        // SAFETY: the promise of all callers.
        let (path, options) = unsafe { (path_at(path, "`path`")?, Both::at(options)) };
        orc_executable::load(Artifact::load(path)?, options.run)
    };
    // SAFETY: the promise of all callers.
    unsafe { give(out, make) }
}

/// Loads an .orc file from `size` bytes of memory, which are copied; the rest is as of `orc_load_file`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_load_bytes(
    bytes: *const c_void,
    size: usize,
    options: *const orc_options,
    out: *mut *mut orc_executable,
) -> orc_status {
    let make = || {
        // SAFETY: the promise of all callers.
        let (bytes, options) = unsafe { (bytes_at(bytes, size)?, Both::at(options)) };
        orc_executable::load(Artifact::parse(&bytes)?, options.run)
    };
    // SAFETY: the promise of all callers.
    unsafe { give(out, make) }
}

/// Writes an executable to an .orc file. A file of that name is replaced once the new one is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_save(executable: *const orc_executable, path: *const c_char) -> orc_status {
    guarded(|| {
        // SAFETY: the promise of all callers.
        let (executable, path) = unsafe { (at(executable, "`executable`")?, path_at(path, "`path`")?) };
        executable.executable.to_artifact().save(path)?;
        Ok(())
    })
}

/// The number of inputs; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_input_count(executable: *const orc_executable) -> usize {
    // SAFETY: the promise of all callers.
    unsafe { executable.as_ref() }.map_or(0, |executable| executable.ports.inputs.len())
}

/// The number of outputs; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_output_count(executable: *const orc_executable) -> usize {
    // SAFETY: the promise of all callers.
    unsafe { executable.as_ref() }.map_or(0, |executable| executable.ports.outputs.len())
}

/// Describes an input; the first is number 0. The name and the shape live as long as the executable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_input(
    executable: *const orc_executable,
    number: usize,
    out: *mut orc_port,
) -> orc_status {
    // SAFETY: the promise of all callers.
    unsafe { describe(executable, Side::Inputs, number, out) }
}

/// Describes an output, as `orc_input` does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_output(
    executable: *const orc_executable,
    number: usize,
    out: *mut orc_port,
) -> orc_status {
    // SAFETY: the promise of all callers.
    unsafe { describe(executable, Side::Outputs, number, out) }
}

/// Frees an executable. No call may use it; its contexts go on: what they share with it is freed with the last of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn orc_executable_destroy(executable: *mut orc_executable) {
    // SAFETY: the promise of all callers.
    unsafe { destroy(executable) };
}

/// What a description is of.
#[derive(Clone, Copy)]
enum Side {
    Inputs,
    Outputs,
}

/// # Safety
/// As the promise of all callers.
unsafe fn describe(
    executable: *const orc_executable,
    side: Side,
    number: usize,
    out: *mut orc_port,
) -> orc_status {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (executable, out) = unsafe { (at(executable, "`executable`")?, out.as_mut()) };
        let out = out.ok_or_else(|| Failure::usage("`out` is NULL"))?;
        let (what, ports) = match side {
            Side::Inputs => ("inputs", &executable.ports.inputs),
            Side::Outputs => ("outputs", &executable.ports.outputs),
        };
        let port = ports.get(number);
        let port = port.ok_or_else(|| {
            let count = ports.len();
            Failure::usage(format!("number {number} is requested, but the model has {count} {what}"))
        })?;
        *out = port.described();
        Ok(())
    })
}

/// Options to compile and to run.
struct Both {
    compile: Options,
    run: RunOptions,
}

impl Both {
    /// Those at an address; the default for NULL.
    ///
    /// # Safety
    /// As [`at`].
    unsafe fn at(options: *const orc_options) -> Self {
        // SAFETY: the caller's promise.
        let options = unsafe { options.as_ref() };
        options.map_or_else(
            || Self { compile: Options::default(), run: RunOptions::default() },
            |options| Self { compile: options.compile.clone(), run: options.run() },
        )
    }
}

/// # Safety
/// As [`text_at`].
unsafe fn path_at<'a>(address: *const c_char, what: &str) -> Result<&'a Path, Failure> {
    // SAFETY: the caller's promise.
    unsafe { text_at(address, what) }.map(CStr::to_bytes).map(OsStr::from_bytes).map(Path::new)
}

/// A copy of bytes, aligned so that constants in it are used where they lie.
///
/// # Safety
/// As [`list_at`].
unsafe fn bytes_at(address: *const c_void, size: usize) -> Result<Bytes, Failure> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { list_at(address.cast::<u8>(), size, "`bytes`") }?;
    Ok(AlignedBuffer::copy_of(bytes).into())
}
