//! Compiling and loading: options from Python, progress, interruption.

use crate::errors;
use crate::executable::PyExecutable;
use crate::tensors::owned;
use bytes::Bytes;
use orchestrion::{
    Artifact, DeclaredDim, Error, Execution, Model, Nvtx, Options, Precision, Progress, RunOptions,
    SearchPaths,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A model, or an executable: a file, or its content.
#[derive(FromPyObject)]
pub enum Source {
    /// The content.
    Bytes(Vec<u8>),
    /// The file.
    Path(PathBuf),
}

/// How often progress is shown and signals are looked at.
const TICK: Duration = Duration::from_millis(50);

/// Compiles a model and loads it.
///
/// `options` has `cache_dir` and, as they are given: `dims`, `input_shapes`, `target`, `precision`, `superoptimize`, `tune`,
/// `budget`, `calibrate`, `fuse`, `jobs`, `threads`, `launches`, `c_compiler`, `external_data_roots`, `base_dir`, `updatable`, `cuda_files`. `progress` is called every 50 ms as
/// `progress(stage, done, total)` from the calling thread; what it raises stops the work.
#[pyfunction]
#[pyo3(signature = (model, options, progress=None))]
pub fn compile(
    py: Python<'_>,
    model: Source,
    options: &Bound<'_, PyDict>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyExecutable> {
    let Settings { options, run, base_dir } = Settings::of(options)?;
    let load = move |options: &Options| match model {
        Source::Path(path) => Model::load(&path, options),
        Source::Bytes(bytes) => Model::parse(Bytes::from(bytes), "", base_dir.as_deref(), options),
    };
    compiled(py, options, run, load, progress)
}

/// Compiles a document of ATen calls and loads it; `fixed` has the inputs whose value is fixed, by name. Otherwise as `compile`.
#[pyfunction]
#[pyo3(signature = (document, options, fixed, progress=None))]
pub fn compile_aten(
    py: Python<'_>,
    document: Vec<u8>,
    options: &Bound<'_, PyDict>,
    fixed: &Bound<'_, PyDict>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyExecutable> {
    let Settings { mut options, run, .. } = Settings::of(options)?;
    for (name, value) in fixed {
        let name: String = name.extract()?;
        let tensor = owned(&value, &name)?;
        options.fixed_inputs.insert(name, tensor);
    }
    let load = move |options: &Options| Model::from_aten(&document, options);
    compiled(py, options, run, load, progress)
}

/// The names of the inputs that kernels for a document of ATen calls update in place; `options` as of `compile`. Compiles nothing, and needs
/// no GPU.
#[pyfunction]
pub fn updated_inputs(
    py: Python<'_>,
    document: Vec<u8>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Vec<String>> {
    let Settings { options, .. } = Settings::of(options)?;
    let planned = py.detach(|| Model::from_aten(&document, &options)?.plan(&options));
    let planned = planned.map_err(|error| errors::exception(py, error))?;
    Ok(planned.updated_inputs().into_iter().map(str::to_owned).collect())
}

fn compiled(
    py: Python<'_>,
    mut options: Options,
    run: RunSettings,
    load: impl FnOnce(&Options) -> Result<Model, Error> + Send + 'static,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyExecutable> {
    let watch = Watch::default();
    watch.join(&mut options);
    let (executable, model) = watch.run(py, progress, move || {
        let model = load(&options)?;
        let artifact = model.compile(&options)?;
        let run_options = run.of(&options);
        Ok((orchestrion::Executable::load(artifact, run_options)?, model))
    })?;
    PyExecutable::new(py, executable, Some(model))
}

/// Progress and interruption of long work.
#[derive(Default)]
pub struct Watch {
    seen: Arc<Seen>,
    cancel: Arc<AtomicBool>,
}

impl Watch {
    /// Has the work of these options tell its progress, and heed interruptions.
    pub fn join(&self, options: &mut Options) {
        options.progress = Arc::clone(&self.seen) as Arc<dyn Progress>;
        options.cancel = Arc::clone(&self.cancel);
    }

    /// Does work on a thread of its own, while this one shows progress and cancels the work at a signal.
    ///
    /// # Errors
    /// The exception of the work's error, or what a signal or `progress` raises.
    pub fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        progress: Option<&Bound<'_, PyAny>>,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        watched(py, work, &self.cancel, &self.seen, progress)
    }
}

/// Files of CUDA's libraries by `driver`, `nvrtc`, `cublaslt`, `cudnn`; what `Nvtx::of_setting` takes by `nvtx` and `nvtx_injection`, where
/// these are set; and folders of Python's packages by `site_packages`.
type CudaFiles = HashMap<String, Vec<PathBuf>>;

fn search_paths(mut files: CudaFiles) -> SearchPaths {
    let mut file = |name: &str| files.remove(name).and_then(|mut files| files.pop());
    let (driver, nvrtc, cublaslt, cudnn) = (file("driver"), file("nvrtc"), file("cublaslt"), file("cudnn"));
    let [setting, injection] = ["nvtx", "nvtx_injection"].map(&mut file);
    let nvtx =
        Nvtx::of_setting(setting.as_deref().map(Path::as_os_str), injection.as_deref().map(Path::as_os_str));
    let site_packages = files.remove("site_packages").unwrap_or_default();
    SearchPaths { driver, nvrtc, cublaslt, cudnn, nvtx, site_packages }
}

/// Loads an executable; `device` is the number of the GPU, for executables of GPUs, of which how they are launched is kept in `cache_dir`.
#[pyfunction]
#[pyo3(signature = (source, threads=0, device=0, cuda_files=CudaFiles::new(), cache_dir=None))]
pub fn load(
    py: Python<'_>,
    source: Source,
    threads: usize,
    device: usize,
    cuda_files: CudaFiles,
    cache_dir: Option<PathBuf>,
) -> PyResult<PyExecutable> {
    let run_options = RunOptions {
        threads,
        device,
        cuda: search_paths(cuda_files),
        allocate_late: true,
        cache_dir,
        ..RunOptions::default()
    };
    let loaded = py.detach(|| {
        let artifact = match source {
            Source::Path(path) => Artifact::load(&path)?,
            Source::Bytes(bytes) => Artifact::parse(&Bytes::from(bytes))?,
        };
        orchestrion::Executable::load(artifact, run_options)
    });
    PyExecutable::new(py, loaded.map_err(|error| errors::exception(py, error))?, None)
}

/// An input or output as a model declares it: name, element type, and per dimension a size or the name of a symbolic one.
type DeclaredPort<'py> = (String, Option<&'static str>, Bound<'py, PyTuple>);

/// The inputs and the outputs of a model, as it declares them.
#[pyfunction]
pub fn declaration<'py>(
    py: Python<'py>,
    model: Source,
) -> PyResult<(Vec<DeclaredPort<'py>>, Vec<DeclaredPort<'py>>)> {
    let declared = py.detach(|| match model {
        Source::Bytes(bytes) => Model::declaration(Bytes::from(bytes)),
        Source::Path(path) => {
            let bytes = orchestrion::map_file(&path).map_err(|source| Error::File { path, source })?;
            Model::declaration(bytes)
        }
    });
    let declared = declared.map_err(|error| errors::exception(py, error))?;
    let port = |port: orchestrion::DeclaredPort| {
        let dims = port.dims.into_iter().map(|dim| match dim {
            DeclaredDim::Fixed(size) => Ok(size.into_pyobject(py)?.into_any()),
            DeclaredDim::Symbolic(name) => Ok(name.into_pyobject(py)?.into_any()),
        });
        let dims = PyTuple::new(py, dims.collect::<PyResult<Vec<_>>>()?)?;
        Ok((port.name, port.dtype.map(orchestrion::DType::name), dims))
    };
    let ports = |ports: Vec<_>| ports.into_iter().map(port).collect::<PyResult<Vec<_>>>();
    Ok((ports(declared.inputs)?, ports(declared.outputs)?))
}

