//! The plan cache: what was chosen for a graph, kept in the tuning database.
//!
//! A plan depends on the graph's structure, on constants of one repeated value, on the machine's figures and on the
//! options that steer the search, and on nothing else: not on the weights.

use super::candidates::{CandidateColumn, CandidateColumns, time_us};
use super::considered::{ConsideredColumns, CountedCosts, considered};
use super::context::PlanContext;
use super::implementation::Chosen;
use super::substitute::Substitute;
use super::units::Units;
use crate::Options;
use crate::manifest::{SearchInfo, Update};
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_plan::blp::{Choice, Status};
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
    pub steps: Vec<StoredColumn>,
    /// What the superoptimizer searched.
    pub searches: Vec<SearchInfo>,
}

/// A candidate by numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredColumn {
    units: Vec<u32>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    is_convex: bool,
    substitute: Option<Substitute>,
    /// The closest alternatives.
    considered: Vec<ConsideredColumns>,
}

impl StoredColumn {
    /// The numbers of a candidate.
    fn of(candidate: &Candidate, substitute: Option<Substitute>, considered: Vec<ConsideredColumns>) -> Self {
        let ids = |tensors: &[TensorId]| tensors.iter().map(|tensor| tensor.0).collect();
        Self {
            units: candidate.nodes.iter().map(|unit| unit.0).collect(),
            inputs: ids(&candidate.inputs),
            outputs: ids(&candidate.outputs),
            is_convex: candidate.is_convex,
            substitute,
            considered,
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
    /// The plan of a choice among candidates, by these costs.
    pub fn of(
        candidates: &CandidateColumns,
        choice: &Choice,
        costs: &CountedCosts<'_>,
        units: &Units,
    ) -> Self {
        let chosen = choice.columns.iter().map(|column| &candidates.columns[column.index()]);
        let step = |(column, considered): (&CandidateColumn, Vec<ConsideredColumns>)| {
            StoredColumn::of(&column.candidate, column.substitute.clone(), considered)
        };
        Self {
            candidates: candidates.columns.len(),
            refused: candidates.refused,
            is_complete: candidates.report.is_complete(),
            distinct: candidates.distinct,
            status: status_name(choice.status).to_owned(),
            gap: choice.gap(),
            modelled_us: time_us(&candidates.columns, choice),
            without_superoptimizer_us: None,
            steps: chosen.zip(considered(candidates, choice, costs, units)).map(step).collect(),
            searches: candidates.searches.clone(),
        }
    }

    /// True if it has substitutes.
    pub fn has_substitutes(&self) -> bool {
        self.steps.iter().any(|step| step.substitute.is_some())
    }

    /// The tensors that each chosen column writes, and its closest alternatives.
    pub fn considered(&self) -> Vec<(Vec<TensorId>, &[ConsideredColumns])> {
        let outputs = |step: &StoredColumn| step.outputs.iter().map(|&tensor| TensorId(tensor)).collect();
        self.steps.iter().map(|step| (outputs(step), &step.considered[..])).collect()
    }

    /// What was chosen, in executable order.
    pub fn chosen(&self) -> Vec<Chosen> {
        self.steps.iter().map(StoredColumn::chosen).collect()
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

/// The entry of one graph.
pub struct PlanCache {
    /// `None` if the database cannot be used: then every plan is made anew.
    database: Option<Database>,
    key: Key,
}

impl PlanCache {
    /// The entry of a graph, the inputs that are to be updated in place, a target and the options that steer planning.
    pub fn of(ctx: PlanContext<'_>, options: &Options) -> Self {
        let (info, updates) = (ctx.planner.info(), ctx.updates.iter().map(|update| update.ports));
        let updates: Vec<Update> = updates.collect();
        let key = Key {
            program: format!("{} {updates:?}", ctx.signatures.whole(ctx.graph)),
            target: info.name.clone(),
            machine: info.figures.clone(),
            compiler: concat!("orchestrion ", env!("CARGO_PKG_VERSION"), " ", env!("ORCHESTRION_SOURCES"))
                .to_owned(),
            flags: format!(
                "fuse {} superoptimize {:?} prefer found {}",
                options.fuse, options.superoptimize, options.prefer_found
            ),
        };
        Self { database: Database::open(&options.cache_dir).ok(), key }
    }

    /// The plan, if there is one and it fits the graph.
    pub fn get(&self, graph: &PrimGraph, units: &Units) -> Option<Plan> {
        let plan: Plan = self.database.as_ref()?.get(&self.key)?;
        plan.fits(graph, units).then_some(plan)
    }

    /// Stores a plan; one that cannot be stored is made anew next time.
    pub fn put(&self, plan: &Plan) {
        if let Some(database) = &self.database {
            let _ = database.put(&self.key, plan);
        }
    }
}

fn status_name(status: Status) -> &'static str {
    match status {
        Status::Optimal => "optimal",
        Status::Feasible => "feasible",
        Status::Infeasible => "infeasible",
    }
}
