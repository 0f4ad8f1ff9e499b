//! The software-pipelined loop over K, in two forms: threads load operand tiles, or TMA does.
//!
//! With `d` the [prefetch distance](super::GpuContractionSchedule::prefetch_distance) and `S` the number of stages, iteration
//! `i` multiplies stage `i % S` while the tiles of iteration `i + d` are loaded to stage `(i + d) % S`:
//!
//! ```text
//! stage 0 | load 0 | mul 0  | load 4 | mul 4 ..          S = 4, d = 3
//! stage 1 | load 1 |        | mul 1  | load 5 ..
//! stage 2 | load 2 |                 | mul 2  ..
//! stage 3 |        | load 3 |                 ..
//! ```

use super::emitter::GemmEmitter;
use super::tiles::OperandTiles;
use super::tma::TmaOperand;
use crate::gpu::cta::ProgramEmitter;
use orch_thread::cta::CtaStmt;
use orch_thread::program::{LoopKind, Stmt};

impl GemmEmitter<'_> {
    /// The main loop whose operand tiles are loaded by threads: with `cp.async`, or computed in registers before the
    /// multiplication and stored after it.
    ///
    /// ```text
    /// for i in 0..d { load(i -> stage i); cp.async.commit_group }
    /// for i in 0..iterations {
    ///   cp.async.wait_group d - 1; bar.sync            stage i has arrived, and stage i + d has been read by all threads
    ///   cp.async(i + d), loads and values of computed elements; cp.async.commit_group
    ///   acc += stage i
    ///   st.shared of computed elements (i + d)
    /// }
    /// ```
    pub fn thread_main_loop(&mut self, a: &OperandTiles, b: &OperandTiles) -> Vec<Stmt> {
        let stages = self.schedule.stages;
        let (iterations, distance) = (self.iterations(), self.schedule.prefetch_distance());
        let mut body = Vec::new();
        body.extend(a.place_chunks(self));
        body.extend(b.place_chunks(self));
        for stage in 0..distance {
            if stage < iterations {
                let iteration = self.program.exprs.index(stage as i64);
                for tiles in [a, b] {
                    let load = tiles.load(self, iteration, iteration);
                    body.extend(load.before_multiply);
                    body.extend(load.after_multiply);
                }
            }
            body.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
        }
        body.extend(self.cluster_arrive());
        body.push(self.zero_accumulators());
        let (var, iteration) = self.program.exprs.fresh_index("step", iterations.max(1));
        let exprs = &mut self.program.exprs;
        let count = exprs.index(stages as i64);
        let later_iteration = exprs.add_const(iteration, distance as i64);
        let (stage, later_stage) =
            (exprs.floor_rem(iteration, count), exprs.floor_rem(later_iteration, count));
        let mut inner = Vec::new();
        let stage = self.bind(&mut inner, "stage", stage, stages);
        let later_stage = self.bind(&mut inner, "later_stage", later_stage, stages);
        inner.push(Stmt::Cta(CtaStmt::CpAsyncWait(distance - 1)));
        inner.push(Stmt::Cta(CtaStmt::Barrier));
        let mut after_multiply = Vec::new();
        for tiles in [a, b] {
            let load = tiles.load(self, later_iteration, later_stage);
            inner.extend(load.before_multiply);
            after_multiply.extend(load.after_multiply);
        }
        inner.push(Stmt::Cta(CtaStmt::CpAsyncCommit));
        inner.extend(self.multiply(a, b, stage));
        inner.extend(after_multiply);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(iterations as i64));
        body.push(Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body: inner });
        body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
        if self.schedule.wgmma {
            body.push(Stmt::Cta(CtaStmt::WgmmaWait));
        }
        body.push(Stmt::Cta(CtaStmt::LaunchDependents));
        body.push(Stmt::Cta(self.end_of_main_loop()));
        body
    }

    /// The main loop whose operand tiles are loaded by TMA, while `wgmma` runs asynchronously. Stage `s` has a full mbarrier;
    /// its phase counts the rounds through the stages.
    ///
    /// ```text
    /// for i in 0..d { tma_load(i -> stage i, full[i]) }
    /// for i in 0..iterations {
    ///   mbarrier_wait_full full[i % S], phase i / S
    ///   wgmma acc += stage i                           in flight; waits for the wgmma of iteration i - 1
    ///   bar.sync                                       all warp groups have read stage (i + d) % S = (i - 1) % S
    ///   if i + d < iterations { tma_load(i + d -> stage (i + d) % S, full[(i + d) % S]) }
    /// }
    /// ```
    pub fn tma_main_loop(&mut self, operands: &[TmaOperand<'_>; 2]) -> Vec<Stmt> {
        let (stages, iterations) = (self.schedule.stages, self.iterations());
        let distance = self.schedule.prefetch_distance();
        let mut body = Vec::new();
        for stage in 0..distance.min(iterations) {
            let stage = self.program.exprs.index(stage as i64);
            let first_k = self.bind_first_k(&mut body, stage);
            for operand in operands {
                body.extend(operand.load(self, first_k, stage));
            }
        }
        body.extend(self.cluster_arrive());
        body.push(self.zero_accumulators());
        let (var, iteration) = self.program.exprs.fresh_index("step", iterations.max(1));
        let exprs = &mut self.program.exprs;
        let count = exprs.index(stages as i64);
        let later_iteration = exprs.add_const(iteration, distance as i64);
        let (phase, stage) = (exprs.floor_div(iteration, count), exprs.floor_rem(iteration, count));
        let later_stage = exprs.floor_rem(later_iteration, count);
        let mut inner = Vec::new();
        let phase = self.bind(&mut inner, "phase", phase, iterations.div_ceil(stages));
        let stage = self.bind(&mut inner, "stage", stage, stages);
        inner.push(Stmt::Cta(CtaStmt::MbarrierWaitFull { mbarrier: stage, phase }));
        inner.extend(self.multiply(operands[0].tiles, operands[1].tiles, stage));
        // Each `wgmma` waits for the one before it: past this barrier the stage of the iteration before is free.
        inner.push(Stmt::Cta(CtaStmt::Barrier));
        let limit = self.program.exprs.index(iterations as i64);
        let condition = self.program.exprs.lt(later_iteration, limit);
        let mut then = Vec::new();
        let later_stage = self.bind(&mut then, "later_stage", later_stage, stages);
        let first_k = self.bind_first_k(&mut then, later_iteration);
        for operand in operands {
            then.extend(operand.load(self, first_k, later_stage));
        }
        inner.push(Stmt::If { condition, then, otherwise: Vec::new() });
        let start = self.program.exprs.index(0);
        body.push(Stmt::For { var, start, end: limit, step: 1, kind: LoopKind::Serial, body: inner });
        body.extend([CtaStmt::WgmmaWait, CtaStmt::LaunchDependents, self.end_of_main_loop()].map(Stmt::Cta));
        body
    }

    /// With split-K, tells the cluster that this CTA runs: others may write to its shared memory once they have waited.
    fn cluster_arrive(&self) -> Option<Stmt> {
        self.is_split_k().then_some(Stmt::Cta(CtaStmt::ClusterArrive))
    }

    /// What stands between the last multiplication and the first write to the accumulator tile: with split-K all CTAs of the
    /// cluster run, else all threads have read the operand tiles whose memory the accumulator tile reuses.
    fn end_of_main_loop(&self) -> CtaStmt {
        if self.is_split_k() { CtaStmt::ClusterWait } else { CtaStmt::ReuseShared }
    }

    /// Declares the thread's accumulators, as zeros.
    fn zero_accumulators(&mut self) -> Stmt {
        let elems = self.schedule.block_m * self.schedule.block_n / self.schedule.threads();
        let (accumulators, zero) = self.zeroed_scratch("acc", self.unit.acc_type(), elems);
        self.accumulators = accumulators;
        zero
    }
}
