//! Stage "implement": the chosen sets of units as kernels, each distinct one designed once.

use crate::backend::{Backend, Work};
use crate::candidates::{self, HOST_ROUTINE_US};
use crate::library::{self, KernelCall};
use crate::remember::Chosen;
use crate::signature::{Signature, Signatures};
use crate::substitute::{Operand, Substitute, SubstituteKernel};
use crate::units::Units;
use crate::{Error, Library, Options, explain, parallel};
use orch_compute::{ArgRole, BlockProgram, Storage, fuse};
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_mugraph::Certificate;
use orch_plan::enumerate::Candidate;
use orch_template::Design;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the plan runs.
#[derive(Default)]
pub struct Implementation {
    /// Distinct kernels, in the order of their first use.
    pub kernels: Vec<KernelDesign>,
    /// What runs, in order.
    pub columns: Vec<Column>,
    /// Shapes of tensors of f32 between the kernels of substitutes, numbered from the end of the graph's tensors on.
    pub inner: Vec<Vec<usize>>,
    /// Proofs of substitutes.
    pub proofs: Vec<Certificate>,
}

/// A kernel that one or more columns share.
#[derive(Clone)]
pub struct KernelDesign {
    /// A readable name, unique.
    pub name: String,
    /// The thread program and the schedule.
    pub design: Design,
    /// What it does at least.
    pub work: Work,
    /// Modelled time of one launch.
    pub cost_us: f64,
    /// Whether most of what it reads has not been touched before in a run.
    pub is_cold: bool,
    /// Of its arguments those that are between kernels of a substitute, by position, and the tensors' numbers.
    pub inner: Vec<(usize, usize)>,
    /// A library call that is made instead where it can be.
    pub call: Option<KernelCall>,
}

impl KernelDesign {
    /// How it is done: the release of the library that is called, or the schedule.
    pub fn way(&self) -> &str {
        self.call.as_ref().map_or(&self.design.schedule, |call| &call.release)
    }
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
    /// For kernels of a substitute the number of its proof.
    pub proof: Option<usize>,
}

