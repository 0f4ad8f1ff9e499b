//! Rotary position embeddings among primitives.
//!
//! With `a` and `b` the elements of the pairs of `x`, halves or neighbours along an axis, primitives say either
//! `x cos + join(-b, a) sin`, with angles of every element, or `join(a cos - b sin, a sin + b cos)`, with angles of one
//! element of each pair. Halves are joined by a concatenation, neighbours by one along a new last axis, which a reshape may
//! join to the one before. `x` may be a part of a tensor along the axis, which is a slice of it or no tensor at all; what
//! is not turned may be joined to what is.

use super::views::{Part, is_real, is_view};
use orch_ir::{BinaryFn, NodeId, PrimGraph, PrimNode, PrimOp, ScalarFn, TensorId, UnaryFn};
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
    /// What is turned, or what it is a part of.
    pub(super) operand: TensorId,
    /// The elements that are turned, if not all are.
    pub(super) part: Option<Part>,
    /// Cosines and sines.
    pub(super) angles: [TensorId; 2],
    /// True if angles are those of one element of each pair; neighbours are a last axis of their own in the result then,
    /// unless there is a rest.
    pub(super) is_half: bool,
    pub(super) axis: usize,
    pub(super) pairs: Pairs,
    /// What is joined to what is turned, along the axis.
    pub(super) rest: Option<Rest>,
    /// The primitives before the last one.
    pub(super) inner: Vec<NodeId>,
}

/// What is not turned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    Before(TensorId),
    After(TensorId),
}

impl Rest {
    pub(super) fn tensor(self) -> TensorId {
        match self {
            Rest::Before(tensor) | Rest::After(tensor) => tensor,
        }
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

    /// What a primitive reads as a whole, if those of an embedding are one.
    pub(super) fn operands(&self, graph: &PrimGraph, node: NodeId) -> Vec<TensorId> {
        let Some(rotary) = self.get(node) else { return graph.node(node).inputs.clone() };
        let whole = rotary.part.is_none().then_some(rotary.operand);
        whole.into_iter().chain(rotary.angles).chain(rotary.rest.map(Rest::tensor)).collect()
    }
}

fn rotary(graph: &PrimGraph, root: NodeId) -> Option<Rotary> {
    let tensor = *graph.node(root).outputs.first()?;
    if !is_real(graph.dtype(tensor)) {
        return None;
    }
    let pattern = || Pattern { graph, inner: Vec::new() };
    let mut found = (pattern().of_whole_angles(tensor))
        .or_else(|| pattern().of_half_angles(tensor))
        .or_else(|| pattern().of_part(tensor))?;
    found.inner.retain(|node| *node != root);
    Some(found)
}

/// Looks backward from a result; remembers the primitives that it passes.
struct Pattern<'a> {
    graph: &'a PrimGraph,
    inner: Vec<NodeId>,
}

/// One element of each pair: a slice of what, and its start along the axis.
type Element = (TensorId, usize);

/// Two parts that are joined: which, along which axis, as what.
type Joined = ([TensorId; 2], usize, Pairs);

