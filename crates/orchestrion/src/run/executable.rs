//! Running: an artifact with its kernels loaded, and contexts of it with working memory.

use super::launch_memory::LaunchMemory;
use super::launches::{LaunchChoice, Launches};
use super::load;
use super::options::{DeviceCache, RunOptions, check_count, check_port};
use crate::Error;
use crate::artifact::Artifact;
use crate::manifest::{Device, Manifest, Port, UpdatableInfo, typed};
use orch_ir::{DType, Shape, Tensor, message};
use orch_runtime::cuda::{Execution, Row, TimeOptions};
use orch_runtime::view::{TensorView, TensorViewMut};
use orch_runtime::{cpu, cuda};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A compiled model, ready to run, from several threads at the same time too: each run takes a context that no other uses, which is
/// made if there is none. All share code, weights and threads.
pub struct Executable {
    pub(super) loaded: Arc<Loaded>,
    idle: Mutex<Vec<RunContext>>,
}

/// Working memory for one run of an [`Executable`] at a time. It keeps the executable's code and weights in memory.
pub struct RunContext {
    pub(super) loaded: Arc<Loaded>,
    pub(super) inner: Inner,
    /// The updatable constants that a GPU has.
    pub(super) uploaded: Option<Arc<[Tensor]>>,
}

/// What contexts share.
pub(super) struct Loaded {
    artifact: Artifact,
    program: Program,
    /// Values of the updatable constants, in the manifest's order. A run has those of its beginning.
    updatable: RwLock<Arc<[Tensor]>>,
    /// How it runs.
    options: RunOptions,
    /// How the steps of a run reach a GPU.
    pub(super) launches: Launches,
}

/// What runs, without working memory.
enum Program {
    Cpu(cpu::CpuProgram),
    Cuda(cuda::CudaProgram),
}

/// How long runs may take that only serve to choose how steps reach a GPU.
const MOST_EXTRA_RUNS: Duration = Duration::from_millis(200);

