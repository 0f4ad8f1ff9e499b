//! Candidate kernels, grown backward from each sink (replaces Korch, ASPLOS'24, section 4.1 and algorithm 1).
//!
//! A candidate is a set of nodes with one *sink*: every node of the set reaches the sink inside the set. Sets grow
//! downward in topological order, one node below all others at a time; since taking the lowest node away from a
//! convex set with one sink leaves such a set, each set has exactly one parent. So every set is met once, each met
//! set is a candidate unless the rule refuses it, and the work is proportional to the output - whereas the published
//! enumerator visits pairs of execution states, exponential in the graph's width, and meets a set up to 19 times.
//!
//! Differences to the paper:
//! - a set need not be *convex* (its nodes may also feed it through outside nodes): what leaves and re-enters is
//!   computed again inside. Such *re-entrant* nodes must be marked cheap, and their number is bounded;
//! - a candidate may also *export* inner tensors that others read, instead of leaving them to be recomputed.
//!
//! What a device can run as one kernel is not known here: the caller's [`Admission`] rule decides.

mod grow;
mod rule;

pub use grow::Growing;
pub use rule::{AnchorPolicy, KindRule, ReducePolicy};

use crate::dag::Dag;
use grow::{Grown, SinkGrowth};
use orch_ir::{NodeId, TensorId};

/// Nodes that may become one kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Candidate {
    /// The nodes it executes, ascending; the last one is the sink.
    pub nodes: Vec<NodeId>,
    /// Tensors it reads, sources included, ascending.
    pub inputs: Vec<TensorId>,
    /// Tensors it leaves behind: those of the sink that anyone reads, then exported ones, ascending.
    pub outputs: Vec<TensorId>,
    /// False if an inner node is computed again although outside nodes between it and the set read it.
    pub is_convex: bool,
}

impl Candidate {
    /// A convex set of nodes, ascending, that leaves what its last one makes, as far as that is read.
    pub fn of_sink(dag: &Dag, nodes: Vec<NodeId>) -> Self {
        let outputs = sink_outputs(dag, *nodes.last().expect("a set holds its sink"));
        Self::leaving(dag, nodes, outputs)
    }

    /// A convex set of nodes, ascending, that leaves such tensors behind. The producers of all that it reads stand before those of what it
    /// leaves: two kernels could wait for each other otherwise.
    pub fn leaving(dag: &Dag, nodes: Vec<NodeId>, outputs: Vec<TensorId>) -> Self {
        let inputs = external_inputs(dag, &nodes);
        let last_input = inputs.iter().filter_map(|&tensor| dag.producer(tensor)).max();
        debug_assert!(outputs.iter().all(|&tensor| dag.producer(tensor) > last_input), "{nodes:?}");
        Self { nodes, inputs, outputs, is_convex: true }
    }
}

/// What a rule says of a set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// A candidate; grow it further.
    Keep,
    /// A candidate only if its escaping tensors are exported (recomputing them would be a waste); grow it further.
    KeepExporting,
    /// Not a candidate, but a larger set may be.
    Pass,
    /// Neither this set nor any set grown from it is a candidate.
    Stop,
}

/// The caller's rule about which sets of nodes may be one kernel. It is asked once for every set met.
pub trait Admission {
    /// Judges a set; [`Growing::newest`] is the node that was just added.
    fn judge(&self, set: &Growing<'_>) -> Verdict;
}

impl<F: Fn(&Growing<'_>) -> Verdict> Admission for F {
    fn judge(&self, set: &Growing<'_>) -> Verdict {
        self(set)
    }
}

/// Bounds of the enumeration. [`Limits::default`] is meant for models whose kernels can hold reductions; where they
/// cannot, re-entrant nodes are worth their many candidates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most nodes of a set.
    pub max_nodes: usize,
    /// Most re-entrant nodes of a set; 0 admits only convex sets.
    pub max_reentrant_nodes: usize,
    /// Most inner tensors that a candidate exports; 0 makes every candidate of a one-output sink a one-output kernel.
    pub max_exports: usize,
    /// Most sets met per sink. When it is hit, the smaller sets have been met, and a chain of large ones is added.
    pub max_sets_per_sink: usize,
}

impl Limits {
    /// Convex sets of any size and number, nothing exported: the published search space.
    pub const NONE: Limits = Limits {
        max_nodes: usize::MAX,
        max_reentrant_nodes: 0,
        max_exports: 0,
        max_sets_per_sink: usize::MAX,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_nodes: 48, max_reentrant_nodes: 0, max_exports: 2, max_sets_per_sink: 256 }
    }
}

