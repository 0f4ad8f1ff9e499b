//! Whether the parts of an artifact fit each other: checked when one is read from a file, and before one that was compiled is given
//! away. After this, running it touches no memory that it should not, as long as its kernels do what they were compiled to.

use crate::manifest::{
    ActionInfo, ClearedSlot, Device, KernelInfo, Manifest, Port, Slot, SlotMemory, StepInfo, UpdatableInfo,
    typed,
};
use crate::run::host::InterpretedPart;
use bytes::Bytes;
use orch_ir::message;
use orch_runtime::cpu::ALIGN_BYTES;
use orch_thread::target::CPU_TARGETS;

/// A hash of a kernel's code and of all that the manifest says of how it is launched. It ties both together: a manifest in which one of
/// them was changed, or the code of another kernel put in its place, is noticed. It does not keep anyone from writing a new one.
pub fn fingerprint(kernel: &KernelInfo, object: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(object);
    part(kernel.symbol.as_bytes());
    for number in [kernel.tasks, kernel.scratch_bytes] {
        part(&(number as u64).to_le_bytes());
    }
    if kernel.phases != 1 {
        part(&(kernel.phases as u64).to_le_bytes());
    }
    for argument in &kernel.arguments {
        part(&[u8::from(argument.written)]);
        part(&(argument.bytes as u64).to_le_bytes());
    }
    if let Some(cta) = &kernel.cta {
        // A launch relies on all of it. Plain data has a JSON form.
        part(&serde_json::to_vec(cta).unwrap_or_default());
    }
    hasher.finalize().to_hex().to_string()
}

/// An artifact's parts.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    /// The plan.
    pub manifest: &'a Manifest,
    /// Shared objects or cubins.
    pub libraries: &'a [Bytes],
    /// Constants.
    pub constants: &'a [Bytes],
}

/// Checks the parts of an artifact.
///
/// # Errors
/// A clause with the first part that does not fit the others.
pub fn check(parts: Parts<'_>) -> Result<(), String> {
    let manifest = parts.manifest;
    let is_known = match manifest.device {
        Device::Cpu => CPU_TARGETS.iter().any(|target| target.name == manifest.target),
        Device::Cuda => is_gpu(&manifest.target),
    };
    if !is_known {
        return Err(format!("its target `{}` is not known", message::name(&manifest.target)));
    }
    for kernel in &manifest.kernels {
        check_kernel(kernel, parts)
            .map_err(|what| format!("kernel `{}` {what}", message::name(&kernel.name)))?;
    }
    let mut written = Written::default();
    for step in &manifest.steps {
        check_step(step, parts, &mut written)
            .map_err(|what| format!("step `{}` {what}", message::name(&step.name)))?;
    }
    for (number, port) in manifest.outputs.iter().enumerate() {
        let is_written = port_bytes(port)? == 0 || written.outputs.contains(&number);
        if !is_written {
            return Err(format!("no step writes output `{}`", message::name(&port.name)));
        }
    }
    check_updates(manifest)?;
    for UpdatableInfo { port, constant } in &manifest.updatable {
        if parts.constants.get(*constant).map(Bytes::len) != Some(port_bytes(port)?) {
            return Err(format!("the updatable constant `{}` has no value", message::name(&port.name)));
        }
    }
    manifest.inputs.iter().try_for_each(|port| port_bytes(port).map(drop))
}

/// Outputs that are updated in place have the types of their inputs, none of which has two; the first step that names one copies the old
/// value, a single one writes it then, and no step after that reads the old one.
fn check_updates(manifest: &Manifest) -> Result<(), String> {
    for (number, update) in manifest.updates.iter().enumerate() {
        let (Some(output), Some(input)) =
            (manifest.outputs.get(update.output), manifest.inputs.get(update.input))
        else {
            return Err("updates what it does not have".to_owned());
        };
        let refuse = |what: &str| Err(format!("the updated output `{}` {what}", message::name(&output.name)));
        if (&output.dtype, &output.shape) != (&input.dtype, &input.shape) {
            return refuse("is not of its input's type");
        }
        let earlier = &manifest.updates[..number];
        if earlier.iter().any(|other| other.output == update.output || other.input == update.input) {
            return refuse("is not the only one of its input");
        }
        let [new, old] = [SlotMemory::Output(update.output), SlotMemory::Input(update.input)];
        let is_copy = |step: &StepInfo| {
            step.action == ActionInfo::Copy && step.slots.iter().map(|slot| slot.memory).eq([old, new])
        };
        let names = |step: &StepInfo, memory, written: Option<bool>| {
            let is_it = |slot: &Slot| slot.memory == memory && written.is_none_or(|it| it == slot.written);
            step.slots.iter().any(is_it)
        };
        let Some(first) = manifest.steps.iter().position(|step| names(step, new, None)) else {
            return refuse("is never written");
        };
        let mut writers =
            (first + 1..manifest.steps.len()).filter(|&step| names(&manifest.steps[step], new, Some(true)));
        let (Some(writer), None) = (writers.next(), writers.next()) else {
            return refuse("is not written once");
        };
        let mut later = manifest.steps[writer + 1..].iter();
        if !is_copy(&manifest.steps[first]) || later.any(|step| names(step, old, None)) {
            return refuse("is written before its input was read");
        }
    }
    Ok(())
}

