//! Running a program on a CUDA device, launch by launch or as CUDA graphs.
//!
//! Tensors of the host are copied to and from device buffers of the executable; tensors of the device are accessed where they are
//! (`device_tensors`). How steps are enqueued, which a caller may change between runs, is `form`.

use super::form::{BoundaryStep, Form, GraphSegment, Segment, boundary_steps};
use super::host_inputs::HostInputs;
use super::launch::{Action, Program};
use super::library_calls::{CallMode, Calls};
use super::placement::{Arguments, Packed, Placement, Ports, upload_constants};
use super::ranges::{OpenRange, ProfilerRanges};
use super::run_timer::RunTimer;
use super::timing::BatchHold;
use crate::cuda::driver::device::Context;
use crate::cuda::driver::error::CudaError;
use crate::cuda::driver::stream::{Event, Stream};
use crate::cuda::driver::sys::Address;
use crate::program::{Base, BufferRef, ProgramError, RunError, StepProfile, check_sizes};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How the steps reach the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Execution {
    /// One call of the driver for each step.
    Direct,
    /// Graphs whose steps run one after the other: the driver launches such graphs fastest.
    StraightGraph,
    /// Graphs whose independent steps may run at the same time.
    #[default]
    BranchedGraph,
}

impl Execution {
    /// All ways, the simplest first.
    pub const ALL: [Self; 3] = [Self::Direct, Self::StraightGraph, Self::BranchedGraph];

    /// The one of this name, if there is one.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// Its name in commands and reports.
    pub fn name(self) -> &'static str {
        match self {
            Execution::Direct => "direct",
            Execution::StraightGraph => "line",
            Execution::BranchedGraph => "branched",
        }
    }
}

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecutableOptions {
    /// How the steps reach the device until [`CudaExecutable::set_execution`] says otherwise.
    pub execution: Execution,
    /// Lets kernels that can start before those that they depend on have ended.
    pub allow_programmatic: bool,
    /// Runs directly, and waits after each step, so that an error names the kernel.
    pub check_each_step: bool,
    /// Takes working memory only when a run needs it: callers give their own with each run on the device.
    pub allocate_late: bool,
}

impl Default for ExecutableOptions {
    fn default() -> Self {
        let (allow_programmatic, check_each_step, allocate_late) = (true, false, false);
        Self { execution: Execution::default(), allow_programmatic, check_each_step, allocate_late }
    }
}

/// Why a program cannot be prepared, or a run failed. After a failed run the outputs' contents are undefined.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExecutableError {
    /// The program breaks its rules.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The tensors do not fit the program, or a host routine failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The device failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// A program whose constants are on a device. Executables of it may run at the same time.
#[derive(Clone)]
pub struct CudaProgram {
    pub(super) program: Arc<Program>,
    constants: Arc<Packed>,
    context: Context,
    pub(super) options: ExecutableOptions,
    pub(super) ranges: Option<Arc<ProfilerRanges>>,
}

/// A program with memory on a device to run in.
pub struct CudaExecutable {
    pub(super) source: CudaProgram,
    // Fields drop in order: graphs before what their nodes point to.
    /// Those that runs have used, each once. Empty until the first run says where its tensors are, as `arguments` is.
    pub(super) forms: Vec<Form>,
    /// How the next run's steps reach the device.
    pub(super) execution: Execution,
    pub(super) timer: RunTimer,
    /// Whether a form was made since the last run: the next run is the first with it.
    pub(super) has_new_form: bool,
    pub(super) calls: Calls,
    pub(super) arguments: Vec<Arguments>,
    /// What all arguments have the addresses of; `None` if that is not known.
    pub(super) arguments_ports: Option<Ports>,
    /// Those whose addresses can change: all but library calls.
    pub(super) boundary_steps: Vec<BoundaryStep>,
    /// The inputs and outputs that library calls access.
    pub(super) ports_of_calls: Vec<Base>,
    pub(super) placement: Placement,
    pub(super) host_inputs: HostInputs,
    batch_hold: Option<BatchHold>,
    /// The stream of runs on tensors of the host.
    stream: Arc<Stream>,
    /// The stream that was given the last run: others wait for it.
    pub(super) current: Arc<Stream>,
    /// Steps that may not have ended: a fault is attributed to them.
    pending: Range<usize>,
}

