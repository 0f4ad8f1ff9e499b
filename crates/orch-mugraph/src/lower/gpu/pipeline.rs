//! The loop over iterations, and the loads that run ahead of it in a ring of stages.
//!
//! ```text
//! stages = 4                prefetch distance 3 (one less for each: empty mbarriers; tiles read one iteration later)
//! before the loop:          load 0 -> s0, load 1 -> s1, load 2 -> s2
//! iteration i:              cp.async.wait_group 2                          loads of iteration i have arrived (cp.async)
//!                           barrier, or empty mbarriers                    iteration i - 1 has been read
//!                           load i + 3 -> s[(i + 3) % 4]
//!                           wait full[i % 4], phase i / 4                  where a tile is first read (TMA)
//!                           products, reductions, accumulations
//! ```
//!
//! In a persistent CTA the iterations of one block follow those of the block before in the ring (`persistent`).
//!
//! With empty mbarriers no thread waits for another in an iteration: all arrive at `empty[i % stages]` when
//! they begin iteration `i`, and the warp that issues TMA waits for `empty[(i - 1) % stages]`, when all
//! have begun iteration `i - 1`, so have read iteration `i - 2`, whose stage is loaded next. Warp groups may
//! then be one iteration apart and hide each other's stalls. They are used with softmax/GEMM overlap, two
//! warp groups and TMA for all loads of the loop. (Attention on an H200: 162 us with barriers, of which they
//! take 13; with empty mbarriers 2.)

use super::emitter::BlockEmitter;
use super::hazards::SharedAccesses;
use super::staging::{StagedLoad, StagedLoads, any_cp_async};
use super::steps::TileStep;
use crate::tiling::Stage;
use orch_compute::ExprId;
use orch_thread::cta::WARP_GROUP;
use orch_thread::{CtaStmt, LoopKind, Stmt};

/// Stages from which empty mbarriers are used: they cost one iteration of prefetch distance.
const MIN_STAGES_OF_EMPTY_MBARRIERS: usize = 4;

