//! Operand tiles in shared memory, and how threads fill them: with `cp.async` where an operand's elements are in memory as they are
//! multiplied, else computed.
//!
//! ```text
//! row-major      [outer, inner]     queries [row, d], keys [key, d], values [key, column]
//! column-major   [inner, outer]
//! ```

use super::emitter::AttentionEmitter;
use crate::gpu::cta::{CtaEmitter, ProgramEmitter, cp_async_source, lanes_in_bounds, zero_unless};
use orch_compute::expr::{BufferId, ExprId, Type, VarId};
use orch_thread::cta::{CtaStmt, Location, WARP};
use orch_thread::program::{Scope, Stmt};
use orch_thread::vectorize::{LoadCounts, Widening, vectorize};

/// Elements of a chunk (16 bytes), and of padding between lines against bank conflicts of `ldmatrix`.
const LANES: usize = 8;

/// One operand's tile.
#[derive(Debug)]
pub(super) struct AttentionTile {
    pub buffer: BufferId,
    /// Whether lines are along the inner dimension (d or columns), instead of the outer one (rows or keys).
    pub is_row_major: bool,
    /// Elements from one line to the next.
    pub stride: usize,
    value: ExprId,
    /// Rows or keys.
    outer: TileDim,
    /// d or columns.
    inner: TileDim,
    uses_cp_async: bool,
}

/// One dimension of a tile.
#[derive(Clone, Debug)]
struct TileDim {
    axes: Vec<VarId>,
    /// The first element's index.
    first: ExprId,
    extent: usize,
    padded: usize,
}

impl AttentionTile {
    /// Queries, `[row, d]`.
    pub fn of_queries(emitter: &mut AttentionEmitter<'_>, value: ExprId) -> Self {
        let (first, sizes) = (emitter.first_row, emitter.sizes);
        let rows = (emitter.form.rows.clone(), first, sizes.rows, emitter.cta_rows());
        Self::new(
            emitter,
            "q",
            value,
            rows,
            (emitter.form.head_dim.clone(), sizes.head_dim, sizes.padded_head_dim()),
        )
    }

    /// Keys, `[key, d]`.
    pub fn of_keys(emitter: &mut AttentionEmitter<'_>, value: ExprId) -> Self {
        let (zero, sizes) = (emitter.program.exprs.index(0), emitter.sizes);
        let keys = (emitter.form.keys.clone(), zero, sizes.keys, emitter.padded_keys());
        Self::new(
            emitter,
            "k",
            value,
            keys,
            (emitter.form.head_dim.clone(), sizes.head_dim, sizes.padded_head_dim()),
        )
    }