impl CudaProgram {
    /// Takes a program, and brings its constants to the device.
    ///
    /// # Errors
    /// If the program breaks its rules, or the device lacks memory.
    pub fn new(
        context: &Context,
        program: Program,
        options: ExecutableOptions,
    ) -> Result<Self, ExecutableError> {
        program.check()?;
        let constants = Arc::new(upload_constants(&Stream::new(context)?, &program)?);
        Ok(Self { program: Arc::new(program), constants, context: context.clone(), options, ranges: None })
    }

    /// The same program, whose runs and steps are ranges for profilers.
    pub fn with_ranges(self, ranges: Option<ProfilerRanges>) -> Self {
        Self { ranges: ranges.map(Arc::new), ..self }
    }

    /// The context of the device that it is for.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// An executable with tensors and a stream of its own.
    ///
    /// # Errors
    /// If the device lacks memory or does not support a launch.
    pub fn executable(&self) -> Result<CudaExecutable, ExecutableError> {
        let stream = Stream::new(&self.context)?;
        let placement = Placement::new(&self.program, &self.constants);
        Ok(CudaExecutable::prepare(stream, self.clone(), placement)?)
    }
}

impl CudaExecutable {
    /// The only executable of a program.
    ///
    /// # Errors
    /// As [`CudaProgram::new`] and [`CudaProgram::executable`].
    pub fn new(
        context: &Context,
        program: Program,
        options: ExecutableOptions,
    ) -> Result<Self, ExecutableError> {
        CudaProgram::new(context, program, options)?.executable()
    }

    /// Another executable of the same program, whose inputs on the device are the same.
    pub(in crate::cuda) fn duplicate_with_inputs(&self) -> Result<Self, ExecutableError> {
        let mut duplicate = self.source.executable()?;
        duplicate.set_execution(self.execution);
        duplicate.use_own()?;
        let (from, to) = (&self.placement.ports.inputs, &duplicate.placement.ports.inputs);
        let inputs = from.iter().zip(to).zip(&self.source.program.input_bytes);
        for ((&from, &to), &len_bytes) in inputs.filter(|(_, bytes)| **bytes > 0) {
            duplicate.stream.copy(from, to, len_bytes)?;
        }
        duplicate.wait()?;
        Ok(duplicate)
    }

    fn prepare(stream: Stream, source: CudaProgram, mut placement: Placement) -> Result<Self, CudaError> {
        let (program, options) = (&source.program, source.options);
        let is_call = |action: &Action| matches!(action, Action::Launch(launch) if launch.call.is_some());
        if !options.allocate_late || program.steps.iter().any(|step| is_call(&step.action)) {
            placement.fix_arena(&stream, program)?;
        }
        for step in &program.steps {
            let Action::Launch(launch) = &step.action else { continue };
            launch.function.allow(&launch.shape)?;
            if launch.call.is_some() {
                let ports = launch.buffers.iter().map(|buffer| buffer.base);
                ports.into_iter().try_for_each(|port| placement.fix(&stream, program, port))?;
            }
        }
        let mode = if options.check_each_step { CallMode::Direct } else { CallMode::Captured };
        let calls = Calls::new(&stream, program, &placement, mode)?;
        // Ports of calls that the libraries decline may move.
        let is_called = |step: &usize| calls.of(*step).is_some();
        let called =
            (0..program.steps.len()).filter(is_called).flat_map(|step| program.steps[step].buffers());
        let ports_of_calls = called.map(|buffer| buffer.base).filter(|base| is_port(*base)).collect();
        let stream = Arc::new(stream);
        let boundary_steps = boundary_steps(program, &calls);
        let execution = if options.check_each_step { Execution::Direct } else { options.execution };
        let mut executable = Self {
            forms: Vec::new(),
            execution,
            timer: RunTimer::default(),
            has_new_form: false,
            calls,
            arguments: Vec::new(),
            arguments_ports: None,
            boundary_steps,
            ports_of_calls,
            host_inputs: HostInputs::new(source.program.input_bytes.len()),
            placement,
            batch_hold: None,
            current: Arc::clone(&stream),
            stream,
            pending: 0..0,
            source,
        };
        executable.wait()?;
        Ok(executable)
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.source.program
    }

