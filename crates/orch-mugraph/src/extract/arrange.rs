//! From index notation to a program: labels that always occur together are merged, and each value gets an order of
//! dimensions.
//!
//! All tensors of a program have the same number of dimensions, `[batch labels, row, column]`. The batch labels are the
//! same everywhere; each operator needs certain labels as row and column, for example `[m, k] x [k, n]` for a product.
//! Inputs are strided views, which can have any order, so programs need no transposition.

use super::expr::{Doubling, Expr, ExprId, Exprs};
use super::index::Label;
use super::translate::{Read, Translated};
use super::{RegionLimits, View};
use crate::graph::{InputKind, MuGraph, TensorId};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use orch_ir::{DType, PrimGraph};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A program, with views of its inputs and of its output in the primitive graph.
pub(super) struct Arranged {
    pub(super) program: MuGraph,
    pub(super) inputs: Vec<View>,
    /// Strides of the program's output in the primitive tensor, in elements, for each dimension.
    pub(super) output: Vec<usize>,
    /// Every exponential of the program.
    pub(super) exponentials: Vec<Exponential>,
}

/// Operators of a rotary position embedding, those that double its angles not counted.
const ROTARY_OPS: usize = 4;

/// The tensor of an exponential.
pub(super) struct Exponential {
    pub(super) value: ExprId,
    pub(super) tensor: TensorId,
    /// The label of each dimension; `None` for an extent of 1.
    pub(super) labels: Vec<Option<Label>>,
}

/// All subexpressions of a value, itself included.
pub(super) fn reachable(exprs: &Exprs, root: ExprId) -> BTreeSet<ExprId> {
    let (mut seen, mut pending) = (BTreeSet::new(), vec![root]);
    while let Some(id) = pending.pop() {
        if seen.insert(id) {
            pending.extend(exprs.get(id).operands());
        }
    }
    seen
}

/// Merges pairs of labels that are contiguous in every view and occur together in every expression. Inputs with only
/// one of two labels, of which the other counts the elements of a rotation's pairs, are angles: they are doubled.
pub(super) fn join_labels(translated: &mut Translated) {
    while let Some(pair) = pair_to_join(translated) {
        let LabelPair { outer, inner } = pair;
        for id in reachable(&translated.exprs, translated.root) {
            let Some(how) = missing_doubling(&translated.exprs, id, pair) else { continue };
            let part = match how {
                Doubling::Concat => inner,
                Doubling::Repeat => outer,
            };
            // The merged label will have the name of the inner one.
            double_input(translated, id, how, inner, part);
        }
        translated.exprs.join(outer, inner);
        for read in &mut translated.reads {
            read.strides.remove(&outer);
        }
        translated.output.remove(&outer);
    }
}

/// Two labels that may be merged.
#[derive(Clone, Copy, Debug)]
struct LabelPair {
    outer: Label,
    inner: Label,
}

/// How an input that has only one of two labels is doubled to have both, if the missing label has an extent of 2.
fn missing_doubling(exprs: &Exprs, id: ExprId, LabelPair { outer, inner }: LabelPair) -> Option<Doubling> {
    let Expr::Input(_) = exprs.get(id) else { return None };
    match [outer, inner].map(|label| exprs.labels(id).contains(&label)) {
        [false, true] if exprs.extents[&outer] == 2 => Some(Doubling::Concat),
        [true, false] if exprs.extents[&inner] == 2 => Some(Doubling::Repeat),
        _ => None,
    }
}

/// Doubles an input along `part` to the label `whole`.
fn double_input(translated: &mut Translated, id: ExprId, how: Doubling, whole: Label, part: Label) {
    let Expr::Input(position) = *translated.exprs.get(id) else { return };
    let name = translated.exprs.double_input(how, whole, part, id);
    let strides = &mut translated.reads[position].strides;
    if let Some(stride) = strides.remove(&part) {
        strides.insert(name, stride);
    }
}

