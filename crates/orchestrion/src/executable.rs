//! Running: an artifact with its kernels loaded and its memory allocated.

use crate::Error;
use crate::artifact::Artifact;
use crate::host::InterpretedPart;
use crate::manifest::{ActionInfo, Manifest, Place, Port, Slot, StepInfo, typed};
use orch_ir::{Shape, Tensor};
use orch_runtime::cpu;
use orch_runtime::cpu::{
    Access, Action, Base, BufferRef, Chunking, HostStep, Launch, Library, Pool, PoolOptions, Program, Step,
    TensorRef,
};
use std::sync::Arc;

/// A compiled model, ready to run.
pub struct Executable {
    manifest: Arc<Manifest>,
    inner: cpu::Executable,
}

/// How an executable runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RunOptions {
    /// Threads that work on one run, the caller's included; 0 means one per CPU that the process may use.
    pub threads: usize,
}

/// Time of one step, beside what the plan says of it.
#[derive(Clone, PartialEq, Debug)]
pub struct StepTime {
    /// The step's name.
    pub name: String,
    /// Median over the runs, in microseconds.
    pub median_us: f64,
}

/// Kernels that are modelled to take less than this run on the calling thread: waking another costs as much.
const INLINE_US: f64 = 8.0;

impl Executable {
    /// Loads an artifact.
    ///
    /// # Errors
    /// If it is inconsistent or its kernels do not load on this machine.
    pub fn load(artifact: Artifact, options: RunOptions) -> Result<Self, Error> {
        let manifest = Arc::new(artifact.manifest);
        request_tiles(&manifest)?;
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        check_memory(&manifest, threads)?;
        let libraries = load_libraries(&artifact.libraries)?;
        let steps = manifest.steps.iter().map(|step| build_step(&manifest, &libraries, step));
        let program = Program {
            arena_bytes: manifest.arena_bytes,
            constants: artifact.constants,
            input_bytes: port_bytes(&manifest.inputs)?,
            output_bytes: port_bytes(&manifest.outputs)?,
            steps: steps.collect::<Result<_, _>>()?,
        };
        let pool = Arc::new(Pool::new(PoolOptions { threads, pin: false }));
        let inner =
            cpu::Executable::new(program, pool).map_err(|error| Error::Internal(error.to_string()))?;
        Ok(Self { manifest, inner })
    }

