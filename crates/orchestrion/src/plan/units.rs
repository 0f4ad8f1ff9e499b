//! Stage "identify", first half: the primitive graph as units that candidate kernels are made of.
//!
//! Four reductions keep the number of candidates small without losing a plan worth having:
//! - *free* primitives (broadcasts, iotas, reshapes and transposes that are views of the same bytes, widening bf16 to f32, and
//!   f16 on devices that widen it where it is read) are computed again by every kernel that reads them, at no cost;
//! - a stretch of an unrolled loop is one unit, and a kernel by itself ([`unrolled`](super::unrolled));
//! - an elementwise primitive whose only reader is an elementwise primitive of the same shape belongs to it, as long as
//!   a kernel can read what both need: storing the value in between never pays (without fusion it is a unit of its own);
//! - everything else is a unit of one primitive.

use super::backend::TargetInfo;
use super::unrolled::unrolled;
use super::wiring::Wiring;
use crate::Options;
use orch_compute::alone::stands_alone;
use orch_compute::scatter::fill_of;
use orch_compute::{Layout, layouts::is_view};
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, ScalarFn, TensorId};
use orch_plan::dag::{Dag, DagError, DagNode, NodeKind};
use std::collections::{BTreeMap, BTreeSet};

/// Tensors that the primitives of a unit read, if they are several.
const MAX_SOURCES: usize = 64;

/// What units depend on beside the graph.
#[derive(Clone, Copy)]
pub struct UnitOptions {
    /// Widening f16 to f32 costs nothing where it is read.
    pub widens_f16: bool,
    /// Elementwise primitives belong to their only reader.
    pub fuse: bool,
}

impl UnitOptions {
    /// Those of a target and of what the caller decides.
    pub fn of(info: &TargetInfo, options: &Options) -> Self {
        Self { widens_f16: info.widens_f16, fuse: options.fuse }
    }
}

/// A primitive graph cut into units.
pub struct Units {
    /// The units as the enumerator sees them.
    pub dag: Dag,
    /// The primitives of each unit, ascending; index with the unit's id.
    pub members: Vec<Vec<NodeId>>,
    free: Vec<bool>,
}

impl Units {
    /// Cuts a graph into units.
    ///
    /// # Errors
    /// If the graph is not valid.
    pub fn of(graph: &PrimGraph, layouts: &[Layout], options: UnitOptions) -> Result<Self, DagError> {
        let free = free_nodes(graph, layouts, options.widens_f16);
        let wiring = Wiring::of(graph, &free);
        let without_loops = match options.fuse {
            true => owners(graph, &wiring, &[]),
            false => graph.node_ids().collect(),
        };
        let loops = match options.fuse {
            true => unrolled(graph, layouts, &wiring, &without_loops, MAX_SOURCES),
            false => Vec::new(),
        };
        // Stretches of two loops can need each other: then there is no order with them.
        let with_loops = match loops.is_empty() {
            true => None,
            false => in_order(graph, &wiring, &owners(graph, &wiring, &loops)),
        };
        let last = |stretch: &Vec<NodeId>| stretch.last().copied();
        let loops: BTreeSet<NodeId> = with_loops.iter().flat_map(|_| loops.iter().filter_map(last)).collect();
        let members = with_loops.or_else(|| in_order(graph, &wiring, &without_loops));
        let members = members.expect("what is merged with its only reader does not change the order");
        let node = |members: &Vec<NodeId>| {
            let unit = dag_node(graph, &wiring, members);
            let is_loop = members.last().is_some_and(|last| loops.contains(last));
            if is_loop { DagNode { kind: NodeKind::Opaque, ..unit } } else { unit }
        };
        let nodes = members.iter().map(node).collect();
        let outputs = graph.outputs.iter().map(|(_, tensor)| *tensor).collect();
        let dag = Dag::new(graph.tensors().len(), nodes, outputs)?;
        Ok(Self { dag, members, free })
    }