    /// The flag that an earlier timing held batches back with, if there is one.
    pub(in crate::cuda) fn take_batch_hold(&mut self) -> Option<BatchHold> {
        self.batch_hold.take()
    }

    /// Keeps the flag for the next timing: many short ones follow one another.
    pub(in crate::cuda) fn keep_batch_hold(&mut self, hold: Option<BatchHold>) {
        self.batch_hold = hold.or(self.batch_hold.take());
    }

    /// Whether a run waits for the device after each step.
    pub(in crate::cuda) fn waits_after_steps(&self) -> bool {
        self.source.options.check_each_step
    }

    /// How the steps of runs from now on reach the device. What each way needs is made when it is first used, and kept; with
    /// [`ExecutableOptions::check_each_step`] all is direct.
    pub fn set_execution(&mut self, execution: Execution) {
        if !self.source.options.check_each_step {
            self.execution = execution;
        }
    }

    /// As [`set_execution`](Self::set_execution), for good: what other ways need is dropped.
    pub fn fix_execution(&mut self, execution: Execution) {
        self.set_execution(execution);
        let kept = self.execution;
        self.forms.retain(|form| form.execution == kept);
    }

    /// The stream that it runs in on tensors of the host.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// For a step with a library call the library and its release, or why its own kernel runs instead.
    pub fn call_of(&self, step: usize) -> Option<Result<String, &str>> {
        self.calls.outcome(step)
    }

    /// Computes the outputs from the inputs.
    ///
    /// # Errors
    /// If the tensors do not fit the program, a host routine fails, or the device does.
    pub fn run(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), ExecutableError> {
        self.check_inputs(inputs)?;
        self.check_outputs(outputs)?;
        let _range = self.begin_range();
        self.use_own()?;
        // SAFETY: the inputs stay borrowed until `finish` has waited.
        let mut done = unsafe { self.begin_upload(inputs) }.map_err(ExecutableError::from);
        done = done.and_then(|()| self.timed(Self::enqueue));
        // SAFETY: the outputs stay borrowed, by this function alone, until `finish` has waited.
        done = done.and_then(|()| Ok(unsafe { self.begin_download(outputs) }?));
        self.finish(done)
    }

    /// Sets the inputs on the device.
    ///
    /// # Errors
    /// If they do not fit the program, or the device fails.
    pub fn upload(&mut self, inputs: &[&[u8]]) -> Result<(), ExecutableError> {
        self.check_inputs(inputs)?;
        self.use_own()?;
        // SAFETY: the inputs stay borrowed until `finish` has waited.
        let begun = unsafe { self.begin_upload(inputs) };
        self.finish(begun.map_err(ExecutableError::from))
    }

    /// Runs `runs` times on the inputs that are on the device, and waits. Outputs stay there.
    ///
    /// # Errors
    /// If a host routine fails, or the device does.
    pub fn run_on_device(&mut self, runs: usize) -> Result<(), ExecutableError> {
        self.use_own()?;
        let done = (0..runs).try_for_each(|_| {
            let _range = self.begin_range();
            self.timed(Self::enqueue)
        });
        self.finish(done)
    }

    /// The range of a run, from its beginning until what this function returned is dropped.
    pub(super) fn begin_range(&self) -> Option<OpenRange> {
        self.source.ranges.as_ref().map(|ranges| ranges.run())
    }

