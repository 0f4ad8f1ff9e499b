//! What an executable is, as data: the part of an artifact that is text.
//!
//! Everything here is checked again when an artifact is read ([`crate::consistency`]), because files come from outside.

use crate::{Error, Precision};
use orch_ir::{DType, Shape};
use orch_mugraph::{Band, Certificate};
use orch_runtime::cuda::Computation;
pub use orch_runtime::program::Update;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The plan of an executable and how it came about.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of Orchestrion that compiled it.
    pub compiler: String,
    /// The model.
    pub model: ModelInfo,
    /// What it runs on.
    pub device: Device,
    /// The target whose capability numbers the kernels were made for: `x86-64-v4`, `sm_90`, for PTX `compute_80`.
    pub target: String,
    /// In what it computes.
    pub precision: Precision,
    /// The machine it was compiled and tuned on.
    pub machine: String,
    /// The compiler that built its kernels.
    pub kernel_compiler: String,
    /// What the caller gives, in order.
    pub inputs: Vec<Port>,
    /// What the caller gets, in order.
    pub outputs: Vec<Port>,
    /// Outputs that are updated in place where the caller gives an input's memory for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updates: Vec<Update>,
    /// Constants that the caller may replace: the program's inputs behind `inputs`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub updatable: Vec<UpdatableInfo>,
    /// Working memory.
    pub arena_bytes: usize,
    /// Kernels.
    pub kernels: Vec<KernelInfo>,
    /// What runs, in order.
    pub steps: Vec<StepInfo>,
    /// Sizes of the constants, in order.
    pub constant_bytes: Vec<usize>,
    /// Sizes of the shared objects, cubins or PTX, in order.
    pub library_bytes: Vec<usize>,
    /// The instruction-set extensions of a CPU that the kernels may use, as `orch_runtime::cpu::missing_extensions` knows them.
    pub extensions: Vec<String>,
    /// Proofs of what the superoptimizer found.
    #[serde(default)]
    pub proofs: Vec<Certificate>,
    /// The parts of the model that kernels of proved µGraphs compute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<ProvedPart>,
    /// How the plan was found.
    pub report: PlanReport,
}

/// A kind of device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// Kernels are shared objects; threads of this process run them.
    Cpu,
    /// Kernels are cubins or PTX for an NVIDIA GPU.
    Cuda,
}

/// Where an executable comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The graph's name in the model.
    pub name: String,
    /// The file it was compiled from.
    pub path: String,
    /// BLAKE3 of the file (without external data).
    pub digest: String,
}

impl ModelInfo {
    /// What profilers call the model: the name of its file, or of its graph where it has none, as a C identifier.
    pub fn label(&self) -> String {
        let stem = Path::new(&self.path).file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = stem.filter(|stem| !stem.is_empty()).unwrap_or_else(|| self.name.clone());
        let name = name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        match name.trim_matches('_') {
            "" => "model".to_owned(),
            digit if digit.starts_with(|letter: char| letter.is_ascii_digit()) => format!("m{digit}"),
            name => name.to_owned(),
        }
    }
}

/// An input or output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Port {
    /// Its name in the model.
    pub name: String,
    /// Element type, as [`orch_ir::DType::name`].
    pub dtype: String,
    /// Shape.
    pub shape: Vec<usize>,
}

/// A constant that the caller may replace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpdatableInfo {
    /// Its name in the model, type and shape.
    pub port: Port,
    /// Number of the constant that holds it, row-major.
    pub constant: usize,
}

/// One kernel function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct KernelInfo {
    /// A readable name, unique.
    pub name: String,
    /// The function's name.
    pub symbol: String,
    /// Index of the shared object, cubin or PTX that holds it.
    pub library: usize,
    /// The grid: CTAs of a GPU, work items of a CPU.
    pub tasks: usize,
    /// Phases of a CPU's kernel, which run one after the other: each has as many consecutive work items.
    #[serde(default = "one_phase", skip_serializing_if = "is_one_phase")]
    pub phases: usize,
    /// Scratch per thread.
    pub scratch_bytes: usize,
    /// The tensors that it takes, in order.
    pub arguments: Vec<ArgumentInfo>,
    /// A hash of its code and of all of the above that running it relies on: see [`crate::consistency::fingerprint`].
    pub fingerprint: String,
    /// The CTA's shape; `None` on CPUs.
    #[serde(rename = "team", alias = "cta")]
    pub cta: Option<CtaInfo>,
    /// The template and schedule, for people.
    pub schedule: String,
    /// A library call that was faster, and is made instead where it can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallInfo>,
    /// Its source, in C or CUDA C++.
    pub source: String,
}

