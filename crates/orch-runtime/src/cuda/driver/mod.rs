//! The CUDA driver's interface: devices, contexts, streams, memory, modules, and what their errors say.
//!
//! Nothing here knows of compilers, vendor libraries or programs.

pub(super) mod cubin;
pub(super) mod device;
pub(super) mod error;
pub(super) mod loader;
pub(super) mod memory;
pub(super) mod module;
pub(super) mod ptx;
pub(super) mod search;
pub(super) mod stream;
pub(super) mod sys;
