//! Tensors in global memory: the part that a block sees, and how it comes to shared memory.

use super::boxes::Boxes;
use super::lowering::Lowering;
use super::steps::Step;
use super::tiles::GROUP_ROWS;
use super::value::{Place, View};
use crate::graph::TensorId;
use crate::lower::Stored;
use crate::op::Op;
use crate::tiling::Stage;
use orch_compute::ExprId;
use orch_ir::DType;
use orch_thread::{CtaStmt, Location, Scope, Stmt};

/// Bytes of a vector access.
pub(super) const VECTOR_BYTES: usize = 16;

/// A load whose tile is copied to shared memory as it is.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    pub tile: usize,
    pub view: View,
    /// Elements from one iteration's tile to the next one's.
    pub stage_elems: usize,
    /// The dimension whose elements are neighbours, and how many are copied at a time.
    inner: usize,
    chunk: usize,
    /// If the copy engine brings it.
    pub boxes: Option<Boxes>,
}

/// Whether threads copy any of the tiles, so that groups of copies are to be waited for.
pub(super) fn any_copied(staged: &[Staged]) -> bool {
    staged.iter().any(|staged| staged.boxes.is_none())
}

impl Lowering<'_> {
    /// The tensor of a load that is in memory.
    pub fn tensor_in_memory(&self, tile: usize) -> Option<TensorId> {
        match self.steps.tiles[tile].step {
            Step::Load { tensor, .. } if self.request.graph.computed_mask(tensor).is_none() => Some(tensor),
            _ => None,
        }
    }

    /// The coordinates in a tensor of an element of a load's tile, and the condition that they exist.
    pub fn position(
        &mut self,
        tile: usize,
        coords: &[ExprId],
        iteration: ExprId,
    ) -> (Vec<ExprId>, Option<ExprId>) {
        let iteration = self.iteration_of_block(iteration);
        let tile = &self.steps.tiles[tile];
        let Step::Load { tensor, grid, along_loop } = &tile.step else { return (coords.to_vec(), None) };
        let mut position = coords.to_vec();
        let exprs = &mut self.program.exprs;
        for (&dim, &block) in grid.iter().zip(&self.block) {
            let Some(dim) = dim else { continue };
            let iterations = if *along_loop == Some(dim) { self.steps.loop_range } else { 1 };
            let start = exprs.mul_const(block, (tile.shape[dim] * iterations) as i64);
            position[dim] = exprs.add2(start, position[dim]);
        }
        if let Some(dim) = *along_loop {
            let start = exprs.mul_const(iteration, tile.shape[dim] as i64);
            position[dim] = exprs.add2(start, position[dim]);
        }
        let shape = self.request.graph.shape(*tensor);
        let mut guard = None;
        for dim in (0..shape.len()).filter(|&dim| tile.ragged[dim]) {
            let inside = self.below(position[dim], shape[dim]);
            guard = self.program.exprs.and_guard(guard, inside);
        }
        (position, guard)
    }

    /// An element of a tensor, as f32.
    pub fn read_tensor(&mut self, tile: usize, coords: &[ExprId], iteration: ExprId) -> ExprId {
        let (position, guard) = self.position(tile, coords, iteration);
        let Step::Load { tensor, .. } = self.steps.tiles[tile].step else { return self.float(0.0) };
        if let Some(op) = self.request.graph.computed_mask(tensor).cloned() {
            return self.mask_at(&op, &position);
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

    /// The place of an element of a tensor.
    pub fn tensor_offset(&mut self, tensor: TensorId, position: &[ExprId]) -> ExprId {
        let Stored { strides, offset, .. } = &self.request.stored[tensor.index()];
        let within = self.program.exprs.linear_index(position, strides);
        let place = self.program.exprs.add_const(within, *offset as i64);
        self.simplifier.simplify(&mut self.program.exprs, place)
    }

    /// One or zero by the index alone.
    fn mask_at(&mut self, op: &Op, position: &[ExprId]) -> ExprId {
        let (zero, one) = (self.float(0.0), self.float(1.0));
        let exprs = &mut self.program.exprs;
        let condition = match (op, position) {
            (Op::Causal { offset, .. }, [.., row, column]) => {
                // Farther than any index, so that nothing overflows.
                let last = exprs.add_const(*row, (*offset).clamp(-(1 << 40), 1 << 40));
                exprs.le(*column, last)
            }
            (Op::Below { dim, limit, .. }, position) => {
                let limit = exprs.index((*limit).min(1 << 40) as i64);
                exprs.lt(position[*dim], limit)
            }
            _ => exprs.bool(true),
        };
        let condition = self.simplifier.simplify(&mut self.program.exprs, condition);
        self.program.exprs.select(condition, one, zero)
    }

    /// The loads that are copied to shared memory, with room for the tiles of several iterations.
    pub fn stage_loads(&mut self) -> Vec<Staged> {
        let tiles: Vec<usize> =
            (0..self.steps.tiles.len()).filter(|&tile| self.is_worth_staging(tile)).collect();
        let mut staged: Vec<Staged> = tiles.into_iter().filter_map(|tile| self.staged(tile)).collect();
        self.box_tiles(&mut staged);
        staged
    }

    /// Iterations whose tiles of a load are in shared memory at once.
    pub fn stages_of(&self, tile: usize) -> usize {
        if self.steps.tiles[tile].stage == Stage::Loop { self.plan.stages } else { 1 }
    }

    fn is_worth_staging(&self, position: usize) -> bool {
        let tile = &self.steps.tiles[position];
        if tile.readers == 0 || self.tensor_in_memory(position).is_none() || self.is_stream(position) {
            return false;
        }
        let waits = |step: &Step| match step {
            Step::Op { op, .. } => matches!(op, Op::Matmul | Op::Reduce { .. }),
            Step::RunningMax { .. } => true,
            Step::Load { .. } | Step::Accumulate { .. } => false,
        };
        let is_reduced =
            self.steps.only_reader(position).is_some_and(|reader| waits(&self.steps.tiles[reader].step));
        let any_waits = self.steps.tiles.iter().any(|tile| tile.readers > 0 && waits(&tile.step));
        let is_factor = !self.steps.term_dims(position).is_empty();
        tile.stage == Stage::Loop
            || is_factor
            || self.plan.stages_all && (tile.readers > 1 || any_waits && !is_reduced)
    }

    /// Whether a tile lies in a tensor in whole chunks of so many elements along a dimension.
    pub fn has_chunks(&self, tile: usize, tensor: TensorId, (inner, chunk): (usize, usize)) -> bool {
        let (tile, stored) = (&self.steps.tiles[tile], &self.request.stored[tensor.index()]);
        let full = self.request.graph.shape(tensor);
        let ends = if tile.ragged[inner] { full[inner] } else { 0 };
        let mut others = (0..full.len()).filter(|&dim| dim != inner && full[dim] > 1);
        stored.strides[inner] == 1
            && [tile.shape[inner], stored.offset, ends].iter().all(|place| place.is_multiple_of(chunk))
            && others.all(|dim| stored.strides[dim].is_multiple_of(chunk))
    }

    /// How a load is copied, if its elements can be.
    fn staged(&mut self, position: usize) -> Option<Staged> {
        let tensor = self.tensor_in_memory(position)?;
        let (tile, stored) = (&self.steps.tiles[position], &self.request.stored[tensor.index()]);
        if !stored.dtype.is_float() {
            return None;
        }
        let full = self.request.graph.shape(tensor);
        let rank = full.len();
        let inner = (0..rank).rev().find(|&dim| stored.strides[dim] == 1 && tile.shape[dim] > 1)?;
        let size = stored.dtype.size_bytes();
        let chunks = [VECTOR_BYTES, 8, 4].map(|bytes| bytes / size);
        let chunk = chunks
            .into_iter()
            .find(|&chunk| chunk > 0 && self.has_chunks(position, tensor, (inner, chunk)))?;
        let terms = self.steps.term_dims(position);
        let mut padded = self.padded(&tile.shape, &terms, inner, stored.dtype);
        let stages = self.stages_of(position);
        let (dtype, mut lines) = (stored.dtype, self.tile_lines(position, inner, stored.dtype));
        if let Some([line, inner]) = self.first_lines(position, inner, stored.dtype) {
            (padded[line], lines) = (self.groups() * GROUP_ROWS, Some([line, inner]));
        }
        let (view, stage_elems) = match lines {
            Some(lines) => self.new_tiles(dtype, &padded, lines, stages),
            None => self.new_views("staged", dtype, &padded, inner, stages),
        };
        Some(Staged { tile: position, view, stage_elems, inner, chunk, boxes: None })
    }

    /// A tile of f32 or another type in shared memory, `inner` its fastest dimension.
    pub fn new_view(&mut self, name: &str, dtype: DType, padded: &[usize], inner: usize) -> View {
        self.new_views(name, dtype, padded, inner, 1).0
    }

    /// Several tiles one after the other: the first one, and the elements of each.
    fn new_views(
        &mut self,
        name: &str,
        dtype: DType,
        padded: &[usize],
        inner: usize,
        count: usize,
    ) -> (View, usize) {
        let mut strides = vec![1; padded.len()];
        let mut elems = padded.get(inner).map_or(1, |&extent| line_elems(extent, dtype));
        for dim in (0..padded.len()).rev().filter(|&dim| dim != inner) {
            strides[dim] = elems;
            elems *= padded[dim];
        }
        let buffer = self.add_buffer(name, dtype, elems * count, Scope::Shared);
        let base = self.index(0);
        (View { buffer, base, strides, padded: padded.to_vec(), lines: None }, elems)
    }

    /// Statements that start copying a load's tile of an iteration.
    pub fn fetch(&mut self, staged: &Staged, iteration: ExprId, slot: ExprId) -> Vec<Stmt> {
        if let Some(boxes) = &staged.boxes {
            return self.fetch_boxes((staged, boxes), iteration, slot);
        }
        let Staged { tile, view, stage_elems, inner, chunk, .. } = staged;
        let Some(tensor) = self.tensor_in_memory(*tile) else { return Vec::new() };
        let Some(buffer) = self.arguments[tensor.index()] else { return Vec::new() };
        let shape = self.steps.tiles[*tile].shape.clone();
        let mut counts = view.padded.clone();
        let across = counts.remove(*inner) / chunk;
        counts.push(across);
        let threads = self.threads();
        let chunks = crate::op::elems(&counts);
        let rounds = chunks.div_ceil(threads);
        self.repeated("round", rounds, Lowering::rounds_kind(rounds), |this, round| {
            let at = this.program.exprs.linear_index(&[round, this.thread], &[threads, 1]);
            let exists = this.below(at, chunks).filter(|_| !chunks.is_multiple_of(threads));
            let mut body = Vec::new();
            let mut coords = Vec::new();
            let parts = this.program.exprs.unflatten(at, &counts);
            for (&part, &count) in parts.iter().zip(&counts) {
                coords.push(this.bind(&mut body, "at", part, (count, 1)));
            }
            let first = coords.pop().map(|part| this.program.exprs.mul_const(part, *chunk as i64));
            if let Some(first) = first {
                coords.insert(*inner, first);
            }
            let (position, mut mask) = this.position(*tile, &coords, iteration);
            for dim in (0..shape.len()).filter(|&dim| shape[dim] < view.padded[dim]) {
                let inside = this.below(coords[dim], shape[dim]);
                mask = this.program.exprs.and_guard(mask, inside);
            }
            let from = Location { buffer, offset: this.tensor_offset(tensor, &position) };
            let base = this.program.exprs.mul_const(slot, *stage_elems as i64);
            let to = this.offset(&View { base, ..view.clone() }, &coords);
            let to = Location { buffer: view.buffer, offset: to };
            body.push(Stmt::Cta(CtaStmt::CpAsync { to, from, elems: *chunk, real: None, mask }));
            match exists {
                Some(condition) => vec![Stmt::If { condition, then: body, otherwise: Vec::new() }],
                None => body,
            }
        })
    }

    /// The stage of an iteration, of so many, and how often that has been filled before.
    pub fn stage_and_turn(&mut self, iteration: ExprId, stages: usize) -> [ExprId; 2] {
        let count = self.index(stages);
        let exprs = &mut self.program.exprs;
        let parts = [exprs.floor_rem(iteration, count), exprs.floor_div(iteration, count)];
        parts.map(|id| self.simplifier.simplify(&mut self.program.exprs, id))
    }

    /// The place of the first element of an iteration's tile.
    pub fn stage_start(&mut self, staged: &Staged, iteration: ExprId) -> ExprId {
        let stages = self.stages_of(staged.tile);
        let [stage, _] = self.stage_and_turn(iteration, stages);
        self.program.exprs.mul_const(stage, staged.stage_elems as i64)
    }

    /// Lets an iteration's staged tile be read.
    pub fn place_staged(&mut self, staged: &Staged, iteration: ExprId) {
        let base = self.stage_start(staged, iteration);
        self.places[staged.tile] = vec![Place::Shared(View { base, ..staged.view.clone() })];
    }
}

/// Elements of a line of neighbours: an odd number of vectors, so that the same vectors of lines are in different banks.
fn line_elems(extent: usize, dtype: DType) -> usize {
    let vector = VECTOR_BYTES / dtype.size_bytes();
    if extent.is_multiple_of(2 * vector) { extent + vector } else { extent }
}
