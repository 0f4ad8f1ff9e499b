//! Substitutes: kernels that the superoptimizer found for parts of the graph, as further candidates.
//!
//! A part ([`regions`]) is a program of its own. The cheapest µGraphs that are proved to compute it, of one or more
//! kernels, stand beside the kernels of templates, and the choice decides.

use crate::backend::{Backend, Work};
use crate::compile::is_tuned;
use crate::implement::{KernelDesign, Place};
use crate::superoptimize::{Finder, Wanted};
use crate::units::Units;
use crate::{Error, Options, parallel};
use orch_compute::Layout;
use orch_ir::{DType, NodeId, PrimGraph, Shape, TensorId};
use orch_mugraph::extract::{Region, RegionLimits, View, regions};
use orch_mugraph::lower::{Request, Stored};
use orch_mugraph::op::elems;
use orch_mugraph::tiling::tile_shapes;
use orch_mugraph::{BlockGraph, MuGraph, Node, Op, Proved, ReduceFn, SuperoptimizeError, TileNode, print};
use orch_plan::enumerate::Candidate;
use orch_template::Design;
use orch_thread::kernel::Binding;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Costs of µGraphs count as so much more: those of templates are known better.
const MARGIN: f64 = 1.1;

/// Programs are searched if all their uses together might gain this share of the plan.
const LEAST_GAIN: f64 = 0.02;

/// Where times are measured, µGraphs are looked at that are modelled to cost so many times what templates cost.
const MODEL_SLACK: f64 = 2.0;

/// States that a search may visit if its program might gain the whole plan; one that might gain less, so much fewer.
const STATES: f64 = 5e6;

/// Programs of one graph that are searched.
const MAX_SEARCHES: usize = 8;

/// A proved µGraph in place of some primitives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Substitute {
    views: Views,
    /// The µGraph.
    pub proved: Proved,
}

/// How a program's inputs and its output lie in tensors of the graph.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Views {
    inputs: Vec<StoredView>,
    output: StoredView,
}

/// A tensor of a program in the memory of a tensor of the graph.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct StoredView {
    tensor: u32,
    strides: Vec<usize>,
    offset: usize,
}

/// A substitute with the units that it stands for.
pub struct Offer {
    /// The units and tensors.
    pub candidate: Candidate,
    /// What computes them.
    pub substitute: Substitute,
    /// Modelled time.
    pub cost_us: f64,
}

/// A kernel of a substitute.
pub struct SubstituteKernel {
    /// A name for people.
    pub name: String,
    /// The thread program under several schedules, the preferred one first.
    pub designs: Vec<Design>,
    /// For each tensor of the µGraph where it is.
    pub args: Vec<Operand>,
    /// The tensors that it reads and writes, in order of their definition.
    pub reads: Vec<Operand>,
    /// See `reads`.
    pub writes: Vec<Operand>,
    /// What it does at least.
    pub work: Work,
    /// Modelled time.
    pub cost_us: f64,
}

impl SubstituteKernel {
    /// The kernel by itself, under each of its schedules.
    pub fn schedules(self, place: Place<'_>) -> Vec<KernelDesign> {
        let tensor = |operand: &Operand| match *operand {
            Operand::Tensor(tensor) => Some(tensor),
            Operand::Inner(_) => None,
        };
        let is_cold = place.is_cold(self.reads.iter().filter_map(tensor));
        let SubstituteKernel { name, designs, args, work, cost_us, .. } = self;
        let inner = |design: &Design| {
            let number = |(at, binding): (usize, &Binding)| match binding {
                Binding::Arg(arg) => match args.get(arg.index())? {
                    Operand::Inner(number) => Some((at, *number)),
                    Operand::Tensor(_) => None,
                },
                Binding::Packed(_) => None,
            };
            design.kernel.bindings.iter().enumerate().filter_map(number).collect()
        };
        let kernel = |design: Design| KernelDesign {
            name: name.clone(),
            inner: inner(&design),
            design,
            work,
            cost_us,
            is_cold,
            call: None,
        };
        designs.into_iter().map(kernel).collect()
    }
}