fn one_phase() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // Serde gives a reference.
fn is_one_phase(phases: &usize) -> bool {
    *phases == 1
}

/// A tensor that a kernel takes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArgumentInfo {
    /// Bytes of it that the kernel may touch, from the first on.
    pub bytes: usize,
    /// True if the kernel writes it.
    pub written: bool,
}

/// A call of a vendor's library that computes what a kernel computes, from the same arguments.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CallInfo {
    /// The library's name and the release that was measured.
    pub release: String,
    /// What it computes, which tells the library.
    #[serde(flatten)]
    pub computation: Computation,
    /// Time that the kernel took where the call took less.
    pub own_us: Option<f64>,
}

/// Shape and resources of a CTA.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CtaInfo {
    /// Threads of a CTA.
    pub threads: usize,
    /// CTAs of a cluster; 1 without clusters.
    pub cluster: usize,
    /// Whether CTAs wait for each other: all of the grid run at the same time (a cooperative launch), one on an SM.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cooperative: bool,
    /// Shared memory of a CTA.
    pub shared_bytes: usize,
    /// Tensor maps, in the order of the kernel's last parameters.
    #[serde(default, alias = "views", skip_serializing_if = "Vec::is_empty")]
    pub tensor_maps: Vec<TensorMapInfo>,
    /// Registers and spills, if the compiler reports them.
    pub resources: Option<Resources>,
}

/// A tensor map: a kernel's argument of 16-bit elements, as TMA loads it in tiles.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorMapInfo {
    /// Which argument.
    pub argument: usize,
    /// Where its first element is.
    pub offset_bytes: usize,
    /// Its extents in elements, that of consecutive elements first.
    pub extents: Vec<u64>,
    /// The stride of each extent but the first, in bytes.
    pub strides_bytes: Vec<u64>,
    /// Rows of a tile.
    #[serde(alias = "lines")]
    pub rows: u32,
}

/// What a thread of a GPU kernel takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resources {
    /// Registers.
    pub registers: u32,
    /// Memory for arrays that are indexed at run time, and for spilled values.
    pub stack_bytes: u32,
    /// Bytes written and read because registers did not suffice, counted once per instruction.
    pub spill_bytes: u32,
}

/// Memory that a range lies in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotMemory {
    /// The executable's working memory, from this byte on.
    Arena(usize),
    /// A constant.
    Constant(usize),
    /// An input; behind the caller's, an updatable constant.
    Input(usize),
    /// An output.
    Output(usize),
}

/// A tensor in memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Slot {
    /// Where.
    #[serde(rename = "place")]
    pub memory: SlotMemory,
    /// Bytes.
    pub bytes: usize,
    /// True if the step writes it.
    pub written: bool,
    /// Element type.
    pub dtype: String,
    /// Logical shape.
    pub shape: Vec<usize>,
}

/// One step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepInfo {
    /// A readable name.
    pub name: String,
    /// What it does.
    pub action: ActionInfo,
    /// The tensors it is given, in the order the action expects.
    pub slots: Vec<Slot>,
    /// Those that are filled with zeros before its kernel starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cleared: Vec<ClearedSlot>,
    /// The primitives it computes, as text.
    pub computes: Vec<String>,
    /// The operators of the model that they come from.
    pub origins: Vec<String>,
    /// Modelled time.
    pub cost_us: f64,
    /// Time of the kernel alone, if it was measured to find the plan.
    #[serde(default)]
    pub tuned_us: Option<f64>,
    /// Time that arithmetic and traffic take at least, on all threads of the machine; 0 if it is not modelled.
    pub roofline_us: f64,
    /// Modelled time on one thread of a CPU, without its launch: whether to share it among threads is decided when it is loaded.
    pub alone_us: f64,
    /// Bytes read and written, each tensor once.
    pub traffic_bytes: usize,
    /// Floating-point operations, a multiply-add as two.
    pub flops: f64,
    /// The number of the proof that the kernels of its primitives compute them, if the superoptimizer found them.
    #[serde(default)]
    pub proof: Option<usize>,
    /// What the choice of kernels could have taken instead, the closest first; `None` in files that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub considered: Option<Vec<Considered>>,
}