impl Pattern<'_> {
    /// `x cos + join(-b, a) sin`
    fn of_whole_angles(&mut self, tensor: TensorId) -> Option<Rotary> {
        let summands = self.operands_of(tensor, BinaryFn::Add)?;
        let before = self.inner.clone();
        for [plain, turned] in orders(summands) {
            self.inner.clone_from(&before);
            let Some(mut rotary) = self.turned_by(turned) else { continue };
            let Some(factors) = self.operands_of(plain, BinaryFn::Mul) else { continue };
            let Some([_, cos]) = orders(factors).into_iter().find(|[x, _]| self.is_operand(*x, &rotary))
            else {
                continue;
            };
            rotary.angles[0] = cos;
            rotary.inner = std::mem::take(&mut self.inner);
            return Some(rotary);
        }
        None
    }

    /// `join(-b, a) sin`, as an embedding whose cosines are not known yet.
    fn turned_by(&mut self, tensor: TensorId) -> Option<Rotary> {
        let factors = self.operands_of(tensor, BinaryFn::Mul)?;
        let before = self.inner.clone();
        for [joined, sin] in orders(factors) {
            self.inner.clone_from(&before);
            let Some(([first, second], axis, pairs)) = self.joined(joined) else { continue };
            let Some(b) = self.negated(first) else { continue };
            if let Some(rotary) = self.pairs_of([second, b], (axis, pairs)) {
                return Some(Rotary { angles: [sin; 2], ..rotary });
            }
        }
        None
    }

    /// True if a tensor is what is turned.
    fn is_operand(&mut self, tensor: TensorId, rotary: &Rotary) -> bool {
        match (rotary.part, self.slice(tensor, rotary.axis, 1)) {
            (None, _) => tensor == rotary.operand,
            (Some(part), Some((of, start))) => {
                let size = self.graph.shape(tensor)[rotary.axis];
                let is_it = (of, start, size) == (rotary.operand, part.start, part.size);
                is_it && self.enter(tensor).is_some()
            }
            (Some(_), None) => false,
        }
    }

    /// `join(a cos - b sin, a sin + b cos)`
    fn of_half_angles(&mut self, tensor: TensorId) -> Option<Rotary> {
        let stacked = self.stacked(tensor);
        if stacked.is_none() {
            self.inner.clear();
        }
        let joined = stacked.or_else(|| self.halves(tensor))?;
        self.of_halves(joined)
    }

    /// `a cos - b sin` and `a sin + b cos`
    fn of_halves(&mut self, ([first, second], axis, pairs): Joined) -> Option<Rotary> {
        let [a_cos, b_sin] = self.operands_of(first, BinaryFn::Sub)?;
        let [one, other] = self.operands_of(second, BinaryFn::Add)?;
        let a_cos = self.operands_of(a_cos, BinaryFn::Mul)?;
        let b_sin = self.operands_of(b_sin, BinaryFn::Mul)?;
        let rest = [self.operands_of(one, BinaryFn::Mul)?, self.operands_of(other, BinaryFn::Mul)?];
        let is = |factors: [TensorId; 2], wanted: [TensorId; 2]| orders(wanted).contains(&factors);
        let ways = orders(a_cos).into_iter().flat_map(|a| orders(b_sin).map(|b| (a, b)));
        for ([a, cos], [b, sin]) in ways {
            let [(a_sin, b_cos), swapped] = [(rest[0], rest[1]), (rest[1], rest[0])];
            let is_rest = [(a_sin, b_cos), swapped].iter().any(|(x, y)| is(*x, [a, sin]) && is(*y, [b, cos]));
            let Some(rotary) = is_rest.then(|| self.pairs_of([a, b], (axis, pairs))).flatten() else {
                continue;
            };
            let inner = std::mem::take(&mut self.inner);
            return Some(Rotary { angles: [cos, sin], is_half: true, inner, ..rotary });
        }
        None
    }

    /// An embedding of a part that is joined to what is not turned.
    fn of_part(&mut self, tensor: TensorId) -> Option<Rotary> {
        let node = self.graph.node(self.enter(tensor)?);
        let PrimOp::Concat { axis } = node.op else { return None };
        let before = self.inner.clone();
        let mut found = |turned: &[TensorId]| {
            self.inner.clone_from(&before);
            let found = match *turned {
                [first, second] => self.of_halves(([first, second], axis, Pairs::Halves)),
                [turned] => self.joined_again(turned),
                _ => None,
            };
            found.filter(|rotary| rotary.axis == axis)
        };
        let (first, last) = (*node.inputs.first()?, *node.inputs.last()?);
        if let Some(rotary) = found(&node.inputs[..node.inputs.len() - 1]) {
            return Some(Rotary { rest: Some(Rest::After(last)), ..rotary });
        }
        found(&node.inputs[1..]).map(|rotary| Rotary { rest: Some(Rest::Before(first)), ..rotary })
    }

    /// An embedding whose result has the shape of what is turned.
    fn joined_again(&mut self, tensor: TensorId) -> Option<Rotary> {
        let before = self.inner.clone();
        if let Some(rotary) = self.of_whole_angles(tensor) {
            return Some(rotary);
        }
        self.inner = before;
        let joined = self.joined(tensor)?;
        self.of_halves(joined)
    }

    /// What has these as the first and the second elements of its pairs, without angles.
    fn pairs_of(&mut self, [a, b]: [TensorId; 2], (axis, pairs): (usize, Pairs)) -> Option<Rotary> {
        let half = self.graph.shape(a)[axis];
        let (distance, step) = match pairs {
            Pairs::Halves => (half, 1),
            Pairs::Neighbours => (1, 2),
        };
        let [first, second] = [self.slice(a, axis, step)?, self.slice(b, axis, step)?];
        let (operand, start) = first;
        if second != (operand, start + distance) || self.graph.shape(b)[axis] != half {
            return None;
        }
        self.enter(a)?;
        self.enter(b)?;
        let size = 2 * half;
        let part = (self.graph.shape(operand)[axis] != size).then_some(Part { axis, start, size });
        let inner = Vec::new();
        Some(Rotary { operand, part, angles: [a, b], is_half: false, axis, pairs, rest: None, inner })
    }

    /// Halves, or neighbours whose two axes are one again.
    fn joined(&mut self, tensor: TensorId) -> Option<Joined> {
        let tensor = self.exact(tensor);
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
        let node = self.graph.node(self.enter(tensor)?);
        let (op, from) = (&node.op, *node.inputs.first()?);
        let (shape, before) = (self.graph.shape(tensor).dims(), self.graph.shape(from).dims());
        let adds_one = shape.split_last() == Some((&1, before));
        (matches!(op, PrimOp::Reshape { .. }) && adds_one).then_some(from)
    }

    fn negated(&mut self, tensor: TensorId) -> Option<TensorId> {
        let node = self.graph.node(self.graph.producer(tensor)?);
        let is_negation = node.op == PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg));
        is_negation.then(|| self.enter(tensor)).flatten().map(|id| self.graph.node(id).inputs[0])
    }

    fn operands_of(&mut self, tensor: TensorId, f: BinaryFn) -> Option<[TensorId; 2]> {
        let tensor = self.exact(tensor);
        let node = self.graph.node(self.graph.producer(tensor)?);
        if node.op != PrimOp::Map(ScalarFn::Binary(f)) {
            return None;
        }
        self.enter(tensor)?;
        Some([node.inputs[0], node.inputs[1]])
    }

    /// A tensor before it is rounded.
    fn exact(&mut self, mut tensor: TensorId) -> TensorId {
        let is_cast = |node: &PrimNode| matches!(node.op, PrimOp::Map(ScalarFn::Cast(_)));
        while let Some(id) = self.graph.producer(tensor)
            && is_view(self.graph, id)
            && is_cast(self.graph.node(id))
        {
            self.inner.push(id);
            tensor = self.graph.node(id).inputs[0];
        }
        tensor
    }

    /// A slice along an axis with this step.
    fn slice(&self, tensor: TensorId, axis: usize, step: i64) -> Option<Element> {
        let node = self.graph.node(self.graph.producer(tensor)?);
        let PrimOp::Slice { starts, steps, sizes } = &node.op else { return None };
        let whole = self.graph.shape(node.inputs[0]).dims();
        let others_are_whole = (0..whole.len())
            .all(|dim| dim == axis || (starts[dim], steps[dim], sizes[dim]) == (0, 1, whole[dim]));
        let start = usize::try_from(starts[axis]).ok()?;
        (steps[axis] == step && others_are_whole).then_some((node.inputs[0], start))
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

/// Both orders of two operands.
fn orders([a, b]: [TensorId; 2]) -> [[TensorId; 2]; 2] {
    [[a, b], [b, a]]
}
