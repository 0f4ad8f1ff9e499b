//! Primitives as expressions in index notation.

use super::expr::{Expr, ExprId, Exprs, rational};
use super::index::{Dim, Index, Label};
use super::rotary::{Pairs, Rest, Rotaries, Rotary};
use super::views::{Part, Strided, is_real, is_view, view, view_of_part};
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
    /// Elements from one index to the next one; labels along which it is repeated are left out.
    pub(super) strides: BTreeMap<Label, usize>,
}

/// A region in index notation.
#[derive(Debug)]
pub(super) struct Translated {
    /// All expressions.
    pub(super) exprs: Exprs,
    /// What it computes.
    pub(super) root: ExprId,
    /// What it reads: [`Expr::Input`] is a position here.
    pub(super) reads: Vec<Read>,
    /// Where the result is stored: elements from one index to the next one.
    pub(super) output: BTreeMap<Label, usize>,
    /// All primitives of the region.
    pub(super) nodes: BTreeSet<NodeId>,
}

/// Masks up to here are minus infinity: exponentials of what is masked out vanish beside any other's.
const VERY_NEGATIVE: f64 = -1e9;

/// True for primitives that [`translate`] may know, on values of one type.
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

/// The primitives `members`, the last of which gives the result, in index notation; `None` if that says not all of it.
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

/// With the views between members.
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

/// What a primitive reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Operand {
    tensor: TensorId,
    /// Angles of a rotary position embedding are operands of their own for each that reads them from outside.
    reader: Option<NodeId>,
    /// Part of a tensor from outside.
    part: Option<Part>,
}

impl From<TensorId> for Operand {
    fn from(tensor: TensorId) -> Operand {
        Operand { tensor, reader: None, part: None }
    }
}

struct Translation<'a> {
    graph: &'a PrimGraph,
    rotaries: &'a Rotaries,
    /// What is translated.
    members: BTreeSet<NodeId>,
    /// The same with what lies within embeddings and with views from outside.
    nodes: BTreeSet<NodeId>,
    index: Index,
    /// What the dimensions of tensors run over.
    dims: BTreeMap<Operand, Vec<Dim>>,
    /// What the dimensions of a contraction run over, by their labels in it.
    contracted: BTreeMap<NodeId, BTreeMap<u8, Dim>>,
    /// Tensors from outside.
    views: BTreeMap<Operand, Strided>,
    exprs: Exprs,
    values: BTreeMap<Operand, ExprId>,
    reads: Vec<Read>,
}

