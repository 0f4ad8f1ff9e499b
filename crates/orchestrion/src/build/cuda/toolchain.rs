//! Kernels in CUDA C++: source text and compiling by NVRTC.

use super::device::{Cuda, nvrtc_error};
use crate::build::symbols::compiled_symbol;
use crate::manifest::Resources;
use crate::plan::backend::{BuiltKernel, Toolchain};
use crate::{Error, Options, parallel};
use orch_runtime::cuda::{DeviceCode, DeviceCodeCache, NvrtcError, NvrtcTarget, Source};
use orch_thread::ThreadProgram;
use std::sync::Arc;

impl Toolchain for Cuda {
    fn compiler(&self) -> Result<String, Error> {
        Ok(format!("NVRTC {}", self.nvrtc()?.version()))
    }

    fn source(&self, name: &str, program: &ThreadProgram) -> Source {
        let program = ThreadProgram { name: compiled_symbol(&program.name), ..program.clone() };
        let text = orch_codegen::cuda::emit(&program, &self.target);
        Source { name: name.to_owned(), text, symbols: vec![program.name] }
    }

    fn build(&self, sources: &[Source], options: &Options) -> Result<Vec<BuiltKernel>, Error> {
        let flags = orch_codegen::cuda::flags().iter().map(|&flag| flag.to_owned()).collect();
        let target = NvrtcTarget { options: flags, ..NvrtcTarget::new(&self.arch) };
        let cache = DeviceCodeCache::open(&options.cache_dir, Arc::clone(self.nvrtc()?), target)
            .map_err(nvrtc_error)?;
        let progress = |at: orch_runtime::cuda::CompileProgress| options.progress.advance(at.done);
        let results = cache.compile_all(sources, parallel::jobs(options), &progress, &options.cancel);
        let object = |(result, source): (Result<DeviceCode, NvrtcError>, &Source)| {
            let code = result.map_err(nvrtc_error)?;
            if let Some(device) = &self.device {
                // What this machine's driver does not take is refused now, not when it is loaded.
                device.driver().accepted(&source.name, &code.bytes).map_err(Error::from)?;
            }
            let resources = code.kernels.first().map(|kernel| Resources {
                registers: kernel.registers,
                stack_bytes: kernel.stack_bytes,
                spill_bytes: kernel.spill_store_bytes + kernel.spill_load_bytes,
            });
            Ok(BuiltKernel { bytes: code.bytes, resources })
        };
        results.into_iter().zip(sources).map(object).collect()
    }
}
