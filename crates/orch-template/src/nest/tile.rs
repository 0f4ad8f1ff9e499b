//! Tiles for accesses that are contiguous along another axis than the result: a transpose is staged through scratch
//! that stays in the first-level cache, element by element, so that each cache line is read once and the vector loop
//! finds its operands contiguous.
//!
//! ```text
//! for u0 in steps of tile, for v0 in steps of tile:
//!   for v in tile, for u in tile:  scratch[u - u0][v - v0] = load(u, v)      contiguous in u
//!   for u in tile, vectors of v:   out(u, v) = body with scratch for load    contiguous in v
//! ```

use super::emit::{Emitter, for_loop};
use super::flat::Nest;
use super::place::{Lanes, Place};
use orch_compute::block::Axis;
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, VarId};
use orch_ir::BinaryFn;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt};

/// Bytes of a row of a tile: several cache lines of the result, few enough rows to stay in the cache.
const ROW_BYTES: usize = 128;

/// Tiling for a pair of axes.
#[derive(Clone, Debug)]
pub(crate) struct Tiling {
    /// The axis along which staged loads are contiguous.
    pub source: Axis,
    /// Its values in a tile.
    pub source_tile: usize,
    /// Values of the vector axis in a tile, a multiple of the lanes.
    pub vector_tile: usize,
    /// Loads that are staged.
    pub loads: Vec<ExprId>,
}

/// How the elements of a tile lie in its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rows {
    /// Row after row.
    Packed,
    /// Row after row; the parts of a row are exchanged by the number of the row, so that elements of different rows in one
    /// column are in different banks of shared memory.
    Turned(Turns),
}

/// Rows in parts of neighbouring elements. Part `p` of row `r` is in the place of part `p ^ r / alike`, modulo their number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Elements of a part.
    pub part: usize,
    /// Parts of a row, a power of two.
    pub parts: usize,
    /// Neighbouring rows that are alike.
    pub alike: usize,
}

impl Turns {
    /// The place of an element in its row.
    pub fn place(&self, row: usize, column: usize) -> usize {
        let turned = (column / self.part) ^ (row / self.alike % self.parts);
        turned * self.part + column % self.part
    }

    /// The same of expressions.
    fn place_of(&self, exprs: &mut Exprs, row: ExprId, column: ExprId) -> ExprId {
        let [part, parts, alike] = [self.part, self.parts, self.alike].map(|elems| exprs.index(elems as i64));
        let (number, within) = (exprs.floor_div(column, part), exprs.floor_rem(column, part));
        let turn = exprs.floor_div(row, alike);
        let turn = exprs.floor_rem(turn, parts);
        let turned = exprs.binary(BinaryFn::Xor, number, turn);
        exprs.linear_index(&[turned, within], &[self.part, 1])
    }
}

/// A staged load.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    /// Stands for the load in the bodies of stores.
    pub load: ExprId,
    /// `[source_tile][vector_tile]`.
    pub buffer: BufferId,
    /// Offset in the scratch, in terms of `corner` and the axes.
    pub offset: ExprId,
}

/// The values of both axes at the first element of the current tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corner {
    pub source: VarId,
    pub vector: VarId,
}

impl Tiling {
    /// The tiling that a nest of stores needs with this vector axis, if any.
    pub fn of(nest: &mut Nest, outer: &[Axis], vector: &Axis, lanes: usize) -> Option<Tiling> {
        let mut tiling: Option<Tiling> = None;
        for load in strided_loads(nest, vector.var) {
            let Some(source) = contiguous_axis(nest, load, outer, vector.var) else { continue };
            match &mut tiling {
                Some(tiling) if tiling.source == source => tiling.loads.push(load),
                Some(_) => {}
                None => {
                    let size = nest.program.exprs.dtype(load).size_bytes();
                    let tile = (ROW_BYTES / size).max(lanes);
                    let source_tile = tile.min(source.extent);
                    let vector_tile = tile.min(vector.extent.next_multiple_of(lanes));
                    tiling = Some(Tiling { source, source_tile, vector_tile, loads: vec![load] });
                }
            }
        }
        tiling
    }
}