    /// The range of a step that is not part of a graph.
    fn begin_step(&self, idx: usize) -> Option<OpenRange> {
        self.source.ranges.as_ref().and_then(|ranges| ranges.step(idx))
    }

    /// Reads the outputs from the device.
    ///
    /// # Errors
    /// If they do not fit the program, or the device fails.
    pub fn download(&mut self, outputs: &mut [&mut [u8]]) -> Result<(), ExecutableError> {
        self.check_outputs(outputs)?;
        self.use_own()?;
        // SAFETY: the outputs stay borrowed, by this function alone, until `finish` has waited.
        let begun = unsafe { self.begin_download(outputs) };
        self.finish(begun.map_err(ExecutableError::from))
    }

    fn check_inputs(&self, inputs: &[&[u8]]) -> Result<(), RunError> {
        check_sizes("input", &self.source.program.input_bytes, inputs.iter().map(|bytes| bytes.len()))
    }

    fn check_outputs(&self, outputs: &[&mut [u8]]) -> Result<(), RunError> {
        check_sizes("output", &self.source.program.output_bytes, outputs.iter().map(|bytes| bytes.len()))
    }

    /// # Safety
    /// The inputs must stay as they are until the stream was waited for.
    unsafe fn begin_upload(&mut self, inputs: &[&[u8]]) -> Result<(), CudaError> {
        (0..inputs.len()).for_each(|idx| self.host_inputs.forget(idx));
        let copy = |(idx, bytes): (usize, &&[u8])| {
            if bytes.is_empty() {
                return Ok(());
            }
            // SAFETY: the caller's promise; its own buffers are bound, which are as long as the inputs.
            unsafe { self.stream.upload(bytes, self.placement.ports.inputs[idx]) }
        };
        inputs.iter().enumerate().try_for_each(copy).map_err(|error| self.blame(error))
    }

    /// # Safety
    /// Until the stream was synchronised, the outputs must stay where they are, and must not be used otherwise.
    unsafe fn begin_download(&self, outputs: &mut [&mut [u8]]) -> Result<(), CudaError> {
        let copy = |(idx, bytes): (usize, &mut &mut [u8])| {
            if bytes.is_empty() {
                return Ok(());
            }
            // SAFETY: the caller's promise; its own buffers are bound, which are as long as the outputs.
            unsafe { self.stream.download(self.placement.ports.outputs[idx], bytes) }
        };
        outputs.iter_mut().enumerate().try_for_each(copy).map_err(|error| self.blame(error))
    }

    /// Waits for all that is enqueued, also for what was begun before an error.
    fn finish(&mut self, begun: Result<(), ExecutableError>) -> Result<(), ExecutableError> {
        let waited = self.wait();
        begun.and(waited.map_err(ExecutableError::from))
    }

    /// Enqueues one run on the bound inputs in the current stream. Host routines are waited for.
    ///
    /// # Errors
    /// If a host routine fails, or the device does; faults of kernels may be reported by a later call.
    pub(super) fn enqueue(&mut self) -> Result<(), ExecutableError> {
        for idx in 0..self.form().map_or(0, |form| form.segments.len()) {
            let Some(segment) = self.form().map(|form| &form.segments[idx]) else { break };
            match segment {
                Segment::Host(step) => self.run_host(*step)?,
                Segment::Graph(GraphSegment { steps, graph }) => {
                    let launched =
                        graph.launch(&self.current, || format!("launching {}", self.kernels(steps)));
                    let steps = steps.clone();
                    self.is_pending(steps.clone());
                    match launched {
                        // Graphs take memory of the device when they are launched; a launch of a kernel takes none.
                        Err(CudaError::OutOfMemory { .. }) => self.enqueue_steps(steps)?,
                        launched => launched.map_err(|error| self.blame(error))?,
                    }
                }
                Segment::Direct(steps) => self.enqueue_steps(steps.clone())?,
            }
        }
        Ok(())
    }

