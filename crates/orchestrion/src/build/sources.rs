//! Stages "lower" and "build": sources of a plan's kernels, and their objects.

use crate::plan::backend::{BuiltKernel, Toolchain};
use crate::plan::kernel::KernelDesign;
use crate::{Error, Options, parallel};
use orch_runtime::cpu::Source;
use orch_thread::validate::validate_thread;

/// Stage "lower": source of each kernel of the plan, in its order.
///
/// # Errors
/// If a kernel is not valid, which is a bug, or the work is cancelled.
pub fn sources(
    toolchain: &dyn Toolchain,
    kernels: &[KernelDesign],
    options: &Options,
) -> Result<Vec<Source>, Error> {
    let source = |kernel: &KernelDesign| {
        let program = &kernel.design.kernel.program;
        let violations = validate_thread(program);
        if violations.is_empty() {
            return Ok(toolchain.source(&kernel.name, program));
        }
        Err(Error::Internal(format!("kernel {} is not valid: {}", kernel.name, violations.join("; "))))
    };
    parallel::map(kernels, options, source)?.into_iter().collect()
}

/// Stage "build": compiled kernels of the sources, from the cache where they are known.
///
/// # Errors
/// If the compiler is missing or fails, or the work is cancelled.
pub fn build(
    toolchain: &dyn Toolchain,
    sources: &[Source],
    options: &Options,
) -> Result<Vec<BuiltKernel>, Error> {
    options.progress.begin("compile kernels", sources.len());
    let objects = toolchain.build(sources, options);
    options.progress.end();
    objects
}