/// True for `sm_` and a compute capability, and for `compute_` and one: GPUs that have no table have such names, too.
fn is_gpu(target: &str) -> bool {
    let number = target.strip_prefix("sm_").or_else(|| target.strip_prefix("compute_"));
    number.is_some_and(|number| number.len() <= 4 && number.parse::<u32>().is_ok())
}

fn port_bytes(port: &Port) -> Result<usize, String> {
    tensor_bytes(&port.dtype, &port.shape).map_err(|what| format!("`{}` {what}", message::name(&port.name)))
}

fn tensor_bytes(dtype: &str, shape: &[usize]) -> Result<usize, String> {
    let (dtype, shape) =
        typed(dtype, shape).map_err(|_| format!("is of unknown type {}{shape:?}", message::name(dtype)))?;
    shape.elems().checked_mul(dtype.size_bytes()).ok_or_else(|| "is too large".to_owned())
}

fn check_kernel(kernel: &KernelInfo, parts: Parts<'_>) -> Result<(), String> {
    let object = parts.libraries.get(kernel.library).ok_or("has no library")?;
    if fingerprint(kernel, object) != kernel.fingerprint {
        return Err("is not the one that was compiled".to_owned());
    }
    if kernel.phases == 0 || !kernel.tasks.is_multiple_of(kernel.phases) {
        return Err(format!("has {} work items in {} phases", kernel.tasks, kernel.phases));
    }
    match (parts.manifest.device, &kernel.cta) {
        (Device::Cpu, None) | (Device::Cuda, Some(_)) => Ok(()),
        (Device::Cpu, Some(_)) | (Device::Cuda, None) => Err("is for another kind of device".to_owned()),
    }
}

/// What the steps so far have written.
#[derive(Default)]
struct Written {
    /// Ranges of the arena: first byte and length.
    arena: Vec<(usize, usize)>,
    /// Numbers of outputs.
    outputs: Vec<usize>,
}

fn check_step(step: &StepInfo, parts: Parts<'_>, written: &mut Written) -> Result<(), String> {
    let manifest = parts.manifest;
    if ![step.cost_us, step.roofline_us, step.alone_us, step.flops]
        .iter()
        .all(|figure| figure.is_finite() && *figure >= 0.0)
    {
        return Err("has impossible figures".to_owned());
    }
    if step.proof.is_some_and(|proof| proof >= manifest.proofs.len()) {
        return Err("has no proof".to_owned());
    }
    for slot in &step.slots {
        check_slot(slot, parts)?;
    }
    check_action(step, manifest)?;
    for &cleared in &step.cleared {
        check_cleared(cleared, step, parts)?;
    }
    for slot in step.slots.iter().filter(|slot| !slot.written && slot.bytes > 0) {
        let range = match slot.memory {
            SlotMemory::Arena(offset) => (offset, slot.bytes),
            SlotMemory::Output(number) if written.outputs.contains(&number) => continue,
            SlotMemory::Output(_) => return Err("reads an output that no step before it writes".to_owned()),
            SlotMemory::Constant(_) | SlotMemory::Input(_) => continue,
        };
        // The last step that wrote any of it has written all of it, and nothing else with it.
        let overlaps = |other: &(usize, usize)| other.0 < range.0 + range.1 && range.0 < other.0 + other.1;
        if written.arena.iter().rfind(|other| overlaps(other)) != Some(&range) {
            return Err("reads memory that no step before it writes".to_owned());
        }
    }
    for slot in step.slots.iter().filter(|slot| slot.written && slot.bytes > 0) {
        match slot.memory {
            SlotMemory::Arena(offset) => {
                let range = (offset, slot.bytes);
                written.arena.retain(|other| other.0 >= range.0 + range.1 || range.0 >= other.0 + other.1);
                written.arena.push(range);
            }
            SlotMemory::Output(number) => written.outputs.push(number),
            SlotMemory::Constant(_) | SlotMemory::Input(_) => {
                return Err("writes what is only read".to_owned());
            }
        }
    }
    Ok(())
}

