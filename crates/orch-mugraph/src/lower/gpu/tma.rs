//! TMA loads of staged tiles: operands of wgmma whose tensors a tensor map describes.
//!
//! ```text
//! tile [rows, columns] in shared memory, 128-byte swizzle:
//!   panel 0: rows x 64 columns | panel 1: rows x 64 columns | ...       one TMA load per panel,
//!   panels are split along the rows where another tile has more loads:  all full mbarriers expect the same number of loads
//! full mbarriers: one per stage of each tile, `first_mbarrier + stage`
//! ```
//!
//! Each tile has full mbarriers of its own, so that what reads one tile does not wait for the next. They are
//! waited for where the tile is first read. The tile of a skinny A has the 64 rows per warp group that wgmma
//! reads; only those that exist are loaded, as TMA takes longer for rows outside of the tensor than for
//! others; the rest holds arbitrary values, whose results are not stored.

use super::emitter::BlockEmitter;
use super::skinny::skinny_products;
use super::staging::StagedLoad;
use orch_compute::{BufferId, ExprId};
use orch_thread::cta::SWIZZLE_ROW;
use orch_thread::tma::MAX_TMA_ROWS;
use orch_thread::{CtaStmt, Location, Mbarriers, Stmt, TensorMap, TensorMapId};

/// A panel is split along rows at multiples of this: the swizzle repeats after 8 rows.
const SPLIT_ROWS: usize = 8;

/// How TMA loads a staged tile.
#[derive(Clone, Debug)]
pub(super) struct TmaTile {
    /// The tensor map, whose tile is one load.
    map: TensorMapId,
    /// The full mbarrier of the first stage.
    first_mbarrier: usize,
    /// The `[row, column]` dimensions of the swizzled tile.
    swizzle_dims: [usize; 2],
    /// Loads along the rows, and rows from one load to the next.
    row_parts: [usize; 2],
    /// The tensor's dimension for each extent of the map, contiguous first.
    map_dims: Vec<usize>,
}

/// A TMA load of a tile that has been issued and not waited for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingTma {
    /// The shared buffer that it fills.
    pub buffer: BufferId,
    /// The full mbarrier, and the phase that its arrival completes.
    pub mbarrier: ExprId,
    pub phase: ExprId,
}

impl BlockEmitter<'_> {
    /// Assigns TMA to the staged loads that it can load, with tensor maps and full mbarriers.
    pub fn assign_tma(&mut self, staged: &mut [StagedLoad]) {
        let least = |staged: &StagedLoad| Some(Self::min_tma_loads(staged, staged.view.swizzle?[0]));
        let loads = staged.iter().filter_map(least).max();
        let Some(loads) = loads else { return };
        let mut mbarriers = 0;
        for staged in staged {
            if let Some(lines) = staged.view.swizzle
                && let Some(parts) = self.split_rows(staged, lines[0], loads)
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
            self.program.mbarriers = Mbarriers { full: mbarriers, loads, empty: 0 };
        }
    }

    /// Whether TMA loads the B of a product of a skinny GEMM.
    pub fn loads_skinny_b_by_tma(&self) -> bool {
        skinny_products(self.plan.steps).iter().any(|(_, second)| self.tma_tiles.contains(second))
    }

    /// The fewest loads of a tile: one per panel and 256 rows.
    fn min_tma_loads(staged: &StagedLoad, line: usize) -> usize {
        Self::swizzle_panels(staged, line) * staged.view.padded[line].div_ceil(MAX_TMA_ROWS)
    }

    /// Panels of 64 columns, over all leading indices.
    fn swizzle_panels(staged: &StagedLoad, line: usize) -> usize {
        staged.stage_elems / (staged.view.padded[line] * SWIZZLE_ROW)
    }

    /// Splits a tile into exactly `loads` loads: the number along the rows, and the rows of each; `None` if
    /// they do not divide evenly.
    fn split_rows(&self, staged: &StagedLoad, line: usize, loads: usize) -> Option<[usize; 2]> {
        let (padded, rows) = (staged.view.padded[line], self.plan.steps.tiles[staged.tile].shape[line]);
        let panels = Self::swizzle_panels(staged, line);
        let parts = loads / panels;
        let is_cut = |lines: &usize| lines.is_multiple_of(parts * SPLIT_ROWS);
        let lines = [rows, padded].into_iter().find(is_cut).filter(|_| loads.is_multiple_of(panels))?;
        Some([parts, lines / parts])
    }

    /// The tensor map of a staged load, in loads of at most `most` rows, and the tensor's dimensions in the
    /// map's order; `None` if the hardware cannot encode it.
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
            // The stride of an extent of 1 is never used, but must be valid.
            strides: (dims[1..].iter())
                .map(|&dim| if full[dim] == 1 { SWIZZLE_ROW } else { stored.strides[dim] })
                .collect(),
            rows: self.plan.steps.tiles[staged.tile].shape[line].min(most),
        };
        let is_plain = stored.strides[inner] == 1 && map.strides.iter().all(|&stride| stride > 0);
        (is_plain && map.is_encodable(self.program.buffer(buffer))).then_some((map, dims))
    }

    /// Statements that issue the TMA loads of an iteration's tile to a stage: one per leading index, row part
    /// and panel.
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
        // counts: [lead.., row part, panel], in the order of the tile's dimensions
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

    /// Notes that a staged tile has to be waited for before it is read, if TMA loads it.
    pub fn expect_tma(&mut self, staged: &StagedLoad, iteration: ExprId) {
        let pending = self.pending_tma(staged, iteration);
        self.pending.tma.extend(pending);
    }

    /// The mbarrier and phase of an iteration's tile.
    pub fn pending_tma(&mut self, staged: &StagedLoad, iteration: ExprId) -> Option<PendingTma> {
        let first_mbarrier = staged.tma.as_ref()?.first_mbarrier;
        let [stage, phase] = self.load_stage_and_phase(staged, iteration);
        let mbarrier = self.program.exprs.add_const(stage, first_mbarrier as i64);
        Some(PendingTma { buffer: staged.view.buffer, mbarrier, phase })
    }

    /// Waits for the pending loads of buffers that `is_wanted` selects.
    pub fn wait_for_tma(&mut self, is_wanted: impl Fn(BufferId) -> bool) {
        let (wanted, later) = self.pending.tma.iter().copied().partition(|pending| is_wanted(pending.buffer));
        self.pending.tma = later;
        self.code.body.extend(Vec::into_iter(wanted).map(PendingTma::wait_stmt));
    }
}

impl PendingTma {
    /// The wait for the full mbarrier's phase.
    pub fn wait_stmt(self) -> Stmt {
        Stmt::Cta(CtaStmt::MbarrierWaitFull { mbarrier: self.mbarrier, phase: self.phase })
    }
}
