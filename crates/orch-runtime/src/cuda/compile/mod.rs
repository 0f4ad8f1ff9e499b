//! CUDA C++ to cubins: NVRTC, what its log says of registers and spills, and a cache of cubins.

pub(super) mod cache;
pub(super) mod nvrtc;
mod resources;

pub use resources::KernelResources;
