//! Running: an artifact with its kernels loaded and its memory allocated.

use super::load;
use super::options::{DeviceCache, RunOptions, check_input};
use crate::Error;
use crate::artifact::Artifact;
use crate::manifest::{Device, Manifest, Port, typed};
use orch_ir::Tensor;
use orch_runtime::cuda::{Row, TimeOptions};
use orch_runtime::{cpu, cuda};
use std::sync::Arc;

/// A compiled model, ready to run.
pub struct Executable {
    manifest: Arc<Manifest>,
    output_bytes: Vec<usize>,
    inner: Inner,
}

/// What runs it.
enum Inner {
    Cpu(Box<cpu::CpuExecutable>),
    Cuda(Box<cuda::CudaExecutable>),
}

/// Time of one step, beside what the plan says of it.
#[derive(Clone, PartialEq, Debug)]
pub struct StepTime {
    /// The step's name.
    pub name: String,
    /// Median over the runs, in microseconds.
    pub median_us: f64,
}

impl Executable {
    /// Loads an artifact.
    ///
    /// # Errors
    /// If it is inconsistent or its kernels do not load on this machine.
    pub fn load(artifact: Artifact, options: RunOptions) -> Result<Self, Error> {
        let output_bytes = load::port_bytes(&artifact.manifest.outputs)?;
        let manifest = Arc::new(artifact.manifest);
        let inner = match manifest.device {
            Device::Cpu => {
                let parts = (&artifact.libraries[..], artifact.constants);
                Inner::Cpu(Box::new(load::on_cpu(&manifest, parts, options.threads)?))
            }
            Device::Cuda => {
                let parts = (&artifact.libraries[..], artifact.constants);
                Inner::Cuda(Box::new(load::on_gpu(&manifest, parts, &options)?))
            }
        };
        Ok(Self { manifest, output_bytes, inner })
    }

    /// What the plan is and how it was found.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Computes the outputs, in the model's order, from the inputs, in the model's order.
    ///
    /// # Errors
    /// If the inputs are not those of the model, a host routine fails on their values, or the device does.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.check(inputs)?;
        let mut buffers = self.output_buffers();
        let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        self.run_bytes(&input_slices(inputs), &mut outputs)?;
        self.manifest.outputs.iter().zip(buffers).map(|(port, bytes)| tensor_of(port, bytes)).collect()
    }

    /// Runs into buffers of the caller, which are as long as the outputs' types and shapes say: nothing is allocated.
    ///
    /// # Errors
    /// If the sizes differ, a host routine fails on the inputs' values, or the device does.
    pub fn run_bytes(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        match &mut self.inner {
            Inner::Cpu(inner) => inner.run(inputs, outputs).map_err(Error::from),
            Inner::Cuda(inner) => inner.run(inputs, outputs).map_err(Error::from),
        }
    }

    /// Runs again on the inputs of the last run. A GPU has them, and keeps the outputs: nothing is copied.
    ///
    /// # Errors
    /// As [`Executable::run_bytes`].
    pub fn run_again(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        match &mut self.inner {
            Inner::Cpu(inner) => inner.run(inputs, outputs).map_err(Error::from),
            Inner::Cuda(inner) => inner.run_on_device(1).map_err(Error::from),
        }
    }

    /// Microseconds of runs on the inputs of the last run, by the GPU's own clock, each begun with such a cache.
    ///
    /// # Errors
    /// If the executable is for a CPU, or as [`Executable::run_bytes`].
    pub fn device_times_us(&mut self, runs: usize, cache: DeviceCache) -> Result<Vec<f64>, Error> {
        match &mut self.inner {
            Inner::Cpu(_) => Err(no_clock()),
            Inner::Cuda(inner) => {
                let flush_l2 = cache == DeviceCache::Cold;
                let options = TimeOptions { replays: runs, flush_l2, ..TimeOptions::default() };
                inner.time_runs(&options).map_err(Error::from)
            }
        }
    }

    /// Several runs in a row on the inputs of the last run, to be timed by the GPU's own clock. Each of them has computed the
    /// same outputs, to the bit, unless libraries are called, which need not.
    ///
    /// # Errors
    /// If the executable is for a CPU or has steps on the host, the GPU lacks memory for the tensors of all runs, or runs
    /// differ.
    pub fn in_a_row(&mut self, runs: usize) -> Result<RunsInARow, Error> {
        let buffers = [self.output_buffers(), self.output_buffers()];
        let Inner::Cuda(inner) = &mut self.inner else { return Err(no_clock()) };
        let row = Row::new(inner, runs).map_err(Error::from)?;
        let mut row = row.ok_or_else(|| {
            Error::Input(
                "the executable has steps that run on the host, so that no graph takes its runs".to_owned(),
            )
        })?;
        let calls_library =
            (0..self.manifest.steps.len()).any(|step| matches!(inner.call_of(step), Some(Ok(_))));
        if !calls_library {
            ensure_alike(inner, &mut row, buffers)?;
        }
        Ok(RunsInARow { row })
    }

    /// Median time of each step over `runs` runs.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn profile(&mut self, inputs: &[Tensor], runs: usize) -> Result<Vec<StepTime>, Error> {
        self.check(inputs)?;
        let (mut buffers, given) = (self.output_buffers(), input_slices(inputs));
        let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        let profile = match &mut self.inner {
            Inner::Cpu(inner) => inner.profile(&given, &mut outputs, runs).map_err(Error::from)?,
            Inner::Cuda(inner) => {
                inner.upload(&given).map_err(Error::from)?;
                inner.profile(runs).map_err(Error::from)?
            }
        };
        Ok(profile.into_iter().map(|step| StepTime { name: step.name, median_us: step.median_us }).collect())
    }

    /// For a step with a library call the library and its release, or why its own kernel runs instead.
    pub fn call_of(&self, step: usize) -> Option<Result<String, &str>> {
        match &self.inner {
            Inner::Cpu(_) => None,
            Inner::Cuda(inner) => inner.call_of(step),
        }
    }

    /// Buffers of the outputs' sizes.
    pub fn output_buffers(&self) -> Vec<Vec<u8>> {
        self.output_bytes.iter().map(|&bytes| vec![0; bytes]).collect()
    }

    fn check(&self, inputs: &[Tensor]) -> Result<(), Error> {
        let ports = &self.manifest.inputs;
        if inputs.len() != ports.len() {
            let names: Vec<&str> = ports.iter().map(|port| port.name.as_str()).collect();
            let (given, expected) = (inputs.len(), ports.len());
            let names = names.join(", ");
            return Err(Error::Input(format!(
                "{given} inputs are given, the model takes {expected}: {names}"
            )));
        }
        for (port, tensor) in ports.iter().zip(inputs) {
            check_input(port, tensor)?;
        }
        Ok(())
    }
}

