//! Rotary position embeddings among primitives.
//!
//! With `a` and `b` the elements of the pairs of `x`, halves or neighbours along an axis, primitives say either
//! `join(-b, a)`, a rotation that is a factor of what follows, or `join(a cos - b sin, a sin + b cos)`, all of it, with
//! angles of one element of each pair. Halves are joined by a concatenation, neighbours by one along a new last axis that a
//! reshape joins to the one before.

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

/// Primitives that turn pairs, as one.
#[derive(Clone, Debug)]
pub(super) struct Rotary {
    /// What is turned.
    pub(super) operand: TensorId,
    /// Cosines and sines, if they are applied already.
    pub(super) angles: Option<[TensorId; 2]>,
    pub(super) axis: usize,
    pub(super) pairs: Pairs,
    /// The primitives before the last one.
    pub(super) inner: Vec<NodeId>,
}

impl Rotary {
    /// What it reads.
    pub(super) fn operands(&self) -> Vec<TensorId> {
        std::iter::once(self.operand).chain(self.angles.into_iter().flatten()).collect()
    }
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

    /// What a primitive reads, if those that turn pairs are one.
    pub(super) fn operands(&self, graph: &PrimGraph, node: NodeId) -> Vec<TensorId> {
        self.get(node).map_or_else(|| graph.node(node).inputs.clone(), Rotary::operands)
    }
}

fn rotary(graph: &PrimGraph, root: NodeId) -> Option<Rotary> {
    let search = Pattern { graph, inner: Vec::new() };
    search.halves(root).or_else(|| Pattern { graph, inner: Vec::new() }.neighbours(root))
}

/// Looks backward from a result; remembers the primitives that it passes.
struct Pattern<'a> {
    graph: &'a PrimGraph,
    inner: Vec<NodeId>,
}

/// One element of each pair: what of, along which axis, the first or the second.
type Element = (TensorId, usize, usize);

impl Pattern<'_> {
    fn halves(mut self, root: NodeId) -> Option<Rotary> {
        let node = self.graph.node(root);
        let (PrimOp::Concat { axis }, [first, second]) = (&node.op, &node.inputs[..]) else { return None };
        let (axis, parts) = (*axis, [*first, *second]);
        self.turned(parts, axis, Pairs::Halves)
    }

    fn neighbours(mut self, root: NodeId) -> Option<Rotary> {
        let node = self.graph.node(root);
        let PrimOp::Reshape { shape } = &node.op else { return None };
        let joined = self.enter(node.inputs[0])?;
        let (PrimOp::Concat { axis }, [first, second]) =
            (&self.graph.node(joined).op, &self.graph.node(joined).inputs[..])
        else {
            return None;
        };
        let (last, parts) = (axis.checked_sub(1)?, [*first, *second]);
        let mut paired = self.graph.shape(node.inputs[0]).to_vec();
        if *axis + 1 != paired.len() || paired.pop() != Some(2) {
            return None;
        }
        paired[last] *= 2;
        if shape.dims() != paired {
            return None;
        }
        let parts = [self.without_last(parts[0])?, self.without_last(parts[1])?];
        self.turned(parts, last, Pairs::Neighbours)
    }

    /// The operand of a reshape that adds a last axis of extent 1.
    fn without_last(&mut self, tensor: TensorId) -> Option<TensorId> {
        let id = self.enter(tensor)?;
        let (op, from) = (&self.graph.node(id).op, self.graph.node(id).inputs[0]);
        let (shape, before) = (self.graph.shape(tensor).dims(), self.graph.shape(from).dims());
        let adds_one = shape.split_last() == Some((&1, before));
        (matches!(op, PrimOp::Reshape { .. }) && adds_one).then_some(from)
    }

    fn turned(&mut self, [first, second]: [TensorId; 2], axis: usize, pairs: Pairs) -> Option<Rotary> {
        let before = self.inner.clone();
        let plain = self.negated(first).and_then(|b| {
            let (b, a) = (self.element(b, axis, pairs)?, self.element(second, axis, pairs)?);
            ((b.2, a.2) == (1, 0) && b.0 == a.0).then_some((a.0, None))
        });
        let (operand, angles) = match plain {
            Some(found) => found,
            None => {
                self.inner = before;
                self.with_angles([first, second], axis, pairs)?
            }
        };
        let inner = std::mem::take(&mut self.inner);
        Some(Rotary { operand, angles, axis, pairs, inner })
    }

    /// `a cos - b sin` and `a sin + b cos`.
    fn with_angles(
        &mut self,
        [first, second]: [TensorId; 2],
        axis: usize,
        pairs: Pairs,
    ) -> Option<(TensorId, Option<[TensorId; 2]>)> {
        let [a_cos, b_sin] = self.operands_of(first, BinaryFn::Sub)?;
        let [one, other] = self.operands_of(second, BinaryFn::Add)?;
        let (a, cos) = self.weighted(a_cos, axis, pairs)?;
        let (b, sin) = self.weighted(b_sin, axis, pairs)?;
        let (one, other) = (self.weighted(one, axis, pairs)?, self.weighted(other, axis, pairs)?);
        let is_rest = [one, other] == [(a, sin), (b, cos)] || [one, other] == [(b, cos), (a, sin)];
        (is_rest && (a.2, b.2) == (0, 1) && a.0 == b.0).then_some((a.0, Some([cos, sin])))
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
        Some((node.inputs[0], axis, which))
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