/// What a kernel expects to be zeros is its own to write, and is filled from a constant of as many zeros.
fn check_cleared(cleared: ClearedSlot, step: &StepInfo, parts: Parts<'_>) -> Result<(), String> {
    let slot = step.slots.get(cleared.slot).filter(|slot| slot.written);
    let zeros = parts.constants.get(cleared.constant).filter(|zeros| zeros.iter().all(|&byte| byte == 0));
    let fits = slot.zip(zeros).is_some_and(|(slot, zeros)| {
        matches!(slot.memory, SlotMemory::Arena(_)) && slot.bytes == zeros.len()
    });
    let is_kernel = matches!(step.action, ActionInfo::Kernel(_));
    if fits && is_kernel { Ok(()) } else { Err("clears what is not its own working memory".to_owned()) }
}

/// A slot lies inside of its memory, and is as long as its type and shape say.
fn check_slot(slot: &Slot, parts: Parts<'_>) -> Result<(), String> {
    let manifest = parts.manifest;
    if tensor_bytes(&slot.dtype, &slot.shape)? != slot.bytes {
        return Err(format!("has {} bytes for {}{:?}", slot.bytes, message::name(&slot.dtype), slot.shape));
    }
    let (size, offset) = match slot.memory {
        SlotMemory::Arena(offset) => (Some(manifest.arena_bytes), offset),
        SlotMemory::Constant(number) => (parts.constants.get(number).map(Bytes::len), 0),
        SlotMemory::Input(number) => (manifest.program_inputs().nth(number).map(port_bytes).transpose()?, 0),
        SlotMemory::Output(number) => (manifest.outputs.get(number).map(port_bytes).transpose()?, 0),
    };
    let end = offset.checked_add(slot.bytes);
    if size.zip(end).is_none_or(|(size, end)| end > size) {
        return Err("uses memory that does not exist".to_owned());
    }
    if !offset.is_multiple_of(ALIGN_BYTES) {
        return Err(format!("uses memory that does not start at a multiple of {ALIGN_BYTES} bytes"));
    }
    Ok(())
}

fn check_action(step: &StepInfo, manifest: &Manifest) -> Result<(), String> {
    match &step.action {
        ActionInfo::Kernel(number) => {
            let kernel = manifest.kernels.get(*number).ok_or("has no kernel")?;
            let fits = kernel
                .arguments
                .iter()
                .zip(&step.slots)
                .all(|(argument, slot)| argument.bytes == slot.bytes && argument.written == slot.written);
            if !fits || kernel.arguments.len() != step.slots.len() {
                return Err("has other tensors than its kernel takes".to_owned());
            }
            let waits = kernel.cta.as_ref().is_some_and(|cta| cta.is_cooperative);
            if waits && step.cleared.is_empty() {
                return Err("has CTAs that wait for each other at counters that are not cleared".to_owned());
            }
        }
        ActionInfo::Copy => match &step.slots[..] {
            [from, to] if !from.written && to.written && from.bytes == to.bytes => {}
            _ => return Err("does not copy one tensor to one".to_owned()),
        },
        ActionInfo::Host { graph, layouts } => check_host(graph, layouts, &step.slots)?,
    }
    Ok(())
}

/// A host routine's graph takes and gives tensors of the shapes of its slots.
fn check_host(graph: &str, layouts: &[Vec<usize>], slots: &[Slot]) -> Result<(), String> {
    let part = InterpretedPart::of(graph, layouts, slots).map_err(|what| message::sentence(&what))?;
    let graph = &part.graph;
    let tensors = graph.inputs.iter().chain(&graph.outputs).map(|(_, tensor)| *tensor);
    let fits = tensors.zip(slots).enumerate().all(|(position, (tensor, slot))| {
        graph.shape(tensor)[..] == slot.shape[..] && slot.written == (position >= graph.inputs.len())
    });
    if fits { Ok(()) } else { Err("has a graph of other tensors".to_owned()) }
}
