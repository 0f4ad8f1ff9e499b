//! Which sets of primitives may be regions: each set has one result, its *sink*, and grows backward from it through the
//! primitives that programs have operators for.

use super::RegionLimits;
use super::rotary::Rotaries;
use super::translate;
use super::views::is_view;
use orch_ir::{NodeId, PrimGraph, PrimOp, ReduceOp, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// Most members of a set.
const MAX_MEMBERS: usize = 48;

/// A product within a region has a small result if the smaller and the larger operand have at least so many times the
/// elements of the result.
const SMALL: [usize; 2] = [2, 4];

/// Which primitives before the earliest products belong to a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Prologue {
    Nothing,
    /// Those whose results only members read.
    Own,
    /// Also those that others read, which then compute them once more: a norm of the input of several products.
    Shared,
}

/// Whether regions end at a primitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Never,
    /// Unless a region that ends at this product contains the primitive.
    Unless(NodeId),
    Always,
}

/// The readers of each tensor.
pub(super) struct Readers<'a> {
    graph: &'a PrimGraph,
    rotaries: &'a Rotaries,
    /// For each tensor the primitives that read it, directly or through views. A rotary position embedding is read and
    /// reads as one primitive, its root.
    by: Vec<BTreeSet<NodeId>>,
    /// For each tensor whether it is an output of the graph, directly or through views.
    escapes: Vec<bool>,
}

impl<'a> Readers<'a> {
    /// The readers of all tensors of a graph.
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

    /// The tensor that a primitive computes.
    fn result(&self, id: NodeId) -> TensorId {
        self.graph.node(id).outputs[0]
    }

    /// The only primitive that reads a result, if there is one.
    fn only_reader(&self, id: NodeId) -> Option<NodeId> {
        let result = self.result(id).index();
        let mut readers = self.by[result].iter();
        readers.next().filter(|_| self.by[result].len() == 1 && !self.escapes[result]).copied()
    }

    /// The primitive that computes a tensor, found through views; `None` for inputs and constants.
    fn source(&self, tensor: TensorId) -> Option<NodeId> {
        let mut at = self.graph.producer(tensor)?;
        while is_view(self.graph, at) && self.rotaries.get(at).is_none() {
            at = self.graph.producer(self.graph.node(at).inputs[0])?;
        }
        Some(at)
    }

    /// The primitives that compute the operands of a primitive.
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

    /// The immediate post-dominator of a primitive: the first one that every path from it to an output goes through.
    /// `None` if an output or a product lies before it on a path, or if it or one before it is not known.
    fn post_dominator(&self, id: NodeId) -> Option<NodeId> {
        let mut frontier = BTreeSet::from([id]);
        for _ in 0..MAX_MEMBERS {
            let first = frontier.pop_first()?;
            let result = self.result(first).index();
            let may_pass = first == id || (self.is_known(first) && !self.is_product(first));
            if !may_pass || self.escapes[result] {
                return None;
            }
            frontier.extend(&self.by[result]);
            if frontier.len() == 1 {
                return frontier.pop_first().filter(|only| self.is_known(*only));
            }
        }
        None
    }

    /// Whether regions end at a primitive. Products, elementwise primitives and rotary position embeddings may be ends.
    /// One that is no product is not an end if its post-dominator is no product either: regions that end there contain
    /// it. One whose paths lead to a product is an end unless regions that end in that product contain it.
    pub(super) fn end(&self, id: NodeId) -> End {
        let may_end = self.is_product(id) || self.is_map(id) || self.rotaries.get(id).is_some();
        if !self.is_known(id) || !may_end || self.rotaries.is_inner(id) {
            return End::Never;
        }
        let mut at = id;
        while let Some(later) = self.post_dominator(at) {
            if self.is_product(later) {
                let is_within = grow(self, later, 2, Prologue::Nothing).contains(&id);
                return if is_within { End::Unless(later) } else { End::Always };
            }
            if !self.is_product(id) {
                return End::Never;
            }
            at = later;
        }
        End::Always
    }

    /// True for elementwise primitives that belong to the epilogue of a product or convolution outside the set: they
    /// alone read its result, directly or after others like them.
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

    /// True for products whose result is small compared with their operands: each block may compute it again.
    fn is_small(&self, id: NodeId) -> bool {
        let node = self.graph.node(id);
        let elems = |tensor: TensorId| self.graph.shape(tensor).elems();
        let mut operands: Vec<usize> = node.inputs.iter().map(|&input| elems(input)).collect();
        operands.sort_unstable();
        operands.into_iter().zip(SMALL).all(|(operand, times)| elems(node.outputs[0]) * times <= operand)
    }
}

/// The sets of primitives that end in `sink`, from small to large, each once: for each number of products in a row the
/// set without a prologue, with each connected part of a prologue, and with all of it.
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

/// The connected components of a prologue: different ones compute different operands.
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

/// The paths from a primitive to the sink.
#[derive(Clone, Copy, Debug)]
struct Reach {
    /// Fewest products on a path.
    products: usize,
    /// True if some path has a sum before its first product.
    is_reduced: bool,
    /// True if only members of which the same holds read it, so that it need not be stored.
    is_own: bool,
}

/// The set that ends in `sink` with at most `levels` products on the shortest path to a member product, itself
/// included.
fn grow(readers: &Readers<'_>, sink: NodeId, levels: usize, prologue: Prologue) -> BTreeSet<NodeId> {
    let mut reached = BTreeMap::from([(sink, Reach { products: 0, is_reduced: false, is_own: true })]);
    let mut own: BTreeSet<NodeId> = BTreeSet::new();
    let mut members: BTreeSet<NodeId> = BTreeSet::new();
    // Later primitives first: the readers of a primitive are decided before it.
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

/// True for primitives that may be members. A product must be read by members only, lie within `levels`, and either be
/// the last one before the sink, or have its result summed before the next product, or be small. Another primitive must
/// be read by members only, unless a product lies between it and the sink.
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

/// The members that are connected to the sink after those before the earliest products are removed that the prologue
/// does not allow, and those that are epilogues of products outside.
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
