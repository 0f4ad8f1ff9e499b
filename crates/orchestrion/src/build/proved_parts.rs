//! What the manifest says of the parts of a model that kernels of proved µGraphs compute.

use crate::manifest::{KernelInfo, PartArgument, PartKernel, PartTensor, ProvedPart, StepInfo};
use crate::plan::implementation::{ColumnBody, Implementation, PlannedPart};
use crate::plan::substitute::StoredView;
use orch_ir::TensorId;
use orch_mugraph::{Band, MuGraph};
use orch_thread::kernel::Binding;

/// The parts of a plan, with the kernels that were built for them.
pub fn proved_parts(
    implementation: &Implementation,
    steps: &[StepInfo],
    step_of_column: &[usize],
    kernels: &[KernelInfo],
) -> Vec<ProvedPart> {
    let part = |part: &PlannedPart| {
        let PlannedPart { proof, substitute, columns } = part;
        let graph = substitute.proved.graph().ok()?;
        let kernel = |(&column, (defines, _)): (&usize, (orch_mugraph::TensorId, _))| {
            let ColumnBody::Kernel { kernel, .. } = implementation.columns[column].body else { return None };
            let step = step_of_column[column];
            let bindings = &implementation.kernels[kernel].design.kernel.bindings;
            let argument = |(binding, slot): (&Binding, &crate::manifest::Slot)| match binding {
                Binding::Arg(arg) => {
                    let name = graph.name(orch_mugraph::TensorId(arg.index() as u32));
                    Some(PartArgument { name, memory: slot.memory })
                }
                Binding::Packed(_) | Binding::Own { .. } => None,
            };
            let arguments = bindings.iter().zip(&steps[step].slots).map(argument).collect::<Option<_>>()?;
            let info = &kernels[kernel];
            Some(PartKernel {
                defines: defines.0,
                step,
                source: text_hash(&info.source),
                fingerprint: info.fingerprint.clone(),
                arguments,
            })
        };
        let inputs = graph.inputs().zip(&substitute.views.inputs);
        let outputs = graph.outputs().iter().zip(&substitute.views.outputs);
        let certificate = &substitute.proved.certificate;
        Some(ProvedPart {
            proof: *proof,
            program: text_hash(&certificate.program),
            candidate: text_hash(&certificate.candidate),
            premises: premises(part, &graph),
            unstable: substitute.proved.unstable.clone(),
            inputs: inputs.map(|((_, name, _), view)| tensor(name, view)).collect(),
            outputs: outputs.map(|((name, _), view)| tensor(name, view)).collect(),
            kernels: columns.iter().zip(graph.kernel_nodes()).map(kernel).collect::<Option<_>>()?,
        })
    };
    implementation.parts.iter().filter_map(part).collect()
}

/// BLAKE3 of a text, as parts are bound by it.
pub fn text_hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

fn tensor(name: &str, view: &StoredView) -> PartTensor {
    PartTensor {
        name: name.to_owned(),
        tensor: TensorId(view.tensor).to_string(),
        strides: view.strides.clone(),
        offset: view.offset,
        band: view.band,
    }
}

/// What must hold for the program to equal the part of the model that it was extracted from.
fn premises(part: &PlannedPart, graph: &MuGraph) -> Vec<String> {
    let mut premises = vec!["numbers are real, and inputs are finite".to_owned()];
    if part.substitute.must_be_stable {
        premises.push("maxima that the model subtracts from exponents are left out".to_owned());
    }
    let side =
        |limit: Option<i64>, sign: &str| limit.map_or("any".to_owned(), |limit| format!("{sign}{limit}"));
    for ((_, name, _), view) in graph.inputs().zip(&part.substitute.views.inputs) {
        if let Some(Band { above, below }) = view.band {
            let (from, to) = (side(below, "-"), side(above, ""));
            premises
                .push(format!("mask `{name}` keeps columns from {from} to {to} right of the row's number"));
        }
    }
    premises
}