impl BlockEmitter<'_> {
    /// Issues loads of loop-invariant tiles and of the first iterations, chooses overlap and empty mbarriers;
    /// gives the staged loads.
    pub fn start_loads(&mut self) -> StagedLoads {
        let all = self.stage_loads();
        let looped = &all.looped;
        let zero = self.index(0);
        for staged in &all.once {
            if self.block_loop.is_none() {
                let copies = self.issue_load(staged, zero, zero);
                self.code.body.extend(copies);
            }
            self.set_staged_home(staged, zero);
            if staged.tma.is_some() {
                self.expect_tma(staged, zero);
            } else {
                self.code.body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
                self.pending.cp_async.push(staged.view.buffer);
            }
        }
        self.start_direct_loads();
        self.overlap = self.find_overlap(looped);
        self.empty.in_use = self.plan.schedule.empty_mbarriers
            && self.overlap.is_some()
            && self.plan.schedule.warps > WARP_GROUP
            && self.plan.schedule.stages >= MIN_STAGES_OF_EMPTY_MBARRIERS
            && looped.iter().all(|staged| staged.tma.is_some());
        match self.block_loop {
            Some(_) => self.load_first_block(&all),
            None => self.load_first_stages(looped),
        }
        all
    }

    /// Issues the loads of the first iterations.
    pub fn load_first_stages(&mut self, looped: &[StagedLoad]) {
        let (is_copied, stages) = (any_cp_async(looped), self.plan.schedule.stages);
        let ahead = if looped.is_empty() { 0 } else { stages - 1 };
        self.pending.later_cp_async = if is_copied { ahead } else { 0 };
        for iteration in 0..ahead {
            let at = self.index(iteration);
            let index = self.ring_index(at);
            let [stage, _] = self.stage_and_phase(index, stages);
            let mut copies = Vec::new();
            for staged in looped {
                if iteration < self.prefetch_distance(staged) {
                    copies.extend(self.issue_load(staged, at, stage));
                }
            }
            let copies = self.if_iteration(at, copies);
            self.code.body.extend(copies);
            self.code.body.extend(is_copied.then_some(Stmt::Cta(CtaStmt::CpAsyncCommit)));
        }
    }

    /// Emits the loop, which loads the tiles of later iterations while it computes.
    pub fn emit_loop(&mut self, staged: &StagedLoads) {
        let looped = &staged.looped;
        let (range, stages) = (self.iterations_per_cta(), self.plan.schedule.stages);
        let is_copied = any_cp_async(looped);
        let has_waited = !is_copied && !self.pending.cp_async.is_empty();
        match has_waited {
            true => self.wait_for_cp_async(self.pending.cp_async.len()),
            // The wait of the first iteration for its own, later, groups covers these.
            false => self.pending.cp_async.clear(),
        }
        self.wait_for_tma(|_| true);
        self.pending.later_cp_async = 0;
        let outer = std::mem::take(&mut self.code.body);
        let unroll = self.plan.steps.unroll;
        let (var, first) = self.program.exprs.fresh_index("iteration", range / unroll);
        let (copy_var, copy) = self.program.exprs.fresh_index("copy", unroll);
        let mut body = Vec::new();
        if unroll > 1 {
            self.unroll_index = copy;
            let iteration = self.program.exprs.linear_index(&[first, copy], &[unroll, 1]);
            self.iteration = self.bind_index(&mut body, "iteration", iteration, (range, 1));
        } else {
            self.iteration = first;
        }
        let iteration = self.iteration;
        self.code.body = body;
        let before = std::mem::take(&mut self.pending.accesses);
        self.start_iteration(staged, iteration);
        for tile in self.plan.steps.in_stage(Stage::Loop) {
            match self.plan.steps.tiles[tile].step {
                TileStep::Accumulate { .. } => self.emit_accumulate(tile),
                _ => self.emit_tile(tile),
            }
        }
        self.wait_for_tma(|_| true);
        self.conditional_rescale = None;
        let mut inner = std::mem::replace(&mut self.code.body, outer);
        if self.empty.in_use {
            let own = SharedAccesses::of(&self.program, &inner);
            self.empty.suffice =
                !inner.iter().any(has_barrier) && !own.writes() && !before.needs_barrier_before(&own);
            self.pending.accesses.join(before);
        }
        if unroll > 1 {
            inner = vec![self.for_loop(copy_var, unroll, LoopKind::Unroll, inner)];
        }
        let held = std::mem::take(&mut self.code.resident_a);
        // Threads that have waited for TMA loads of Q need no barrier.
        if !held.is_empty() && !has_waited && self.block_loop.is_none() {
            self.code.body.extend(is_copied.then_some(Stmt::Cta(CtaStmt::CpAsyncWait(stages - 1))));
            self.emit_barrier();
        }
        self.code.body.extend(held);
        let start = std::mem::take(&mut self.code.before_loop);
        self.code.body.extend(start);
        self.wait_for_first_keys();
        let end = match self.visible {
            // No copies of the body are unrolled then.
            Some(_) => self.iterations.count,
            None => self.index(range / unroll),
        };
        let (start, kind) = (self.index(0), LoopKind::Serial);
        self.code.body.push(Stmt::For { var, start, end, step: 1, kind, body: inner });
        self.code.body.extend(self.overlap.iter().flat_map(|overlap| overlap.last.clone()));
        self.code.body.extend(self.pending.loop_wgmma.then_some(Stmt::Cta(CtaStmt::WgmmaWait)));
        if is_copied {
            self.code.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
        }
    }

    /// The start of an iteration: waits for its cp.async groups, makes sure that the stage that is loaded
    /// next has been read, issues the loads of a later iteration, and makes the iteration's tiles readable.
    fn start_iteration(&mut self, staged: &StagedLoads, iteration: ExprId) {
        let looped = &staged.looped;
        let (stages, is_copied) = (self.plan.schedule.stages, any_cp_async(looped));
        if stages > 1 && is_copied {
            self.code.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(stages - 2)));
        }
        match self.empty.in_use {
            true => self.sync_by_empty_mbarriers(iteration),
            false => self.emit_barrier(),
        }
        if stages > 1 && !looped.is_empty() {
            let (later, others): (Vec<_>, Vec<_>) =
                looped.iter().partition(|staged| self.outlives_iteration(staged));
            self.prefetch(&others, iteration);
            self.code.body.extend(is_copied.then_some(Stmt::Cta(CtaStmt::CpAsyncCommit)));
            self.prefetch(&later, iteration);
            self.load_next_block(staged);
        }
        if stages == 1 && !looped.is_empty() {
            let first = self.index(0);
            for staged in looped {
                let copies = self.issue_load(staged, iteration, first);
                self.code.body.extend(copies);
            }
            if is_copied {
                self.code.body.extend([CtaStmt::CpAsyncCommit, CtaStmt::CpAsyncWait(0)].map(Stmt::Cta));
                self.emit_barrier();
            }
        }
        for staged in looped {
            if self.is_read_one_iteration_later(staged.tile) {
                let before = self.program.exprs.add_const(iteration, -1);
                self.set_staged_home(staged, before);
            } else {
                self.set_staged_home(staged, iteration);
                if !self.is_waited_for_early(staged.tile) {
                    self.expect_tma(staged, iteration);
                }
            }
        }
    }

    /// Arrives at the empty mbarrier of this iteration; TMA loads that follow wait for that of the iteration
    /// before.
    fn sync_by_empty_mbarriers(&mut self, iteration: ExprId) {
        let stages = self.plan.schedule.stages;
        self.program.mbarriers.empty = stages;
        let index = self.ring_index(iteration);
        let [mbarrier, phase] = self.stage_and_phase(index, stages);
        self.code.body.push(Stmt::Cta(CtaStmt::MbarrierArriveEmpty { mbarrier, phase }));
        let before = self.program.exprs.add_const(index, -1);
        let [mbarrier, phase] = self.stage_and_phase(before, stages);
        let zero = self.index(0);
        let condition = self.program.exprs.lt(zero, index);
        let then = vec![Stmt::Cta(CtaStmt::MbarrierWaitEmpty { mbarrier, phase })];
        self.code.body.push(Stmt::If { condition, then, otherwise: Vec::new() });
    }

    /// Whether a tile may still be read when the next iteration begins: by an overlapped product, or a wgmma
    /// in flight.
    fn outlives_iteration(&self, staged: &StagedLoad) -> bool {
        self.is_read_one_iteration_later(staged.tile) || self.plan.schedule.is_skinny && staged.tma.is_some()
    }

    /// Iterations ahead that a tile is loaded: `stages - 1`, less one if it outlives its iteration, less one
    /// with empty mbarriers.
    fn prefetch_distance(&self, staged: &StagedLoad) -> usize {
        self.plan.schedule.stages
            - 1
            - usize::from(self.outlives_iteration(staged))
            - usize::from(self.empty.in_use)
    }

    /// Issues the loads of tiles of the same prefetch distance, guarded by the end of the loop.
    fn prefetch(&mut self, looped: &[&StagedLoad], iteration: ExprId) {
        let Some(first) = looped.first() else { return };
        let (stages, ahead) = (self.plan.schedule.stages, self.prefetch_distance(first));
        let ahead = self.program.exprs.add_const(iteration, ahead as i64);
        let index = self.ring_index(ahead);
        let [stage, _] = self.stage_and_phase(index, stages);
        let mut copies = Vec::new();
        let stage = self.bind_index(&mut copies, "ahead_slot", stage, (stages, 1));
        for staged in looped {
            let stmts = self.issue_load(staged, ahead, stage);
            copies.extend(stmts);
        }
        let copies = if ahead == iteration { copies } else { self.if_iteration(ahead, copies) };
        self.code.body.extend(copies);
    }
}

/// Whether a statement contains a CTA barrier.
fn has_barrier(stmt: &Stmt) -> bool {
    *stmt == Stmt::Cta(CtaStmt::Barrier) || stmt.bodies().flatten().any(has_barrier)
}
