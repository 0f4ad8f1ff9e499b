//! Rotary position embeddings among primitives.
//!
//! With `a` and `b` the elements of the pairs of `x`, halves or neighbours along an axis, primitives say either
//! `x cos + join(-b, a) sin`, with angles of every element, or `join(a cos - b sin, a sin + b cos)`, with angles of one
//! element of each pair. Halves are joined by a concatenation, neighbours by one along a new last axis, which a reshape may
//! join to the one before.

use super::views::is_real;
use orch_ir::{BinaryFn, NodeId, PrimGraph, PrimOp, ScalarFn, TensorId, UnaryFn};
use std::collections::{BTreeMap, BTreeSet};

/// What pairs are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Pairs {
    /// Elements of the two halves of an axis.
    Halves,
    /// Neighbours.
    Neighbours,
}

/// Primitives that are a rotary position embedding.
#[derive(Clone, Debug)]
pub(super) struct Rotary {
    /// What is turned.
    pub(super) operand: TensorId,
    /// Cosines and sines.
    pub(super) angles: [TensorId; 2],
    /// True if angles are those of one element of each pair; neighbours are a last axis of their own in the result then.
    pub(super) is_half: bool,
    pub(super) axis: usize,
    pub(super) pairs: Pairs,
    /// The primitives before the last one.
    pub(super) inner: Vec<NodeId>,
}

/// All of a graph, by the primitive that gives the result.
#[derive(Clone, Debug, Default)]
pub(super) struct Rotaries {
    by_root: BTreeMap<NodeId, Rotary>,
    inner: BTreeSet<NodeId>,
}

impl Rotaries {
    pub(super) fn of(graph: &PrimGraph) -> Rotaries {
        let find = |root: NodeId| Some((root, rotary(graph, root)?));
        let by_root: BTreeMap<NodeId, Rotary> = graph.node_ids().filter_map(find).collect();
        let inner = by_root.values().flat_map(|rotary| rotary.inner.iter().copied()).collect();
        Rotaries { by_root, inner }
    }

    /// The one whose result a primitive gives.
    pub(super) fn get(&self, root: NodeId) -> Option<&Rotary> {
        self.by_root.get(&root)
    }

    /// True for primitives within one.
    pub(super) fn is_inner(&self, node: NodeId) -> bool {
        self.inner.contains(&node)
    }

    /// What a primitive reads, if those of an embedding are one: first what is turned, then angles.
    pub(super) fn operands(&self, graph: &PrimGraph, node: NodeId) -> Vec<TensorId> {
        let operands = |rotary: &Rotary| vec![rotary.operand, rotary.angles[0], rotary.angles[1]];
        self.get(node).map_or_else(|| graph.node(node).inputs.clone(), operands)
    }
}

fn rotary(graph: &PrimGraph, root: NodeId) -> Option<Rotary> {
    let tensor = *graph.node(root).outputs.first()?;
    if !is_real(graph.dtype(tensor)) {
        return None;
    }
    let whole = |mut pattern: Pattern<'_>| pattern.of_whole_angles(tensor);
    let half = |mut pattern: Pattern<'_>| pattern.of_half_angles(tensor);
    let pattern = || Pattern { graph, inner: Vec::new() };
    let mut found = whole(pattern()).or_else(|| half(pattern()))?;
    found.inner.retain(|node| *node != root);
    Some(found)
}

/// Looks backward from a result; remembers the primitives that it passes.
struct Pattern<'a> {
    graph: &'a PrimGraph,
    inner: Vec<NodeId>,
}

/// One element of each pair: what of, the first or the second.
type Element = (TensorId, usize);

/// Two parts that are joined: which, along which axis, as what.
type Joined = ([TensorId; 2], usize, Pairs);