/// A tensor that is filled with zeros before a kernel starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClearedSlot {
    /// Which of the step's.
    pub slot: usize,
    /// The constant that has as many zeros.
    pub constant: usize,
}

/// What the choice of kernels could have taken in place of one or more steps.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Considered {
    /// What it is.
    pub way: Way,
    /// Its kernels.
    pub kernels: usize,
    /// Their time, by which the choice was made.
    pub cost_us: f64,
    /// Time of the steps that it would replace, by which the choice was made.
    pub instead_us: f64,
    /// True if all of its kernels were timed; a modelled time otherwise.
    pub is_measured: bool,
    /// The steps that it would replace.
    pub steps: Vec<usize>,
}

impl Considered {
    /// How much longer the plan would take. It is not always positive: a plan may be better as a whole.
    pub fn loss_us(&self) -> f64 {
        self.cost_us - self.instead_us
    }
}

/// A way to compute what some steps compute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Another kernel for the same.
    OtherKernel,
    /// One kernel for several steps.
    Fused,
    /// Several kernels for one step.
    Split,
}

impl StepInfo {
    /// True if it runs on the host, through the interpreter.
    pub fn is_on_host(&self) -> bool {
        matches!(self.action, ActionInfo::Host { .. })
    }
}

/// What a step does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionInfo {
    /// Launches a kernel.
    Kernel(usize),
    /// Copies the first slot to the second.
    Copy,
    /// Interprets primitives on the host.
    Host {
        /// The primitives, in the text form of `orch-ir`.
        graph: String,
        /// Dimension order of each input, then of each output.
        layouts: Vec<Vec<usize>>,
    },
}

/// A part of the model that the kernels of a proved µGraph compute, and what ties the proof's program and µGraph, the kernels and the
/// tensors to each other. `orchestrion verify` compares all of it with what the file holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProvedPart {
    /// Index into [`Manifest::proofs`].
    pub proof: usize,
    /// BLAKE3 of the text of the proof's program.
    pub program: String,
    /// BLAKE3 of the text of its µGraph.
    pub candidate: String,
    /// What must hold for the program to equal the part of the model.
    pub premises: Vec<String>,
    /// Why the µGraph's exponentials may overflow where the model's result is finite; `None` if they cannot.
    pub unstable: Option<String>,
    /// The program's inputs, in its order.
    pub inputs: Vec<PartTensor>,
    /// Its outputs, in its order.
    pub outputs: Vec<PartTensor>,
    /// The µGraph's kernels, in its order.
    pub kernels: Vec<PartKernel>,
}

/// An input or output of a part's program in the memory of a tensor of the model: element `[i, j, ..]` is at
/// `offset + i * strides[0] + j * strides[1] + ..` elements.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartTensor {
    /// Its name in the program and in the µGraph.
    pub name: String,
    /// The tensor, as [`StepInfo::computes`] names it.
    pub tensor: String,
    /// Elements in memory from one index to the next one, by dimension.
    pub strides: Vec<usize>,
    /// Elements in memory before the first one.
    pub offset: usize,
    /// The band that a mask is, where kernels compute it and do not read the tensor.
    pub band: Option<Band>,
}

/// A kernel that was lowered from a kernel of a µGraph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartKernel {
    /// The number of the first tensor of the µGraph that it defines.
    pub defines: u32,
    /// Index into [`Manifest::steps`] of the step that runs it.
    pub step: usize,
    /// BLAKE3 of its source.
    pub source: String,
    /// Its [`KernelInfo::fingerprint`].
    pub fingerprint: String,
    /// What each of its arguments is.
    pub arguments: Vec<PartArgument>,
}

