//! A finished plan: the last value before sources are written.

use super::assemble::Assembly;
use super::implementation::Implementation;
use crate::manifest::{PlanReport, Port};
use orch_mugraph::Certificate;
use orch_tune::Key;

/// A model as kernels and steps, before code is made of it.
pub struct Planned {
    pub(crate) implementation: Implementation,
    pub(crate) assembly: Assembly,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<Port>,
    pub(crate) report: PlanReport,
    /// Its end-to-end time, if it is one of several plans that are to be timed against each other.
    pub(crate) end_to_end: Option<EndToEndTime>,
}

impl Planned {
    /// The names of inputs that are updated in place where their new values are given the same memory.
    pub fn updated_inputs(&self) -> Vec<&str> {
        let ports = self.assembly.updates.iter().map(|update| &self.inputs[update.input]);
        ports.map(|port| port.name.as_str()).collect()
    }

    /// The names of the steps of a run.
    pub fn step_names(&self) -> Vec<&str> {
        self.assembly.steps.iter().map(|step| step.name.as_str()).collect()
    }

    /// The names of the steps that fill memory with zeros before their kernel starts.
    pub fn cleared_steps(&self) -> Vec<&str> {
        let steps = self.assembly.steps.iter().filter(|step| !step.cleared.is_empty());
        steps.map(|step| step.name.as_str()).collect()
    }

    /// Its modelled time in microseconds.
    pub fn modelled_us(&self) -> f64 {
        self.report.modelled_us
    }

    /// Proofs of the µGraphs that it runs.
    pub fn proofs(&self) -> &[Certificate] {
        &self.implementation.proofs
    }
}

/// The time of a whole plan, and the key that it is stored under.
pub struct EndToEndTime {
    /// The columns and their schedules, on this machine.
    pub key: Key,
    /// Microseconds; `None` if it was not measured yet.
    pub time_us: Option<f64>,
}
