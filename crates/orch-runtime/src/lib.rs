//! What runs on a device: compilers, kernels, memory, threads and executables.
//!
//! This crate decides nothing: which kernels exist, in which order they run and where their tensors lie is given to
//! it as a [`Program`](program::Program). It is the only crate with `unsafe`.
//!
//! **Trust.** Native code cannot be checked from outside. A [`cpu::CpuKernel`] is trusted to follow the calling convention
//! in [`cpu::kernel`], a [`cuda::Function`] to take as many pointers as its launches list, and both to touch only the
//! byte ranges that these list; everything that the host can check (ranges inside their buffers, no writes to constants
//! or inputs, buffer sizes at each run) is checked.

#![allow(unsafe_code)]

mod compiled;
pub mod cpu;
pub mod cuda;
mod dependencies;
mod kernels;
mod machine;
mod mmap;
mod os;
pub mod program;
mod shared;
mod symbols;
pub mod view;

pub use dependencies::{conflict, dependencies};
pub use machine::{Arch, CacheSizes, Feature, Machine};
pub use mmap::{map_file, map_open_file, read_file, read_open_file};
pub use os::{ExitingAllocator, memory_bytes};
pub use shared::held_once;
