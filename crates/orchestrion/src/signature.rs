//! Canonical texts of candidate kernels: equal texts mean that one kernel serves both.

use orch_ir::{NodeId, PrimGraph, Tensor, TensorId};
use orch_tile::Layout;
use std::fmt::Write;

/// What identifies a kernel, and the tensors that one use of it passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// Primitives, types, layouts and wiring, with tensors numbered in order of appearance.
    pub text: String,
    /// The tensors behind the numbers: those read, in order of appearance, then those written.
    pub tensors: Vec<TensorId>,
}

impl Signature {
    /// The signature of a kernel that runs `nodes` (topological order) and writes `outputs`.
    ///
    /// Constants of one repeated value are part of the text by value, as they become immediates; of others only
    /// type and layout are, as kernels take them as arguments.
    pub fn of(graph: &PrimGraph, layouts: &[Layout], nodes: &[NodeId], outputs: &[TensorId]) -> Self {
        let mut text = String::new();
        let mut numbers: Vec<TensorId> = Vec::new();
        let mut tensors = Vec::new();
        for &id in nodes {
            let node = graph.node(id);
            let _ = write!(text, "{:?}(", node.op);
            for &input in &node.inputs {
                let known = numbers.iter().position(|&tensor| tensor == input);
                let number = known.unwrap_or_else(|| {
                    numbers.push(input);
                    tensors.push(input);
                    describe(graph, layouts, input, &mut text);
                    numbers.len() - 1
                });
                let _ = write!(text, "%{number} ");
            }
            text.push_str(")\n");
            for &output in &node.outputs {
                numbers.push(output);
                let _ = write!(text, "{}", graph.dtype(output));
            }
        }
        for &output in outputs {
            let number = numbers.iter().position(|&tensor| tensor == output).unwrap_or(usize::MAX);
            let _ = write!(text, "-> %{number} {:?} ", layouts[output.index()].order());
            tensors.push(output);
        }
        Self { text, tensors }
    }
}

fn describe(graph: &PrimGraph, layouts: &[Layout], tensor: TensorId, text: &mut String) {
    let (dtype, shape) = (graph.dtype(tensor), graph.shape(tensor));
    let _ = match graph.constant(tensor) {
        Some(value) if is_uniform(value) => {
            let first = value.bytes().get(..dtype.size_bytes());
            write!(text, "{dtype}{shape}={first:?} ")
        }
        Some(_) => write!(text, "const {dtype}{shape}{:?} ", layouts[tensor.index()].order()),
        None => write!(text, "{dtype}{shape}{:?} ", layouts[tensor.index()].order()),
    };
}

/// True if all elements have the same bits.
fn is_uniform(value: &Tensor) -> bool {
    let mut elements = value.bytes().chunks_exact(value.dtype().size_bytes());
    elements.next().is_none_or(|first| elements.all(|element| element == first))
}
