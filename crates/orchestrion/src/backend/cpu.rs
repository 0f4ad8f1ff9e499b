//! Kernels in C for a CPU.

use super::{ALIGN, Backend, GIGA_TO_MICRO, Object, Work, buffers, mugraph_schedule, noise};
use crate::compile::internal;
use crate::executable::{check_fits, chunking};
use crate::facts::{facts, flops, touched};
use crate::implement::KernelDesign;
use crate::manifest::Device;
use crate::{Error, Options, Precision, compile, parallel, speeds};
use bytes::Bytes;
use orch_compute::{BlockProgram, Storage, layouts};
use orch_ir::{DType, PrimGraph};
use orch_mugraph::lower::{self, Request};
use orch_mugraph::search::SearchOptions;
use orch_mugraph::search::cost::SearchDevice;
use orch_runtime::cpu::{
    Action, CompileCache, CompileError, Compiler, CompilerOptions, Executable, Launch, Library, Pool,
    PoolOptions, Program, Source, Step, Tuning,
};
use orch_runtime::program::{Base, BufferRef};
use orch_template::{self, Design};
use orch_thread::count::count;
use orch_thread::{CpuTarget, ThreadProgram};
use orch_tune::MachineModel;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A CPU, its figures and a C compiler.
pub struct Cpu {
    target: CpuTarget,
    machine: orch_runtime::Machine,
    compiler: Compiler,
    figures: MachineModel,
    precision: Precision,
    is_here: bool,
}

/// How often kernels are timed: at least, and where they are short.
const RUNS: [usize; 2] = [9, 101];
/// How long they are timed, all together, if they are short.
const TIMED: Duration = Duration::from_millis(60);

impl Cpu {
    /// Looks for a compiler, and for the figures of the machine.
    pub fn new(target: CpuTarget, machine: orch_runtime::Machine, options: &Options) -> Result<Self, Error> {
        check_precision(&target, options.precision)?;
        let is_here = matches!(options.target.as_deref(), None | Some("cpu"));
        let compiler = find_compiler(&target, options, is_here)?;
        let figures = machine_model(&machine, &compiler, options, is_here);
        Ok(Self { target, machine, compiler, figures, precision: options.precision, is_here })
    }
}

impl Backend for Cpu {
    fn device(&self) -> Device {
        Device::Cpu
    }

    fn target(&self) -> String {
        self.target.name.to_owned()
    }

    fn machine(&self) -> String {
        format!("{}; {} threads", self.machine.fingerprint(), self.figures.threads)
    }

    fn compiler(&self) -> Result<String, Error> {
        Ok(self.compiler.version().to_owned())
    }

    fn figures(&self) -> String {
        format!("{:?}", self.figures)
    }

    fn prepared(&self, graph: PrimGraph) -> PrimGraph {
        match self.precision {
            Precision::Bf16 => orch_rewrite::narrow_contractions(&graph, DType::BF16).0,
            Precision::F32 | Precision::Tf32 | Precision::F16 => graph,
        }
    }

    fn storage(&self, graph: &PrimGraph) -> Storage {
        Storage::as_stated(graph, layouts::assign(graph))
    }

    fn time_us(&self, block: &BlockProgram) -> Option<f64> {
        Some(facts(block, &self.target).estimate(&self.figures).time_us)
    }

    fn work(&self, block: &BlockProgram) -> Work {
        let facts = facts(block, &self.target);
        Work { flops: flops(&facts), roofline_us: touched(block, &facts).lower_bound_us(&self.figures) }
    }

    /// Kernels by themselves: what is split for the sake of parallelism only goes through memory for little.
    fn search_options(&self) -> SearchOptions {
        let figures = &self.figures;
        let threads = f64::from(figures.threads);
        let l2_bytes = usize::try_from(figures.l2_bytes).unwrap_or(usize::MAX);
        let machine = SearchDevice {
            cores: figures.threads as usize,
            tile_bytes: l2_bytes / 2,
            memory_bytes_per_us: GIGA_TO_MICRO * figures.memory_gbs_all,
            cache_bytes_per_us: GIGA_TO_MICRO * figures.l2_gbs_core * threads,
            cache_bytes: l2_bytes * figures.threads as usize,
            flops_per_us: GIGA_TO_MICRO * figures.fma_gflops_all,
            launch_us: figures.launch_parallel_us,
            unoverlapped: 0.0,
            iteration_us: 0.0,
            burst_bytes: 256,
            sector_bytes: 64,
            element_bytes: size_of::<f32>(),
            partial_bytes: size_of::<f32>(),
            // Fewer rows wait for right factors from the second-level cache.
            mma_m: 8,
            mma_n: self.target.lanes(size_of::<f32>()),
            mma_k: 8,
            pack_flops: 8.0,
            unpacked_rows: 16,
            waiting: None,
            skinny_rows: 0,
            has_tma: false,
            max_cluster: 1,
            cores_in_clusters: 0,
            exchange_bytes_per_us: f64::INFINITY,
            accumulator_bytes: 0,
            // Operations of a tile are done several in a pass, which the figure is not of.
            scalar_flops: 0.5 * figures.fma_gflops_core / figures.cheap_gops_core,
            special_flops: figures.fma_gflops_core / figures.transcendental_gops_core,
            saturating_share: (figures.memory_gbs_all / figures.memory_gbs_core / threads).min(1.0),
        };
        SearchOptions { machine, kernels: 1, ..SearchOptions::default() }
    }