/// What the enumeration met, and which limits it hit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EnumerationReport {
    /// Sets that the rule was asked about.
    pub sets: usize,
    /// Candidates among the result that are not convex.
    pub nonconvex: usize,
    /// Candidates among the result that export inner tensors.
    pub exporting: usize,
    /// Sets that the rule stopped.
    pub stopped_by_rule: usize,
    /// Extensions not tried because of [`Limits::max_nodes`].
    pub beyond_max_nodes: usize,
    /// Extensions not tried because they would add a re-entrant node that is not cheap or one too many.
    pub beyond_reentrant: usize,
    /// Sinks at which [`Limits::max_sets_per_sink`] was hit, ascending.
    pub truncated_sinks: Vec<NodeId>,
}

impl EnumerationReport {
    /// True if every set that the rule admits is among the candidates.
    pub fn is_complete(&self) -> bool {
        self.beyond_max_nodes == 0 && self.truncated_sinks.is_empty()
    }
}

/// The result of [`enumerate`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Enumeration {
    /// Distinct candidates, by sink, then by number of nodes.
    pub candidates: Vec<Candidate>,
    /// Counts and limits.
    pub report: EnumerationReport,
}

/// Grows the candidates of all sinks that a graph output needs.
///
/// Time and memory are proportional to the number of sets met (times their size), at most
/// [`Limits::max_sets_per_sink`] per node and a scan of the graph between a set's lowest node and its sink.
pub fn enumerate(dag: &Dag, rule: &impl Admission, limits: &Limits) -> Enumeration {
    let mut result = Enumeration::default();
    let mut growth = SinkGrowth::new(dag, limits);
    for sink in needed_nodes(dag) {
        growth.run(sink, rule, &mut result.report);
        for set in growth.admitted() {
            emit(dag, set, limits, &mut result);
        }
    }
    result
}

/// The nodes that some graph output depends on, ascending.
fn needed_nodes(dag: &Dag) -> Vec<NodeId> {
    let mut needed = vec![false; dag.nodes().len()];
    for node in dag.node_ids().rev() {
        needed[node.index()] =
            dag.writes_output(node) || dag.successors(node).iter().any(|next| needed[next.index()]);
    }
    dag.node_ids().filter(|node| needed[node.index()]).collect()
}

/// Turns an admitted set into its candidates: the one-output kernel, the exporting one, or both.
fn emit(dag: &Dag, set: &Grown, limits: &Limits, result: &mut Enumeration) {
    let nodes: Vec<NodeId> = set.nodes.iter().rev().copied().collect();
    let is_convex = set.reentrant == 0;
    let plain = Candidate { is_convex, ..Candidate::of_sink(dag, nodes) };
    let exporting = if limits.max_exports > 0 { exporting(dag, set, &plain, limits) } else { None };
    result.report.exporting += usize::from(exporting.is_some());
    let plain = (set.verdict == Verdict::Keep).then_some(plain);
    for candidate in plain.into_iter().chain(exporting) {
        result.report.nonconvex += usize::from(!is_convex);
        result.candidates.push(candidate);
    }
}

/// The candidate that also leaves behind what others read of its inner tensors, as far as that is safe.
///
/// Tensors of re-entrant nodes are left out: a kernel that made one and needed what is computed from it could never
/// start. So are tensors before the last input (in the order of producers), because two kernels that each wait for
/// such an input could wait for each other.
fn exporting(dag: &Dag, set: &Grown, plain: &Candidate, limits: &Limits) -> Option<Candidate> {
    let last_input = plain.inputs.iter().filter_map(|&tensor| dag.producer(tensor)).max();
    let escapes = |&tensor: &TensorId| dag.escapes(tensor, &plain.nodes);
    let is_safe = |node: &&NodeId| last_input.is_none_or(|last| last < **node);
    let safe_nodes = set.escaping_nodes.iter().rev().filter(is_safe);
    let exports: Vec<TensorId> =
        safe_nodes.clone().flat_map(|&node| dag.node(node).outputs.iter().copied()).filter(escapes).collect();
    let all_are_safe = safe_nodes.count() == set.escaping_nodes.len();
    let suffices = set.verdict == Verdict::Keep || all_are_safe;
    if exports.is_empty() || exports.len() > limits.max_exports || !suffices {
        return None;
    }
    Some(Candidate { outputs: [plain.outputs.clone(), exports].concat(), ..plain.clone() })
}

fn external_inputs(dag: &Dag, nodes: &[NodeId]) -> Vec<TensorId> {
    let is_external =
        |&tensor: &TensorId| dag.producer(tensor).is_none_or(|node| nodes.binary_search(&node).is_err());
    let mut inputs: Vec<TensorId> =
        nodes.iter().flat_map(|&node| dag.node(node).inputs.iter().copied()).filter(is_external).collect();
    inputs.sort_unstable();
    inputs.dedup();
    inputs
}

fn sink_outputs(dag: &Dag, sink: NodeId) -> Vec<TensorId> {
    let is_read = |&tensor: &TensorId| dag.is_output(tensor) || !dag.consumers(tensor).is_empty();
    dag.node(sink).outputs.iter().copied().filter(is_read).collect()
}
