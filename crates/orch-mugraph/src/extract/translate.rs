//! Primitives as expressions in index notation.
//!
//! First each primitive constrains which dimensions of its operands and result have the same labels; then, with all
//! labels and extents known, each defines an expression.

use super::expr::{Expr, ExprId, Exprs, rational};
use super::index::{Dim, Index, Label};
use super::rotary::{Pairs, Rest, Rotaries, Rotary};
use super::views::{Mode, Part, Strided, is_real, is_view, unrepeated, view, view_of_part};
use crate::op::{BinaryFn, ReduceFn, UnaryFn};
use crate::rational::Rational;
use orch_ir::{Contract, DType, NodeId, PrimGraph, PrimNode, PrimOp, ReduceOp, ScalarFn, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// A tensor that a region reads.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Read {
    /// The stored tensor.
    pub(super) source: TensorId,
    /// The first element.
    pub(super) offset: usize,
    /// Strides in elements; labels along which the tensor is repeated are left out.
    pub(super) strides: BTreeMap<Label, usize>,
}

/// A region in index notation.
#[derive(Debug)]
pub(super) struct Translated {
    /// All expressions.
    pub(super) exprs: Exprs,
    /// The value of the region's result.
    pub(super) root: ExprId,
    /// The tensors that it reads: [`Expr::Input`] is a position in this list.
    pub(super) reads: Vec<Read>,
    /// Strides of the result in its primitive tensor, in elements.
    pub(super) output: BTreeMap<Label, usize>,
    /// All primitives that the region replaces.
    pub(super) nodes: BTreeSet<NodeId>,
}

/// Masks up to this value count as minus infinity: `exp` of it is 0 in f32 beside any other exponential.
const VERY_NEGATIVE: f64 = -1e9;

/// True for primitives on real numbers that [`translate`] may translate.
pub(super) fn is_known(graph: &PrimGraph, id: NodeId) -> bool {
    use orch_ir::{BinaryFn as B, UnaryFn as U};
    let node = graph.node(id);
    let is_real = node.outputs.iter().all(|tensor| is_real(graph.dtype(*tensor)));
    match &node.op {
        PrimOp::Map(ScalarFn::IsNan) => true,
        PrimOp::Map(ScalarFn::Unary(U::Neg | U::Exp | U::Sqrt | U::Recip | U::Tanh | U::Erf)) => is_real,
        PrimOp::Map(ScalarFn::Binary(B::Add | B::Sub | B::Mul | B::Div | B::Max) | ScalarFn::Select) => {
            is_real
        }
        PrimOp::Reduce { op: ReduceOp::Sum | ReduceOp::Max, .. } | PrimOp::Contract(_) => is_real,
        _ => false,
    }
}

/// The primitives `members`, the last of which gives the result, in index notation. `None` if index notation cannot
/// express one of them.
pub(super) fn translate(
    graph: &PrimGraph,
    rotaries: &Rotaries,
    members: &BTreeSet<NodeId>,
) -> Option<Translated> {
    let last = *members.last()?;
    let members = with_inner_views(graph, rotaries, members);
    let mut translation = Translation {
        graph,
        rotaries,
        nodes: members.clone(),
        members,
        index: Index::default(),
        dims: BTreeMap::new(),
        contracted: BTreeMap::new(),
        views: BTreeMap::new(),
        exprs: Exprs::default(),
        values: BTreeMap::new(),
        reads: Vec::new(),
    };
    let order: Vec<NodeId> = translation.members.iter().copied().collect();
    for &id in &order {
        translation.constrain(id)?;
    }
    translation.take_extents()?;
    for &id in &order {
        translation.define(id)?;
    }
    translation.finish(graph.node(last).outputs[0])
}

