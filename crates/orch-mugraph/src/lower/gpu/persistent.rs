//! Persistent CTAs: one per SM, each of which runs one block after the other.
//!
//! ```text
//! block b of a CTA:   wait for Q -> registers | iterations, K and V in the ring | last product by V, division, store
//! last iteration:     loads of block b + 1: Q, and the first stages of K and V, which its loop does not load itself
//! ```
//!
//! Where an SM runs one CTA at a time, nothing hides the first loads of a block, nor its last product and store: of the 11 us that a block
//! of causal attention of 1024 tokens, heads of 128, takes an H100, 4 pass before its first product and after its last. A persistent CTA
//! issues the first loads of the next block when its last iteration begins, so that they arrive meanwhile, and initialises mbarriers
//! once.
//!
//! The ring of stages goes on over blocks: iteration `i` of a block is number `before + i` of the CTA, of which stage and phase are
//! computed, where `before` counts the iterations of the CTA's earlier blocks. The phase of Q's full mbarrier is the number of the block in
//! the CTA, its *wave*: a wave has a block for each CTA.
//!
//! What orders the loads of the next block behind reads of what they overwrite:
//!
//! - K and V: the waits for empty mbarriers that each iteration has anyway, as they are at most as far ahead as in an iteration;
//! - Q: each thread copies it to registers before it begins the first iteration, so that the wait for the empty mbarrier of that iteration
//!   suffices. The second iteration waits for it; if there is none, the loads do.
//!
//! What a warp copies to shared memory to store it, it stores itself (`store`): no barrier of the CTA separates blocks, and warp groups stay
//! an iteration apart, if they are.
//!
//! Loads could run ahead of the loop by a position of their own, from iteration to iteration across blocks. That would take registers and
//! instructions for the position in each iteration, to issue loads one iteration earlier that have an iteration, a product and a store
//! to arrive.
//!
//! Blocks are dealt to CTAs back and forth, so that CTAs whose block is among the longer ones of one wave have one of the shorter
//! ones of the next:
//!
//! ```text
//! CTA               0   1   2        blocks in their order, longest first (visible)
//! wave 0            0   1   2
//! wave 1            5   4   3
//! wave 2            6   7   8
//! ```
//!
//! No SM that is free takes over a block of another, so blocks are not dealt if that takes longer than starting each on the SM that is
//! the first to be free ([`PersistentCtas::of`]).

use super::emitter::BlockEmitter;
use super::hazards::SharedAccesses;
use super::sms::{exposed_iterations, time_in_order};
use super::staging::StagedLoads;
use super::steps::{TileStep, TileSteps};
use super::visible::{BlockOrder, VisibleIterations};
use crate::graph::BlockGraph;
use crate::lower::{CannotLower, Request};
use orch_compute::{BufferId, ExprId, Type, VarId, VarInfo};
use orch_thread::{CtaStmt, GpuTarget, LoopKind, Stmt};
use std::collections::BTreeSet;

/// The CTAs of a kernel that share its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PersistentCtas {
    /// CTAs of the grid.
    pub ctas: usize,
    /// The order in which blocks are dealt; `None` for that of the grid.
    pub order: Option<BlockOrder>,
}

/// The loop of a persistent CTA over its blocks.
#[derive(Clone, Debug)]
pub(super) struct BlockLoop {
    /// The number of the block among those of the CTA.
    pub wave: ExprId,
    /// The loop variable that is this number.
    var: VarId,
    /// Blocks of the CTA.
    count: ExprId,
    /// Iterations of the CTA's earlier blocks.
    before: ExprId,
    /// The register that counts them, if blocks have more or fewer.
    counter: Option<VarId>,
    /// Shared buffers that threads read before the loop only.
    before_loop: BTreeSet<BufferId>,
    /// Shared buffers that threads write, each behind a barrier that orders it behind the reads for the block before.
    pub written: BTreeSet<BufferId>,
}

