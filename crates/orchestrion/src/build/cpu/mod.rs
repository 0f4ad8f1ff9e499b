//! Kernels in C for a CPU.

mod alone;
mod device;
mod facts;
mod meter;
mod planner;
mod recurrence;
mod toolchain;

pub use device::Cpu;
