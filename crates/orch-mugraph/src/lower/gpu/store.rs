//! Stores of results to global memory.
//!
//! From accumulator registers a warp stores 8 rows of 4 column pairs at a time; the time depends on the rows
//! that are touched (memory transactions), not on bytes. So 16-bit results go through shared memory, from
//! which a warp stores four whole rows at a time (attention of 256 heads, 256 queries by 1024 keys: 45.0
//! instead of 46.1 us on an H200). Where a warp has whole rows of the tile it stores those that it has copied, so that no warp waits for
//! another. f32 results are stored from registers: their shared memory would reduce
//! the stages of the loop.

use super::elements::ElementStore;
use super::emitter::BlockEmitter;
use super::layout::{ColumnLayout, FRAGMENT_ROWS, FragmentLayout};
use super::staging::VECTOR_BYTES;
use super::value::TilePoint;
use crate::graph::TensorId;
use orch_compute::ExprId;
use orch_thread::cta::WARP;
use orch_thread::{CtaStmt, Stmt};

/// Fragment columns per warp from which results go through shared memory.
const MIN_SHARED_STORE_TILES: usize = 4;

impl BlockEmitter<'_> {
    /// Stores a tile as the block's part of a tensor.
    pub fn emit_store(&mut self, tile: usize, grid: &[Option<usize>], tensor: TensorId) {
        let at = self.register_layout(tile);
        self.prepare(tile, at.as_ref());
        let stmts = match at {
            Some(at) if self.is_stored_through_shared(tile, tensor, &at) => {
                self.store_through_shared(tile, (grid, tensor), &at)
            }
            Some(at) => self.store_registers(tile, (grid, tensor), &at),
            None => self.store_elements(tile, (grid, tensor)),
        };
        self.emit_on_rank_zero(stmts);
    }

    /// Whether a tile in registers is stored through shared memory: 16-bit, whole rows per warp, wide enough,
    /// aligned.
    fn is_stored_through_shared(&self, tile: usize, tensor: TensorId, at: &FragmentLayout) -> bool {
        let (shape, size) =
            (&self.plan.steps.tiles[tile].shape, self.plan.request.stored[tensor.index()].dtype.size_bytes());
        let (last, chunk) = (shape.len() - 1, VECTOR_BYTES / size);
        size == 2
            && matches!(at.columns, ColumnLayout::Partitioned(_))
            && at.rows.column_warps == 1
            && at.column_tiles() >= MIN_SHARED_STORE_TILES
            && self.is_vectorizable(tile, tensor, (last, chunk))
            && !self.plan.steps.tiles[tile].ragged[last]
            && crate::op::elems(shape) >= chunk * self.threads()
    }

    /// Copies registers to shared memory, then stores whole rows.
    fn store_through_shared(
        &mut self,
        tile: usize,
        to: (&[Option<usize>], TensorId),
        at: &FragmentLayout,
    ) -> Vec<Stmt> {
        let Some(buffer) = self.arguments[to.1.index()] else { return Vec::new() };
        let dtype = self.program.buffer(buffer).dtype;
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let view = self.shared_after_loop("rows", dtype, &shape);
        let copies = self.store_slots_to_shared(at, &shape, &view, |this, point| this.value_at(tile, point));
        let rows = rows_of_warp(at, &shape);
        let stores = self.store_each(tile, to, rows, |this, coords| {
            let offset = this.shared_offset(&view, coords);
            this.program.exprs.load(view.buffer, offset, 1, None)
        });
        if rows.is_none() {
            self.emit_on_rank_zero(copies);
            return stores;
        }
        let barrier = [Stmt::Cta(CtaStmt::WarpBarrier)];
        let mut stmts = Vec::new();
        if let Some(blocks) = &mut self.block_loop {
            // Behind the reads of the rows of the block before.
            blocks.written.insert(view.buffer);
            stmts.extend(barrier.clone());
        }
        stmts.extend(copies.into_iter().chain(barrier).chain(stores));
        stmts
    }

    /// The offset in a tensor of an element of a tile, `block * tile + element`, and the guard that it
    /// exists.
    fn store_destination(
        &mut self,
        tile: usize,
        (grid, tensor): (&[Option<usize>], TensorId),
        coords: &[ExprId],
    ) -> (ExprId, Option<ExprId>) {
        let tile = &self.plan.steps.tiles[tile];
        let mut position = coords.to_vec();
        for (&dim, &block) in grid.iter().zip(&self.ids.block) {
            if let Some(dim) = dim {
                let start = self.program.exprs.mul_const(block, tile.shape[dim] as i64);
                position[dim] = self.program.exprs.add2(start, position[dim]);
            }
        }
        let shape = self.plan.request.graph.shape(tensor);
        let mut guard = None;
        for dim in (0..shape.len()).filter(|&dim| tile.ragged[dim]) {
            let inside = self.is_below(position[dim], shape[dim]);
            guard = self.program.exprs.and_guard(guard, inside);
        }
        (self.tensor_offset(tensor, &position), guard)
    }

    /// Stores a tile element by element, in vectors.
    fn store_elements(&mut self, tile: usize, to: (&[Option<usize>], TensorId)) -> Vec<Stmt> {
        self.store_each(tile, to, None, |this, coords| {
            this.value_at(tile, &TilePoint { coords: coords.to_vec(), slot: None })
        })
    }

    /// Stores the block's part of a tensor: `value` of each element of the tile, cast to the tensor's type,
    /// masked where the grid leaves a remainder. Each warp stores so many `rows` of its own, if it has some; else threads share all.
    fn store_each(
        &mut self,
        tile: usize,
        to: (&[Option<usize>], TensorId),
        rows: Option<usize>,
        value: impl FnOnce(&mut Self, &[ExprId]) -> ExprId,
    ) -> Vec<Stmt> {
        let Some(buffer) = self.arguments[to.1.index()] else { return Vec::new() };
        let dtype = self.program.buffer(buffer).dtype;
        let mut shape = self.plan.steps.tiles[tile].shape.clone();
        let mut threads = (self.ids.thread, self.threads());
        let mut first = self.index(0);
        let row_dim = shape.len().saturating_sub(2);
        if let Some(rows) = rows {
            (shape[row_dim], threads) = (rows, (self.ids.lane, WARP));
            first = self.program.exprs.mul_const(self.ids.warp, rows as i64);
        }
        self.for_each_element_by(threads, &shape, |this, coords| {
            let mut coords = coords.to_vec();
            if rows.is_some() {
                coords[row_dim] = this.program.exprs.add2(first, coords[row_dim]);
            }
            let value = value(this, &coords);
            let value = this.program.exprs.cast(dtype, value);
            let (offset, mask) = this.store_destination(tile, to, &coords);
            vec![ElementStore { buffer, offset, value, mask }]
        })
    }

    /// Stores registers, two adjacent columns at a time where they are adjacent in the tensor.
    fn store_registers(
        &mut self,
        tile: usize,
        to: (&[Option<usize>], TensorId),
        at: &FragmentLayout,
    ) -> Vec<Stmt> {
        let Some(buffer) = self.arguments[to.1.index()] else { return Vec::new() };
        let dtype = self.program.buffer(buffer).dtype;
        let shape = self.plan.steps.tiles[tile].shape.clone();
        let last = shape.len() - 1;
        let strides = &self.plan.request.stored[to.1.index()].strides;
        let is_ragged = self.plan.steps.tiles[tile].ragged[last];
        let pairs =
            at.has_column_pairs() && strides[last] == 1 && shape[last].is_multiple_of(2) && !is_ragged;
        self.store_each_slot(at, pairs, |this, slot| {
            let inside = this.slot_exists(slot, true);
            let point = this.point_of_slot(slot, &shape);
            let value = this.value_at(tile, &point);
            let value = this.program.exprs.cast(dtype, value);
            let (offset, exists) = this.store_destination(tile, to, &point.coords);
            let mask = this.program.exprs.and_guard(inside, exists);
            ElementStore { buffer, offset, value, mask }
        })
    }
}

/// The rows of a tile that each warp has, if they are whole and follow each other.
fn rows_of_warp(at: &FragmentLayout, shape: &[usize]) -> Option<usize> {
    let rows = FRAGMENT_ROWS * at.rows.row_tiles();
    let is_whole = at.rows.column_warps == 1
        && at.rows.batch() == 1
        && shape[shape.len() - 2] == rows * at.rows.row_warps
        && crate::op::elems(&shape[..shape.len() - 2]) == 1;
    is_whole.then_some(rows)
}