    /// The primitives that a kernel of these units runs, free ones included, in topological order.
    pub fn primitives(&self, graph: &PrimGraph, units: &[NodeId]) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> =
            units.iter().flat_map(|unit| self.members[unit.index()].iter().copied()).collect();
        let mut next = 0;
        while next < nodes.len() {
            for &input in &graph.node(nodes[next]).inputs {
                if let Some(producer) = graph.producer(input).filter(|node| self.free[node.index()])
                    && !nodes.contains(&producer)
                {
                    nodes.push(producer);
                }
            }
            next += 1;
        }
        nodes.sort_unstable();
        nodes
    }

    /// For each unit whether it is a slice.
    pub fn slices(&self, graph: &PrimGraph) -> Vec<bool> {
        let is_slice = |node: &NodeId| matches!(graph.node(*node).op, PrimOp::Slice { .. });
        self.members.iter().map(|members| members.iter().all(is_slice)).collect()
    }

    /// True for a primitive that costs nothing where it is read, so that its result is not stored.
    pub fn is_free(&self, node: NodeId) -> bool {
        self.free[node.index()]
    }

    /// True if one of these units produces a tensor.
    pub fn produce(&self, units: &[NodeId], tensor: TensorId) -> bool {
        units.iter().any(|&unit| self.dag.node(unit).outputs.contains(&tensor))
    }
}

/// A unit as the enumerator sees it.
fn dag_node(graph: &PrimGraph, wiring: &Wiring<'_>, members: &[NodeId]) -> DagNode {
    let last = members.last().expect("a unit has a primitive");
    let kinds = members.iter().map(|&node| kind(&graph.node(node).op));
    let mut seen = BTreeSet::new();
    let read = members.iter().flat_map(|&node| wiring.sources(node).iter().copied());
    let is_made = |tensor: TensorId| graph.producer(tensor).is_some_and(|node| members.contains(&node));
    let inputs = read.filter(|&tensor| !is_made(tensor) && seen.insert(tensor)).collect();
    let is_left = |node: &&NodeId| *node == last || wiring.escapes(**node, members);
    let left = members.iter().filter(is_left);
    DagNode {
        kind: kinds.max().expect("a unit has a primitive"),
        is_cheap: is_difference_from_row(graph, members),
        inputs,
        outputs: left.flat_map(|&node| graph.node(node).outputs.iter().copied()).collect(),
    }
}

/// Primitives that cost nothing where they are read. Graph outputs must exist, so what produces one is not free.
fn free_nodes(graph: &PrimGraph, layouts: &[Layout], widens_f16: bool) -> Vec<bool> {
    let is_stored = operands_of_lone_kernels(graph, layouts);
    let is_output = |node: NodeId| {
        graph.node(node).outputs.iter().any(|tensor| graph.outputs.iter().any(|(_, output)| output == tensor))
    };
    graph
        .node_ids()
        .map(|id| {
            let node = graph.node(id);
            let is_free = match node.op {
                PrimOp::Broadcast { .. } | PrimOp::Iota { .. } => true,
                PrimOp::Map(ScalarFn::Cast(DType::F32)) => match graph.dtype(node.inputs[0]) {
                    DType::BF16 => true,
                    DType::F16 => widens_f16,
                    _ => false,
                },
                PrimOp::Transpose { .. } | PrimOp::Reshape { .. } => is_view(graph, node, layouts),
                _ => false,
            };
            is_free && !is_output(id) && !is_stored[id.index()]
        })
        .collect()
}

/// What primitives that are a kernel by themselves read as they are stored: primitives that make an operand, or what it is a view of.
fn operands_of_lone_kernels(graph: &PrimGraph, layouts: &[Layout]) -> Vec<bool> {
    let mut is_stored = vec![false; graph.nodes().len()];
    for node in graph.nodes().iter().filter(|node| stands_alone(&node.op)) {
        let is_scatter = matches!(node.op, PrimOp::ScatterAlong { .. } | PrimOp::ScatterNd { .. });
        for (number, &operand) in node.inputs.iter().enumerate() {
            if is_scatter && number == 0 && fill_of(graph, operand).is_some() {
                continue;
            }
            let mut tensor = operand;
            while let Some(producer) = graph.producer(tensor) {
                let node = graph.node(producer);
                if !is_view(graph, node, layouts) {
                    is_stored[producer.index()] = true;
                    break;
                }
                tensor = node.inputs[0];
            }
        }
    }
    is_stored
}

