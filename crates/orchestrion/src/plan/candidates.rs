//! Stage "candidates": sets of units that may be one kernel, with what each would cost.
//!
//! Costs come from block programs; only what is chosen is lowered further ([`implement`](super::implement)).
//! Candidates that compute the same thing share one block program and are estimated once.

use super::chains::chains;
use super::context::PlanContext;
use super::definition::KernelDefinition;
use super::kernel::KernelEstimate;
use super::siblings::siblings;
use super::substitute::Substitute;
use crate::manifest::SearchInfo;
use crate::{Error, Options, parallel};
use orch_ir::{NodeId, TensorId};
use orch_plan::blp::Choice;
use orch_plan::dag::NodeKind;
use orch_plan::enumerate::{Admission, AnchorPolicy, ReducePolicy, Verdict};
use orch_plan::enumerate::{Candidate, EnumerationReport, Growing, KindRule, Limits, enumerate};
use std::collections::{BTreeSet, HashMap};

/// The columns of the binary linear program, and how they were found.
pub struct CandidateColumns {
    /// Ways to compute units.
    pub columns: Vec<CandidateColumn>,
    /// Counts of the enumeration, and the limits that it hit.
    pub report: EnumerationReport,
    /// Candidates that have no block program, or no template.
    pub refused: usize,
    /// Distinct kernels among the candidates.
    pub distinct: usize,
    /// The signatures of kernels, by number.
    pub signatures: Vec<String>,
    /// What the superoptimizer searched.
    pub searches: Vec<SearchInfo>,
}

/// One column: a set of units, what computes it, and its cost.
#[derive(Clone)]
pub struct CandidateColumn {
    /// The units and tensors.
    pub candidate: Candidate,
    /// The µGraph that computes them; `None` for kernels of templates and host routines.
    pub substitute: Option<Substitute>,
    /// Modelled time.
    pub cost_us: f64,
    /// The number of its kernel, or of all kernels of the substitute together; `None` for host routines and for what is known.
    pub kernel: Option<usize>,
    /// True if it depends on constants alone: it is evaluated when compiling.
    pub is_known: bool,
    /// True if it is to be chosen whatever it costs, where anything can be.
    pub is_preferred: bool,
}

/// What the choice counts for a host routine beyond its time: it is never chosen where a kernel can run.
const HOST_PENALTY_US: f64 = 1e4;

/// The share of its time that the choice does not count for a kernel that is preferred.
const PREFERENCE: f64 = 0.999;

/// What the choice counts for columns: modelled times, and the penalties of host routines.
pub fn costs_us(columns: &[CandidateColumn]) -> Vec<f64> {
    columns.iter().map(CandidateColumn::counted_us).collect()
}

/// Time of what was chosen by such costs, without the penalties.
pub fn time_us(columns: &[CandidateColumn], choice: &Choice) -> f64 {
    let penalties = choice.columns.iter().map(|column| columns[column.index()].penalty_us());
    choice.objective_us - penalties.sum::<f64>()
}

impl CandidateColumn {
    /// What the choice counts beyond its time.
    pub fn penalty_us(&self) -> f64 {
        match self.kernel {
            Some(_) if self.is_preferred => -PREFERENCE * self.cost_us,
            None if !self.is_known => HOST_PENALTY_US,
            _ => 0.0,
        }
    }

    /// What the choice counts for it, by its modelled time.
    pub fn counted_us(&self) -> f64 {
        self.cost_us + self.penalty_us()
    }

    /// A kernel of a template, or a host routine.
    pub fn plain(candidate: Candidate, cost_us: f64, kernel: Option<usize>) -> Self {
        Self { candidate, substitute: None, cost_us, kernel, is_known: false, is_preferred: false }
    }

    /// What is evaluated when compiling.
    fn known(candidate: Candidate, cost_us: f64) -> Self {
        Self { is_known: true, ..Self::plain(candidate, cost_us, None) }
    }
}

/// Sets of units that are met in a graph of many units, about: the choice takes time in proportion to them, and with a few dozen per
/// unit it finds plans that are no dearer, because its own limits then reach further.
const MAX_SETS: usize = 1 << 17;

