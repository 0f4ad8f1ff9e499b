//! From an artifact to what a runtime executes: kernels loaded, steps with their memory.

use super::host::InterpretedPart;
use super::joined::joined;
use super::launch::{buffer_ref, check_fits, launch_shape, starts_early, tensor_map_shape};
use super::options::RunOptions;
use crate::Error;
use crate::manifest::{
    ActionInfo, ClearedSlot, KernelInfo, Manifest, Port, Slot, SlotMemory, StepInfo, typed,
};
use crate::parallel::MAX_THREADS;
use crate::plan::sharing::chunking;
use bytes::Bytes;
use orch_runtime::cpu::{Library, Pool, PoolOptions, usable_cores};
use orch_runtime::cuda::{Context, CudaError, Device, Driver, ExecutableOptions, Module, ProfilerRanges};
use orch_runtime::program::{Action, HostStep, Program, ProgramError, Step, TensorRef};
use orch_runtime::{cpu, cuda};

/// A program for threads of this process.
pub fn on_cpu(
    manifest: &Manifest,
    (libraries, constants): (&[Bytes], Vec<Bytes>),
    threads: usize,
) -> Result<cpu::CpuProgram, Error> {
    check_cpu(manifest)?;
    if threads > MAX_THREADS {
        return Err(Error::Input(format!(
            "{threads} threads are requested; at most {MAX_THREADS} work on one run"
        )));
    }
    let threads = match threads {
        0 => usable_cores(),
        threads => threads,
    };
    let scratch = manifest.kernels.iter().map(|kernel| kernel.scratch_bytes).max().unwrap_or(0);
    check_memory(manifest, manifest.arena_bytes.saturating_add(scratch.saturating_mul(threads)))?;
    let libraries = load_libraries(libraries)?;
    let launch = |step: &StepInfo, info: &KernelInfo| {
        let library = libraries.get(info.library).ok_or_else(|| inconsistent(step, "has no library"))?;
        let kernel = library
            .kernel(&info.symbol, info.tasks as i64, info.scratch_bytes)
            .map_err(|error| inconsistent(step, &format!("has a library without its kernel ({error})")))?;
        let buffers = step.slots.iter().map(buffer_ref).collect();
        let chunking = chunking(step.alone_us, info.phases);
        Ok(cpu::Launch { kernel, buffers, chunking, phases: info.phases as i64 })
    };
    let program = program(manifest, constants, &launch)?;
    // Fewer threads would meet those of other programs that are bound to the same cores, and more share cores.
    let pin = threads > 1 && threads == usable_cores();
    let pool = Pool::shared(PoolOptions { threads, pin });
    let program = cpu::CpuProgram::new(program, pool).map_err(|error| invalid_program(&error))?;
    program.with_joined(joined(manifest, threads)).map_err(|error| invalid_program(&error))
}

/// A program for a GPU of this machine.
pub fn on_gpu(
    manifest: &Manifest,
    (cubins, constants): (&[Bytes], Vec<Bytes>),
    options: &RunOptions,
) -> Result<cuda::CudaProgram, Error> {
    let no_gpu = |error: CudaError| {
        Error::Environment(format!("the executable is for a GPU ({}): {error}", manifest.target))
    };
    let driver = Driver::load(&options.cuda).map_err(no_gpu)?;
    let device = driver.device(options.device).map_err(no_gpu)?;
    check_device(manifest, &device)?;
    let context = Context::new(&device).map_err(Error::from)?;
    let load = |(number, cubin): (usize, &Bytes)| {
        let kernel = manifest.kernels.iter().find(|kernel| kernel.library == number);
        let name = kernel.map_or_else(|| format!("kernels {number}"), |kernel| kernel.name.clone());
        Module::load(&context, &name, cubin).map_err(Error::from)
    };
    let modules: Vec<Module> = cubins.iter().enumerate().map(load).collect::<Result<_, _>>()?;
    let is_early = starts_early(manifest);
    let calls = manifest.kernels.iter().filter_map(|kernel| kernel.call.as_ref());
    let libraries = cuda::Libraries::load(calls.map(|call| call.computation.library()), &options.cuda);
    let launch = |step: &StepInfo, info: &KernelInfo| {
        let module = modules.get(info.library).ok_or_else(|| inconsistent(step, "has no library"))?;
        let cta = info.cta.as_ref().ok_or_else(|| inconsistent(step, "has a kernel without threads"))?;
        let shape = launch_shape(info.tasks, cta, is_early)
            .ok_or_else(|| inconsistent(step, "has a kernel that is too large"))?;
        let function = module.function(&info.symbol).map_err(Error::from)?;
        let buffers = step.slots.iter().map(buffer_ref).collect();
        let call = info.call.as_ref().and_then(|call| libraries.call(&call.computation));
        let tensor_maps = cta.tensor_maps.iter().map(tensor_map_shape).collect();
        let cleared = step.cleared.iter().map(|cleared| cleared_argument(step, *cleared));
        let cleared = cleared.collect::<Result<_, _>>()?;
        Ok(cuda::Launch { function, shape, buffers, tensor_maps, cleared, call })
    };
    let program = program(manifest, constants, &launch)?;
    let steps = manifest.steps.iter().map(|step| step.name.as_str());
    let ranges = ProfilerRanges::load(&options.cuda, &manifest.model.label(), steps);
    let options = ExecutableOptions {
        check_each_step: options.check_each_step,
        allocate_late: options.allocate_late,
        ..ExecutableOptions::default()
    };
    let program =
        cuda::CudaProgram::new(&context, program, options).map_err(Error::from)?.with_ranges(ranges);
    check_memory(manifest, 0)?;
    Ok(program)
}

