//! The CPU device: C source to shared object to kernels to an executable on a thread pool.

mod aligned;
mod cache;
mod calibrate;
mod compiler;
mod executable;
mod isa;
mod joined;
pub mod kernel;
mod launch;
mod library;
mod memory;
mod place;
mod pool;
#[cfg(test)]
pub(crate) mod testing;

pub use crate::kernels::{CacheStats, CompileProgress, KernelFolder, Source};
pub use crate::program::{
    Access, Base, BufferRef, HostRoutine, HostStep, ProgramError, RunError, StepProfile, TensorRef,
};
pub use aligned::{ALIGN_BYTES, AlignedBuffer};
pub use cache::{BuildError, CompileCache};
pub use calibrate::{Calibration, calibrate};
pub use compiler::{CompileError, Compiler, CompilerOptions, Tuning};
pub use executable::{CpuExecutable, CpuProgram};
pub use isa::missing_extensions;
pub use joined::{JoinedLaunches, Piece};
pub use kernel::CpuKernel;
pub use launch::{Action, CpuStep, Launch, Program};
pub use library::{Library, LoadError};
pub use pool::{Awake, Chunking, LoopCall, Pool, PoolOptions, usable_cores};
