//! Passes over tiles: loops over all dimensions but one, along which elements go through vectors.

use super::element::TileView;
use super::extent::Extent;
use super::{CpuBlockEmitter, inner_dim};
use crate::op::ReduceFn;
use orch_compute::expr::Exprs;
use orch_compute::{BufferId, Expr, ExprId, Type, VarId, substitute};
use orch_ir::{DType, ReduceOp};
use orch_thread::{LoopKind, Stmt, Vectorizer, Widening};
use rustc_hash::FxHashMap;

/// The elements of a tile, one after the other.
pub(super) struct Walk {
    /// The index of an element.
    pub index: Vec<ExprId>,
    /// The dimension along which vectors lie, unless there is one element only.
    pub inner: Option<Inner>,
    /// Loops over the other dimensions, outermost first.
    loops: Vec<(VarId, ExprId)>,
}

/// The dimension along which vectors lie.
#[derive(Clone, Copy)]
pub(super) struct Inner {
    pub dim: usize,
    pub var: VarId,
    pub full: usize,
    pub len: ExprId,
}

/// A tile that a pass stores.
pub(super) struct Write {
    /// The memory.
    pub buffer: BufferId,
    /// The place of an element.
    pub place: ExprId,
    /// The distance to the next one along the vectors.
    pub stride: usize,
    /// What is stored.
    pub value: ExprId,
}

/// A combination of all elements along the vectors.
pub(super) struct Fold {
    /// How.
    pub f: ReduceFn,
    /// The elements.
    pub value: ExprId,
    /// Of accumulators, what they are multiplied by.
    pub times: Option<ExprId>,
    /// What was there before.
    pub before: Option<ExprId>,
    /// Where the result goes.
    pub into: (BufferId, ExprId),
}

/// Which elements a vector has.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    /// The first.
    pub base: ExprId,
    /// How many steps of the unit.
    pub count: usize,
    /// Those of the last step that count, if not all.
    pub mask: Option<ExprId>,
}

/// A range that is cut into pieces: as many of the first size as there are, then of the next, and a masked rest.
pub(super) struct Cut<'a> {
    /// Readable name of the position.
    pub name: &'a str,
    /// The largest length.
    pub full: usize,
    /// The length.
    pub len: ExprId,
    /// Elements of a step.
    pub unit: usize,
    /// Steps per piece, falling.
    pub counts: &'a [usize],
    /// Whether what is left after the pieces of the first size is one piece, if the length is constant.
    pub joins_rest: bool,
}

/// Vectors in flight when elements are combined.
const ACCUMULATORS: usize = 4;

