//! CUDA C++ to cubins or PTX: NVRTC, what its log says of registers and spills, and a cache of what it made.

pub(super) mod cache;
pub(super) mod nvrtc;
pub(super) mod rename;
mod resources;

pub use resources::KernelResources;
