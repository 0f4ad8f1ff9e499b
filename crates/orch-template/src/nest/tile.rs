//! Tiles for loads that are contiguous along another axis (`u`) than the result (`v`), as in a transpose. A tile is
//! copied to scratch that stays in L1, element by element, so that each cache line of the source is read once; the
//! vector loop then loads contiguous elements from scratch.
//!
//! ```text
//! for u0 in steps of tile, for v0 in steps of tile:
//!   for v in tile, for u in tile:  scratch[u - u0][v - v0] = load(u, v)      contiguous in u
//!   for u in tile, vectors of v:   out(u, v) = body with scratch for load    contiguous in v
//! ```

use super::emit::{LoopBounds, NestEmitter, for_loop};
use super::point::{IterationPoint, Lanes};
use super::tiling::{Corner, StagedValue, TileLayout, Tiling};
use orch_compute::block::Axis;
use orch_compute::expr::{ExprId, VarId};
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt};

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
        let exprs = &mut self.nest.program.exprs;
        let (first_row, first_column) = (exprs.var(u0), exprs.var(v0));
        let point = point.with(corner.source, first_row).with(corner.vector, first_column);

        let (row, row_at) = self.offset_loop("row", first_row, rows);
        let (column, column_at) = self.offset_loop("column", first_column, columns);
        let there = point.with(tiling.source.var, row_at).with(vector.var, column_at);
        let fill: Vec<Stmt> = staged
            .iter()
            .map(|staged| self.store(&there, staged.buffer, staged.offset, staged.value))
            .collect();
        let fill = self.count_loop(row, rows, LoopKind::UnrollBy(4), fill);
        let mut out = vec![self.count_loop(column, columns, LoopKind::Serial, vec![fill])];

        let (row, row_at) = self.offset_loop("row", first_row, rows);
        let point = point.with(tiling.source.var, row_at);
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
            vectors.extend(self.stages_at(vec![point.along(along)]));
        }
        out.push(self.count_loop(row, rows, LoopKind::Serial, vectors));
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