impl PersistentCtas {
    /// The persistent CTAs of a kernel, if there are more blocks than SMs, and sharing them takes no longer than to start each on the SM
    /// that is the first to be free.
    pub fn of(
        request: &Request<'_>,
        block: &BlockGraph,
        steps: &TileSteps,
        target: &GpuTarget,
    ) -> Option<PersistentCtas> {
        let (blocks, ctas) = (block.blocks(), target.sms);
        if blocks <= ctas || steps.loop_range == 1 {
            return None;
        }
        let visible = VisibleIterations::of(request, steps, &block.grid);
        let order = visible.and_then(|visible| visible.order_in_sections(request, steps, &block.grid));
        let persistent = PersistentCtas { ctas, order };
        let Some(visible) = visible else { return Some(persistent) };
        let times = |order, are_persistent| {
            let exposed = exposed_iterations(visible.tile(), are_persistent).round() as usize;
            visible.lengths(order, &block.grid).map(move |all| all + exposed)
        };
        let alone = time_in_order(times(visible.order(request, steps), false), ctas);
        (persistent.time_in_waves(times(order, true)) <= alone).then_some(persistent)
    }

    /// The time until the last CTA ends, given the time of each block in their order.
    fn time_in_waves(&self, blocks: impl Iterator<Item = usize>) -> usize {
        let mut times = vec![0; self.ctas];
        for (number, time) in blocks.enumerate() {
            let (wave, place) = (number / self.ctas, number % self.ctas);
            times[if wave % 2 == 0 { place } else { self.ctas - 1 - place }] += time;
        }
        times.into_iter().max().unwrap_or(0)
    }
}

