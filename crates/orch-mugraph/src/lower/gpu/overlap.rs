//! Softmax/GEMM overlap of attention within a warp group, as FlashAttention-3 (Shah et al. 2024, section
//! 3.2): the product by V of one iteration runs while the scores of the next one become weights.
//!
//! ```text
//! iteration i:   S = Q * K[i]^T                      wgmma, async
//!                O += P * V[i - 1]                   wgmma, async; its start waits for S (for i = 0: wait for S)
//!                row maxima, exponentials, row sums of S                     <- overlaps with P * V[i - 1]
//!                wait full mbarrier of K[i + 1]
//!                wait for row sums (one CTA per SM)
//!                wgmma.wait_group 0
//!                O *= rescale;  P = exponentials as A fragments
//! after:         O += P * V[last]
//! ```
//!
//! ptxas moves the exponentials behind `wgmma.wait_group`, as nothing depends on their order, so that they would overlap with
//! nothing. Row sums need all of them: [`CtaStmt::ComputeFirst`] waits for these. Heads of 128, 2048 keys, take an H100 61.5
//! instead of 66.8 us. Where an SM runs two CTAs these overlap with each other, and the wait costs more than it gains: heads of 64
//! take 38.6 instead of 37.9 us. Ping-pong scheduling of the warp groups (named barriers that order their wgmma, section 3.1 there) was
//! tried on top and not kept: 2048 keys, heads of 128, took an H100 6 % longer, 8192 causal ones 8 %. Used if the loop has exactly two products, the second fused with
//! its accumulation, of one row of fragments (64 rows) per warp group, and TMA loads K and V.

use super::accumulate::{LoopAccumulator, Rescale};
use super::emitter::BlockEmitter;
use super::mma::{OperandA, TileGemm};
use super::staging::StagedLoad;
use super::steps::TileStep;
use super::tma::PendingTma;
use super::wgmma::is_per_warp_group;
use crate::op::{Op, ReduceFn};
use crate::tiling::Stage;
use orch_compute::ExprId;
use orch_thread::{CtaStmt, Scope, Stmt};

/// The product of the loop that is added one iteration later.
#[derive(Clone, Debug)]
pub(super) struct SoftmaxOverlap {
    /// The product S = Q K^T, after which the other one is issued.
    pub scores: usize,
    /// The product O = P V.
    gemm: usize,
    /// V, the B of O.
    pub values: usize,
    /// How V and K are staged.
    staged: StagedLoad,
    keys: StagedLoad,
    /// Where among the loop's statements O is added: behind S, once that is written (set by
    /// `mark_delayed_position`).
    pub place: Option<usize>,
    /// Statements behind the loop that add the last iteration's product (set by `accumulate_delayed`).
    pub last: Vec<Stmt>,
}

impl SoftmaxOverlap {
    /// Whether both products turned out to be wgmma and have been written so; if not, the block is emitted
    /// again without overlap.
    pub fn is_written(&self) -> bool {
        !self.last.is_empty()
    }
}