/// Where a tensor of a µGraph is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Operand {
    /// In a tensor of the graph.
    Tensor(TensorId),
    /// Between two kernels of the substitute, by its number; f32 in row-major order.
    Inner(usize),
}

/// Elements from one index to the next one in memory, for tensors that are not in row-major order; `None` if that is not
/// one number for some dimension.
fn in_memory(view: &View, extents: &[usize], shape: &Shape, layout: &Layout) -> Option<StoredView> {
    let tensor = view.tensor.0;
    if layout.is_row_major() {
        return Some(StoredView { tensor, strides: view.strides.clone(), offset: view.offset });
    }
    let (logical, memory) = (shape.strides(), layout.strides(shape));
    // Of each dimension the first element, and then the last one that is reached.
    let mut reached: Vec<usize> =
        (0..shape.rank()).map(|dim| view.offset / logical[dim].max(1) % shape[dim].max(1)).collect();
    let offset = reached.iter().zip(&memory).map(|(at, stride)| at * stride).sum();
    let mut strides = Vec::with_capacity(extents.len());
    for (&stride, &extent) in view.strides.iter().zip(extents) {
        if stride == 0 || extent == 1 {
            strides.push(0);
            continue;
        }
        let holds = |&dim: &usize| shape[dim] > 1 && logical[dim] <= stride;
        let dim = (0..shape.rank()).filter(holds).min_by_key(|&dim| stride - logical[dim])?;
        let step = stride / logical[dim];
        reached[dim] += step * (extent - 1);
        // Walks that leave a dimension go on elsewhere in memory.
        if !stride.is_multiple_of(logical[dim]) || reached[dim] >= shape[dim] {
            return None;
        }
        strides.push(step * memory[dim]);
    }
    Some(StoredView { tensor, strides, offset })
}

/// A program of the graph, and all its uses.
struct Wish {
    program: MuGraph,
    must_be_stable: bool,
    uses: Vec<(Candidate, Views)>,
    /// What of the plan by templates is spent on kernels of which a use has a part, where that is most.
    spent_us: f64,
    /// What all uses might gain at most.
    gain_us: f64,
}

/// What the plan by templates spends on a kernel.
pub struct Spent<'a> {
    /// The units that the kernel computes.
    pub units: &'a [NodeId],
    /// Its modelled microseconds.
    pub cost_us: f64,
}

/// The µGraphs that are offered for parts of a graph: of the parts those are searched that might gain most by what the plan
/// by templates spends on them.
///
/// # Errors
/// If the work is cancelled.
pub fn offers(place: Place<'_>, spent: &[Spent<'_>], options: &Options) -> Result<Vec<Offer>, Error> {
    let finder = Finder::new(place.backend, options);
    let spent_us: f64 = spent.iter().map(|kernel| kernel.cost_us).sum();
    let slack = if is_tuned(place.backend, options) { MODEL_SLACK } else { 1.0 };
    let mut offers = Vec::new();
    for wish in wishes(place, spent) {
        let [(_, views), ..] = &wish.uses[..] else { continue };
        let wanted = Wanted {
            program: &wish.program,
            must_be_stable: wish.must_be_stable,
            below_us: slack * wish.spent_us / MARGIN,
            states: (STATES * wish.gain_us / spent_us).ceil() as u64,
            layout: &views.key(),
            stored: &|graph| Some(views.memory(graph, place)?.0),
        };
        let proved = match finder.find(&wanted) {
            Ok(searched) => searched.found.proved,
            Err(SuperoptimizeError::Interrupted) => return Err(Error::Interrupted),
            Err(SuperoptimizeError::Outside(_)) => continue,
        };
        for (candidate, views) in wish.uses {
            offers.extend(proved.iter().map(|proved| {
                (candidate.clone(), Substitute { views: views.clone(), proved: proved.clone() })
            }));
        }
    }
    let costs = parallel::map(&offers, options, |(_, substitute)| {
        let kernels = substitute.kernels(place, 1)?;
        Some(kernels.iter().map(|kernel| kernel.cost_us).sum::<f64>())
    })?;
    let offer = |((candidate, substitute), cost_us): (_, Option<f64>)| {
        cost_us.map(|cost_us| Offer { candidate, substitute, cost_us: MARGIN * cost_us })
    };
    Ok(offers.into_iter().zip(costs).filter_map(offer).collect())
}