    fn designs(&self, block: &BlockProgram, _limit: usize) -> Vec<Design> {
        orch_template::design(block, &self.target).into_iter().collect()
    }

    fn design_mugraph(&self, request: &Request<'_>, _limit: usize) -> Vec<Design> {
        let kernel = lower::cpu::lower(request, &self.target);
        let design = |kernel| Design { kernel, schedule: mugraph_schedule(request) };
        kernel.ok().map(design).into_iter().collect()
    }

    fn instructions_us(&self, program: &ThreadProgram) -> f64 {
        /// A division, and an iteration of a loop, in simple instructions.
        const DIVISION: f64 = 8.0;
        const ITERATION: f64 = 0.5;
        /// Accesses run beside arithmetic, of which there is as much at least: attention of 16 to 512 rows by 4096 keys takes
        /// 0.95 to 1.02 of what this comes to, on a Zen 5.
        const ACCESS: f64 = 0.35;
        let counts = count(program);
        let lanes = self.target.lanes(size_of::<f32>()) as f64;
        let simple_us = 2.0 * lanes / (GIGA_TO_MICRO * self.figures.fma_gflops_core);
        let function_us = lanes / (GIGA_TO_MICRO * self.figures.transcendental_gops_core);
        let simple = counts.simple
            + ACCESS * counts.accesses
            + DIVISION * counts.divisions
            + ITERATION * counts.iterations;
        let all_us = simple * simple_us + counts.functions * function_us;
        let threads = self.figures.threads as usize;
        let rounds = program.tasks.div_ceil(threads.max(1)) as f64;
        all_us * rounds / program.tasks.max(1) as f64
    }

    fn source(&self, program: &ThreadProgram) -> String {
        orch_codegen::c::emit(&[program], &self.target)
    }

    fn build(&self, sources: &[Source], options: &Options) -> Result<Vec<Object>, Error> {
        let compiler = self.compiler.clone();
        let cache = CompileCache::open(&options.cache_dir, compiler, &self.machine).map_err(compile_error)?;
        let progress = |at: orch_runtime::cpu::CompileProgress| options.progress.advance(at.done);
        let results = cache.compile_all(sources, parallel::jobs(options), &progress, &options.cancel);
        let object = |result: Result<std::path::PathBuf, CompileError>| {
            let path = result.map_err(compile_error)?;
            let bytes = std::fs::read(&path).map_err(|source| Error::File { path, source })?;
            Ok(Object { bytes: bytes.into(), resources: None })
        };
        results.into_iter().map(object).collect()
    }

    fn kept_bytes(&self) -> usize {
        self.machine.caches.l3_bytes
    }

    fn measures(&self) -> bool {
        self.is_here
    }

    fn times(&self, chains: &[Vec<KernelDesign>], options: &Options) -> Result<Vec<Option<f64>>, Error> {
        let kernels: Vec<KernelDesign> = chains.iter().flatten().cloned().collect();
        let sources = compile::sources(self, &kernels, options)?;
        let objects = self.build(&sources, options)?;
        let mut program = Program::default();
        let mut read = Read::default();
        for (kernel, object) in kernels.iter().zip(&objects) {
            let thread = &kernel.design.kernel.program;
            let library = Library::from_bytes(&kernel.name, &object.bytes).map_err(internal)?;
            let entry = library
                .kernel(&thread.name, thread.tasks as i64, thread.scratch_bytes())
                .map_err(internal)?;
            let (buffers, read_bytes, written_bytes) = buffers(thread);
            let buffers = read.placed(kernel, buffers, read_bytes);
            program.arena_bytes = written_bytes.max(program.arena_bytes);
            let launch = Launch { kernel: entry, buffers, chunking: chunking(kernel.cost_us) };
            program.steps.push(Step { name: kernel.name.clone(), action: Action::Launch(launch) });
        }
        check_fits(read.bytes().saturating_add(program.arena_bytes))?;
        program.constants = read.constants();
        let threads = self.figures.threads as usize;
        let pool = Arc::new(Pool::new(PoolOptions { threads, pin: false }));
        let mut executable = Executable::new(program, pool).map_err(internal)?;
        executable.run(&[], &mut []).map_err(internal)?;
        let start = Instant::now();
        executable.run(&[], &mut []).map_err(internal)?;
        let fitting = TIMED.as_nanos() / start.elapsed().as_nanos().max(1);
        let runs = usize::try_from(fitting).unwrap_or(usize::MAX).clamp(RUNS[0], RUNS[1]);
        let profile = executable.profile(&[], &mut [], runs).map_err(internal)?;
        let mut times = profile.into_iter().map(|step| step.median_us);
        Ok(chains.iter().map(|chain| Some(times.by_ref().take(chain.len()).sum())).collect())
    }
}

