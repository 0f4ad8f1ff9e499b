//! Outputs that are new values of inputs, as tensors of a prepared graph.

use crate::manifest::Update;
use orch_compute::Storage;
use orch_ir::{PrimGraph, TensorId};

/// An output that is a new value of an input, as tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UpdatedTensor {
    /// Among outputs and inputs.
    pub ports: Update,
    /// The new value.
    pub output: TensorId,
    /// The old one.
    pub input: TensorId,
}

impl UpdatedTensor {
    /// The tensors alone.
    pub fn in_place(&self) -> InPlace {
        InPlace { output: self.output, input: self.input }
    }
}

/// A tensor in the memory of another one, which it is a new value of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InPlace {
    /// The new value.
    pub output: TensorId,
    /// The old one.
    pub input: TensorId,
}

/// The pairs whose types and layouts agree, each input and output once, but for inputs that are outputs as well.
pub fn updated_tensors(graph: &PrimGraph, storage: &Storage, updates: &[Update]) -> Vec<UpdatedTensor> {
    let mut found: Vec<UpdatedTensor> = Vec::new();
    for &ports in updates {
        let (Some(&(_, output)), Some(&(_, input))) =
            (graph.outputs.get(ports.output), graph.inputs.get(ports.input))
        else {
            continue;
        };
        let form = |tensor| (storage.dtype(tensor), graph.shape(tensor), storage.layout(tensor));
        let is_new = !found.iter().any(|other| other.output == output || other.input == input);
        let is_returned = graph.outputs.iter().any(|(_, tensor)| *tensor == input);
        if form(output) == form(input) && graph.producer(output).is_some() && is_new && !is_returned {
            found.push(UpdatedTensor { ports, output, input });
        }
    }
    found
}