/// A cleared tensor in the runtime's terms.
fn cleared_argument(
    step: &StepInfo,
    ClearedSlot { slot, constant }: ClearedSlot,
) -> Result<cuda::ClearedArgument, Error> {
    let to =
        step.slots.get(slot).ok_or_else(|| inconsistent(step, "clears a tensor that it does not have"))?;
    let zeros = Slot { memory: SlotMemory::Constant(constant), written: false, ..to.clone() };
    Ok(cuda::ClearedArgument { argument: slot, zeros: buffer_ref(&zeros) })
}

/// Refuses a GPU that does not run code of the manifest's target, or has less shared memory than the kernels take.
fn check_device(manifest: &Manifest, device: &Device) -> Result<(), Error> {
    let info = device.info();
    if info.capability.runs(&manifest.target) {
        let is_cooperative = |kernel: &&KernelInfo| kernel.cta.as_ref().is_some_and(|cta| cta.is_cooperative);
        let waiting = manifest.kernels.iter().filter(is_cooperative).map(|kernel| kernel.tasks).max();
        if let Some(ctas) = waiting.filter(|&ctas| ctas > info.sm_count as usize) {
            return Err(Error::Environment(format!(
                "a kernel of the executable has {ctas} CTAs that wait for each other, one on an SM, but {} has {} SMs; compile it \
                 again for this GPU (--target cuda)",
                info.name, info.sm_count
            )));
        }
        let ctas = manifest.kernels.iter().filter_map(|kernel| kernel.cta.as_ref());
        let needed = ctas.map(|cta| cta.shared_bytes).max().unwrap_or(0);
        if needed <= info.shared_bytes_per_block as usize {
            return Ok(());
        }
        return Err(Error::Environment(format!(
            "a kernel of the executable takes {} KiB of shared memory, but a CTA of {} has {}; compile it again for this GPU \
             (--target cuda)",
            needed.div_ceil(1 << 10),
            info.name,
            info.shared_bytes_per_block >> 10
        )));
    }
    Err(Error::Environment(format!(
        "the executable is for `{}`, but the GPU of this machine, {}, has compute capability {}; compile it again for this one \
         (--target cuda)",
        manifest.target, info.name, info.capability
    )))
}

/// Steps with their memory, where `launch` makes a device's launch of a step and its kernel.
fn program<L>(
    manifest: &Manifest,
    constants: Vec<Bytes>,
    launch: &dyn Fn(&StepInfo, &KernelInfo) -> Result<L, Error>,
) -> Result<Program<L>, Error> {
    let steps = manifest.steps.iter().map(|step| {
        let action = action(manifest, step, launch)?;
        Ok(Step { name: step.name.clone(), action })
    });
    Ok(Program {
        arena_bytes: manifest.arena_bytes,
        constants,
        input_bytes: port_bytes(manifest.program_inputs())?,
        output_bytes: port_bytes(&manifest.outputs)?,
        updates: manifest.updates.clone(),
        steps: steps.collect::<Result<_, Error>>()?,
    })
}