impl CpuBlockEmitter<'_> {
    /// The elements of a shape, vectors along a dimension.
    pub fn walk_along(&mut self, shape: &[Extent], inner: Option<usize>) -> Walk {
        let mut walk = Walk { index: Vec::new(), inner: None, loops: Vec::new() };
        for (dim, extent) in shape.iter().enumerate() {
            if extent.is_one() {
                walk.index.push(self.program.exprs.index(0));
                continue;
            }
            let len = self.len(&extent.len);
            let (var, at) = self.program.exprs.fresh_index(format!("i{dim}"), extent.full);
            walk.index.push(at);
            if inner == Some(dim) {
                walk.inner = Some(Inner { dim, var, full: extent.full, len });
            } else {
                walk.loops.push((var, len));
            }
        }
        walk
    }

    /// The elements of a shape, vectors along its last dimension of more than one element.
    pub fn walk(&mut self, shape: &[Extent]) -> Walk {
        self.walk_along(shape, inner_dim(shape))
    }

    /// What a pass over a walk stores to a view.
    pub fn write(&mut self, walk: &Walk, view: &TileView, value: ExprId) -> Write {
        let place = self.place(view, &walk.index);
        let stride = walk.inner.map_or(1, |inner| view.strides[inner.dim]);
        let value = self.program.exprs.cast(view.dtype, value);
        Write { buffer: view.buffer, place, stride, value }
    }

    /// The loops of a walk around statements.
    pub fn around(&mut self, walk: &Walk, body: Vec<Stmt>) -> Vec<Stmt> {
        let zero = self.program.exprs.index(0);
        walk.loops.iter().rev().fold(body, |body, &(var, end)| {
            vec![Stmt::For { var, start: zero, end, step: 1, kind: LoopKind::Serial, body }]
        })
    }

    /// A pass: stores, and combinations along the vectors.
    pub fn pass(&mut self, walk: &Walk, writes: Vec<Write>, folds: Vec<Fold>) -> Vec<Stmt> {
        let body = match walk.inner {
            None => self.single(writes, folds),
            Some(inner) => self.row(inner, writes, folds),
        };
        self.around(walk, body)
    }

    /// Stores of single elements.
    fn single(&mut self, writes: Vec<Write>, folds: Vec<Fold>) -> Vec<Stmt> {
        let mut body = Vec::new();
        let mut stores = Vec::new();
        for write in writes {
            let value = self.bind_value("x", write.value, &mut body);
            stores.push(Stmt::Store { buffer: write.buffer, offset: write.place, value, mask: None });
        }
        for fold in folds {
            let exprs = &mut self.program.exprs;
            let value = fold.times.map_or(fold.value, |times| exprs.mul(fold.value, times));
            stores.push(self.store_fold(&fold, value));
        }
        body.extend(stores);
        body
    }

    /// One line of vectors.
    fn row(&mut self, inner: Inner, mut writes: Vec<Write>, mut folds: Vec<Fold>) -> Vec<Stmt> {
        let mut out = Vec::new();
        let together = if folds.is_empty() { 1 } else { ACCUMULATORS.min(inner.full.div_ceil(self.lanes)) };
        let accumulators: Vec<Vec<VarId>> =
            folds.iter().map(|fold| self.accumulators(fold.f, together, &mut out)).collect();
        let mut line = Vec::new();
        let values = writes.iter_mut().map(|write| &mut write.value);
        let folded =
            folds.iter_mut().flat_map(|fold| std::iter::once(&mut fold.value).chain(&mut fold.times));
        self.hoist(values.chain(folded).collect(), inner.var, &mut line);
        let counts: &[usize] = if together > 1 { &[together, 1] } else { &[1] };
        let cut =
            Cut { name: "at", full: inner.full, len: inner.len, unit: self.lanes, counts, joins_rest: false };
        line.extend(self.cut(&cut, &mut |ctx, lane| {
            let mut body = Vec::new();
            for number in 0..lane.count {
                let lane = lane.step(&mut ctx.program.exprs, number, ctx.lanes);
                ctx.vector(inner.var, lane, (&writes, &folds), (&accumulators, number), &mut body);
            }
            body
        }));
        out.extend(self.unless_empty(inner.len, line));
        for (fold, registers) in folds.iter().zip(&accumulators) {
            let value = self.combined(fold.f, registers);
            let value = self.bind_value("all", value, &mut out);
            out.push(self.store_fold(fold, value));
        }
        out
    }

    /// Statements of a line, which load nothing if it is empty.
    fn unless_empty(&mut self, len: ExprId, line: Vec<Stmt>) -> Vec<Stmt> {
        let zero = self.program.exprs.index(0);
        let condition = self.program.exprs.gt(len, zero);
        match self.program.exprs.as_bool(condition) {
            Some(true) => line,
            Some(false) => Vec::new(),
            None => vec![Stmt::If { condition, then: line, otherwise: Vec::new() }],
        }
    }

    /// One vector of a line.
    fn vector(
        &mut self,
        var: VarId,
        lane: Lane,
        (writes, folds): (&[Write], &[Fold]),
        (accumulators, number): (&[Vec<VarId>], usize),
        body: &mut Vec<Stmt>,
    ) {
        let lanes = self.lanes;
        let widening = Widening { mask: lane.mask, ..Widening::new(var, lane.base, lanes) };
        let mut vectorizer = Vectorizer::new(&mut self.program.exprs, &widening);
        // What is stored may be what is folded.
        let mut bound: FxHashMap<ExprId, ExprId> = FxHashMap::default();
        let mut widen = |ctx: &mut Self, name: &str, value: ExprId, body: &mut Vec<Stmt>| {
            let wide = vectorizer.widen(&mut ctx.program.exprs, &mut ctx.simplifier, value);
            let wide = ctx.program.exprs.splat(wide, lanes);
            *bound.entry(wide).or_insert_with(|| ctx.bind_value(name, wide, body))
        };
        let values: Vec<ExprId> = writes.iter().map(|write| widen(self, "x", write.value, body)).collect();
        for (fold, registers) in folds.iter().zip(accumulators) {
            let value = widen(self, "y", fold.value, body);
            let times = fold.times.map(|times| widen(self, "z", times, body));
            let sum = self.program.exprs.var(registers[number]);
            let next = self.combine(fold.f, (value, times), sum, lane.mask);
            body.push(Stmt::Assign(registers[number], next));
        }
        for (write, value) in writes.iter().zip(values) {
            let offset = self.wide_place(write, var, lane);
            let mask = lane.mask.map(|mask| self.program.exprs.splat(mask, lanes));
            body.push(Stmt::Store { buffer: write.buffer, offset, value, mask });
        }
    }

    /// Where a vector is stored: at consecutive places, or at each its own.
    fn wide_place(&mut self, write: &Write, var: VarId, lane: Lane) -> ExprId {
        let place = substitute(&mut self.program.exprs, write.place, &[(var, lane.base)]);
        let place = self.simplify(place);
        if write.stride == 1 {
            return place;
        }
        self.program.exprs.ramp(place, write.stride as i64, self.lanes)
    }

    /// The vector that a pass stores, its place and its mask.
    pub fn widened(&mut self, write: &Write, var: VarId, lane: Lane) -> (ExprId, ExprId, Option<ExprId>) {
        let widening = Widening { mask: lane.mask, ..Widening::new(var, lane.base, self.lanes) };
        let mut vectorizer = Vectorizer::new(&mut self.program.exprs, &widening);
        let value = vectorizer.widen(&mut self.program.exprs, &mut self.simplifier, write.value);
        let value = self.program.exprs.splat(value, self.lanes);
        (value, self.wide_place(write, var, lane), lane.mask)
    }

    /// An accumulator after one more vector.
    fn combine(
        &mut self,
        f: ReduceFn,
        (value, times): (ExprId, Option<ExprId>),
        sum: ExprId,
        mask: Option<ExprId>,
    ) -> ExprId {
        let neutral = self.neutral(f);
        let exprs = &mut self.program.exprs;
        let masked = mask.map_or(value, |mask| exprs.select(mask, value, neutral));
        match (f, times) {
            (ReduceFn::Max, _) => exprs.max(sum, masked),
            (ReduceFn::Sum, None) => exprs.add2(sum, masked),
            (ReduceFn::Sum, Some(times)) => {
                let times = mask.map_or(times, |mask| exprs.select(mask, times, neutral));
                exprs.fma(masked, times, sum)
            }
        }
    }

    /// What combines to nothing.
    pub fn neutral(&mut self, f: ReduceFn) -> ExprId {
        self.constant(match f {
            ReduceFn::Sum => 0.0,
            ReduceFn::Max => f64::NEG_INFINITY,
        })
    }

    fn accumulators(&mut self, f: ReduceFn, count: usize, out: &mut Vec<Stmt>) -> Vec<VarId> {
        let neutral = self.neutral(f);
        let start = self.program.exprs.splat(neutral, self.lanes);
        let ty = Type::vector(DType::F32, self.lanes);
        let mut declare = |_| {
            let register = self.program.exprs.declare_register("acc", ty);
            out.push(Stmt::Register(register, start));
            register
        };
        (0..count).map(&mut declare).collect()
    }

    /// All lanes of all accumulators together.
    fn combined(&mut self, f: ReduceFn, registers: &[VarId]) -> ExprId {
        let exprs = &mut self.program.exprs;
        let mut values: Vec<ExprId> = registers.iter().map(|&register| exprs.var(register)).collect();
        while let [first, second, ..] = values[..] {
            let both = match f {
                ReduceFn::Sum => exprs.add2(first, second),
                ReduceFn::Max => exprs.max(first, second),
            };
            values.drain(..2);
            values.push(both);
        }
        let op = match f {
            ReduceFn::Sum => ReduceOp::Sum,
            ReduceFn::Max => ReduceOp::Max,
        };
        exprs.reduce_lanes(op, values[0])
    }

    fn store_fold(&mut self, fold: &Fold, value: ExprId) -> Stmt {
        let exprs = &mut self.program.exprs;
        let value = fold.before.map_or(value, |before| exprs.add2(before, value));
        let (buffer, offset) = fold.into;
        Stmt::Store { buffer, offset, value, mask: None }
    }

    /// Names what a line loads once: the largest parts of values that do not change along a variable.
    fn hoist(&mut self, values: Vec<&mut ExprId>, var: VarId, out: &mut Vec<Stmt>) {
        let mut hoister = Hoister {
            var,
            done: FxHashMap::default(),
            varies: FxHashMap::default(),
            names: FxHashMap::default(),
        };
        for value in values {
            let simple = self.simplify(*value);
            *value = hoister.root(self, simple, out);
        }
    }

    /// Pieces of a range.
    pub fn cut(&mut self, cut: &Cut<'_>, body: &mut dyn FnMut(&mut Self, Lane) -> Vec<Stmt>) -> Vec<Stmt> {
        match self.program.exprs.as_int(cut.len) {
            Some(len) => self.cut_fixed(cut, len as usize, body),
            None => self.cut_open(cut, body),
        }
    }

    fn cut_fixed(
        &mut self,
        cut: &Cut<'_>,
        len: usize,
        body: &mut dyn FnMut(&mut Self, Lane) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let mut out = Vec::new();
        let mut from = 0;
        let counts = if cut.joins_rest { &cut.counts[..1] } else { cut.counts };
        for &count in counts {
            let step = cut.unit * count;
            let pieces = (len - from) / step;
            let past = from + pieces * step;
            let ends = [from, past].map(|end| self.program.exprs.index(end as i64));
            match pieces {
                0 => {}
                1 => out.extend(body(self, Lane { base: ends[0], count, mask: None })),
                _ => out.push(self.pieces(cut, (ends[0], ends[1], past), count, body)),
            }
            from = past;
        }
        if from < len {
            let (base, end) = (self.program.exprs.index(from as i64), self.program.exprs.index(len as i64));
            out.extend(self.rest(cut, (base, end), (len - from).div_ceil(cut.unit), body));
        }
        out
    }

    fn cut_open(&mut self, cut: &Cut<'_>, body: &mut dyn FnMut(&mut Self, Lane) -> Vec<Stmt>) -> Vec<Stmt> {
        let mut out = Vec::new();
        let mut from = self.program.exprs.index(0);
        for &count in cut.counts.iter().filter(|&&count| count * cut.unit <= cut.full) {
            let step = cut.unit * count;
            let size = self.program.exprs.index(step as i64);
            let rest = self.program.exprs.sub(cut.len, from);
            let pieces = self.program.exprs.floor_div(rest, size);
            let covered = self.program.exprs.mul_const(pieces, step as i64);
            let past = self.program.exprs.add2(from, covered);
            let past = self.bind("past", past, cut.full + 1, &mut out);
            out.push(self.pieces(cut, (from, past, cut.full), count, body));
            from = past;
        }
        if cut.unit > 1 {
            let inside = self.rest(cut, (from, cut.len), 1, body);
            let condition = self.program.exprs.lt(from, cut.len);
            out.push(Stmt::If { condition, then: inside, otherwise: Vec::new() });
        }
        out
    }

    /// The loop over pieces of one size.
    fn pieces(
        &mut self,
        cut: &Cut<'_>,
        (start, end, past): (ExprId, ExprId, usize),
        count: usize,
        body: &mut dyn FnMut(&mut Self, Lane) -> Vec<Stmt>,
    ) -> Stmt {
        let var = self.program.exprs.declare_index(cut.name, past);
        self.program.exprs.set_multiple_of(var, cut.unit as i64);
        let base = self.program.exprs.var(var);
        let body = body(self, Lane { base, count, mask: None });
        Stmt::For { var, start, end, step: (cut.unit * count) as i64, kind: LoopKind::Serial, body }
    }

    /// The last elements: so many steps, of which the last may have fewer elements than others.
    fn rest(
        &mut self,
        cut: &Cut<'_>,
        (base, end): (ExprId, ExprId),
        count: usize,
        body: &mut dyn FnMut(&mut Self, Lane) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let exprs = &mut self.program.exprs;
        let last = exprs.add_const(base, ((count - 1) * cut.unit) as i64);
        let positions = exprs.ramp(last, 1, cut.unit);
        let mask = exprs.lt(positions, end);
        let mask = self.simplify(mask);
        let mask = (self.program.exprs.as_bool(mask) != Some(true)).then_some(mask);
        body(self, Lane { base, count, mask })
    }
}

