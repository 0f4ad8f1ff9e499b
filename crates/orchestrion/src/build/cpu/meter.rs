//! Times of kernels on this machine's CPU.

use super::device::Cpu;
use crate::build::sources::sources;
use crate::build::timed::{ALIGN, TimedArguments};
use crate::plan::backend::{Meter, Toolchain};
use crate::plan::kernel::KernelDesign;
use crate::plan::sharing::chunking;
use crate::run::launch::{check_fits, noise};
use crate::{Error, Options};
use bytes::Bytes;
use orch_runtime::cpu::{Action, CpuProgram, CpuStep, Launch, Library, Pool, PoolOptions, Program};
use orch_runtime::program::{Base, BufferRef};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often kernels are timed: at least, and where they are short.
const RUNS: [usize; 2] = [9, 101];
/// How long they are timed, all together, if they are short.
const TIMED: Duration = Duration::from_millis(60);

impl Meter for Cpu {
    fn times(&self, chains: &[Vec<KernelDesign>], options: &Options) -> Result<Vec<Option<f64>>, Error> {
        let kernels: Vec<KernelDesign> = chains.iter().flatten().cloned().collect();
        let sources = sources(self, &kernels, options)?;
        let objects = self.build(&sources, options)?;
        let mut program = Program::default();
        let mut read = TimedInputs::default();
        for (kernel, object) in kernels.iter().zip(&objects) {
            let thread = &kernel.design.kernel.program;
            let library = Library::from_bytes(&kernel.name, &object.bytes).map_err(Error::internal)?;
            let entry = library
                .kernel(&thread.name, thread.tasks as i64, thread.scratch_bytes())
                .map_err(Error::internal)?;
            let TimedArguments { buffers, read_bytes, written_bytes } = TimedArguments::of(thread);
            let buffers = read.placed(kernel, buffers, read_bytes);
            program.arena_bytes = written_bytes.max(program.arena_bytes);
            let chunking = chunking(kernel.work.alone_us, thread.phases);
            let launch = Launch { kernel: entry, buffers, chunking, phases: thread.phases as i64 };
            program.steps.push(CpuStep { name: kernel.name.clone(), action: Action::Launch(launch) });
        }
        check_fits(read.bytes().saturating_add(program.arena_bytes))?;
        program.constants = read.constants();
        let threads = self.figures.threads as usize;
        let pool = Arc::new(Pool::new(PoolOptions { threads, pin: false }));
        let mut executable = CpuProgram::new(program, pool).map_err(Error::internal)?.executable();
        executable.run(&[], &mut []).map_err(Error::internal)?;
        let start = Instant::now();
        executable.run(&[], &mut []).map_err(Error::internal)?;
        let fitting = TIMED.as_nanos() / start.elapsed().as_nanos().max(1);
        let runs = usize::try_from(fitting).unwrap_or(usize::MAX).clamp(RUNS[0], RUNS[1]);
        let profile = executable.profile(&[], &mut [], runs).map_err(Error::internal)?;
        let mut times = profile.into_iter().map(|step| step.median_us);
        Ok(chains.iter().map(|chain| Some(times.by_ref().take(chain.len()).sum())).collect())
    }

    fn library(&self, _library: crate::Library) -> Result<String, String> {
        Err("libraries are called on GPUs only".to_owned())
    }
}

/// Inputs of kernels that are timed. Cold kernels have memory of their own, as in a model, and others share it. Floats are written
/// before: the system maps all pages that were never written to one page of zeros, which stays in the cache.
#[derive(Default)]
struct TimedInputs {
    /// Bytes of floats that are shared.
    shared: usize,
    /// Bytes of floats that are not.
    own: usize,
    /// Bytes of all else, of which only zeros are known to be valid.
    others: usize,
}

/// Bytes that cold kernels read apart from each other, all together at most.
const MOST_OWN_BYTES: usize = 1 << 30;

impl TimedInputs {
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
