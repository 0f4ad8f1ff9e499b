//! Thread programs to source text.
//!
//! [`c::emit`] writes C that GCC 12 or later, or Clang, compiles for a CPU target, [`cuda::emit`] CUDA C++ for NVRTC. This crate runs no compiler and
//! reads no files; the text depends on the programs and the target's capability table alone.

pub mod c;
pub mod cuda;
mod facts;
mod names;
mod scopes;
