//! Stage "implement": the chosen candidates as kernels, each distinct one designed once.

use super::block_kernels::SubstituteKernel;
use super::context::PlanContext;
use super::implementation::{Chosen, ColumnBody, Implementation, PlannedColumn, PlannedPart};
use super::kernel::{KernelDesign, Measured};
use super::known::evaluate_known;
use super::library;
use super::signature::KernelSignature;
use super::substitute::{Substitute, SubstituteTensor};
use crate::{Error, Options, parallel};
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_plan::enumerate::Candidate;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A distinct candidate of the plan: one use of it.
struct DistinctCandidate<'a> {
    nodes: &'a [NodeId],
    chosen: &'a Chosen,
    signature: &'a KernelSignature,
}

/// A kernel of a distinct candidate with its arguments: `K` is the design under its short name, and then its number.
struct BoundKernel<K> {
    kernel: K,
    /// For each tensor of its block program or µGraph where it is.
    args: Vec<ArgTensor>,
    /// What it reads and what it writes; `None`: the inputs and outputs of the candidate.
    ends: Option<[Vec<ArgTensor>; 2]>,
}

/// The tensor of a kernel's argument, the same for every use of the kernel.
#[derive(Clone, Copy)]
enum ArgTensor {
    /// The tensor at this position of the signature.
    Position(usize),
    /// A tensor between two kernels of a substitute, by its number.
    Inner(usize),
}

/// Chosen candidates that no template or lowering serves, by the signature or the substitute's key.
pub type Unserved = BTreeSet<String>;

