//! Loads of tensors in global memory: which part a block sees, and its way to shared memory by cp.async (by
//! TMA in `tma`).
//!
//! ```text
//! shared buffer of a staged load:  [stage, tile]   stage = iteration % stages, phase = iteration / stages
//! ```
//!
//! A load is staged if it is in the loop, is an operand of a product, or is read several times. Rows are
//! padded to an odd number of 16-byte vectors against bank conflicts of ldmatrix, or swizzled for wgmma.

use super::emitter::BlockEmitter;
use super::steps::TileStep;
use super::tma::TmaTile;
use super::value::{SharedTile, TileHome};
use crate::band::Band;
use crate::graph::TensorId;
use crate::lower::Stored;
use crate::op::Op;
use crate::tiling::Stage;
use orch_compute::ExprId;
use orch_ir::DType;
use orch_thread::cta::WARP_GROUP_ROWS;
use orch_thread::{CtaStmt, Location, Scope, Stmt};

/// Bytes of the widest vector access.
pub(super) const VECTOR_BYTES: usize = 16;

/// A load that is copied to shared memory as it is in global memory.
#[derive(Clone, Debug)]
pub(super) struct StagedLoad {
    /// The tile of the load.
    pub tile: usize,
    /// The tile in stage 0.
    pub view: SharedTile,
    /// Elements from one stage to the next.
    pub stage_elems: usize,
    /// The contiguous dimension in global and shared memory.
    inner: usize,
    /// Elements that one cp.async copies.
    chunk: usize,
    /// How TMA loads it; `None` for cp.async.
    pub tma: Option<TmaTile>,
}

/// The loads of a block that are staged.
pub(super) struct StagedLoads {
    /// Those of each iteration.
    pub looped: Vec<StagedLoad>,
    /// Those that the loop does not change.
    pub once: Vec<StagedLoad>,
}

/// Whether cp.async copies any of these, so that its groups have to be committed and waited for.
pub(super) fn any_cp_async(staged: &[StagedLoad]) -> bool {
    staged.iter().any(|staged| staged.tma.is_none())
}

