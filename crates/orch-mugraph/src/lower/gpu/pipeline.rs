//! The loop, and the copies of tiles that run ahead of it.

use super::hazards::Touched;
use super::lowering::Lowering;
use super::steps::Step;
use super::tensors::{Staged, any_copied};
use crate::tiling::Stage;
use orch_compute::ExprId;
use orch_thread::cta::WARP_GROUP;
use orch_thread::{CtaStmt, LoopKind, Stmt};

/// Stages from which on there are enough for copies to wait for an iteration that is over.
const LEAST_GATED_STAGES: usize = 4;

impl Lowering<'_> {
    /// Starts copying the tiles that do not change, and those of the first iterations; gives the tiles of the loop.
    pub fn start_copies(&mut self) -> Vec<Staged> {
        let all = self.stage_loads();
        let (looped, once): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|staged| self.steps.tiles[staged.tile].stage == Stage::Loop);
        let zero = self.index(0);
        for staged in &once {
            let copies = self.fetch(staged, zero, zero);
            self.body.extend(copies);
            self.place_staged(staged, zero);
            if staged.boxes.is_some() {
                self.expect_boxes(staged, zero);
            } else {
                self.body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
                self.under_way.push(staged.view.buffer);
            }
        }
        self.start_streams();
        self.overlap = self.find_overlap(&looped);
        self.gates = self.plan.gates
            && self.overlap.is_some()
            && self.plan.warps > WARP_GROUP
            && self.plan.stages >= LEAST_GATED_STAGES
            && looped.iter().all(|staged| staged.boxes.is_some());
        let is_copied = any_copied(&looped);
        let ahead = if looped.is_empty() { 0 } else { self.plan.stages - 1 };
        self.later_groups = if is_copied { ahead } else { 0 };
        for iteration in 0..ahead {
            let at = self.index(iteration);
            for staged in &looped {
                if iteration < self.copied_ahead(staged) {
                    let copies = self.fetch(staged, at, at);
                    self.body.extend(copies);
                }
            }
            self.body.extend(is_copied.then_some(Stmt::Cta(CtaStmt::CpAsyncCommit)));
        }
        looped
    }

    /// The loop, which copies the tiles of later iterations while it computes.
    pub fn whole_loop(&mut self, looped: &[Staged]) {
        let (range, stages) = (self.own_iterations(), self.plan.stages);
        let is_copied = any_copied(looped);
        let has_waited = !is_copied && !self.under_way.is_empty();
        match has_waited {
            true => self.wait_for(self.under_way.len()),
            // The loop waits for its own copies, which were started later.
            false => self.under_way.clear(),
        }
        self.await_boxes(|_| true);
        self.later_groups = 0;
        let outer = std::mem::take(&mut self.body);
        let turns = self.steps.turns;
        let (var, first) = self.program.exprs.fresh_index("iteration", range / turns);
        let (turn_var, turn) = self.program.exprs.fresh_index("turn", turns);
        let mut body = Vec::new();
        if turns > 1 {
            self.turn = turn;
            let iteration = self.program.exprs.linear_index(&[first, turn], &[turns, 1]);
            self.iteration = self.bind(&mut body, "iteration", iteration, (range, 1));
        } else {
            self.iteration = first;
        }
        let iteration = self.iteration;
        self.body = body;
        let before = std::mem::take(&mut self.touched);
        self.start_iteration(looped, iteration);
        for tile in self.steps.in_stage(Stage::Loop) {
            match self.steps.tiles[tile].step {
                Step::Accumulate { .. } => self.accumulate(tile),
                _ => self.tile(tile),
            }
        }
        self.await_boxes(|_| true);
        self.lazy = None;
        let mut inner = std::mem::replace(&mut self.body, outer);
        if self.gates {
            let own = Touched::by(&self.program, &inner);
            self.gates_suffice = !inner.iter().any(has_barrier) && !own.writes() && !before.precedes(&own);
            self.touched.join(before);
        }
        if turns > 1 {
            inner = vec![self.for_each(turn_var, turns, LoopKind::Unroll, inner)];
        }
        let held = std::mem::take(&mut self.held_firsts);
        if !held.is_empty() && !has_waited {
            self.body.extend(is_copied.then_some(Stmt::Cta(CtaStmt::CpAsyncWait(stages - 1))));
            self.barrier();
        }
        self.body.extend(held);
        let start = std::mem::take(&mut self.before_loop);
        self.body.extend(start);
        self.await_first_boxes();
        let whole = self.for_each(var, range / turns, LoopKind::Serial, inner);
        self.body.push(whole);
        self.body.extend(self.overlap.iter().flat_map(|overlap| overlap.last.clone()));
        self.body.extend(self.run_on.then_some(Stmt::Cta(CtaStmt::WgmmaWait)));
        if is_copied {
            self.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
        }
    }

    /// Waits for the tiles of an iteration, or sees to it that they are awaited where they are read; and starts copying those
    /// of a later one.
    fn start_iteration(&mut self, looped: &[Staged], iteration: ExprId) {
        let (stages, is_copied) = (self.plan.stages, any_copied(looped));
        if stages > 1 && is_copied {
            self.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(stages - 2)));
        }
        match self.gates {
            true => self.pass_gate(iteration),
            false => self.barrier(),
        }
        if stages > 1 && !looped.is_empty() {
            let (later, others): (Vec<_>, Vec<_>) = looped.iter().partition(|staged| self.is_read_on(staged));
            self.copy_ahead(&others, iteration);
            self.body.extend(is_copied.then_some(Stmt::Cta(CtaStmt::CpAsyncCommit)));
            self.copy_ahead(&later, iteration);
        }
        if stages == 1 && !looped.is_empty() {
            let first = self.index(0);
            for staged in looped {
                let copies = self.fetch(staged, iteration, first);
                self.body.extend(copies);
            }
            if is_copied {
                self.body.extend([CtaStmt::CpAsyncCommit, CtaStmt::CpAsyncWait(0)].map(Stmt::Cta));
                self.barrier();
            }
        }
        for staged in looped {
            if self.is_read_later(staged.tile) {
                let before = self.program.exprs.add_const(iteration, -1);
                self.place_staged(staged, before);
            } else {
                self.place_staged(staged, iteration);
                if !self.is_awaited_early(staged.tile) {
                    self.expect_boxes(staged, iteration);
                }
            }
        }
    }

    /// Lets threads tell that they begin an iteration, and copies wait for all to have begun the one before: groups of warps that
    /// need not keep in step hide each other's waiting.
    fn pass_gate(&mut self, iteration: ExprId) {
        let stages = self.plan.stages;
        self.program.mbarriers.empty = stages;
        let [gate, turn] = self.stage_and_turn(iteration, stages);
        self.body.push(Stmt::Cta(CtaStmt::MbarrierArriveEmpty { mbarrier: gate, phase: turn }));
        let before = self.program.exprs.add_const(iteration, -1);
        let [gate, turn] = self.stage_and_turn(before, stages);
        let zero = self.index(0);
        let condition = self.program.exprs.lt(zero, iteration);
        let then = vec![Stmt::Cta(CtaStmt::MbarrierWaitEmpty { mbarrier: gate, phase: turn })];
        self.body.push(Stmt::If { condition, then, otherwise: Vec::new() });
    }

    /// Whether a tile may be read still when the next iteration begins.
    fn is_read_on(&self, staged: &Staged) -> bool {
        self.is_read_later(staged.tile) || self.plan.few_rows && staged.boxes.is_some()
    }

    /// How many iterations ahead a tile is copied: where the one before has been read, by all that have passed a gate if
    /// there are gates.
    fn copied_ahead(&self, staged: &Staged) -> usize {
        self.plan.stages - 1 - usize::from(self.is_read_on(staged)) - usize::from(self.gates)
    }

    /// Starts copying the tiles, equally far ahead, that are needed when those in shared memory have been used up.
    fn copy_ahead(&mut self, looped: &[&Staged], iteration: ExprId) {
        let Some(first) = looped.first() else { return };
        let (stages, ahead) = (self.plan.stages, self.copied_ahead(first));
        let ahead = self.program.exprs.add_const(iteration, ahead as i64);
        let [slot, _] = self.stage_and_turn(ahead, stages);
        let mut copies = Vec::new();
        let slot = self.bind(&mut copies, "ahead_slot", slot, (stages, 1));
        for staged in looped {
            let stmts = self.fetch(staged, ahead, slot);
            copies.extend(stmts);
        }
        match self.below(ahead, self.own_iterations()) {
            Some(condition) => self.body.push(Stmt::If { condition, then: copies, otherwise: Vec::new() }),
            None => self.body.extend(copies),
        }
    }
}

/// Whether a barrier is in a statement.
fn has_barrier(stmt: &Stmt) -> bool {
    *stmt == Stmt::Cta(CtaStmt::Barrier) || stmt.bodies().flatten().any(has_barrier)
}