/// The programs that are worth a search, those that might gain most first.
fn wishes(place: Place<'_>, kernels: &[Spent<'_>]) -> Vec<Wish> {
    let machine = place.backend.search_options().machine;
    let least_us = LEAST_GAIN * kernels.iter().map(|kernel| kernel.cost_us).sum::<f64>();
    let mut wishes: Vec<Wish> = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    for region in regions(place.graph, &RegionLimits::default()) {
        // Whether what is taken for granted holds depends on inputs.
        let is_offered = region.premises.is_empty() && !is_wide(&region, place);
        let candidate = candidate(&region, place.graph, place.units).filter(|_| is_offered);
        let Some((candidate, views)) = candidate.zip(stored_views(&region, place)) else { continue };
        let own =
            |kernel: &&Spent<'_>| kernel.units.iter().filter(|unit| candidate.nodes.contains(unit)).count();
        let touched: Vec<&Spent<'_>> = kernels.iter().filter(|kernel| own(kernel) > 0).collect();
        // Of a kernel that does more, the share by the number of units.
        let share = |kernel: &&Spent<'_>| kernel.cost_us * own(kernel) as f64 / kernel.units.len() as f64;
        let gain_us = touched.iter().map(share).sum::<f64>() - machine.program_floor_us(&region.program);
        if gain_us <= 0.0 {
            continue;
        }
        let Region { program, subtracts_maxima: must_be_stable, .. } = region;
        let number = *numbers.entry(format!("{} {}", print(&program), views.key())).or_insert_with(|| {
            wishes.push(Wish { program, must_be_stable, uses: Vec::new(), spent_us: 0.0, gain_us: 0.0 });
            wishes.len() - 1
        });
        wishes[number].uses.push((candidate, views));
        let spent_us = touched.iter().map(|kernel| kernel.cost_us).sum();
        wishes[number].spent_us = wishes[number].spent_us.max(spent_us);
        wishes[number].gain_us += gain_us;
    }
    wishes.retain(|wish| wish.gain_us > least_us);
    wishes.sort_by(|a, b| b.gain_us.total_cmp(&a.gain_us));
    wishes.truncate(MAX_SEARCHES);
    wishes
}

/// True if a region reads or computes values beyond the range of the half type, to which µGraphs round all factors.
fn is_wide(region: &Region, Place { graph, storage, .. }: Place<'_>) -> bool {
    let read = region.inputs.iter().map(|view| view.tensor);
    let computed = region.nodes.iter().flat_map(|&node| graph.node(node).outputs.iter().copied());
    read.chain(computed).any(|tensor| storage.is_wide(tensor))
}

/// The units of a region; `None` if it cuts through some, or reads what is not stored.
fn candidate(region: &Region, graph: &PrimGraph, units: &Units) -> Option<Candidate> {
    let is_own = |node: &NodeId| region.nodes.contains(node);
    let mut nodes = Vec::new();
    for (number, members) in units.members.iter().enumerate() {
        match members.iter().filter(|node| is_own(node)).count() {
            0 => {}
            count if count == members.len() => nodes.push(NodeId(number as u32)),
            _ => return None,
        }
    }
    let mut inputs: Vec<TensorId> = region.inputs.iter().map(|view| view.tensor).collect();
    inputs.sort_unstable();
    inputs.dedup();
    let output = region.output.tensor;
    let is_stored = |tensor: &TensorId| graph.producer(*tensor).is_none_or(|node| !units.is_free(node));
    let is_whole = inputs.iter().all(is_stored) && units.produce(&nodes, output);
    (is_whole && !nodes.is_empty()).then_some(Candidate {
        nodes,
        inputs,
        outputs: vec![output],
        is_convex: true,
    })
}