impl Pattern<'_> {
    /// `x cos + join(-b, a) sin`
    fn of_whole_angles(&mut self, tensor: TensorId) -> Option<Rotary> {
        let summands = self.operands_of(tensor, BinaryFn::Add)?;
        let swapped = [summands[1], summands[0]];
        let before = self.inner.clone();
        for [plain, turned] in [summands, swapped] {
            self.inner.clone_from(&before);
            let Some((x, axis, pairs, sin)) = self.turned_by(turned) else { continue };
            let cos = match self.operands_of(plain, BinaryFn::Mul) {
                Some([a, b]) if a == x => b,
                Some([a, b]) if b == x => a,
                _ => continue,
            };
            let inner = std::mem::take(&mut self.inner);
            return Some(Rotary { operand: x, angles: [cos, sin], is_half: false, axis, pairs, inner });
        }
        None
    }

    /// `join(-b, a) sin`: what of, along which axis, and the other factor.
    fn turned_by(&mut self, tensor: TensorId) -> Option<(TensorId, usize, Pairs, TensorId)> {
        let [a, b] = self.operands_of(tensor, BinaryFn::Mul)?;
        let before = self.inner.clone();
        for (joined, sin) in [(a, b), (b, a)] {
            self.inner.clone_from(&before);
            let Some(([first, second], axis, pairs)) = self.joined(joined) else { continue };
            let first = self.negated(first).and_then(|b| self.element(b, axis, pairs));
            let second = self.element(second, axis, pairs);
            match (first, second) {
                (Some((x, 1)), Some((y, 0))) if x == y => return Some((x, axis, pairs, sin)),
                _ => {}
            }
        }
        None
    }

    /// `join(a cos - b sin, a sin + b cos)`
    fn of_half_angles(&mut self, tensor: TensorId) -> Option<Rotary> {
        let stacked = self.stacked(tensor);
        if stacked.is_none() {
            self.inner.clear();
        }
        let ([first, second], axis, pairs) = stacked.or_else(|| self.halves(tensor))?;
        let [a_cos, b_sin] = self.operands_of(first, BinaryFn::Sub)?;
        let [one, other] = self.operands_of(second, BinaryFn::Add)?;
        let (a, cos) = self.weighted(a_cos, axis, pairs)?;
        let (b, sin) = self.weighted(b_sin, axis, pairs)?;
        let rest = [self.weighted(one, axis, pairs)?, self.weighted(other, axis, pairs)?];
        let is_rest = rest == [(a, sin), (b, cos)] || rest == [(b, cos), (a, sin)];
        if !is_rest || (a.1, b.1) != (0, 1) || a.0 != b.0 {
            return None;
        }
        let inner = std::mem::take(&mut self.inner);
        Some(Rotary { operand: a.0, angles: [cos, sin], is_half: true, axis, pairs, inner })
    }

    /// Halves, or neighbours whose two axes are one again.
    fn joined(&mut self, tensor: TensorId) -> Option<Joined> {
        let node = self.graph.node(self.enter(tensor)?);
        if !matches!(node.op, PrimOp::Reshape { .. }) {
            return self.halves(tensor);
        }
        let joined = self.stacked(node.inputs[0])?;
        let mut shape = self.graph.shape(node.inputs[0]).to_vec();
        shape.pop();
        shape[joined.1] *= 2;
        (self.graph.shape(tensor).dims() == shape).then_some(joined)
    }

    fn halves(&mut self, tensor: TensorId) -> Option<Joined> {
        let node = self.graph.node(self.enter(tensor)?);
        let (PrimOp::Concat { axis }, [first, second]) = (&node.op, &node.inputs[..]) else { return None };
        Some(([*first, *second], *axis, Pairs::Halves))
    }

    /// Neighbours beside each other along a new last axis.
    fn stacked(&mut self, tensor: TensorId) -> Option<Joined> {
        let ([first, second], axis, _) = self.halves(tensor)?;
        let is_last = axis > 0 && axis + 1 == self.graph.shape(tensor).rank();
        let parts = is_last.then(|| Some([self.without_last(first)?, self.without_last(second)?]))??;
        Some((parts, axis - 1, Pairs::Neighbours))
    }

    /// The operand of a reshape that adds a last axis of extent 1.
    fn without_last(&mut self, tensor: TensorId) -> Option<TensorId> {
        let id = self.enter(tensor)?;
        let (op, from) = (&self.graph.node(id).op, self.graph.node(id).inputs[0]);
        let (shape, before) = (self.graph.shape(tensor).dims(), self.graph.shape(from).dims());
        let adds_one = shape.split_last() == Some((&1, before));
        (matches!(op, PrimOp::Reshape { .. }) && adds_one).then_some(from)
    }

    /// An element of each pair times angles.
    fn weighted(&mut self, tensor: TensorId, axis: usize, pairs: Pairs) -> Option<(Element, TensorId)> {
        let [lhs, rhs] = self.operands_of(tensor, BinaryFn::Mul)?;
        match self.element(lhs, axis, pairs) {
            Some(element) => Some((element, rhs)),
            None => Some((self.element(rhs, axis, pairs)?, lhs)),
        }
    }

    fn negated(&mut self, tensor: TensorId) -> Option<TensorId> {
        let node = self.graph.node(self.graph.producer(tensor)?);
        let is_negation = node.op == PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg));
        is_negation.then(|| self.enter(tensor)).flatten().map(|id| self.graph.node(id).inputs[0])
    }

    fn operands_of(&mut self, tensor: TensorId, f: BinaryFn) -> Option<[TensorId; 2]> {
        let node = self.graph.node(self.graph.producer(tensor)?);
        if node.op != PrimOp::Map(ScalarFn::Binary(f)) {
            return None;
        }
        self.enter(tensor)?;
        Some([node.inputs[0], node.inputs[1]])
    }

    /// A slice that has one element of each pair.
    fn element(&mut self, tensor: TensorId, axis: usize, pairs: Pairs) -> Option<Element> {
        let node = self.graph.node(self.graph.producer(tensor)?);
        let PrimOp::Slice { starts, steps, sizes } = &node.op else { return None };
        let whole = self.graph.shape(node.inputs[0]).dims();
        let half = sizes[axis];
        if whole[axis] != 2 * half {
            return None;
        }
        let (distance, step) = match pairs {
            Pairs::Halves => (half as i64, 1),
            Pairs::Neighbours => (1, 2),
        };
        let which = (0..2).find(|which| starts[axis] == *which as i64 * distance)?;
        let others_are_whole = (0..whole.len())
            .all(|dim| dim == axis || (starts[dim], steps[dim], sizes[dim]) == (0, 1, whole[dim]));
        if steps[axis] != step || !others_are_whole {
            return None;
        }
        self.enter(tensor)?;
        Some((node.inputs[0], which))
    }

    /// The primitive that gives a tensor, which is one of those within.
    fn enter(&mut self, tensor: TensorId) -> Option<NodeId> {
        let id = self.graph.producer(tensor)?;
        if !self.inner.contains(&id) {
            self.inner.push(id);
        }
        Some(id)
    }
}
