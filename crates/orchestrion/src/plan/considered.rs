//! What else the choice could have taken in place of each kernel, and what that would have cost.
//!
//! Beside a chosen column stand three kinds of others: a kernel that computes the same units, one kernel for the units of it and of
//! its neighbours, and several kernels for parts of it. The first two are columns of the binary linear program; the third is the
//! cheapest choice among the columns within the chosen one.

use super::assemble::Assembly;
use super::candidates::{CandidateColumn, CandidateColumns};
use super::implementation::Implementation;
use super::units::Units;
use crate::manifest::{Considered, Way};
use orch_ir::{NodeId, TensorId};
use orch_plan::blp::{self, Choice, ChooseOptions, Column, Problem, Status};
use orch_plan::enumerate::Candidate;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Alternatives that are kept of each chosen column: the closest ones.
const KEPT: usize = 3;

/// Columns within a chosen one among which the cheapest parts are looked for.
const MOST_PARTS: usize = 400;

/// An alternative, where columns are numbers of [`Plan::steps`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ConsideredColumns {
    /// The chosen columns that it would replace.
    replaces: Vec<usize>,
    /// What it is, but for the steps.
    alternative: Considered,
}

/// What the choice counted for columns.
pub struct CountedCosts<'a> {
    /// By column, with the penalties of host routines.
    pub costs_us: &'a [f64],
    /// Measured times by kernel.
    pub measured: &'a BTreeMap<usize, f64>,
}

impl CountedCosts<'_> {
    fn is_measured(&self, column: &CandidateColumn) -> bool {
        column.kernel.is_some_and(|kernel| self.measured.contains_key(&kernel))
    }
}

/// For each chosen column, in the order of the choice, the closest alternatives, the cheapest first.
///
/// One pass over all columns, and for each distinct kernel of several units a small choice among at most [`MOST_PARTS`] columns.
pub fn considered(
    candidates: &CandidateColumns,
    choice: &Choice,
    costs: &CountedCosts<'_>,
    units: &Units,
) -> Vec<Vec<ConsideredColumns>> {
    let chosen = Chosen::of(candidates, choice, costs, units);
    let mut found: Vec<Vec<ConsideredColumns>> = vec![Vec::new(); choice.columns.len()];
    let mut parts: Vec<Vec<usize>> = vec![Vec::new(); choice.columns.len()];
    for (number, column) in candidates.columns.iter().enumerate() {
        if chosen.numbers.contains(&number) {
            continue;
        }
        if let Some(whole) = chosen.that_contains(&column.candidate) {
            parts[whole].push(number);
        }
        if column.penalty_us() > 0.0 || column.is_known {
            continue;
        }
        let Some(replaces) = chosen.replaced_by(&column.candidate) else { continue };
        let instead_us = replaces.iter().map(|&at| chosen.cost_us(at)).sum();
        let way = if replaces.len() == 1 { Way::OtherKernel } else { Way::Fused };
        let alternative = Considered {
            way,
            kernels: 1,
            cost_us: costs.costs_us[number],
            instead_us,
            is_measured: costs.is_measured(column),
            steps: Vec::new(),
        };
        for &at in &replaces {
            found[at]
                .push(ConsideredColumns { replaces: replaces.clone(), alternative: alternative.clone() });
        }
    }
    let mut known: HashMap<usize, Option<Considered>> = HashMap::new();
    for (at, parts) in parts.iter().enumerate() {
        let split = match chosen.columns[at].kernel {
            Some(kernel) => known.entry(kernel).or_insert_with(|| chosen.split(at, parts)).clone(),
            None => None,
        };
        found[at].extend(split.map(|alternative| ConsideredColumns { replaces: vec![at], alternative }));
    }
    for alternatives in &mut found {
        alternatives.sort_by(|a, b| a.alternative.loss_us().total_cmp(&b.alternative.loss_us()));
        alternatives.truncate(KEPT);
    }
    found
}