/// Two labels that can be merged: both or neither occur wherever labels are named, except in inputs that are doubled,
/// and in every view the stride of the outer one is the extent times the stride of the inner one.
fn pair_to_join(translated: &Translated) -> Option<LabelPair> {
    let exprs = &translated.exprs;
    let used = reachable(exprs, translated.root);
    let labels: BTreeSet<Label> = used.iter().flat_map(|id| exprs.labels(*id).iter().copied()).collect();
    let is_rotated =
        |label: Label| used.iter().any(|id| matches!(exprs.get(*id), Expr::Rotate(own, ..) if *own == label));
    let is_doubled = |id: ExprId, outer, inner| match missing_doubling(exprs, id, LabelPair { outer, inner })
    {
        Some(Doubling::Concat) => is_rotated(outer),
        Some(Doubling::Repeat) => is_rotated(inner),
        None => false,
    };
    let together = |outer: Label, inner: Label| {
        used.iter().filter(|id| !is_doubled(**id, outer, inner)).all(|id| {
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
                Expr::Input(position) if !is_doubled(*id, outer, inner) => {
                    Some(&translated.reads[*position].strides)
                }
                _ => None,
            });
            let mut views = reads.chain([&translated.output]);
            if together(outer, inner) && views.all(|strides| compose(strides, outer, inner)) {
                return Some(LabelPair { outer, inner });
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
        Expr::Doubled { .. } | Expr::Concat(..) => 1,
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
    // A batch label that a reduction sums is not one of the result: that dimension has an extent of 1.
    let stride = |label: Option<Label>| label.and_then(|label| output.get(&label)).copied().unwrap_or(0);
    let strides = emitter.slots(order).into_iter().map(stride);
    Some(Arranged {
        output: strides.collect(),
        program: emitter.program,
        inputs: emitter.inputs.into_iter().map(|(view, _)| view).collect(),
        exponentials: emitter.exponentials,
    })
}

/// Labels that have a dimension of their own in all tensors, outermost first: those that both operands of a product
/// have, and as many others as are needed for every other value to have two labels at most, its row and column. `None`
/// if a label that a product sums would be one.
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
    // The non-batch labels of a value that has too many: more than one beside the summed one for an operand of a
    // product.
    let excess = |batch: &BTreeSet<Label>| {
        let limits = used.iter().flat_map(|id| match exprs.get(*id) {
            Expr::Contract(_, a, b) => vec![(*a, 1), (*b, 1)],
            _ => vec![(*id, 2)],
        });
        let mut found = limits.filter_map(|(id, most)| {
            let is_summed = |label: &Label| most == 1 && summed.contains(label);
            let labels = exprs.labels(id).iter().filter(|label| !batch.contains(*label) && !is_summed(label));
            let labels: Vec<Label> = labels.copied().collect();
            (labels.len() > most).then_some(labels)
        });
        found.next()
    };
    while let Some(labels) = excess(&batch) {
        let candidates = labels.into_iter().filter(|label| !summed.contains(label));
        batch.insert(candidates.max_by_key(rank)?);
    }
    let mut ordered: Vec<Label> = batch.iter().copied().collect();
    ordered.sort_by_key(|label| Reverse(rank(label)));
    summed.is_disjoint(&batch).then_some(ordered)
}

/// The labels of a tensor's rows and columns; `None` for an extent of 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Order {
    row: Option<Label>,
    column: Option<Label>,
}

impl Order {
    /// This order with `label` replaced by `other`.
    fn with(self, label: Label, other: Label) -> Order {
        let swapped = |own: Option<Label>| if own == Some(label) { Some(other) } else { own };
        Order { row: swapped(self.row), column: swapped(self.column) }
    }
}

