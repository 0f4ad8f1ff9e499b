//! The CUDA device: kernels in CUDA C++ to cubins to an executable on an NVIDIA GPU.
//!
//! Nothing of CUDA is needed to build this crate, or to start a program with it: the driver and NVRTC are loaded when
//! they are asked for, and what is missing is an error value that says how to get it.

mod cache;
mod cubin;
mod device;
mod driver;
mod error;
mod memory;
mod module;
mod nvrtc;
mod resources;
mod search;
mod stream;
mod sys;

pub use crate::kernels::{CompileProgress, Source};
pub use cache::CubinCache;
pub use device::{Capability, Context, Device, DeviceInfo, Version};
pub use driver::Driver;
pub use error::CudaError;
pub use memory::{DeviceBuffer, PinnedBuffer};
pub use module::{Function, FunctionAttributes, LaunchShape, Module};
pub use nvrtc::{Cubin, Nvrtc, NvrtcError, NvrtcTarget};
pub use resources::KernelResources;
pub use search::SearchPaths;
pub use stream::{Event, Stream};
