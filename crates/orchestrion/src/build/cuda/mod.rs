//! Kernels in CUDA C++ for a GPU.

mod device;
mod facts;
mod meter;
mod planner;
mod recurrence;
mod selection;
mod toolchain;

pub use device::Cuda;