/// Emits the operators of a program.
struct Emitter<'a> {
    graph: &'a PrimGraph,
    exprs: Exprs,
    reads: Vec<Read>,
    batch: Vec<Label>,
    program: MuGraph,
    /// Views of stored tensors, and the inputs of the program that read them.
    inputs: Vec<(View, TensorId)>,
    /// The tensor of each value in each order that was needed.
    emitted: BTreeMap<(ExprId, Order), TensorId>,
    exponentials: Vec<Exponential>,
    max_ops: usize,
}

impl Emitter<'_> {
    /// The tensor of a value in the order `wanted`, whose labels the value need not have. `None` if the value has other
    /// labels, or an operator cannot give this order.
    fn emit(&mut self, id: ExprId, wanted: Order) -> Option<TensorId> {
        let labels = self.exprs.labels(id);
        let own = |label: Option<Label>| label.filter(|label| labels.contains(label));
        let order = Order { row: own(wanted.row), column: own(wanted.column) };
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
            Expr::Reduce(f, over, x) => self.reduce((f, &over), x, order, wanted),
            Expr::Contract(over, a, b) => self.matmul(*over.first()?, (a, b), order),
            Expr::RmsNorm(eps, over, x) => self.rms_norm(eps, &over, x, order),
            Expr::Rotate(label, group, x) => {
                let dim = self.slots(order).iter().position(|slot| *slot == Some(label))?;
                self.elementwise(Op::Rotate { dim, group }, &[x], order)
            }
            Expr::Doubled { how, whole, part, x } => {
                let dim = self.slots(order).iter().position(|slot| *slot == Some(whole))?;
                let x = self.emit(x, order.with(whole, part))?;
                match how {
                    Doubling::Concat => self.op(Op::Concat { dim }, &[x, x]),
                    Doubling::Repeat => self.op(Op::Repeat { dim, times: 2 }, &[x]),
                }
            }
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

    /// An operator; `None` beyond the limit of operators, or if its shapes do not fit.
    fn op(&mut self, op: Op, args: &[TensorId]) -> Option<TensorId> {
        let has_room = args.is_empty() || self.program.kernels() < self.max_ops;
        has_room.then(|| self.program.op(op, args).ok())?
    }

    fn elementwise(&mut self, op: Op, args: &[ExprId], order: Order) -> Option<TensorId> {
        let args: Vec<TensorId> = args.iter().map(|arg| self.emit(*arg, order)).collect::<Option<_>>()?;
        self.op(op, &args)
    }

    /// The label of each dimension, `[batch labels, row, column]`; `None` for an extent of 1.
    fn slots(&self, order: Order) -> Vec<Option<Label>> {
        self.batch.iter().copied().map(Some).chain([order.row, order.column]).collect()
    }

    /// The shape of a tensor in this order that depends on `labels`.
    fn shape(&self, order: Order, labels: &[Label]) -> Vec<usize> {
        let extent = |label: Option<Label>| match label.filter(|label| labels.contains(label)) {
            Some(label) => self.exprs.extents[&label],
            None => 1,
        };
        self.slots(order).into_iter().map(extent).collect()
    }

    /// The input that views a read in this order.
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
        // Inputs are named by number, so that regions that compute the same are equal programs.
        let id = self.program.input_of(format!("x{}", self.inputs.len()), kind, &shape);
        self.inputs.push((view, id));
        Some(id)
    }

    /// Two values concatenated along the label `whole`; each has one label of its own in its place.
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

    /// A reduction. Each reduced label that is no batch label takes the row or the column that the result does not
    /// have: the row if the result has a column, or if the caller has this label as its row.
    fn reduce(
        &mut self,
        (f, over): (ReduceFn, &[Label]),
        x: ExprId,
        order: Order,
        wanted: Order,
    ) -> Option<TensorId> {
        let mut inner = order;
        for &label in over.iter().filter(|label| !self.batch.contains(label)) {
            let is_row = inner.column.is_some() || wanted.row == Some(label);
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

    /// A product `[row, over] x [over, column]` over the label `over`. The operand that has the result's row label is
    /// the left one.
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

    /// A norm along the columns is one operator; along another dimension it is a quotient by a root mean square.
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