    /// What the plan is and how it was found.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Computes the outputs, in the model's order, from the inputs, in the model's order.
    ///
    /// # Errors
    /// If the inputs are not those of the model, or a host routine fails on their values.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.check(inputs)?;
        let (mut buffers, given) = (self.output_buffers(), input_slices(inputs));
        let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        self.inner.run(&given, &mut outputs).map_err(run_error)?;
        self.manifest.outputs.iter().zip(buffers).map(|(port, bytes)| tensor_of(port, bytes)).collect()
    }

    /// Runs into buffers of the caller, which are as long as the outputs' types and shapes say: nothing is allocated.
    ///
    /// # Errors
    /// If the sizes differ, or a host routine fails on the inputs' values.
    pub fn run_bytes(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.inner.run(inputs, outputs).map_err(run_error)
    }

    /// Median time of each step over `runs` runs.
    ///
    /// # Errors
    /// As [`Executable::run`].
    pub fn profile(&mut self, inputs: &[Tensor], runs: usize) -> Result<Vec<StepTime>, Error> {
        self.check(inputs)?;
        let (mut buffers, given) = (self.output_buffers(), input_slices(inputs));
        let mut outputs: Vec<&mut [u8]> = buffers.iter_mut().map(Vec::as_mut_slice).collect();
        let profile = self.inner.profile(&given, &mut outputs, runs).map_err(run_error)?;
        Ok(profile.into_iter().map(|step| StepTime { name: step.name, median_us: step.median_us }).collect())
    }

    /// Buffers of the outputs' sizes.
    pub fn output_buffers(&self) -> Vec<Vec<u8>> {
        self.inner.program().output_bytes.iter().map(|&bytes| vec![0; bytes]).collect()
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

/// The tensor in memory that starts at a cache line, as kernels like it best. Tensors that start within a word, as
/// those inside a mapped file may, are copied by every run otherwise.
pub fn aligned(tensor: &Tensor) -> Tensor {
    let bytes = cpu::AlignedBuffer::copy_of(tensor.bytes());
    Tensor::from_bytes(tensor.dtype(), tensor.shape().clone(), bytes.into())
        .expect("a copy has the same size")
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

fn run_error(error: cpu::RunError) -> Error {
    match error {
        cpu::RunError::Host { step, reason } => {
            Error::Input(format!("`{step}` cannot work on these values: {reason}"))
        }
        cpu::RunError::Count { .. } | cpu::RunError::Size { .. } => Error::Input(error.to_string()),
    }
}

fn input_slices(inputs: &[Tensor]) -> Vec<&[u8]> {
    inputs.iter().map(|tensor| &tensor.bytes()[..]).collect()
}

fn tensor_of(port: &Port, bytes: Vec<u8>) -> Result<Tensor, Error> {
    let (dtype, shape) = typed(&port.dtype, &port.shape)?;
    Tensor::from_bytes(dtype, shape, bytes.into()).map_err(|error| Error::Internal(error.to_string()))
}

fn port_bytes(ports: &[Port]) -> Result<Vec<usize>, Error> {
    ports
        .iter()
        .map(|port| typed(&port.dtype, &port.shape).map(|(dtype, shape)| shape.elems() * dtype.size_bytes()))
        .collect()
}

/// Refuses what cannot fit this machine: an allocation that fails would end the process.
fn check_memory(manifest: &Manifest, threads: usize) -> Result<(), Error> {
    let ports = [port_bytes(&manifest.inputs)?, port_bytes(&manifest.outputs)?].concat();
    let scratch = manifest.kernels.iter().map(|kernel| kernel.scratch_bytes).max().unwrap_or(0);
    let parts = ports.into_iter().chain([manifest.arena_bytes, scratch.saturating_mul(threads)]);
    let needed = parts.fold(0, usize::saturating_add) as u64;
    match orch_runtime::memory_bytes() {
        Some(available) if needed > available => Err(Error::Environment(format!(
            "a run takes {:.1} GiB for inputs, outputs and working memory, which is more than this machine has; compile \
             the model for smaller shapes",
            needed as f64 / f64::from(1 << 30)
        ))),
        _ => Ok(()),
    }
}

/// Asks the system for the right to use matrix tiles, if kernels may: looking at the machine does.
fn request_tiles(manifest: &Manifest) -> Result<(), Error> {
    let target = orch_tile::target::CPU_TARGETS.iter().find(|target| target.name == manifest.target);
    let has_tiles = target.is_some_and(|target| target.has_amx_bf16);
    if !has_tiles || orch_runtime::Machine::detect().has(orch_runtime::Feature::AmxBf16) {
        return Ok(());
    }
    Err(Error::Environment(format!(
        "the executable is for `{}`, but this machine has no matrix tiles (AMX), or its system does not grant them; \
         compile it for another target",
        manifest.target
    )))
}

fn load_libraries(objects: &[bytes::Bytes]) -> Result<Vec<Library>, Error> {
    let load = |(number, object): (usize, &bytes::Bytes)| {
        Library::from_bytes(&format!("kernels {number}"), object)
            .map_err(|error| Error::Environment(error.to_string()))
    };
    objects.iter().enumerate().map(load).collect()
}

/// How the tasks of a kernel that is modelled to take so long are shared among threads.
pub(crate) fn chunking(cost_us: f64) -> Chunking {
    if cost_us < INLINE_US { Chunking::Inline } else { Chunking::Dynamic }
}

fn build_step(manifest: &Manifest, libraries: &[Library], step: &StepInfo) -> Result<Step, Error> {
    let inconsistent =
        |what: &str| Error::Model(format!("the .orc file is inconsistent: step `{}` {what}", step.name));
    let action = match &step.action {
        ActionInfo::Kernel(number) => {
            let info = manifest.kernels.get(*number).ok_or_else(|| inconsistent("has no kernel"))?;
            let library = libraries.get(info.library).ok_or_else(|| inconsistent("has no library"))?;
            let kernel = library
                .kernel(&info.symbol, info.tasks as i64, info.scratch_bytes)
                .map_err(|error| Error::Environment(error.to_string()))?;
            let buffers = step.slots.iter().map(buffer_ref).collect();
            Action::Launch(Launch { kernel, buffers, chunking: chunking(step.cost_us) })
        }
        ActionInfo::Copy => {
            let [from, to] = &step.slots[..] else {
                return Err(inconsistent("does not copy one tensor to one"));
            };
            Action::Copy { from: buffer_ref(from), to: buffer_ref(to) }
        }
        ActionInfo::Host { graph, layouts } => {
            let part =
                InterpretedPart::of(graph, layouts, &step.slots).map_err(|what| inconsistent(&what))?;
            let tensors = step.slots.iter().map(tensor_ref).collect::<Result<Vec<_>, _>>()?;
            let (inputs, outputs) = tensors.split_at(part.graph.inputs.len());
            Action::Host(HostStep {
                inputs: inputs.to_vec(),
                outputs: outputs.to_vec(),
                routine: Box::new(part),
            })
        }
    };
    Ok(Step { name: step.name.clone(), action })
}

fn buffer_ref(slot: &Slot) -> BufferRef {
    let (base, offset_bytes) = match slot.place {
        Place::Arena(offset) => (Base::Arena, offset),
        Place::Constant(number) => (Base::Constant(number), 0),
        Place::Input(number) => (Base::Input(number), 0),
        Place::Output(number) => (Base::Output(number), 0),
    };
    let access = if slot.written { Access::Write } else { Access::Read };
    BufferRef { base, offset_bytes, len_bytes: slot.bytes, access }
}

fn tensor_ref(slot: &Slot) -> Result<TensorRef, Error> {
    let (dtype, shape) = typed(&slot.dtype, &slot.shape)?;
    Ok(TensorRef { buffer: buffer_ref(slot), dtype, shape })
}