/// The members and the views between them.
fn with_inner_views(graph: &PrimGraph, rotaries: &Rotaries, members: &BTreeSet<NodeId>) -> BTreeSet<NodeId> {
    let mut all = members.clone();
    for member in members {
        for input in rotaries.operands(graph, *member) {
            let (mut views, mut at) = (Vec::new(), graph.producer(input));
            while let Some(id) = at.filter(|id| !members.contains(id) && is_view(graph, *id)) {
                views.push(id);
                at = graph.producer(graph.node(id).inputs[0]);
            }
            if at.is_some_and(|id| members.contains(&id)) {
                all.extend(views);
            }
        }
    }
    all
}

/// A tensor, or a part of one, as a primitive reads it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Operand {
    tensor: TensorId,
    /// Set for angles that come from outside the region: each rotary position embedding has labels of its own for them.
    reader: Option<NodeId>,
    /// The range of a tensor from outside that is read, if it is not the whole one.
    part: Option<Part>,
}

impl From<TensorId> for Operand {
    fn from(tensor: TensorId) -> Operand {
        Operand { tensor, reader: None, part: None }
    }
}

/// The state of [`translate`].
struct Translation<'a> {
    graph: &'a PrimGraph,
    rotaries: &'a Rotaries,
    /// The primitives that are translated.
    members: BTreeSet<NodeId>,
    /// The members, the inner primitives of rotary position embeddings, and the views of tensors from outside.
    nodes: BTreeSet<NodeId>,
    index: Index,
    /// The labels of each dimension of tensors.
    dims: BTreeMap<Operand, Vec<Dim>>,
    /// The labels of each dimension of a contraction, by the letter of the dimension in it.
    contracted: BTreeMap<NodeId, BTreeMap<u8, Dim>>,
    /// Views of tensors from outside.
    views: BTreeMap<Operand, Strided>,
    exprs: Exprs,
    values: BTreeMap<Operand, ExprId>,
    reads: Vec<Read>,
}

