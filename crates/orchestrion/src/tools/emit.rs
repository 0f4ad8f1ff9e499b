//! Code of an executable to take elsewhere: one file of C with a function that runs it, or the CUDA C++ of its kernels.

use crate::manifest::{ActionInfo, CtaInfo, Device, KernelInfo, Manifest, Port, Slot, SlotMemory, StepInfo};
use crate::{Artifact, Error};
use orch_mugraph::Certificate;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Bytes of constants that a file of C may hold.
const MOST_CONSTANT_BYTES: usize = 1 << 16;

/// C with a function that runs an executable of a CPU: `int NAME_run(const T *in0_x, .., T *out0_y, ..)`, with tensors in row-major
/// order, that returns 0, or 1 if there is not enough memory.
///
/// # Errors
/// If the executable is not one of a CPU, has steps that run on the host, or holds large constants.
pub fn c_source(artifact: &Artifact) -> Result<String, Error> {
    let manifest = &artifact.manifest;
    if manifest.device != Device::Cpu {
        return Err(Error::Unsupported(format!("C is written for CPUs, not for {}", manifest.target)));
    }
    let constant_bytes: usize = artifact.constants.iter().map(bytes::Bytes::len).sum();
    if constant_bytes > MOST_CONSTANT_BYTES {
        return Err(Error::Unsupported(format!(
            "the executable holds {constant_bytes} bytes of constants, and a file of C at most {MOST_CONSTANT_BYTES}"
        )));
    }
    let mut text = String::new();
    write_c(artifact, &mut text)?;
    Ok(text)
}

/// CUDA C++ of the kernels of an executable of a GPU, in the order in which they are launched, with grid, CTA, shared memory and
/// arguments of each launch in a comment.
///
/// # Errors
/// If the executable is not one of a GPU, or has steps that run on the host.
pub fn cuda_source(artifact: &Artifact) -> Result<String, Error> {
    let manifest = &artifact.manifest;
    if manifest.device != Device::Cuda {
        return Err(Error::Unsupported(format!("CUDA C++ is written for GPUs, not for {}", manifest.target)));
    }
    let mut text = String::new();
    write_cuda(manifest, &mut text)?;
    Ok(text)
}

/// What the comment at the top of a file says of the proofs.
fn remarks(manifest: &Manifest) -> Vec<String> {
    let proof = |proof: &Certificate| {
        format!(
            "Equal to `{}` over the real numbers but for a chance of 2^{:.0}.",
            name(proof),
            proof.log2_bound
        )
    };
    let mut lines: Vec<String> = manifest.proofs.iter().map(proof).collect();
    let reasons = manifest.parts.iter().filter_map(|part| part.unstable.as_ref());
    lines.extend(reasons.map(|reason| format!("Not stable, exponentials may overflow: {reason}")));
    lines
}

/// The name of a proof's program.
fn name(proof: &Certificate) -> &str {
    proof.program.split('"').nth(1).unwrap_or_default()
}

fn failed(_: std::fmt::Error) -> Error {
    Error::internal("a string takes all text")
}

fn host_step(step: &StepInfo) -> Error {
    Error::Unsupported(format!("step `{}` runs on the host, and has no source", step.name))
}

/// The comment at the top of a file.
fn write_remarks(manifest: &Manifest, lines: &[String], text: &mut String) -> std::fmt::Result {
    let Manifest { model, compiler, target, .. } = manifest;
    writeln!(text, "/*\n * {} for {target}, by Orchestrion {compiler}.", comment(&model.name))?;
    lines.iter().try_for_each(|line| writeln!(text, "{}", format!(" * {}", comment(line)).trim_end()))?;
    writeln!(text, " */")
}

/// Text that does not end a comment.
fn comment(text: &str) -> String {
    text.replace("*/", "* /").replace(['\n', '\r'], " ")
}

fn write_c(artifact: &Artifact, text: &mut String) -> Result<(), Error> {
    let manifest = &artifact.manifest;
    let function = format!("{}_run", manifest.model.label());
    let parameters = parameters(manifest)?;
    let mut lines = remarks(manifest);
    lines.push(String::new());
    lines.push(format!("int {function}({});", signature(&parameters)));
    let ports = manifest.inputs.iter().chain(&manifest.outputs);
    for (parameter, port) in parameters.iter().zip(ports) {
        lines.push(format!(
            "  {}: `{}`, {}{:?}, row-major",
            parameter.name, port.name, port.dtype, port.shape
        ));
    }
    lines.push(
        "It returns 0, or 1 if there is not enough memory. Outputs must not overlap inputs.".to_owned(),
    );
    lines.push(String::new());
    lines.push(format!(
        "cc -O2 -march={} -std=gnu11 -ffp-contract=fast -fno-math-errno -fno-trapping-math -c FILE.c (link with -lm);",
        march(&manifest.target)
    ));
    lines.push("with -fopenmp work items run on all threads.".to_owned());
    write_remarks(manifest, &lines, text).map_err(failed)?;
    text.push_str("#include <stdlib.h>\n#include <string.h>\n\n");
    write_kernels(&manifest.kernels, text);
    write_constants(artifact, text).map_err(failed)?;
    text.push_str(RUN_KERNEL);
    write_driver(manifest, &function, &parameters, text)
}

