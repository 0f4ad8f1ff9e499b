//! Cubins and PTX, kept on disk by content (see `crate::kernels`).
//!
//! Code is determined by source, instruction set, options and release of NVRTC. Its file holds the code, what the compiler
//! said, and the length of that, so that tools that read cubins read it.

use super::nvrtc::{DeviceCode, Nvrtc, NvrtcError, NvrtcTarget};
use super::resources;
use crate::kernels::{self, CUBIN, CompileProgress, PTX, Source, Store};
use bytes::Bytes;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A folder of compiled kernels, and the compiler that fills it.
#[derive(Debug)]
pub struct DeviceCodeCache {
    store: Store,
    nvrtc: Arc<Nvrtc>,
    target: NvrtcTarget,
}

impl DeviceCodeCache {
    /// Opens the cache in `folder`, making the folder if need be.
    ///
    /// # Errors
    /// As [`orch_files::CacheFolder::open`].
    pub fn open(folder: &Path, nvrtc: Arc<Nvrtc>, target: NvrtcTarget) -> Result<Self, NvrtcError> {
        let (version, options) = (format!("NVRTC {}", nvrtc.version()), target.all_options());
        let circumstances = [version.as_str()].into_iter().chain(options.iter().map(String::as_str));
        let extension = if target.is_ptx() { PTX } else { CUBIN };
        let store = Store::open(folder, extension, circumstances)
            .map_err(|error| NvrtcError::Folder(error.to_string()))?;
        Ok(Self { store, nvrtc, target })
    }

    /// The compiler.
    pub fn nvrtc(&self) -> &Nvrtc {
        &self.nvrtc
    }

    /// What is compiled for.
    pub fn target(&self) -> &NvrtcTarget {
        &self.target
    }

    /// The hash that names the code of this source text.
    pub fn key(&self, text: &str) -> String {
        self.store.key(text)
    }

    /// The source's code, compiled now if it is not there yet.
    ///
    /// # Errors
    /// As [`Nvrtc::compile`]. A rejected source is kept in the folder, and the error says where.
    pub fn compile(&self, source: &Source, cancel: &AtomicBool) -> Result<DeviceCode, NvrtcError> {
        let key = self.key(&source.text);
        if let Some(code) = self.store.get(&key).and_then(unpack) {
            return Ok(code);
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(NvrtcError::Cancelled);
        }
        let code = self.nvrtc.compile(source, &self.target, self.store.folder())?;
        self.store.put(&key, &pack(&code)).map_err(|error| self.unusable(error))?;
        Ok(code)
    }

    /// Compiles many sources, up to `jobs` at a time; results are in the order of `sources`, and equal texts are
    /// compiled once. `progress` is called from several threads. After `cancel` is set the rest fails with
    /// [`NvrtcError::Cancelled`]; compilations that are in flight end first.
    pub fn compile_all(
        &self,
        sources: &[Source],
        jobs: usize,
        progress: &(dyn Fn(CompileProgress) + Sync),
        cancel: &AtomicBool,
    ) -> Vec<Result<DeviceCode, NvrtcError>> {
        let (distinct, indices) = kernels::distinct(sources);
        let results = kernels::compile_each(&distinct, jobs, progress, |source| self.compile(source, cancel));
        indices.into_iter().map(|idx| results[idx].clone()).collect()
    }

    fn unusable(&self, error: io::Error) -> NvrtcError {
        NvrtcError::Cache { folder: self.store.folder().to_owned(), reason: error.to_string() }
    }
}

const LENGTH_BYTES: usize = 8;

fn pack(code: &DeviceCode) -> Vec<u8> {
    let log = code.log.as_bytes();
    [&code.bytes[..], log, &(log.len() as u64).to_le_bytes()].concat()
}

/// The parts of a file's content, if it has them.
fn unpack(content: Bytes) -> Option<DeviceCode> {
    let (rest, length) = content.split_at_checked(content.len().checked_sub(LENGTH_BYTES)?)?;
    let log_bytes = usize::try_from(u64::from_le_bytes(length.try_into().ok()?)).ok()?;
    let code_bytes = rest.len().checked_sub(log_bytes)?;
    let log = String::from_utf8(rest[code_bytes..].to_vec()).ok()?;
    let bytes = content.slice(..code_bytes);
    Some(DeviceCode { bytes, kernels: resources::of_log(&log), log })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_compiler_said_is_kept() {
        let log = "ptxas info    : Compiling entry function 'k' for 'sm_80'\n".to_owned();
        let code = DeviceCode { bytes: Bytes::from_static(b"code"), kernels: resources::of_log(&log), log };
        let file = pack(&code);
        assert_eq!(unpack(file.clone().into()).as_ref(), Some(&code));
        for len in 0..LENGTH_BYTES {
            assert_eq!(unpack(file[..len].to_vec().into()), None);
        }
    }
}
