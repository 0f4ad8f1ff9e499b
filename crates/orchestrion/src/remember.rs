//! Plans that were found before: what was chosen for a graph, kept in the tuning database.
//!
//! A plan depends on the graph's structure, on constants of one repeated value, on the machine's figures and on the
//! options that steer the search, and on nothing else: not on the weights.

use crate::Options;
use crate::backend::Backend;
use crate::signature::Signatures;
use crate::substitute::Substitute;
use crate::units::Units;
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_plan::enumerate::Candidate;
use orch_tune::{Database, Key};
use serde::{Deserialize, Serialize};

/// A plan and how it was found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Plan {
    /// Candidate kernels.
    pub candidates: usize,
    /// Candidates that do not have the form of a kernel.
    pub refused: usize,
    /// False if a limit kept the enumeration from meeting every candidate.
    pub is_complete: bool,
    /// Distinct kernels among them.
    pub distinct: usize,
    /// `optimal` or `feasible`.
    pub status: String,
    /// Relative gap between plan and bound.
    pub gap: f64,
    /// Modelled time.
    pub modelled_us: f64,
    /// The same of the cheapest plan without what the superoptimizer found, if this one has some of that.
    pub without_superoptimizer_us: Option<f64>,
    /// What was chosen, in executable order.
    pub steps: Vec<StoredStep>,
}

/// A candidate by numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredStep {
    units: Vec<u32>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    is_convex: bool,
    substitute: Option<Substitute>,
}

/// A candidate that was chosen.
#[derive(Clone)]
pub struct Chosen {
    /// The units and tensors.
    pub candidate: Candidate,
    /// What computes them, unless kernels of templates do.
    pub substitute: Option<Substitute>,
}

impl StoredStep {
    /// The numbers of a candidate.
    pub fn of(candidate: &Candidate, substitute: Option<Substitute>) -> Self {
        let ids = |tensors: &[TensorId]| tensors.iter().map(|tensor| tensor.0).collect();
        Self {
            units: candidate.nodes.iter().map(|unit| unit.0).collect(),
            inputs: ids(&candidate.inputs),
            outputs: ids(&candidate.outputs),
            is_convex: candidate.is_convex,
            substitute,
        }
    }

    fn chosen(&self) -> Chosen {
        let ids = |tensors: &[u32]| tensors.iter().map(|&tensor| TensorId(tensor)).collect();
        let candidate = Candidate {
            nodes: self.units.iter().map(|&unit| NodeId(unit)).collect(),
            inputs: ids(&self.inputs),
            outputs: ids(&self.outputs),
            is_convex: self.is_convex,
        };
        Chosen { candidate, substitute: self.substitute.clone() }
    }
}

impl Plan {
    /// True if the superoptimizer found some of what was chosen.
    pub fn has_substitutes(&self) -> bool {
        self.steps.iter().any(|step| step.substitute.is_some())
    }

    /// What was chosen, in executable order.
    pub fn chosen(&self) -> Vec<Chosen> {
        self.steps.iter().map(StoredStep::chosen).collect()
    }

    /// True if every number exists, each step finds what it reads, and the outputs are there in the end.
    fn fits(&self, graph: &PrimGraph, units: &Units) -> bool {
        let count = graph.tensors().len();
        let mut is_there: Vec<bool> =
            (0..count).map(|tensor| graph.producer(TensorId::new(tensor)).is_none()).collect();
        for step in &self.steps {
            let is_known = |&tensor: &u32| is_there.get(tensor as usize).copied().unwrap_or(false);
            let units_exist = step.units.iter().all(|&unit| (unit as usize) < units.members.len());
            let outputs_exist = step.outputs.iter().all(|&tensor| (tensor as usize) < count);
            if !units_exist || !outputs_exist || !step.inputs.iter().all(is_known) {
                return false;
            }
            step.outputs.iter().for_each(|&tensor| is_there[tensor as usize] = true);
        }
        graph.outputs.iter().all(|(_, tensor)| is_there[tensor.index()])
    }
}

/// Where the plan of one graph is kept.
pub struct Memory {
    /// `None` if the database cannot be used: then plans are found anew.
    database: Option<Database>,
    key: Key,
}

impl Memory {
    /// The place of a graph's plan.
    pub fn of(graph: &PrimGraph, signatures: &Signatures, backend: &dyn Backend, options: &Options) -> Self {
        let key = Key {
            program: signatures.whole(graph),
            target: backend.target(),
            machine: backend.figures(),
            compiler: concat!("orchestrion ", env!("CARGO_PKG_VERSION"), " ", env!("ORCHESTRION_SOURCES"))
                .to_owned(),
            flags: format!("fuse {} superoptimize {:?}", options.fuse, options.superoptimize),
        };
        Self { database: Database::open(&options.cache_dir).ok(), key }
    }

    /// The plan, if it is known.
    pub fn get(&self, graph: &PrimGraph, units: &Units) -> Option<Plan> {
        let plan: Plan = self.database.as_ref()?.get(&self.key)?;
        plan.fits(graph, units).then_some(plan)
    }

    /// Keeps a plan; one that cannot be kept is found anew next time.
    pub fn put(&self, plan: &Plan) {
        if let Some(database) = &self.database {
            let _ = database.put(&self.key, plan);
        }
    }
}