/// How a column runs.
pub enum ColumnBody {
    /// As a kernel.
    Kernel {
        /// Index into [`Implementation::kernels`].
        kernel: usize,
        /// The tensor of each argument of the kernel's block program or µGraph.
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

/// What was measured of kernels, by signature.
#[derive(Default)]
pub struct Measured {
    /// Microseconds.
    pub times: HashMap<String, f64>,
    /// The fastest schedules of a candidate's kernels, where several were timed.
    pub schedules: HashMap<String, Vec<String>>,
    /// The library calls that were faster than any schedule.
    pub calls: HashMap<String, MeasuredCall>,
}

/// A library call that was faster than a kernel.
pub struct MeasuredCall {
    /// The library.
    pub library: Library,
    /// Its name and release.
    pub release: String,
    /// Microseconds that the kernel took.
    pub own_us: f64,
}

/// A distinct candidate of the plan: one use of it.
struct Distinct<'a> {
    nodes: &'a [NodeId],
    chosen: &'a Chosen,
    signature: &'a Signature,
}

/// A kernel of a distinct candidate, under its short name, until it has a number.
struct Link<K> {
    kernel: K,
    /// For each tensor of its block program or µGraph where it is.
    args: Vec<Arg>,
    /// What it reads and writes; `None` is what the candidate does.
    ends: Option<[Vec<Arg>; 2]>,
}

/// Where an argument of a kernel is, whatever use of the kernel it is.
#[derive(Clone, Copy)]
enum Arg {
    /// In the tensor at this position of the signature.
    Place(usize),
    /// In a tensor of a substitute.
    Inner(usize),
}

/// Chosen candidates that are not lowered, by the signature or the substitute's key.
pub type Unserved = BTreeSet<String>;

/// Designs the kernels of chosen candidates, which are in executable order. Those that produce nothing but empty
/// tensors are left out. A unit that no template serves runs as a host routine through the reference interpreter; if
/// there are sets of several that none serves, these are returned.
///
/// # Errors
/// If the work is cancelled.
pub fn implement(
    place: Place<'_>,
    chosen: Vec<Chosen>,
    measured: &Measured,
    options: &Options,
) -> Result<Result<Implementation, Unserved>, Error> {
    let graph = place.graph;
    let is_needed = |chosen: &Chosen| chosen.candidate.outputs.iter().any(|&t| graph.shape(t).elems() > 0);
    let chosen: Vec<Chosen> = chosen.into_iter().filter(is_needed).collect();
    let nodes: Vec<Vec<NodeId>> =
        chosen.iter().map(|chosen| place.units.primitives(graph, &chosen.candidate.nodes)).collect();
    let uses: Vec<Signature> = (nodes.iter().zip(&chosen))
        .map(|(nodes, chosen)| place.signatures.signature(graph, nodes, &chosen.candidate.outputs))
        .collect();
    let mut numbers: HashMap<(&str, Option<String>), usize> = HashMap::new();
    let mut distinct: Vec<Distinct<'_>> = Vec::new();
    let mut number_of = Vec::with_capacity(uses.len());
    for ((nodes, chosen), signature) in nodes.iter().zip(&chosen).zip(&uses) {
        let key = (signature.text.as_str(), chosen.substitute.as_ref().map(Substitute::key));
        number_of.push(*numbers.entry(key).or_insert_with(|| {
            distinct.push(Distinct { nodes, chosen, signature });
            distinct.len() - 1
        }));
    }
    let mut implementation = Implementation::default();
    let mut entries: Vec<Option<Vec<Link<usize>>>> = Vec::new();
    for made in parallel::map(&distinct, options, |distinct| place.design(distinct, measured, options))? {
        entries.push(made.map(|links| links.into_iter().map(|link| implementation.number(link)).collect()));
    }
    let mut unserved = Unserved::new();
    for (at, number) in number_of.iter().enumerate() {
        let Chosen { candidate, substitute } = &chosen[at];
        match (&entries[*number], substitute) {
            (Some(links), _) => {
                let key = substitute.as_ref().map_or_else(|| uses[at].text.clone(), Substitute::key);
                // The time of several kernels together is none of each.
                let measured_us = measured.times.get(&key).copied().filter(|_| links.len() == 1);
                implementation.add(graph, (&nodes[at], &chosen[at]), &uses[at], links, measured_us);
            }
            (None, None) if candidate.nodes.len() == 1 => {
                let Candidate { inputs, outputs, .. } = candidate.clone();
                implementation.columns.push(Column {
                    nodes: nodes[at].clone(),
                    inputs,
                    outputs,
                    body: ColumnBody::Host,
                    cost_us: HOST_ROUTINE_US,
                    measured_us: None,
                    proof: None,
                });
            }
            (None, None) => {
                unserved.insert(uses[at].text.clone());
            }
            (None, Some(substitute)) => {
                unserved.insert(substitute.key());
            }
        }
    }
    Ok(if unserved.is_empty() { Ok(implementation) } else { Err(unserved) })
}

impl Implementation {
    /// Takes a kernel in.
    fn number(&mut self, link: Link<KernelDesign>) -> Link<usize> {
        let Link { mut kernel, args, ends } = link;
        let number = self.kernels.len();
        kernel.name = format!("k{number}{}", kernel.name.trim_start_matches('k'));
        self.kernels.push(kernel);
        Link { kernel: number, args, ends }
    }

