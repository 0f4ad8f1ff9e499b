//! The kernels of substitutes: each block graph of a µGraph lowered to thread programs under several schedules.

use super::backend::Planner;
use super::context::PlanContext;
use super::kernel::{KernelDesign, KernelWork};
use super::substitute::{Substitute, SubstituteTensor};
use orch_mugraph::lower::{CannotLower, Request, Stored, gpu};
use orch_mugraph::op::elems;
use orch_mugraph::tiling::tile_shapes;
use orch_mugraph::{BlockGraph, MuGraph, Node, Op, ReduceFn, TileNode};
use orch_template::Design;
use orch_thread::kernel::Binding;

/// A kernel of a substitute.
pub struct SubstituteKernel {
    /// A name for people.
    pub name: String,
    /// The thread program under several schedules, the preferred one first.
    pub designs: Vec<Design>,
    /// For each tensor of the µGraph where it is.
    pub args: Vec<SubstituteTensor>,
    /// The tensors that it reads and writes, in order of their definition.
    pub reads: Vec<SubstituteTensor>,
    /// See `reads`.
    pub writes: Vec<SubstituteTensor>,
    /// The least that it does.
    pub work: KernelWork,
    /// Modelled time.
    pub cost_us: f64,
}

impl SubstituteKernel {
    /// The kernel by itself, under each of its schedules.
    pub fn schedules(self, ctx: PlanContext<'_>) -> Vec<KernelDesign> {
        let tensor = |tensor: &SubstituteTensor| match *tensor {
            SubstituteTensor::Graph(tensor) => Some(tensor),
            SubstituteTensor::Inner(_) => None,
        };
        let is_cold = ctx.is_cold(self.reads.iter().filter_map(tensor));
        let SubstituteKernel { name, designs, args, work, cost_us, .. } = self;
        let inner = |design: &Design| {
            let number = |(at, binding): (usize, &Binding)| match binding {
                Binding::Arg(arg) => match args.get(arg.index())? {
                    SubstituteTensor::Inner(number) => Some((at, *number)),
                    SubstituteTensor::Graph(_) => None,
                },
                Binding::Packed(_) | Binding::Own { .. } => None,
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

impl Substitute {
    /// Its kernels in order, each under at most `limit` schedules; `None` if one is not lowered.
    pub fn kernels(&self, ctx: PlanContext<'_>, limit: usize) -> Option<Vec<SubstituteKernel>> {
        let graph = self.proved.graph().ok()?;
        let (stored, tensors) = self.views.memory(&graph, ctx)?;
        let designs = lowered_blocks(&graph, &stored, ctx.planner, limit).ok()?;
        let share_us = self.proved.cost_us / designs.len().max(1) as f64;
        let mut kernels = Vec::new();
        for LoweredBlock { kernel, block, designs } in designs {
            let cost_us = share_us.max(ctx.planner.emitted(&designs.first()?.kernel.program).least_us);
            let request = Request { graph: &graph, kernel, stored: &stored, name: "" };
            let is_read = |tensor: &orch_mugraph::TensorId| request.is_in_memory(*tensor);
            let reads = block.loaded().filter(is_read).map(|tensor| tensors[tensor.index()]);
            let writes = (0..block.stores.len()).map(|result| tensors[kernel.index() + result]);
            kernels.push(SubstituteKernel {
                designs,
                args: tensors.clone(),
                reads: reads.collect(),
                writes: writes.collect(),
                work: work(&request, block, ctx),
                cost_us,
                name: name(block),
            });
        }
        Some(kernels)
    }
}

/// A kernel of a µGraph.
pub struct LoweredBlock<'a> {
    /// The first tensor that it defines.
    pub kernel: orch_mugraph::TensorId,
    /// What defines it.
    block: &'a BlockGraph,
    /// The thread program under several schedules, the preferred one first.
    pub designs: Vec<Design>,
}

/// The kernels of a µGraph in order, each under at most `limit` schedules, at least one.
///
/// # Errors
/// Why a kernel is not lowered.
pub fn lowered_blocks<'a>(
    graph: &'a MuGraph,
    stored: &[Stored],
    planner: &dyn Planner,
    limit: usize,
) -> Result<Vec<LoweredBlock<'a>>, CannotLower> {
    let design = |(kernel, node): (orch_mugraph::TensorId, &'a Node)| {
        let Node::Block(block) = node else {
            return Err(CannotLower(format!("{kernel} is not defined by a block graph")));
        };
        let request = Request { graph, kernel, stored, name: &name(block) };
        let designs = planner.design_mugraph(&request, limit)?;
        Ok(LoweredBlock { kernel, block, designs })
    };
    graph.kernel_nodes().map(design).collect()
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
fn work(request: &Request<'_>, block: &BlockGraph, ctx: PlanContext<'_>) -> KernelWork {
    let graph = request.graph;
    let machine = ctx.planner.search_options().machine;
    let shapes = tile_shapes(block, graph.shapes(), (&vec![0; block.grid.len()], 0)).unwrap_or_default();
    let iterations = match ctx.planner.info().computes_bands {
        true => gpu::iterations(request),
        false => block.blocks() * block.loop_range,
    };
    let product = |(node, shape): (&TileNode, &Vec<usize>)| match node {
        TileNode::Op { op: Op::Matmul, args } => {
            let terms = shapes[args[0].index()].last().copied().unwrap_or(1);
            2.0 * terms as f64 * elems(shape) as f64
        }
        _ => 0.0,
    };
    let flops = iterations as f64 * block.nodes.iter().zip(&shapes).map(product).sum::<f64>();
    let mut tensors: Vec<orch_mugraph::TensorId> =
        block.loaded().filter(|tensor| request.is_in_memory(*tensor)).collect();
    tensors.sort_unstable();
    tensors.dedup();
    let moved: usize = tensors.iter().map(|tensor| elems(graph.shape(*tensor))).sum();
    let memory_us = (moved * machine.element_bytes) as f64 / machine.memory_bytes_per_us;
    let roofline_us = memory_us.max(flops / machine.flops_per_us);
    KernelWork { flops, roofline_us, alone_us: roofline_us * machine.cores as f64 }
}