/// Designs the kernels of chosen candidates, which are in executable order. Those that produce nothing but empty
/// tensors are left out; those that depend on constants alone are evaluated. A unit that no template serves runs as a host routine
/// through the reference interpreter; if there are sets of several that none serves, these are returned.
///
/// # Errors
/// If the work is cancelled.
pub fn implement(
    ctx: PlanContext<'_>,
    chosen: Vec<Chosen>,
    measured: &Measured,
    options: &Options,
) -> Result<Result<Implementation, Unserved>, Error> {
    let graph = ctx.graph;
    let is_needed = |chosen: &Chosen| chosen.candidate.outputs.iter().any(|&t| graph.shape(t).elems() > 0);
    let mut implementation = Implementation::default();
    let mut is_step = |chosen: &Chosen| {
        let outputs = &chosen.candidate.outputs;
        // What cannot be evaluated runs, and gives the error.
        !ctx.known.contains_all(outputs) || evaluate_known(graph, outputs, &mut implementation.known).is_err()
    };
    let chosen: Vec<Chosen> = chosen.into_iter().filter(is_needed).filter(&mut is_step).collect();
    let nodes: Vec<Vec<NodeId>> =
        chosen.iter().map(|chosen| ctx.units.primitives(graph, &chosen.candidate.nodes)).collect();
    let uses: Vec<KernelSignature> = (nodes.iter().zip(&chosen))
        .map(|(nodes, chosen)| ctx.signatures.signature(graph, nodes, &chosen.candidate.outputs))
        .collect();
    let mut numbers: HashMap<(&str, Option<String>), usize> = HashMap::new();
    let mut distinct: Vec<DistinctCandidate<'_>> = Vec::new();
    let mut number_of = Vec::with_capacity(uses.len());
    for ((nodes, chosen), signature) in nodes.iter().zip(&chosen).zip(&uses) {
        let key = (signature.text.as_str(), chosen.substitute.as_ref().map(Substitute::key));
        number_of.push(*numbers.entry(key).or_insert_with(|| {
            distinct.push(DistinctCandidate { nodes, chosen, signature });
            distinct.len() - 1
        }));
    }
    let mut entries: Vec<Option<Vec<BoundKernel<usize>>>> = Vec::new();
    for made in parallel::map(&distinct, options, |distinct| ctx.design(distinct, measured, options))? {
        entries
            .push(made.map(|bound| bound.into_iter().map(|kernel| implementation.number(kernel)).collect()));
    }
    let mut unserved = Unserved::new();
    for (at, number) in number_of.iter().enumerate() {
        let Chosen { candidate, substitute } = &chosen[at];
        match (&entries[*number], substitute) {
            (Some(bound), _) => {
                let key = substitute.as_ref().map_or_else(|| uses[at].text.clone(), Substitute::key);
                // The time of several kernels together is none of each.
                let measured_us = measured.times.get(&key).copied().filter(|_| bound.len() == 1);
                implementation.add(graph, (&nodes[at], &chosen[at]), &uses[at], bound, measured_us);
            }
            (None, None) if candidate.nodes.len() == 1 => {
                let Candidate { inputs, outputs, .. } = candidate.clone();
                implementation.columns.push(PlannedColumn {
                    nodes: nodes[at].clone(),
                    inputs,
                    outputs,
                    body: ColumnBody::Host,
                    cost_us: ctx.host_us(candidate),
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
    /// Adds a kernel, and gives it its number and its unique name.
    fn number(&mut self, bound: BoundKernel<KernelDesign>) -> BoundKernel<usize> {
        let BoundKernel { mut kernel, args, ends } = bound;
        let number = self.kernels.len();
        kernel.name = format!("k{number}{}", kernel.name.trim_start_matches('k'));
        self.kernels.push(kernel);
        BoundKernel { kernel: number, args, ends }
    }

    /// Adds the kernels of a chosen candidate, one after the other.
    fn add(
        &mut self,
        graph: &PrimGraph,
        (nodes, chosen): (&[NodeId], &Chosen),
        signature: &KernelSignature,
        kernels: &[BoundKernel<usize>],
        measured_us: Option<f64>,
    ) {
        let proof = chosen.substitute.as_ref().map(|substitute| self.proof(substitute));
        if let Some((proof, substitute)) = proof.zip(chosen.substitute.clone()) {
            let first = self.columns.len();
            let columns = (first..first + kernels.len()).collect();
            self.parts.push(PlannedPart { proof, substitute, columns });
        }
        let mut inner: BTreeMap<usize, TensorId> = BTreeMap::new();
        for bound in kernels {
            let mut tensor = |arg: &ArgTensor| match *arg {
                ArgTensor::Position(at) => signature.tensors[at],
                ArgTensor::Inner(number) => *inner.entry(number).or_insert_with(|| {
                    let shape = chosen.substitute.as_ref().map(|s| s.inner_shape(number)).unwrap_or_default();
                    self.inner.push(shape);
                    TensorId::new(graph.tensors().len() + self.inner.len() - 1)
                }),
            };
            let args = bound.args.iter().map(&mut tensor).collect();
            let [inputs, outputs] = match &bound.ends {
                Some(ends) => ends.each_ref().map(|list| list.iter().map(&mut tensor).collect()),
                None => [chosen.candidate.inputs.clone(), chosen.candidate.outputs.clone()],
            };
            let cost_us = self.kernels[bound.kernel].cost_us;
            let body = ColumnBody::Kernel { kernel: bound.kernel, args };
            let nodes = nodes.to_vec();
            self.columns.push(PlannedColumn { nodes, inputs, outputs, body, cost_us, measured_us, proof });
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

impl PlanContext<'_> {
    /// The kernels of a candidate under their short names.
    fn design(
        &self,
        distinct: &DistinctCandidate<'_>,
        measured: &Measured,
        options: &Options,
    ) -> Option<Vec<BoundKernel<KernelDesign>>> {
        let position = |tensor| distinct.signature.tensors.iter().position(|&other| other == tensor);
        let key =
            distinct.chosen.substitute.as_ref().map_or(distinct.signature.text.clone(), Substitute::key);
        let fastest = measured.schedules.get(&key);
        let limit = fastest.map_or(1, |_| options.tune_schedules);
        let named = |kernel| fastest.and_then(|all| all.get(kernel)).map(String::as_str);
        let Some(substitute) = &distinct.chosen.substitute else {
            let outputs = &distinct.chosen.candidate.outputs;
            let (kernels, definition) = self.kernels(distinct.nodes, outputs, limit)?;
            let mut kernel = scheduled(kernels, named(0))?;
            if let Some(call) = measured.calls.get(&distinct.signature.text) {
                let precision = self.planner.info().library_precision;
                let called = (call.library, call.release.clone());
                let block = definition.block();
                let with_call =
                    block.and_then(|block| library::with_call(&[kernel.clone()], block, precision, &called));
                kernel.call = with_call.and_then(|kernel| kernel.call);
                kernel.call.iter_mut().for_each(|made| made.own_us = Some(call.own_us));
            }
            let place = |arg: &orch_compute::block::Arg| position(arg.tensor).map(ArgTensor::Position);
            let args = definition.args().iter().map(place).collect::<Option<_>>()?;
            return Some(vec![BoundKernel { kernel, args, ends: None }]);
        };
        let arg = |tensor: &SubstituteTensor| match *tensor {
            SubstituteTensor::Graph(tensor) => position(tensor).map(ArgTensor::Position),
            SubstituteTensor::Inner(number) => Some(ArgTensor::Inner(number)),
        };
        let all = |tensors: &[SubstituteTensor]| tensors.iter().map(arg).collect::<Option<Vec<ArgTensor>>>();
        let bind = |(number, kernel): (usize, SubstituteKernel)| {
            let ends = Some([all(&kernel.reads)?, all(&kernel.writes)?]);
            let args = all(&kernel.args)?;
            Some(BoundKernel { args, ends, kernel: scheduled(kernel.schedules(*self), named(number))? })
        };
        substitute.kernels(*self, limit)?.into_iter().enumerate().map(bind).collect()
    }
}

/// The kernel under the schedule of this name, if it is among them; otherwise under the preferred one, which comes first.
fn scheduled(mut kernels: Vec<KernelDesign>, schedule: Option<&str>) -> Option<KernelDesign> {
    let named = kernels.iter().position(|kernel| Some(kernel.design.schedule.as_str()) == schedule);
    (!kernels.is_empty()).then(|| kernels.swap_remove(named.unwrap_or(0)))
}
