//! NVIDIA's libraries of matrix products (cuBLASLt) and convolutions (cuDNN), loaded where they are installed.
//!
//! Nothing depends on them: a launch that has a library call beside it also has a kernel of its own, which runs where the
//! library is missing or rejects the call. Both libraries are loaded, versioned and reported the same way
//! ([`loaded::LoadedVendor`]); they differ in their C interfaces (`sys`) and in how a call is described (`call`).

pub(super) mod convolution;
pub(super) mod cublaslt;
pub(super) mod cudnn;
pub(super) mod libraries;
mod loaded;
mod object;
pub(super) mod product;