impl Translation<'_> {
    /// What a primitive reads; for a rotary position embedding what is turned, angles, and what is not turned.
    fn operands(&self, id: NodeId) -> Vec<Operand> {
        let Some(rotary) = self.rotaries.get(id) else {
            return self.graph.node(id).inputs.iter().map(|&input| input.into()).collect();
        };
        let turned = Operand { part: rotary.part, ..rotary.operand.into() };
        let angles = rotary.angles.map(|tensor| {
            let reader = (!self.is_inner(tensor)).then_some(id);
            Operand { reader, ..tensor.into() }
        });
        let rest = rotary.rest.map(|rest| rest.tensor().into());
        [turned].into_iter().chain(angles).chain(rest).collect()
    }

    fn is_inner(&self, tensor: TensorId) -> bool {
        self.graph.producer(tensor).is_some_and(|node| self.members.contains(&node))
    }

    /// What an operand's dimensions run over. A tensor from outside that is repeated along a dimension is so anew for
    /// the operator that reads it.
    fn operand(&mut self, operand: Operand) -> Option<Vec<Dim>> {
        let is_outside = operand.part.is_some() || !self.is_inner(operand.tensor);
        if is_outside && !self.views.contains_key(&operand) {
            let seen = match operand.part {
                Some(part) => view_of_part(self.graph, operand.tensor, part)?,
                None => view(self.graph, operand.tensor),
            };
            let mut label = |&(extent, _): &(usize, usize)| self.index.fresh(extent);
            let dims = seen.dims.iter().map(|factors| factors.iter().map(&mut label).collect()).collect();
            self.dims.insert(operand, dims);
            self.views.insert(operand, seen);
        }
        let mut dims = self.dims.get(&operand).cloned().unwrap_or_default();
        if let Some(seen) = self.views.get(&operand) {
            for (dim, factors) in dims.iter_mut().zip(&seen.dims) {
                for (label, &(extent, stride)) in dim.iter_mut().zip(factors) {
                    if stride == 0 {
                        *label = self.index.fresh(extent);
                    }
                }
            }
        }
        Some(dims)
    }

    /// Which dimensions of a primitive's operands and result run over the same indices.
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

    /// What a rotary position embedding runs over: angles of half a dimension are an index beside that of the pairs.
    fn rotary_dims(&mut self, rotary: &Rotary, operands: Vec<Vec<Dim>>) -> Option<Vec<Dim>> {
        let ([operand, cos, sin], rest) = operands.split_first_chunk()?;
        let (mut of_angles, mut result) = (operand.clone(), operand.clone());
        if rotary.is_half {
            let half = self.turned(rotary) / 2;
            let (pair, angle) = (vec![self.index.fresh(2)], self.index.fresh_dim(half));
            let joined = match rotary.pairs {
                Pairs::Halves => [pair.clone(), angle.clone()].concat(),
                Pairs::Neighbours => [angle.clone(), pair.clone()].concat(),
            };
            self.index.unify(&operand[rotary.axis], &joined)?;
            of_angles[rotary.axis] = angle;
            if rotary.pairs == Pairs::Neighbours && rotary.rest.is_none() {
                result.clone_from(&of_angles);
                result.push(pair);
            }
        }
        for angles in [cos, sin] {
            for (dim, other) in of_angles.iter().zip(angles) {
                self.index.unify(dim, other)?;
            }
        }
        // What is turned and what is not have indices of their own in the place of the result's.
        let (Some(own), [rest]) = (rotary.rest, rest) else { return Some(result) };
        for (axis, (dim, other)) in result.iter().zip(rest).enumerate() {
            if axis != rotary.axis {
                self.index.unify(dim, other)?;
            }
        }
        let extent = self.turned(rotary) + self.graph.shape(own.tensor())[rotary.axis];
        result[rotary.axis] = self.index.fresh_dim(extent);
        Some(result)
    }

    /// The number of elements along its axis that a rotary position embedding rotates.
    fn turned(&self, rotary: &Rotary) -> usize {
        rotary.part.map_or(self.graph.shape(rotary.operand)[rotary.axis], |part| part.size)
    }

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

    /// The extents of all leaves; `None` if a tensor runs over an index twice, or over nothing at all.
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

    fn leaves(&self, dims: &[Dim]) -> Vec<Label> {
        self.index.leaves(&dims.concat())
    }

    /// The value of an operand.
    fn value(&mut self, operand: Operand) -> Option<ExprId> {
        if let Some(&value) = self.values.get(&operand) {
            return Some(value);
        }
        let seen = self.views.get(&operand)?.clone();
        let dims = self.dims.get(&operand)?.clone();
        let mut strides = BTreeMap::new();
        for (dim, factors) in dims.iter().zip(&seen.dims) {
            for (label, &(_, mut stride)) in dim.iter().zip(factors) {
                for leaf in self.index.leaves(&[*label]).into_iter().rev() {
                    if stride != 0 {
                        strides.insert(leaf, stride);
                    }
                    stride *= self.index.extent(leaf);
                }
            }
        }
        self.nodes.extend(seen.nodes.iter().copied());
        let read = Read { source: seen.source, offset: seen.offset, strides };
        let value = match self.graph.constant(read.source).filter(|_| read.strides.is_empty()) {
            Some(constant) => self.exprs.constant(*constant.to_f64().get(read.offset)?),
            None => {
                let known = self.reads.iter().position(|other| *other == read);
                let position = known.unwrap_or_else(|| {
                    self.exprs.inputs.push(read.strides.keys().copied().collect());
                    self.reads.push(read);
                    self.reads.len() - 1
                });
                self.exprs.add_expr(Expr::Input(position))
            }
        };
        self.values.insert(operand, value);
        Some(value)
    }

    /// What a primitive computes.
    fn define(&mut self, id: NodeId) -> Option<()> {
        let (node, inputs) = (self.graph.node(id), self.operands(id));
        let args: Vec<ExprId> =
            inputs.into_iter().map(|operand| self.value(operand)).collect::<Option<_>>()?;
        if let Some(rotary) = self.rotaries.get(id) {
            let value = self.embedded(id, rotary, &args)?;
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

    /// A contraction; `None` if two of its labels run over the same index. What neither operand depends on is summed as
    /// often as it has values.
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

    /// A rotary position embedding, whose pairs are along one of the leaves of its axis.
    fn embedded(&mut self, id: NodeId, rotary: &Rotary, args: &[ExprId]) -> Option<ExprId> {
        let ([x, cos, sin], rest) = args.split_first_chunk()?;
        let operands = self.operands(id);
        let leaves = |operand: &Operand| Some(self.index.leaves(&self.dims.get(operand)?[rotary.axis]));
        let mut group = match rotary.pairs {
            Pairs::Halves => self.turned(rotary) / 2,
            Pairs::Neighbours => 1,
        };
        let turned = leaves(&operands[0])?;
        let label = turned.iter().copied().rev().find(|leaf| {
            let extent = self.index.extent(*leaf);
            let has_pairs = group > 0 && extent.is_multiple_of(2 * group);
            group /= if has_pairs { 1 } else { extent.max(1) };
            has_pairs
        })?;
        let result = leaves(&self.graph.node(id).outputs[0].into())?;
        let besides = operands.get(3).and_then(leaves);
        let rotated = self.exprs.rotate(label, group, *x)?;
        let (plain, other) = (self.exprs.mul(*x, *cos)?, self.exprs.mul(rotated, *sin)?);
        let value = self.exprs.add(plain, other)?;
        let (Some(side), [rest]) = (rotary.rest, rest) else { return Some(value) };
        let ([whole], Some(besides)) = (&result[..], besides) else { return None };
        let (parts, values) = match side {
            Rest::Before(_) => ([besides, turned], [*rest, value]),
            Rest::After(_) => ([turned, besides], [value, *rest]),
        };
        Some(self.exprs.add_expr(Expr::Concat(*whole, parts, values)))
    }

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

    /// A sum, or a mask where a constant is added that is 0 up to a diagonal and minus infinity beyond.
    fn sum_or_mask(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        for (value, mask) in [(a, b), (b, a)] {
            let keeps = |x: f64| (x == 0.0 || x <= VERY_NEGATIVE).then_some(x == 0.0);
            if let Some(causal) = self.causal(mask, keeps) {
                return Some(self.masked(value, causal));
            }
        }
        self.exprs.add(a, b)
    }

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

    fn mask_input(&self, tensor: TensorId, condition: ExprId) -> Option<ExprId> {
        let is_input = matches!(self.exprs.get(condition), Expr::Input(_));
        (is_input && self.graph.dtype(tensor) == DType::Bool).then_some(condition)
    }

    /// A constant as a causal mask, if it is one.
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

/// The offset of the diagonal up to which a mask keeps columns, if it keeps exactly those and no row is empty.
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