    /// Values, `[key, column]`.
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
        let typed = emitter.source.cast(emitter.mma_type.dtype(), value);
        let outer = TileDim { axes, first, extent, padded };
        let inner = TileDim { axes: inner.0, first: zero, extent: inner.1, padded: inner.2 };
        let mut tile = Self {
            buffer: BufferId::new(0),
            is_row_major: true,
            stride: 0,
            value: typed,
            outer,
            inner,
            uses_cp_async: false,
        };
        let cp_async =
            [true, false].into_iter().find(|&is_row_major| tile.allows_cp_async(emitter, is_row_major));
        tile.uses_cp_async = cp_async.is_some();
        tile.is_row_major = cp_async.unwrap_or_else(|| {
            let gathers = |emitter: &mut AttentionEmitter<'_>, is_row_major| {
                let value = tile.any_vector(emitter, is_row_major);
                LoadCounts::of(&emitter.program.exprs, value).gathers
            };
            gathers(emitter, true) <= gathers(emitter, false)
        });
        let (lines, line) = tile.lines();
        tile.stride = line + LANES;
        let elems = lines * tile.stride;
        tile.buffer =
            emitter.add_buffer(&format!("{name}_tile"), emitter.mma_type.dtype(), elems, Scope::Shared);
        tile
    }

    /// Lines, and elements of a line.
    fn lines(&self) -> (usize, usize) {
        match self.is_row_major {
            true => (self.outer.padded, self.inner.padded),
            false => (self.inner.padded, self.outer.padded),
        }
    }

    /// The location of element `[outer, inner]`.
    pub fn location(&self, emitter: &mut AttentionEmitter<'_>, outer: ExprId, inner: ExprId) -> Location {
        let place = if self.is_row_major { [outer, inner] } else { [inner, outer] };
        Location {
            buffer: self.buffer,
            offset: emitter.program.exprs.linear_index(&place, &[self.stride, 1]),
        }
    }

    /// Fills the tile, chunk by chunk: neighbouring threads fill neighbouring chunks. Zeros beyond the operand's end.
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
        let (outer, inner) = if self.is_row_major { (line, at) } else { (at, line) };
        let to = self.location(emitter, outer, inner);
        let exprs = &mut emitter.program.exprs;
        let (outer, inner) = (exprs.add2(self.outer.first, outer), exprs.add2(self.inner.first, inner));
        let limits = (exprs.index(self.outer.extent as i64), exprs.index(self.inner.extent as i64));
        let is_ragged = |dim: &TileDim| !dim.extent.is_multiple_of(dim.padded);
        let (outer_in, inner_in) = (exprs.lt(outer, limits.0), exprs.lt(inner, limits.1));
        let mut guard = None;
        for (is_ragged, inside) in [(is_ragged(&self.outer), outer_in), (is_ragged(&self.inner), inner_in)] {
            guard = exprs.and_guard(guard, is_ragged.then_some(inside));
        }
        if self.uses_cp_async {
            let value = self.vector(emitter, self.is_row_major, (outer, inner), (None, None));
            let (from, own) =
                emitter.cp_async_source(value).expect("every chunk allows cp.async, as was tried");
            let mask = emitter.program.exprs.and_guard(own, guard);
            return vec![Stmt::Cta(CtaStmt::CpAsync { to, from, elems: LANES, real: None, mask })];
        }
        let (moving, extent) =
            if self.is_row_major { (inner, self.inner.extent) } else { (outer, self.outer.extent) };
        let AttentionEmitter { program, simplifier, .. } = &mut *emitter;
        let mask = lanes_in_bounds(&mut program.exprs, simplifier, (moving, extent), LANES);
        let value = self.vector(emitter, self.is_row_major, (outer, inner), (guard, mask));
        let ty = emitter.chunk_type();
        let value = zero_unless(&mut emitter.program.exprs, value, ty, guard, mask);
        vec![Stmt::Store { buffer: to.buffer, offset: to.offset, value, mask: None }]
    }

    /// A chunk from `[outer, inner]` on.
    fn vector(
        &self,
        emitter: &mut AttentionEmitter<'_>,
        is_row_major: bool,
        (outer, inner): (ExprId, ExprId),
        (guard, mask): (Option<ExprId>, Option<ExprId>),
    ) -> ExprId {
        let base = if is_row_major { inner } else { outer };
        let base = emitter.simplifier.simplify(&mut emitter.program.exprs, base);
        let limit = 2 * (self.outer.extent.max(self.inner.extent) + self.outer.padded + self.inner.padded);
        let (var, each) = emitter.program.exprs.fresh_index("each", limit);
        let (outer, inner) = if is_row_major { (outer, each) } else { (each, inner) };
        let mut bindings = emitter.at(&self.outer.axes, outer);
        bindings.extend(emitter.at(&self.inner.axes, inner));
        let scalar = emitter.import(self.value, &bindings, guard);
        let widening = Widening { mask, ..Widening::new(var, base, LANES) };
        vectorize(&mut emitter.program.exprs, scalar, &widening).value
    }

    /// A chunk at an unknown place that is a multiple of its elements: what can be said of it holds for all chunks.
    fn any_vector(&self, emitter: &mut AttentionEmitter<'_>, is_row_major: bool) -> ExprId {
        let exprs = &mut emitter.program.exprs;
        let (outer_var, outer) = exprs.fresh_index("outer", self.outer.extent.next_multiple_of(LANES));
        let (inner_var, inner) = exprs.fresh_index("inner", self.inner.extent.next_multiple_of(LANES));
        exprs.set_multiple_of(if is_row_major { inner_var } else { outer_var }, LANES as i64);
        self.vector(emitter, is_row_major, (outer, inner), (None, None))
    }

    /// True if all chunks in this order can be copied with `cp.async`.
    fn allows_cp_async(&self, emitter: &mut AttentionEmitter<'_>, is_row_major: bool) -> bool {
        let extent = if is_row_major { self.inner.extent } else { self.outer.extent };
        if !extent.is_multiple_of(LANES) {
            return false;
        }
        let value = self.any_vector(emitter, is_row_major);
        emitter.cp_async_source(value).is_some()
    }
}

impl AttentionEmitter<'_> {
    /// The type of a chunk.
    fn chunk_type(&self) -> Type {
        Type { dtype: self.mma_type.dtype(), lanes: LANES }
    }

    /// The source of a chunk's `cp.async`, and the condition under which it is read.
    fn cp_async_source(&mut self, value: ExprId) -> Option<(Location, Option<ExprId>)> {
        let ty = self.chunk_type();
        cp_async_source(&mut self.program.exprs, &mut self.simplifier, value, ty)
    }
}
