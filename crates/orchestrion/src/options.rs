//! What the caller decides about a compilation: one value, passed explicitly.

use orch_ir::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Options of [`Model::compile`](crate::Model::compile) and of loading a model.
#[derive(Clone)]
pub struct Options {
    /// Values of symbolic dimensions.
    pub dims: BTreeMap<String, usize>,
    /// Inputs whose value is fixed when compiling, by name: they become constants.
    pub fixed_inputs: BTreeMap<String, Tensor>,
    /// The CPU to compile for: a name of [`orch_tile::target::CPU_TARGETS`], or `None` for this machine.
    pub target: Option<String>,
    /// The C compiler; `None` looks for one.
    pub c_compiler: Option<PathBuf>,
    /// Folder of compiled kernels and measurements.
    pub cache_dir: PathBuf,
    /// What contractions multiply.
    pub precision: Precision,
    /// False makes every primitive a kernel of its own: a baseline to compare with.
    pub fuse: bool,
    /// Plans for this machine by figures measured on it, once (see [`doctor`](crate::doctor)); false takes those that
    /// such processors usually have, so that plans depend on nothing that is measured.
    pub calibrate: bool,
    /// Measures kernels of the plan and close alternatives, and plans by that. It takes up to half a minute the first
    /// time, and plans may differ between compilations. Has no effect for another `target` than this machine.
    pub tune: bool,
    /// Threads that compile; 0 means one per CPU.
    pub jobs: usize,
    /// Told about long work.
    pub progress: Arc<dyn Progress>,
    /// Set from another thread to stop.
    pub cancel: Arc<AtomicBool>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dims: BTreeMap::new(),
            fixed_inputs: BTreeMap::new(),
            target: None,
            c_compiler: None,
            cache_dir: std::env::temp_dir().join("orchestrion-cache"),
            precision: Precision::F32,
            fuse: true,
            calibrate: true,
            tune: false,
            jobs: 0,
            progress: Arc::new(Silent),
            cancel: Arc::new(AtomicBool::new(false)),
        }
    }
}

/// What matrix products and convolutions of f32 multiply. Sums, and everything else, are computed in f32 either way,
/// and inputs and outputs keep the model's types.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// f32, as the model says.
    #[default]
    F32,
    /// Operands rounded to bf16 (to nearest even), on machines that multiply it: AVX512-BF16 or AMX.
    Bf16,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Precision; 2] = [Precision::F32, Precision::Bf16];

    /// The name in options: `f32`, `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
        }
    }

    /// The error against f64 that a compiled model stays below, relative to an output's largest magnitude.
    ///
    /// A product of rounded factors is off by up to 2^-8 of itself. Such errors are independent, so that a sum of
    /// them is off by less than that share of the magnitudes that it adds; what remains grows with the number of
    /// contractions one after the other, and with cancellation between them.
    pub fn tolerance(self) -> f64 {
        match self {
            Precision::F32 => 1e-4,
            Precision::Bf16 => 3e-2,
        }
    }
}

/// Receives the progress of long work; called from several threads.
pub trait Progress: Send + Sync {
    /// A stage has begun, of `total` parts (0 if that is not known).
    fn begin(&self, stage: &str, total: usize);
    /// `done` parts of the current stage are finished.
    fn advance(&self, done: usize);
    /// The current stage has ended.
    fn end(&self);
}

/// Ignores all progress.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _stage: &str, _total: usize) {}

    fn advance(&self, _done: usize) {}

    fn end(&self) {}
}
