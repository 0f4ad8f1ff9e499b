//! Tiles that the copy engine brings: factors of products of whole tiles, if their tensors are plain arrays.
//!
//! A tile comes in boxes: one for each leading element and panel of 64 neighbours, cut below one another where another tile
//! needs more of them, because all slots count as many. Each tile has slots of its own, one for each stage, and is awaited
//! where it is read first: what needs one tile does not wait for the next. Tiles of few rows have room for all rows of a product
//! of tiles, in which is whatever was there before ([`few_rows`](super::few_rows)): the copy engine takes longer over lines
//! outside of a tensor than over others.

use super::emitter::BlockEmitter;
use super::skinny::skinny_products;
use super::staging::StagedLoad;
use orch_compute::{BufferId, ExprId};
use orch_thread::cta::SWIZZLE_ROW;
use orch_thread::tma::MAX_TMA_ROWS;
use orch_thread::{CtaStmt, Location, Mbarriers, Stmt, TensorMap, TensorMapId};

/// Lines that boxes are cut at multiples of, which a swizzled tile repeats after.
const SPLIT_ROWS: usize = 8;

/// How a tile comes in boxes.
#[derive(Clone, Debug)]
pub(super) struct TmaTile {
    map: TensorMapId,
    /// The slot of its first stage.
    first_mbarrier: usize,
    /// The dimensions of lines and of their elements.
    swizzle_dims: [usize; 2],
    /// Boxes below one another, and lines from one to the next.
    row_parts: [usize; 2],
    /// The dimensions of the tensor that the view has.
    map_dims: Vec<usize>,
}

/// A tile that is under way in boxes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingTma {
    pub buffer: BufferId,
    pub mbarrier: ExprId,
    pub phase: ExprId,
}

