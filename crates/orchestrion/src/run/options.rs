//! How executables run and are timed, and what they take as inputs.

use crate::Error;
use crate::manifest::Port;
use orch_ir::{Shape, Tensor};
use orch_runtime::cuda::SearchPaths;

/// How an executable runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunOptions {
    /// Threads that work on one run, the caller's included; 0 means one per CPU that the process may use. GPUs need none.
    pub threads: usize,
    /// Where to look for the NVIDIA driver, and for libraries that executables may call.
    pub cuda: SearchPaths,
    /// Waits after each step on a GPU, so that an error names its kernel: slow.
    pub check_each_step: bool,
}

/// What the L2 of a GPU holds when a timed run begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceCache {
    /// What the run before left there.
    Warm,
    /// Nothing of the executable's.
    Cold,
}

/// Checks one tensor against the input it is meant for.
///
/// # Errors
/// If type or shape differ.
pub fn check_input(port: &Port, tensor: &Tensor) -> Result<(), Error> {
    let (dtype, shape) = (tensor.dtype(), tensor.shape());
    if dtype.name() == port.dtype && shape[..] == port.shape[..] {
        return Ok(());
    }
    let expected = Shape::checked(port.shape.clone()).unwrap_or_default();
    Err(Error::Input(format!(
        "input `{}` is {dtype}{shape}, the model was compiled for {}{expected}",
        port.name, port.dtype
    )))
}
