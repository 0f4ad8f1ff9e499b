//! The CUDA device: kernels in CUDA C++ to cubins to an executable on an NVIDIA GPU.
//!
//! Nothing of CUDA is needed to build this crate, or to start a program with it: the driver, NVRTC, cuBLASLt and cuDNN are
//! loaded when they are asked for, and what is missing is an error value that says how to get it.

mod cache;
mod calls;
mod convolution;
mod cubin;
mod cublaslt;
mod cudnn;
mod dependencies;
mod device;
mod driver;
mod error;
mod executable;
mod graph;
mod launch;
mod library;
mod memory;
mod module;
mod nvrtc;
mod object;
mod placement;
mod product;
mod resources;
mod row;
mod search;
mod stream;
mod sys;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod timing;
mod vendor;

pub use crate::kernels::{CompileProgress, Source};
pub use cache::CubinCache;
pub use convolution::{Convolution, Pixels, Sliding};
pub use cublaslt::CublasLt;
pub use cudnn::Cudnn;
pub use device::{Capability, Context, Device, DeviceInfo, Version};
pub use driver::Driver;
pub use error::CudaError;
pub use executable::{BoundaryArgument, Executable, ExecutableError, ExecutableOptions, Execution};
pub use launch::{Action, Launch, Program, Step, TensorMapShape};
pub use library::{Computation, Libraries, Library, LibraryCall};
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use module::{Function, FunctionAttributes, LaunchShape, Module};
pub use nvrtc::{Cubin, Nvrtc, NvrtcError, NvrtcTarget};
pub use product::{Element, Matrix, MatrixOrder, MatrixProduct, Vector};
pub use resources::KernelResources;
pub use row::Row;
pub use search::SearchPaths;
pub use stream::{Event, Stream};
pub use timing::{TimeOptions, time_on_device};
