//! How executables run and are timed, and what they take as inputs.

use crate::manifest::Port;
use crate::{Error, Options};
use orch_ir::{DType, Shape, Tensor};
use orch_runtime::cuda::{Execution, SearchPaths};
use std::path::PathBuf;

/// How an executable runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunOptions {
    /// Threads that work on one run, the caller's included; 0 means one per core that the process may use. GPUs need none.
    pub threads: usize,
    /// The number of the GPU, from 0, for executables of GPUs.
    pub device: usize,
    /// Where to look for the NVIDIA driver, and for libraries that executables may call.
    pub cuda: SearchPaths,
    /// How the steps of a run reach a GPU; by default what costs least, found by timing the first runs.
    pub execution: Option<Execution>,
    /// The folder of the cache, in which that is remembered for later processes; `None` if it is not: then each finds it again.
    pub cache_dir: Option<PathBuf>,
    /// Takes working memory on a GPU only when a run needs it: for callers who give their own ([`DeviceRun`](crate::DeviceRun)).
    pub allocate_late: bool,
    /// Waits after each step on a GPU, so that an error names its kernel: slow.
    pub check_each_step: bool,
}

impl RunOptions {
    /// How to run on so many threads what these options compile: on their GPU, with their libraries and their cache.
    pub fn of(options: &Options, threads: usize) -> Self {
        let (device, cuda) = (options.gpu().unwrap_or(0), options.cuda.clone());
        Self { threads, device, cuda, cache_dir: Some(options.cache_dir.clone()), ..Self::default() }
    }
}

/// What the L2 of a GPU holds when a timed run begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceCache {
    /// What the run before left there.
    Warm,
    /// Nothing of the executable's.
    Cold,
}

/// Checks that there is a tensor for each input, or output: `what` says which.
///
/// # Errors
/// If there is not.
pub(super) fn check_count(what: &str, ports: &[Port], given: usize) -> Result<(), Error> {
    if given == ports.len() {
        return Ok(());
    }
    let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
    let (expected, names) = (ports.len(), names.join(", "));
    Err(Error::Input(format!("{given} {what}s are given, the model has {expected}: {names}")))
}

/// Checks one tensor against the input it is meant for.
///
/// # Errors
/// If type or shape differ.
pub fn check_input(port: &Port, tensor: &Tensor) -> Result<(), Error> {
    check_port("input", port, tensor.dtype(), tensor.shape())
}

/// Checks a tensor against the input or output it is meant for: `what` says which.
///
/// # Errors
/// If type or shape differ.
pub(super) fn check_port(what: &str, port: &Port, dtype: DType, shape: &[usize]) -> Result<(), Error> {
    if dtype.name() == port.dtype && shape == port.shape {
        return Ok(());
    }
    let shown = |shape: &[usize]| Shape::checked(shape.to_vec()).unwrap_or_default();
    Err(Error::Input(format!(
        "{what} `{}` is {dtype}{}, the model was compiled for {}{}",
        port.name,
        shown(shape),
        port.dtype,
        shown(&port.shape)
    )))
}
