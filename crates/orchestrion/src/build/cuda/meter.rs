//! Times of kernels on this machine's GPU.

use super::device::Cuda;
use crate::build::kernel_info::cta_info;
use crate::build::sources::sources;
use crate::build::timed::{ALIGN, TimedArguments};
use crate::plan::backend::{Meter, Toolchain};
use crate::plan::kernel::KernelDesign;
use crate::run::launch::{launch_shape, noise, tensor_map_shape};
use crate::{Error, Library, Options};
use orch_runtime::cuda::{
    Action, Context, CudaExecutable, CudaStep, ExecutableOptions, Execution, Launch, LaunchShape, Module,
    Program, Source, TimeOptions,
};
use orch_runtime::program::Base;
use orch_thread::kernel::Binding;
use std::collections::BTreeMap;

impl Cuda {
    /// How much longer a launch alone takes than one behind another kernel, in microseconds. In a plan kernels follow one
    /// another: if each counted with a launch of its own, two would seem slower than one that takes longer.
    fn alone_us(&self, context: &Context, options: &Options) -> Result<f64, Error> {
        if let Some(&known) = self.alone_us.get() {
            return Ok(known);
        }
        let early = self.target.has_pdl;
        let text = if early { NOTHING_EARLY } else { NOTHING };
        let source = Source { name: "nothing".to_owned(), text: text.to_owned(), symbols: Vec::new() };
        let object = self.build(&[source], options)?.swap_remove(0);
        let module = Module::load(context, "nothing", &object.bytes).map_err(Error::from)?;
        let function = module.function("k_nothing").map_err(Error::from)?;
        let shape = LaunchShape { is_programmatic: early, ..LaunchShape::new(1, 32) };
        let step = || CudaStep {
            name: "nothing".to_owned(),
            action: Action::Launch(Launch {
                function: function.clone(),
                shape,
                buffers: Vec::new(),
                tensor_maps: Vec::new(),
                cleared: Vec::new(),
                call: None,
            }),
        };
        let direct = ExecutableOptions { execution: Execution::Direct, ..ExecutableOptions::default() };
        let chain = |launches: usize| {
            let program = Program { steps: (0..launches).map(|_| step()).collect(), ..Program::default() };
            CudaExecutable::new(context, program, direct).map_err(Error::from)
        };
        // The first launch of a run does not start early.
        let (mut two, mut three) = (chain(2)?, chain(3)?);
        let (mut one_us, mut two_us, mut three_us) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            one_us.extend(two.time_steps(0..1, &TimeOptions::default()).map_err(Error::from)?);
            two_us.extend(two.time_runs(&TimeOptions::default()).map_err(Error::from)?);
            three_us.extend(three.time_runs(&TimeOptions::default()).map_err(Error::from)?);
        }
        let behind_us = median(&mut three_us) - median(&mut two_us);
        let alone_us = (median(&mut one_us) - behind_us).max(0.0);
        Ok(*self.alone_us.get_or_init(|| alone_us))
    }
}

impl Meter for Cuda {
    fn library(&self, library: Library) -> Result<String, String> {
        match self.libraries.release(library) {
            Some(release) => release.map_err(ToString::to_string),
            None => Err(format!("{} was not asked for", library.label())),
        }
    }

    fn times(&self, chains: &[Vec<KernelDesign>], options: &Options) -> Result<Vec<Option<f64>>, Error> {
        let device = self.device.as_ref().ok_or_else(|| Error::internal("kernels are timed on a device"))?;
        let kernels: Vec<KernelDesign> = chains.iter().flatten().cloned().collect();
        let sources = sources(self, &kernels, options)?;
        let objects = self.build(&sources, options)?;
        let context = Context::new(device).map_err(Error::from)?;
        let mut program = Program::default();
        for ((kernel, source), object) in kernels.iter().zip(&sources).zip(&objects) {
            let thread = &kernel.design.kernel.program;
            let module = Module::load(&context, &kernel.name, &object.bytes).map_err(Error::from)?;
            let symbol = source.symbols.first().map_or("", String::as_str);
            let function = module.function(symbol).map_err(Error::from)?;
            let cta = cta_info(thread, object.resources);
            let cta = cta.ok_or_else(|| Error::internal(format!("kernel {} has no cta", kernel.name)))?;
            let shape = launch_shape(thread.tasks, &cta, self.target.has_pdl);
            let shape =
                shape.ok_or_else(|| Error::internal(format!("kernel {} is too large", kernel.name)))?;
            let tensor_maps = cta.tensor_maps.iter().map(tensor_map_shape).collect();
            let call = kernel.call.as_ref().and_then(|call| self.libraries.call(&call.computation));
            let action = Action::Launch(Launch {
                function,
                shape,
                buffers: Vec::new(),
                tensor_maps,
                cleared: Vec::new(),
                call,
            });
            program.steps.push(CudaStep { name: kernel.name.clone(), action });
        }
        let noise = place_buffers(&mut program, chains);
        let mut executable =
            CudaExecutable::new(&context, program, ExecutableOptions::default()).map_err(Error::from)?;
        executable.upload(&[&noise]).map_err(Error::from)?;
        let mut steps = Vec::with_capacity(chains.len());
        let mut first = 0;
        for chain in chains {
            let range = first..first + chain.len();
            first = range.end;
            let is_declined = |step| executable.call_of(step).is_some_and(|outcome| outcome.is_err());
            steps.push((!range.clone().any(is_declined)).then_some(range));
        }
        // In rounds over all chains, so that a change of the clock affects each of them.
        let mut times = vec![Vec::new(); chains.len()];
        for round in 0..ROUNDS {
            for ((chain, steps), times) in chains.iter().zip(&steps).zip(&mut times) {
                let Some(steps) = steps else { continue };
                if round >= LONG_ROUNDS && median(times) > LONG_US {
                    continue;
                }
                let is_cold = chain.first().is_some_and(|kernel| kernel.is_cold);
                let options = TimeOptions { flush_l2: is_cold, ..TimeOptions::default() };
                times.extend(executable.time_steps(steps.clone(), &options).map_err(Error::from)?);
            }
        }
        let alone_us = self.alone_us(&context, options)?;
        let behind = |alone: f64| (alone - alone_us).max(LEAST_SHARE * alone);
        Ok(times.iter_mut().map(|times| (!times.is_empty()).then(|| behind(median(times)))).collect())
    }
}