/// Sets that are met per unit in any graph, if there are so many; and where the graph is small.
const LEAST_SETS_PER_SINK: usize = 32;
const MOST_SETS_PER_SINK: usize = 256;

/// Limits for a graph of so many units. Kernels hold reductions, so recomputing what leaves a set and returns (re-entrant nodes) is
/// rarely worth a kernel: the difference from a mean is, where a variance and what is normed by it are kernels of their own.
fn limits(units: usize, reentrant: usize) -> Limits {
    let max_sets_per_sink = (MAX_SETS / units.max(1)).clamp(LEAST_SETS_PER_SINK, MOST_SETS_PER_SINK);
    Limits { max_nodes: 24, max_reentrant_nodes: reentrant, max_exports: 2, max_sets_per_sink }
}

/// Tensors that a kernel of several units reads, at most: compilers take more than proportional time for more.
const MAX_KERNEL_INPUTS: usize = 80;

/// Grows the candidates of a graph and estimates each distinct one.
///
/// # Errors
/// If the work is cancelled.
pub fn candidates(ctx: PlanContext<'_>, options: &Options) -> Result<CandidateColumns, Error> {
    let PlanContext { graph, storage, units, signatures, known, planner, .. } = ctx;
    let mut enumeration = enumerate(
        &units.dag,
        &OneKernelRule { fuse: options.fuse, slices: &units.slices(graph) },
        &limits(units.dag.nodes().len(), ctx.planner.info().reentrant_units),
    );
    if options.fuse && planner.info().chains_contractions {
        enumeration.candidates.extend(chains(units));
    }
    if options.fuse {
        enumeration.candidates.extend(siblings(graph, units));
    }
    let mut numbers: HashMap<String, usize> = HashMap::new();
    let mut distinct: Vec<(Vec<NodeId>, &[TensorId])> = Vec::new();
    let mut number_of = Vec::with_capacity(enumeration.candidates.len());
    for candidate in &enumeration.candidates {
        let nodes = units.primitives(graph, &candidate.nodes);
        let signature = signatures.signature(graph, &nodes, &candidate.outputs);
        number_of.push(*numbers.entry(signature.text).or_insert_with(|| {
            distinct.push((nodes, &candidate.outputs));
            distinct.len() - 1
        }));
    }
    let costs = parallel::map(&distinct, options, |(nodes, outputs)| {
        let definition = KernelDefinition::of(graph, nodes, outputs, storage, "estimate")?;
        planner.estimate(&definition).map(|KernelEstimate { time_us, .. }| time_us)
    })?;
    let distinct = costs.iter().flatten().count();
    let mut refused = 0;
    let mut columns = Vec::with_capacity(enumeration.candidates.len());
    for (candidate, number) in enumeration.candidates.into_iter().zip(number_of) {
        if known.contains_all(&candidate.outputs) {
            let bytes = candidate.outputs.iter().map(|&tensor| ctx.stored_bytes(tensor) as f64).sum();
            columns.push(CandidateColumn::known(candidate, known.price_us(bytes)));
            continue;
        }
        match costs[number] {
            Some(cost_us) => columns.push(CandidateColumn::plain(candidate, cost_us, Some(number))),
            None if candidate.nodes.len() == 1 => {
                let host_us = ctx.host_us(&candidate);
                columns.push(CandidateColumn::plain(candidate, host_us, None));
            }
            None => refused += 1,
        }
    }
    let mut signatures = vec![String::new(); costs.len()];
    numbers.into_iter().for_each(|(text, number)| signatures[number] = text);
    Ok(CandidateColumns {
        columns,
        report: enumeration.report,
        refused,
        distinct,
        signatures,
        searches: Vec::new(),
    })
}

impl CandidateColumns {
    /// Kernels of templates and host routines.
    pub fn plain(&self) -> impl Iterator<Item = &CandidateColumn> {
        self.columns.iter().filter(|column| column.substitute.is_none())
    }

