//! From index notation to a program: labels that go together are joined, and each value gets an order of dimensions.
//!
//! All tensors of a program have the same number of dimensions: one for each *batch* label, in an order that is the same
//! everywhere, then rows and columns, which are what each operator needs them to be. Inputs are seen in whatever order
//! is needed, so nothing is ever transposed.

use super::expr::{Expr, ExprId, Exprs, Spread};
use super::index::Label;
use super::translate::{Read, Translated};
use super::{RegionLimits, View};
use crate::graph::{InputKind, MuGraph, TensorId};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use orch_ir::{DType, PrimGraph};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A program with views of its inputs and of its output.
pub(super) struct Arranged {
    pub(super) program: MuGraph,
    pub(super) inputs: Vec<View>,
    /// Strides within the result.
    pub(super) output: Vec<usize>,
    pub(super) exponentials: Vec<Exponential>,
}

/// Operators of a rotary position embedding whose angles are not spread.
const ROTARY_OPS: usize = 4;

/// Where an exponential is.
pub(super) struct Exponential {
    pub(super) value: ExprId,
    pub(super) tensor: TensorId,
    /// The labels of its dimensions.
    pub(super) labels: Vec<Option<Label>>,
}

/// Expressions that a value is made of, itself included.
pub(super) fn reachable(exprs: &Exprs, root: ExprId) -> BTreeSet<ExprId> {
    let (mut seen, mut pending) = (BTreeSet::new(), vec![root]);
    while let Some(id) = pending.pop() {
        if seen.insert(id) {
            pending.extend(exprs.get(id).operands());
        }
    }
    seen
}

/// Joins labels that stand side by side wherever they are. Angles may lack the label of a rotation: they are spread.
pub(super) fn join_labels(translated: &mut Translated) {
    while let Some((outer, inner)) = pair_to_join(translated) {
        for id in reachable(&translated.exprs, translated.root) {
            let Some(how) = lacks_one(&translated.exprs, id, (outer, inner)) else { continue };
            let part = match how {
                Spread::Again => inner,
                Spread::Each => outer,
            };
            spread(translated, id, how, [inner, part]);
        }
        translated.exprs.join(outer, inner);
        for read in &mut translated.reads {
            read.strides.remove(&outer);
        }
        translated.output.remove(&outer);
    }
}

/// How an input that has only one of two labels, the other of which is a rotation's pairs, is spread to both.
fn lacks_one(exprs: &Exprs, id: ExprId, (outer, inner): (Label, Label)) -> Option<Spread> {
    let Expr::Input(_) = exprs.get(id) else { return None };
    match [outer, inner].map(|label| exprs.labels(id).contains(&label)) {
        [false, true] if exprs.extents[&outer] == 2 => Some(Spread::Again),
        [true, false] if exprs.extents[&inner] == 2 => Some(Spread::Each),
        _ => None,
    }
}

/// Spreads a read to a label, of which it has a part.
fn spread(translated: &mut Translated, id: ExprId, how: Spread, [whole, part]: [Label; 2]) {
    let Expr::Input(position) = *translated.exprs.get(id) else { return };
    let name = translated.exprs.spread(how, [whole, part], id);
    let strides = &mut translated.reads[position].strides;
    if let Some(stride) = strides.remove(&part) {
        strides.insert(name, stride);
    }
}

fn pair_to_join(translated: &Translated) -> Option<(Label, Label)> {
    let exprs = &translated.exprs;
    let used = reachable(exprs, translated.root);
    let labels: BTreeSet<Label> = used.iter().flat_map(|id| exprs.labels(*id).iter().copied()).collect();
    let is_rotated =
        |label: Label| used.iter().any(|id| matches!(exprs.get(*id), Expr::Rotate(own, ..) if *own == label));
    let may_lack = |id: ExprId, outer: Label, inner: Label| match lacks_one(exprs, id, (outer, inner)) {
        Some(Spread::Again) => is_rotated(outer),
        Some(Spread::Each) => is_rotated(inner),
        None => false,
    };
    let together = |outer: Label, inner: Label| {
        used.iter().filter(|id| !may_lack(**id, outer, inner)).all(|id| {
            let both = |has: &dyn Fn(&Label) -> bool| has(&outer) == has(&inner);
            both(&|label| exprs.labels(*id).contains(label))
                && exprs.without_maximum.get(id).is_none_or(|over| both(&|label| over.contains(label)))
                && match exprs.get(*id) {
                    Expr::Causal { row, column, .. } => {
                        ![*row, *column].iter().any(|l| [outer, inner].contains(l))
                    }
                    Expr::Reduce(_, over, _) | Expr::Contract(over, ..) | Expr::RmsNorm(_, over, _) => {
                        both(&|label| over.contains(label))
                    }
                    Expr::Concat(_, parts, _) => parts.iter().all(|part| both(&|label| part.contains(label))),
                    _ => true,
                }
        })
    };
    let compose = |strides: &BTreeMap<Label, usize>, outer: Label, inner: Label| {
        strides.get(&outer).copied() == strides.get(&inner).map(|stride| stride * exprs.extents[&inner])
    };
    for &outer in &labels {
        for &inner in labels.iter().filter(|inner| **inner != outer) {
            let reads = used.iter().filter_map(|id| match exprs.get(*id) {
                Expr::Input(position) if !may_lack(*id, outer, inner) => {
                    Some(&translated.reads[*position].strides)
                }
                _ => None,
            });
            let mut views = reads.chain([&translated.output]);
            if together(outer, inner) && views.all(|strides| compose(strides, outer, inner)) {
                return Some((outer, inner));
            }
        }
    }
    None
}

