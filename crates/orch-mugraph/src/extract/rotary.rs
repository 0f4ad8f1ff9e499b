//! Rotary position embeddings among primitives.
//!
//! Let `a` and `b` be the first and the second elements of the pairs of `x` along an axis. Two patterns are recognised:
//!
//! ```text
//! x cos + join(-b, a) sin                   whole angles: cos and sin of every element
//! join(a cos - b sin, a sin + b cos)        half angles: cos and sin of every pair
//!
//! halves:       x = [a0, a1, .., b0, b1, ..]    join = concat along the axis
//! interleaved:  x = [a0, b0, a1, b1, ..]        join = concat along a new last axis, perhaps reshaped to [.., 2 n]
//! ```
//!
//! `x` may be a slice of a tensor along the axis (partial rotary embedding); the elements that are not rotated, the
//! rest, may then be concatenated before or after the result.

use super::views::{Part, is_real, is_view};
use orch_ir::{BinaryFn, NodeId, PrimGraph, PrimNode, PrimOp, ScalarFn, TensorId, UnaryFn};
use std::collections::{BTreeMap, BTreeSet};

/// Where the two elements of a pair lie.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Pairs {
    /// At the same index of the two halves of an axis.
    Halves,
    /// Beside each other.
    Interleaved,
}

/// Primitives that are a rotary position embedding.
#[derive(Clone, Debug)]
pub(super) struct Rotary {
    /// The rotated tensor, or the one that it is a part of.
    pub(super) operand: TensorId,
    /// The rotated elements of the operand, if not all are.
    pub(super) part: Option<Part>,
    /// Cosines and sines.
    pub(super) angles: [TensorId; 2],
    /// True if there is one angle for each pair, false if there is one for each element. With one for each pair,
    /// interleaved pairs and no rest the result has the pairs' elements along a last axis of their own.
    pub(super) has_half_angles: bool,
    /// The axis of the operand along which pairs lie.
    pub(super) axis: usize,
    pub(super) pairs: Pairs,
    /// The tensor that is concatenated to the rotated elements along the axis.
    pub(super) rest: Option<Rest>,
    /// The primitives of the embedding, without the last one, which gives its result.
    pub(super) inner: Vec<NodeId>,
}

/// The elements that are not rotated.
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

/// All rotary position embeddings of a graph, by the primitive that gives the result.
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

    /// The embedding whose result a primitive gives.
    pub(super) fn get(&self, root: NodeId) -> Option<&Rotary> {
        self.by_root.get(&root)
    }

    /// True for primitives of an embedding that do not give its result.
    pub(super) fn is_inner(&self, node: NodeId) -> bool {
        self.inner.contains(&node)
    }

    /// The tensors that a primitive reads, or, if it gives the result of an embedding, those that the embedding reads:
    /// the operand unless only a part of it is rotated, cosines, sines, and the rest.
    pub(super) fn operands(&self, graph: &PrimGraph, node: NodeId) -> Vec<TensorId> {
        let Some(rotary) = self.get(node) else { return graph.node(node).inputs.clone() };
        let whole = rotary.part.is_none().then_some(rotary.operand);
        whole.into_iter().chain(rotary.angles).chain(rotary.rest.map(Rest::tensor)).collect()
    }
}

/// The embedding whose result a primitive gives.
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

/// Matches patterns backward from a result, and collects the primitives on the way.
struct Pattern<'a> {
    graph: &'a PrimGraph,
    inner: Vec<NodeId>,
}

/// A slice of a tensor along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AxisSlice {
    of: TensorId,
    /// The first element along the axis.
    start: usize,
}

/// The first and the second elements of pairs, joined to one tensor.
#[derive(Clone, Copy, Debug)]
struct Joined {
    parts: [TensorId; 2],
    axis: usize,
    pairs: Pairs,
}

