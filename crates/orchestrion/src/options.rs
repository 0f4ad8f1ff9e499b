//! What the caller decides about a compilation: one value, passed explicitly.

use orch_ir::{DType, Tensor};
use orch_runtime::cuda::{Library, SearchPaths};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Options of [`Model::compile`](crate::Model::compile) and of loading a model.
#[derive(Clone)]
pub struct Options {
    /// Values of symbolic dimensions.
    pub dims: BTreeMap<String, usize>,
    /// Whole shapes of inputs by name: they bind the symbolic dimensions that they meet.
    pub input_shapes: BTreeMap<String, Vec<usize>>,
    /// Folders in which external data may lie besides the model's own, once links are resolved.
    pub external_data_roots: Vec<PathBuf>,
    /// Inputs whose value is fixed when compiling, by name: they become constants.
    pub fixed_inputs: BTreeMap<String, Tensor>,
    /// Initializers of an ONNX model that can be replaced after compiling ([`Executable::set_constants`](crate::Executable::set_constants)).
    /// Kernels read them where they read inputs: nothing of them is folded or packed.
    pub updatable: Vec<String>,
    /// What to compile for: `cpu` or `None` for this machine's CPU, another one by a name of
    /// [`orch_thread::target::CPU_TARGETS`]; `cuda` for this machine's first GPU, `cuda:1` for its second, one that need not be here by
    /// `cuda:` and a name of [`orch_thread::target::GPU_TARGETS`]. `cuda:sm_XY` of a compute capability of at least 8.0 that has no table
    /// is `cuda:compute_80`: PTX.
    pub target: Option<String>,
    /// Threads that runs on a CPU have, at most: kernels are chosen by what they are modelled to take on so many, and serve any smaller
    /// number too. 0 means one per CPU of this machine. GPUs take no notice.
    pub threads: usize,
    /// The C compiler; `None` looks for one.
    pub c_compiler: Option<PathBuf>,
    /// Where to look for CUDA's libraries.
    pub cuda: SearchPaths,
    /// Folder of compiled kernels and measurements; one to which other users may write is refused.
    pub cache_dir: PathBuf,
    /// In what to compute.
    pub precision: Precision,
    /// False makes every primitive a kernel of its own, but for those that cost nothing where they are read (broadcasts, views
    /// of the same bytes, widening of 16-bit floats): a baseline to compare with.
    pub fuse: bool,
    /// Plans for this machine by figures measured on it, once (see [`doctor`](crate::doctor)); false takes those that
    /// such processors usually have, so that plans depend on nothing that is measured.
    pub calibrate: bool,
    /// Adds kernels that the superoptimizer finds and proves to the candidates.
    pub superoptimize: bool,
    /// Takes the kernels that the superoptimizer finds and proves wherever it finds some, whatever they are modelled to cost beside those
    /// of templates.
    pub prefer_found: bool,
    /// Measures kernels of the plan and close alternatives, and plans by that. It takes up to half a minute the first
    /// time, and plans may differ between compilations. Has no effect for another `target` than this machine's CPU or GPU.
    pub tune: bool,
    /// Schedules of each kernel of the plan that are timed, or looked up in `records`: those that its template's model prefers, on
    /// CPUs 4 at most. Time for that grows with them: 20 seconds for 8. Fewer than 2 leave the preferred schedule as it is.
    pub tune_schedules: usize,
    /// What tuning may add to the compilation: measurements of what takes most of the run come first, a quarter is kept for comparing whole
    /// plans, and at the end the best plan so far is taken, which is never one that was not found faster than the untuned plan. What has
    /// begun is finished. Building the untuned plan does not count. `None` limits measurements alone, as `tune` says.
    pub tune_budget: Option<Duration>,
    /// Times of kernels that another machine measured (`orchestrion cache export`): plans by them as far as they go, for
    /// any target, instead of measuring.
    pub records: Option<PathBuf>,
    /// Vendor libraries that are called instead of kernels where measured times (`tune`, `records`) find them faster, and
    /// where they are when an executable is loaded: it has kernels of its own for what they do. None by default, because
    /// results then depend on what is installed. Without measured times they have no effect.
    pub libraries: Vec<Library>,
    /// What receives the thread programs of the plan's kernels after one of the passes.
    pub dump_after: Option<DumpAfter>,
    /// Threads that compile; 0 means one per CPU.
    pub jobs: usize,
    /// Told about long work.
    pub progress: Arc<dyn Progress>,
    /// Set from another thread to stop.
    pub cancel: Arc<AtomicBool>,
}

