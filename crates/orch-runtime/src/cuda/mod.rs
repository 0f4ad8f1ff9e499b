//! The CUDA device: kernels in CUDA C++ to cubins or PTX to an executable on an NVIDIA GPU.
//!
//! Nothing of CUDA is needed to build this crate, or to start a program with it: the driver, NVRTC, cuBLASLt and cuDNN are
//! loaded on first use, and what is missing is an error value that says how to get it.
//!
//! `driver` wraps the driver's interface; `compile` and `vendor` build on it; `execute` runs programs with all of them.

mod compile;
mod driver;
mod execute;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod vendor;

pub use crate::kernels::{CompileProgress, Source};
pub use compile::KernelResources;
pub use compile::cache::DeviceCodeCache;
pub use compile::nvrtc::{DeviceCode, Nvrtc, NvrtcError, NvrtcTarget};
pub use compile::rename::rename_kernel;
pub use driver::device::{Capability, Context, Device, DeviceInfo, Version};
pub use driver::error::CudaError;
pub use driver::loader::Driver;
pub use driver::memory::{DeviceBuffer, PinnedBuffer};
pub use driver::module::{Function, FunctionAttributes, LaunchShape, Module};
pub use driver::search::{Nvtx, SearchPaths};
pub use driver::stream::{Event, Stream};
pub use execute::device_tensors::{DeviceAddress, DeviceTensors, InputPlace};
pub use execute::executable::{CudaExecutable, CudaProgram, ExecutableError, ExecutableOptions, Execution};
pub use execute::launch::{Action, ClearedArgument, CudaStep, Launch, Program, TensorMapShape};
pub use execute::ranges::ProfilerRanges;
pub use execute::row::Row;
pub use execute::run_timer::TimedRun;
pub use execute::timing::{TimeOptions, time_on_device};
pub use vendor::convolution::{Convolution, Pixels, Sliding};
pub use vendor::cublaslt::CublasLt;
pub use vendor::cudnn::Cudnn;
pub use vendor::libraries::{Computation, Libraries, Library, LibraryCall};
pub use vendor::product::{Element, Matrix, MatrixOrder, MatrixProduct, Vector};