/// Loads that would gather along an axis.
pub(crate) fn strided_loads(nest: &mut Nest, vector: VarId) -> Vec<ExprId> {
    let roots: Vec<ExprId> = nest.steps.iter().flat_map(super::flat::Step::roots).collect();
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    let mut found = Vec::new();
    for id in exprs.reachable(&roots) {
        let Expr::Load { offset, .. } = *exprs.get(id) else { continue };
        let stride = simplifier.stride(exprs, offset, vector);
        if stride.is_some_and(|stride| !(0..=1).contains(&stride)) {
            found.push(id);
        }
    }
    found
}

/// The outer axis along which a load is contiguous.
pub(crate) fn contiguous_axis(nest: &mut Nest, load: ExprId, outer: &[Axis], vector: VarId) -> Option<Axis> {
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    let Expr::Load { offset, .. } = *exprs.get(load) else { return None };
    let mut others = outer.iter().filter(|axis| axis.var != vector && axis.extent > 1);
    others.find(|axis| simplifier.stride(exprs, offset, axis.var) == Some(1)).cloned()
}

impl Emitter<'_> {
    /// Replaces staged loads by loads from buffers `[source_tile][vector_tile]`, whose offsets are relative to the corner
    /// of the tile.
    pub fn stage_loads(
        &mut self,
        tiling: &Tiling,
        vector: &Axis,
        scope: Scope,
        rows: Rows,
    ) -> (Corner, Vec<Staged>) {
        let corner = Corner {
            source: self.nest.program.exprs.declare_index("source_tile", tiling.source.extent),
            vector: self.nest.program.exprs.declare_index("vector_tile", vector.extent),
        };
        let mut staged = Vec::new();
        for (number, &load) in tiling.loads.iter().enumerate() {
            let dtype = self.nest.program.exprs.dtype(load);
            let (name, elems) = (format!("tile{number}"), tiling.source_tile * tiling.vector_tile);
            let buffer = self.nest.program.add_buffer(Buffer { name, dtype, elems, scope });
            let exprs = &mut self.nest.program.exprs;
            let (u, u0) = (exprs.var(tiling.source.var), exprs.var(corner.source));
            let (v, v0) = (exprs.var(vector.var), exprs.var(corner.vector));
            let (row, column) = (exprs.sub(u, u0), exprs.sub(v, v0));
            let place = match rows {
                Rows::Packed => column,
                Rows::Turned(turns) => turns.place_of(exprs, row, column),
            };
            let line = exprs.mul_const(row, tiling.vector_tile as i64);
            let offset = exprs.add2(line, place);
            let offset = self.nest.simplify(offset);
            let instead = self.nest.program.exprs.load(buffer, offset, 1, None);
            let mut steps = std::mem::take(&mut self.nest.steps);
            for step in &mut steps {
                step.map_roots(|root| self.nest.replace(root, &[(load, instead)]));
            }
            self.nest.steps = steps;
            staged.push(Staged { load, buffer, offset });
        }
        (corner, staged)
    }

    /// Tiles over pieces `0..source_end` and `0..vector_end` of the two axes, for one place: `bounds` are the
    /// bounds of the source axis in this task.
    pub fn tile_loops(&mut self, bounds: (ExprId, ExprId), place: &Place) -> Vec<Stmt> {
        let (Some(tiling), Some(vector)) = (self.plan.tiling.clone(), self.plan.vector.clone()) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        for (source_first, source_end, rows) in pieces(tiling.source.extent, tiling.source_tile) {
            let start = self.at_least(bounds.0, source_first, true);
            let end = self.bounded(bounds.1, source_end, true);
            if start == end {
                continue;
            }
            let u0 = self.loop_var(&tiling.source, source_first, source_end - rows, 1);
            let mut columns_out = Vec::new();
            for (vector_first, vector_end, columns) in pieces(vector.extent, tiling.vector_tile) {
                let v0 = self.loop_var(&vector, vector_first, vector_end - columns, 1);
                let body = self.tile(place, &tiling, &vector, (u0, rows), (v0, columns));
                let exprs = &mut self.nest.program.exprs;
                let (start, end) = (exprs.index(vector_first as i64), exprs.index(vector_end as i64));
                columns_out.push(for_loop(v0, start, end, columns, LoopKind::Serial, body));
            }
            out.push(for_loop(u0, start, end, rows, LoopKind::Serial, columns_out));
        }
        out
    }

    /// One tile of `rows` values of the source axis and `columns` of the vector axis.
    fn tile(
        &mut self,
        place: &Place,
        tiling: &Tiling,
        vector: &Axis,
        (u0, rows): (VarId, usize),
        (v0, columns): (VarId, usize),
    ) -> Vec<Stmt> {
        let Some((corner, staged)) = self.staged.clone() else { return Vec::new() };
        let exprs = &mut self.nest.program.exprs;
        let (first_row, first_column) = (exprs.var(u0), exprs.var(v0));
        let place = place.with(corner.source, first_row).with(corner.vector, first_column);

        let (row, row_at) = self.offset_loop("row", first_row, rows);
        let (column, column_at) = self.offset_loop("column", first_column, columns);
        let there = place.with(tiling.source.var, row_at).with(vector.var, column_at);
        let fill: Vec<Stmt> = staged
            .iter()
            .map(|staged| self.store(&there, staged.buffer, staged.offset, staged.load))
            .collect();
        let fill = self.count_loop(row, rows, LoopKind::UnrollBy(4), fill);
        let mut out = vec![self.count_loop(column, columns, LoopKind::Serial, vec![fill])];

        let (row, row_at) = self.offset_loop("row", first_row, rows);
        let place = place.with(tiling.source.var, row_at);
        let lanes = self.plan.lanes;
        let mut vectors = Vec::new();
        for start in (0..columns).step_by(lanes) {
            let base = self.nest.program.exprs.add_const(first_column, start as i64);
            let along = if start + lanes > columns {
                let mut along = self.nest.lanes_below(vector.var, base, lanes, vector.extent);
                along.mask = Some(self.first_lanes(columns - start, lanes));
                along
            } else {
                Lanes { axis: vector.var, base, count: lanes, mask: None }
            };
            vectors.extend(self.point(vec![place.along(along)]));
        }
        out.push(self.count_loop(row, rows, LoopKind::Serial, vectors));
        out
    }

    /// The mask of the first lanes.
    fn first_lanes(&mut self, valid: usize, lanes: usize) -> ExprId {
        let exprs = &mut self.nest.program.exprs;
        let (zero, valid) = (exprs.index(0), exprs.index(valid as i64));
        let lane = exprs.ramp(zero, 1, lanes);
        exprs.lt(lane, valid)
    }

    /// A loop variable `0..count`, and `first` plus it.
    fn offset_loop(&mut self, name: &str, first: ExprId, count: usize) -> (VarId, ExprId) {
        let exprs = &mut self.nest.program.exprs;
        let (var, value) = exprs.fresh_index(name, count);
        (var, exprs.add2(first, value))
    }

    fn count_loop(&mut self, var: VarId, count: usize, kind: LoopKind, body: Vec<Stmt>) -> Stmt {
        let exprs = &mut self.nest.program.exprs;
        for_loop(var, exprs.index(0), exprs.index(count as i64), 1, kind, body)
    }
}

/// The full tiles of an axis and the rest: first value, end, and the values of a tile.
fn pieces(extent: usize, tile: usize) -> Vec<(usize, usize, usize)> {
    let full = extent / tile * tile;
    let mut pieces = vec![(0, full, tile), (full, extent, extent - full)];
    pieces.retain(|(first, end, _)| first < end);
    pieces
}