impl BlockEmitter<'_> {
    /// The overlap of the loop, if it has the form of attention.
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
        let loaded_by_tma =
            |tile| looped.iter().find(|staged| staged.tile == tile && staged.tma.is_some()).cloned();
        let (staged, keys) = (
            loaded_by_tma(values)?,
            loaded_by_tma(self.untransposed(self.plan.steps.tiles[scores].step.args()[1]))?,
        );
        let (place, last) = (None, Vec::new());
        suits.then_some(SoftmaxOverlap { scores, gemm, values, staged, keys, place, last })
    }

    /// The tile that a transposition is of, or the tile itself.
    fn untransposed(&self, tile: usize) -> usize {
        match &self.plan.steps.tiles[tile].step {
            TileStep::Op { op: Op::Transpose(_), args } => self.untransposed(args[0]),
            _ => tile,
        }
    }

    /// Whether the full mbarrier of a tile is waited for in the iteration before: K.
    pub fn is_waited_for_early(&self, tile: usize) -> bool {
        self.overlap.as_ref().is_some_and(|overlap| overlap.keys.tile == tile)
    }

    /// Waits for the K of the first iteration, before the loop.
    pub fn wait_for_first_keys(&mut self) {
        let Some(overlap) = self.overlap.clone() else { return };
        let first = self.index(0);
        let pending = self.pending_tma(&overlap.keys, first);
        self.code.body.extend(pending.map(PendingTma::wait_stmt));
    }

    /// Whether a tile is read one iteration later than it is loaded for: V.
    pub fn is_read_one_iteration_later(&self, tile: usize) -> bool {
        self.overlap.as_ref().is_some_and(|overlap| overlap.values == tile)
    }

    /// Whether a product is S, by wgmma, which may be in flight until O is issued.
    pub fn scores_are_async(&self, tile: usize, gemm: &TileGemm) -> bool {
        let are_scores = self.overlap.as_ref().is_some_and(|overlap| overlap.scores == tile);
        are_scores && self.wgmma_b_is_mn_major(gemm).is_some()
    }

    /// Notes the position behind S, where O of the iteration before is added.
    pub fn mark_delayed_position(&mut self, gemm: &TileGemm) {
        let place = self.code.body.len();
        if let Some(overlap) = self.overlap.as_mut().filter(|_| gemm.is_async) {
            overlap.place = Some(place);
        }
    }

    /// Adds O one iteration later: inserts its statements behind S, and rescaling and packing of P at the
    /// end; `None` for other products.
    pub fn accumulate_delayed(&mut self, from: usize, rescale: Option<Rescale>) -> Option<LoopAccumulator> {
        let overlap = self.overlap.clone().filter(|overlap| overlap.gemm == from)?;
        let place = overlap.place?;
        let gemm = self.prepare_gemm(from, true);
        let (kind, b_is_mn_major) = (self.mma_type()?, self.wgmma_b_is_mn_major(&gemm)?);
        if !matches!(gemm.a, OperandA::Registers(..)) {
            return None;
        }
        let registers = gemm.acc.clone();
        let zero = self.float(0.0);
        let start = self.fill_registers(registers.buffer, registers.at.registers_per_thread(), zero);
        self.code.before_loop.extend(start);
        let weights = self.add_buffer("weights", kind.dtype(), gemm.k / 2, Scope::Scratch);
        let weights = self.location(weights, 0);
        let added = |this: &mut Self, gemm: &TileGemm, is_async: bool| {
            let zero = this.index(0);
            this.wgmma_stmt(gemm, (kind, b_is_mn_major), (zero, zero), (weights, is_async))
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
        let wait = self.if_iteration(next, vec![pending.wait_stmt()]);
        self.code.body.extend(wait);
        if self.plan.schedule.softmax_first {
            let sums_first = self.row_sums_first();
            self.code.body.extend(sums_first);
        }
        self.code.body.push(Stmt::Cta(CtaStmt::WgmmaWait));
        if let Some(rescale) = rescale {
            self.rescale_registers(&registers, rescale);
        }
        let zero = self.index(0);
        let stmts = self.load_a_fragments(&gemm, kind, (zero, zero), weights);
        self.emit(stmts);

        let last = self.program.exprs.add_const(self.iterations.count, -1);
        let base = self.stage_base(&overlap.staged, last);
        let mut gemm = gemm;
        gemm.b.base = base;
        let pending = self.pending_tma(&overlap.staged, last)?;
        let last = vec![pending.wait_stmt(), added(self, &gemm, false)];
        self.overlap = Some(SoftmaxOverlap { last, ..overlap });
        Some(LoopAccumulator::Registers(registers))
    }

    /// Computes the row sums of this iteration, and all exponentials with them, before what follows; none if the loop adds up no
    /// rows.
    fn row_sums_first(&mut self) -> Option<Stmt> {
        let of_rows = self.tiles.accumulators.iter().flatten().find_map(|accumulator| match accumulator {
            LoopAccumulator::Reduction(rows) if rows.combination() == ReduceFn::Sum => Some(rows.parts()),
            _ => None,
        });
        let (buffer, parts) = of_rows?;
        let sums: Vec<ExprId> = (0..parts)
            .map(|part| {
                let at = self.index(part);
                self.program.exprs.load(buffer, at, 1, None)
            })
            .collect();
        let all = sums.into_iter().reduce(|all, sum| self.program.exprs.add2(all, sum))?;
        Some(Stmt::Cta(CtaStmt::ComputeFirst(all)))
    }
}