impl Options {
    /// The number of the GPU of this machine that is the target: 0 for `cuda`, 1 for `cuda:1`.
    pub fn gpu(&self) -> Option<usize> {
        match self.target.as_deref()? {
            "cuda" => Some(0),
            target => target.strip_prefix("cuda:")?.parse().ok(),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dims: BTreeMap::new(),
            input_shapes: BTreeMap::new(),
            external_data_roots: Vec::new(),
            fixed_inputs: BTreeMap::new(),
            updatable: Vec::new(),
            target: None,
            threads: 0,
            c_compiler: None,
            cuda: SearchPaths::default(),
            cache_dir: orch_files::default_cache_folder(None, None),
            precision: Precision::F32,
            fuse: true,
            calibrate: true,
            superoptimize: true,
            prefer_found: false,
            tune: false,
            tune_schedules: 8,
            tune_budget: None,
            records: None,
            libraries: Vec::new(),
            dump_after: None,
            jobs: 0,
            progress: Arc::new(Silent),
            cancel: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// Receives the name of a kernel and the text of its thread program.
pub type ReceiveDump = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Asks for the text of each kernel's thread program after a pass. Where several plans are timed against each other, it is given for
/// all of them.
#[derive(Clone)]
pub struct DumpAfter {
    /// The name of a pass, one of [`orch_thread::passes::PASSES`].
    pub pass: String,
    /// Takes a kernel's name and the text.
    pub receive: ReceiveDump,
}

/// In what an executable computes where the model says f32. Sums, and everything but matrix products and convolutions,
/// are computed in f32 in any case, and inputs and outputs keep the model's types.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32, as the model says.
    #[default]
    F32,
    /// tensor cores take 10 bits of the fraction of operands: GPUs.
    Tf32,
    /// Weights, and tensors that pass between kernels, are stored in f16: GPUs.
    F16,
    /// On GPUs the same in bf16. On CPUs operands are rounded to bf16 (to nearest even), where the machine multiplies it:
    /// AVX512-BF16 or AMX.
    Bf16,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Precision; 4] = [Precision::F32, Precision::Tf32, Precision::F16, Precision::Bf16];

    /// The name in options: `f32`, `tf32`, `f16`, `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::F16 => "f16",
            Precision::Bf16 => "bf16",
        }
    }

    /// The error against f64 that a compiled model stays below, relative to an output's largest magnitude.
    ///
    /// A product of rounded operands is off by up to 2^-8 of itself in bf16, 2^-11 in f16 and TF32. Such errors are
    /// independent, so that a sum of them is off by less than that share of the magnitudes that it adds; what remains
    /// grows with the number of contractions one after the other, and with cancellation between them.
    pub fn tolerance(self) -> f64 {
        match self {
            Precision::F32 => 1e-4,
            Precision::Tf32 => 5e-3,
            Precision::F16 => 1e-2,
            Precision::Bf16 => 3e-2,
        }
    }

    /// The type whose fraction operands of contractions keep; `None` if they keep all of it.
    pub fn rounds_to(self) -> Option<DType> {
        match self {
            Precision::F32 => None,
            Precision::Tf32 | Precision::F16 => Some(DType::F16),
            Precision::Bf16 => Some(DType::BF16),
        }
    }
}

/// Receives the progress of long work; called from several threads.
pub trait Progress: Send + Sync {
    /// A stage has begun, of `total` parts (0 if that is not known).
    fn begin(&self, stage: &str, total: usize);
    /// `done` parts of the current stage are finished.
    fn advance(&self, done: usize);
    /// What the current stage has found so far, in words.
    fn note(&self, text: &str);
    /// The current stage has ended.
    fn end(&self);
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _stage: &str, _total: usize) {}

    fn advance(&self, _done: usize) {}

    fn note(&self, _text: &str) {}

    fn end(&self) {}
}