impl Pattern<'_> {
    /// Matches `x cos + join(-b, a) sin`.
    fn of_whole_angles(&mut self, tensor: TensorId) -> Option<Rotary> {
        let summands = self.operands_of(tensor, BinaryFn::Add)?;
        let before = self.inner.clone();
        for [plain, rotated] in orders(summands) {
            self.inner.clone_from(&before);
            let Some(mut rotary) = self.sine_summand(rotated) else { continue };
            let Some(operands) = self.operands_of(plain, BinaryFn::Mul) else { continue };
            let Some([_, cos]) = orders(operands).into_iter().find(|[x, _]| self.is_operand(*x, &rotary))
            else {
                continue;
            };
            rotary.angles[0] = cos;
            rotary.inner = std::mem::take(&mut self.inner);
            return Some(rotary);
        }
        None
    }

    /// Matches `join(-b, a) sin`: an embedding whose cosines are not known yet (its sines stand in their place).
    fn sine_summand(&mut self, tensor: TensorId) -> Option<Rotary> {
        let operands = self.operands_of(tensor, BinaryFn::Mul)?;
        let before = self.inner.clone();
        for [joined, sin] in orders(operands) {
            self.inner.clone_from(&before);
            let Some(joined) = self.joined(joined) else { continue };
            let [first, second] = joined.parts;
            let Some(b) = self.negated(first) else { continue };
            if let Some(rotary) = self.of_pairs(Joined { parts: [second, b], ..joined }) {
                return Some(Rotary { angles: [sin; 2], ..rotary });
            }
        }
        None
    }

    /// True if a tensor is the one that an embedding rotates, or the slice of it.
    fn is_operand(&mut self, tensor: TensorId, rotary: &Rotary) -> bool {
        match (rotary.part, self.slice(tensor, rotary.axis, 1)) {
            (None, _) => tensor == rotary.operand,
            (Some(part), Some(slice)) => {
                let size = self.graph.shape(tensor)[rotary.axis];
                let is_it = slice == AxisSlice { of: rotary.operand, start: part.start } && size == part.size;
                is_it && self.enter(tensor).is_some()
            }
            (Some(_), None) => false,
        }
    }

    /// Matches `join(a cos - b sin, a sin + b cos)`.
    fn of_half_angles(&mut self, tensor: TensorId) -> Option<Rotary> {
        let stacked = self.stacked(tensor);
        if stacked.is_none() {
            self.inner.clear();
        }
        let joined = stacked.or_else(|| self.halves(tensor))?;
        self.of_joined(joined)
    }

    /// Matches `a cos - b sin` and `a sin + b cos`, the parts of a joined tensor.
    fn of_joined(&mut self, joined: Joined) -> Option<Rotary> {
        let [first, second] = joined.parts;
        let [a_cos, b_sin] = self.operands_of(first, BinaryFn::Sub)?;
        let [one, other] = self.operands_of(second, BinaryFn::Add)?;
        let a_cos = self.operands_of(a_cos, BinaryFn::Mul)?;
        let b_sin = self.operands_of(b_sin, BinaryFn::Mul)?;
        let one = self.operands_of(one, BinaryFn::Mul)?;
        let other = self.operands_of(other, BinaryFn::Mul)?;
        let is = |product: [TensorId; 2], operands: [TensorId; 2]| orders(operands).contains(&product);
        let assignments = orders(a_cos).into_iter().flat_map(|a| orders(b_sin).map(|b| (a, b)));
        for ([a, cos], [b, sin]) in assignments {
            let is_sum = [(one, other), (other, one)]
                .iter()
                .any(|(a_sin, b_cos)| is(*a_sin, [a, sin]) && is(*b_cos, [b, cos]));
            let pairs = Joined { parts: [a, b], ..joined };
            let Some(rotary) = is_sum.then(|| self.of_pairs(pairs)).flatten() else {
                continue;
            };
            let inner = std::mem::take(&mut self.inner);
            return Some(Rotary { angles: [cos, sin], has_half_angles: true, inner, ..rotary });
        }
        None
    }

    /// Matches a concatenation of an embedding of a part with the rest.
    fn of_part(&mut self, tensor: TensorId) -> Option<Rotary> {
        let node = self.graph.node(self.enter(tensor)?);
        let PrimOp::Concat { axis } = node.op else { return None };
        let before = self.inner.clone();
        let mut found = |rotated: &[TensorId]| {
            self.inner.clone_from(&before);
            let found = match *rotated {
                [first, second] => {
                    self.of_joined(Joined { parts: [first, second], axis, pairs: Pairs::Halves })
                }
                [rotated] => self.of_same_shape(rotated),
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

    /// Matches an embedding, with whole or half angles, whose result has the shape of the rotated elements.
    fn of_same_shape(&mut self, tensor: TensorId) -> Option<Rotary> {
        let before = self.inner.clone();
        if let Some(rotary) = self.of_whole_angles(tensor) {
            return Some(rotary);
        }
        self.inner = before;
        let joined = self.joined(tensor)?;
        self.of_joined(joined)
    }

    /// An embedding whose pairs have these first and second elements, which must be slices of one tensor. Its angles
    /// are not known yet (the parts stand in their place).
    fn of_pairs(&mut self, Joined { parts: [a, b], axis, pairs }: Joined) -> Option<Rotary> {
        let half = self.graph.shape(a)[axis];
        let (distance, step) = match pairs {
            Pairs::Halves => (half, 1),
            Pairs::Interleaved => (1, 2),
        };
        let [first, second] = [self.slice(a, axis, step)?, self.slice(b, axis, step)?];
        let AxisSlice { of: operand, start } = first;
        if second != (AxisSlice { of: operand, start: start + distance }) || self.graph.shape(b)[axis] != half
        {
            return None;
        }
        self.enter(a)?;
        self.enter(b)?;
        let size = 2 * half;
        let part = (self.graph.shape(operand)[axis] != size).then_some(Part { axis, start, size });
        let inner = Vec::new();
        Some(Rotary { operand, part, angles: [a, b], has_half_angles: false, axis, pairs, rest: None, inner })
    }

    /// Matches a join whose result has the shape of the rotated elements: halves, or interleaved pairs whose two last
    /// axes are reshaped to one.
    fn joined(&mut self, tensor: TensorId) -> Option<Joined> {
        let tensor = self.exact(tensor);
        let node = self.graph.node(self.enter(tensor)?);
        if !matches!(node.op, PrimOp::Reshape { .. }) {
            return self.halves(tensor);
        }
        let joined = self.stacked(node.inputs[0])?;
        let mut shape = self.graph.shape(node.inputs[0]).to_vec();
        shape.pop();
        shape[joined.axis] *= 2;
        (self.graph.shape(tensor).dims() == shape).then_some(joined)
    }

    /// Matches a concatenation of two tensors.
    fn halves(&mut self, tensor: TensorId) -> Option<Joined> {
        let node = self.graph.node(self.enter(tensor)?);
        let (PrimOp::Concat { axis }, [first, second]) = (&node.op, &node.inputs[..]) else { return None };
        Some(Joined { parts: [*first, *second], axis: *axis, pairs: Pairs::Halves })
    }

    /// Matches a concatenation of two tensors along a new last axis: `[.., n]` and `[.., n]` give `[.., n, 2]`.
    fn stacked(&mut self, tensor: TensorId) -> Option<Joined> {
        let Joined { parts: [first, second], axis, .. } = self.halves(tensor)?;
        let is_last = axis > 0 && axis + 1 == self.graph.shape(tensor).rank();
        let parts = is_last.then(|| Some([self.without_last(first)?, self.without_last(second)?]))??;
        Some(Joined { parts, axis: axis - 1, pairs: Pairs::Interleaved })
    }

    /// Matches a reshape that adds a last axis of extent 1; its operand.
    fn without_last(&mut self, tensor: TensorId) -> Option<TensorId> {
        let node = self.graph.node(self.enter(tensor)?);
        let (op, from) = (&node.op, *node.inputs.first()?);
        let (shape, before) = (self.graph.shape(tensor).dims(), self.graph.shape(from).dims());
        let adds_one = shape.split_last() == Some((&1, before));
        (matches!(op, PrimOp::Reshape { .. }) && adds_one).then_some(from)
    }

    /// Matches `-x`; `x`.
    fn negated(&mut self, tensor: TensorId) -> Option<TensorId> {
        let node = self.graph.node(self.graph.producer(tensor)?);
        let is_negation = node.op == PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg));
        is_negation.then(|| self.enter(tensor)).flatten().map(|id| self.graph.node(id).inputs[0])
    }

    /// Matches `f(x, y)`, perhaps rounded; `x` and `y`.
    fn operands_of(&mut self, tensor: TensorId, f: BinaryFn) -> Option<[TensorId; 2]> {
        let tensor = self.exact(tensor);
        let node = self.graph.node(self.graph.producer(tensor)?);
        if node.op != PrimOp::Map(ScalarFn::Binary(f)) {
            return None;
        }
        self.enter(tensor)?;
        Some([node.inputs[0], node.inputs[1]])
    }

    /// The tensor before conversions between real types.
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

    /// Matches a slice along one axis with this step; other axes are whole.
    fn slice(&self, tensor: TensorId, axis: usize, step: i64) -> Option<AxisSlice> {
        let node = self.graph.node(self.graph.producer(tensor)?);
        let PrimOp::Slice { starts, steps, sizes } = &node.op else { return None };
        let whole = self.graph.shape(node.inputs[0]).dims();
        let others_are_whole = (0..whole.len())
            .all(|dim| dim == axis || (starts[dim], steps[dim], sizes[dim]) == (0, 1, whole[dim]));
        let start = usize::try_from(starts[axis]).ok()?;
        (steps[axis] == step && others_are_whole).then_some(AxisSlice { of: node.inputs[0], start })
    }

    /// The primitive that computes a tensor; it is added to the primitives of the embedding.
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