/// The program of a region, if it fits the limits and needs no transposition.
pub(super) fn arrange(graph: &PrimGraph, translated: Translated, limits: &RegionLimits) -> Option<Arranged> {
    let batch = batch_labels(&translated)?;
    if batch.len() + 2 > limits.max_dims {
        return None;
    }
    let mut free: Vec<(usize, Label)> =
        translated.output.iter().map(|(label, stride)| (*stride, *label)).collect();
    free.retain(|(_, label)| !batch.contains(label));
    free.sort_unstable();
    let mut free = free.into_iter().map(|(_, label)| label);
    let order = Order { column: free.next(), row: free.next() };
    let rotations = |id: &ExprId| match translated.exprs.get(*id) {
        Expr::Rotate(..) => ROTARY_OPS,
        Expr::Spread(..) | Expr::Concat(..) => 1,
        _ => 0,
    };
    let rotary_ops: usize = reachable(&translated.exprs, translated.root).iter().map(rotations).sum();
    let Translated { exprs, root, reads, output, .. } = translated;
    let mut emitter = Emitter {
        graph,
        exprs,
        reads,
        batch,
        program: MuGraph::new(""),
        inputs: Vec::new(),
        emitted: BTreeMap::new(),
        exponentials: Vec::new(),
        max_ops: limits.max_ops + rotary_ops,
    };
    let result = emitter.emit(root, order)?;
    emitter.program.output("o", result).ok()?;
    // The result may lack a batch label that a reduction sums: that dimension has an extent of 1.
    let stride = |label: Option<Label>| label.and_then(|label| output.get(&label)).copied().unwrap_or(0);
    let strides = emitter.slots(order).into_iter().map(stride);
    Some(Arranged {
        output: strides.collect(),
        program: emitter.program,
        inputs: emitter.inputs.into_iter().map(|(view, _)| view).collect(),
        exponentials: emitter.exponentials,
    })
}

/// Labels that have a dimension of their own in all tensors: those of both operands of a product, and enough others to
/// leave rows and columns. `None` if a label that is summed in a product would be one.
fn batch_labels(translated: &Translated) -> Option<Vec<Label>> {
    let exprs = &translated.exprs;
    let used = reachable(exprs, translated.root);
    let (mut batch, mut summed) = (BTreeSet::new(), BTreeSet::new());
    for id in &used {
        if let Expr::Contract(over, a, b) = exprs.get(*id) {
            let [over] = over[..] else { return None };
            summed.insert(over);
            let shared = exprs.labels(*a).intersection(exprs.labels(*b));
            batch.extend(shared.copied().filter(|label| *label != over));
        }
        if let Expr::Concat(_, parts, _) = exprs.get(*id) {
            summed.extend(parts.iter().flatten());
        }
    }
    // Outermost first.
    let rank = |label: &Label| (translated.output.get(label).copied().unwrap_or(0), Reverse(*label));
    let crowded = |batch: &BTreeSet<Label>| {
        let sides = used.iter().flat_map(|id| match exprs.get(*id) {
            Expr::Contract(_, a, b) => vec![(*a, 1), (*b, 1)],
            _ => vec![(*id, 2)],
        });
        let mut crowds = sides.filter_map(|(id, most)| {
            let is_summed = |label: &Label| most == 1 && summed.contains(label);
            let labels = exprs.labels(id).iter().filter(|label| !batch.contains(*label) && !is_summed(label));
            let labels: Vec<Label> = labels.copied().collect();
            (labels.len() > most).then_some(labels)
        });
        crowds.next()
    };
    while let Some(labels) = crowded(&batch) {
        let candidates = labels.into_iter().filter(|label| !summed.contains(label));
        batch.insert(candidates.max_by_key(rank)?);
    }
    let mut ordered: Vec<Label> = batch.iter().copied().collect();
    ordered.sort_by_key(|label| Reverse(rank(label)));
    summed.is_disjoint(&batch).then_some(ordered)
}

