//! Whether a part's proof, program, µGraph, kernels and tensors are those that were put together when the model was compiled.

use crate::build::proved_parts::text_hash;
use crate::manifest::{
    ActionInfo, KernelInfo, Manifest, PartArgument, PartKernel, PartTensor, ProvedPart, SlotMemory, StepInfo,
};
use orch_ir::message;
use orch_mugraph::{Certificate, MuGraph, Node, TensorId};
use std::collections::BTreeMap;

/// What a part consists of.
#[derive(Debug)]
pub struct Bound<'a> {
    /// The proof's µGraph.
    pub graph: MuGraph,
    /// The steps that run its kernels, in the order of the µGraph, and the kernels.
    pub kernels: Vec<(&'a StepInfo, &'a KernelInfo)>,
}

/// The names of the kernels that a part says are its own.
pub fn kernel_names(part: &ProvedPart, manifest: &Manifest) -> Vec<String> {
    let name = |kernel: &PartKernel| {
        manifest.steps.get(kernel.step).map_or("none".to_owned(), |step| message::name(&step.name))
    };
    part.kernels.iter().map(name).collect()
}

/// What a part consists of, if all of it is what it was bound to.
///
/// # Errors
/// What does not match, and of which kernel.
pub fn bound<'a>(part: &ProvedPart, manifest: &'a Manifest) -> Result<Bound<'a>, String> {
    let of_part = |what: String| format!("kernel `{}`: {what}", kernel_names(part, manifest).join("`, `"));
    let certificate =
        manifest.proofs.get(part.proof).ok_or_else(|| of_part("there is no proof of it".to_owned()))?;
    let graph = texts(part, certificate).map_err(of_part)?;
    let defined: Vec<(TensorId, &Node)> = graph.kernel_nodes().collect();
    if defined.len() != part.kernels.len() {
        let (own, given) = (defined.len(), part.kernels.len());
        return Err(of_part(format!("its µGraph has {own} kernels, and {given} are bound to it")));
    }
    let mut places: BTreeMap<&String, SlotMemory> = BTreeMap::new();
    let mut kernels = Vec::new();
    for (bound, (first, node)) in part.kernels.iter().zip(defined) {
        let step = manifest.steps.get(bound.step).ok_or_else(|| of_part("no step runs it".to_owned()))?;
        let of_kernel = |what: String| format!("kernel `{}`: {what}", message::name(&step.name));
        let kernel = kernel_of(step, bound, part, manifest).map_err(of_kernel)?;
        KernelTensors { graph: &graph, node, first }.check(step, bound).map_err(of_kernel)?;
        // A tensor is at one place for all kernels that read or write it.
        for PartArgument { name, memory } in &bound.arguments {
            if places.insert(name, *memory).is_some_and(|other| other != *memory) {
                let name = message::name(name);
                return Err(of_kernel(format!("tensor `{name}` of its µGraph is at two places")));
            }
        }
        kernels.push((step, kernel));
    }
    Ok(Bound { graph, kernels })
}

/// The first step that states a proof and belongs to no part, or to two.
///
/// # Errors
/// Which one.
pub fn all_are_bound(manifest: &Manifest) -> Result<(), String> {
    let bound = manifest.parts.iter().flat_map(|part| &part.kernels);
    let mut counts = vec![0; manifest.steps.len()];
    for kernel in bound {
        if let Some(count) = counts.get_mut(kernel.step) {
            *count += 1;
        }
    }
    for (step, count) in manifest.steps.iter().zip(counts) {
        if step.proof.is_some() && count != 1 {
            let name = message::name(&step.name);
            let what =
                if count == 0 { "is bound to no proof; compile the model again" } else { "is bound twice" };
            return Err(format!("kernel `{name}` {what}"));
        }
    }
    Ok(())
}