impl Translation<'_> {
    /// The operands of a primitive; of a rotary position embedding the rotated tensor, cosines, sines, and the rest.
    fn operands(&self, id: NodeId) -> Vec<Operand> {
        let Some(rotary) = self.rotaries.get(id) else {
            return self.graph.node(id).inputs.iter().map(|&input| input.into()).collect();
        };
        let rotated = Operand { part: rotary.part, ..rotary.operand.into() };
        let angles = rotary.angles.map(|tensor| {
            let reader = (!self.is_inner(tensor)).then_some(id);
            Operand { reader, ..tensor.into() }
        });
        let rest = rotary.rest.map(|rest| rest.tensor().into());
        [rotated].into_iter().chain(angles).chain(rest).collect()
    }

    /// True for tensors that a member computes.
    fn is_inner(&self, tensor: TensorId) -> bool {
        self.graph.producer(tensor).is_some_and(|node| self.members.contains(&node))
    }

    /// The labels of an operand's dimensions. Dimensions along which a tensor from outside is repeated get new labels
    /// for each operator that reads it, so that they do not tie these operators together.
    fn operand(&mut self, operand: Operand) -> Option<Vec<Dim>> {
        let is_outside = operand.part.is_some() || !self.is_inner(operand.tensor);
        if is_outside && !self.views.contains_key(&operand) {
            let view = match operand.part {
                Some(part) => view_of_part(self.graph, operand.tensor, part)?,
                None => view(self.graph, operand.tensor),
            };
            let mut label = |mode: &Mode| self.index.fresh(mode.extent);
            let dims = view.dims.iter().map(|modes| modes.iter().map(&mut label).collect()).collect();
            self.dims.insert(operand, dims);
            self.views.insert(operand, view);
        }
        let mut dims = self.dims.get(&operand).cloned().unwrap_or_default();
        if let Some(view) = self.views.get(&operand) {
            for (dim, modes) in dims.iter_mut().zip(&view.dims) {
                for (label, &Mode { extent, stride }) in dim.iter_mut().zip(modes) {
                    if stride == 0 {
                        *label = self.index.fresh(extent);
                    }
                }
            }
        }
        Some(dims)
    }

    /// Equates labels of a primitive's operands and gives its result labels; `None` if extents do not fit.
    fn constrain(&mut self, id: NodeId) -> Option<()> {
        let (node, inputs) = (self.graph.node(id), self.operands(id));
        let operands: Vec<Vec<Dim>> =
            inputs.into_iter().map(|operand| self.operand(operand)).collect::<Option<_>>()?;
        let shape = self.graph.shape(node.outputs[0]).dims();
        if let Some(rotary) = self.rotaries.get(id) {
            let dims = self.rotary_dims(rotary, operands)?;
            self.dims.insert(node.outputs[0].into(), dims);
            return Some(());
        }
        let dims = match &node.op {
            PrimOp::Map(_) => {
                for other in &operands[1..] {
                    for (dim, other) in operands[0].iter().zip(other) {
                        self.index.unify(dim, other)?;
                    }
                }
                operands.into_iter().next()?
            }
            PrimOp::Reduce { axes, .. } => {
                let kept = operands[0].iter().enumerate().filter(|(dim, _)| !axes.contains(dim));
                kept.map(|(_, dim)| dim.clone()).collect()
            }
            PrimOp::Contract(contract) => self.contract_dims(id, contract, &operands)?,
            PrimOp::Broadcast { dims, .. } => {
                let mut result: Vec<Dim> = shape.iter().map(|&extent| self.index.fresh_dim(extent)).collect();
                for (from, &to) in dims.iter().enumerate() {
                    if self.graph.shape(node.inputs[0])[from] == shape[to] {
                        result[to].clone_from(&operands[0][from]);
                    }
                }
                result
            }
            PrimOp::Transpose { perm } => perm.iter().map(|&dim| operands[0][dim].clone()).collect(),
            PrimOp::Reshape { .. } => {
                let result: Vec<Dim> = shape.iter().map(|&extent| self.index.fresh_dim(extent)).collect();
                self.index.unify(&operands[0].concat(), &result.concat())?;
                result
            }
            _ => return None,
        };
        self.dims.insert(node.outputs[0].into(), dims);
        Some(())
    }

    /// The labels of a rotary position embedding's result. With half angles the rotated axis is split into a label of
    /// the pair's elements, of extent 2, and one of the angles: `[pair, angle]` for halves, `[angle, pair]` for
    /// interleaved pairs.
    fn rotary_dims(&mut self, rotary: &Rotary, operands: Vec<Vec<Dim>>) -> Option<Vec<Dim>> {
        let ([operand, cos, sin], rest) = operands.split_first_chunk()?;
        let (mut of_angles, mut result) = (operand.clone(), operand.clone());
        if rotary.has_half_angles {
            let half = self.rotated_extent(rotary) / 2;
            let (pair, angle) = (vec![self.index.fresh(2)], self.index.fresh_dim(half));
            let joined = match rotary.pairs {
                Pairs::Halves => [pair.clone(), angle.clone()].concat(),
                Pairs::Interleaved => [angle.clone(), pair.clone()].concat(),
            };
            self.index.unify(&operand[rotary.axis], &joined)?;
            of_angles[rotary.axis] = angle;
            if rotary.pairs == Pairs::Interleaved && rotary.rest.is_none() {
                result.clone_from(&of_angles);
                result.push(pair);
            }
        }
        for angles in [cos, sin] {
            for (dim, other) in of_angles.iter().zip(angles) {
                self.index.unify(dim, other)?;
            }
        }
        // Along the axis, the rotated elements and the rest have labels of their own, and the concatenation a third
        // one.
        let (Some(own), [rest]) = (rotary.rest, rest) else { return Some(result) };
        for (axis, (dim, other)) in result.iter().zip(rest).enumerate() {
            if axis != rotary.axis {
                self.index.unify(dim, other)?;
            }
        }
        let extent = self.rotated_extent(rotary) + self.graph.shape(own.tensor())[rotary.axis];
        result[rotary.axis] = self.index.fresh_dim(extent);
        Some(result)
    }

    /// The number of elements along its axis that a rotary position embedding rotates.
    fn rotated_extent(&self, rotary: &Rotary) -> usize {
        rotary.part.map_or(self.graph.shape(rotary.operand)[rotary.axis], |part| part.size)
    }

    /// The labels of a contraction's result; equal letters of both operands have the same labels.
    fn contract_dims(&mut self, id: NodeId, contract: &Contract, operands: &[Vec<Dim>]) -> Option<Vec<Dim>> {
        let mut known: BTreeMap<u8, Dim> = BTreeMap::new();
        for (names, dims) in [&contract.lhs, &contract.rhs].into_iter().zip(operands) {
            for (name, dim) in names.iter().zip(dims) {
                match known.get(name) {
                    Some(other) => self.index.unify(&other.clone(), dim)?,
                    None => drop(known.insert(*name, dim.clone())),
                }
            }
        }
        let dims = contract.out.iter().map(|name| known.get(name).cloned()).collect();
        self.contracted.insert(id, known);
        dims
    }

    /// Records the extents of all leaves. `None` if a tensor has a label twice (a diagonal), or is empty.
    fn take_extents(&mut self) -> Option<()> {
        for dims in self.dims.values() {
            let leaves = self.index.leaves(&dims.concat());
            let distinct: BTreeSet<Label> = leaves.iter().copied().collect();
            if distinct.len() < leaves.len() {
                return None;
            }
            for leaf in distinct {
                let extent = self.index.extent(leaf);
                self.exprs.extents.insert(leaf, extent);
                if extent == 0 {
                    return None;
                }
            }
        }
        Some(())
    }

    /// The leaves of all dimensions, outermost first.
    fn leaves(&self, dims: &[Dim]) -> Vec<Label> {
        self.index.leaves(&dims.concat())
    }

    /// The value of an operand: of a tensor from outside an input, or its number if it is a constant that is the same
    /// everywhere.
    fn value(&mut self, operand: Operand) -> Option<ExprId> {
        if let Some(&value) = self.values.get(&operand) {
            return Some(value);
        }
        let view = self.views.get(&operand)?.clone();
        let dims = self.dims.get(&operand)?.clone();
        let mut strides = BTreeMap::new();
        for (dim, modes) in dims.iter().zip(&view.dims) {
            for (label, &Mode { mut stride, .. }) in dim.iter().zip(modes) {
                for leaf in self.index.leaves(&[*label]).into_iter().rev() {
                    if stride != 0 {
                        strides.insert(leaf, stride);
                    }
                    stride *= self.index.extent(leaf);
                }
            }
        }
        self.nodes.extend(view.nodes.iter().copied());
        let read = Read { source: view.source, offset: view.offset, strides };
        let value = match self.graph.constant(read.source).filter(|_| read.strides.is_empty()) {
            Some(constant) => self.exprs.constant(*constant.to_f64().get(read.offset)?),
            None => self.input(read),
        };
        self.values.insert(operand, value);
        Some(value)
    }

    /// The value of a tensor from outside.
    fn input(&mut self, read: Read) -> ExprId {
        let known = self.reads.iter().position(|other| *other == read);
        let position = known.unwrap_or_else(|| {
            self.exprs.inputs.push(read.strides.keys().copied().collect());
            self.reads.push(read);
            self.reads.len() - 1
        });
        self.exprs.add_expr(Expr::Input(position))
    }

    /// Defines the value of a primitive's result; `None` if there is no expression for it.
    fn define(&mut self, id: NodeId) -> Option<()> {
        let (node, inputs) = (self.graph.node(id), self.operands(id));
        let args: Vec<ExprId> =
            inputs.into_iter().map(|operand| self.value(operand)).collect::<Option<_>>()?;
        if let Some(rotary) = self.rotaries.get(id) {
            let value = self.rotary_value(id, rotary, &args)?;
            self.nodes.extend(rotary.inner.iter().copied());
            self.values.insert(node.outputs[0].into(), value);
            return Some(());
        }
        let value = match &node.op {
            PrimOp::Map(ScalarFn::Cast(_)) => args[0],
            PrimOp::Map(ScalarFn::Select) => self.select(node, &args)?,
            PrimOp::Map(f) => self.map(*f, &args)?,
            PrimOp::Reduce { op, axes } => {
                let dims = self.dims.get(&node.inputs[0].into())?;
                let summed: Vec<Dim> = axes.iter().map(|&axis| dims[axis].clone()).collect();
                let f = if *op == ReduceOp::Max { ReduceFn::Max } else { ReduceFn::Sum };
                let over = self.leaves(&summed);
                self.exprs.reduce(f, &over, args[0])?
            }
            PrimOp::Contract(contract) => self.contraction(id, contract, [args[0], args[1]])?,
            _ => args[0],
        };
        self.values.insert(node.outputs[0].into(), value);
        Some(())
    }

    /// A contraction; `None` if two of its letters have the same label. A summed label on which neither operand depends
    /// multiplies the result by its extent.
    fn contraction(&mut self, id: NodeId, contract: &Contract, [a, b]: [ExprId; 2]) -> Option<ExprId> {
        let (mut seen, mut over, mut times) = (BTreeSet::new(), Vec::new(), 1);
        for (name, dim) in self.contracted.get(&id)? {
            for leaf in self.index.leaves(dim) {
                if !seen.insert(leaf) {
                    return None;
                }
                match [a, b].iter().any(|operand| self.exprs.labels(*operand).contains(&leaf)) {
                    _ if contract.out.contains(name) => {}
                    true => over.push(leaf),
                    false => times *= self.index.extent(leaf),
                }
            }
        }
        let product = self.exprs.contract(&over, a, b)?;
        self.exprs.scale(Rational::new(i64::try_from(times).ok()?, 1)?, product)
    }

    /// A rotary position embedding, `x cos + rotate(x) sin`. The two elements of a pair differ in one leaf of the axis
    /// only; `group` is their distance along that leaf.
    fn rotary_value(&mut self, id: NodeId, rotary: &Rotary, args: &[ExprId]) -> Option<ExprId> {
        let ([x, cos, sin], rest) = args.split_first_chunk()?;
        let operands = self.operands(id);
        let leaves = |operand: &Operand| Some(self.index.leaves(&self.dims.get(operand)?[rotary.axis]));
        let mut group = match rotary.pairs {
            Pairs::Halves => self.rotated_extent(rotary) / 2,
            Pairs::Interleaved => 1,
        };
        let rotated_leaves = leaves(&operands[0])?;
        // From the innermost leaf outwards: the first one whose extent is a multiple of two groups.
        let label = rotated_leaves.iter().copied().rev().find(|leaf| {
            let extent = self.index.extent(*leaf);
            let has_pairs = group > 0 && extent.is_multiple_of(2 * group);
            group /= if has_pairs { 1 } else { extent.max(1) };
            has_pairs
        })?;
        let result = leaves(&self.graph.node(id).outputs[0].into())?;
        let rest_leaves = operands.get(3).and_then(leaves);
        let rotated = self.exprs.rotate(label, group, *x)?;
        let (plain, other) = (self.exprs.mul(*x, *cos)?, self.exprs.mul(rotated, *sin)?);
        let value = self.exprs.add(plain, other)?;
        let (Some(side), [rest]) = (rotary.rest, rest) else { return Some(value) };
        let ([whole], Some(rest_leaves)) = (&result[..], rest_leaves) else { return None };
        let (parts, values) = match side {
            Rest::Before(_) => ([rest_leaves, rotated_leaves], [*rest, value]),
            Rest::After(_) => ([rotated_leaves, rest_leaves], [value, *rest]),
        };
        Some(self.exprs.add_expr(Expr::Concat(*whole, parts, values)))
    }

    /// An elementwise function.
    fn map(&mut self, f: ScalarFn, args: &[ExprId]) -> Option<ExprId> {
        use orch_ir::{BinaryFn as B, UnaryFn as U};
        let exprs = &mut self.exprs;
        match f {
            ScalarFn::Unary(U::Neg) => exprs.scale(rational(-1.0)?, args[0]),
            ScalarFn::Unary(U::Exp) => exprs.exp(args[0]),
            ScalarFn::Unary(U::Sqrt) => exprs.unary(UnaryFn::Sqrt, args[0]),
            ScalarFn::Unary(U::Recip) => exprs.recip(args[0]),
            ScalarFn::Unary(U::Tanh) => exprs.unary(UnaryFn::Tanh, args[0]),
            ScalarFn::Unary(U::Erf) => exprs.unary(UnaryFn::Erf, args[0]),
            ScalarFn::Binary(B::Add) => self.sum_or_mask(args[0], args[1]),
            ScalarFn::Binary(B::Sub) => exprs.sub(args[0], args[1]),
            ScalarFn::Binary(B::Mul) => exprs.mul(args[0], args[1]),
            ScalarFn::Binary(B::Div) => exprs.div(args[0], args[1]),
            ScalarFn::Binary(B::Max) => exprs.max(args[0], args[1]),
            ScalarFn::IsNan => Some(exprs.add_expr(Expr::IsNan(args[0]))),
            _ => None,
        }
    }

    /// A sum, or a masked value if one operand is 0 where a mask keeps elements and minus infinity elsewhere: a constant that is
    /// causal, or a selection of these two numbers.
    fn sum_or_mask(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        for (value, mask) in [(a, b), (b, a)] {
            let keeps = |x: f64| (x == 0.0 || x <= VERY_NEGATIVE).then_some(x == 0.0);
            if let Some(causal) = self.causal(mask, keeps) {
                return Some(self.masked(value, causal));
            }
            if let Some(masked) = self.masked_by_sum(value, mask) {
                return Some(masked);
            }
        }
        self.exprs.add(a, b)
    }

    /// `value + mask` as a masked value, if `mask` selects 0 or minus infinity, inside of the region or before it.
    fn masked_by_sum(&mut self, value: ExprId, mask: ExprId) -> Option<ExprId> {
        let (condition, is_finite) = match *self.exprs.get(mask) {
            Expr::Binary(BinaryFn::Mask, kept, condition) if self.exprs.number(kept) == Some(0.0) => {
                (condition, self.exprs.finite_masks.contains(&mask))
            }
            Expr::Input(position) => self.added_mask(position)?,
            _ => return None,
        };
        let masked = self.masked(value, condition);
        if is_finite {
            self.exprs.finite_masks.insert(masked);
        }
        Some(masked)
    }

    /// The condition of a tensor from outside that selects 0 or minus infinity, and whether it has a large negative number for the
    /// latter.
    fn added_mask(&mut self, position: usize) -> Option<(ExprId, bool)> {
        let node = self.graph.node(self.graph.producer(self.reads[position].source)?);
        let PrimOp::Map(ScalarFn::Select) = node.op else { return None };
        let [condition, kept, hidden] = node.inputs[..] else { return None };
        let (kept, hidden) = (everywhere(self.graph, kept)?, everywhere(self.graph, hidden)?);
        if kept != 0.0 || hidden > VERY_NEGATIVE {
            return None;
        }
        let read = Read { source: condition, ..self.reads[position].clone() };
        Some((self.input(read), hidden != f64::NEG_INFINITY))
    }

    /// A value where a mask keeps it, minus infinity elsewhere.
    fn masked(&mut self, value: ExprId, mask: ExprId) -> ExprId {
        self.exprs.add_expr(Expr::Binary(BinaryFn::Mask, value, mask))
    }

    /// `if condition { then } else { otherwise }`: a mask, or NaN replaced by 0.
    fn select(&mut self, node: &PrimNode, args: &[ExprId]) -> Option<ExprId> {
        let [condition, then, otherwise] = *args else { return None };
        if *self.exprs.get(condition) == Expr::IsNan(otherwise) {
            let is_zero = self.exprs.number(then) == Some(0.0);
            self.exprs.without_nan.insert(otherwise);
            return is_zero.then_some(otherwise);
        }
        let is_infinite = |value: Option<f64>| value.is_some_and(|value| value <= VERY_NEGATIVE);
        if is_infinite(self.exprs.number(otherwise)) {
            let causal = self.causal(condition, |x| Some(x != 0.0));
            let mask = causal.or_else(|| self.mask_input(node.inputs[0], condition))?;
            let masked = self.masked(then, mask);
            if causal.is_none() && self.exprs.number(otherwise) != Some(f64::NEG_INFINITY) {
                self.exprs.finite_masks.insert(masked);
            }
            Some(masked)
        } else if is_infinite(self.exprs.number(then)) {
            let causal = self.causal(condition, |x| Some(x == 0.0))?;
            Some(self.masked(otherwise, causal))
        } else {
            None
        }
    }

    /// A condition that is a boolean input, as a mask.
    fn mask_input(&self, tensor: TensorId, condition: ExprId) -> Option<ExprId> {
        let is_input = matches!(self.exprs.get(condition), Expr::Input(_));
        (is_input && self.graph.dtype(tensor) == DType::Bool).then_some(condition)
    }

    /// A constant as a causal mask, if it is one. `keeps` says which of its values keep an element; `None` for values
    /// that no mask has.
    fn causal(&mut self, mask: ExprId, keeps: impl Fn(f64) -> Option<bool>) -> Option<ExprId> {
        let Expr::Input(position) = *self.exprs.get(mask) else { return None };
        let read = &self.reads[position];
        let values = self.graph.constant(read.source)?;
        let labels: Vec<(Label, usize)> = read.strides.iter().map(|(label, step)| (*label, *step)).collect();
        let [first, second] = labels[..] else { return None };
        let extents = &self.exprs.extents;
        if extents[&first.0] * extents[&second.0] > values.shape().elems() {
            return None;
        }
        let values = values.to_f64();
        for ((row, row_step), (column, column_step)) in [(first, second), (second, first)] {
            let kept = |i: usize, j: usize| keeps(values[read.offset + i * row_step + j * column_step]);
            if let Some(offset) = diagonal(extents[&row], extents[&column], kept) {
                return Some(self.exprs.add_expr(Expr::Causal { row, column, offset }));
            }
        }
        None
    }

    /// The region whose result is this tensor; `None` if the tensor is repeated along a dimension.
    fn finish(self, result: TensorId) -> Option<Translated> {
        let root = *self.values.get(&result.into())?;
        let leaves = self.leaves(self.dims.get(&result.into())?);
        let mut output = BTreeMap::new();
        let mut stride = 1;
        for leaf in leaves.into_iter().rev() {
            output.insert(leaf, stride);
            stride *= self.index.extent(leaf);
        }
        if !output.keys().eq(self.exprs.labels(root)) {
            return None;
        }
        Some(Translated { exprs: self.exprs, root, reads: self.reads, output, nodes: self.nodes })
    }
}

/// The number that a tensor is everywhere: a constant of one element, repeated.
fn everywhere(graph: &PrimGraph, tensor: TensorId) -> Option<f64> {
    let value = graph.constant(unrepeated(graph, tensor)).filter(|value| value.shape().elems() == 1)?;
    Some(value.to_f64()[0])
}

/// The `offset` for which a mask keeps element `[row, column]` exactly if `column <= row + offset`. `None` if there is
/// none, if a row is empty, or if the first row is full.
fn diagonal(rows: usize, columns: usize, kept: impl Fn(usize, usize) -> Option<bool>) -> Option<i64> {
    let mut first = 0;
    while first < columns && kept(0, first)? {
        first += 1;
    }
    if first == 0 || first == columns {
        return None;
    }
    for row in 0..rows {
        for column in 0..columns {
            if kept(row, column)? != (column < first + row) {
                return None;
            }
        }
    }
    i64::try_from(first - 1).ok()
}