/// Runs in a row on a GPU: one graph, in which each run has tensors of its own and may start as the run before ends. So
/// are the times that a device takes if it always has the next run at hand.
pub struct RunsInARow {
    row: Row,
}

impl RunsInARow {
    /// Microseconds of one run, which is an equal share of all, for each of `replays` repetitions.
    ///
    /// # Errors
    /// If the device fails.
    pub fn times_us(&self, replays: usize) -> Result<Vec<f64>, Error> {
        self.row.time(&TimeOptions { replays, ..TimeOptions::default() }).map_err(Error::from)
    }
}

/// Runs a row, and compares the outputs of each run with those of the last run alone; both are read to the buffers.
fn ensure_alike(
    alone: &mut cuda::CudaExecutable,
    row: &mut Row,
    [mut expected, mut found]: [Vec<Vec<u8>>; 2],
) -> Result<(), Error> {
    let read = |run: &mut cuda::CudaExecutable, outputs: &mut [Vec<u8>]| {
        let mut outputs: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        run.download(&mut outputs).map_err(Error::from)
    };
    read(alone, &mut expected)?;
    row.run().map_err(Error::from)?;
    for run in row.runs_mut() {
        read(run, &mut found)?;
        if found != expected {
            return Err(Error::Internal("runs in a row do not compute what a run does alone".to_owned()));
        }
    }
    Ok(())
}

fn no_clock() -> Error {
    Error::Input("the executable is for a CPU, which has no clock of its own".to_owned())
}

/// The tensor in memory that starts at a cache line, as kernels like it best. Tensors that start within a word, as
/// those inside a mapped file may, are copied by every run otherwise.
pub fn aligned(tensor: &Tensor) -> Tensor {
    let bytes = cpu::AlignedBuffer::copy_of(tensor.bytes());
    Tensor::from_bytes(tensor.dtype(), tensor.shape().clone(), bytes.into())
        .expect("a copy has the same size")
}

fn input_slices(inputs: &[Tensor]) -> Vec<&[u8]> {
    inputs.iter().map(|tensor| &tensor.bytes()[..]).collect()
}

fn tensor_of(port: &Port, bytes: Vec<u8>) -> Result<Tensor, Error> {
    let (dtype, shape) = typed(&port.dtype, &port.shape)?;
    Tensor::from_bytes(dtype, shape, bytes.into()).map_err(|error| Error::Internal(error.to_string()))
}
