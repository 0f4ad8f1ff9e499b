//! Kernels in CUDA C++: source text and compiling by NVRTC.

use super::device::{Cuda, nvrtc_error};
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

    fn source(&self, program: &ThreadProgram) -> String {
        orch_codegen::cuda::emit(program, &self.target)
    }

    fn build(&self, sources: &[Source], options: &Options) -> Result<Vec<BuiltKernel>, Error> {
        let flags = orch_codegen::cuda::flags().iter().map(|&flag| flag.to_owned()).collect();
        let target = NvrtcTarget { options: flags, ..NvrtcTarget::new(&self.arch) };
        let cache = DeviceCodeCache::open(&options.cache_dir, Arc::clone(self.nvrtc()?), target)
            .map_err(nvrtc_error)?;
        let progress = |at: orch_runtime::cuda::CompileProgress| options.progress.advance(at.done);
        let results = cache.compile_all(sources, parallel::jobs(options), &progress, &options.cancel);
        let object = |result: Result<DeviceCode, NvrtcError>| {
            let cubin = result.map_err(nvrtc_error)?;
            let resources = cubin.kernels.first().map(|kernel| Resources {
                registers: kernel.registers,
                stack_bytes: kernel.stack_bytes,
                spill_bytes: kernel.spill_store_bytes + kernel.spill_load_bytes,
            });
            Ok(BuiltKernel { bytes: cubin.bytes, resources })
        };
        results.into_iter().map(object).collect()
    }
}
