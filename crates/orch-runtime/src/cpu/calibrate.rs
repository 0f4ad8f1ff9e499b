//! Measuring what the machine can do at best: the ceilings of the cost model.
//!
//! The kernels are in `calibrate.c`. Each figure is the best of several short runs, because interference only makes
//! them worse; those of one thread are by its own clock, which stands still while others run.

use super::aligned::AlignedBuffer;
use super::cache::{BuildError, CompileCache};
use super::executable::{CpuExecutable, CpuProgram};
use super::kernel::CpuKernel;
use super::launch::{Action, CpuStep, Launch, Program};
use super::library::{Library, LoadError};
use super::pool::{Chunking, Pool};
use crate::kernels::Source;
use crate::program::{Base, BufferRef};
use crate::view::TensorViewMut;
use crate::{Feature, Machine, os};
use orch_ir::DType;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Measured ceilings. "core" is one thread alone, "all" is all threads of the pool together.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Threads of the pool.
    pub threads: usize,
    /// f32 multiply-adds, counted as two operations.
    pub fma_gflops_core: f64,
    /// The same on all threads.
    pub fma_gflops_all: f64,
    /// bf16 matrix operations on AMX tiles; `None` without AMX.
    pub amx_gflops_core: Option<f64>,
    /// Exponentials, in 10^9 elements per second, from and to L1.
    pub exp_gelems_core: f64,
    /// Reading from L1, in 10^9 bytes per second.
    pub l1_read_gbs_core: f64,
    /// Reading from L2.
    pub l2_read_gbs_core: f64,
    /// Reading from L3, with a quarter of it; from memory if there is none.
    pub l3_read_gbs_core: f64,
    /// Reading from memory, or from a last-level cache too large to get past.
    pub memory_read_gbs_core: f64,
    /// The same on all threads.
    pub memory_read_gbs_all: f64,
    /// Writing to memory on all threads.
    pub memory_write_gbs_all: f64,
    /// One step on the calling thread, without its work.
    pub launch_inline_us: f64,
    /// One step shared among all threads, without its work.
    pub launch_parallel_us: f64,
}

/// Bytes that a task of the block kernels touches.
const BLOCK_BYTES: usize = 4096;
/// Multiply-adds per task of `peak_fma`, in vectors.
const FMA_VECTORS: usize = 12 * 1000;
/// Floating-point operations per task of `peak_amx`.
const AMX_FLOPS: usize = 1000 * 4 * (2 * 16 * 16 * 32);
/// Time for one figure.
const FIGURE_TIME: Duration = Duration::from_millis(60);
/// Time of one run of a figure.
const RUN_TIME: Duration = Duration::from_millis(3);
/// Memory that caches hardly keep a part of, within reason: a multiple of L3, between these. What is read again and again stays in L3 in
/// part, whatever its size: of three times an L3 of 32 MiB a third, so that memory seems to be half as fast again.
const L3_MULTIPLE: usize = 8;
const MEMORY_BYTES: [usize; 2] = [96 << 20, 256 << 20];

/// Measures this machine with the threads of `pool`; takes about a second, and a compilation the first time.
///
/// # Errors
/// If the kernels cannot be compiled or loaded.
pub fn calibrate(
    cache: &CompileCache,
    machine: &Machine,
    pool: &Arc<Pool>,
) -> Result<Calibration, BuildError> {
    let library = compile(cache, machine.vector_bytes(), false)?;
    let bench = Bench { library, pool };
    let lanes = machine.vector_bytes() / size_of::<f32>();
    let fma_gflops = (2 * FMA_VECTORS * lanes) as f64 / 1e9;
    let block_gelems = (BLOCK_BYTES / size_of::<f32>()) as f64 / 1e9;
    let block_gb = BLOCK_BYTES as f64 / 1e9;
    let [least_bytes, most_bytes] = MEMORY_BYTES;
    let memory_bytes = (L3_MULTIPLE * machine.caches.l3_bytes).clamp(least_bytes, most_bytes);
    // Other cores and machines have their share of L3.
    let l3_set_bytes = (machine.caches.l3_bytes / 4).max(2 * machine.caches.l2_bytes).min(memory_bytes);
    let mut memory = AlignedBuffer::zeroed(memory_bytes);
    let mut rate = |name, set_bytes, sharing| bench.tasks_per_second(name, &mut memory, set_bytes, sharing);
    let launch_inline_us = bench.step_us("nothing", 1, Chunking::Inline)?;
    Ok(Calibration {
        threads: pool.threads(),
        fma_gflops_core: fma_gflops * rate("peak_fma", BLOCK_BYTES, Sharing::Core)?,
        fma_gflops_all: fma_gflops * rate("peak_fma", BLOCK_BYTES, Sharing::All)?,
        amx_gflops_core: amx_gflops(cache, machine, pool),
        exp_gelems_core: block_gelems * rate("exp_block", BLOCK_BYTES, Sharing::Core)?,
        l1_read_gbs_core: block_gb * rate("read_blocks", machine.caches.l1d_bytes / 2, Sharing::Core)?,
        l2_read_gbs_core: block_gb * rate("read_blocks", machine.caches.l2_bytes / 2, Sharing::Core)?,
        l3_read_gbs_core: block_gb * rate("read_blocks", l3_set_bytes, Sharing::Core)?,
        memory_read_gbs_core: block_gb * rate("read_blocks", memory_bytes, Sharing::Core)?,
        memory_read_gbs_all: block_gb * rate("read_blocks", memory_bytes, Sharing::All)?,
        memory_write_gbs_all: block_gb * rate("write_blocks", memory_bytes, Sharing::All)?,
        launch_inline_us,
        launch_parallel_us: bench.launch_parallel_us()?.max(launch_inline_us),
    })
}