    /// Adds the kernels of a chosen candidate, one after the other.
    fn add(
        &mut self,
        graph: &PrimGraph,
        (nodes, chosen): (&[NodeId], &Chosen),
        signature: &Signature,
        links: &[Link<usize>],
        measured_us: Option<f64>,
    ) {
        let proof = chosen.substitute.as_ref().map(|substitute| self.proof(substitute));
        let mut inner: BTreeMap<usize, TensorId> = BTreeMap::new();
        for link in links {
            let mut tensor = |arg: &Arg| match *arg {
                Arg::Place(place) => signature.tensors[place],
                Arg::Inner(number) => *inner.entry(number).or_insert_with(|| {
                    let shape = chosen.substitute.as_ref().map(|s| s.inner_shape(number)).unwrap_or_default();
                    self.inner.push(shape);
                    TensorId::new(graph.tensors().len() + self.inner.len() - 1)
                }),
            };
            let args = link.args.iter().map(&mut tensor).collect();
            let [inputs, outputs] = match &link.ends {
                Some(ends) => ends.each_ref().map(|list| list.iter().map(&mut tensor).collect()),
                None => [chosen.candidate.inputs.clone(), chosen.candidate.outputs.clone()],
            };
            let cost_us = self.kernels[link.kernel].cost_us;
            let body = ColumnBody::Kernel { kernel: link.kernel, args };
            let nodes = nodes.to_vec();
            self.columns.push(Column { nodes, inputs, outputs, body, cost_us, measured_us, proof });
        }
    }

