//! Running: an artifact with its kernels loaded and its memory allocated.
//!
//! [`executable`] is what callers use, with [`device`] for tensors in a GPU's memory; [`launches`] chooses how a GPU is given the steps,
//! by a [`trial`], and [`launch_memory`] keeps that. [`load`] makes the runtime's program of a manifest, [`launch`] and [`host`] its
//! steps, and [`joined`] says which of them threads take as one list.
//! [`emulate`] runs a plan by the interpreter of thread programs, without a device. [`compare`] and [`npy`] serve tensors that
//! are given and expected.

pub mod compare;
pub mod device;
mod emulate;
pub mod executable;
pub mod host;
pub mod joined;
pub mod launch;
pub mod launch_memory;
pub mod launches;
pub mod load;
pub mod npy;
pub mod options;
pub mod trial;