/// AMX's peak, if the processor has it, the system grants it and the compiler knows it.
fn amx_gflops(cache: &CompileCache, machine: &Machine, pool: &Arc<Pool>) -> Option<f64> {
    if !machine.has(Feature::AmxBf16) {
        return None;
    }
    let bench = Bench { library: compile(cache, machine.vector_bytes(), true).ok()?, pool };
    let mut tile = AlignedBuffer::zeroed(BLOCK_BYTES);
    let rate = bench.tasks_per_second("peak_amx", &mut tile, BLOCK_BYTES, Sharing::Core).ok()?;
    Some(AMX_FLOPS as f64 / 1e9 * rate)
}

fn compile(cache: &CompileCache, vector_bytes: usize, amx: bool) -> Result<Library, BuildError> {
    let amx = if amx { "#define AMX\n" } else { "" };
    let text = format!("#define VECTOR_BYTES {vector_bytes}\n{amx}{}", include_str!("calibrate.c"));
    let source = Source { name: "calibrate".into(), text, symbols: vec!["nothing".to_owned()] };
    cache.load(&source, &AtomicBool::new(false))
}

/// Which threads work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Core,
    All,
}

/// Time of the work: of the thread itself where it works alone, so that other processes do not count; of the wall
/// where several do.
enum Stopwatch {
    Thread(Duration),
    Wall(Instant),
}

impl Stopwatch {
    fn start(sharing: Sharing) -> Self {
        match (sharing, os::thread_time()) {
            (Sharing::Core, Some(time)) => Self::Thread(time),
            _ => Self::Wall(Instant::now()),
        }
    }

    fn elapsed(&self) -> Duration {
        match self {
            Self::Thread(start) => os::thread_time().unwrap_or_default().saturating_sub(*start),
            Self::Wall(start) => start.elapsed(),
        }
    }
}

struct Bench<'a> {
    library: Library,
    pool: &'a Arc<Pool>,
}

impl Bench<'_> {
    /// How many tasks of a kernel are done per second at best, going through the first `set_bytes` of `memory`.
    fn tasks_per_second(
        &self,
        name: &str,
        memory: &mut AlignedBuffer,
        set_bytes: usize,
        sharing: Sharing,
    ) -> Result<f64, LoadError> {
        let blocks = (set_bytes / BLOCK_BYTES).max(1);
        let mut tasks = blocks;
        let mut best = 0.0f64;
        let start = Instant::now();
        // The first runs are too short to count: they find how many tasks fill `RUN_TIME`.
        while start.elapsed() < FIGURE_TIME {
            let mut executable = self.executable(name, memory.len(), blocks, tasks, sharing)?;
            let shape = [memory.len()];
            let output = TensorViewMut::new(DType::U8, &shape, memory.as_mut_slice());
            let output = output.expect("the memory is as long as it is");
            let run_start = Stopwatch::start(sharing);
            executable
                .run(&[], &mut [output])
                .expect("the program has no input, one output of this size and no host routine");
            let elapsed = run_start.elapsed();
            if elapsed < RUN_TIME / 2 {
                let factor = RUN_TIME.as_secs_f64() / elapsed.as_secs_f64().max(1e-6);
                tasks = (tasks as f64 * factor.clamp(2.0, 1e3)).min(1e9) as usize;
            } else {
                best = best.max(tasks as f64 / elapsed.as_secs_f64());
            }
        }
        Ok(best)
    }

    fn executable(
        &self,
        name: &str,
        memory_bytes: usize,
        blocks: usize,
        tasks: usize,
        sharing: Sharing,
    ) -> Result<CpuExecutable, LoadError> {
        let kernel = self.library.kernel(name, tasks as i64, BLOCK_BYTES)?;
        let chunking = if sharing == Sharing::All { Chunking::Dynamic } else { Chunking::Inline };
        let memory = BufferRef::write(Base::Output(0), 0, memory_bytes);
        let constants = vec![AlignedBuffer::copy_of(&(blocks as i64).to_le_bytes()).into()];
        let buffers = vec![memory, BufferRef::read(Base::Constant(0), 0, size_of::<i64>())];
        let steps = vec![step(kernel, buffers, chunking)];
        let program = Program { constants, output_bytes: vec![memory_bytes], steps, ..Program::default() };
        let program = CpuProgram::new(program, Arc::clone(self.pool));
        Ok(program.expect("both ranges are whole buffers").executable())
    }

    /// What sharing a step among all threads costs besides its work.
    fn launch_parallel_us(&self) -> Result<f64, LoadError> {
        /// About 5 us of work: with less, the calling thread would do the others' part before they notice.
        const TASKS: i64 = 3;
        let alone_us = self.step_us("peak_fma", TASKS, Chunking::Inline)?;
        let shared_us = self.step_us("peak_fma", TASKS * self.pool.threads() as i64, Chunking::Static)?;
        Ok(shared_us - alone_us)
    }

    /// Time of one among many equal steps.
    fn step_us(&self, name: &str, tasks: i64, chunking: Chunking) -> Result<f64, LoadError> {
        const STEPS: usize = 50;
        let kernel = self.library.kernel(name, tasks, BLOCK_BYTES)?;
        let buffers = vec![BufferRef::read(Base::Arena, 0, BLOCK_BYTES)];
        let steps = (0..STEPS).map(|_| step(kernel.clone(), buffers.clone(), chunking)).collect();
        let program = Program { arena_bytes: BLOCK_BYTES, steps, ..Program::default() };
        let program = CpuProgram::new(program, Arc::clone(self.pool));
        let mut executable = program.expect("the range is the whole arena").executable();
        let mut best = Duration::MAX;
        let start = Instant::now();
        while start.elapsed() < FIGURE_TIME {
            let sharing = if chunking == Chunking::Inline { Sharing::Core } else { Sharing::All };
            let run_start = Stopwatch::start(sharing);
            executable.run(&[], &mut []).expect("the program has no tensors and no host routine");
            best = best.min(run_start.elapsed());
        }
        Ok(best.as_secs_f64() * 1e6 / STEPS as f64)
    }
}

