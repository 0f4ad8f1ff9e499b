//! OperandPrecision in shared memory.

use super::lower::AttentionEmitter;
use crate::gpu::cta::{CtaEmitter, cp_async_source, lanes_in_bounds, zero_unless};
use orch_compute::expr::{BufferId, ExprId, Type, VarId};
use orch_thread::cta::{CtaStmt, Location, WARP};
use orch_thread::program::{Scope, Stmt};
use orch_thread::vectorize::{LoadCounts, Widening, vectorize};

/// Elements of an access, and of padding between lines.
const LANES: usize = 8;

/// One factor, as lines of neighbouring elements.
#[derive(Debug)]
pub(super) struct Tile {
    pub buffer: BufferId,
    /// Whether terms (or columns) are neighbours, instead of rows (or keys).
    pub along_inner: bool,
    /// Elements between lines.
    pub stride: usize,
    value: ExprId,
    /// Axes in the outer and the inner direction of `[outer][inner]`, extents and padded extents.
    outer: Direction,
    inner: Direction,
    is_copied: bool,
}

#[derive(Clone, Debug)]
struct Direction {
    axes: Vec<VarId>,
    /// Position of the tile's first element.
    first: ExprId,
    extent: usize,
    padded: usize,
}

impl Tile {
    /// `[row][term]`.
    pub fn of_queries(emitter: &mut AttentionEmitter<'_>, value: ExprId) -> Self {
        let (first, sizes) = (emitter.first_row, emitter.sizes);
        let rows = (emitter.form.rows.clone(), first, sizes.rows, emitter.task_rows());
        Self::new(emitter, "q", value, rows, (emitter.form.terms.clone(), sizes.terms, sizes.padded_terms()))
    }

    /// `[key][term]`.
    pub fn of_keys(emitter: &mut AttentionEmitter<'_>, value: ExprId) -> Self {
        let (zero, sizes) = (emitter.program.exprs.index(0), emitter.sizes);
        let keys = (emitter.form.keys.clone(), zero, sizes.keys, emitter.padded_keys());
        Self::new(emitter, "k", value, keys, (emitter.form.terms.clone(), sizes.terms, sizes.padded_terms()))
    }

    /// `[key][column]`.
    pub fn of_values(emitter: &mut AttentionEmitter<'_>, value: ExprId) -> Self {
        let (zero, sizes) = (emitter.program.exprs.index(0), emitter.sizes);
        let keys = (emitter.form.keys.clone(), zero, sizes.keys, emitter.padded_keys());
        let columns = (emitter.form.columns.clone(), sizes.columns, sizes.padded_columns());
        Self::new(emitter, "v", value, keys, columns)
    }

