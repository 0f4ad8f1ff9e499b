//! Tiles for accesses that are contiguous along another axis than the result: a transpose is staged through scratch
//! that stays in L1, element by element, so that each cache line is read once and the vector loop
//! finds its operands contiguous.
//!
//! ```text
//! for u0 in steps of tile, for v0 in steps of tile:
//!   for v in tile, for u in tile:  scratch[u - u0][v - v0] = load(u, v)      contiguous in u
//!   for u in tile, vectors of v:   out(u, v) = body with scratch for load    contiguous in v
//! ```

use super::emit::{NestEmitter, for_loop};
use super::point::{IterationPoint, Lanes};
use super::tiling::{Corner, StagedLoad, TileLayout, Tiling};
use orch_compute::block::Axis;
use orch_compute::expr::{ExprId, VarId};
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt};

impl NestEmitter<'_> {
    /// Replaces staged loads by loads from buffers `[source_tile][vector_tile]`, whose offsets are relative to the corner
    /// of the tile.
    pub fn stage_loads(
        &mut self,
        tiling: &Tiling,
        vector: &Axis,
        scope: Scope,
        layout: TileLayout,
    ) -> (Corner, Vec<StagedLoad>) {
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
            let stored_column = match layout {
                TileLayout::RowMajor => column,
                TileLayout::Swizzled(swizzle) => swizzle.swizzled_column_expr(exprs, row, column),
            };
            let line = exprs.mul_const(row, tiling.vector_tile as i64);
            let offset = exprs.add2(line, stored_column);
            let offset = self.nest.simplify(offset);
            let instead = self.nest.program.exprs.load(buffer, offset, 1, None);
            let mut stages = std::mem::take(&mut self.nest.stages);
            for stage in &mut stages {
                stage.map_roots(|root| self.nest.replace(root, &[(load, instead)]));
            }
            self.nest.stages = stages;
            staged.push(StagedLoad { load, buffer, offset });
        }
        (corner, staged)
    }

    /// Tiles over pieces `0..source_end` and `0..vector_end` of the two axes, for one point: `bounds` are the
    /// bounds of the source axis in this task.
    pub fn tile_loops(&mut self, bounds: (ExprId, ExprId), point: &IterationPoint) -> Vec<Stmt> {
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
                let body = self.tile(point, &tiling, &vector, (u0, rows), (v0, columns));
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
            .map(|staged| self.store(&there, staged.buffer, staged.offset, staged.load))
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