    /// The number of a substitute's proof.
    fn proof(&mut self, substitute: &Substitute) -> usize {
        let certificate = &substitute.proved.certificate;
        let known = self.proofs.iter().position(|other| other == certificate);
        known.unwrap_or_else(|| {
            self.proofs.push(certificate.clone());
            self.proofs.len() - 1
        })
    }
}

impl Place<'_> {
    /// The kernels of columns, with the preferred schedules; `None` where they are not lowered.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn designs(
        &self,
        columns: &[&candidates::Column],
        options: &Options,
    ) -> Result<Vec<Option<Vec<KernelDesign>>>, Error> {
        parallel::map(columns, options, |column| {
            if let Some(substitute) = &column.substitute {
                let kernels = substitute.kernels(*self, 1)?;
                return Some(kernels.into_iter().flat_map(|kernel| kernel.schedules(*self)).collect());
            }
            let nodes = self.units.primitives(self.graph, &column.candidate.nodes);
            Some(vec![self.kernel(&nodes, &column.candidate.outputs)?.0])
        })
    }

    /// The kernels of a candidate under their short names.
    fn design(
        &self,
        distinct: &Distinct<'_>,
        measured: &Measured,
        options: &Options,
    ) -> Option<Vec<Link<KernelDesign>>> {
        let position = |tensor| distinct.signature.tensors.iter().position(|&other| other == tensor);
        let key =
            distinct.chosen.substitute.as_ref().map_or(distinct.signature.text.clone(), Substitute::key);
        let fastest = measured.schedules.get(&key);
        let limit = fastest.map_or(1, |_| options.tune_schedules);
        let named = |kernel| fastest.and_then(|all| all.get(kernel)).map(String::as_str);
        let Some(substitute) = &distinct.chosen.substitute else {
            let outputs = &distinct.chosen.candidate.outputs;
            let (kernels, block) = self.kernels(distinct.nodes, outputs, limit)?;
            let mut kernel = scheduled(kernels, named(0))?;
            if let Some(call) = measured.calls.get(&distinct.signature.text) {
                let called = (call.library, call.release.clone());
                let with_call = library::beside(&[kernel.clone()], &block, self.backend, &called);
                kernel.call = with_call.and_then(|kernel| kernel.call);
                kernel.call.iter_mut().for_each(|made| made.own_us = Some(call.own_us));
            }
            let place = |arg: &orch_compute::block::Arg| position(arg.tensor).map(Arg::Place);
            let args = block.args.iter().map(place).collect::<Option<_>>()?;
            return Some(vec![Link { kernel, args, ends: None }]);
        };
        let arg = |operand: &Operand| match *operand {
            Operand::Tensor(tensor) => position(tensor).map(Arg::Place),
            Operand::Inner(number) => Some(Arg::Inner(number)),
        };
        let all = |operands: &[Operand]| operands.iter().map(arg).collect::<Option<Vec<Arg>>>();
        let link = |(number, kernel): (usize, SubstituteKernel)| {
            let ends = Some([all(&kernel.reads)?, all(&kernel.writes)?]);
            let args = all(&kernel.args)?;
            Some(Link { args, ends, kernel: scheduled(kernel.schedules(*self), named(number))? })
        };
        substitute.kernels(*self, limit)?.into_iter().enumerate().map(link).collect()
    }

    /// Each kernel of candidates under several schedules, the preferred one first, and last with calls of the libraries, of
    /// the releases that stand beside the candidate, where there are such calls; none where there is no choice.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn schedules(
        &self,
        columns: &[(&candidates::Column, Vec<(Library, String)>)],
        options: &Options,
    ) -> Result<Vec<Vec<Vec<KernelDesign>>>, Error> {
        let limit = options.tune_schedules;
        parallel::map(columns, options, |(column, releases)| {
            let kernels = match &column.substitute {
                Some(substitute) => {
                    let kernels = substitute.kernels(*self, limit).unwrap_or_default();
                    kernels.into_iter().map(|kernel| kernel.schedules(*self)).collect()
                }
                None => {
                    let nodes = self.units.primitives(self.graph, &column.candidate.nodes);
                    let kernels = self.kernels(&nodes, &column.candidate.outputs, limit);
                    let with_call = |(mut all, block): (Vec<KernelDesign>, BlockProgram)| {
                        let beside = |called| library::beside(&all, &block, self.backend, called);
                        let calls: Vec<KernelDesign> = releases.iter().filter_map(beside).collect();
                        all.extend(calls);
                        vec![all]
                    };
                    kernels.map_or_else(Vec::new, with_call)
                }
            };
            if kernels.iter().any(|all: &Vec<KernelDesign>| all.len() > 1) { kernels } else { Vec::new() }
        })
    }

    /// True if most of what a kernel reads is touched for the first time in a run, constants and inputs of the model, of which a
    /// cache does not keep all from one run to the next.
    pub fn is_cold(&self, reads: impl Iterator<Item = TensorId>) -> bool {
        let graph = self.graph;
        let bytes = |tensor: TensorId| graph.shape(tensor).elems() * self.storage.dtype(tensor).size_bytes();
        let is_first = |tensor: &TensorId| graph.producer(*tensor).is_none();
        let (mut cold, mut warm) = (0, 0);
        for tensor in reads {
            *if is_first(&tensor) { &mut cold } else { &mut warm } += bytes(tensor);
        }
        let all = || (0..graph.tensors().len()).map(TensorId::new).filter(is_first).map(bytes).sum::<usize>();
        cold > warm && all() > self.backend.kept_bytes()
    }

    /// A kernel under its short name, with the preferred schedule, and its block program.
    fn kernel(&self, nodes: &[NodeId], outputs: &[TensorId]) -> Option<(KernelDesign, BlockProgram)> {
        let (mut kernels, block) = self.kernels(nodes, outputs, 1)?;
        Some((kernels.swap_remove(0), block))
    }

    /// A kernel under at most `limit` schedules, at least one.
    fn kernels(
        &self,
        nodes: &[NodeId],
        outputs: &[TensorId],
        limit: usize,
    ) -> Option<(Vec<KernelDesign>, BlockProgram)> {
        let name = name(self.graph, nodes);
        let block = fuse::build_stored(self.graph, nodes, outputs, self.storage, name.clone()).ok()?;
        let (work, cost_us) = (self.backend.work(&block), self.backend.time_us(&block)?);
        let designs = self.backend.designs(&block, limit).into_iter();
        let read = block.args.iter().filter(|arg| arg.role != ArgRole::Output);
        let is_cold = self.is_cold(read.map(|arg| arg.tensor));
        let kernel = |design| KernelDesign {
            name: name.clone(),
            design,
            work,
            cost_us,
            is_cold,
            inner: Vec::new(),
            call: None,
        };
        let kernels: Vec<KernelDesign> = designs.map(kernel).collect();
        (!kernels.is_empty()).then_some((kernels, block))
    }
}

/// The kernel under the schedule of this name, if it is among them; otherwise under the preferred one, which comes first.
fn scheduled(mut kernels: Vec<KernelDesign>, schedule: Option<&str>) -> Option<KernelDesign> {
    let named = kernels.iter().position(|kernel| Some(kernel.design.schedule.as_str()) == schedule);
    (!kernels.is_empty()).then(|| kernels.swap_remove(named.unwrap_or(0)))
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