impl BlockEmitter<'_> {
    /// The tensor of a load, unless it is a mask that is computed from indices.
    pub fn tensor_in_memory(&self, tile: usize) -> Option<TensorId> {
        match self.plan.steps.tiles[tile].step {
            TileStep::Load { tensor, .. } if self.plan.request.is_in_memory(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The coordinates in the tensor of an element of a load's tile, and the guard that they exist where the
    /// grid leaves a remainder: `block * tile + element`, plus `iteration * tile` along the loop.
    pub fn tensor_coords(
        &mut self,
        tile: usize,
        coords: &[ExprId],
        iteration: ExprId,
    ) -> (Vec<ExprId>, Option<ExprId>) {
        let iteration = self.block_iteration(iteration);
        let tile = &self.plan.steps.tiles[tile];
        let TileStep::Load { tensor, grid, along_loop } = &tile.step else { return (coords.to_vec(), None) };
        let mut position = coords.to_vec();
        let exprs = &mut self.program.exprs;
        for (&dim, &block) in grid.iter().zip(&self.ids.block) {
            let Some(dim) = dim else { continue };
            let iterations = if *along_loop == Some(dim) { self.plan.steps.loop_range } else { 1 };
            let start = exprs.mul_const(block, (tile.shape[dim] * iterations) as i64);
            position[dim] = exprs.add2(start, position[dim]);
        }
        if let Some(dim) = *along_loop {
            let start = exprs.mul_const(iteration, tile.shape[dim] as i64);
            position[dim] = exprs.add2(start, position[dim]);
        }
        let shape = self.plan.request.graph.shape(*tensor);
        let mut guard = None;
        for dim in (0..shape.len()).filter(|&dim| tile.ragged[dim]) {
            let inside = self.is_below(position[dim], shape[dim]);
            guard = self.program.exprs.and_guard(guard, inside);
        }
        (position, guard)
    }

    /// An element of a load's tensor, read from global memory, as f32.
    pub fn read_tensor(&mut self, tile: usize, coords: &[ExprId], iteration: ExprId) -> ExprId {
        let (position, guard) = self.tensor_coords(tile, coords, iteration);
        let TileStep::Load { tensor, .. } = self.plan.steps.tiles[tile].step else { return self.float(0.0) };
        // What a mask is past the end of a grid's rows or columns is not read; past that of a loop it is zero, as what is in memory.
        let inside = guard.filter(|_| self.plan.steps.tiles[tile].past_end.is_some());
        if let Some(band) = self.plan.request.band(tensor) {
            return self.band_value(band, &position, inside);
        }
        if let Some(Op::Below { dim, limit, .. }) = self.plan.request.graph.computed_mask(tensor) {
            let condition = self.is_below(position[*dim], (*limit).min(1 << 40));
            let condition = self.program.exprs.and_guard(inside, condition);
            return self.mask_value(condition);
        }
        let value = match self.arguments[tensor.index()] {
            Some(buffer) => {
                let offset = self.tensor_offset(tensor, &position);
                self.program.exprs.load(buffer, offset, 1, guard)
            }
            None => self.float(0.0),
        };
        self.program.exprs.cast(DType::F32, value)
    }

    /// The offset in its buffer of an element of a tensor.
    pub fn tensor_offset(&mut self, tensor: TensorId, position: &[ExprId]) -> ExprId {
        let Stored { strides, offset, .. } = &self.plan.request.stored[tensor.index()];
        let within = self.program.exprs.linear_index(position, strides);
        let place = self.program.exprs.add_const(within, *offset as i64);
        self.simplifier.simplify(&mut self.program.exprs, place)
    }

    /// An element of a mask that is a band, computed from its row and column: zero outside of what exists, if not all does.
    fn band_value(&mut self, band: Band, position: &[ExprId], exists: Option<ExprId>) -> ExprId {
        let [.., row, column] = *position else { return self.mask_value(exists) };
        let Band { above, below } = band.limited();
        let mut condition = exists;
        for (from, to, limit) in [(row, column, above), (column, row, below)] {
            let Some(limit) = limit else { continue };
            let exprs = &mut self.program.exprs;
            let last = exprs.add_const(from, limit);
            let inside = exprs.le(to, last);
            let inside = self.simplifier.simplify(&mut self.program.exprs, inside);
            condition = self.program.exprs.and_guard(condition, Some(inside));
        }
        self.mask_value(condition)
    }

    /// An element of the mask of what is not past the end, `iteration * tile + element < extent`.
    pub fn inside_value(&mut self, tile: usize, (dim, extent): (usize, usize), coords: &[ExprId]) -> ExprId {
        let iteration = self.block_iteration(self.iteration);
        let start = self.program.exprs.mul_const(iteration, self.plan.steps.tiles[tile].shape[dim] as i64);
        let index = self.program.exprs.add2(start, coords[dim]);
        let condition = self.is_below(index, extent);
        self.mask_value(condition)
    }

    /// 1 where a condition holds (`None`: always), 0 elsewhere.
    fn mask_value(&mut self, condition: Option<ExprId>) -> ExprId {
        let (zero, one) = (self.float(0.0), self.float(1.0));
        match condition {
            Some(condition) => self.program.exprs.select(condition, one, zero),
            None => one,
        }
    }

    /// Chooses the loads that are staged, allocates their stages, and assigns TMA to those that it can load.
    pub fn stage_loads(&mut self) -> StagedLoads {
        let tiles: Vec<usize> =
            (0..self.plan.steps.tiles.len()).filter(|&tile| self.should_stage(tile)).collect();
        let mut staged: Vec<StagedLoad> =
            tiles.into_iter().filter_map(|tile| self.plan_staging(tile)).collect();
        self.assign_tma(&mut staged);
        let (looped, once) =
            staged.into_iter().partition(|staged| self.plan.steps.tiles[staged.tile].stage == Stage::Loop);
        StagedLoads { looped, once }
    }

    /// Stages of a load: those of the ring in the loop, one outside.
    pub fn stages_of(&self, tile: usize) -> usize {
        if self.plan.steps.tiles[tile].stage == Stage::Loop { self.plan.schedule.stages } else { 1 }
    }

    /// Whether a load is staged: in the loop, an operand of a product, or (unless `stages_all_loads` is off)
    /// read more than once, or read beside reductions and products that would wait for it.
    fn should_stage(&self, position: usize) -> bool {
        let tile = &self.plan.steps.tiles[position];
        if tile.readers == 0 || self.tensor_in_memory(position).is_none() || self.is_direct_load(position) {
            return false;
        }
        let waits = |step: &TileStep| match step {
            TileStep::Op { op, .. } => matches!(op, Op::Matmul | Op::Reduce { .. }),
            TileStep::RunningMax { .. } => true,
            TileStep::Load { .. } | TileStep::Inside { .. } | TileStep::Accumulate { .. } => false,
        };
        let is_reduced = self
            .plan
            .steps
            .only_reader(position)
            .is_some_and(|reader| waits(&self.plan.steps.tiles[reader].step));
        let any_waits = self.plan.steps.tiles.iter().any(|tile| tile.readers > 0 && waits(&tile.step));
        let is_factor = !self.plan.steps.k_dims(position).is_empty();
        tile.stage == Stage::Loop
            || is_factor
            || self.plan.schedule.stages_all_loads && (tile.readers > 1 || any_waits && !is_reduced)
    }

    /// Whether a tile lies in a tensor in whole, aligned vectors of `chunk` elements along dimension `inner`.
    pub fn is_vectorizable(&self, tile: usize, tensor: TensorId, (inner, chunk): (usize, usize)) -> bool {
        let (tile, stored) = (&self.plan.steps.tiles[tile], &self.plan.request.stored[tensor.index()]);
        let full = self.plan.request.graph.shape(tensor);
        let ends = if tile.ragged[inner] { full[inner] } else { 0 };
        let mut others = (0..full.len()).filter(|&dim| dim != inner && full[dim] > 1);
        stored.strides[inner] == 1
            && [tile.shape[inner], stored.offset, ends].iter().all(|place| place.is_multiple_of(chunk))
            && others.all(|dim| stored.strides[dim].is_multiple_of(chunk))
    }

    /// Allocates the stages of a load; `None` if cp.async cannot copy it (no aligned vector of 4 bytes or
    /// more).
    fn plan_staging(&mut self, position: usize) -> Option<StagedLoad> {
        let tensor = self.tensor_in_memory(position)?;
        let (tile, stored) = (&self.plan.steps.tiles[position], &self.plan.request.stored[tensor.index()]);
        if !stored.dtype.is_float() {
            return None;
        }
        let full = self.plan.request.graph.shape(tensor);
        let rank = full.len();
        let inner = (0..rank).rev().find(|&dim| stored.strides[dim] == 1 && tile.shape[dim] > 1)?;
        let size = stored.dtype.size_bytes();
        let chunks = [VECTOR_BYTES, 8, 4].map(|bytes| bytes / size);
        let chunk = chunks
            .into_iter()
            .find(|&chunk| chunk > 0 && self.is_vectorizable(position, tensor, (inner, chunk)))?;
        let k_dim = self.plan.steps.k_dims(position);
        let mut padded = self.padded_extents(&tile.shape, &k_dim, inner, stored.dtype);
        let stages = self.stages_of(position);
        let (dtype, mut lines) = (stored.dtype, self.b_swizzle_dims(position, inner, stored.dtype));
        if let Some([line, inner]) = self.skinny_a_swizzle_dims(position, inner, stored.dtype) {
            (padded[line], lines) = (self.warp_groups() * WARP_GROUP_ROWS, Some([line, inner]));
        }
        lines = lines.or_else(|| self.held_a_swizzle_dims(position, inner, dtype));
        let (view, stage_elems) = match lines {
            Some(lines) => self.alloc_swizzled(dtype, &padded, lines, stages),
            None => self.alloc_stages("staged", dtype, &padded, inner, stages),
        };
        Some(StagedLoad { tile: position, view, stage_elems, inner, chunk, tma: None })
    }

    /// Allocates a tile in shared memory, `inner` its contiguous dimension.
    pub fn alloc_shared(&mut self, name: &str, dtype: DType, padded: &[usize], inner: usize) -> SharedTile {
        self.alloc_stages(name, dtype, padded, inner, 1).0
    }

    /// Allocates `count` tiles one after the other: the first one, and the elements of each.
    fn alloc_stages(
        &mut self,
        name: &str,
        dtype: DType,
        padded: &[usize],
        inner: usize,
        count: usize,
    ) -> (SharedTile, usize) {
        let (strides, elems) = line_strides(padded, inner, dtype);
        let buffer = self.add_buffer(name, dtype, elems * count, Scope::Shared);
        let base = self.index(0);
        (SharedTile { buffer, base, strides, padded: padded.to_vec(), swizzle: None }, elems)
    }

    /// Statements that issue the copies of an iteration's tile to a stage, by TMA or cp.async: `[round,
    /// thread]` of chunks. Padding is filled with zeros.
    pub fn issue_load(&mut self, staged: &StagedLoad, iteration: ExprId, stage: ExprId) -> Vec<Stmt> {
        if let Some(tma) = &staged.tma {
            return self.issue_tma((staged, tma), iteration, stage);
        }
        let StagedLoad { tile, view, stage_elems, inner, chunk, .. } = staged;
        let Some(tensor) = self.tensor_in_memory(*tile) else { return Vec::new() };
        let Some(buffer) = self.arguments[tensor.index()] else { return Vec::new() };
        let shape = self.plan.steps.tiles[*tile].shape.clone();
        let mut counts = view.padded.clone();
        let across = counts.remove(*inner) / chunk;
        counts.push(across);
        let threads = self.threads();
        let chunks = crate::op::elems(&counts);
        let rounds = chunks.div_ceil(threads);
        self.loop_of("round", rounds, BlockEmitter::round_loop_kind(rounds), |this, round| {
            // [round, thread]
            let at = this.program.exprs.linear_index(&[round, this.ids.thread], &[threads, 1]);
            let exists = this.is_below(at, chunks).filter(|_| !chunks.is_multiple_of(threads));
            let mut body = Vec::new();
            let mut coords = Vec::new();
            let parts = this.program.exprs.unflatten(at, &counts);
            for (&part, &count) in parts.iter().zip(&counts) {
                coords.push(this.bind_index(&mut body, "at", part, (count, 1)));
            }
            let first = coords.pop().map(|part| this.program.exprs.mul_const(part, *chunk as i64));
            if let Some(first) = first {
                coords.insert(*inner, first);
            }
            let (position, mut mask) = this.tensor_coords(*tile, &coords, iteration);
            for dim in (0..shape.len()).filter(|&dim| shape[dim] < view.padded[dim]) {
                let inside = this.is_below(coords[dim], shape[dim]);
                mask = this.program.exprs.and_guard(mask, inside);
            }
            let from = Location { buffer, offset: this.tensor_offset(tensor, &position) };
            let base = this.program.exprs.mul_const(stage, *stage_elems as i64);
            let to = this.shared_offset(&SharedTile { base, ..view.clone() }, &coords);
            let to = Location { buffer: view.buffer, offset: to };
            body.push(Stmt::Cta(CtaStmt::CpAsync { to, from, elems: *chunk, real: None, mask }));
            match exists {
                Some(condition) => vec![Stmt::If { condition, then: body, otherwise: Vec::new() }],
                None => body,
            }
        })
    }

    /// `[iteration % stages, iteration / stages]`: the stage of an iteration, and the phase of its mbarriers.
    pub fn stage_and_phase(&mut self, iteration: ExprId, stages: usize) -> [ExprId; 2] {
        let count = self.index(stages);
        let exprs = &mut self.program.exprs;
        let parts = [exprs.floor_rem(iteration, count), exprs.floor_div(iteration, count)];
        parts.map(|id| self.simplifier.simplify(&mut self.program.exprs, id))
    }

    /// The stage of a load's tile in an iteration, and the phase of its full mbarrier: in the loop those of the ring; before it,
    /// where there is one stage, the phase is the number of the CTA's block.
    pub fn load_stage_and_phase(&mut self, staged: &StagedLoad, iteration: ExprId) -> [ExprId; 2] {
        let index = match self.plan.steps.tiles[staged.tile].stage {
            Stage::Loop => self.ring_index(iteration),
            _ => self.block_loop.as_ref().map_or(iteration, |blocks| blocks.wave),
        };
        self.stage_and_phase(index, self.stages_of(staged.tile))
    }

    /// Offset of the stage of an iteration.
    pub fn stage_base(&mut self, staged: &StagedLoad, iteration: ExprId) -> ExprId {
        let [stage, _] = self.load_stage_and_phase(staged, iteration);
        self.program.exprs.mul_const(stage, staged.stage_elems as i64)
    }

    /// From here on readers of a staged tile read the stage that holds it in the given iteration.
    pub fn set_staged_home(&mut self, staged: &StagedLoad, iteration: ExprId) {
        let base = self.stage_base(staged, iteration);
        self.tiles.homes[staged.tile] = vec![TileHome::Shared(SharedTile { base, ..staged.view.clone() })];
    }
}

/// Strides of a tile in shared memory, `inner` its contiguous dimension, and its elements.
pub(super) fn line_strides(padded: &[usize], inner: usize, dtype: DType) -> (Vec<usize>, usize) {
    let mut strides = vec![1; padded.len()];
    let mut elems = padded.get(inner).map_or(1, |&extent| line_elems(extent, dtype));
    for dim in (0..padded.len()).rev().filter(|&dim| dim != inner) {
        strides[dim] = elems;
        elems *= padded[dim];
    }
    (strides, elems)
}

/// Elements from one row of a tile to the next: an odd number of 16-byte vectors, so that the 8 rows that
/// ldmatrix reads are in different banks.
fn line_elems(extent: usize, dtype: DType) -> usize {
    let vector = VECTOR_BYTES / dtype.size_bytes();
    if extent.is_multiple_of(2 * vector) { extent + vector } else { extent }
}