impl BlockEmitter<'_> {
    /// Lets the copy engine bring the tiles that it can.
    pub fn assign_tma(&mut self, staged: &mut [StagedLoad]) {
        let least = |staged: &StagedLoad| Some(Self::min_tma_loads(staged, staged.view.swizzle?[0]));
        let boxes = staged.iter().filter_map(least).max();
        let Some(boxes) = boxes else { return };
        let mut mbarriers = 0;
        for staged in staged {
            if let Some(lines) = staged.view.swizzle
                && let Some(parts) = self.split_rows(staged, lines[0], boxes)
                && let Some((map, dims)) = self.tensor_map_of(staged, lines, parts[1])
            {
                self.tma_tiles.push(staged.tile);
                let map = self.program.add_tensor_map(map);
                staged.tma = Some(TmaTile {
                    map,
                    first_mbarrier: mbarriers,
                    swizzle_dims: lines,
                    row_parts: parts,
                    map_dims: dims,
                });
                mbarriers += self.stages_of(staged.tile);
            }
        }
        if mbarriers > 0 {
            self.program.mbarriers = Mbarriers { full: mbarriers, loads: boxes, empty: 0 };
        }
    }

    /// Whether boxes bring a second factor of few rows.
    pub fn loads_skinny_b_by_tma(&self) -> bool {
        skinny_products(self.plan.steps).iter().any(|(_, second)| self.tma_tiles.contains(second))
    }

    /// The fewest boxes in which a tile comes whose lines are along a dimension.
    fn min_tma_loads(staged: &StagedLoad, line: usize) -> usize {
        Self::swizzle_panels(staged, line) * staged.view.padded[line].div_ceil(MAX_TMA_ROWS)
    }

    /// Boxes beside one another that a tile has.
    fn swizzle_panels(staged: &StagedLoad, line: usize) -> usize {
        staged.stage_elems / (staged.view.padded[line] * SWIZZLE_ROW)
    }

    /// A tile in so many boxes: those below one another, and lines from one to the next.
    fn split_rows(&self, staged: &StagedLoad, line: usize, boxes: usize) -> Option<[usize; 2]> {
        let (padded, rows) = (staged.view.padded[line], self.plan.steps.tiles[staged.tile].shape[line]);
        let panels = Self::swizzle_panels(staged, line);
        let parts = boxes / panels;
        let is_cut = |lines: &usize| lines.is_multiple_of(parts * SPLIT_ROWS);
        let lines = [rows, padded].into_iter().find(is_cut).filter(|_| boxes.is_multiple_of(panels))?;
        Some([parts, lines / parts])
    }

    /// The tensor of a tile as the copy engine takes it, in boxes of at most so many lines; and its dimensions.
    fn tensor_map_of(
        &self,
        staged: &StagedLoad,
        [line, inner]: [usize; 2],
        most: usize,
    ) -> Option<(TensorMap, Vec<usize>)> {
        let tensor = self.tensor_in_memory(staged.tile)?;
        let buffer = self.arguments[tensor.index()]?;
        let (stored, full) =
            (&self.plan.request.stored[tensor.index()], self.plan.request.graph.shape(tensor));
        let others = (0..full.len()).rev().filter(|&dim| ![line, inner].contains(&dim) && full[dim] > 1);
        let dims: Vec<usize> = [inner, line].into_iter().chain(others).collect();
        let map = TensorMap {
            name: format!("{}_view", self.program.buffer(buffer).name),
            buffer,
            offset: stored.offset,
            extents: dims.iter().map(|&dim| full[dim]).collect(),
            // Of a single line the stride is anything.
            strides: (dims[1..].iter())
                .map(|&dim| if full[dim] == 1 { SWIZZLE_ROW } else { stored.strides[dim] })
                .collect(),
            rows: self.plan.steps.tiles[staged.tile].shape[line].min(most),
        };
        let is_plain = stored.strides[inner] == 1 && map.strides.iter().all(|&stride| stride > 0);
        (is_plain && map.is_encodable(self.program.buffer(buffer))).then_some((map, dims))
    }

    /// Statements that start copying a tile of an iteration to a stage, in boxes.
    pub fn issue_tma(
        &mut self,
        (staged, tma): (&StagedLoad, &TmaTile),
        iteration: ExprId,
        stage: ExprId,
    ) -> Vec<Stmt> {
        let [line, inner] = tma.swizzle_dims;
        let mut counts = staged.view.padded.clone();
        counts[line] = tma.row_parts[0];
        counts[inner] /= SWIZZLE_ROW;
        let base = self.program.exprs.mul_const(stage, staged.stage_elems as i64);
        let mbarrier = self.program.exprs.add_const(stage, tma.first_mbarrier as i64);
        let mut stmts = Vec::new();
        for number in 0..crate::op::elems(&counts) {
            let number = self.index(number);
            let mut coords = self.program.exprs.unflatten(number, &counts);
            coords[line] = self.program.exprs.mul_const(coords[line], tma.row_parts[1] as i64);
            coords[inner] = self.program.exprs.mul_const(coords[inner], SWIZZLE_ROW as i64);
            let offset =
                self.shared_offset(&super::value::SharedTile { base, ..staged.view.clone() }, &coords);
            let (position, _) = self.tensor_coords(staged.tile, &coords, iteration);
            let at = tma.map_dims.iter().map(|&dim| position[dim]);
            let at = at.map(|id| self.simplifier.simplify(&mut self.program.exprs, id)).collect();
            let to = Location { buffer: staged.view.buffer, offset };
            stmts.push(Stmt::Cta(CtaStmt::TmaLoad { to, map: tma.map, at, mbarrier }));
        }
        stmts
    }

    /// Notes that the boxes of a tile are to be awaited, if it comes in boxes.
    pub fn expect_tma(&mut self, staged: &StagedLoad, iteration: ExprId) {
        let pending = self.pending_tma(staged, iteration);
        self.pending.tma.extend(pending);
    }

    /// The boxes of an iteration's tile.
    pub fn pending_tma(&mut self, staged: &StagedLoad, iteration: ExprId) -> Option<PendingTma> {
        let first_mbarrier = staged.tma.as_ref()?.first_mbarrier;
        let stages = self.stages_of(staged.tile);
        let [stage, phase] = self.stage_and_phase(iteration, stages);
        let mbarrier = self.program.exprs.add_const(stage, first_mbarrier as i64);
        Some(PendingTma { buffer: staged.view.buffer, mbarrier, phase })
    }

    /// Awaits the boxes that are due of such buffers.
    pub fn wait_for_tma(&mut self, is_wanted: impl Fn(BufferId) -> bool) {
        let (wanted, later) = self.pending.tma.iter().copied().partition(|pending| is_wanted(pending.buffer));
        self.pending.tma = later;
        self.code.body.extend(Vec::into_iter(wanted).map(PendingTma::wait_stmt));
    }
}

impl PendingTma {
    /// The statement that awaits it.
    pub fn wait_stmt(self) -> Stmt {
        Stmt::Cta(CtaStmt::MbarrierWaitFull { mbarrier: self.mbarrier, phase: self.phase })
    }
}