/// For each primitive the one whose unit it belongs to, itself or a later one; of a stretch of a loop the last one.
fn owners(graph: &PrimGraph, wiring: &Wiring<'_>, loops: &[Vec<NodeId>]) -> Vec<NodeId> {
    let consumers = graph.consumers();
    let mut owner: Vec<NodeId> = graph.node_ids().collect();
    let mut is_in_loop = vec![false; owner.len()];
    for stretch in loops {
        for node in stretch {
            owner[node.index()] = stretch[stretch.len() - 1];
            is_in_loop[node.index()] = true;
        }
    }
    let sources_of = |id: NodeId| wiring.sources(id).iter().copied().collect::<BTreeSet<TensorId>>();
    // What the unit of an owner reads.
    let mut sources: BTreeMap<NodeId, BTreeSet<TensorId>> = BTreeMap::new();
    for id in graph.node_ids().rev().filter(|id| !wiring.is_free(*id) && !is_in_loop[id.index()]) {
        let node = graph.node(id);
        sources.insert(id, sources_of(id));
        let is_map = |id: NodeId| matches!(graph.node(id).op, PrimOp::Map(_));
        let [output] = node.outputs[..] else { continue };
        let is_output = graph.outputs.iter().any(|(_, tensor)| *tensor == output);
        if let [only] = consumers[output.index()][..]
            && is_map(id)
            && is_map(only)
            && !wiring.is_free(only)
            && !is_in_loop[only.index()]
            && !is_output
        {
            let user = owner[only.index()];
            let mut together = &sources[&user] | &sources[&id];
            together.remove(&output);
            if together.len() <= MAX_SOURCES {
                owner[id.index()] = user;
                sources.remove(&id);
                sources.insert(user, together);
            }
        }
    }
    owner
}

/// The primitives of each unit, ascending: units in topological order, those that end earlier first. `None` if there is no such order.
fn in_order(graph: &PrimGraph, wiring: &Wiring<'_>, owner: &[NodeId]) -> Option<Vec<Vec<NodeId>>> {
    let mut members: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for node in graph.node_ids().filter(|node| !wiring.is_free(*node)) {
        members.entry(owner[node.index()]).or_default().push(node);
    }
    let mut waits_for: BTreeMap<NodeId, usize> = members.keys().map(|&unit| (unit, 0)).collect();
    let mut readers: BTreeMap<NodeId, Vec<NodeId>> = BTreeMap::new();
    for (&unit, own) in &members {
        let before: BTreeSet<NodeId> =
            own.iter().flat_map(|&node| wiring.before(node)).map(|node| owner[node.index()]).collect();
        for other in before.into_iter().filter(|&other| other != unit) {
            readers.entry(other).or_default().push(unit);
            *waits_for.entry(unit).or_default() += 1;
        }
    }
    let mut ready: BTreeSet<NodeId> =
        waits_for.iter().filter(|(_, count)| **count == 0).map(|(&unit, _)| unit).collect();
    let mut ordered = Vec::new();
    while let Some(unit) = ready.pop_first() {
        ordered.extend(members.remove(&unit));
        for reader in readers.remove(&unit).unwrap_or_default() {
            let count = waits_for.get_mut(&reader).expect("every unit is counted");
            *count -= 1;
            if *count == 0 {
                ready.insert(reader);
            }
        }
    }
    members.is_empty().then_some(ordered)
}

