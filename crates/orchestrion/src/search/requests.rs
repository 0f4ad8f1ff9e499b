//! Which programs of a graph are searched: those whose uses together might gain most.
//!
//! A program is a region of the graph ([`regions`]). It may gain what the plan by templates spends on the kernels that compute
//! it, minus the least that any kernel of it costs.

use super::views::region_views;
use crate::Options;
use crate::plan::context::PlanContext;
use crate::plan::substitute::StoredViews;
use orch_compute::operands::OperandRounding;
use orch_ir::{NodeId, PrimGraph, TensorId};
use orch_mugraph::extract::{Region, RegionLimits, regions};
use orch_mugraph::{MuGraph, print};
use orch_plan::enumerate::Candidate;
use std::collections::{BTreeMap, BTreeSet};

/// Programs are searched if all their uses together might gain this share of the plan.
const LEAST_GAIN: f64 = 0.02;

/// Programs of one graph that are searched.
const MAX_SEARCHES: usize = 8;

/// A program of the graph that is to be searched, and all its uses.
pub struct SearchRequest {
    /// What is to be computed.
    pub program: MuGraph,
    /// True if exponentials must be relative to maxima.
    pub must_be_stable: bool,
    /// The units of each use, and where inputs and outputs are.
    pub uses: Vec<(Candidate, StoredViews)>,
    /// What the plan by templates spends on the kernels that overlap a use, of the use where that is most.
    pub spent_us: f64,
    /// Upper bound of what all uses gain together.
    pub gain_us: f64,
}

/// The modelled time of a kernel in the plan by templates.
pub struct KernelCost<'a> {
    /// The units that the kernel computes.
    pub units: &'a [NodeId],
    /// Its modelled microseconds.
    pub cost_us: f64,
}

/// The programs that are worth a search, those that might gain most first; all, if what is found is preferred.
pub fn search_requests(
    ctx: PlanContext<'_>,
    kernels: &[KernelCost<'_>],
    options: &Options,
) -> Vec<SearchRequest> {
    let machine = ctx.planner.search_options().machine;
    let least_us = LEAST_GAIN * kernels.iter().map(|kernel| kernel.cost_us).sum::<f64>();
    let mut requests: Vec<SearchRequest> = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let consumers = ctx.graph.consumers();
    for region in regions_of_products(ctx.graph) {
        let Some(views) = region_views(&region, ctx).filter(|_| is_searched(&region, ctx)) else { continue };
        let Some(candidate) = candidate(&region.nodes, &views, &consumers, ctx) else { continue };
        let own = |kernel: &&KernelCost<'_>| {
            kernel.units.iter().filter(|unit| candidate.nodes.contains(unit)).count()
        };
        let touched: Vec<&KernelCost<'_>> = kernels.iter().filter(|kernel| own(kernel) > 0).collect();
        // Of a kernel that does more, the share by the number of units.
        let share =
            |kernel: &&KernelCost<'_>| kernel.cost_us * own(kernel) as f64 / kernel.units.len() as f64;
        let gain_us = touched.iter().map(share).sum::<f64>() - machine.program_floor_us(&region.program);
        if gain_us <= 0.0 && !options.prefer_found {
            continue;
        }
        let Region { program, subtracts_maxima: must_be_stable, .. } = region;
        let key = format!("{} {} {:?}", print(&program), views.key(), views.input_storage(ctx));
        let number = *numbers.entry(key).or_insert_with(|| {
            requests.push(SearchRequest {
                program,
                must_be_stable,
                uses: Vec::new(),
                spent_us: 0.0,
                gain_us: 0.0,
            });
            requests.len() - 1
        });
        requests[number].uses.push((candidate, views));
        let spent_us = touched.iter().map(|kernel| kernel.cost_us).sum();
        requests[number].spent_us = requests[number].spent_us.max(spent_us);
        requests[number].gain_us += gain_us;
    }
    requests.retain(|request| request.gain_us > least_us || options.prefer_found);
    requests.sort_by(|a, b| b.gain_us.total_cmp(&a.gain_us));
    requests.truncate(MAX_SEARCHES);
    requests
}