    /// Runs `runs` times (at least once), step by step, and returns the median time of each step in microseconds, in order.
    /// The times include the event between steps, which matters for steps of a few microseconds.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn profile(&mut self, runs: usize) -> Result<Vec<StepProfile>, ExecutableError> {
        self.use_own()?;
        let steps = self.source.program.steps.len();
        let context = self.stream.context().clone();
        let events = (0..=steps).map(|_| Event::new(&context)).collect::<Result<Vec<_>, _>>()?;
        let mut samples = vec![Vec::with_capacity(runs); steps];
        for _ in 0..runs.max(1) {
            events[0].record(&self.stream)?;
            for step in 0..steps {
                self.run_step(step)?;
                events[step + 1].record(&self.stream).map_err(|error| self.blame(error))?;
            }
            self.wait()?;
            for (step, pair) in events.windows(2).enumerate() {
                samples[step].push(pair[1].elapsed_us(&pair[0])?);
            }
        }
        let profile = self.source.program.steps.iter().zip(samples).map(|(step, mut times)| {
            times.sort_unstable_by(f64::total_cmp);
            StepProfile { name: step.name.clone(), median_us: times[times.len() / 2] }
        });
        Ok(profile.collect())
    }

    /// Enqueues a step, or runs it if it is a host routine.
    pub(in crate::cuda) fn run_step(&mut self, idx: usize) -> Result<(), ExecutableError> {
        match self.source.program.steps[idx].action {
            Action::Host(_) => self.run_host(idx),
            Action::Launch(_) | Action::Copy { .. } => Ok(self.enqueue_step(idx, true)?),
        }
    }

    /// Enqueues steps, none of which is a host routine, one call of the driver each.
    fn enqueue_steps(&mut self, steps: Range<usize>) -> Result<(), CudaError> {
        let first = steps.start;
        for step in steps {
            self.enqueue_step(step, step > first)?;
            if self.source.options.check_each_step {
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Enqueues a launch or a copy. Programmatic dependent launch is only for steps that `follow` steps of the same run:
    /// kernels read inputs of the model before `griddepcontrol.wait`, and work before the run may write these.
    fn enqueue_step(&mut self, idx: usize, follows: bool) -> Result<(), CudaError> {
        self.is_pending(idx..idx + 1);
        let address = |range: &BufferRef| self.placement.address(range);
        let enqueued = self.put_step(idx, &self.current, &self.arguments[idx], address, follows);
        enqueued.map_err(|error| self.blame(error))
    }

    /// Puts a launch or a copy with these arguments and addresses into a stream.
    pub(super) fn put_step(
        &self,
        idx: usize,
        stream: &Stream,
        arguments: &Arguments,
        address: impl Fn(&BufferRef) -> Address,
        follows: bool,
    ) -> Result<(), CudaError> {
        let _range = self.begin_step(idx);
        match (&self.source.program.steps[idx].action, self.calls.of(idx)) {
            (_, Some(call)) => self.calls.enqueue(call, stream),
            (Action::Launch(launch), None) => {
                for (zeros, to) in launch.clears() {
                    stream.copy(address(zeros), address(to), to.len_bytes)?;
                }
                let mut shape = launch.shape;
                shape.is_programmatic &=
                    self.source.options.allow_programmatic && follows && launch.cleared.is_empty();
                // SAFETY: these are the launch's own arguments, one for each tensor and tensor map.
                unsafe { launch.function.launch_with(stream, &shape, arguments.pointers()) }
            }
            (Action::Copy { from, to }, None) if is_move(from, to, &address) => {
                stream.copy(address(from), address(to), from.len_bytes)
            }
            (Action::Copy { .. } | Action::Host(_), None) => Ok(()),
        }
    }

    fn run_host(&mut self, idx: usize) -> Result<(), ExecutableError> {
        self.wait()?;
        let _range = self.begin_step(idx);
        let step = &self.source.program.steps[idx];
        let Action::Host(host) = &step.action else { return Ok(()) };
        let failed = |reason| RunError::Host { step: step.name.clone(), reason };
        let inputs = host.inputs.iter().map(|operand| self.read(&operand.buffer));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let results = host.call(inputs.into_iter()).map_err(failed)?;
        for (result, operand) in results.iter().zip(&host.outputs) {
            self.placement.write(&self.current, &operand.buffer, result.bytes())?;
        }
        Ok(())
    }

    /// The content of a range: shared if it is a constant's, otherwise read from the device.
    fn read(&self, range: &BufferRef) -> Result<Bytes, CudaError> {
        match range.base {
            Base::Constant(idx) => {
                let end = range.offset_bytes + range.len_bytes;
                Ok(self.source.program.constants[idx].slice(range.offset_bytes..end))
            }
            Base::Arena | Base::Input(_) | Base::Output(_) => {
                self.placement.read(&self.current, range).map(Bytes::from)
            }
        }
    }

    /// Waits for all that is enqueued.
    pub(in crate::cuda) fn wait(&mut self) -> Result<(), CudaError> {
        self.current.wait_for(|| self.pending_work())?;
        self.pending = 0..0;
        Ok(())
    }

    pub(super) fn is_pending(&mut self, steps: Range<usize>) {
        let first = if self.pending.is_empty() { steps.start } else { self.pending.start.min(steps.start) };
        self.pending = first..self.pending.end.max(steps.end);
    }

    /// Adds to a fault which kernels may have caused it: the call that reports a fault is seldom the one that caused it.
    pub(in crate::cuda) fn blame(&self, error: CudaError) -> CudaError {
        match error {
            CudaError::Fault { name, .. } => CudaError::Fault { doing: self.pending_work(), name },
            CudaError::DeviceLost { name, message, .. } => {
                CudaError::DeviceLost { doing: self.pending_work(), name, message }
            }
            other => other,
        }
    }

    /// What the device may be doing.
    fn pending_work(&self) -> String {
        match &self.kernels(&self.pending)[..] {
            "" => "copying tensors".to_owned(),
            kernels => format!("running {kernels}"),
        }
    }

    /// The kernels that these steps launch, in words; empty if there are none.
    fn kernels(&self, steps: &Range<usize>) -> String {
        let launches: Vec<usize> = steps
            .clone()
            .filter(|&idx| matches!(self.source.program.steps[idx].action, Action::Launch(_)))
            .collect();
        let name = |idx: usize| &self.source.program.steps[idx].name;
        match launches[..] {
            [] => String::new(),
            [idx] => format!("{} of step `{}`", self.kernel(idx), name(idx)),
            [first, .., last] => {
                let (first, last) = (name(first), name(last));
                let count = launches.len();
                let advice = "`orchestrion run --check-steps` says which";
                format!("one of {count} kernels, from step `{first}` to step `{last}` ({advice})")
            }
        }
    }

    /// What a step launches, in words.
    fn kernel(&self, step: usize) -> String {
        match (&self.source.program.steps[step].action, self.calls.of(step)) {
            (_, Some(call)) => format!("the call of {}", call.release()),
            (Action::Launch(launch), None) => format!("kernel `{}`", launch.function.symbol()),
            (Action::Copy { .. } | Action::Host(_), None) => String::new(),
        }
    }
}

/// True unless a copy between ranges with these addresses has nothing to do.
pub(super) fn is_move(from: &BufferRef, to: &BufferRef, address: impl Fn(&BufferRef) -> Address) -> bool {
    from.len_bytes > 0 && address(from) != address(to)
}

/// True for memory of the caller.
pub(super) fn is_port(base: Base) -> bool {
    matches!(base, Base::Input(_) | Base::Output(_))
}

impl fmt::Debug for CudaExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaExecutable").field("program", &self.source.program).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