fn step(kernel: CpuKernel, buffers: Vec<BufferRef>, chunking: Chunking) -> CpuStep {
    CpuStep {
        name: "calibrate".into(),
        action: Action::Launch(Launch { kernel, buffers, chunking, phases: 1 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Compiler, CompilerOptions, LoopCall, PoolOptions};
    use orch_files::Scratch;

    fn cache(dir: &Scratch, machine: &Machine) -> CompileCache {
        let compiler = Compiler::find(&CompilerOptions::default()).unwrap();
        CompileCache::open(dir.path(), compiler, machine).unwrap()
    }

    #[test]
    fn kernels_exist_for_every_vector_width() {
        let dir = Scratch::new().unwrap();
        let cache = cache(&dir, &Machine::detect());
        for vector_bytes in [16, 32, 64] {
            let library = compile(&cache, vector_bytes, false).unwrap();
            // e^x of a block of ones, rounded as the polynomial rounds.
            let kernel = library.kernel("exp_block", 1, BLOCK_BYTES).unwrap();
            let input: Vec<u8> = [1.0f32; BLOCK_BYTES / 4].into_iter().flat_map(f32::to_le_bytes).collect();
            let input = AlignedBuffer::copy_of(&input);
            let mut scratch = AlignedBuffer::zeroed(BLOCK_BYTES);
            let pointers = [input.as_ptr().cast::<std::ffi::c_void>()];
            // SAFETY: the kernel has one tensor, of one block, and needs one block of scratch memory.
            unsafe { kernel.call(pointers.as_ptr(), &LoopCall::whole(1), scratch.as_ptr()) };
            for chunk in scratch.as_mut_slice().chunks_exact(4) {
                let value = f32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
                assert!((value - std::f32::consts::E).abs() < 1e-4, "{value}");
            }
        }
    }

    #[test]
    fn figures_are_physical() {
        let dir = Scratch::new().unwrap();
        let machine = Machine::detect();
        let cache = cache(&dir, &machine);
        let pool = Arc::new(Pool::new(PoolOptions { threads: 2, pin: false }));
        let figures = calibrate(&cache, &machine, &pool).unwrap();
        eprintln!("{figures:#?}");
        assert_eq!(figures.threads, 2);
        // Wide bounds: tests share their machine with others.
        assert!((0.1..10_000.0).contains(&figures.fma_gflops_core));
        assert!((0.1..1_000.0).contains(&figures.memory_read_gbs_core));
        assert!((0.01..1_000.0).contains(&figures.memory_write_gbs_all));
        assert!((0.001..1_000.0).contains(&figures.exp_gelems_core));
        assert!(figures.l1_read_gbs_core > figures.memory_read_gbs_core / 2.0);
        assert!((0.001..10_000.0).contains(&figures.launch_inline_us));
        assert!((0.001..10_000.0).contains(&figures.launch_parallel_us));
        assert!(figures.amx_gflops_core.is_none_or(|amx| amx > 1.0));
    }
}