fn inconsistent(step: &StepInfo, what: &str) -> Error {
    Error::Model(format!("the .orc file is inconsistent: step `{}` {what}", step.name))
}

fn action<L>(
    manifest: &Manifest,
    step: &StepInfo,
    launch: &dyn Fn(&StepInfo, &KernelInfo) -> Result<L, Error>,
) -> Result<Action<L>, Error> {
    Ok(match &step.action {
        ActionInfo::Kernel(number) => {
            let info = manifest.kernels.get(*number).ok_or_else(|| inconsistent(step, "has no kernel"))?;
            Action::Launch(launch(step, info)?)
        }
        ActionInfo::Copy => {
            let [from, to] = &step.slots[..] else {
                return Err(inconsistent(step, "does not copy one tensor to one"));
            };
            Action::Copy { from: buffer_ref(from), to: buffer_ref(to) }
        }
        ActionInfo::Host { graph, layouts } => {
            let part =
                InterpretedPart::of(graph, layouts, &step.slots).map_err(|what| inconsistent(step, &what))?;
            let tensors = step.slots.iter().map(tensor_ref).collect::<Result<Vec<_>, _>>()?;
            let (inputs, outputs) = tensors.split_at(part.graph.inputs.len());
            Action::Host(HostStep {
                inputs: inputs.to_vec(),
                outputs: outputs.to_vec(),
                routine: Box::new(part),
            })
        }
    })
}

/// Sizes of inputs or outputs.
pub fn port_bytes<'a>(ports: impl IntoIterator<Item = &'a Port>) -> Result<Vec<usize>, Error> {
    ports
        .into_iter()
        .map(|port| typed(&port.dtype, &port.shape).map(|(dtype, shape)| shape.elems() * dtype.size_bytes()))
        .collect()
}

/// Refuses what, with so much working memory, cannot fit this machine: an allocation that fails would end the process.
fn check_memory(manifest: &Manifest, working_bytes: usize) -> Result<(), Error> {
    let ports = [port_bytes(&manifest.inputs)?, port_bytes(&manifest.outputs)?].concat();
    check_fits(ports.into_iter().fold(working_bytes, usize::saturating_add))
}

/// Refuses a program that breaks the rules of programs, which the file that it came from is to blame for: what is compiled here is
/// checked before.
fn invalid_program(error: &ProgramError) -> Error {
    let violations = error.violations.join("; ");
    Error::Model(format!("the .orc file is inconsistent: {violations}; compile the model again"))
}

/// Refuses a machine without the instructions that kernels may use, and requests the right to use matrix tiles (AMX) from the system
/// if they use them: [`orch_runtime::Machine::detect`] does it.
fn check_cpu(manifest: &Manifest) -> Result<(), Error> {
    let missing = cpu::missing_extensions(&manifest.extensions);
    if !missing.is_empty() {
        return Err(Error::Environment(format!(
            "the executable is for `{}`, and this machine has no {}; compile the model on this machine, or for a target that it has \
             (--target; `orchestrion doctor` lists what it has)",
            manifest.target,
            missing.join(", ")
        )));
    }
    let target = orch_thread::target::CPU_TARGETS.iter().find(|target| target.name == manifest.target);
    let has_tiles = target.is_some_and(|target| target.has_amx_bf16);
    if !has_tiles || orch_runtime::Machine::detect().has(orch_runtime::Feature::AmxBf16) {
        return Ok(());
    }
    Err(Error::Environment(format!(
        "the executable is for `{}`, but this machine has no matrix tiles (AMX), or its system does not grant them; \
         compile it for another target",
        manifest.target
    )))
}

fn load_libraries(objects: &[bytes::Bytes]) -> Result<Vec<Library>, Error> {
    let load = |(number, object): (usize, &bytes::Bytes)| {
        Library::from_bytes(&format!("kernels {number}"), object)
            .map_err(|error| Error::Environment(error.to_string()))
    };
    objects.iter().enumerate().map(load).collect()
}

fn tensor_ref(slot: &Slot) -> Result<TensorRef, Error> {
    let (dtype, shape) = typed(&slot.dtype, &slot.shape)?;
    Ok(TensorRef { buffer: buffer_ref(slot), dtype, shape })
}
