//! Products that run while the loop computes what follows another one: of attention, the values of one iteration are added
//! while the scores of the next one become weights.
//!
//! ```text
//! scores = queries * keys[i]                  runs on
//! sums  += weights * values[i - 1]            runs on, and waits for the scores
//! maxima, exponentials and their sums
//! await keys[i + 1]
//! settle
//! sums  *= rescale; weights = exponentials
//! ```
//!
//! The last iteration's product is added after the loop. Compilers move the end of a product before what is computed while
//! it runs, but not across a wait: the next keys are awaited there, instead of where they are multiplied. It is the order of
//! FlashAttention-3 within a warp group (Shah et al. 2024, section 3.2), for one product of 64 rows by each group.

use super::accumulate::{LoopAccumulator, Rescale};
use super::emitter::BlockEmitter;
use super::mma::{OperandA, TileGemm};
use super::staging::StagedLoad;
use super::steps::TileStep;
use super::tma::PendingTma;
use super::wgmma::is_per_warp_group;
use crate::op::Op;
use crate::tiling::Stage;
use orch_thread::{CtaStmt, Scope, Stmt};

/// A product of the loop that is added an iteration later.
#[derive(Clone, Debug)]
pub(super) struct SoftmaxOverlap {
    /// The product whose sums it is made of, after which it is added.
    pub scores: usize,
    /// The product, and its second factor.
    gemm: usize,
    pub values: usize,
    /// How its second factor comes, and that of the scores.
    staged: StagedLoad,
    keys: StagedLoad,
    /// Where in the loop it is added: behind the other product, once that is written.
    pub place: Option<usize>,
    /// Adds the last iteration's product, once that is known.
    pub last: Vec<Stmt>,
}

impl SoftmaxOverlap {
    /// Whether both products have been found to be of whole tiles, and written so.
    pub fn is_written(&self) -> bool {
        !self.last.is_empty()
    }
}

