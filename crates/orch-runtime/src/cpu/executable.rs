//! Running a program.
//!
//! A [`CpuProgram`] is what all runs share: code, constants, threads. A [`CpuExecutable`] is what a run needs for itself: working
//! memory, and the pointer table of every launch, filled but for the caller's tensors. A run enters those and walks the steps; it
//! allocates nothing, except for host routines and for tensors of the caller that are not row-major or not 8-byte aligned.

use super::aligned::{ALIGN_BYTES, AlignedBuffer};
use super::joined::{self, JoinedLaunches};
use super::launch::{Action, Launch, Program, scratch_bytes};
use super::memory::{Memory, PointerTable, Scratch};
use super::place;
use super::pool::{Chunking, LoopCall, Pool};
use crate::program::{
    Base, BufferRef, HostStep, ProgramError, RunError, StepProfile, check_counts, check_sizes,
};
use crate::view::{TensorView, TensorViewMut};
use bytes::Bytes;
use std::fmt;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A program whose constants are in place. Executables of it may run at the same time.
pub struct CpuProgram {
    program: Arc<Program>,
    joined: Arc<[JoinedLaunches]>,
    pool: Arc<Pool>,
}

/// A program with memory to run in.
pub struct CpuExecutable {
    program: Arc<Program>,
    joined: Arc<[JoinedLaunches]>,
    pool: Arc<Pool>,
    memory: Memory,
    scratch: Scratch,
    pointers: PointerTable,
}

// SAFETY: the raw pointers point into memory that the executable owns, or shares and only reads (constants); those to
// the caller's tensors are used during `run` only. Everything else is `Send`.
unsafe impl Send for CpuExecutable {}

impl fmt::Debug for CpuProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuProgram").field("program", &self.program).finish_non_exhaustive()
    }
}

impl CpuProgram {
    /// Takes a program that runs on the threads of `pool`.
    ///
    /// # Errors
    /// If the program breaks its rules.
    pub fn new(mut program: Program, pool: Arc<Pool>) -> Result<Self, ProgramError> {
        program.check()?;
        if pool.nodes() > 1 {
            program.constants = place::by_threads(&pool, &program.constants);
        }
        for constant in &mut program.constants {
            if !constant.as_ptr().addr().is_multiple_of(ALIGN_BYTES) {
                *constant = AlignedBuffer::copy_of(constant).into();
            }
        }
        Ok(Self { program: Arc::new(program), joined: Arc::new([]), pool })
    }

    /// The same, where some consecutive launches are one loop each, in their order in the program.
    ///
    /// # Errors
    /// If the launches depend on each other, or their pieces are not their tasks.
    pub fn with_joined(self, joined: Vec<JoinedLaunches>) -> Result<Self, ProgramError> {
        let violations = joined::check(&self.program, &joined);
        if violations.is_empty() {
            Ok(Self { joined: joined.into(), ..self })
        } else {
            Err(ProgramError { violations })
        }
    }

    /// An executable with working memory of its own.
    pub fn executable(&self) -> CpuExecutable {
        let memory = Memory::new(&self.program);
        let scratch = Scratch::new(scratch_bytes(&self.program), self.pool.threads());
        let pointers = PointerTable::new(&self.program, &memory);
        let (program, pool) = (Arc::clone(&self.program), Arc::clone(&self.pool));
        CpuExecutable { program, joined: Arc::clone(&self.joined), pool, memory, scratch, pointers }
    }
}

/// What several threads use while kernels run.
#[derive(Clone, Copy)]
struct KernelMemory<'a> {
    pointers: &'a PointerTable,
    scratch: &'a Scratch,
}

// SAFETY: the pointer table is only read while kernels run, and the scratch memory is split by thread.
unsafe impl Sync for KernelMemory<'_> {}

impl KernelMemory<'_> {
    /// # Safety
    /// As [`CpuKernel::call`](super::kernel::CpuKernel), with a thread index that no other call is using; `launch` must be that of step
    /// `idx`.
    unsafe fn call(&self, launch: &Launch, idx: usize, call: &LoopCall) {
        // SAFETY: the caller's promise.
        unsafe { launch.kernel.call(self.pointers.of_step(idx), call, self.scratch.address(call.thread)) }
    }
}

