//! Which primitives may make a region: sets that end in one result and grow backward from it.

use super::RegionLimits;
use super::rotary::Rotaries;
use super::translate;
use super::views::is_view;
use orch_ir::{NodeId, PrimGraph, PrimOp, ReduceOp, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// Members of the largest set.
const MAX_MEMBERS: usize = 48;

/// An inner product's result is small if it has so many times fewer elements than the lesser and the larger operand.
const SMALL: [usize; 2] = [2, 4];

/// What is computed before the products that lie deepest in a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Prologue {
    Nothing,
    /// What nothing else reads.
    Own,
    /// What others read too, and compute for themselves: a norm of the input of several products.
    Shared,
}

/// Whether regions end at a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Never,
    /// Unless one that ends at this product has it within.
    Unless(NodeId),
    Always,
}

/// Who reads what.
pub(super) struct Readers<'a> {
    graph: &'a PrimGraph,
    rotaries: &'a Rotaries,
    /// For each tensor the primitives that read it, through views or at once; those of a rotary position
    /// embedding are one.
    by: Vec<BTreeSet<NodeId>>,
    /// Tensors that are outputs of the graph, through views or at once.
    escapes: Vec<bool>,
}

impl<'a> Readers<'a> {
    pub(super) fn of(graph: &'a PrimGraph, rotaries: &'a Rotaries) -> Readers<'a> {
        let mut readers = Readers {
            graph,
            rotaries,
            by: vec![BTreeSet::new(); graph.tensors().len()],
            escapes: vec![false; graph.tensors().len()],
        };
        for (_, tensor) in &graph.outputs {
            readers.escapes[tensor.index()] = true;
        }
        for id in graph.node_ids().rev() {
            let node = graph.node(id);
            for input in &node.inputs {
                if (is_view(graph, id) || rotaries.is_inner(id)) && rotaries.get(id).is_none() {
                    let beyond = readers.by[node.outputs[0].index()].clone();
                    readers.by[input.index()].extend(beyond);
                    readers.escapes[input.index()] |= readers.escapes[node.outputs[0].index()];
                } else {
                    readers.by[input.index()].insert(id);
                }
            }
        }
        readers
    }

    fn result(&self, id: NodeId) -> TensorId {
        self.graph.node(id).outputs[0]
    }

    /// The only primitive that reads a result, if there is one.
    fn only_reader(&self, id: NodeId) -> Option<NodeId> {
        let result = self.result(id).index();
        let mut readers = self.by[result].iter();
        readers.next().filter(|_| self.by[result].len() == 1 && !self.escapes[result]).copied()
    }

    /// The primitive that computes a tensor, before views.
    fn source(&self, tensor: TensorId) -> Option<NodeId> {
        let mut at = self.graph.producer(tensor)?;
        while is_view(self.graph, at) && self.rotaries.get(at).is_none() {
            at = self.graph.producer(self.graph.node(at).inputs[0])?;
        }
        Some(at)
    }

    fn sources(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        self.rotaries.operands(self.graph, id).into_iter().filter_map(|input| self.source(input))
    }

    /// True for primitives that programs may have an operator for.
    fn is_known(&self, id: NodeId) -> bool {
        self.rotaries.get(id).is_some() || translate::is_known(self.graph, id)
    }

    fn is_product(&self, id: NodeId) -> bool {
        matches!(self.graph.node(id).op, PrimOp::Contract(_))
    }

    fn is_map(&self, id: NodeId) -> bool {
        matches!(self.graph.node(id).op, PrimOp::Map(_)) && !is_view(self.graph, id)
    }

    /// The first primitive through which all ways from a result go, if those before are elementwise or reductions.
    fn meeting(&self, id: NodeId) -> Option<NodeId> {
        let mut ways = BTreeSet::from([id]);
        for _ in 0..MAX_MEMBERS {
            let first = ways.pop_first()?;
            let result = self.result(first).index();
            let may_pass = first == id || (self.is_known(first) && !self.is_product(first));
            if !may_pass || self.escapes[result] {
                return None;
            }
            ways.extend(&self.by[result]);
            if ways.len() == 1 {
                return ways.pop_first().filter(|meeting| self.is_known(*meeting));
            }
        }
        None
    }

    /// Whether regions may end at a result: those of products and elementwise primitives do that are not within every
    /// region that they could be of.
    pub(super) fn end(&self, id: NodeId) -> End {
        let may_end = self.is_product(id) || self.is_map(id) || self.rotaries.get(id).is_some();
        if !self.is_known(id) || !may_end || self.rotaries.is_inner(id) {
            return End::Never;
        }
        let mut at = id;
        while let Some(meeting) = self.meeting(at) {
            if self.is_product(meeting) {
                let is_within = grow(self, meeting, 2, Prologue::Nothing).contains(&id);
                return if is_within { End::Unless(meeting) } else { End::Always };
            }
            if !self.is_product(id) {
                return End::Never;
            }
            at = meeting;
        }
        End::Always
    }

    /// True for elementwise primitives between a product or convolution outside and the kernel that stores its result.
    fn is_epilogue(&self, id: NodeId, members: &BTreeSet<NodeId>) -> bool {
        let (mut seen, mut pending) = (BTreeSet::new(), vec![id]);
        while let Some(id) = pending.pop() {
            if !self.is_map(id) || self.rotaries.get(id).is_some() || !seen.insert(id) {
                continue;
            }
            let mut own = self.sources(id).filter(|&source| self.only_reader(source) == Some(id));
            if own.any(|source| self.is_anchor(source) && !members.contains(&source)) {
                return true;
            }
            pending.extend(self.sources(id).filter(|&source| self.only_reader(source) == Some(id)));
        }
        false
    }

    /// True for what templates build kernels around.
    fn is_anchor(&self, id: NodeId) -> bool {
        matches!(self.graph.node(id).op, PrimOp::Contract(_) | PrimOp::Conv(_) | PrimOp::ConvTranspose { .. })
    }

    /// A product whose result is small beside its operands: it may be computed again in each block.
    fn is_small(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let elems = |tensor: TensorId| self.graph.shape(tensor).elems();
        let mut operands: Vec<usize> = node.inputs.iter().map(|&input| elems(input)).collect();
        operands.sort_unstable();
        operands.into_iter().zip(SMALL).all(|(operand, times)| elems(node.outputs[0]) * times <= operand)
    }
}

