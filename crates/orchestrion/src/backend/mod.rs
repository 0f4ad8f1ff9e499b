//! What differs between targets: how tensors are stored, what kernels cost, how they are designed, written and built.

mod cpu;
mod cuda;
mod find;
mod gpu_facts;

pub use find::find;

use crate::implement::KernelDesign;
use crate::manifest::{Device, Resources};
use crate::{Error, Library, Options};
use bytes::Bytes;
use orch_compute::{BlockProgram, Storage};
use orch_ir::PrimGraph;
use orch_ir::generate::Rng;
use orch_mugraph::lower::Request;
use orch_mugraph::search::SearchOptions;
use orch_runtime::cpu::Source;
use orch_runtime::cuda::Computation;
use orch_runtime::program::{Access, Base, BufferRef};
use orch_template::Design;
use orch_thread::kernel::Binding;
use orch_thread::{Scope, ThreadProgram};

/// 10^9 a second, in a microsecond.
const GIGA_TO_MICRO: f64 = 1e3;

/// A kind of device, and the tools that make kernels for it.
pub trait Backend: Sync {
    /// The kind.
    fn device(&self) -> Device;

    /// The target whose capability numbers kernels are made for: `x86-64-v4`, `sm_90`.
    fn target(&self) -> String;

    /// The machine that kernels are made on or for, in words.
    fn machine(&self) -> String;

    /// The compiler of kernels, in words.
    ///
    /// # Errors
    /// If there is none.
    fn compiler(&self) -> Result<String, Error>;

    /// All figures by which kernels are modelled, as text: plans depend on them.
    fn figures(&self) -> String;

    /// The graph in the precision that was asked for, as far as that changes the graph.
    fn prepared(&self, graph: PrimGraph) -> PrimGraph;

    /// Whether kernels may hold two contractions, one of which needs the other.
    fn chains_contractions(&self) -> bool {
        false
    }

    /// Whether kernels widen f16 to f32 at no cost where they read it, as they do bf16 everywhere.
    fn widens_f16(&self) -> bool {
        false
    }

    /// How tensors are stored.
    fn storage(&self, graph: &PrimGraph) -> Storage;

    /// Modelled time of a kernel; `None` if no template serves it.
    fn time_us(&self, block: &BlockProgram) -> Option<f64>;

    /// What a kernel does at least.
    fn work(&self, block: &BlockProgram) -> Work;

    /// How µGraphs are searched.
    fn search_options(&self) -> SearchOptions;

    /// A kernel under at most `limit` schedules, the one that its template's model prefers first; none if no template
    /// serves it.
    fn designs(&self, block: &BlockProgram, limit: usize) -> Vec<Design>;

    /// A kernel of a µGraph under at most `limit` schedules, the preferred one first; none if it is not lowered.
    fn design_mugraph(&self, request: &Request<'_>, limit: usize) -> Vec<Design>;

    /// Time of a program's instructions, data at hand; 0 if they are not counted.
    fn instructions_us(&self, program: &ThreadProgram) -> f64;

    /// Source of a valid program.
    fn source(&self, program: &ThreadProgram) -> String;

    /// Compiles sources, or takes what is in the cache.
    ///
    /// # Errors
    /// If the compiler is missing or fails, or the work is cancelled.
    fn build(&self, sources: &[Source], options: &Options) -> Result<Vec<Object>, Error>;

    /// Bytes that a cache keeps from one run of a model to the next.
    fn kept_bytes(&self) -> usize {
        0
    }

    /// True if kernels can be measured: the target is this machine.
    fn measures(&self) -> bool;

    /// Whether kernels start before those that they follow have ended, so that a plan takes less than the sum of their times.
    fn overlaps_kernels(&self) -> bool {
        false
    }

    /// The release of a library whose calls can be timed beside kernels.
    ///
    /// # Errors
    /// Why there is none.
    fn library(&self, _library: Library) -> Result<String, String> {
        Err("libraries are called on GPUs only".to_owned())
    }

    /// A kernel as what a library computes from these arguments; `None` if it does not.
    fn computation(&self, _library: Library, _block: &BlockProgram) -> Option<(Computation, Vec<Binding>)> {
        None
    }

    /// Times of chains of kernels, each alone, in microseconds; of a kernel with a library call that of the call, `None` if
    /// the library does not take it. On devices with a cache of their own what a chain reads is in it, as in a model where
    /// another kernel has just written it, unless its first kernel is cold.
    ///
    /// # Errors
    /// If they do not build or load.
    fn times(&self, chains: &[Vec<KernelDesign>], options: &Options) -> Result<Vec<Option<f64>>, Error>;
}

/// What is chosen of a µGraph's kernel before it is lowered, in the form of [`Design::schedule`].
fn mugraph_schedule(request: &Request<'_>) -> String {
    let block = request.block().map(|block| {
        let grid: Vec<String> = block.grid.iter().map(usize::to_string).collect();
        format!(" grid={} loop={}", grid.join("x"), block.loop_range)
    });
    format!("µGraph{}", block.unwrap_or_default())
}

/// What a kernel does at least.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Work {
    /// Floating-point operations, a multiply-add as two.
    pub flops: f64,
    /// Time that its arithmetic and its traffic take at least.
    pub roofline_us: f64,
}

/// A built kernel.
pub struct Object {
    /// A shared object or a cubin.
    pub bytes: Bytes,
    /// What it takes of a multiprocessor; `None` on CPUs.
    pub resources: Option<Resources>,
}

/// What starts of tensors are multiples of where kernels are timed: as much as any device wants.
const ALIGN: usize = 256;

/// The arguments of a kernel that is timed alone, what it reads in a constant and what it writes in working memory; and
/// the bytes of both.
fn buffers(program: &ThreadProgram) -> (Vec<BufferRef>, usize, usize) {
    let (mut read, mut written) = (0usize, 0usize);
    let arguments = program.buffers.iter().filter(|buffer| buffer.scope.is_global());
    let buffers = arguments.map(|buffer| {
        let len_bytes = buffer.bytes();
        let (base, access, end) = match buffer.scope {
            Scope::Output => (Base::Arena, Access::Write, &mut written),
            _ => (Base::Constant(0), Access::Read, &mut read),
        };
        let offset_bytes = *end;
        *end += len_bytes.next_multiple_of(ALIGN);
        BufferRef { base, offset_bytes, len_bytes, access }
    });
    (buffers.collect(), read, written)
}

/// Bytes that are floats of either sign below 1, whatever their type.
pub fn noise(len_bytes: usize) -> Vec<u8> {
    const BLOCK: usize = 1 << 20;
    let mut rng = Rng::new(0);
    let mut half = || {
        let [low, high, ..] = rng.bits().to_le_bytes();
        [low, (high & 0x80) | (0x30 + high % 12)]
    };
    let block: Vec<u8> = (0..BLOCK.min(len_bytes).div_ceil(2)).flat_map(|_| half()).collect();
    let mut bytes = block.repeat(len_bytes.div_ceil(BLOCK));
    bytes.truncate(len_bytes);
    bytes
}