/// What runs it.
pub(super) enum Inner {
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
        let manifest = &artifact.manifest;
        let parts = (&artifact.libraries[..], artifact.constants.clone());
        let program = match manifest.device {
            Device::Cpu => Program::Cpu(load::on_cpu(manifest, parts, options.threads)?),
            Device::Cuda => Program::Cuda(load::on_gpu(manifest, parts, &options)?),
        };
        let updatable = RwLock::new(initial_values(&artifact)?);
        let inner = program.inner()?;
        let launches = launches(manifest, &inner, &options);
        let loaded = Arc::new(Loaded { artifact, program, updatable, options, launches });
        let first = loaded.context_of(inner);
        Ok(Self { loaded, idle: Mutex::new(vec![first]) })
    }

    /// What was loaded, with the constants that were set since.
    pub fn to_artifact(&self) -> Artifact {
        let mut artifact = self.loaded.artifact.clone();
        for (info, value) in artifact.manifest.updatable.iter().zip(&*self.updatable()) {
            artifact.constants[info.constant] = value.bytes().clone();
        }
        artifact
    }

    /// How the steps of a run reach the GPU, once it was chosen by the caller's runs, or by those of an earlier process.
    pub fn launches(&self) -> Option<LaunchChoice> {
        self.loaded.launches.choice()
    }

    /// Values of the updatable constants, in the order of [`Manifest::updatable`].
    pub fn updatable(&self) -> Arc<[Tensor]> {
        self.loaded.updatable()
    }

    /// Replaces updatable constants ([`Options::updatable`](crate::Options::updatable)), for runs that begin afterwards: all of them, or
    /// after an error none.
    ///
    /// # Errors
    /// If the model has no updatable constant of such a name, type and shape.
    pub fn set_constants(&self, values: &[(&str, Tensor)]) -> Result<(), Error> {
        let infos = &self.loaded.artifact.manifest.updatable;
        let mut slot = self.loaded.updatable.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = slot.to_vec();
        for (name, value) in values {
            let Some(number) = infos.iter().position(|info| info.port.name == *name) else {
                return Err(not_updatable(name, infos));
            };
            check_port("constant", &infos[number].port, value.dtype(), value.shape())?;
            changed[number] = aligned(value);
        }
        *slot = changed.into();
        Ok(())
    }

    /// What the plan is and how it was found.
    pub fn manifest(&self) -> &Manifest {
        &self.loaded.artifact.manifest
    }

    /// A context that runs at the same time as others: one per thread that wants to own its working memory.
    ///
    /// # Errors
    /// If a GPU lacks memory.
    pub fn context(&self) -> Result<RunContext, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| self.loaded.context(), Ok)
    }

    /// Computes the outputs, in the model's order, from the inputs, in the model's order.
    ///
    /// # Errors
    /// If the inputs are not those of the model, a host routine fails on their values, or the device does.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        self.with_context(|context| context.run(inputs))
    }

    /// Computes the outputs where the caller wants them, from inputs where they lie: see [`RunContext::run_views`].
    ///
    /// # Errors
    /// As [`RunContext::run_views`].
    pub fn run_views(
        &self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<(), Error> {
        self.with_context(|context| context.run_views(inputs, outputs))
    }

    /// The same on a CPU, with inputs in the memory of outputs: see [`RunContext::run_in_place`].
    ///
    /// # Errors
    /// As [`RunContext::run_in_place`].
    pub fn run_in_place(
        &self,
        inputs: &[Option<TensorView<'_>>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<(), Error> {
        self.with_context(|context| context.run_in_place(inputs, outputs))
    }

    pub(super) fn with_context<T>(
        &self,
        run: impl FnOnce(&mut RunContext) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut context = self.context()?;
        let result = run(&mut context);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(context);
        result
    }
}

impl Loaded {
    fn updatable(&self) -> Arc<[Tensor]> {
        Arc::clone(&self.updatable.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The GPU that it runs on; `None` for a CPU.
    pub(super) fn gpu(&self) -> Option<&cuda::Context> {
        match &self.program {
            Program::Cpu(_) => None,
            Program::Cuda(program) => Some(program.context()),
        }
    }

    fn context(self: &Arc<Self>) -> Result<RunContext, Error> {
        Ok(self.context_of(self.program.inner()?))
    }

    fn context_of(self: &Arc<Self>, inner: Inner) -> RunContext {
        RunContext { loaded: Arc::clone(self), inner, uploaded: None }
    }
}

impl Program {
    /// What runs it, with working memory.
    fn inner(&self) -> Result<Inner, Error> {
        Ok(match self {
            Program::Cpu(program) => Inner::Cpu(Box::new(program.executable())),
            Program::Cuda(program) => Inner::Cuda(Box::new(program.executable().map_err(Error::from)?)),
        })
    }
}

/// How the steps of an executable reach a GPU, as an earlier process has found, or as its runs will.
fn launches(manifest: &Manifest, inner: &Inner, options: &RunOptions) -> Launches {
    let Inner::Cuda(inner) = inner else { return Launches::new(options.execution, None) };
    if options.check_each_step {
        return Launches::new(Some(Execution::Direct), None);
    }
    let calls = (0..manifest.steps.len()).filter_map(|step| inner.call_of(step));
    // A call that is not made is a launch.
    let libraries: Vec<String> = calls.map(Result::unwrap_or_default).collect();
    let gpu = inner.stream().context().device().info();
    let memory = options.cache_dir.as_deref();
    let memory = memory.and_then(|folder| LaunchMemory::open(folder, manifest, gpu, &libraries));
    Launches::new(options.execution, memory)
}

impl RunContext {
    /// What the plan is and how it was found.
    pub fn manifest(&self) -> &Manifest {
        &self.loaded.artifact.manifest
    }

    /// What was loaded, and how it runs.
    pub(crate) fn source(&self) -> (&Artifact, &RunOptions) {
        (&self.loaded.artifact, &self.loaded.options)
    }

    /// Values of the updatable constants, in the order of [`Manifest::updatable`].
    pub fn updatable(&self) -> Arc<[Tensor]> {
        self.loaded.updatable()
    }

    /// Computes the outputs, in the model's order, from the inputs, in the model's order.
    ///
    /// # Errors
    /// If the inputs are not those of the model, a host routine fails on their values, or the device does.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let mut outputs = OutputBuffers::new(self.manifest())?;
        let inputs: Vec<TensorView<'_>> = inputs.iter().map(TensorView::from).collect();
        self.run_views(&inputs, &mut outputs.views())?;
        Ok(outputs.into_tensors())
    }

    /// Computes the outputs where the caller wants them, from inputs where they lie. On a CPU nothing is copied but tensors that are not
    /// row-major, or do not start at a multiple of 8 bytes, and nothing is allocated for the others. Outputs must not overlap inputs.
    ///
    /// # Errors
    /// If types or shapes are not those of the model, a host routine fails on the inputs' values, or the device does; the contents of
    /// the outputs are undefined then.
    pub fn run_views(
        &mut self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<(), Error> {
        self.check(inputs, outputs)?;
        let updatable = self.loaded.updatable();
        let inputs = &*with_updatable(inputs, &updatable);
        match &mut self.inner {
            Inner::Cpu(inner) => inner.run(inputs, outputs).map_err(Error::from),
            Inner::Cuda(inner) => {
                // What is uploaded takes the place of constants that a run on tensors of the GPU has left there.
                self.uploaded = None;
                let stream = Arc::clone(inner.stream());
                self.loaded.launches.before(inner, &stream)?;
                run_on_gpu(inner, inputs, outputs)
            }
        }
    }

    /// The same on a CPU, where each input that is `None` has the memory of the output that updates it ([`Manifest::updates`]): the value
    /// there becomes the new one, of which only what changes is written.
    ///
    /// # Errors
    /// If no output updates such an input, or the executable is for a GPU; otherwise as [`RunContext::run_views`].
    pub fn run_in_place(
        &mut self,
        inputs: &[Option<TensorView<'_>>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<(), Error> {
        self.check_given(inputs.iter().map(Option::as_ref), outputs)?;
        let Inner::Cpu(inner) = &mut self.inner else {
            return Err(Error::Input(
                "tensors of the host are not updated in place on a GPU; bring them there".to_owned(),
            ));
        };
        let updatable = self.loaded.updatable();
        let constants = updatable.iter().map(|constant| Some(TensorView::from(constant)));
        let inputs: Vec<_> = inputs.iter().copied().chain(constants).collect();
        inner.run_in_place(&inputs, outputs).map_err(Error::from)
    }

    /// Runs again on the inputs of the last run. A GPU has them, and keeps the outputs: nothing is copied.
    ///
    /// # Errors
    /// As [`RunContext::run_views`].
    pub fn run_again(
        &mut self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<(), Error> {
        self.check(inputs, outputs)?;
        match &mut self.inner {
            Inner::Cpu(_) => self.run_views(inputs, outputs),
            Inner::Cuda(inner) => {
                let stream = Arc::clone(inner.stream());
                self.loaded.launches.before(inner, &stream)?;
                inner.run_on_device(1).map_err(Error::from)
            }
        }
    }

    /// Makes runs on the inputs of the last run, for at most 200 ms, until it is known how the steps of a run reach the GPU at the least
    /// cost, and says how; `None` on a CPU. None are needed where an earlier process has found it.
    ///
    /// # Errors
    /// As [`RunContext::run_again`].
    pub fn choose_launches(&mut self) -> Result<Option<LaunchChoice>, Error> {
        let Inner::Cuda(inner) = &mut self.inner else { return Ok(None) };
        let (launches, start) = (&self.loaded.launches, Instant::now());
        let stream = Arc::clone(inner.stream());
        while launches.is_trial() && start.elapsed() < MOST_EXTRA_RUNS {
            launches.before(inner, &stream)?;
            inner.run_on_device(1).map_err(Error::from)?;
        }
        let choice = launches.decide();
        launches.before(inner, &stream)?;
        Ok(Some(choice))
    }

    /// Microseconds of runs on the inputs of the last run, by the GPU's own clock, each begun with such a cache.
    ///
    /// # Errors
    /// If the executable is for a CPU, or as [`RunContext::run_views`].
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
        let buffers = [OutputBuffers::new(self.manifest())?, OutputBuffers::new(self.manifest())?];
        let Inner::Cuda(inner) = &mut self.inner else { return Err(no_clock()) };
        let row = Row::new(inner, runs).map_err(Error::from)?;
        let mut row = row.ok_or_else(|| {
            Error::Input(
                "the executable has steps that run on the host, so that no graph takes its runs".to_owned(),
            )
        })?;
        let calls_library = (0..self.loaded.artifact.manifest.steps.len())
            .any(|step| matches!(inner.call_of(step), Some(Ok(_))));
        if !calls_library {
            ensure_alike(inner, &mut row, buffers)?;
        }
        Ok(RunsInARow { row })
    }

    /// Median time of each step over `runs` runs.
    ///
    /// # Errors
    /// As [`RunContext::run`].
    pub fn profile(&mut self, inputs: &[Tensor], runs: usize) -> Result<Vec<StepTime>, Error> {
        let mut buffers = OutputBuffers::new(self.manifest())?;
        let mut outputs = buffers.views();
        let inputs: Vec<TensorView<'_>> = inputs.iter().map(TensorView::from).collect();
        self.check(&inputs, &outputs)?;
        let profile = match &mut self.inner {
            Inner::Cpu(inner) => inner.profile(&inputs, &mut outputs, runs).map_err(Error::from)?,
            Inner::Cuda(inner) => {
                let bytes: Vec<Cow<'_, [u8]>> = inputs.iter().map(TensorView::row_major).collect();
                let bytes: Vec<&[u8]> = bytes.iter().map(|bytes| &bytes[..]).collect();
                inner.upload(&bytes).map_err(Error::from)?;
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

    fn check(&self, inputs: &[TensorView<'_>], outputs: &[TensorViewMut<'_>]) -> Result<(), Error> {
        self.check_given(inputs.iter().map(Some), outputs)
    }

    fn check_given<'a>(
        &self,
        inputs: impl ExactSizeIterator<Item = Option<&'a TensorView<'a>>>,
        outputs: &[TensorViewMut<'_>],
    ) -> Result<(), Error> {
        let manifest = self.manifest();
        check_count("input", &manifest.inputs, inputs.len())?;
        check_count("output", &manifest.outputs, outputs.len())?;
        for (port, given) in manifest.inputs.iter().zip(inputs) {
            given.map_or(Ok(()), |given| check_port("input", port, given.dtype(), given.shape()))?;
        }
        for (port, given) in manifest.outputs.iter().zip(outputs) {
            check_port("output", port, given.dtype(), given.shape())?;
        }
        Ok(())
    }
}

/// What the program takes: the caller's inputs, then the updatable constants.
fn with_updatable<'a>(inputs: &'a [TensorView<'a>], updatable: &'a [Tensor]) -> Cow<'a, [TensorView<'a>]> {
    if updatable.is_empty() {
        return Cow::Borrowed(inputs);
    }
    Cow::Owned(inputs.iter().copied().chain(updatable.iter().map(TensorView::from)).collect())
}

/// The updatable constants as the artifact has them.
fn initial_values(artifact: &Artifact) -> Result<Arc<[Tensor]>, Error> {
    let value = |info: &UpdatableInfo| {
        let (dtype, shape) = typed(&info.port.dtype, &info.port.shape)?;
        let bytes = artifact.constants.get(info.constant).cloned().unwrap_or_default();
        Tensor::from_bytes(dtype, shape, bytes).map(|tensor| aligned(&tensor)).map_err(Error::internal)
    };
    artifact.manifest.updatable.iter().map(value).collect()
}

fn not_updatable(name: &str, infos: &[UpdatableInfo]) -> Error {
    let name = message::name(name);
    let names: Vec<&str> = infos.iter().map(|info| info.port.name.as_str()).collect();
    let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Error::Input(format!(
        "`{name}` cannot be replaced: it is no constant of the model, or it was folded when compiling; name it as updatable then \
         (updatable are: {known})"
    ))
}

/// Memory for all outputs of a model, row-major.
#[derive(Debug)]
pub struct OutputBuffers(Vec<OutputBuffer>);

#[derive(Debug)]
struct OutputBuffer {
    dtype: DType,
    shape: Shape,
    bytes: Vec<u8>,
}

impl OutputBuffer {
    fn view(&mut self) -> TensorViewMut<'_> {
        let view = TensorViewMut::new(self.dtype, &self.shape, &mut self.bytes);
        view.expect("a buffer is made for its type and shape")
    }
}

impl OutputBuffers {
    /// Zeros.
    ///
    /// # Errors
    /// If the manifest names an unknown type.
    pub fn new(manifest: &Manifest) -> Result<Self, Error> {
        let buffer = |port: &Port| {
            let (dtype, shape) = typed(&port.dtype, &port.shape)?;
            let bytes = vec![0; dtype.size_bytes() * shape.elems()];
            Ok(OutputBuffer { dtype, shape, bytes })
        };
        manifest.outputs.iter().map(buffer).collect::<Result<_, Error>>().map(Self)
    }

    /// Where a run is to write.
    pub fn views(&mut self) -> Vec<TensorViewMut<'_>> {
        self.0.iter_mut().map(OutputBuffer::view).collect()
    }

    /// The tensors that a run has written.
    pub fn into_tensors(self) -> Vec<Tensor> {
        let tensor = |OutputBuffer { dtype, shape, bytes }| {
            Tensor::from_bytes(dtype, shape, bytes.into()).expect("a buffer is made for its type and shape")
        };
        self.0.into_iter().map(tensor).collect()
    }

    fn byte_slices(&mut self) -> Vec<&mut [u8]> {
        self.0.iter_mut().map(|buffer| &mut buffer.bytes[..]).collect()
    }
}

/// Runs on tensors of the host, which are copied to the device and back.
fn run_on_gpu(
    executable: &mut cuda::CudaExecutable,
    inputs: &[TensorView<'_>],
    outputs: &mut [TensorViewMut<'_>],
) -> Result<(), Error> {
    let inputs: Vec<Cow<'_, [u8]>> = inputs.iter().map(TensorView::row_major).collect();
    let inputs: Vec<&[u8]> = inputs.iter().map(|bytes| &bytes[..]).collect();
    let mut stand_ins: Vec<Option<Vec<u8>>> = outputs.iter_mut().map(TensorViewMut::stand_in).collect();
    let mut slices: Vec<&mut [u8]> = (outputs.iter_mut().zip(&mut stand_ins))
        .map(|(output, stand_in)| match stand_in {
            Some(bytes) => &mut bytes[..],
            None => output.bytes_mut().expect("an output without a stand-in is row-major"),
        })
        .collect();
    executable.run(&inputs, &mut slices).map_err(Error::from)?;
    for (output, stand_in) in outputs.iter_mut().zip(&stand_ins) {
        if let Some(bytes) = stand_in {
            output.copy_from(bytes);
        }
    }
    Ok(())
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
    [mut expected, mut found]: [OutputBuffers; 2],
) -> Result<(), Error> {
    alone.download(&mut expected.byte_slices()).map_err(Error::from)?;
    row.run().map_err(Error::from)?;
    for run in row.runs_mut() {
        run.download(&mut found.byte_slices()).map_err(Error::from)?;
        if found.byte_slices() != expected.byte_slices() {
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

#[cfg(test)]
mod tests;
