//! Running a program on a CUDA device, launch by launch or as CUDA graphs.
//!
//! Tensors of the host are copied to and from device buffers of the executable; tensors of the device are accessed where they are
//! (`device_tensors`). The steps between host routines are one graph each, built when the first run says where its tensors
//! are. A node depends on those that wrote or read the bytes that it accesses, and on no others. An output that updates an input counts
//! as its memory, whether it has that in a run or not.

use super::dependencies::dependencies;
use super::graph::{Graph, GraphBuilder, Node};
use super::host_inputs::HostInputs;
use super::launch::{Action, CudaStep, Program};
use super::library_calls::{Call, CallMode, Calls};
use super::placement::{Arguments, Packed, Placement, upload_constants};
use super::ranges::{OpenRange, ProfilerRanges};
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

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExecutableOptions {
    /// How the steps reach the device.
    pub execution: Execution,
    /// Lets kernels that can start before those that they depend on have ended.
    pub allow_programmatic: bool,
    /// Runs directly, and waits after each step, so that an error names the kernel.
    pub check_each_step: bool,
}

impl Default for ExecutableOptions {
    fn default() -> Self {
        Self { execution: Execution::default(), allow_programmatic: true, check_each_step: false }
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
    /// Empty until the first run says where its tensors are; so are `arguments` and `boundary_steps`.
    pub(super) segments: Vec<Segment>,
    pub(super) calls: Calls,
    pub(super) arguments: Vec<Arguments>,
    /// Those whose addresses can change: all but library calls.
    pub(super) boundary_steps: Vec<BoundaryStep>,
    /// The inputs and outputs that library calls access.
    pub(super) ports_of_calls: Vec<Base>,
    pub(super) placement: Placement,
    pub(super) host_inputs: HostInputs,
    /// Whether all arguments and graphs have the addresses of `placement.ports`.
    pub(super) is_bound: bool,
    batch_hold: Option<BatchHold>,
    /// The stream of runs on tensors of the host.
    stream: Arc<Stream>,
    /// The stream that was given the last run: others wait for it.
    pub(super) current: Arc<Stream>,
    /// Steps that may not have ended: a fault is attributed to them.
    pending: Range<usize>,
}

/// Steps that are enqueued together.
pub(super) enum Segment {
    /// Launches and copies, one call of the driver each.
    Direct(Range<usize>),
    /// Launches and copies, as a graph.
    Graph(GraphSegment),
    /// A host routine.
    Host(usize),
}

/// Steps that are one graph.
pub(super) struct GraphSegment {
    steps: Range<usize>,
    pub(super) graph: Graph,
    /// The node of each step that has one.
    nodes: Vec<(usize, Node)>,
}

/// A step that accesses inputs or outputs.
pub(super) struct BoundaryStep {
    pub(super) step: usize,
    /// Those that it accesses.
    pub(super) ports: Vec<Base>,
    /// The segment whose graph it is in, and its node; `None` if it is in none.
    pub(super) node: Option<(usize, Node)>,
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
        let placement = Placement::new(&stream, &self.program, &self.constants)?;
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
        for step in &program.steps {
            let Action::Launch(launch) = &step.action else { continue };
            launch.function.allow(&launch.shape)?;
            if launch.call.is_some() {
                let ports = launch.buffers.iter().map(|buffer| buffer.base);
                ports.into_iter().try_for_each(|port| placement.fix(&stream, program, port))?;
            }
        }
        let form = match options.execution {
            _ if options.check_each_step => CallMode::Direct,
            Execution::Direct => CallMode::Direct,
            Execution::StraightGraph | Execution::BranchedGraph => CallMode::Captured,
        };
        let calls = Calls::new(&stream, program, &placement, form)?;
        // Ports of calls that the libraries decline may move.
        let is_called = |step: &usize| calls.of(*step).is_some();
        let called =
            (0..program.steps.len()).filter(is_called).flat_map(|step| program.steps[step].buffers());
        let ports_of_calls = called.map(|buffer| buffer.base).filter(|base| is_port(*base)).collect();
        let stream = Arc::new(stream);
        let mut executable = Self {
            segments: Vec::new(),
            calls,
            arguments: Vec::new(),
            boundary_steps: Vec::new(),
            ports_of_calls,
            host_inputs: HostInputs::new(source.program.input_bytes.len()),
            placement,
            is_bound: false,
            batch_hold: None,
            current: Arc::clone(&stream),
            stream,
            pending: 0..0,
            source,
        };
        executable.wait()?;
        Ok(executable)
    }