    /// Removes kernels that no template or lowering serves, by signature; those of single units become host routines.
    /// Times of these are given by a function.
    pub fn reject(&mut self, unserved: &BTreeSet<String>, host_us: impl Fn(&Candidate) -> f64) {
        let is_unserved = |column: &CandidateColumn| {
            column.kernel.is_some_and(|kernel| unserved.contains(&self.signatures[kernel]))
        };
        let before = self.columns.len();
        let mut kept = Vec::with_capacity(before);
        for column in std::mem::take(&mut self.columns) {
            match is_unserved(&column) {
                false => kept.push(column),
                true if column.candidate.nodes.len() == 1 && column.substitute.is_none() => {
                    let cost_us = host_us(&column.candidate);
                    kept.push(CandidateColumn { cost_us, kernel: None, ..column });
                }
                true => {}
            }
        }
        self.refused += before - kept.len();
        self.columns = kept;
    }
}

/// What may be one kernel: any reductions, or one contraction with elementwise primitives before and after it.
struct OneKernelRule<'a> {
    fuse: bool,
    /// For each unit whether it is a slice.
    slices: &'a [bool],
}

impl OneKernelRule<'_> {
    /// True if the set reads its contraction through slices only: of one that others read too it computes again no more than these keep.
    fn computes_part(&self, set: &Growing<'_>) -> bool {
        let dag = set.dag();
        let anchors = set.nodes().iter().filter(|&&node| dag.node(node).kind == NodeKind::Anchor);
        let readers = anchors.flat_map(|&anchor| dag.successors(anchor));
        readers.filter(|node| set.nodes().contains(node)).all(|node| self.slices[node.index()])
    }
}

impl Admission for OneKernelRule<'_> {
    fn judge(&self, set: &Growing<'_>) -> Verdict {
        let kinds = KindRule { anchors: AnchorPolicy::Fused, reduces: ReducePolicy::Inside };
        let mixes = set.count(NodeKind::Anchor) > 0 && set.count(NodeKind::Reduce) > 0;
        let is_several = set.nodes().len() > 1;
        if mixes || is_several && (!self.fuse || is_wide(set)) {
            return Verdict::Stop;
        }
        match kinds.judge(set) {
            Verdict::KeepExporting if self.computes_part(set) => Verdict::Keep,
            verdict => verdict,
        }
    }
}

/// True for sets that read more tensors than a kernel should.
fn is_wide(set: &Growing<'_>) -> bool {
    let operands = || set.nodes().iter().map(|&node| &set.dag().node(node).inputs);
    if operands().map(Vec::len).sum::<usize>() <= MAX_KERNEL_INPUTS {
        return false;
    }
    let is_inner = |&tensor: &TensorId| {
        set.dag().producer(tensor).is_some_and(|producer| set.nodes().contains(&producer))
    };
    let outer: BTreeSet<TensorId> =
        operands().flatten().copied().filter(|tensor| !is_inner(tensor)).collect();
    outer.len() > MAX_KERNEL_INPUTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_kernels_leave_host_routines_of_single_units() {
        let column = |units: &[u32], kernel| {
            let candidate = Candidate {
                nodes: units.iter().map(|&unit| NodeId(unit)).collect(),
                inputs: Vec::new(),
                outputs: vec![TensorId(0)],
                is_convex: true,
            };
            CandidateColumn::plain(candidate, 1.0, Some(kernel))
        };
        let mut candidates = CandidateColumns {
            columns: vec![column(&[0], 0), column(&[0, 1], 1), column(&[1], 2)],
            report: EnumerationReport::default(),
            refused: 3,
            distinct: 3,
            signatures: ["a", "b", "c"].map(str::to_owned).to_vec(),
            searches: Vec::new(),
        };
        candidates.reject(&["a", "b"].map(str::to_owned).into(), |_| 5.0);
        let left: Vec<_> = candidates.columns.iter().map(|column| (column.kernel, column.cost_us)).collect();
        assert_eq!(left, [(None, 5.0), (Some(2), 1.0)]);
        assert_eq!(costs_us(&candidates.columns), [5.0 + HOST_PENALTY_US, 1.0]);
        assert_eq!(candidates.refused, 4);
    }
}
