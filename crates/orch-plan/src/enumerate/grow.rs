//! Growth of the sets of one sink, smallest sets first.

use super::{Admission, EnumerationReport, Limits, Verdict};
use crate::dag::{Dag, NodeKind};
use orch_ir::NodeId;
use rustc_hash::FxHashSet;

/// A set of nodes as an [`Admission`] rule sees it, just after a node was added.
pub struct Growing<'a> {
    dag: &'a Dag,
    set: &'a Grown,
}

/// What adding a node does to a set.
#[derive(Clone, Copy)]
struct NewestNode {
    /// Others than the set read the node, or it writes a graph output.
    escapes: bool,
    /// A path leaves the set at the node and returns.
    reenters: bool,
}

impl<'a> Growing<'a> {
    /// The graph.
    pub fn dag(&self) -> &'a Dag {
        self.dag
    }

    /// The nodes of the set, descending: the sink first, the newest last.
    pub fn nodes(&self) -> &'a [NodeId] {
        &self.set.nodes
    }

    /// The node that every node of the set reaches inside the set.
    pub fn sink(&self) -> NodeId {
        self.set.nodes[0]
    }

    /// The node that was just added, the lowest of the set.
    pub fn newest(&self) -> NodeId {
        *self.set.nodes.last().expect("a set holds its sink")
    }

    /// The number of nodes of a kind.
    pub fn count(&self, kind: NodeKind) -> usize {
        self.set.kinds[kind as usize] as usize
    }

    /// Inner nodes whose tensors others read too and no path returns from, descending: a kernel recomputes or
    /// exports them.
    pub fn escaping_nodes(&self) -> &'a [NodeId] {
        &self.set.escaping_nodes
    }

    /// Inner nodes from which a path leaves the set and returns: a kernel recomputes them.
    pub fn reentrant(&self) -> usize {
        self.set.reentrant
    }
}

/// A set of nodes with one sink.
#[derive(Clone)]
pub(super) struct Grown {
    /// Descending: the sink first.
    pub nodes: Vec<NodeId>,
    /// Nodes that may join: each feeds the set and is below all of it. Descending.
    frontier: Vec<NodeId>,
    kinds: [u32; NodeKind::ALL.len()],
    /// Inner nodes that others read too and no path returns from, descending.
    pub escaping_nodes: Vec<NodeId>,
    /// Inner nodes from which a path leaves the set and returns.
    pub reentrant: usize,
    pub verdict: Verdict,
}

/// Grows sets; keeps its buffers from sink to sink.
pub(super) struct SinkGrowth<'a> {
    dag: &'a Dag,
    limits: &'a Limits,
    ancestors: Ancestors<'a>,
    sets: Vec<Grown>,
}

/// Why a set was not extended by a node.
enum Refusal {
    Reentrant,
    Rule,
}

impl<'a> SinkGrowth<'a> {
    pub fn new(dag: &'a Dag, limits: &'a Limits) -> Self {
        SinkGrowth { dag, limits, ancestors: Ancestors::new(dag), sets: Vec::new() }
    }

    /// Meets the sets of a sink; [`SinkGrowth::admitted`] has them afterwards.
    pub fn run(&mut self, sink: NodeId, rule: &impl Admission, report: &mut EnumerationReport) {
        self.sets.clear();
        self.ancestors.restart(sink);
        report.sets += 1;
        match self.seed(sink, rule) {
            Ok(seed) => self.sets.push(seed),
            Err(_) => {
                report.stopped_by_rule += 1;
                return;
            }
        }
        let mut next = 0;
        while next < self.sets.len() {
            if !self.extend_every_way(next, rule, report) {
                report.truncated_sinks.push(sink);
                self.add_greedy_chain(rule, report);
                return;
            }
            next += 1;
        }
    }

    /// The sets met that are candidates, smallest first.
    pub fn admitted(&self) -> impl Iterator<Item = &Grown> {
        self.sets.iter().filter(|set| matches!(set.verdict, Verdict::Keep | Verdict::KeepExporting))
    }

    fn seed(&self, sink: NodeId, rule: &impl Admission) -> Result<Grown, Refusal> {
        let frontier = self.dag.predecessors(sink).iter().rev().copied().collect();
        let mut kinds = [0; NodeKind::ALL.len()];
        kinds[self.dag.node(sink).kind as usize] = 1;
        let set = Grown {
            nodes: vec![sink],
            frontier,
            kinds,
            escaping_nodes: Vec::new(),
            reentrant: 0,
            verdict: Verdict::Keep,
        };
        self.judged(set, rule)
    }

    /// Appends the children of set `index`. False if the limit on sets was hit.
    fn extend_every_way(
        &mut self,
        index: usize,
        rule: &impl Admission,
        report: &mut EnumerationReport,
    ) -> bool {
        let width = self.sets[index].frontier.len();
        if self.sets[index].nodes.len() >= self.limits.max_nodes {
            report.beyond_max_nodes += width;
            return true;
        }
        for position in 0..width {
            if self.sets.len() >= self.limits.max_sets_per_sink {
                return false;
            }
            if let Some(child) = self.child(index, position, rule, report) {
                self.sets.push(child);
            }
        }
        true
    }