/// The regions of a graph, also those of the products that were merged to one: a merged product, of which they take slices, stands between
/// the products of a gated MLP and what reads them.
pub fn regions_of_products(graph: &PrimGraph) -> Vec<Region> {
    let mut found = regions(graph, &RegionLimits::default());
    let Some(unmerged) = orch_rewrite::unmerge_products(graph) else { return found };
    let tensor = |new: TensorId| unmerged.tensors[new.index()];
    for mut region in regions(&unmerged.graph, &RegionLimits::default()) {
        if region.nodes.iter().all(|node| unmerged.nodes[node.index()].len() <= 1) {
            continue;
        }
        let inputs: Option<Vec<TensorId>> = region.inputs.iter().map(|view| tensor(view.tensor)).collect();
        let Some((inputs, output)) = inputs.zip(tensor(region.output.tensor)) else { continue };
        region.inputs.iter_mut().zip(inputs).for_each(|(view, tensor)| view.tensor = tensor);
        region.output.tensor = output;
        let nodes: BTreeSet<NodeId> =
            region.nodes.iter().flat_map(|node| &unmerged.nodes[node.index()]).copied().collect();
        region.nodes = nodes.into_iter().collect();
        found.push(region);
    }
    found
}

/// True if a region may be searched: premises depend on the inputs' values, which are not known here.
pub fn is_searched(region: &Region, ctx: PlanContext<'_>) -> bool {
    region.premises.is_empty() && is_rounded(region, ctx)
}

/// True if products may round all that a region reads and computes to half precision, as those of µGraphs do.
fn is_rounded(region: &Region, PlanContext { graph, storage, .. }: PlanContext<'_>) -> bool {
    let read = region.inputs.iter().map(|view| view.tensor);
    let computed = region.nodes.iter().flat_map(|&node| graph.node(node).outputs.iter().copied());
    read.chain(computed).all(|tensor| storage.rounding(tensor) == OperandRounding::Half)
}

/// The units of primitives that a substitute replaces; `None` if these cut through some, or read what is not stored. Masks that are bands
/// are not read.
pub fn candidate(
    replaced: &[NodeId],
    views: &StoredViews,
    consumers: &[Vec<NodeId>],
    ctx: PlanContext<'_>,
) -> Option<Candidate> {
    let PlanContext { graph, units, .. } = ctx;
    let unread = unread(replaced, views, consumers, graph);
    let mut nodes = Vec::new();
    for (number, members) in units.members.iter().enumerate() {
        let is_replaced = |node: &NodeId| replaced.contains(node) || unread.contains(node);
        match members.iter().any(|node| replaced.contains(node)) {
            false => {}
            true if members.iter().all(is_replaced) => nodes.push(NodeId(number as u32)),
            true => return None,
        }
    }
    let read = views.inputs.iter().filter(|view| view.band.is_none());
    let mut inputs: Vec<TensorId> = read.map(|view| TensorId(view.tensor)).collect();
    inputs.sort_unstable();
    inputs.dedup();
    let is_stored = |tensor: &TensorId| graph.producer(*tensor).is_none_or(|node| !units.is_free(node));
    let outputs: Vec<TensorId> = views.outputs.iter().map(|view| TensorId(view.tensor)).collect();
    let is_whole =
        inputs.iter().all(is_stored) && outputs.iter().all(|output| units.produce(&nodes, *output));
    (is_whole && !nodes.is_empty()).then_some(Candidate { nodes, inputs, outputs, is_convex: true })
}

/// The primitives beside those that are replaced whose results nothing reads once masks that are bands are not read.
fn unread(
    replaced: &[NodeId],
    views: &StoredViews,
    consumers: &[Vec<NodeId>],
    graph: &PrimGraph,
) -> BTreeSet<NodeId> {
    let is_output = |tensor: &TensorId| graph.outputs.iter().any(|(_, output)| output == tensor);
    let masks = views.inputs.iter().filter(|view| view.band.is_some());
    let mut pending: Vec<TensorId> = masks.map(|view| TensorId(view.tensor)).collect();
    let mut unread = BTreeSet::new();
    while let Some(tensor) = pending.pop() {
        let Some(id) = graph.producer(tensor) else { continue };
        let is_unread = |tensor: &TensorId| {
            let mut readers = consumers[tensor.index()].iter();
            !is_output(tensor) && readers.all(|reader| replaced.contains(reader) || unread.contains(reader))
        };
        if graph.node(id).outputs.iter().all(is_unread) && unread.insert(id) {
            pending.extend(&graph.node(id).inputs);
        }
    }
    unread
}
