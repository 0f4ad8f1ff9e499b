//! Canonical texts of candidate kernels: equal texts mean that one kernel serves both.

use orch_compute::Storage;
use orch_compute::operands::OperandRounding;
use orch_ir::{NodeId, PrimGraph, Tensor, TensorId};
use std::fmt::Write;

/// What identifies a kernel, and the tensors of one use of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KernelSignature {
    /// Primitives, types, layouts and wiring, with tensors numbered in order of appearance.
    pub text: String,
    /// The tensors behind the numbers.
    pub tensors: Vec<TensorId>,
}

/// The parts of signatures: what each primitive and each tensor of a graph looks like.
pub struct Signatures {
    ops: Vec<String>,
    tensors: Vec<String>,
}

impl Signatures {
    /// Describes a graph.
    ///
    /// Constants of one repeated value are described by value, as they become immediates; of others only type and
    /// storage are told, as kernels take them as arguments.
    pub fn of(graph: &PrimGraph, storage: &Storage) -> Self {
        let tensors = (0..graph.tensors().len()).map(TensorId::new);
        Self {
            ops: graph.node_ids().map(|node| format!("{:?}(", graph.node(node).op)).collect(),
            tensors: tensors.map(|tensor| describe(graph, storage, tensor)).collect(),
        }
    }

    /// The signature of a kernel that runs `nodes` (topological order) and writes `outputs`.
    pub fn signature(&self, graph: &PrimGraph, nodes: &[NodeId], outputs: &[TensorId]) -> KernelSignature {
        let mut text = String::new();
        let mut numbers: Vec<TensorId> = Vec::new();
        for &id in nodes {
            let node = graph.node(id);
            text.push_str(&self.ops[id.index()]);
            for &input in &node.inputs {
                let known = numbers.iter().position(|&tensor| tensor == input);
                let number = known.unwrap_or_else(|| {
                    numbers.push(input);
                    text.push_str(&self.tensors[input.index()]);
                    numbers.len() - 1
                });
                let _ = write!(text, "%{number} ");
            }
            text.push_str(")\n");
            for &output in &node.outputs {
                numbers.push(output);
                text.push_str(&self.tensors[output.index()]);
            }
        }
        for &output in outputs {
            let number = numbers.iter().position(|&tensor| tensor == output).unwrap_or(usize::MAX);
            let _ = write!(text, "-> %{number} ");
        }
        KernelSignature { text, tensors: numbers }
    }

    /// What identifies a whole graph, ids included.
    pub fn whole(&self, graph: &PrimGraph) -> String {
        let mut text = String::new();
        for id in graph.node_ids() {
            let node = graph.node(id);
            let _ = writeln!(text, "{}{:?} {:?}", self.ops[id.index()], node.inputs, node.outputs);
        }
        for description in &self.tensors {
            text.push_str(description);
        }
        let _ = write!(text, "{:?} {:?}", graph.inputs, graph.outputs);
        text
    }
}

fn describe(graph: &PrimGraph, storage: &Storage, tensor: TensorId) -> String {
    let (dtype, shape) = (graph.dtype(tensor), graph.shape(tensor));
    let order = storage.layout(tensor).order();
    let stored = match storage.dtype(tensor) {
        same if same == dtype => match storage.rounding(tensor) {
            OperandRounding::Half => String::new(),
            rounding => format!(" rounded {rounding:?}"),
        },
        other => format!(" as {other}"),
    };
    match graph.constant(tensor) {
        Some(value) if is_uniform(value) => {
            let first = value.bytes().get(..dtype.size_bytes());
            format!("{dtype}{shape}={first:?}{stored} ")
        }
        Some(_) => format!("const {dtype}{shape}{order:?}{stored} "),
        None => format!("{dtype}{shape}{order:?}{stored} "),
    }
}

/// True if all elements have the same bits.
fn is_uniform(value: &Tensor) -> bool {
    let mut elements = value.bytes().chunks_exact(value.dtype().size_bytes());
    elements.next().is_none_or(|first| elements.all(|element| element == first))
}
