//! What a target has to provide, as three traits over plain types.
//!
//! - [`Planner`] models and designs kernels: all that a plan depends on. It needs neither a compiler nor the device.
//! - [`Toolchain`] writes and compiles them.
//! - [`Meter`] times them, where the target is this machine.
//!
//! `build::cpu` and `build::cuda` implement all three; `build::find` picks one of them for the options. Stages take the
//! trait that they use, so that a signature tells whether a stage may compile or time anything. Facts that are constants
//! of a target are no methods but fields of [`TargetInfo`].

use super::definition::KernelDefinition;
use super::kernel::{KernelDesign, KernelEstimate};
use crate::manifest::{Device, Resources};
use crate::{Error, Library, Options, Precision};
use bytes::Bytes;
use orch_compute::Storage;
use orch_ir::PrimGraph;
use orch_mugraph::lower::{CannotLower, Request};
use orch_mugraph::search::SearchOptions;
use orch_runtime::cpu::Source;
use orch_template::Design;
use orch_thread::{OperandPrecision, ThreadProgram};

/// Facts about a target that do not depend on the kernel.
#[derive(Clone, Debug)]
pub struct TargetInfo {
    /// The kind of device.
    pub device: Device,
    /// The target whose capability numbers kernels are made for: `x86-64-v4`, `sm_90`, for PTX `compute_80`.
    pub name: String,
    /// The machine that kernels are made on or for, in words.
    pub machine: String,
    /// In what products of f32 are computed, as the options name it; f16 or bf16 if the model's are of that.
    pub precision: Precision,
    /// All figures by which kernels are modelled, as text: part of the plan cache's key.
    pub figures: String,
    /// True if kernels may hold two contractions, the second of which needs the first: attention.
    pub chains_contractions: bool,
    /// True if kernels widen f16 to f32 at no cost where they read it, as they do bf16 on every target.
    pub widens_f16: bool,
    /// True if kernels of µGraphs compute masks that are bands from indices, and visit visible tiles only.
    pub computes_bands: bool,
    /// Factors on the modelled costs of µGraphs.
    pub substitute_margins: SubstituteMargins,
    /// Most re-entrant units of a kernel: cheap ones that it recomputes, though it also reads what other kernels compute from them.
    pub reentrant_units: usize,
    /// True if a kernel starts before the kernel before it has ended (programmatic dependent launch), so that a plan takes
    /// less than the sum of its kernels' times.
    pub overlaps_kernels: bool,
    /// Bytes that the last-level cache keeps from one run of a model to the next.
    pub kept_bytes: usize,
    /// The precision in which vendor libraries multiply; `None` if kernels of this target have no library calls beside them.
    pub library_precision: Option<OperandPrecision>,
    /// The instruction-set extensions of the CPU that the compiler may use for any kernel; none on GPUs.
    pub extensions: Vec<String>,
    /// True if kernels can be timed: the target is this machine.
    pub is_measurable: bool,
    /// What the caller should know of the target.
    pub note: Option<String>,
}

impl TargetInfo {
    /// True if plans are made by measured times: of this machine, or of records that the options name.
    pub fn is_tuned(&self, options: &Options) -> bool {
        options.records.is_some() || options.tune && self.is_measurable
    }
}

/// Factors on the modelled costs of µGraphs, as far as these are less exact than those of templates.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SubstituteMargins {
    /// Of those that multiply by no constant.
    pub computed: f64,
    /// Of those that multiply by constants, which templates lay out anew when they are compiled.
    pub by_constants: f64,
}

/// Models and designs kernels for one target.
pub trait Planner: Sync {
    /// What does not depend on the kernel.
    fn info(&self) -> &TargetInfo;

    /// The graph with the rewrites of this target and of the precision that the options name.
    fn prepared(&self, graph: PrimGraph) -> PrimGraph;

    /// Element type and memory layout of each tensor.
    fn storage(&self, graph: &PrimGraph) -> Storage;

    /// Modelled time and least work of a kernel; `None` if no template serves it.
    fn estimate(&self, definition: &KernelDefinition) -> Option<KernelEstimate>;

    /// Cost model and limits of the search for µGraphs.
    fn search_options(&self) -> SearchOptions;

    /// A kernel under at most `limit` schedules, the one that its template's model prefers first; none if no template
    /// serves it.
    fn designs(&self, definition: &KernelDefinition, limit: usize) -> Vec<Design>;

    /// A kernel of a µGraph under at most `limit` schedules, at least one, the preferred one first.
    ///
    /// # Errors
    /// Why it is not lowered.
    fn design_mugraph(&self, request: &Request<'_>, limit: usize) -> Result<Vec<Design>, CannotLower>;

    /// What is counted in a program.
    fn emitted(&self, program: &ThreadProgram) -> EmittedFacts;
}

/// What is known of a kernel once it is emitted.
#[derive(Clone, Copy, Debug)]
pub struct EmittedFacts {
    /// Least time in microseconds: on CPUs that of its instructions, with all data in registers and L1; on GPUs that of the loads that its
    /// loops wait for.
    pub least_us: f64,
    /// CTAs that an SM holds at once; 1 on CPUs.
    pub resident_ctas: usize,
}

/// Writes and compiles kernels for one target.
pub trait Toolchain: Sync {
    /// Name and version of the compiler.
    ///
    /// # Errors
    /// If there is none.
    fn compiler(&self) -> Result<String, Error>;

    /// Source of a valid program, in C or CUDA C++; `name` is for messages.
    fn source(&self, name: &str, program: &ThreadProgram) -> Source;

    /// Compiles sources, or takes the objects that are in the cache.
    ///
    /// # Errors
    /// If the compiler is missing or fails, or the work is cancelled.
    fn build(&self, sources: &[Source], options: &Options) -> Result<Vec<BuiltKernel>, Error>;
}

/// Times kernels on this machine.
pub trait Meter: Sync {
    /// Times of chains of kernels, each chain alone, in microseconds; of a kernel with a library call that of the call, `None`
    /// if the library does not support it. On devices with an L2 of their own all that a chain reads is in it, as in a model
    /// where another kernel has just written it, unless its first kernel is cold.
    ///
    /// # Errors
    /// If they do not build or load.
    fn times(&self, chains: &[Vec<KernelDesign>], options: &Options) -> Result<Vec<Option<f64>>, Error>;

    /// The release of a library whose calls can be timed beside kernels.
    ///
    /// # Errors
    /// Why there is none.
    fn library(&self, library: Library) -> Result<String, String>;
}

/// All three for one target: what `build::find` returns.
pub trait Backend: Planner + Toolchain + Meter {}

impl<T: Planner + Toolchain + Meter> Backend for T {}

/// A compiled kernel.
pub struct BuiltKernel {
    /// A shared object or a cubin.
    pub bytes: Bytes,
    /// Registers, stack and spills of a thread; `None` on CPUs.
    pub resources: Option<Resources>,
}