impl BlockEmitter<'_> {
    /// The product that is to be added an iteration later, if the plan asks for it and there is one.
    pub fn find_overlap(&self, looped: &[StagedLoad]) -> Option<SoftmaxOverlap> {
        if !self.plan.schedule.overlaps_softmax || self.plan.schedule.stages < 2 || self.plan.steps.unroll > 1
        {
            return None;
        }
        let is_product =
            |tile: &usize| matches!(self.plan.steps.tiles[*tile].step, TileStep::Op { op: Op::Matmul, .. });
        let products: Vec<usize> =
            self.plan.steps.in_stage(Stage::Loop).into_iter().filter(is_product).collect();
        let &[scores, gemm] = products.as_slice() else { return None };
        let of_one_tile = |tile: usize| {
            let rows = self.warp_grid(&self.plan.steps.tiles[tile].shape);
            rows.is_some_and(|rows| is_per_warp_group(&rows) && rows.batch() == 1 && rows.row_tiles() == 1)
        };
        let values = self.plan.steps.tiles[gemm].step.args()[1];
        let suits = products.iter().all(|&tile| of_one_tile(tile) && !self.exceeds_registers(tile))
            && self.fused_accumulator(scores).is_none()
            && self.fused_accumulator(gemm).is_some()
            && self.plan.steps.only_reader(values) == Some(gemm);
        let boxed = |tile| looped.iter().find(|staged| staged.tile == tile && staged.tma.is_some()).cloned();
        let (staged, keys) =
            (boxed(values)?, boxed(self.untransposed(self.plan.steps.tiles[scores].step.args()[1]))?);
        let (place, last) = (None, Vec::new());
        suits.then_some(SoftmaxOverlap { scores, gemm, values, staged, keys, place, last })
    }

    /// What a tile is a transposition of, or itself.
    fn untransposed(&self, tile: usize) -> usize {
        match &self.plan.steps.tiles[tile].step {
            TileStep::Op { op: Op::Transpose(_), args } => self.untransposed(args[0]),
            _ => tile,
        }
    }

    /// Whether the boxes of a tile are awaited while the product of the iteration before runs.
    pub fn is_waited_for_early(&self, tile: usize) -> bool {
        self.overlap.as_ref().is_some_and(|overlap| overlap.keys.tile == tile)
    }

    /// Awaits the boxes that iterations do not await themselves, but those before them.
    pub fn wait_for_first_keys(&mut self) {
        let Some(overlap) = self.overlap.clone() else { return };
        let first = self.index(0);
        let pending = self.pending_tma(&overlap.keys, first);
        self.code.body.extend(pending.map(PendingTma::wait_stmt));
    }

    /// Whether a tile is read an iteration later than others.
    pub fn is_read_one_iteration_later(&self, tile: usize) -> bool {
        self.overlap.as_ref().is_some_and(|overlap| overlap.values == tile)
    }

    /// Whether a product is the one behind which another one is added, and may run on until then.
    pub fn scores_are_async(&self, tile: usize, gemm: &TileGemm) -> bool {
        let are_scores = self.overlap.as_ref().is_some_and(|overlap| overlap.scores == tile);
        are_scores && self.wgmma_b_is_mn_major(gemm).is_some()
    }

    /// Notes where the product of the iteration before is added, behind one that runs on.
    pub fn mark_delayed_position(&mut self, gemm: &TileGemm) {
        let place = self.code.body.len();
        if let Some(overlap) = self.overlap.as_mut().filter(|_| gemm.is_async) {
            overlap.place = Some(place);
        }
    }

    /// Adds a product an iteration later, if it is the one to be; `None` if it is another one.
    pub fn accumulate_delayed(&mut self, from: usize, rescale: Option<Rescale>) -> Option<LoopAccumulator> {
        let overlap = self.overlap.clone().filter(|overlap| overlap.gemm == from)?;
        let place = overlap.place?;
        let gemm = self.prepare_gemm(from, true);
        let (kind, transposed) = (self.mma_type()?, self.wgmma_b_is_mn_major(&gemm)?);
        if !matches!(gemm.a, OperandA::Registers(..)) {
            return None;
        }
        let registers = gemm.acc.clone();
        let zero = self.float(0.0);
        let start = self.fill_registers(registers.buffer, registers.at.registers_per_thread(), zero);
        self.code.before_loop.extend(start);
        let weights = self.add_buffer("weights", kind.dtype(), gemm.k / 2, Scope::Scratch);
        let weights = self.location(weights, 0);
        let added = |this: &mut Self, gemm: &TileGemm, runs_on: bool| {
            let zero = this.index(0);
            this.wgmma_stmt(gemm, (kind, transposed), (zero, zero), (weights, runs_on))
        };

        let before = self.program.exprs.add_const(self.iteration, -1);
        let pending = self.pending_tma(&overlap.staged, before)?;
        let then = vec![pending.wait_stmt(), added(self, &gemm, true)];
        let first = self.index(0);
        let condition = self.program.exprs.lt(first, self.iteration);
        let otherwise = vec![Stmt::Cta(CtaStmt::WgmmaWait)];
        self.code.body.insert(place, Stmt::If { condition, then, otherwise });

        let next = self.program.exprs.add_const(self.iteration, 1);
        let pending = self.pending_tma(&overlap.keys, next)?;
        if let Some(condition) = self.is_below(next, self.iterations_per_cta()) {
            self.code.body.push(Stmt::If {
                condition,
                then: vec![pending.wait_stmt()],
                otherwise: Vec::new(),
            });
        }
        self.code.body.push(Stmt::Cta(CtaStmt::WgmmaWait));
        if let Some(rescale) = rescale {
            self.rescale_registers(&registers, rescale);
        }
        let zero = self.index(0);
        let stmts = self.load_a_fragments(&gemm, kind, (zero, zero), weights);
        self.emit(stmts);

        let last = self.index(self.iterations_per_cta() - 1);
        let base = self.stage_base(&overlap.staged, last);
        let mut gemm = gemm;
        gemm.b.base = base;
        let pending = self.pending_tma(&overlap.staged, last)?;
        let last = vec![pending.wait_stmt(), added(self, &gemm, false)];
        self.overlap = Some(SoftmaxOverlap { last, ..overlap });
        Some(LoopAccumulator::Registers(registers))
    }
}
