//! Programs of launches on a device: placement of their tensors, CUDA graphs, library calls, runs and timing.

pub(super) mod device_tensors;
pub(super) mod executable;
mod form;
mod graph;
mod host_inputs;
pub(super) mod launch;
mod library_calls;
mod placement;
pub(super) mod ranges;
pub(super) mod row;
pub(super) mod run_timer;
pub(super) mod timing;