/// The µGraph of a proof, which is of the texts that a part was bound to and of inputs and outputs of its names.
fn texts(part: &ProvedPart, certificate: &Certificate) -> Result<MuGraph, String> {
    let parsed = |what: &str, text: &str, hash: &str| {
        if text_hash(text) != hash {
            return Err(format!("the {what} of its proof is not the one that it was compiled with"));
        }
        orch_mugraph::parse(text).map_err(|error| format!("the {what} of its proof: {error}"))
    };
    let program = parsed("program", &certificate.program, &part.program)?;
    let graph = parsed("µGraph", &certificate.candidate, &part.candidate)?;
    for (what, own) in [("program", &program), ("µGraph", &graph)] {
        let inputs: Vec<&str> = own.inputs().map(|(_, name, _)| name).collect();
        let outputs: Vec<&str> = own.outputs().iter().map(|(name, _)| name.as_str()).collect();
        for (side, names, bound) in [("inputs", inputs, &part.inputs), ("outputs", outputs, &part.outputs)] {
            let bound: Vec<&str> = bound.iter().map(|tensor| tensor.name.as_str()).collect();
            if names != bound {
                let (names, bound) = (names.join(", "), message::name(&bound.join(", ")));
                return Err(format!("the {side} of its {what} are {names}, and it is bound to {bound}"));
            }
        }
    }
    let outputs = graph.outputs().iter().map(|(_, tensor)| *tensor);
    let tensors = graph.inputs().map(|(tensor, ..)| tensor).chain(outputs);
    let bound = part.inputs.iter().chain(&part.outputs);
    let fits = |(tensor, bound): (TensorId, &PartTensor)| bound.strides.len() == graph.shape(tensor).len();
    if tensors.zip(bound).all(fits) { Ok(graph) } else { Err("its tensors have other ranks".to_owned()) }
}

/// The kernel of a step, which is the one that was bound.
fn kernel_of<'a>(
    step: &StepInfo,
    bound: &PartKernel,
    part: &ProvedPart,
    manifest: &'a Manifest,
) -> Result<&'a KernelInfo, String> {
    if step.proof != Some(part.proof) {
        return Err("its step states another proof".to_owned());
    }
    let ActionInfo::Kernel(number) = step.action else { return Err("its step runs no kernel".to_owned()) };
    let kernel = manifest.kernels.get(number).ok_or("there is no such kernel")?;
    if kernel.fingerprint != bound.fingerprint {
        return Err("it is not the one that was lowered from its µGraph".to_owned());
    }
    if text_hash(&kernel.source) != bound.source {
        return Err("its source is not the one that was lowered from its µGraph".to_owned());
    }
    Ok(kernel)
}

/// The tensors of a kernel of a µGraph.
struct KernelTensors<'a> {
    graph: &'a MuGraph,
    node: &'a Node,
    first: TensorId,
}

impl KernelTensors<'_> {
    /// The arguments are tensors that the kernel of the µGraph reads and writes, where the step has them.
    fn check(&self, step: &StepInfo, bound: &PartKernel) -> Result<(), String> {
        if bound.defines != self.first.0 {
            return Err(format!("it is bound to t{} of its µGraph, not to {}", bound.defines, self.first));
        }
        if bound.arguments.len() != step.slots.len() {
            return Err("it has other arguments than its µGraph".to_owned());
        }
        let named = |tensors: Vec<TensorId>| -> Vec<String> {
            tensors.into_iter().map(|tensor| self.graph.name(tensor)).collect()
        };
        let read = named(self.node.args());
        let results = (0..self.node.results()).map(|at| TensorId(self.first.0 + at as u32));
        let written = named(results.collect());
        for (argument, slot) in bound.arguments.iter().zip(&step.slots) {
            let name = message::name(&argument.name);
            if argument.memory != slot.memory {
                return Err(format!("its argument `{name}` is another tensor than when it was compiled"));
            }
            let own = if slot.written { &written } else { &read };
            if !own.contains(&argument.name) {
                return Err(format!("its argument `{name}` is no such tensor of its µGraph"));
            }
        }
        match written.iter().find(|name| !bound.arguments.iter().any(|argument| argument.name == **name)) {
            Some(name) => Err(format!("no argument of it is `{name}`, which it writes")),
            None => Ok(()),
        }
    }
}
