//! A graph after the stage "identify", with all that planning looks up.

use super::backend::Planner;
use super::context::PlanContext;
use super::known::KnownTensors;
use super::signature::Signatures;
use super::units::{UnitOptions, Units};
use super::updated::{UpdatedTensor, updated_tensors};
use crate::manifest::Update;
use orch_compute::Storage;
use orch_ir::PrimGraph;
use orch_plan::dag::DagError;

/// The owner of what a [`PlanContext`] refers to.
pub struct PreparedGraph {
    graph: PrimGraph,
    storage: Storage,
    units: Units,
    signatures: Signatures,
    known: KnownTensors,
    updates: Vec<UpdatedTensor>,
}

impl PreparedGraph {
    /// Of a graph that a target has prepared, and the outputs that are new values of inputs.
    ///
    /// # Errors
    /// If units cannot be ordered, which is a bug.
    pub fn of(
        graph: PrimGraph,
        storage: Storage,
        updates: &[Update],
        options: UnitOptions,
    ) -> Result<Self, DagError> {
        let units = Units::of(&graph, storage.layouts(), options)?;
        let signatures = Signatures::of(&graph, &storage);
        let known = KnownTensors::of(&graph);
        let updates = updated_tensors(&graph, &storage, updates);
        Ok(Self { graph, storage, units, signatures, known, updates })
    }

    /// What planning works on.
    pub fn context<'a>(&'a self, planner: &'a dyn Planner) -> PlanContext<'a> {
        let Self { graph, storage, units, signatures, known, updates } = self;
        PlanContext { graph, storage, units, signatures, known, updates, planner }
    }
}
