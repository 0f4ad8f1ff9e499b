//! Stage "implement": the chosen sets of units as kernels, each distinct one designed once.

use crate::backend::{Backend, Work};
use crate::candidates::HOST_ROUTINE_US;
use crate::signature::{Signature, Signatures};
use crate::units::Units;
use crate::{Error, Options, explain, parallel};
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_plan::enumerate::Candidate;
use orch_tile::templates::Design;
use orch_tile::{BlockProgram, Storage, fuse};
use std::collections::{BTreeSet, HashMap};

/// What the plan runs.
pub struct Implementation {
    /// Distinct kernels, in the order of their first use.
    pub kernels: Vec<KernelDesign>,
    /// What runs, in order.
    pub columns: Vec<Column>,
}

/// A kernel that one or more columns share.
pub struct KernelDesign {
    /// A readable name, unique.
    pub name: String,
    /// The thread program and the schedule.
    pub design: Design,
    /// What it does at least.
    pub work: Work,
    /// Modelled time of one launch.
    pub cost_us: f64,
}

/// One chosen set of units.
pub struct Column {
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
    /// Time measured while tuning.
    pub measured_us: Option<f64>,
}

/// How a column runs.
pub enum ColumnBody {
    /// As a kernel.
    Kernel {
        /// Index into [`Implementation::kernels`].
        kernel: usize,
        /// The tensor of each argument of the kernel's block program.
        args: Vec<TensorId>,
    },
    /// As a host routine: the primitives of one unit, interpreted.
    Host,
}

/// What kernels are made for.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The graph.
    pub graph: &'a PrimGraph,
    /// How tensors are stored.
    pub storage: &'a Storage,
    /// The graph in units.
    pub units: &'a Units,
    /// What its primitives and tensors look like.
    pub signatures: &'a Signatures,
    /// What makes kernels.
    pub backend: &'a dyn Backend,
}

/// Measured times of kernels, by signature.
pub type Measured = HashMap<String, f64>;

/// A distinct kernel of the plan: one use of it, and the design unless it is a host routine.
struct Distinct<'a> {
    nodes: &'a [NodeId],
    outputs: &'a [TensorId],
    signature: &'a Signature,
}

/// Chosen sets of units that no template serves as one kernel, by signature.
pub type Unserved = BTreeSet<String>;

/// Designs the kernels of chosen candidates, which are in executable order. Those that produce nothing but empty
/// tensors are left out. A unit that no template serves runs as a host routine through the reference interpreter; if
/// there are sets of several that none serves, these are returned.
///
/// # Errors
/// If the work is cancelled.
pub fn implement(
    place: Place<'_>,
    chosen: Vec<Candidate>,
    measured: &Measured,
    options: &Options,
) -> Result<Result<Implementation, Unserved>, Error> {
    let graph = place.graph;
    let is_needed = |candidate: &Candidate| candidate.outputs.iter().any(|&t| graph.shape(t).elems() > 0);
    let chosen: Vec<Candidate> = chosen.into_iter().filter(is_needed).collect();
    let nodes: Vec<Vec<NodeId>> =
        chosen.iter().map(|candidate| place.units.primitives(graph, &candidate.nodes)).collect();
    let uses: Vec<Signature> = (nodes.iter().zip(&chosen))
        .map(|(nodes, candidate)| place.signatures.signature(graph, nodes, &candidate.outputs))
        .collect();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut distinct: Vec<Distinct<'_>> = Vec::new();
    let mut number_of = Vec::with_capacity(uses.len());
    for ((nodes, candidate), signature) in nodes.iter().zip(&chosen).zip(&uses) {
        number_of.push(*numbers.entry(signature.text.as_str()).or_insert_with(|| {
            distinct.push(Distinct { nodes, outputs: &candidate.outputs, signature });
            distinct.len() - 1
        }));
    }
    let mut kernels = Vec::new();
    // For each distinct kernel its number, and for each argument the position of its tensor in the signature.
    let mut entries: Vec<Option<(usize, Vec<usize>)>> = Vec::new();
    for made in parallel::map(&distinct, options, |distinct| place.design(distinct))? {
        entries.push(made.map(|(mut kernel, places)| {
            kernel.name = format!("k{}{}", kernels.len(), kernel.name.trim_start_matches('k'));
            kernels.push(kernel);
            (kernels.len() - 1, places)
        }));
    }
    let mut columns = Vec::with_capacity(chosen.len());
    let mut unserved = Unserved::new();
    for (at, number) in number_of.iter().enumerate() {
        let (body, cost_us) = match &entries[*number] {
            Some((kernel, places)) => {
                let args = places.iter().map(|&place| uses[at].tensors[place]).collect();
                (ColumnBody::Kernel { kernel: *kernel, args }, kernels[*kernel].cost_us)
            }
            None if chosen[at].nodes.len() == 1 => (ColumnBody::Host, HOST_ROUTINE_US),
            None => {
                unserved.insert(uses[at].text.clone());
                continue;
            }
        };
        let measured_us = measured.get(&uses[at].text).copied();
        let Candidate { inputs, outputs, .. } = chosen[at].clone();
        columns.push(Column { nodes: nodes[at].clone(), inputs, outputs, body, cost_us, measured_us });
    }
    Ok(if unserved.is_empty() { Ok(Implementation { kernels, columns }) } else { Err(unserved) })
}

impl Place<'_> {
    /// The kernels of candidates; `None` where no template serves.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn designs(
        &self,
        candidates: &[&Candidate],
        options: &Options,
    ) -> Result<Vec<Option<KernelDesign>>, Error> {
        parallel::map(candidates, options, |candidate| {
            let nodes = self.units.primitives(self.graph, &candidate.nodes);
            Some(self.kernel(&nodes, &candidate.outputs)?.0)
        })
    }

    /// A kernel under its short name, and for each of its arguments the position of the tensor in the signature.
    fn design(&self, distinct: &Distinct<'_>) -> Option<(KernelDesign, Vec<usize>)> {
        let (kernel, block) = self.kernel(distinct.nodes, distinct.outputs)?;
        let position = |tensor| distinct.signature.tensors.iter().position(|&other| other == tensor);
        let places = block.args.iter().map(|arg| position(arg.tensor)).collect::<Option<_>>()?;
        Some((kernel, places))
    }

    /// A kernel under its short name, and its block program.
    fn kernel(&self, nodes: &[NodeId], outputs: &[TensorId]) -> Option<(KernelDesign, BlockProgram)> {
        let name = name(self.graph, nodes);
        let block = fuse::build_stored(self.graph, nodes, outputs, self.storage, name.clone()).ok()?;
        let design = self.backend.design(&block)?;
        let (work, cost_us) = (self.backend.work(&block), self.backend.time_us(&block)?);
        Some((KernelDesign { name, design, work, cost_us }, block))
    }
}

/// `k_conv_add_relu`: the primitives tell what runs. It is part of the kernel's source, and so of what the cache of
/// kernels knows it by; a number would keep equal kernels of different plans apart.
fn name(graph: &PrimGraph, nodes: &[NodeId]) -> String {
    const SHOWN: usize = 4;
    let words = nodes.iter().map(|&node| explain::short_name(&graph.node(node).op));
    let words: Vec<String> = words.filter(|word| !word.is_empty()).collect();
    let mut name = String::from("k");
    for word in words.iter().take(SHOWN) {
        name.push('_');
        name.push_str(word);
    }
    if words.len() > SHOWN {
        name.push_str("_etc");
    }
    name
}