/// Runs work items, on all threads where OpenMP is at hand.
const RUN_KERNEL: &str = "
static int run_kernel(void (*kernel)(void *const *, int64_t, int64_t, void *, int64_t), void *const *buffers,
                      int64_t tasks, int64_t phases, size_t scratch_bytes) {
    int failed = 0;
#ifdef _OPENMP
#pragma omp parallel reduction(| : failed)
#endif
    {
        void *scratch = scratch_bytes ? aligned_alloc(64, (scratch_bytes + 63) / 64 * 64) : NULL;
        failed = scratch_bytes != 0 && scratch == NULL;
        /* What the thread has packed into its memory it need not pack again for the next item. */
        int64_t before = -1;
        const int64_t items = tasks / phases;
        for (int64_t phase = 0; phase < phases; phase++) {
            /* Threads wait for each other at the end of each phase. */
#ifdef _OPENMP
#pragma omp for
#endif
            for (int64_t task = phase * items; task < (phase + 1) * items; task++) {
                if (!failed) kernel(buffers, task, task + 1, scratch, before);
                before = task;
            }
        }
        free(scratch);
    }
    return failed;
}
";

/// What `-march=` calls the processors of a target.
fn march(target: &str) -> &str {
    if matches!(target, "x86-64-v3" | "x86-64-v4") { target } else { "native" }
}

/// A parameter of the function.
struct Parameter {
    name: String,
    c_type: &'static str,
    is_output: bool,
}

fn parameters(manifest: &Manifest) -> Result<Vec<Parameter>, Error> {
    let named = |prefix: &str, number: usize, port: &Port, is_output| {
        let letters = port.name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        let name = format!("{prefix}{number}_{letters}");
        let c_type = c_type(&port.dtype).ok_or_else(|| {
            Error::Unsupported(format!("`{}` is {}, which C does not have", port.name, port.dtype))
        })?;
        Ok(Parameter { name, c_type, is_output })
    };
    let inputs = manifest.inputs.iter().enumerate().map(|(number, port)| named("in", number, port, false));
    let outputs = manifest.outputs.iter().enumerate().map(|(number, port)| named("out", number, port, true));
    inputs.chain(outputs).collect()
}

/// The type of an element; 16-bit floats are passed as their bits.
fn c_type(dtype: &str) -> Option<&'static str> {
    Some(match dtype {
        "f32" => "float",
        "f64" => "double",
        "f16" | "bf16" | "u16" => "uint16_t",
        "bool" | "u8" => "uint8_t",
        "i8" => "int8_t",
        "i16" => "int16_t",
        "i32" => "int32_t",
        "u32" => "uint32_t",
        "i64" => "int64_t",
        "u64" => "uint64_t",
        _ => return None,
    })
}