/// Sets of primitives that end in `sink`, from small to large, each once.
pub(super) fn choices(readers: &Readers<'_>, sink: NodeId, limits: &RegionLimits) -> Vec<BTreeSet<NodeId>> {
    let mut sets: Vec<BTreeSet<NodeId>> = Vec::new();
    let mut offer = |set: BTreeSet<NodeId>| {
        let products = set.iter().filter(|id| readers.is_product(**id)).count();
        if products <= limits.max_products && set.len() <= MAX_MEMBERS && !sets.contains(&set) {
            sets.push(set);
        }
    };
    for levels in 0..=limits.max_products {
        let core = grow(readers, sink, levels, Prologue::Nothing);
        for prologue in [Prologue::Own, Prologue::Shared] {
            let whole = grow(readers, sink, levels, prologue);
            for part in parts(readers, &whole - &core) {
                offer(&core | &part);
            }
            offer(whole);
        }
        offer(core);
    }
    sets.sort_by_key(BTreeSet::len);
    sets
}

/// The connected parts of a prologue: what is computed for different operands.
fn parts(readers: &Readers<'_>, prologue: BTreeSet<NodeId>) -> Vec<BTreeSet<NodeId>> {
    let mut parts: Vec<BTreeSet<NodeId>> = Vec::new();
    for id in prologue {
        let sources: BTreeSet<NodeId> = readers.sources(id).collect();
        let (touched, mut others): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| !part.is_disjoint(&sources));
        others.push(touched.into_iter().flatten().chain([id]).collect());
        parts = others;
    }
    parts
}

/// How a primitive is reached from the sink.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Products in between, on the shortest way.
    products: usize,
    /// Something is summed between it and the next product on some way.
    is_reduced: bool,
    /// Nothing but members reads it.
    is_own: bool,
}

/// The set with as many products in a row.
fn grow(readers: &Readers<'_>, sink: NodeId, levels: usize, prologue: Prologue) -> BTreeSet<NodeId> {
    let mut reached = BTreeMap::from([(sink, Reach { products: 0, is_reduced: false, is_own: true })]);
    let mut own: BTreeSet<NodeId> = BTreeSet::new();
    let mut members: BTreeSet<NodeId> = BTreeSet::new();
    // Later primitives first: when one is looked at, all its readers have been.
    while let Some((id, mut reach)) = reached.pop_last() {
        let result = readers.result(id).index();
        let is_own = !readers.escapes[result] && readers.by[result].is_subset(&own);
        reach.is_own = id == sink || is_own;
        if members.len() > MAX_MEMBERS || !belongs(readers, id, reach, levels) {
            continue;
        }
        members.insert(id);
        if reach.is_own {
            own.insert(id);
        }
        let is_product = readers.is_product(id);
        let is_sum = matches!(readers.graph.node(id).op, PrimOp::Reduce { op: ReduceOp::Sum, .. });
        for source in readers.sources(id) {
            let products = reach.products + usize::from(is_product);
            let is_reduced = (reach.is_reduced || is_sum) && !is_product;
            let next = reached.entry(source).or_insert(Reach { products, is_reduced, is_own: true });
            next.products = next.products.min(products);
            next.is_reduced |= is_reduced;
        }
    }
    prune(readers, sink, members, &own, prologue)
}

/// True for what may be a member: products that nothing else reads and that are worth computing within the region.
fn belongs(readers: &Readers<'_>, id: NodeId, reach: Reach, levels: usize) -> bool {
    if !readers.is_known(id) {
        return false;
    }
    if readers.is_product(id) {
        let is_near = reach.products == 0 || reach.is_reduced || readers.is_small(id);
        return reach.is_own && reach.products < levels && is_near;
    }
    reach.is_own || reach.products > 0
}

/// Without what the prologue is not to have: primitives before the deepest products.
fn prune(
    readers: &Readers<'_>,
    sink: NodeId,
    members: BTreeSet<NodeId>,
    own: &BTreeSet<NodeId>,
    prologue: Prologue,
) -> BTreeSet<NodeId> {
    let mut after_product: BTreeSet<NodeId> = BTreeSet::new();
    for &id in &members {
        if readers.is_product(id) || readers.sources(id).any(|source| after_product.contains(&source)) {
            after_product.insert(id);
        }
    }
    let has_products = !after_product.is_empty();
    let stays = |id: &NodeId| {
        let is_allowed = match prologue {
            Prologue::Nothing => !has_products,
            Prologue::Own => own.contains(id),
            Prologue::Shared => true,
        };
        *id == sink || after_product.contains(id) || (is_allowed && !readers.is_epilogue(*id, &members))
    };
    let allowed: BTreeSet<NodeId> = members.iter().copied().filter(stays).collect();
    let (mut kept, mut pending) = (BTreeSet::new(), vec![sink]);
    while let Some(id) = pending.pop() {
        if kept.insert(id) {
            pending.extend(readers.sources(id).filter(|source| allowed.contains(source)));
        }
    }
    kept
}