/// Inputs and output of a region in memory.
fn stored_views(region: &Region, place: Place<'_>) -> Option<Views> {
    let program = &region.program;
    let view = |view: &View, tensor| {
        let (shape, layout) = (place.graph.shape(view.tensor), place.storage.layout(view.tensor));
        in_memory(view, program.shape(tensor), shape, layout)
    };
    let inputs: Option<Vec<StoredView>> =
        region.inputs.iter().zip(program.inputs()).map(|(own, (tensor, ..))| view(own, tensor)).collect();
    let [(_, output)] = program.outputs() else { return None };
    Some(Views { inputs: inputs?, output: view(&region.output, *output)? })
}

impl Substitute {
    /// What identifies its kernels: the µGraph, and how its inputs and output lie in memory.
    pub fn key(&self) -> String {
        format!("{} {}", self.proved.certificate.candidate, self.views.key())
    }

    /// Its kernels in order, each under at most `limit` schedules; `None` if one is not lowered.
    pub fn kernels(&self, place: Place<'_>, limit: usize) -> Option<Vec<SubstituteKernel>> {
        let graph = self.proved.graph().ok()?;
        let (stored, operands) = self.views.memory(&graph, place)?;
        let designs = designs(&graph, &stored, place.backend, limit)?;
        let share_us = self.proved.cost_us / designs.len().max(1) as f64;
        let mut kernels = Vec::new();
        for Lowered { kernel, block, designs } in designs {
            let cost_us = share_us.max(place.backend.instructions_us(&designs.first()?.kernel.program));
            let has_memory = |tensor: &orch_mugraph::TensorId| graph.computed_mask(*tensor).is_none();
            let reads = block.loaded().filter(has_memory).map(|tensor| operands[tensor.index()]);
            let writes = (0..block.stores.len()).map(|result| operands[kernel.index() + result]);
            kernels.push(SubstituteKernel {
                designs,
                args: operands.clone(),
                reads: reads.collect(),
                writes: writes.collect(),
                work: work(&graph, block, place),
                cost_us,
                name: name(block),
            });
        }
        Some(kernels)
    }

    /// The shape of a tensor of the µGraph.
    pub fn inner_shape(&self, number: usize) -> Vec<usize> {
        let graph = self.proved.graph().unwrap_or_default();
        graph.shapes().get(number).cloned().unwrap_or_default()
    }
}

impl Views {
    /// What tells layouts apart.
    fn key(&self) -> String {
        let view = |view: &StoredView| format!("{:?} {}", view.strides, view.offset);
        let views: Vec<String> = self.inputs.iter().chain([&self.output]).map(view).collect();
        views.join(" ")
    }

    /// How each tensor of a µGraph is stored, and where.
    fn memory(&self, graph: &MuGraph, place: Place<'_>) -> Option<(Vec<Stored>, Vec<Operand>)> {
        let mut stored: Vec<Stored> =
            graph.shapes().iter().map(|shape| Stored::row_major(DType::F32, shape)).collect();
        let mut operands: Vec<Operand> = (0..stored.len()).map(Operand::Inner).collect();
        let [(_, output)] = graph.outputs() else { return None };
        let inputs = graph.inputs().map(|(tensor, ..)| tensor);
        for (tensor, view) in inputs.zip(&self.inputs).chain([(*output, &self.output)]) {
            let id = TensorId(view.tensor);
            if id.index() >= place.graph.tensors().len() || view.strides.len() != graph.shape(tensor).len() {
                return None;
            }
            stored[tensor.index()] = Stored {
                dtype: place.storage.dtype(id),
                strides: view.strides.clone(),
                offset: view.offset,
                elems: place.graph.shape(id).elems(),
            };
            operands[tensor.index()] = Operand::Tensor(id);
        }
        Some((stored, operands))
    }
}

/// A kernel of a µGraph.
pub struct Lowered<'a> {
    /// The first tensor that it defines.
    kernel: orch_mugraph::TensorId,
    /// What defines it.
    block: &'a BlockGraph,
    /// The thread program under several schedules, the preferred one first.
    pub designs: Vec<Design>,
}

