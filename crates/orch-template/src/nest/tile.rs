//! Tiles for loads that are contiguous along another axis (`u`) than the result (`v`), as in a transpose. A tile is
//! copied to scratch that stays in L1, so that each cache line of the source is read once; the vector loop then loads
//! contiguous elements from scratch. What is copied are squares of vectors along `u`, transposed in registers.
//!
//! ```text
//! for u0 in steps of tile, for v0 in steps of tile:
//!   for squares of the tile:       scratch[u - u0][v - v0] = load(u, v)      contiguous in u, stored contiguous in v
//!   for u in tile, vectors of v:   out(u, v) = body with scratch for load    contiguous in v
//! ```

use super::emit::{LoopBounds, NestEmitter, for_loop};
use super::point::{IterationPoint, Lanes};
use super::tiling::{Corner, StagedValue, TileLayout, Tiling};
use crate::design::halving_groups;
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, Exprs, LaneGroup, VarId};
use orch_ir::DType;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt};
use orch_thread::validate::MAX_LANES;
use std::ops::Range;

/// Most rows of a tile that are transposed together: narrow elements have more lanes than there are registers.
const MOST_ROWS: usize = 16;

impl NestEmitter<'_> {
    /// Adds a buffer `[source_tile, vector_tile]` for each staged value, and replaces the value in all stages by one from
    /// that buffer, whose offset is relative to the corner of the tile.
    pub fn stage_values(
        &mut self,
        tiling: &Tiling,
        vector: &Axis,
        scope: Scope,
        layout: TileLayout,
    ) -> (Corner, Vec<StagedValue>) {
        let corner = Corner {
            source: self.nest.program.exprs.declare_index("source_tile", tiling.source.extent),
            vector: self.nest.program.exprs.declare_index("vector_tile", vector.extent),
        };
        let mut staged = Vec::new();
        for (number, &value) in tiling.values.iter().enumerate() {
            let dtype = self.nest.program.exprs.dtype(value);
            let (name, elems) = (format!("tile{number}"), tiling.source_tile * tiling.vector_tile);
            let buffer = self.nest.program.add_buffer(Buffer { name, dtype, elems, scope });
            let exprs = &mut self.nest.program.exprs;
            let (u, u0) = (exprs.var(tiling.source.var), exprs.var(corner.source));
            let (v, v0) = (exprs.var(vector.var), exprs.var(corner.vector));
            let (row, column) = (exprs.sub(u, u0), exprs.sub(v, v0));
            let stored_column = match layout {
                TileLayout::RowMajor => column,
                TileLayout::Swizzled(swizzle) => swizzle.swizzled_column_expr(exprs, row, column),
            };
            // [row, column]
            let row_offset = exprs.mul_const(row, tiling.vector_tile as i64);
            let offset = exprs.add2(row_offset, stored_column);
            let offset = self.nest.simplify(offset);
            let instead = self.nest.program.exprs.load(buffer, offset, 1, None);
            let mut stages = std::mem::take(&mut self.nest.stages);
            for stage in &mut stages {
                stage.map_roots(|root| self.nest.replace(root, &[(value, instead)]));
            }
            self.nest.stages = stages;
            staged.push(StagedValue { value, buffer, offset });
        }
        (corner, staged)
    }

    /// Loops over the tiles of both axes at one point of the other outer axes: full tiles, then narrower ones at the
    /// end of each axis. The bounds are those of the source axis and of the vector axis in this work item.
    pub fn tile_loops(
        &mut self,
        (bounds, vector_bounds): (LoopBounds, LoopBounds),
        point: &IterationPoint,
    ) -> Vec<Stmt> {
        let (Some(tiling), Some(vector)) = (self.plan.tiling.clone(), self.plan.vector.clone()) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        for source in equal_tiles(tiling.source.extent, tiling.source_tile) {
            let rows = source.tile;
            let start = self.at_least(bounds.start, source.start, true);
            let end = self.bounded(bounds.end, source.end, true);
            if start == end {
                continue;
            }
            let u0 = self.loop_var(&tiling.source, source.start, source.end - rows, source.step());
            let mut columns_out = Vec::new();
            for piece in equal_tiles(vector.extent, tiling.vector_tile) {
                let columns = piece.tile;
                let start = self.at_least(vector_bounds.start, piece.start, true);
                let end = self.bounded(vector_bounds.end, piece.end, true);
                if start == end {
                    continue;
                }
                let v0 = self.loop_var(&vector, piece.start, piece.end - columns, piece.step());
                let body = self.tile(point, &tiling, &vector, (u0, rows), (v0, columns));
                columns_out.push(for_loop(v0, start, end, columns, LoopKind::Serial, body));
            }
            out.push(for_loop(u0, start, end, rows, LoopKind::Serial, columns_out));
        }
        out
    }

    /// One tile `[rows, columns]`, rows along the source axis and columns along the vector axis: fills the scratch,
    /// then runs all stages in vectors along the columns.
    fn tile(
        &mut self,
        point: &IterationPoint,
        tiling: &Tiling,
        vector: &Axis,
        (u0, rows): (VarId, usize),
        (v0, columns): (VarId, usize),
    ) -> Vec<Stmt> {
        let Some((corner, staged)) = self.staged.clone() else { return Vec::new() };
        let lanes = self.plan.lanes;
        let exprs = &mut self.nest.program.exprs;
        let (first_row, first_column) = (exprs.var(u0), exprs.var(v0));
        let point = point.with(corner.source, first_row).with(corner.vector, first_column);

        let exprs = &self.nest.program.exprs;
        let (transposed, single): (Vec<StagedValue>, Vec<StagedValue>) =
            staged.into_iter().partition(|staged| is_transposed(exprs, tiling, staged.value, lanes));
        let corner = TileCorner {
            point: &point,
            source: tiling.source.var,
            vector: vector.var,
            first_row,
            first_column,
        };
        let mut out = Vec::new();
        if !transposed.is_empty() {
            out.extend(self.fill_transposed(&corner, &transposed, rows, columns));
        }
        if !single.is_empty() {
            out.push(self.fill_single(&corner, &single, 0..rows, columns));
        }

        let (row, row_at) = self.offset_loop("row", first_row, rows);
        let point = point.with(tiling.source.var, row_at);
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
            vectors.extend(self.stages_at(vec![point.along(along)]));
        }
        out.push(self.count_loop(row, rows, LoopKind::Serial, vectors));
        out
    }

    /// Fills tiles element by element.
    fn fill_single(
        &mut self,
        corner: &TileCorner<'_>,
        staged: &[StagedValue],
        rows: Range<usize>,
        columns: usize,
    ) -> Stmt {
        let first_row = self.nest.program.exprs.add_const(corner.first_row, rows.start as i64);
        let (row, row_at) = self.offset_loop("row", first_row, rows.len());
        let (column, column_at) = self.offset_loop("column", corner.first_column, columns);
        let there = corner.point.with(corner.source, row_at).with(corner.vector, column_at);
        let fill: Vec<Stmt> = staged
            .iter()
            .map(|staged| self.store(&there, staged.buffer, staged.offset, staged.value))
            .collect();
        let fill = self.count_loop(row, rows.len(), LoopKind::UnrollBy(4), fill);
        self.count_loop(column, columns, LoopKind::Serial, vec![fill])
    }

    /// Fills tiles, several rows of a vector of columns at a time: a vector along the rows for each column, the last column in place of
    /// those past it, and these transposed. As many rows as a vector has lanes, at most [`MOST_ROWS`], as long as there are so many, then half of that.
    fn fill_transposed(
        &mut self,
        corner: &TileCorner<'_>,
        staged: &[StagedValue],
        rows: usize,
        columns: usize,
    ) -> Vec<Stmt> {
        let lanes = self.plan.lanes;
        let whole = columns - columns % lanes;
        let mut out = Vec::new();
        for (rows, group) in halving_groups(rows, lanes.min(MOST_ROWS)) {
            if group == 1 {
                out.push(self.fill_single(corner, staged, rows, columns));
                continue;
            }
            let at = self.nest.program.exprs.add_const(corner.first_row, rows.start as i64);
            let (row, row_at) = self.offset_loop("row", at, rows.len());
            let mut body = Vec::new();
            if whole > 0 {
                let (column, column_at) = self.offset_loop("column", corner.first_column, whole);
                let squares = self.transposed_square(corner, staged, (row_at, group), (column_at, lanes));
                body.push(self.step_loop(column, whole, lanes, squares));
            }
            if whole < columns {
                let column_at = self.nest.program.exprs.add_const(corner.first_column, whole as i64);
                let valid = columns - whole;
                body.extend(self.transposed_square(corner, staged, (row_at, group), (column_at, valid)));
            }
            out.push(self.step_loop(row, rows.len(), group, body));
        }
        out
    }

    /// A loop up to `count`, in steps.
    fn step_loop(&mut self, var: VarId, count: usize, step: usize, body: Vec<Stmt>) -> Stmt {
        let exprs = &mut self.nest.program.exprs;
        for_loop(var, exprs.index(0), exprs.index(count as i64), step, LoopKind::Serial, body)
    }

    /// Copies so many rows from one on, of a vector of columns from one on, so many of which there are.
    fn transposed_square(
        &mut self,
        corner: &TileCorner<'_>,
        staged: &[StagedValue],
        (row, rows): (ExprId, usize),
        (column, columns): (ExprId, usize),
    ) -> Vec<Stmt> {
        let along = Lanes { axis: corner.source, base: row, count: rows, mask: None };
        let mut out = Vec::new();
        for staged in staged {
            let along_rows: Vec<ExprId> = (0..self.plan.lanes)
                .map(|at| {
                    let column = self.nest.program.exprs.add_const(column, at.min(columns - 1) as i64);
                    let there = corner.point.with(corner.vector, column).along(along);
                    self.nest.full_value(&there, staged.value)
                })
                .collect();
            let along_columns = self.nest.program.exprs.transpose(LaneGroup::One, along_rows);
            for (at, value) in along_columns.into_iter().enumerate() {
                let row = self.nest.program.exprs.add_const(row, at as i64);
                let there = corner.point.with(corner.source, row).with(corner.vector, column);
                let offset = self.nest.value(&there, staged.offset);
                out.push(Stmt::Store { buffer: staged.buffer, offset, value, mask: None });
            }
        }
        out
    }

    /// The mask of the first `valid` of `lanes` lanes.
    fn first_lanes(&mut self, valid: usize, lanes: usize) -> ExprId {
        let exprs = &mut self.nest.program.exprs;
        let (zero, valid) = (exprs.index(0), exprs.index(valid as i64));
        let lane = exprs.ramp(zero, 1, lanes);
        exprs.lt(lane, valid)
    }

    /// A loop variable over `0..count`, and the sum of `first` and the variable.
    fn offset_loop(&mut self, name: &str, first: ExprId, count: usize) -> (VarId, ExprId) {
        let exprs = &mut self.nest.program.exprs;
        let (var, value) = exprs.fresh_index(name, count);
        (var, exprs.add2(first, value))
    }

    /// A loop of `count` iterations.
    fn count_loop(&mut self, var: VarId, count: usize, kind: LoopKind, body: Vec<Stmt>) -> Stmt {
        let exprs = &mut self.nest.program.exprs;
        for_loop(var, exprs.index(0), exprs.index(count as i64), 1, kind, body)
    }
}

