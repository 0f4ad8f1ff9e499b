//! Stages "identify" and "implement": candidate kernels with their block programs, thread programs and costs.
//!
//! Candidates that compute the same thing share one [`KernelDesign`]; a model of twelve equal layers designs each
//! kernel once. A unit that no template serves runs as a host routine through the reference interpreter.

use crate::facts::facts;
use crate::signature::Signature;
use crate::units::Units;
use crate::{Error, Options};
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_plan::dag::NodeKind;
use orch_plan::enumerate::{Admission, AnchorPolicy, ReducePolicy, Verdict};
use orch_plan::enumerate::{Candidate, EnumerationReport, Growing, KindRule, Limits, enumerate};
use orch_tile::templates::{self, Design};
use orch_tile::{CpuTarget, Layout, fuse};
use orch_tune::MachineModel;
use orch_tune::cost::KernelFacts;
use std::collections::HashMap;

/// All that may be chosen from.
pub struct Candidates {
    /// Distinct kernels.
    pub kernels: Vec<KernelDesign>,
    /// Ways to compute units.
    pub columns: Vec<Column>,
    /// What the enumeration met.
    pub report: EnumerationReport,
    /// Candidates that have no block program or no template, by reason.
    pub refused: usize,
}

/// A kernel that one or more candidates share.
pub struct KernelDesign {
    /// A readable name, unique.
    pub name: String,
    /// The template and schedule it would use.
    pub design: Design,
    /// What it does.
    pub facts: KernelFacts,
    /// Modelled time of one launch.
    pub cost_us: f64,
}

/// One candidate.
pub struct Column {
    /// Units that it executes.
    pub units: Vec<NodeId>,
    /// Primitives that it executes, free ones included.
    pub nodes: Vec<NodeId>,
    /// Tensors that it reads.
    pub inputs: Vec<TensorId>,
    /// Tensors that it leaves behind.
    pub outputs: Vec<TensorId>,
    /// How it runs.
    pub body: ColumnBody,
    /// Modelled time.
    pub cost_us: f64,
}

/// How a candidate runs.
pub enum ColumnBody {
    /// As a kernel.
    Kernel {
        /// Index into [`Candidates::kernels`].
        kernel: usize,
        /// The tensor of each argument of the kernel's block program.
        args: Vec<TensorId>,
    },
    /// As a host routine: the primitives of one unit, interpreted.
    Host,
}

/// Time of a host routine beyond what its bytes take, relative to a kernel: never chosen where a kernel can run.
const HOST_ROUTINE_US: f64 = 1e4;

/// Most kernels' worth of a set; larger ones are grown only as chains.
const LIMITS: Limits =
    Limits { max_nodes: 24, max_reentrant_nodes: 2, max_exports: 1, max_sets_per_sink: 256 };

/// Grows the candidates of a graph and designs a kernel for each distinct one.
///
/// # Errors
/// If a unit can run in no way at all.
pub fn candidates(
    graph: &PrimGraph,
    layouts: &[Layout],
    units: &Units,
    target: &CpuTarget,
    machine: &MachineModel,
    options: &Options,
) -> Result<Candidates, Error> {
    let enumeration = enumerate(&units.dag, &Rule { fuse: options.fuse }, &LIMITS);
    let mut designer =
        Designer { graph, layouts, target, machine, known: HashMap::new(), kernels: Vec::new() };
    let mut columns = Vec::with_capacity(enumeration.candidates.len());
    let mut refused = 0;
    for candidate in enumeration.candidates {
        let nodes = units.primitives(graph, &candidate.nodes);
        match designer.column(candidate, nodes) {
            Some(column) => columns.push(column),
            None => refused += 1,
        }
    }
    Ok(Candidates { kernels: designer.kernels, columns, report: enumeration.report, refused })
}

/// What may be one kernel on this target: any reductions, or one contraction with what surrounds it.
struct Rule {
    fuse: bool,
}

impl Admission for Rule {
    fn judge(&self, set: &Growing<'_>) -> Verdict {
        let kinds = KindRule { anchors: AnchorPolicy::Fused, reduces: ReducePolicy::Inside };
        let mixes = set.count(NodeKind::Anchor) > 0 && set.count(NodeKind::Reduce) > 0;
        if mixes || !self.fuse && set.nodes().len() > 1 { Verdict::Stop } else { kinds.judge(set) }
    }
}

struct Designer<'a> {
    graph: &'a PrimGraph,
    layouts: &'a [Layout],
    target: &'a CpuTarget,
    machine: &'a MachineModel,
    /// Kernel, and for each of its arguments the position of its tensor in the signature, by signature text.
    known: HashMap<String, Option<(usize, Vec<usize>)>>,
    kernels: Vec<KernelDesign>,
}

impl Designer<'_> {
    /// The column of a candidate, or `None` if it cannot be one kernel.
    fn column(&mut self, candidate: Candidate, nodes: Vec<NodeId>) -> Option<Column> {
        let Candidate { nodes: units, inputs, outputs, .. } = candidate;
        let signature = Signature::of(self.graph, self.layouts, &nodes, &outputs);
        let entry = match self.known.get(&signature.text) {
            Some(entry) => entry.clone(),
            None => {
                let entry = self.design(&nodes, &outputs, &signature);
                self.known.insert(signature.text, entry.clone());
                entry
            }
        };
        let (body, cost_us) = match entry {
            Some((kernel, places)) => {
                let args = places.iter().map(|&place| signature.tensors[place]).collect();
                (ColumnBody::Kernel { kernel, args }, self.kernels[kernel].cost_us)
            }
            None if units.len() == 1 => (ColumnBody::Host, HOST_ROUTINE_US),
            None => return None,
        };
        Some(Column { units, nodes, inputs, outputs, body, cost_us })
    }

    fn design(
        &mut self,
        nodes: &[NodeId],
        outputs: &[TensorId],
        signature: &Signature,
    ) -> Option<(usize, Vec<usize>)> {
        let name = self.name(nodes);
        let layouts = |tensor: TensorId| self.layouts[tensor.index()].clone();
        let block = fuse::build(self.graph, nodes, outputs, &layouts, name.clone()).ok()?;
        let design = templates::design(&block, self.target)?;
        let facts = facts(&block, design.kernel.program.tasks);
        let cost_us = facts.estimate(self.machine).time_us;
        let place = |tensor: TensorId| signature.tensors.iter().position(|&other| other == tensor);
        let places = block.args.iter().map(|arg| place(arg.tensor)).collect::<Option<_>>()?;
        self.kernels.push(KernelDesign { name, design, facts, cost_us });
        Some((self.kernels.len() - 1, places))
    }

    /// `k7_conv_add_relu`: the position keeps names apart, the primitives tell what runs.
    fn name(&self, nodes: &[NodeId]) -> String {
        const SHOWN: usize = 4;
        let mut name = format!("k{}", self.kernels.len());
        let words = nodes.iter().map(|&node| crate::explain::short_name(&self.graph.node(node).op));
        let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
        for word in words.iter().take(SHOWN) {
            name.push('_');
            name.push_str(word);
        }
        if words.len() > SHOWN {
            name.push_str("_etc");
        }
        name
    }
}
