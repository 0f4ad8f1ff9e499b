//! What planning works on: a prepared graph, its storage and units, and the target.

use super::backend::Planner;
use super::known::KnownTensors;
use super::signature::Signatures;
use super::units::Units;
use super::updated::UpdatedTensor;
use orch_compute::Storage;
use orch_ir::{PrimGraph, TensorId};

/// The graph that kernels are planned for, as the stages after "identify" see it.
#[derive(Clone, Copy)]
pub struct PlanContext<'a> {
    /// The prepared graph.
    pub graph: &'a PrimGraph,
    /// Element type and layout of each tensor.
    pub storage: &'a Storage,
    /// The graph in units.
    pub units: &'a Units,
    /// Texts that identify its primitives and tensors.
    pub signatures: &'a Signatures,
    /// Which tensors depend on constants alone.
    pub known: &'a KnownTensors,
    /// Outputs that are new values of inputs.
    pub updates: &'a [UpdatedTensor],
    /// Models and designs kernels.
    pub planner: &'a dyn Planner,
}

impl PlanContext<'_> {
    /// Bytes of a tensor as it is stored.
    pub fn stored_bytes(&self, tensor: TensorId) -> usize {
        self.graph.shape(tensor).elems() * self.storage.dtype(tensor).size_bytes()
    }

    /// True if a run touches most of the bytes in `reads` for the first time: constants and inputs of the model, which do not
    /// all fit in the cache from one run to the next.
    pub fn is_cold(&self, reads: impl Iterator<Item = TensorId>) -> bool {
        let graph = self.graph;
        let bytes = |tensor: TensorId| self.stored_bytes(tensor);
        let is_first = |tensor: &TensorId| graph.producer(*tensor).is_none();
        let (mut cold, mut warm) = (0, 0);
        for tensor in reads {
            *if is_first(&tensor) { &mut cold } else { &mut warm } += bytes(tensor);
        }
        let all = || (0..graph.tensors().len()).map(TensorId::new).filter(is_first).map(bytes).sum::<usize>();
        cold > warm && all() > self.planner.info().kept_bytes
    }
}