/// Does work on a thread of its own, while this one shows progress and cancels the work at a signal.
fn watched<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    cancel: &AtomicBool,
    seen: &Seen,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<T> {
    let (send, receive) = channel();
    let spawned = std::thread::Builder::new().name("orchestrion-compile".to_owned()).spawn(move || {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // The receiver waits until this has come.
        let _ = send.send(result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Error::Internal(text.unwrap_or_else(|| "panic".to_owned())))
        }));
    });
    let thread = spawned.map_err(|error| {
        errors::exception(py, Error::Environment(format!("no thread can be started: {error}")))
    })?;
    let mut stopped: Option<PyErr> = None;
    let receive = Mutex::new(receive);
    let result = loop {
        let received =
            py.detach(|| receive.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(TICK));
        match received {
            Ok(result) => break result,
            Err(RecvTimeoutError::Disconnected) => break Err(Error::Internal("no result".to_owned())),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let look = || {
            py.check_signals()?;
            match progress {
                Some(progress) => progress.call1(seen.now()).map(|_| ()),
                None => Ok(()),
            }
        };
        if stopped.is_none()
            && let Err(error) = look()
        {
            stopped = Some(error);
            cancel.store(true, Ordering::SeqCst);
        }
    };
    py.detach(|| thread.join().ok());
    match (stopped, result) {
        (Some(error), _) => Err(error),
        (None, Ok(value)) => Ok(value),
        (None, Err(error)) => Err(errors::exception(py, error)),
    }
}

/// The last that was said of progress.
#[derive(Default)]
struct Seen(Mutex<Stage>);