    fn new(
        emitter: &mut AttentionEmitter<'_>,
        name: &str,
        value: ExprId,
        (axes, first, extent, padded): (Vec<VarId>, ExprId, usize, usize),
        inner: (Vec<VarId>, usize, usize),
    ) -> Self {
        let zero = emitter.program.exprs.index(0);
        let typed = emitter.source.cast(emitter.product.dtype(), value);
        let outer = Direction { axes, first, extent, padded };
        let inner = Direction { axes: inner.0, first: zero, extent: inner.1, padded: inner.2 };
        let mut tile = Self {
            buffer: BufferId::new(0),
            along_inner: true,
            stride: 0,
            value: typed,
            outer,
            inner,
            is_copied: false,
        };
        let ways = [true, false];
        let copied = ways.into_iter().find(|&along_inner| tile.is_copy(emitter, along_inner));
        tile.is_copied = copied.is_some();
        tile.along_inner = copied.unwrap_or_else(|| {
            let gathers = |emitter: &mut AttentionEmitter<'_>, along_inner| {
                let value = tile.probe(emitter, along_inner);
                LoadCounts::of(&emitter.program.exprs, value).gathers
            };
            gathers(emitter, true) <= gathers(emitter, false)
        });
        let (lines, line) = tile.lines();
        tile.stride = line + LANES;
        let elems = lines * tile.stride;
        tile.buffer =
            emitter.add_buffer(&format!("{name}_tile"), emitter.product.dtype(), elems, Scope::Shared);
        tile
    }

    /// Lines, and elements of a line.
    fn lines(&self) -> (usize, usize) {
        match self.along_inner {
            true => (self.outer.padded, self.inner.padded),
            false => (self.inner.padded, self.outer.padded),
        }
    }

    /// The place of element `[outer][inner]`.
    pub fn place(&self, emitter: &mut AttentionEmitter<'_>, outer: ExprId, inner: ExprId) -> Location {
        let place = if self.along_inner { [outer, inner] } else { [inner, outer] };
        Location {
            buffer: self.buffer,
            offset: emitter.program.exprs.linear_index(&place, &[self.stride, 1]),
        }
    }

    /// Statements that fill the tile; zeros beyond the factor's end.
    pub fn fill(&self, emitter: &mut AttentionEmitter<'_>) -> Vec<Stmt> {
        let threads = WARP * emitter.schedule.warps();
        let (lines, line) = self.lines();
        let across = line / LANES;
        let count = lines * across;
        let rounds = count.div_ceil(threads);
        vec![emitter.unrolled("round", rounds, |emitter, round| {
            let exprs = &mut emitter.program.exprs;
            let before = exprs.mul_const(round, threads as i64);
            let chunk = exprs.add2(before, emitter.thread);
            let mut body = Vec::new();
            let chunk = emitter.bind(&mut body, "chunk", chunk, (rounds * threads).max(2));
            let exprs = &mut emitter.program.exprs;
            let last = exprs.index(count as i64 - 1);
            let inside = exprs.index(count as i64);
            let exists = exprs.lt(chunk, inside);
            let place = if count.is_multiple_of(threads) { chunk } else { exprs.min(chunk, last) };
            let parts = exprs.unflatten(place, &[lines, across]);
            let at = exprs.mul_const(parts[1], LANES as i64);
            let line_at = emitter.bind(&mut body, "line", parts[0], lines);
            let at = emitter.bind_multiple(&mut body, "at", at, (line, LANES));
            let moves = self.chunk(emitter, line_at, at);
            match count.is_multiple_of(threads) {
                true => body.extend(moves),
                false => body.push(Stmt::If { condition: exists, then: moves, otherwise: Vec::new() }),
            }
            body
        })]
    }

    fn chunk(&self, emitter: &mut AttentionEmitter<'_>, line: ExprId, at: ExprId) -> Vec<Stmt> {
        let (outer, inner) = if self.along_inner { (line, at) } else { (at, line) };
        let to = self.place(emitter, outer, inner);
        let exprs = &mut emitter.program.exprs;
        let (outer, inner) = (exprs.add2(self.outer.first, outer), exprs.add2(self.inner.first, inner));
        let limits = (exprs.index(self.outer.extent as i64), exprs.index(self.inner.extent as i64));
        let is_ragged = |direction: &Direction| !direction.extent.is_multiple_of(direction.padded);
        let (outer_in, inner_in) = (exprs.lt(outer, limits.0), exprs.lt(inner, limits.1));
        let mut guard = None;
        for (is_ragged, inside) in [(is_ragged(&self.outer), outer_in), (is_ragged(&self.inner), inner_in)] {
            guard = exprs.and_guard(guard, is_ragged.then_some(inside));
        }
        if self.is_copied {
            let value = self.vector(emitter, self.along_inner, (outer, inner), (None, None));
            let (from, own) = emitter.cp_async_source(value).expect("what is copied can be, as was probed");
            let mask = emitter.program.exprs.and_guard(own, guard);
            return vec![Stmt::Cta(CtaStmt::CpAsync { to, from, elems: LANES, real: None, mask })];
        }
        let (moving, extent) =
            if self.along_inner { (inner, self.inner.extent) } else { (outer, self.outer.extent) };
        let AttentionEmitter { program, simplifier, .. } = &mut *emitter;
        let mask = lanes_in_bounds(&mut program.exprs, simplifier, (moving, extent), LANES);
        let value = self.vector(emitter, self.along_inner, (outer, inner), (guard, mask));
        let ty = emitter.factor_type();
        let value = zero_unless(&mut emitter.program.exprs, value, ty, guard, mask);
        vec![Stmt::Store { buffer: to.buffer, offset: to.offset, value, mask: None }]
    }

    /// Neighbouring elements from a position on.
    fn vector(
        &self,
        emitter: &mut AttentionEmitter<'_>,
        along_inner: bool,
        (outer, inner): (ExprId, ExprId),
        (guard, mask): (Option<ExprId>, Option<ExprId>),
    ) -> ExprId {
        let base = if along_inner { inner } else { outer };
        let base = emitter.simplifier.simplify(&mut emitter.program.exprs, base);
        let limit = 2 * (self.outer.extent.max(self.inner.extent) + self.outer.padded + self.inner.padded);
        let (var, each) = emitter.program.exprs.fresh_index("each", limit);
        let (outer, inner) = if along_inner { (outer, each) } else { (each, inner) };
        let mut bindings = emitter.at(&self.outer.axes, outer);
        bindings.extend(emitter.at(&self.inner.axes, inner));
        let scalar = emitter.import(self.value, &bindings, guard);
        let widening = Widening { mask, ..Widening::new(var, base, LANES) };
        vectorize(&mut emitter.program.exprs, scalar, &widening).value
    }

    fn probe(&self, emitter: &mut AttentionEmitter<'_>, along_inner: bool) -> ExprId {
        let exprs = &mut emitter.program.exprs;
        let (outer_var, outer) = exprs.fresh_index("outer", self.outer.extent.next_multiple_of(LANES));
        let (inner_var, inner) = exprs.fresh_index("inner", self.inner.extent.next_multiple_of(LANES));
        exprs.set_multiple_of(if along_inner { inner_var } else { outer_var }, LANES as i64);
        self.vector(emitter, along_inner, (outer, inner), (None, None))
    }

    /// True if neighbours that way can be copied as they are.
    fn is_copy(&self, emitter: &mut AttentionEmitter<'_>, along_inner: bool) -> bool {
        let extent = if along_inner { self.inner.extent } else { self.outer.extent };
        if !extent.is_multiple_of(LANES) {
            return false;
        }
        let value = self.probe(emitter, along_inner);
        emitter.cp_async_source(value).is_some()
    }
}

impl AttentionEmitter<'_> {
    /// Neighbouring elements of a factor.
    fn factor_type(&self) -> Type {
        Type { dtype: self.product.dtype(), lanes: LANES }
    }

    /// The place from which these can be copied as they are, and the condition.
    fn cp_async_source(&mut self, value: ExprId) -> Option<(Location, Option<ExprId>)> {
        let ty = self.factor_type();
        cp_async_source(&mut self.program.exprs, &mut self.simplifier, value, ty)
    }
}