    /// The set `index` with a node of its frontier; those above that node are left out for good.
    fn child(
        &mut self,
        index: usize,
        position: usize,
        rule: &impl Admission,
        report: &mut EnumerationReport,
    ) -> Option<Grown> {
        let parent = &self.sets[index];
        let node = parent.frontier[position];
        let newest = NewestNode {
            escapes: escapes(self.dag, &parent.nodes, node),
            reenters: reenters(self.dag, &mut self.ancestors, &parent.nodes, node),
        };
        match self.extended(parent, position, newest, rule) {
            Ok(child) => {
                report.sets += 1;
                Some(child)
            }
            Err(Refusal::Rule) => {
                report.sets += 1;
                report.stopped_by_rule += 1;
                None
            }
            Err(Refusal::Reentrant) => {
                report.beyond_reentrant += 1;
                None
            }
        }
    }

    fn extended(
        &self,
        parent: &Grown,
        position: usize,
        newest: NewestNode,
        rule: &impl Admission,
    ) -> Result<Grown, Refusal> {
        let node = parent.frontier[position];
        if newest.reenters
            && (parent.reentrant >= self.limits.max_reentrant_nodes || !self.dag.node(node).is_cheap)
        {
            return Err(Refusal::Reentrant);
        }
        let mut set = parent.clone();
        set.nodes.push(node);
        set.kinds[self.dag.node(node).kind as usize] += 1;
        set.frontier.drain(..=position);
        merge_descending(&mut set.frontier, self.dag.predecessors(node));
        if newest.reenters {
            set.reentrant += 1;
        } else if newest.escapes {
            set.escaping_nodes.push(node);
        }
        self.judged(set, rule)
    }

    fn judged(&self, mut set: Grown, rule: &impl Admission) -> Result<Grown, Refusal> {
        set.verdict = rule.judge(&Growing { dag: self.dag, set: &set });
        if set.verdict == Verdict::Stop { Err(Refusal::Rule) } else { Ok(set) }
    }

    /// After truncation: takes in the highest possible node again and again, so that the large convex kernels which
    /// breadth-first growth has not reached are represented.
    fn add_greedy_chain(&mut self, rule: &impl Admission, report: &mut EnumerationReport) {
        let known: FxHashSet<Vec<NodeId>> = self.sets.iter().map(|set| set.nodes.clone()).collect();
        let mut chain = vec![self.sets[0].clone()];
        std::mem::swap(&mut chain, &mut self.sets);
        let mut position = 0;
        loop {
            let last = self.sets.len() - 1;
            if position >= self.sets[last].frontier.len()
                || self.sets[last].nodes.len() >= self.limits.max_nodes
            {
                break;
            }
            match self.child(last, position, rule, report) {
                Some(child) if child.reentrant == 0 => {
                    self.sets.push(child);
                    position = 0;
                }
                _ => position += 1,
            }
        }
        chain.extend(self.sets.drain(..).filter(|set| !known.contains(&set.nodes)));
        self.sets = chain;
    }
}

/// True if anyone outside the set (descending) reads the node, or it writes a graph output.
fn escapes(dag: &Dag, set: &[NodeId], node: NodeId) -> bool {
    dag.writes_output(node) || dag.successors(node).iter().any(|next| !holds(set, *next))
}

/// True if a path leaves the set at the node and returns. It returns iff it reaches the sink.
fn reenters(dag: &Dag, ancestors: &mut Ancestors<'_>, set: &[NodeId], node: NodeId) -> bool {
    dag.successors(node).iter().any(|&next| !holds(set, next) && ancestors.contains(next))
}

fn holds(descending: &[NodeId], node: NodeId) -> bool {
    descending.binary_search_by(|member| node.cmp(member)).is_ok()
}

/// Adds ascending `nodes` to a descending list without repetition.
fn merge_descending(list: &mut Vec<NodeId>, nodes: &[NodeId]) {
    for &node in nodes {
        if let Err(place) = list.binary_search_by(|member| node.cmp(member)) {
            list.insert(place, node);
        }
    }
}

/// The ancestors of a sink, found as far down as they are asked for.
struct Ancestors<'a> {
    dag: &'a Dag,
    /// A node is an ancestor if its mark is the current round.
    marks: Vec<u32>,
    round: u32,
    /// Nodes from here on have passed their mark on.
    scanned_from: usize,
}

impl<'a> Ancestors<'a> {
    fn new(dag: &'a Dag) -> Self {
        Ancestors { dag, marks: vec![0; dag.nodes().len()], round: 0, scanned_from: 0 }
    }

    fn restart(&mut self, sink: NodeId) {
        self.round += 1;
        self.marks[sink.index()] = self.round;
        self.scanned_from = sink.index() + 1;
    }

    fn contains(&mut self, node: NodeId) -> bool {
        while self.scanned_from > node.index() + 1 {
            self.scanned_from -= 1;
            if self.marks[self.scanned_from] == self.round {
                for above in self.dag.predecessors(NodeId::new(self.scanned_from)) {
                    self.marks[above.index()] = self.round;
                }
            }
        }
        self.marks[node.index()] == self.round
    }
}
