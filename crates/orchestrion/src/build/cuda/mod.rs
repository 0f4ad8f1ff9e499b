//! Kernels in CUDA C++ for a GPU.

mod alone;
mod device;
mod facts;
mod meter;
mod planner;
mod recurrence;
mod toolchain;

pub use device::Cuda;
