//! Kernels in C: source text and compiling.

use super::device::{Cpu, compile_error};
use crate::plan::backend::{BuiltKernel, Toolchain};
use crate::{Error, Options, parallel};
use orch_runtime::cpu::{CompileCache, CompileError, Source};
use orch_thread::ThreadProgram;

impl Toolchain for Cpu {
    fn compiler(&self) -> Result<String, Error> {
        Ok(self.compiler.version().to_owned())
    }

    fn source(&self, name: &str, program: &ThreadProgram) -> Source {
        let text = orch_codegen::c::emit(&[program], &self.target);
        Source { name: name.to_owned(), text, symbols: vec![program.name.clone()] }
    }

    fn build(&self, sources: &[Source], options: &Options) -> Result<Vec<BuiltKernel>, Error> {
        let compiler = self.compiler.clone();
        let cache = CompileCache::open(&options.cache_dir, compiler, &self.machine).map_err(compile_error)?;
        let progress = |at: orch_runtime::cpu::CompileProgress| options.progress.advance(at.done);
        let results = cache.compile_all(sources, parallel::jobs(options), &progress, &options.cancel);
        let object = |result: Result<bytes::Bytes, CompileError>| {
            Ok(BuiltKernel { bytes: result.map_err(compile_error)?, resources: None })
        };
        results.into_iter().map(object).collect()
    }
}