/// The chosen columns, and who reads what.
struct Chosen<'a> {
    all: &'a [CandidateColumn],
    costs: &'a CountedCosts<'a>,
    units: &'a Units,
    numbers: BTreeSet<usize>,
    columns: Vec<&'a CandidateColumn>,
    costs_us: Vec<f64>,
    /// The chosen columns that compute a unit.
    of_unit: HashMap<NodeId, Vec<usize>>,
    /// The chosen columns that read a tensor.
    readers: HashMap<TensorId, Vec<usize>>,
}

impl<'a> Chosen<'a> {
    fn of(
        candidates: &'a CandidateColumns,
        choice: &Choice,
        costs: &'a CountedCosts<'a>,
        units: &'a Units,
    ) -> Self {
        let all = &candidates.columns[..];
        let numbers: Vec<usize> = choice.columns.iter().map(|id| id.index()).collect();
        let columns: Vec<&CandidateColumn> = numbers.iter().map(|&number| &all[number]).collect();
        let mut of_unit: HashMap<NodeId, Vec<usize>> = HashMap::new();
        let mut readers: HashMap<TensorId, Vec<usize>> = HashMap::new();
        for (at, column) in columns.iter().enumerate() {
            column.candidate.nodes.iter().for_each(|&unit| of_unit.entry(unit).or_default().push(at));
            column.candidate.inputs.iter().for_each(|&tensor| readers.entry(tensor).or_default().push(at));
        }
        let costs_us = numbers.iter().map(|&number| costs.costs_us[number]).collect();
        Self {
            all,
            costs,
            units,
            numbers: numbers.into_iter().collect(),
            columns,
            costs_us,
            of_unit,
            readers,
        }
    }

    /// What a chosen column takes, without penalties.
    fn cost_us(&self, at: usize) -> f64 {
        self.costs_us[at] - self.columns[at].penalty_us()
    }

    /// The chosen column that computes all units of a candidate and others.
    fn that_contains(&self, candidate: &Candidate) -> Option<usize> {
        let has_all = |&&at: &&usize| {
            let own = &self.columns[at].candidate.nodes;
            own.len() > candidate.nodes.len() && candidate.nodes.iter().all(|unit| own.contains(unit))
        };
        self.of_unit.get(candidate.nodes.first()?)?.iter().find(has_all).copied()
    }

    /// The chosen columns that a candidate can stand for: it computes all of their units and no others, and what others read.
    fn replaced_by(&self, candidate: &Candidate) -> Option<Vec<usize>> {
        let mut replaced = BTreeSet::new();
        for unit in &candidate.nodes {
            replaced.extend(self.of_unit.get(unit)?);
        }
        let is_read = |tensor: &TensorId| {
            let by_others = |readers: &Vec<usize>| readers.iter().any(|at| !replaced.contains(at));
            self.units.dag.outputs().contains(tensor) || self.readers.get(tensor).is_some_and(by_others)
        };
        let fits = |&at: &usize| {
            let Candidate { nodes, outputs, .. } = &self.columns[at].candidate;
            !self.columns[at].is_known
                && nodes.iter().all(|unit| candidate.nodes.contains(unit))
                && outputs.iter().all(|tensor| candidate.outputs.contains(tensor) || !is_read(tensor))
        };
        let fit = replaced.iter().all(fits);
        fit.then(|| replaced.into_iter().collect())
    }

