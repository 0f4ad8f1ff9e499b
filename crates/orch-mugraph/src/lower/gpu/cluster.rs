//! Blocks whose iterations several tasks share.
//!
//! Half of the multiprocessors do not ask for all that memory can give. Where there are so few blocks, and all that the loop
//! hands on is sums, a cluster of tasks runs a block: each runs a part of the iterations, and after the loop they add up each
//! other's sums through shared memory. All compute what follows from them, and the first one stores it.

use super::accumulate::Accumulator;
use super::few_rows::is_few;
use super::hazards::Touched;
use super::lowering::Lowering;
use super::refine::refined;
use super::steps::{Step, Steps};
use crate::graph::BlockGraph;
use crate::op::Op;
use orch_ir::DType;
use orch_tile::{BufferId, ExprId, GpuTarget, Scope, Spot, Stmt, TeamStmt, Type};

/// Least iterations of a task.
const LEAST_ITERATIONS: usize = 8;
/// Sums that are exchanged at once.
const LANES: usize = 4;

/// Whether so many tasks may share the iterations of a block.
pub(super) fn may_share(
    block: &BlockGraph,
    shapes: &[Vec<usize>],
    (tasks, target): (usize, &GpuTarget),
) -> bool {
    if tasks == 1 {
        return true;
    }
    let suits = target.has_clusters
        && block.blocks() * tasks <= target.multiprocessors
        && block.loop_range.is_multiple_of(tasks)
        && block.loop_range / tasks >= LEAST_ITERATIONS;
    let steps = Steps::of(block, shapes);
    suits && steps.is_ok_and(|steps| sums_are_scratch(&steps) && refined(block, &steps, 1).is_some())
}

/// Whether all that is accumulated are products and reductions that nothing else reads: their sums are in scratch.
fn sums_are_scratch(steps: &Steps) -> bool {
    steps.tiles.iter().enumerate().filter(|(_, tile)| tile.readers > 0).all(|(at, tile)| {
        let Step::Accumulate { tile: from, .. } = tile.step else { return true };
        let is_sum = match &steps.tiles[from].step {
            Step::Op { op: Op::Matmul, .. } => is_few(&tile.shape),
            Step::Op { op, .. } => matches!(op, Op::Reduce { .. }),
            Step::Load { .. } | Step::Accumulate { .. } | Step::RunningMax { .. } => false,
        };
        is_sum && steps.only_reader(from) == Some(at)
    })
}

impl Lowering<'_> {
    /// Iterations that a task runs.
    pub fn own_iterations(&self) -> usize {
        self.steps.loop_range / self.plan.tasks
    }

    /// The iteration of the block that is this one of the task.
    pub fn iteration_of_block(&mut self, iteration: ExprId) -> ExprId {
        let first = self.program.exprs.mul_const(self.rank, self.own_iterations() as i64);
        self.program.exprs.add2(first, iteration)
    }

    /// Adds up the sums of the tasks of a cluster.
    pub fn join_tasks(&mut self) {
        if self.plan.tasks == 1 {
            return;
        }
        let sums: Vec<(BufferId, usize)> = self.accumulators.iter().flatten().filter_map(sums_of).collect();
        let mut exchanged = Vec::new();
        for (sums, elems) in sums {
            let own = self.add_buffer("exchange", DType::F32, elems * self.threads(), Scope::Shared);
            for first in (0..elems).step_by(lanes(elems)) {
                let (to, from) = (self.exchange_place(own, (first, elems)), self.place(sums, first));
                let value = self.program.exprs.load(from.buffer, from.offset, lanes(elems), None);
                self.body.push(Stmt::Store { buffer: own, offset: to.offset, value, mask: None });
            }
            exchanged.push((sums, elems, own));
        }
        self.body.push(Stmt::Team(TeamStmt::ClusterBarrier));
        self.touched = Touched::default();
        for (sums, elems, own) in exchanged {
            for first in (0..elems).step_by(lanes(elems)) {
                let (from, to) = (self.exchange_place(own, (first, elems)), self.place(sums, first));
                let mut value = self.program.exprs.load(sums, to.offset, lanes(elems), None);
                for other in 1..self.plan.tasks {
                    let part = self.of_peer(other, from, lanes(elems));
                    value = self.program.exprs.add2(value, part);
                }
                self.body.push(Stmt::Store { buffer: sums, offset: to.offset, value, mask: None });
            }
        }
    }

    /// Adds a group of statements that one task of a cluster runs.
    pub fn run_once(&mut self, stmts: Vec<Stmt>) {
        if self.plan.tasks == 1 {
            self.run(stmts);
            return;
        }
        let zero = self.index(0);
        let condition = self.program.exprs.eq(self.rank, zero);
        self.run(vec![Stmt::If { condition, then: stmts, otherwise: Vec::new() }]);
    }

    /// Waits for all threads of a cluster, whose tasks then no longer read each other's sums.
    pub fn leave_cluster(&mut self) {
        if self.plan.tasks > 1 {
            self.body.push(Stmt::Team(TeamStmt::ClusterBarrier));
        }
    }

    /// Where a thread leaves sums for the other tasks: neighbouring threads side by side.
    fn exchange_place(&mut self, buffer: BufferId, (first, elems): (usize, usize)) -> Spot {
        let (threads, lanes) = (self.threads(), lanes(elems));
        let exprs = &mut self.program.exprs;
        let own = exprs.mul_const(self.thread, lanes as i64);
        Spot { buffer, offset: exprs.add_const(own, (first * threads) as i64) }
    }

    /// What the thread of the same number of another task left.
    fn of_peer(&mut self, other: usize, from: Spot, lanes: usize) -> ExprId {
        let count = self.index(self.plan.tasks);
        let exprs = &mut self.program.exprs;
        let later = exprs.add_const(self.rank, other as i64);
        let rank = exprs.floor_rem(later, count);
        let var = exprs.declare_register("part", Type { dtype: DType::F32, lanes });
        let part = exprs.var(var);
        self.body.push(Stmt::Team(TeamStmt::Peer { var, rank, from }));
        part
    }
}

/// The sums of an accumulator in scratch, and how many there are.
fn sums_of(accumulator: &Accumulator) -> Option<(BufferId, usize)> {
    match accumulator {
        Accumulator::Registers(sums) => Some((sums.buffer, sums.at.registers())),
        Accumulator::Reduction(reduction) => Some(reduction.parts()),
        // A block with such sums is not split.
        Accumulator::Shared(_) => None,
    }
}

/// How many of so many sums are exchanged at once.
fn lanes(elems: usize) -> usize {
    if elems.is_multiple_of(LANES) { LANES } else { 1 }
}