fn signature(parameters: &[Parameter]) -> String {
    let one = |Parameter { name, c_type, is_output }: &Parameter| match is_output {
        true => format!("{c_type} *{name}"),
        false => format!("const {c_type} *{name}"),
    };
    parameters.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Each kernel's name in the file, which no other has.
fn symbol(kernel: &KernelInfo, number: usize) -> String {
    format!("{}_{number}", kernel.symbol)
}

/// The kernels' sources. Helpers that several of them define alike stand once.
fn write_kernels(kernels: &[KernelInfo], text: &mut String) {
    let mut known = BTreeSet::new();
    for (number, kernel) in kernels.iter().enumerate() {
        let own = kernel.source.find(&kernel.symbol).unwrap_or(0);
        let own = kernel.source[..own].rfind("\n\n").unwrap_or(0);
        let (helpers, body) = kernel.source.split_at(own);
        for helper in helpers.split("\n\n").map(str::trim_end).filter(|helper| !helper.is_empty()) {
            if known.insert(helper) {
                text.push_str(helper);
                text.push_str("\n\n");
            }
        }
        text.push_str(body.trim_start().replace(&kernel.symbol, &symbol(kernel, number)).trim_end());
        text.push_str("\n\n");
    }
}

fn write_constants(artifact: &Artifact, text: &mut String) -> std::fmt::Result {
    for (number, bytes) in artifact.constants.iter().enumerate() {
        write!(text, "static const unsigned char constant{number}[] __attribute__((aligned(64))) = {{")?;
        bytes.iter().try_for_each(|byte| write!(text, "{byte},"))?;
        writeln!(text, "0}};")?;
    }
    Ok(())
}

fn write_driver(
    manifest: &Manifest,
    function: &str,
    parameters: &[Parameter],
    text: &mut String,
) -> Result<(), Error> {
    let (inputs, outputs) = parameters.split_at(manifest.inputs.len());
    let place = |slot: &Slot| {
        let pointer = match slot.memory {
            SlotMemory::Arena(offset) => Some(format!("arena + {offset}")),
            SlotMemory::Constant(number) => Some(format!("constant{number}")),
            SlotMemory::Input(number) => inputs.get(number).map(|input| input.name.clone()),
            SlotMemory::Output(number) => outputs.get(number).map(|output| output.name.clone()),
        };
        let pointer =
            pointer.ok_or_else(|| Error::Unsupported("constants that can be replaced".to_owned()))?;
        Ok(format!("(void *)({pointer})"))
    };
    let mut write = || -> Result<Result<(), Error>, std::fmt::Error> {
        writeln!(text, "\nint {function}({}) {{", signature(parameters))?;
        let arena_bytes = manifest.arena_bytes.next_multiple_of(64).max(64);
        writeln!(text, "    char *arena = aligned_alloc(64, {arena_bytes});")?;
        writeln!(text, "    if (arena == NULL) return 1;\n    int failed = 0;")?;
        for step in &manifest.steps {
            let places: Vec<String> = match step.slots.iter().map(place).collect() {
                Ok(places) => places,
                Err(error) => return Ok(Err(error)),
            };
            match step.action {
                ActionInfo::Kernel(number) => {
                    let kernel = &manifest.kernels[number];
                    writeln!(text, "    if (!failed) {{")?;
                    writeln!(text, "        void *const buffers[] = {{{}}};", places.join(", "))?;
                    let KernelInfo { tasks, phases, scratch_bytes, .. } = *kernel;
                    let name = symbol(kernel, number);
                    writeln!(
                        text,
                        "        failed = run_kernel({name}, buffers, {tasks}, {phases}, {scratch_bytes});"
                    )?;
                    writeln!(text, "    }}")?;
                }
                ActionInfo::Copy => {
                    writeln!(text, "    memcpy({}, {}, {});", places[1], places[0], step.slots[0].bytes)?;
                }
                ActionInfo::Host { .. } => return Ok(Err(host_step(step))),
            }
        }
        writeln!(text, "    free(arena);\n    return failed;\n}}")?;
        Ok(Ok(()))
    };
    write().map_err(failed)?
}

fn write_cuda(manifest: &Manifest, text: &mut String) -> Result<(), Error> {
    let mut lines = remarks(manifest);
    lines.push(String::new());
    lines.push(format!("Working memory: {} bytes. Launches, in order:", manifest.arena_bytes));
    for step in &manifest.steps {
        match step.action {
            ActionInfo::Kernel(number) => {
                let kernel = &manifest.kernels[number];
                lines.push(format!(
                    "  {}{}",
                    kernel.symbol,
                    kernel.cta.as_ref().map_or(String::new(), |cta| launch(kernel, cta))
                ));
                lines.extend(step.slots.iter().enumerate().map(|slot| argument(manifest, slot)));
                let cleared = step.cleared.iter();
                lines.extend(
                    cleared
                        .map(|cleared| format!("    argument {} is filled with zeros before", cleared.slot)),
                );
                let maps = kernel.cta.iter().flat_map(|cta| &cta.tensor_maps);
                lines.extend(maps.map(|map| {
                    format!(
                        "    then a tensor map of argument {}: from byte {}, extents {:?}, strides {:?} bytes, {} rows a tile",
                        map.argument, map.offset_bytes, map.extents, map.strides_bytes, map.rows
                    )
                }));
            }
            ActionInfo::Copy => {
                lines.push(format!("  a copy of {} bytes:", step.slots[0].bytes));
                lines.extend(step.slots.iter().enumerate().map(|slot| argument(manifest, slot)));
            }
            ActionInfo::Host { .. } => return Err(host_step(step)),
        }
    }
    lines.push(String::new());
    lines.push("Each kernel is a translation unit of its own, between lines of `// kernel`.".to_owned());
    write_remarks(manifest, &lines, text).map_err(failed)?;
    for kernel in &manifest.kernels {
        write!(text, "\n// kernel {}\n{}", kernel.symbol, kernel.source).map_err(failed)?;
    }
    Ok(())
}

fn launch(kernel: &KernelInfo, cta: &CtaInfo) -> String {
    let CtaInfo { threads, cluster, shared_bytes, is_cooperative, .. } = cta;
    let cooperative = if *is_cooperative { ", a cooperative launch" } else { "" };
    format!("<<<{}, {threads}, {shared_bytes}>>>, clusters of {cluster}{cooperative}", kernel.tasks)
}

fn argument(manifest: &Manifest, (number, slot): (usize, &Slot)) -> String {
    let port = |kind: &str, ports: &[Port], number: usize| match ports.get(number) {
        Some(port) => format!("{kind} `{}`", port.name),
        None => format!("{kind} {number}"),
    };
    let memory = match slot.memory {
        SlotMemory::Arena(offset) => format!("working memory from byte {offset}"),
        SlotMemory::Constant(number) => format!("constant {number} of the executable"),
        SlotMemory::Input(number) => port("input", &manifest.inputs, number),
        SlotMemory::Output(number) => port("output", &manifest.outputs, number),
    };
    format!("    argument {number}: {memory}, {}{:?}", slot.dtype, slot.shape)
}