/// Which labels rows and columns are; a value may have 1 of either.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Order {
    row: Option<Label>,
    column: Option<Label>,
}

impl Order {
    /// With another label in the place of one.
    fn with(self, label: Label, other: Label) -> Order {
        let swapped = |own: Option<Label>| if own == Some(label) { Some(other) } else { own };
        Order { row: swapped(self.row), column: swapped(self.column) }
    }
}

struct Emitter<'a> {
    graph: &'a PrimGraph,
    exprs: Exprs,
    reads: Vec<Read>,
    batch: Vec<Label>,
    program: MuGraph,
    /// Views and the tensors that they are.
    inputs: Vec<(View, TensorId)>,
    emitted: BTreeMap<(ExprId, Order), TensorId>,
    exponentials: Vec<Exponential>,
    max_ops: usize,
}

impl Emitter<'_> {
    /// The tensor of a value.
    fn emit(&mut self, id: ExprId, asked: Order) -> Option<TensorId> {
        let labels = self.exprs.labels(id);
        let own = |label: Option<Label>| label.filter(|label| labels.contains(label));
        let order = Order { row: own(asked.row), column: own(asked.column) };
        let is_placed =
            |label: &Label| self.batch.contains(label) || [order.row, order.column].contains(&Some(*label));
        if !labels.iter().all(is_placed) {
            return None;
        }
        if let Some(&tensor) = self.emitted.get(&(id, order)) {
            return Some(tensor);
        }
        let tensor = match self.exprs.get(id).clone() {
            Expr::Input(position) => self.input(position, order),
            Expr::Causal { row, column, offset } => {
                let shape = self.shape(order, &[row, column]);
                (order == Order { row: Some(row), column: Some(column) })
                    .then(|| self.op(Op::Causal { shape, offset }, &[]))?
            }
            Expr::Unary(f, x) => self.elementwise(Op::Unary(f), &[x], order),
            Expr::Scale(c, x) => self.elementwise(Op::Scale(c), &[x], order),
            Expr::Offset(c, x) => self.elementwise(Op::Offset(c), &[x], order),
            Expr::Binary(f, a, b) => self.elementwise(Op::Binary(f), &[a, b], order),
            Expr::Reduce(f, over, x) => self.reduce((f, &over), x, order, asked),
            Expr::Contract(over, a, b) => self.matmul(*over.first()?, (a, b), order),
            Expr::RmsNorm(eps, over, x) => self.rms_norm(eps, &over, x, order),
            Expr::Rotate(label, group, x) => {
                let dim = self.slots(order).iter().position(|slot| *slot == Some(label))?;
                self.elementwise(Op::Rotate { dim, group }, &[x], order)
            }
            Expr::Spread(how, [whole, part], x) => self.spread(how, (whole, part), x, order),
            Expr::Concat(whole, parts, values) => self.concat(whole, &parts, values, order),
            Expr::Const(_) | Expr::Recip(_) | Expr::IsNan(_) => None,
        }?;
        if let Expr::Unary(UnaryFn::Exp, _) = self.exprs.get(id) {
            let labels = self.slots(order);
            self.exponentials.push(Exponential { value: id, tensor, labels });
        }
        self.emitted.insert((id, order), tensor);
        Some(tensor)
    }

    fn op(&mut self, op: Op, args: &[TensorId]) -> Option<TensorId> {
        let has_room = args.is_empty() || self.program.kernels() < self.max_ops;
        has_room.then(|| self.program.op(op, args).ok())?
    }

    fn elementwise(&mut self, op: Op, args: &[ExprId], order: Order) -> Option<TensorId> {
        let args: Vec<TensorId> = args.iter().map(|arg| self.emit(*arg, order)).collect::<Option<_>>()?;
        self.op(op, &args)
    }

    /// The label of each dimension.
    fn slots(&self, order: Order) -> Vec<Option<Label>> {
        self.batch.iter().copied().map(Some).chain([order.row, order.column]).collect()
    }

    fn shape(&self, order: Order, labels: &[Label]) -> Vec<usize> {
        let extent = |label: Option<Label>| match label.filter(|label| labels.contains(label)) {
            Some(label) => self.exprs.extents[&label],
            None => 1,
        };
        self.slots(order).into_iter().map(extent).collect()
    }

    fn input(&mut self, position: usize, order: Order) -> Option<TensorId> {
        let read = &self.reads[position];
        let stride = |label: &Option<Label>| label.and_then(|label| read.strides.get(&label)).copied();
        let strides = self.slots(order).iter().map(|label| stride(label).unwrap_or(0)).collect();
        let view = View { tensor: read.source, strides, offset: read.offset };
        let shape = self.shape(order, &read.strides.keys().copied().collect::<Vec<_>>());
        let known = self.inputs.iter().find(|(other, id)| *other == view && self.program.shape(*id) == shape);
        if let Some((_, id)) = known {
            return Some(*id);
        }
        let is_mask = self.graph.dtype(view.tensor) == DType::Bool;
        let kind = if is_mask { InputKind::Mask } else { InputKind::Real };
        // By number, so that equal parts of a model are one program.
        let id = self.program.input_of(format!("x{}", self.inputs.len()), kind, &shape);
        self.inputs.push((view, id));
        Some(id)
    }

    /// An input of a part of an index, spread to all of it.
    fn spread(
        &mut self,
        how: Spread,
        (whole, part): (Label, Label),
        x: ExprId,
        order: Order,
    ) -> Option<TensorId> {
        let dim = self.slots(order).iter().position(|slot| *slot == Some(whole))?;
        let x = self.emit(x, order.with(whole, part))?;
        match how {
            Spread::Again => self.op(Op::Concat { dim }, &[x, x]),
            Spread::Each => self.op(Op::Repeat { dim, times: 2 }, &[x]),
        }
    }

    /// Two values one after the other.
    fn concat(
        &mut self,
        whole: Label,
        parts: &[Vec<Label>; 2],
        values: [ExprId; 2],
        order: Order,
    ) -> Option<TensorId> {
        let dim = self.slots(order).iter().position(|slot| *slot == Some(whole))?;
        let mut joined = Vec::with_capacity(2);
        for (part, value) in parts.iter().zip(values) {
            let [part] = part[..] else { return None };
            joined.push(self.emit(value, order.with(whole, part))?);
        }
        self.op(Op::Concat { dim }, &joined)
    }

    /// What is reduced takes the place of what the result has not.
    fn reduce(
        &mut self,
        (f, over): (ReduceFn, &[Label]),
        x: ExprId,
        order: Order,
        asked: Order,
    ) -> Option<TensorId> {
        let mut inner = order;
        for &label in over.iter().filter(|label| !self.batch.contains(label)) {
            let is_row = inner.column.is_some() || asked.row == Some(label);
            let slot = if is_row { &mut inner.row } else { &mut inner.column };
            if slot.replace(label).is_some() {
                return None;
            }
        }
        let mut tensor = self.emit(x, inner)?;
        let slots = self.slots(inner);
        for label in over {
            let dim = slots.iter().position(|slot| *slot == Some(*label))?;
            tensor = self.op(Op::Reduce { f, dim, keep: 1 }, &[tensor])?;
        }
        Some(tensor)
    }

    /// A product, or that of the operands in the other order, whichever has the result's rows on its left.
    fn matmul(&mut self, over: Label, (a, b): (ExprId, ExprId), order: Order) -> Option<TensorId> {
        let side = |id: ExprId| {
            let labels = self.exprs.labels(id).iter();
            let mut own = labels.filter(|label| **label != over && !self.batch.contains(label));
            own.next().copied()
        };
        let fits =
            |rows: Option<Label>, columns: Option<Label>| order == Order { row: rows, column: columns };
        let (lhs, rhs) = if fits(side(a), side(b)) {
            (a, b)
        } else if fits(side(b), side(a)) {
            (b, a)
        } else {
            return None;
        };
        let lhs = self.emit(lhs, Order { row: order.row, column: Some(over) })?;
        let rhs = self.emit(rhs, Order { row: Some(over), column: order.column })?;
        self.op(Op::Matmul, &[lhs, rhs])
    }

    /// A norm along the columns is an operator; along other dimensions it is spelled out.
    fn rms_norm(&mut self, eps: Rational, over: &[Label], x: ExprId, order: Order) -> Option<TensorId> {
        let [label] = over[..] else { return None };
        if order.column == Some(label) {
            return self.elementwise(Op::RmsNorm { eps }, &[x], order);
        }
        let count = Rational::one_over(self.exprs.extents[&label])?;
        let square = self.exprs.unary(UnaryFn::Square, x)?;
        let sum = self.exprs.reduce(ReduceFn::Sum, over, square)?;
        let mean = self.exprs.scale(count, sum)?;
        let mean = self.exprs.offset(eps, mean)?;
        let root = self.exprs.unary(UnaryFn::Sqrt, mean)?;
        let quotient = self.exprs.add_expr(Expr::Binary(BinaryFn::Div, x, root));
        self.emit(quotient, order)
    }
}