/// What kernels that are timed read. Kernels that are cold have memory of their own, as in a model, and others share it. Floats
/// are written before: pages of zeros that never were are all one page, which is in a cache.
#[derive(Default)]
struct Read {
    /// Bytes of floats that are shared.
    shared: usize,
    /// Bytes of floats that are not.
    own: usize,
    /// Bytes of all else, of which only zeros are known to be valid.
    others: usize,
}

/// Bytes that cold kernels read apart from each other, all together at most.
const MOST_OWN_BYTES: usize = 1 << 30;

impl Read {
    /// The same arguments in memory of this kind; shared floats are those of constant 0, own ones of 1, all else of 2.
    fn placed(
        &mut self,
        kernel: &KernelDesign,
        mut buffers: Vec<BufferRef>,
        read_bytes: usize,
    ) -> Vec<BufferRef> {
        let is_own = kernel.is_cold && self.own + read_bytes <= MOST_OWN_BYTES;
        let first = self.own;
        for (buffer, argument) in buffers.iter_mut().zip(&kernel.design.kernel.program.buffers) {
            if buffer.base != Base::Constant(0) {
                continue;
            }
            let end = buffer.offset_bytes + buffer.len_bytes;
            if !argument.dtype.is_float() {
                buffer.base = Base::Constant(2);
                self.others = self.others.max(end);
            } else if is_own {
                buffer.base = Base::Constant(1);
                buffer.offset_bytes += first;
                self.own = self.own.max(first + end.next_multiple_of(ALIGN));
            } else {
                self.shared = self.shared.max(end);
            }
        }
        buffers
    }

    fn bytes(&self) -> usize {
        self.shared + self.own + self.others
    }

    fn constants(&self) -> Vec<Bytes> {
        [noise(self.shared), noise(self.own), vec![0; self.others]].map(Bytes::from).into()
    }
}

/// Refuses a precision for which the target has no instructions: it would cost digits and gain nothing.
fn check_precision(target: &CpuTarget, precision: Precision) -> Result<(), Error> {
    let advice = match precision {
        Precision::F32 => return Ok(()),
        Precision::Bf16 if target.has_bf16() => return Ok(()),
        Precision::Bf16 => {
            let able: Vec<&str> = (orch_thread::target::CPU_TARGETS.iter())
                .filter(|target| target.has_bf16())
                .map(|target| target.name)
                .collect();
            format!(
                "does not multiply bf16 (AVX512-BF16 or AMX); use precision f32, or compile for another machine with \
                 the target {}",
                able.join(" or ")
            )
        }
        Precision::Tf32 | Precision::F16 => {
            "is a CPU, and only GPUs compute in it; use precision f32, or compile for a GPU with the target cuda"
                .to_owned()
        }
    };
    Err(Error::Environment(format!(
        "precision {} was asked for, but the target `{}` {advice}",
        precision.name(),
        target.name
    )))
}

/// The C compiler for the target.
fn find_compiler(target: &CpuTarget, options: &Options, is_here: bool) -> Result<Compiler, Error> {
    let settings = CompilerOptions {
        program: options.c_compiler.clone(),
        tuning: if is_here { Tuning::Native } else { Tuning::Arch(target.march.to_owned()) },
        memory: Some(options.cache_dir.clone()),
        ..CompilerOptions::default()
    };
    Compiler::find(&settings).map_err(compile_error)
}

/// The figures of this machine, measured the first time; a guess where they cannot be, or for another machine.
fn machine_model(
    machine: &orch_runtime::Machine,
    compiler: &Compiler,
    options: &Options,
    is_here: bool,
) -> MachineModel {
    let measured = (options.calibrate && is_here)
        .then(|| speeds::speeds(options, machine, compiler.clone(), false).ok())
        .flatten();
    measured.unwrap_or_else(|| MachineModel::conservative(machine, parallel::cpus() as u32))
}

fn compile_error(error: CompileError) -> Error {
    match error {
        CompileError::Cancelled => Error::Interrupted,
        CompileError::Rejected { .. } => internal(error),
        _ => Error::Environment(error.to_string()),
    }
}