    /// Makes arguments and graphs for the addresses of `placement.ports`.
    pub(super) fn build(&mut self) -> Result<(), CudaError> {
        let context = self.stream.context();
        let arguments = (self.source.program.steps.iter())
            .map(|step| Arguments::of(step, |range| self.placement.address(range), context))
            .collect::<Result<_, _>>()?;
        self.arguments = arguments;
        self.segments = self.split()?;
        self.boundary_steps = self.find_boundary();
        Ok(())
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
        done = done.and_then(|()| self.enqueue());
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
            self.enqueue()
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
        for idx in 0..self.segments.len() {
            match &self.segments[idx] {
                Segment::Host(step) => self.run_host(*step)?,
                Segment::Graph(GraphSegment { steps, graph, .. }) => {
                    let launched =
                        graph.launch(&self.current, || format!("launching {}", self.kernels(steps)));
                    let steps = steps.clone();
                    self.is_pending(steps);
                    launched.map_err(|error| self.blame(error))?;
                }
                Segment::Direct(steps) => {
                    let first = steps.start;
                    for step in steps.clone() {
                        self.enqueue_step(step, step > first)?;
                        if self.source.options.check_each_step {
                            self.wait()?;
                        }
                    }
                }
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
                let mut shape = launch.shape;
                shape.is_programmatic &= self.source.options.allow_programmatic && follows;
                // SAFETY: these are the launch's own arguments, one for each tensor and tensor map.
                unsafe { launch.function.launch_with(stream, &shape, arguments.pointers()) }
            }
            (Action::Copy { from, to }, None) if from.len_bytes > 0 && address(from) != address(to) => {
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

    /// The steps, cut at host routines.
    fn split(&self) -> Result<Vec<Segment>, CudaError> {
        let steps = &self.source.program.steps;
        let is_host = |idx: &usize| matches!(steps[*idx].action, Action::Host(_));
        let mut segments = Vec::new();
        let mut start = 0;
        for host in (0..steps.len()).filter(is_host).chain([steps.len()]) {
            if start < host {
                segments.push(self.segment(start..host)?);
            }
            if host < steps.len() {
                segments.push(Segment::Host(host));
            }
            start = host + 1;
        }
        Ok(segments)
    }

    /// Finds what `boundary_steps` holds.
    fn find_boundary(&self) -> Vec<BoundaryStep> {
        let node_of = |step: usize| {
            self.segments.iter().enumerate().find_map(|(number, segment)| {
                let Segment::Graph(GraphSegment { nodes, .. }) = segment else { return None };
                nodes.iter().find(|(other, _)| *other == step).map(|&(_, node)| (number, node))
            })
        };
        let step = |(step, info): (usize, &CudaStep)| {
            let ports = info.buffers().into_iter().map(|buffer| buffer.base);
            let ports: Vec<Base> = ports.filter(|base| is_port(*base)).collect();
            let can_move = self.calls.of(step).is_none() && !ports.is_empty();
            can_move.then(|| BoundaryStep { step, ports, node: node_of(step) })
        };
        self.source.program.steps.iter().enumerate().filter_map(step).collect()
    }

    fn segment(&self, steps: Range<usize>) -> Result<Segment, CudaError> {
        if self.source.options.check_each_step || self.source.options.execution == Execution::Direct {
            return Ok(Segment::Direct(steps));
        }
        let builder = GraphBuilder::new(self.stream.context())?;
        let GraphPart { nodes, .. } = self.add_steps(&builder, steps.clone(), GraphEnd::default())?;
        Ok(Segment::Graph(GraphSegment { steps, graph: builder.build(&self.stream)?, nodes }))
    }

    /// For each of these steps those of them that it depends on.
    fn waits(&self, steps: Range<usize>) -> Vec<Vec<usize>> {
        match self.source.options.execution {
            Execution::Direct | Execution::StraightGraph => {
                (0..steps.len()).map(|idx| idx.checked_sub(1).into_iter().collect()).collect()
            }
            Execution::BranchedGraph => {
                let program = &self.source.program;
                let known = |range: BufferRef| BufferRef { base: program.identity(range.base), ..range };
                let ranges: Vec<_> = (program.steps[steps].iter())
                    .map(|step| step.buffers().into_iter().map(known).collect())
                    .collect();
                dependencies(&ranges)
            }
        }
    }

    /// True unless a copy has nothing to do.
    fn is_move(&self, from: &BufferRef, to: &BufferRef) -> bool {
        from.len_bytes > 0 && self.placement.address(from) != self.placement.address(to)
    }

    /// Adds these steps, none of which is a host routine, to a graph after `start`.
    pub(in crate::cuda) fn add_steps(
        &self,
        builder: &GraphBuilder,
        steps: Range<usize>,
        start: GraphEnd,
    ) -> Result<GraphPart, CudaError> {
        let mut nodes = Vec::new();
        let waits = self.waits(steps.clone());
        let allow_early = self.source.options.allow_programmatic && builder.has_programmatic_edges();
        // For each step the nodes that later steps depend on: its own, or those that it depends on if it does nothing.
        let mut ends: Vec<GraphEnd> = Vec::with_capacity(steps.len());
        // The node of the last library call that uses the workspace: the next such call depends on it.
        let mut workspace_end: Vec<Node> = Vec::new();
        for (idx, waits) in steps.zip(&waits) {
            let before = if waits.is_empty() { start.clone() } else { GraphEnd::of(&ends, waits) };
            let mut after = before.nodes;
            let call = self.calls.of(idx);
            let captured = call.and_then(Call::captured);
            if call.is_some_and(Call::needs_workspace) {
                workspace_end.retain(|node| !after.contains(node));
                after.append(&mut workspace_end);
            }
            let node = match (&self.source.program.steps[idx].action, captured) {
                (Action::Launch(_), Some(captured)) => Some(builder.add_captured(captured, &after)?),
                (Action::Launch(launch), None) => {
                    let (function, shape) = (&launch.function, &launch.shape);
                    // A programmatic edge is the only one, because `griddepcontrol.wait` waits for all of them.
                    let is_early = allow_early && shape.is_programmatic && before.is_kernel;
                    let pointers = self.arguments[idx].pointers();
                    // SAFETY: these are the launch's own arguments, one for each tensor and tensor map.
                    Some(unsafe { builder.add_kernel(function, shape, pointers, &after, is_early)? })
                }
                (Action::Copy { from, to }, _) if self.is_move(from, to) => {
                    let (from_address, to_address) =
                        (self.placement.address(from), self.placement.address(to));
                    Some(builder.add_copy(from_address, to_address, from.len_bytes, &after)?)
                }
                (Action::Copy { .. } | Action::Host(_), _) => None,
            };
            if call.is_some_and(Call::needs_workspace) {
                workspace_end.extend(node);
            }
            nodes.extend(node.map(|node| (idx, node)));
            let is_launch = matches!(self.source.program.steps[idx].action, Action::Launch(_));
            let is_kernel = is_launch && captured.is_none();
            ends.push(GraphEnd { nodes: node.map_or(after, |node| vec![node]), is_kernel });
        }
        let is_last = |idx: &usize| !waits.iter().any(|waits| waits.contains(idx));
        let last: Vec<usize> = (0..ends.len()).filter(is_last).collect();
        let end = if last.is_empty() { start } else { GraphEnd::of(&ends, &last) };
        Ok(GraphPart { end, nodes })
    }
}

/// Steps that were added to a graph.
pub(in crate::cuda) struct GraphPart {
    /// The nodes that come last.
    pub(in crate::cuda) end: GraphEnd,
    /// The node of each step that has one.
    nodes: Vec<(usize, Node)>,
}

/// The nodes that steps after a part of a graph depend on.
#[derive(Clone, Default)]
pub(in crate::cuda) struct GraphEnd {
    nodes: Vec<Node>,
    /// Whether it is one kernel, which a programmatic edge may leave.
    is_kernel: bool,
}

impl GraphEnd {
    /// The nodes of several steps together.
    fn of(ends: &[Self], steps: &[usize]) -> Self {
        let nodes = steps.iter().flat_map(|&step| ends[step].nodes.iter().copied()).collect();
        Self { nodes, is_kernel: matches!(steps[..], [step] if ends[step].is_kernel) }
    }
}

/// True for memory of the caller.
fn is_port(base: Base) -> bool {
    matches!(base, Base::Input(_) | Base::Output(_))
}

impl fmt::Debug for CudaExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaExecutable").field("program", &self.source.program).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