    /// The cheapest kernels for parts of a chosen column.
    fn split(&self, at: usize, parts: &[usize]) -> Option<Considered> {
        if parts.len() > MOST_PARTS {
            return None;
        }
        let whole = &self.columns[at].candidate;
        let column =
            |&number: &usize| Column::of_candidate(&self.all[number].candidate, self.costs.costs_us[number]);
        let mut problem = Problem::of_graph(&self.units.dag);
        problem.available.extend(whole.inputs.iter().copied().map(blp::ClassId::from));
        problem.required = whole.outputs.iter().copied().map(blp::ClassId::from).collect();
        problem.columns = parts.iter().map(column).collect();
        let split = blp::choose(&problem, &ChooseOptions::default(), &orch_plan::solver::MicroLp).ok()?;
        let columns: Vec<&CandidateColumn> =
            split.columns.iter().map(|id| &self.all[parts[id.index()]]).collect();
        let is_host = columns.iter().any(|column| column.penalty_us() > 0.0);
        if split.status == Status::Infeasible || is_host {
            return None;
        }
        let kernels: Vec<&&CandidateColumn> = columns.iter().filter(|column| !column.is_known).collect();
        Some(Considered {
            way: Way::Split,
            kernels: kernels.len(),
            cost_us: split.objective_us,
            instead_us: self.cost_us(at),
            is_measured: kernels.iter().all(|column| self.costs.is_measured(column)),
            steps: Vec::new(),
        })
    }
}

/// Tells the steps of a plan what was considered in place of each; a copy has no alternative. A chosen column is given by the tensors
/// that it writes, and its alternatives.
pub fn tell_steps(
    assembly: &mut Assembly,
    chosen: &[(Vec<TensorId>, &[ConsideredColumns])],
    implementation: &Implementation,
) {
    let mut writer: HashMap<TensorId, usize> = HashMap::new();
    for (number, column) in implementation.columns.iter().enumerate() {
        writer.extend(column.outputs.iter().map(|&tensor| (tensor, number)));
    }
    // All kernels of a µGraph stand for what was chosen.
    let with_part = |&column: &usize| {
        let part = implementation.parts.iter().find(|part| part.columns.contains(&column));
        part.map_or_else(|| vec![column], |part| part.columns.clone())
    };
    let Assembly { steps, step_of_column, .. } = assembly;
    let steps_of = |(outputs, _): &(Vec<TensorId>, _)| -> BTreeSet<usize> {
        outputs
            .iter()
            .filter_map(|tensor| writer.get(tensor))
            .flat_map(with_part)
            .map(|column| step_of_column[column])
            .collect()
    };
    let of: Vec<BTreeSet<usize>> = chosen.iter().map(steps_of).collect();
    steps.iter_mut().for_each(|step| step.considered = Some(Vec::new()));
    for (own, (_, considered)) in of.iter().zip(chosen) {
        let alternative = |considered: &ConsideredColumns| {
            let steps = considered.replaces.iter().filter_map(|&at| of.get(at)).flatten().copied().collect();
            Considered { steps, ..considered.alternative.clone() }
        };
        let all: Vec<Considered> = considered.iter().map(alternative).collect();
        for &step in own {
            if let Some(step) = steps.get_mut(step) {
                step.considered = Some(all.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Model;
    use crate::testing::{LORA, graph, half_on_gpu};

    #[test]
    fn steps_know_what_would_have_cost_more() {
        let folder = orch_files::Scratch::new().unwrap();
        let options = half_on_gpu(&folder);
        let plan = || Model::from_graph(graph(LORA)).plan(&options).unwrap();
        let first = plan();
        let all: Vec<&Considered> =
            first.assembly.steps.iter().flat_map(|step| step.considered.as_ref().unwrap()).collect();
        assert!(all.iter().any(|other| other.way == Way::Split && other.kernels > 1), "{all:?}");
        for (number, step) in first.assembly.steps.iter().enumerate() {
            let mut last = f64::NEG_INFINITY;
            for other in step.considered.as_ref().unwrap() {
                assert!(other.steps.contains(&number) && other.loss_us() >= last, "{other:?}");
                assert!(other.loss_us() >= -1e-6, "an optimal plan has no cheaper part: {other:?}");
                last = other.loss_us();
            }
        }
        // A plan from the cache says the same.
        let second = plan();
        assert!(!first.report.is_cached && second.report.is_cached);
        let considered = |plan: &crate::Planned| -> Vec<Option<Vec<Considered>>> {
            plan.assembly.steps.iter().map(|step| step.considered.clone()).collect()
        };
        assert_eq!(considered(&first), considered(&second));
        assert_eq!(first.report.searches, Some(Vec::new()));
    }
}