/// The kernels of a µGraph in order, each under at most `limit` schedules; `None` if one is not lowered.
pub fn designs<'a>(
    graph: &'a MuGraph,
    stored: &[Stored],
    backend: &dyn Backend,
    limit: usize,
) -> Option<Vec<Lowered<'a>>> {
    let kernels = graph.nodes().filter(|(_, node)| !node.args().is_empty());
    let design = |(kernel, node): (orch_mugraph::TensorId, &'a Node)| {
        let Node::Block(block) = node else { return None };
        let request = Request { graph, kernel, stored, name: &name(block) };
        let designs = backend.design_mugraph(&request, limit);
        (!designs.is_empty()).then_some(Lowered { kernel, block, designs })
    };
    kernels.map(design).collect()
}

/// `k_block_matmul_exp_sum_matmul`: the operators tell what runs.
fn name(block: &BlockGraph) -> String {
    const SHOWN: usize = 4;
    let word = |node: &TileNode| match node {
        TileNode::Op { op: Op::Matmul, .. } => Some("matmul"),
        TileNode::Op { op: Op::RmsNorm { .. }, .. } => Some("norm"),
        TileNode::Op { op: Op::Unary(f), .. } => Some(f.name()),
        TileNode::Op { op: Op::Reduce { f: ReduceFn::Sum, .. }, .. } => Some("sum"),
        TileNode::Op { op: Op::Reduce { f: ReduceFn::Max, .. }, .. } => Some("max"),
        TileNode::Op { op: Op::Binary(f), .. } => Some(f.name()),
        _ => None,
    };
    let words: Vec<&str> = block.nodes.iter().filter_map(word).take(SHOWN).collect();
    format!("k_block_{}", words.join("_"))
}

/// What a kernel does at least: each tensor moved once, products multiplied.
fn work(graph: &MuGraph, block: &BlockGraph, place: Place<'_>) -> Work {
    let machine = place.backend.search_options().machine;
    let shapes = tile_shapes(block, graph.shapes(), (&vec![0; block.grid.len()], 0)).unwrap_or_default();
    let times = (block.blocks() * block.loop_range) as f64;
    let product = |(node, shape): (&TileNode, &Vec<usize>)| match node {
        TileNode::Op { op: Op::Matmul, args } => {
            let terms = shapes[args[0].index()].last().copied().unwrap_or(1);
            2.0 * terms as f64 * elems(shape) as f64
        }
        _ => 0.0,
    };
    let flops = times * block.nodes.iter().zip(&shapes).map(product).sum::<f64>();
    let mut tensors: Vec<orch_mugraph::TensorId> = block.loaded().collect();
    tensors.sort_unstable();
    tensors.dedup();
    let moved: usize = tensors.iter().map(|tensor| elems(graph.shape(*tensor))).sum();
    let memory_us = (moved * machine.element_bytes) as f64 / machine.memory_bytes_per_us;
    Work { flops, roofline_us: memory_us.max(flops / machine.flops_per_us) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(strides: &[usize], offset: usize, extents: &[usize], order: &[usize]) -> Option<StoredView> {
        let view = View { tensor: TensorId(0), strides: strides.to_vec(), offset };
        let layout = Layout::from_order(order.to_vec()).expect("an order");
        in_memory(&view, extents, &Shape::from([2, 3, 8]), &layout)
    }

    #[test]
    fn views_follow_the_order_of_memory() {
        let stored =
            |strides: &[usize], offset| Some(StoredView { tensor: 0, strides: strides.to_vec(), offset });
        // Rows of 8 lie 6 apart each when the last dimension is outermost.
        let order = [2, 0, 1];
        assert_eq!(seen(&[24, 8, 1], 0, &[2, 3, 8], &order), stored(&[3, 1, 6], 0));
        assert_eq!(seen(&[8, 2], 9, &[2, 3], &order), stored(&[1, 12], 7));
        // Part of a dimension by two; an extent of 1 and a repetition have no stride.
        assert_eq!(seen(&[4, 1, 8, 0], 0, &[2, 4, 1, 5], &order), stored(&[24, 6, 0, 0], 0));
        // Two dimensions as one, and what begins late and leaves its dimension.
        assert_eq!(seen(&[8], 0, &[6], &order), None);
        assert_eq!(seen(&[1], 4, &[5], &order), None);
        assert_eq!(seen(&[8], 0, &[6], &[0, 1, 2]), stored(&[8], 0));
    }
}