impl Lane {
    /// The elements of one step, `unit` elements each.
    pub fn step(self, exprs: &mut Exprs, number: usize, unit: usize) -> Lane {
        let base = exprs.add_const(self.base, (number * unit) as i64);
        Lane { base, count: 1, mask: self.mask.filter(|_| number + 1 == self.count) }
    }
}

/// Finds and names parts of expressions that do not change along a variable.
struct Hoister {
    var: VarId,
    done: FxHashMap<ExprId, ExprId>,
    /// Whether an expression changes, and whether it loads.
    varies: FxHashMap<ExprId, (bool, bool)>,
    names: FxHashMap<ExprId, ExprId>,
}

impl Hoister {
    fn root(&mut self, ctx: &mut CpuBlockEmitter<'_>, root: ExprId, out: &mut Vec<Stmt>) -> ExprId {
        for id in ctx.program.exprs.reachable(&[root]) {
            if self.done.contains_key(&id) {
                continue;
            }
            let node = ctx.program.exprs.get(id).clone();
            let (mut varies, mut loads) = (node == Expr::Var(self.var), matches!(node, Expr::Load { .. }));
            let _ = node.map_operands(|operand| {
                let (of_varies, of_loads) = self.varies[&operand];
                varies |= of_varies;
                loads |= of_loads;
                operand
            });
            self.varies.insert(id, (varies, loads));
            let new = if varies {
                let moved = node.map_operands(|operand| self.operand(ctx, operand, out));
                ctx.program.exprs.rebuild(moved)
            } else {
                id
            };
            self.done.insert(id, new);
        }
        self.operand(ctx, root, out)
    }

    /// An operand of what changes: as it is, rebuilt, or named.
    fn operand(&mut self, ctx: &mut CpuBlockEmitter<'_>, id: ExprId, out: &mut Vec<Stmt>) -> ExprId {
        match self.varies[&id] {
            (false, true) => {
                if let Some(&name) = self.names.get(&id) {
                    return name;
                }
                let name = ctx.bind_value("one", id, out);
                self.names.insert(id, name);
                name
            }
            _ => self.done[&id],
        }
    }
}