impl BlockEmitter<'_> {
    /// Starts the loop over the blocks of a CTA: binds the number of its blocks, and in the loop the block.
    pub fn start_block_loop(&mut self, persistent: PersistentCtas, cta: ExprId) {
        let (blocks, ctas) = (self.grid.iter().product::<usize>(), persistent.ctas);
        let (whole, rest) = (blocks / ctas, blocks % ctas);
        let waves = blocks.div_ceil(ctas);
        let last = self.index(whole);
        let place = self.place_in_wave(last, cta, ctas);
        // In the last wave not every CTA has a block.
        let exprs = &mut self.program.exprs;
        let (most, least, rest) =
            (exprs.index(waves as i64), exprs.index(whole as i64), exprs.index(rest as i64));
        let has_one_more = exprs.lt(place, rest);
        let count = exprs.select(has_one_more, most, least);
        let mut start = Vec::new();
        let count = self.bind_index(&mut start, "waves", count, (waves + 1, 1));
        let (var, wave) = self.program.exprs.fresh_index("wave", waves);
        let most_before = waves * self.plan.steps.loop_range;
        let (before, counter) = match self.visible {
            None => (self.program.exprs.mul_const(wave, self.plan.steps.loop_range as i64), None),
            Some(_) => {
                let (name, range) = ("done".to_owned(), Some((0, most_before as i64)));
                let info = VarInfo { name, ty: Type::INDEX, range, multiple_of: 1 };
                let counter = self.program.exprs.declare(info);
                start.push(Stmt::Register(counter, self.index(0)));
                let done = self.program.exprs.var(counter);
                let mut body = Vec::new();
                let before = self.bind_index(&mut body, "before", done, (most_before + 1, 1));
                self.code.body.extend(body);
                (before, Some(counter))
            }
        };
        self.code.before_blocks.extend(start);
        let (before_loop, written) = (BTreeSet::new(), BTreeSet::new());
        self.block_loop = Some(BlockLoop { wave, var, count, before, counter, before_loop, written });
        self.bind_block_of_wave(wave);
    }

    /// The place of a CTA in a wave of blocks, which goes back and forth.
    fn place_in_wave(&mut self, wave: ExprId, cta: ExprId, ctas: usize) -> ExprId {
        let exprs = &mut self.program.exprs;
        let (two, zero, last) = (exprs.index(2), exprs.index(0), exprs.index(ctas as i64 - 1));
        let parity = exprs.floor_rem(wave, two);
        let is_forth = exprs.eq(parity, zero);
        let back = exprs.sub(last, cta);
        exprs.select(is_forth, cta, back)
    }

    /// Binds the block that the CTA runs in a wave.
    fn bind_block_of_wave(&mut self, wave: ExprId) {
        let Some(persistent) = self.plan.schedule.persistent else { return };
        let cta = self.program.exprs.var(self.program.task);
        let place = self.place_in_wave(wave, cta, persistent.ctas);
        let number = self.program.exprs.linear_index(&[wave, place], &[persistent.ctas, 1]);
        let mut body = Vec::new();
        let blocks = self.grid.iter().product();
        let number = self.bind_index(&mut body, "number", number, (blocks, 1));
        self.code.body.extend(body);
        self.bind_block(number, persistent.order);
    }

    /// The number of an iteration in the ring: of this block, behind those of the CTA's earlier blocks.
    pub fn ring_index(&mut self, iteration: ExprId) -> ExprId {
        match &self.block_loop {
            Some(blocks) => self.program.exprs.add2(blocks.before, iteration),
            None => iteration,
        }
    }

    /// Adds the first loads of the CTA before its first block.
    pub fn load_first_block(&mut self, staged: &StagedLoads) {
        if let Some(blocks) = &mut self.block_loop {
            blocks.before_loop.extend(staged.once.iter().map(|staged| staged.view.buffer));
        }
        let zero = self.index(0);
        let loads = self.first_loads(staged, zero, zero);
        self.code.before_blocks.extend(loads);
    }

    /// Adds the first loads of the next block, if there is one, in the last iteration of this one.
    pub fn load_next_block(&mut self, staged: &StagedLoads) {
        let Some(BlockLoop { wave, count, .. }) = self.block_loop.clone() else { return };
        let exprs = &mut self.program.exprs;
        let (next, two, zero) = (exprs.add_const(wave, 1), exprs.index(2), exprs.index(0));
        let condition = exprs.lt(next, count);
        let last = exprs.add_const(self.iterations.count, -1);
        let is_last = exprs.eq(self.iteration, last);
        let is_single = exprs.lt(self.iterations.count, two);
        let is_single = self.simplifier.simplify(&mut self.program.exprs, is_single);
        let mut then = Vec::new();
        if self.program.exprs.as_bool(is_single) != Some(false) {
            let index = self.ring_index(zero);
            let [mbarrier, phase] = self.stage_and_phase(index, self.plan.schedule.stages);
            let wait = vec![Stmt::Cta(CtaStmt::MbarrierWaitEmpty { mbarrier, phase })];
            then.push(Stmt::If { condition: is_single, then: wait, otherwise: Vec::new() });
        }
        let before = self.ring_index(self.iterations.count);
        then.extend(self.first_loads(staged, next, before));
        let then = vec![Stmt::If { condition, then, otherwise: Vec::new() }];
        self.code.body.push(Stmt::If { condition: is_last, then, otherwise: Vec::new() });
    }

    /// The loads of a block that its loop does not issue, of the block of a wave, behind so many iterations.
    fn first_loads(&mut self, staged: &StagedLoads, wave: ExprId, before: ExprId) -> Vec<Stmt> {
        let body = std::mem::take(&mut self.code.body);
        let (block, rank, iterations) = (self.ids.block.clone(), self.ids.cta_rank, self.iterations);
        let own = self.block_loop.clone();
        if let Some(blocks) = &mut self.block_loop {
            blocks.before = before;
        }
        self.bind_block_of_wave(wave);
        let zero = self.index(0);
        for staged in &staged.once {
            let loads = self.issue_load(staged, zero, zero);
            self.code.body.extend(loads);
        }
        self.load_first_stages(&staged.looped);
        (self.ids.block, self.ids.cta_rank, self.iterations, self.block_loop) =
            (block, rank, iterations, own);
        std::mem::replace(&mut self.code.body, body)
    }

    /// The statements of a persistent CTA: its loop over blocks, given what it does for each.
    pub fn over_blocks(&mut self, mut body: Vec<Stmt>) -> Vec<Stmt> {
        let Some(BlockLoop { var, count, before, counter, .. }) = self.block_loop.clone() else {
            return body;
        };
        if let Some(counter) = counter {
            let after = self.program.exprs.add2(before, self.iterations.count);
            body.push(Stmt::Assign(counter, after));
        }
        let start = self.index(0);
        let mut stmts = std::mem::take(&mut self.code.before_blocks);
        stmts.push(Stmt::For { var, start, end: count, step: 1, kind: LoopKind::Serial, body });
        stmts
    }

    /// Checks that one block may follow the other in a CTA.
    ///
    /// # Errors
    /// If a block does not load all that it reads by TMA, iterations have barriers, or threads write shared memory that others may
    /// still read for the block before.
    pub fn check_block_loop(&self) -> Result<(), CannotLower> {
        let Some(blocks) = &self.block_loop else { return Ok(()) };
        let steps = self.plan.steps;
        let reads_directly = (0..steps.tiles.len()).any(|tile| {
            steps.tiles[tile].readers > 0
                && matches!(steps.tiles[tile].step, TileStep::Load { .. })
                && self.tensor_in_memory(tile).is_some()
                && !self.tma_tiles.contains(&tile)
        });
        let body = &self.code.body;
        let looped = body.iter().position(|stmt| matches!(stmt, Stmt::For { kind: LoopKind::Serial, .. }));
        let [own, later] = [0, looped.unwrap_or(0)].map(|at| SharedAccesses::of(&self.program, &body[at..]));
        let suits = self.empty.in_use
            && self.empty.suffice
            && self.overlap.as_ref().is_some_and(|overlap| overlap.is_written())
            && !blocks.before_loop.iter().any(|&buffer| later.reads(buffer))
            && self.code.prologue.is_empty()
            && !reads_directly
            && own.writes_only(&blocks.written);
        suits.then_some(()).ok_or_else(|| CannotLower("blocks cannot follow each other in a CTA".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::{PersistentCtas, TileSteps};
    use crate::graph::TensorId;
    use crate::lower::{Request, Stored};
    use crate::text::parse;
    use orch_ir::DType;
    use orch_thread::target::SM_90;

    /// Of causal attention of so many groups of four heads of 128, and so many tokens: the longest time of a CTA and the mean, in
    /// iterations; `None` if blocks are not dealt.
    fn balance(groups: usize, tokens: usize) -> Option<(usize, f64)> {
        let (blocks, range) = (tokens / 128, tokens / 64);
        let text = format!(
            "mugraph \"a\" {{\n t0 = input \"q\" [{groups}, 4, {tokens}, 128]\n t1 = input \"k\" [{groups}, 1, 128, {tokens}]\n \
             t2 = input \"v\" [{groups}, 1, {tokens}, 128]\n t3 = causal(0, 1, 1, {tokens}, {tokens})\n \
             t4 = block [{groups}, 4, {blocks}] loop {range} {{\n s0 = load t0 [0, 1, 2] -\n s1 = load t1 [0, -, -] 3\n \
             s2 = load t2 [0, -, -] 2\n s3 = load t3 [-, -, 2] 3\n s4 = matmul s0, s1\n s5 = mask s4, s3\n s6 = exp s5\n \
             s7 = sum(3) s6\n s8 = accumulate sum s7\n s9 = matmul s6, s2\n s10 = accumulate sum s9\n s11 = div s10, s8\n \
             store s11 [0, 1, 2]\n }}\n output \"o\" t4\n}}\n"
        );
        let graph = parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let stored: Vec<Stored> =
            graph.shapes().iter().map(|shape| Stored::row_major(DType::F16, shape)).collect();
        let request = Request { graph: &graph, kernel: TensorId(4), stored: &stored, name: "k" };
        let block = request.block().expect("a block graph");
        let steps = TileSteps::of(block, graph.shapes()).expect("tiles");
        let persistent = PersistentCtas::of(&request, block, &steps, &SM_90)?;
        let visible = super::VisibleIterations::of(&request, &steps, &block.grid).expect("a band");
        let lengths: Vec<usize> = visible.lengths(persistent.order, &block.grid).collect();
        let mean = lengths.iter().sum::<usize>() as f64 / SM_90.sms as f64;
        Some((persistent.time_in_waves(lengths.into_iter()), mean))
    }

    /// CTAs have about as much to do, where L2 holds all keys and values and where it holds those of a part of the heads.
    #[test]
    fn blocks_are_dealt_evenly() {
        for (groups, tokens) in [(64, 1024), (16, 2048), (64, 2048)] {
            let (longest, mean) = balance(groups, tokens).expect("blocks are dealt");
            assert!(
                longest as f64 <= 1.04 * mean,
                "{groups} groups of {tokens} tokens: {longest}, {mean} on average"
            );
        }
        // As many CTAs as blocks.
        assert_eq!(balance(4, 1024), None);
    }
}