impl CpuExecutable {
    /// Computes the outputs from the inputs.
    ///
    /// # Errors
    /// If the tensors do not fit the program, or a host routine fails.
    pub fn run(
        &mut self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<(), RunError> {
        let joined = Arc::clone(&self.joined);
        self.run_observed(inputs.iter().map(Some), outputs, &joined, &mut |_| ())
    }

    /// The same, where each input that is `None` has the memory of the output that updates it, in which its value is.
    ///
    /// # Errors
    /// If no output updates such an input; otherwise as [`run`](Self::run).
    pub fn run_in_place(
        &mut self,
        inputs: &[Option<TensorView<'_>>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<(), RunError> {
        let joined = Arc::clone(&self.joined);
        self.run_observed(inputs.iter().map(Option::as_ref), outputs, &joined, &mut |_| ())
    }

    /// Runs `runs` times (at least once), each step by itself, and gives the median time of each step, in order.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn profile(
        &mut self,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
        runs: usize,
    ) -> Result<Vec<StepProfile>, RunError> {
        let mut samples: Vec<Vec<Duration>> = vec![Vec::with_capacity(runs); self.program.steps.len()];
        for _ in 0..runs.max(1) {
            // The first step's time includes the entry of the caller's tensors.
            let mut last = Instant::now();
            self.run_observed(inputs.iter().map(Some), outputs, &[], &mut |step| {
                let now = Instant::now();
                samples[step].push(now - last);
                last = now;
            })?;
        }
        let profile = self.program.steps.iter().zip(samples).map(|(step, mut times)| {
            times.sort_unstable();
            StepProfile { name: step.name.clone(), median_us: times[times.len() / 2].as_secs_f64() * 1e6 }
        });
        Ok(profile.collect())
    }

    /// Runs, with these launches joined, and tells `after_step` the index of each other step when it has ended.
    fn run_observed<'a>(
        &mut self,
        inputs: impl ExactSizeIterator<Item = Option<&'a TensorView<'a>>> + Clone,
        outputs: &mut [TensorViewMut<'_>],
        joined: &[JoinedLaunches],
        after_step: &mut dyn FnMut(usize),
    ) -> Result<(), RunError> {
        let Program { input_bytes, output_bytes, updates, .. } = &*self.program;
        let sizes = inputs.clone().zip(input_bytes);
        check_counts("input", input_bytes.len(), inputs.len())?;
        for (index, (input, &expected)) in sizes.enumerate() {
            let what = "input";
            match input.map(TensorView::len_bytes) {
                Some(given) if given != expected => {
                    return Err(RunError::Size { what, index, expected, given });
                }
                None if !updates.iter().any(|update| update.input == index) => {
                    return Err(RunError::NotUpdated { index });
                }
                Some(_) | None => {}
            }
        }
        check_sizes("output", output_bytes, outputs.iter().map(TensorViewMut::len_bytes))?;
        let given = self.memory.inputs.iter_mut().zip(inputs.clone());
        given.for_each(|(tensor, input)| input.into_iter().for_each(|input| tensor.set_input(input)));
        let outputs_in_memory = self.memory.outputs.iter_mut().zip(&mut *outputs);
        outputs_in_memory.for_each(|(tensor, output)| tensor.set_output(output));
        for (input, _) in inputs.enumerate().filter(|(_, input)| input.is_none()) {
            for update in updates.iter().filter(|update| update.input == input) {
                let output = &mut self.memory.outputs[update.output];
                output.set_updated(&mut outputs[update.output]);
                self.memory.inputs[input].set_same(output);
            }
        }
        self.pointers.patch(&self.memory);
        let awake = self.pool.keep_awake();
        // SAFETY: the program and what is joined are valid (checked in `CpuProgram`), and the tensors have the sizes that the program
        // states and stay borrowed until this function returns, outputs exclusively.
        let result = unsafe { self.run_steps(joined, after_step) };
        drop(awake);
        for (tensor, output) in self.memory.outputs.iter_mut().zip(outputs) {
            tensor.deliver(output);
            tensor.release();
        }
        self.memory.inputs.iter_mut().for_each(|tensor| tensor.release());
        result
    }

    /// # Safety
    /// Launches may be joined, with these pieces; otherwise as [`run_step`](Self::run_step).
    unsafe fn run_steps(
        &self,
        joined: &[JoinedLaunches],
        after_step: &mut dyn FnMut(usize),
    ) -> Result<(), RunError> {
        let mut joined = joined.iter().peekable();
        let mut step = 0;
        while step < self.program.steps.len() {
            if let Some(joined) = joined.next_if(|joined| joined.steps.start == step) {
                // SAFETY: the promise of this function.
                unsafe { self.run_joined(joined) };
                step = joined.steps.end;
            } else {
                // SAFETY: the promise of this function.
                unsafe { self.run_step(step)? };
                after_step(step);
                step += 1;
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`run_steps`](Self::run_steps).
    unsafe fn run_joined(&self, joined: &JoinedLaunches) {
        let (program, pool) = (&*self.program, &self.pool);
        let kernels = KernelMemory { pointers: &self.pointers, scratch: &self.scratch };
        pool.run(joined.pieces.len() as i64, Chunking::Each, &|call| {
            for (step, call) in joined.calls(call) {
                if let Action::Launch(launch) = &program.steps[step].action {
                    // SAFETY: ranges are valid by the promise of this function. Concurrent calls have disjoint tasks or are of launches
                    // that do not depend on each other. The pool uses each thread index, below the number of scratch parts, for one call
                    // at a time, and the task before is named only if that call was of the same launch.
                    unsafe { kernels.call(launch, step, &call) }
                }
            }
        });
    }

    /// # Safety
    /// The program must be valid, and the caller's tensors set to memory that has the sizes which the program states,
    /// and that no other code writes, or reads if it is an output's.
    unsafe fn run_step(&self, idx: usize) -> Result<(), RunError> {
        let step = &self.program.steps[idx];
        match &step.action {
            Action::Launch(launch) => {
                // SAFETY: the promise of this function.
                unsafe { self.launch(launch, idx) };
                Ok(())
            }
            Action::Copy { from, to } => {
                let (from_address, to_address) = (self.memory.address(from), self.memory.address(to));
                if from_address != to_address {
                    // SAFETY: both ranges lie inside their memory.
                    unsafe { from_address.copy_to(to_address, from.len_bytes) };
                }
                Ok(())
            }
            Action::Host(host) => {
                // SAFETY: the promise of this function.
                unsafe { self.run_host(host) }
                    .map_err(|reason| RunError::Host { step: step.name.clone(), reason })
            }
        }
    }

    /// # Safety
    /// `launch` must be that of step `idx`; otherwise as [`run_step`](Self::run_step).
    unsafe fn launch(&self, launch: &Launch, idx: usize) {
        let kernels = KernelMemory { pointers: &self.pointers, scratch: &self.scratch };
        let tasks = launch.kernel.tasks() / launch.phases;
        for phase in 0..launch.phases {
            let first = phase * tasks;
            self.pool.run(tasks, launch.chunking, &|call| {
                // Programs in phases keep nothing in scratch between work items.
                let task_before = if launch.phases > 1 { -1 } else { call.task_before };
                let own = first + call.tasks.start..first + call.tasks.end;
                let call = LoopCall { thread: call.thread, tasks: own, task_before };
                // SAFETY: ranges are valid by the promise of this function; concurrent calls have disjoint tasks of a phase, and the
                // pool uses each thread index, below the number of scratch parts, for one call at a time, and names the task before only if
                // no other launch used that part since.
                unsafe { kernels.call(launch, idx, &call) }
            });
        }
    }

    /// # Safety
    /// As [`run_step`](Self::run_step).
    unsafe fn run_host(&self, host: &HostStep) -> Result<(), String> {
        // SAFETY: the promise of this function; no kernel is running.
        let inputs = host.inputs.iter().map(|operand| unsafe { self.read(&operand.buffer) });
        for (result, operand) in host.call(inputs)?.iter().zip(&host.outputs) {
            let (buffer, bytes) = (&operand.buffer, result.bytes());
            // SAFETY: type and shape agree, so the result is as long as the range, which lies inside its memory.
            unsafe { self.memory.address(buffer).copy_from(bytes.as_ptr(), buffer.len_bytes) };
        }
        Ok(())
    }

    /// The content of a range: shared if it is a constant's, otherwise copied.
    ///
    /// # Safety
    /// As [`run_step`](Self::run_step), while no kernel is running.
    unsafe fn read(&self, buffer: &BufferRef) -> Bytes {
        match buffer.base {
            Base::Constant(idx) => {
                self.program.constants[idx].slice(buffer.offset_bytes..buffer.offset_bytes + buffer.len_bytes)
            }
            Base::Arena | Base::Input(_) | Base::Output(_) => {
                // SAFETY: the range lies inside its memory, which no kernel writes meanwhile.
                let bytes = unsafe { slice::from_raw_parts(self.memory.address(buffer), buffer.len_bytes) };
                Bytes::copy_from_slice(bytes)
            }
        }
    }
}

impl fmt::Debug for CpuExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuExecutable").field("program", &self.program).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