/// Places the arguments of kernels that are timed; gives what is read in an input. Chains share the memory, but the kernels of
/// one read tensors of their own, so that none finds in the cache what another has left there, and hand on others.
fn place_buffers(program: &mut Program, chains: &[Vec<KernelDesign>]) -> Vec<u8> {
    let mut placed = Vec::with_capacity(program.steps.len());
    let (mut read_bytes, mut written_bytes) = (0, 0);
    for chain in chains {
        let mut first = 0;
        for kernel in chain {
            let TimedArguments { buffers, read_bytes: read, written_bytes: written } =
                TimedArguments::of(&kernel.design.kernel.program);
            placed.push((kernel, buffers, first));
            first += read;
            written_bytes = written_bytes.max(written);
        }
        read_bytes = read_bytes.max(first);
    }
    // What is read lies behind what is written, as zeros, or in an input, as noise: a device runs at a higher clock on
    // zeros. Of indices only zeros are known to be some, and the host's memory may be smaller than the device's.
    let (is_noise, mut has_zeros) = (read_bytes <= MOST_NOISE, false);
    let mut end = written_bytes + read_bytes;
    let mut handed_on: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    for (step, (kernel, mut buffers, first)) in program.steps.iter_mut().zip(placed) {
        for (at, buffer) in buffers.iter_mut().enumerate() {
            let is_float = kernel.design.kernel.program.buffers[at].dtype.is_float();
            if let Some((_, number)) = kernel.inner.iter().find(|(inner, _)| *inner == at) {
                let offset = handed_on.entry((*number, buffer.len_bytes)).or_insert_with(|| {
                    let offset = end;
                    end += buffer.len_bytes.next_multiple_of(ALIGN);
                    offset
                });
                (buffer.base, buffer.offset_bytes) = (Base::Arena, *offset);
            } else if let Binding::Own { .. } = kernel.design.kernel.bindings[at] {
                // Where zeros are expected, those are found there, and then what the last run has left.
                (buffer.base, buffer.offset_bytes) = (Base::Arena, end);
                end += buffer.len_bytes.next_multiple_of(ALIGN);
                has_zeros = true;
            } else if buffer.base == Base::Constant(0) && is_noise && is_float {
                (buffer.base, buffer.offset_bytes) = (Base::Input(0), first + buffer.offset_bytes);
            } else if buffer.base == Base::Constant(0) {
                (buffer.base, buffer.offset_bytes) =
                    (Base::Arena, written_bytes + first + buffer.offset_bytes);
                has_zeros = true;
            }
        }
        if let Action::Launch(launch) = &mut step.action {
            launch.buffers = buffers;
        }
    }
    let is_used = has_zeros || !handed_on.is_empty();
    program.arena_bytes = if is_used { end } else { written_bytes };
    program.input_bytes = vec![if is_noise { read_bytes } else { 0 }];
    noise(program.input_bytes[0])
}

/// A kernel that does nothing, and one that may start before the kernels before it have ended.
const NOTHING: &str = "extern \"C\" __global__ void __launch_bounds__(32) k_nothing() {}\n";
const NOTHING_EARLY: &str = "extern \"C\" __global__ void __launch_bounds__(32) k_nothing() {\n    \
    asm volatile(\"griddepcontrol.launch_dependents;\\ngriddepcontrol.wait;\" ::: \"memory\");\n}\n";

/// Least share of a kernel's time alone that it takes behind another one.
const LEAST_SHARE: f64 = 0.1;

/// Rounds in which each kernel is timed, in rounds with the others; fewer for long ones (`LONG_US`), which differ by more than
/// the noise of a measurement.
const ROUNDS: usize = 9;
const LONG_ROUNDS: usize = 3;
const LONG_US: f64 = 50.0;

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Bytes up to which kernels are timed on noise.
const MOST_NOISE: usize = 1 << 30;