#[derive(Clone, Default)]
struct Stage {
    name: String,
    done: usize,
    total: usize,
    note: String,
}

impl Seen {
    fn change(&self, change: impl FnOnce(&mut Stage)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Stage, with what it has found so far, parts done and parts in all.
    fn now(&self) -> (String, usize, usize) {
        let Stage { name, done, total, note } = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (if note.is_empty() { name } else { format!("{name}: {note}") }, done, total)
    }
}

impl Progress for Seen {
    fn begin(&self, stage: &str, total: usize) {
        self.change(|seen| *seen = Stage { name: stage.to_owned(), total, ..Stage::default() });
    }

    fn advance(&self, done: usize) {
        self.change(|seen| seen.done = done);
    }

    fn note(&self, text: &str) {
        self.change(|seen| text.clone_into(&mut seen.note));
    }

    fn end(&self) {
        self.change(|seen| seen.done = seen.total);
    }
}

/// What the caller decides of runs.
#[derive(Clone, Copy, Default)]
pub struct RunSettings {
    /// Threads of a run.
    pub threads: usize,
    /// How its steps reach a GPU.
    pub execution: Option<Execution>,
}

impl RunSettings {
    /// How to run what these options compile. PyTorch gives working memory; runs on other tensors take their own.
    pub fn of(self, options: &Options) -> RunOptions {
        RunOptions { execution: self.execution, allocate_late: true, ..RunOptions::of(options, self.threads) }
    }
}

/// What the caller decides.
pub struct Settings {
    /// Of the compilation.
    pub options: Options,
    /// Of runs.
    pub run: RunSettings,
    /// Where external data of a model in memory lies.
    pub base_dir: Option<PathBuf>,
}

impl Settings {
    /// Of the options' dict.
    ///
    /// # Errors
    /// `UsageError` if an option is unknown or of another type.
    pub fn of(given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = given.py();
        let mut options = Options { calibrate: true, ..Options::default() };
        let (mut run, mut base_dir) = (RunSettings::default(), None);
        for (key, value) in given {
            let key: String = key.extract()?;
            let wrong = |error: PyErr| {
                errors::usage(py, &format!("option `{key}` is {}: {}", value_text(&value), error.value(py)))
            };
            match key.as_str() {
                "cache_dir" => options.cache_dir = value.extract().map_err(wrong)?,
                "dims" => options.dims = value.extract().map_err(wrong)?,
                "input_shapes" => options.input_shapes = value.extract().map_err(wrong)?,
                "updatable" => options.updatable = value.extract().map_err(wrong)?,
                "cuda_files" => options.cuda = search_paths(value.extract().map_err(wrong)?),
                "external_data_roots" => options.external_data_roots = value.extract().map_err(wrong)?,
                "target" => options.target = value.extract().map_err(wrong)?,
                "c_compiler" => options.c_compiler = value.extract().map_err(wrong)?,
                "fuse" => options.fuse = value.extract().map_err(wrong)?,
                "calibrate" => options.calibrate = value.extract().map_err(wrong)?,
                "superoptimize" => options.superoptimize = value.extract().map_err(wrong)?,
                "tune" => options.tune = value.extract().map_err(wrong)?,
                "budget" => {
                    let seconds: Option<f64> = value.extract().map_err(wrong)?;
                    let budget = seconds.map(Duration::try_from_secs_f64).transpose();
                    options.tune_budget = budget.map_err(|_| {
                        let given = value_text(&value);
                        errors::usage(py, &format!("budget is {given}; seconds from 0 on are expected"))
                    })?;
                }
                "jobs" => options.jobs = value.extract().map_err(wrong)?,
                "threads" => run.threads = value.extract().map_err(wrong)?,
                "launches" => {
                    let name: Option<String> = value.extract().map_err(wrong)?;
                    run.execution = name.map(|name| launches(py, &name)).transpose()?;
                }
                "base_dir" => base_dir = value.extract().map_err(wrong)?,
                "precision" => {
                    let name: String = value.extract().map_err(wrong)?;
                    let known = Precision::ALL.into_iter().find(|precision| precision.name() == name);
                    options.precision = known.ok_or_else(|| {
                        let known = Precision::ALL.map(Precision::name).join(", ");
                        errors::usage(py, &format!("precision `{name}` is not known; known are {known}"))
                    })?;
                }
                _ => return Err(errors::usage(py, &format!("there is no option `{key}`"))),
            }
        }
        Ok(Self { options, run, base_dir })
    }
}

/// A launch mode by its name.
fn launches(py: Python<'_>, name: &str) -> PyResult<Execution> {
    Execution::of_name(name).ok_or_else(|| {
        let known = Execution::ALL.map(Execution::name).join(", ");
        errors::usage(py, &format!("launches are `{name}`; known are {known}"))
    })
}

fn value_text(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "unreadable".to_owned(), |text| text.to_string())
}