fn kind(op: &PrimOp) -> NodeKind {
    match op {
        PrimOp::Contract(_) | PrimOp::Conv(_) => NodeKind::Anchor,
        PrimOp::Reduce { .. } | PrimOp::Window { .. } => NodeKind::Reduce,
        PrimOp::ConvTranspose { .. }
        | PrimOp::ScatterAlong { .. }
        | PrimOp::ScatterNd { .. }
        | PrimOp::Recurrence(_)
        | PrimOp::Opaque(_) => NodeKind::Opaque,
        PrimOp::Map(_)
        | PrimOp::Broadcast { .. }
        | PrimOp::Transpose { .. }
        | PrimOp::Reshape { .. }
        | PrimOp::Slice { .. }
        | PrimOp::Pad { .. }
        | PrimOp::Concat { .. }
        | PrimOp::Select { .. }
        | PrimOp::Take { .. }
        | PrimOp::TakeAlong { .. }
        | PrimOp::GatherNd { .. }
        | PrimOp::Iota { .. } => NodeKind::Injective,
    }
}

/// True for units that may be re-entrant: the difference `x - mean`, which the variance and the normalised result both need. A kernel
/// recomputes it instead of loading it. More re-entrant units give many more candidates, and hardly a better plan.
fn is_difference_from_row(graph: &PrimGraph, members: &[NodeId]) -> bool {
    use orch_ir::BinaryFn;
    let is_repeated = |tensor: &TensorId| {
        let producer = graph.producer(*tensor).map(|producer| &graph.node(producer).op);
        matches!(producer, Some(PrimOp::Broadcast { .. }))
    };
    let is_difference = |node: &NodeId| {
        let node = graph.node(*node);
        matches!(node.op, PrimOp::Map(ScalarFn::Binary(BinaryFn::Sub))) && node.inputs.iter().any(is_repeated)
    };
    let is_cast = |node: &NodeId| matches!(graph.node(*node).op, PrimOp::Map(ScalarFn::Cast(_)));
    members.iter().all(|node| is_difference(node) || is_cast(node)) && members.iter().any(is_difference)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An input that two products read, and their sum.
    const SUM: &str = "graph \"sum\" {
  input \"x\" t0: f16[64, 512]
  input \"w\" t1: f32[512, 512]
  input \"v\" t2: f32[512, 512]
  t3: f32[64, 512] = cast.f32 t0
  t4: f32[64, 512] = contract t3, t1 labels=\"mk,kn->mn\"
  t5: f32[64, 512] = contract t3, t2 labels=\"mk,kn->mn\"
  t6: f32[64, 512] = add t4, t5
  output \"o\" t6
}
";

    #[test]
    fn f16_is_widened_where_it_is_read_if_that_costs_nothing() {
        let graph = crate::testing::graph(SUM);
        let layouts = orch_compute::layouts::assign_gpu(&graph);
        let units = |widens_f16| {
            let options = UnitOptions { widens_f16, fuse: true };
            Units::of(&graph, &layouts, options).unwrap_or_else(|error| panic!("{error}"))
        };
        assert_eq!([units(false), units(true)].map(|units| units.members.len()), [4, 3]);
        // What a product runs has the cast in it, and reads the input.
        let nodes = units(true).primitives(&graph, &[NodeId(0)]);
        assert_eq!(nodes, [NodeId(0), NodeId(1)]);
        assert_eq!(units(true).dag.node(NodeId(0)).inputs, [TensorId::new(0), TensorId::new(1)]);
    }

    /// A chain of elementwise primitives, with a broadcast.
    const CHAIN: &str = "graph \"chain\" {
  input \"x\" t0: f32[4, 8]
  input \"b\" t1: f32[8]
  t2: f32[4, 8] = broadcast t1 dims=[1]
  t3: f32[4, 8] = add t0, t2
  t4: f32[4, 8] = tanh t3
  t5: f32[4, 8] = mul t4, t0
  output \"o\" t5
}
";

    #[test]
    fn without_fusion_each_primitive_is_a_unit() {
        let graph = crate::testing::graph(CHAIN);
        let layouts = orch_compute::layouts::assign_gpu(&graph);
        let members = |fuse| {
            let options = UnitOptions { widens_f16: false, fuse };
            Units::of(&graph, &layouts, options).unwrap_or_else(|error| panic!("{error}")).members
        };
        assert_eq!(members(true), [[1, 2, 3].map(NodeId).to_vec()]);
        assert_eq!(members(false), [1, 2, 3].map(|node| vec![NodeId(node)]));
    }
}