/// Where a tile begins.
struct TileCorner<'a> {
    /// The point of the other axes.
    point: &'a IterationPoint,
    /// The source axis, along rows.
    source: VarId,
    /// The vector axis, along columns.
    vector: VarId,
    /// Value of the source axis in the first row.
    first_row: ExprId,
    /// Value of the vector axis in the first column.
    first_column: ExprId,
}

/// Most loads of a tile that is transposed: each vector of a square has them all.
const MOST_LOADS: usize = 4;

/// Whether vectors of a value of a tile are transposed in registers, for which two are one vector on the way: booleans, more lanes, and tiles of
/// many loads, as of the parts of a wide concatenation, are copied one at a time.
pub(super) fn is_transposed(exprs: &Exprs, tiling: &Tiling, value: ExprId, lanes: usize) -> bool {
    let is_load = |id: &ExprId| matches!(exprs.get(*id), Expr::Load { .. });
    let is_narrow = exprs.dtype(value) != DType::Bool && 2 * lanes <= MAX_LANES;
    is_narrow && exprs.reachable(&tiling.values).iter().filter(|id| is_load(id)).count() <= MOST_LOADS
}

/// A piece of an axis that consists of tiles of one size.
struct EqualTiles {
    start: usize,
    end: usize,
    /// Points of the axis in a tile.
    tile: usize,
}

impl EqualTiles {
    /// What all starts of tiles are multiples of.
    fn step(&self) -> usize {
        if self.start == 0 { self.tile } else { 1 }
    }
}

/// The full tiles of an axis, and the rest as one narrower tile; neither is empty.
fn equal_tiles(extent: usize, tile: usize) -> Vec<EqualTiles> {
    let full = extent / tile * tile;
    let mut pieces = vec![
        EqualTiles { start: 0, end: full, tile },
        EqualTiles { start: full, end: extent, tile: extent - full },
    ];
    pieces.retain(|piece| piece.start < piece.end);
    pieces
}