/// An argument of a kernel of a µGraph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PartArgument {
    /// The name of an input or output of the µGraph, or `t` and the number of a tensor between two of its kernels.
    pub name: String,
    /// Where the step that runs the kernel has it.
    pub memory: SlotMemory,
}

/// Counts and times of the search for a plan.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PlanReport {
    /// Operators of the model.
    pub operators: usize,
    /// Primitives after fission and rewriting.
    pub primitives: usize,
    /// Units that candidates were made of.
    pub units: usize,
    /// Candidate kernels.
    pub candidates: usize,
    /// Candidates that do not have the form of a kernel.
    pub refused: usize,
    /// False if a limit kept the enumeration from meeting every candidate.
    pub is_complete: bool,
    /// Distinct kernels among them.
    pub distinct_kernels: usize,
    /// `optimal`, `feasible` or `infeasible`.
    pub solver_status: String,
    /// Relative gap between plan and bound.
    pub solver_gap: f64,
    /// Modelled time of the plan; after tuning with measured times where there are some.
    pub modelled_us: f64,
    /// The same of the cheapest plan without kernels that the superoptimizer found, if this plan has some.
    #[serde(default)]
    pub without_superoptimizer_us: Option<f64>,
    /// End-to-end times of the alternative plans that were timed, this plan's first; none if there was no other plan.
    #[serde(default, rename = "rivals_us")]
    pub alternatives_us: Vec<f64>,
    /// True if the plan was in the plan cache; all counts above are then those of the compilation that made it.
    #[serde(rename = "is_remembered")]
    pub is_cached: bool,
    /// What the superoptimizer searched; `None` in files that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub searches: Option<Vec<SearchInfo>>,
    /// What the caller should know: options that had no effect and why, code that the driver compiles.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Seconds spent in each stage, in order.
    pub stage_seconds: Vec<(String, f64)>,
}

/// A program that the superoptimizer searched, and what came of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SearchInfo {
    /// The program, as text.
    pub program: String,
    /// Equal parts of the model.
    pub uses: usize,
    /// Modelled time that the plan by templates spends on a use.
    pub spent_us: f64,
    /// Upper bound of what all uses might gain together.
    pub gain_us: f64,
    /// µGraphs were searched that are modelled to take less than this.
    pub below_us: f64,
    /// States after which the search was to end.
    pub state_limit: u64,
    /// States that were visited.
    pub states: u64,
    /// Structures that were searched.
    pub structures: usize,
    /// µGraphs that were screened on random inputs, and those that failed.
    pub screened: [usize; 2],
    /// States and candidates that were left aside, by rule.
    pub pruned: Vec<(String, u64)>,
    /// Why it stopped; why there was no search if it was none.
    pub stopped: String,
    /// Modelled times of the µGraphs that were proved.
    pub proved_us: Vec<f64>,
    /// Why cheaper candidates are not among them.
    pub refused: Vec<String>,
    /// True if the result was remembered.
    pub is_cached: bool,
}

impl Manifest {
    /// The inputs of the program, in order: the caller's, then the updatable constants.
    pub fn program_inputs(&self) -> impl Iterator<Item = &Port> {
        self.inputs.iter().chain(self.updatable.iter().map(|constant| &constant.port))
    }

    /// The most threads that runs on a CPU were planned for, of which modelled times are; `None` on GPUs.
    pub fn planned_threads(&self) -> Option<usize> {
        let count = self.machine.rsplit("; ").next()?.strip_suffix(" threads")?;
        count.parse().ok().filter(|_| self.device == Device::Cpu)
    }
}

/// A type and a shape by what a manifest says of them.
///
/// # Errors
/// If there is no such type, or no memory for such a shape.
pub(crate) fn typed(dtype: &str, shape: &[usize]) -> Result<(DType, Shape), Error> {
    let inconsistent =
        || Error::Model(format!("the .orc file has a tensor of unknown type {dtype}{shape:?}"));
    let dtype = DType::from_name(dtype).ok_or_else(inconsistent)?;
    Ok((dtype, Shape::checked(shape).ok_or_else(inconsistent)?))
}
