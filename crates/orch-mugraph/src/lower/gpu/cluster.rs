//! Blocks whose iterations several tasks share.
//!
//! Half of the multiprocessors do not ask for all that memory can give, and do not compute all that they could. Where there are
//! so few blocks, and all that the loop hands on is sums and running maxima, a cluster of tasks runs a block: each runs a part of
//! the iterations, and after the loop they add up each other's sums through shared memory. Sums that are relative to maxima are
//! rescaled to the largest one before, as where keys of attention are split over kernels. All compute what follows, and the
//! first one stores it.
//!
//! Few sums, and those of two tasks, all tasks read. Of many, each task combines a part, which the first one then collects. On
//! an H200 eight tasks exchange 32 KiB each in 4.5 us, and in 15.7 us if each reads all; two tasks in 2.2 us. (Storing them to
//! memory, for another kernel to combine, takes 3.5 us with that kernel.)

use super::accumulate::{LoopAccumulator, Rescale};
use super::emitter::BlockEmitter;
use super::hazards::SharedAccesses;
use super::layout::ColumnLayout;
use super::reduce::ReductionState;
use super::skinny::is_skinny_shape;
use super::steps::{TileStep, TileSteps};
use super::value::TileHome;
use super::wgmma::WARP_GROUP_ROWS;
use crate::graph::{Accumulation, BlockGraph};
use crate::lower::CannotLower;
use crate::op::{Op, ReduceFn};
use crate::tiling::Stage;
use orch_compute::{BufferId, ExprId, Type};
use orch_ir::DType;
use orch_thread::{CtaStmt, GpuTarget, Location, Scope, Stmt};

/// Sums that are exchanged at once.
const LANES: usize = 4;

/// Whether so many tasks may share the iterations of a block, at least `least` each.
pub(super) fn can_split_iterations(
    block: &BlockGraph,
    shapes: &[Vec<usize>],
    (tasks, least): (usize, usize),
    target: &GpuTarget,
) -> bool {
    if tasks == 1 {
        return true;
    }
    let suits = target.has_clusters
        && block.blocks() * tasks <= target.ctas_in_clusters(tasks)
        && block.loop_range.is_multiple_of(tasks)
        && block.loop_range / tasks >= least;
    suits && TileSteps::of(block, shapes).is_ok_and(|steps| accumulators_are_in_registers(&steps))
}

/// Whether a block adds up products of whole tiles of rows: where blocks are few, tasks are preferred to share its iterations.
pub(super) fn has_whole_row_tiles(block: &BlockGraph, shapes: &[Vec<usize>]) -> bool {
    let has_tiles = |steps: TileSteps| {
        let products =
            steps.tiles.iter().filter(|tile| matches!(tile.step, TileStep::Op { op: Op::Matmul, .. }));
        products.filter(|tile| tile.readers > 0).all(|tile| {
            let rows = tile.shape.iter().rev().nth(1);
            rows.is_some_and(|rows| rows.is_multiple_of(WARP_GROUP_ROWS))
        })
    };
    TileSteps::of(block, shapes).is_ok_and(has_tiles)
}

/// Whether all that is accumulated are sums of products and reductions that nothing else reads: they are in scratch.
fn accumulators_are_in_registers(steps: &TileSteps) -> bool {
    steps.tiles.iter().enumerate().filter(|(_, tile)| tile.readers > 0).all(|(at, tile)| {
        let TileStep::Accumulate { how, tile: from } = tile.step else { return true };
        let is_sum = match &steps.tiles[from].step {
            TileStep::Op { op: Op::Matmul, .. } => is_skinny_shape(&tile.shape),
            TileStep::Op { op, .. } => matches!(op, Op::Reduce { .. }),
            TileStep::Load { .. } | TileStep::Accumulate { .. } | TileStep::RunningMax { .. } => false,
        };
        is_sum && how != Accumulation::Max && steps.only_reader(from) == Some(at)
    })
}

impl BlockEmitter<'_> {
    /// Iterations that a task runs.
    pub fn iterations_per_cta(&self) -> usize {
        self.plan.steps.loop_range / self.plan.schedule.cluster
    }

    /// The iteration of the block that is this one of the task.
    pub fn block_iteration(&mut self, iteration: ExprId) -> ExprId {
        let first = self.program.exprs.mul_const(self.ids.cta_rank, self.iterations_per_cta() as i64);
        self.program.exprs.add2(first, iteration)
    }

    /// Combines what the tasks of a cluster have: maxima first, to the largest of which sums are rescaled, and then sums.
    ///
    /// # Errors
    /// If not all of it is in registers.
    pub fn reduce_over_cluster(&mut self) -> Result<(), CannotLower> {
        if self.plan.schedule.cluster == 1 {
            return Ok(());
        }
        self.reduce_maxima_over_cluster()?;
        self.reduce_over_warps_first();
        let mut sums = Vec::new();
        for accumulator in self.tiles.accumulators.iter().flatten() {
            sums.push(match accumulator {
                LoopAccumulator::Registers(sums) => (sums.buffer, sums.at.registers_per_thread()),
                LoopAccumulator::ReductionState(reduction) => reduction.parts(),
                LoopAccumulator::Shared(_) => return Err(outside_of_registers()),
            });
        }
        self.all_reduce_through_dsmem(&sums, ReduceFn::Sum);
        Ok(())
    }

    /// Adds the summands that several warps have, so that there is less to exchange.
    fn reduce_over_warps_first(&mut self) {
        for tile in 0..self.tiles.accumulators.len() {
            let Some(LoopAccumulator::Registers(sums)) = &self.tiles.accumulators[tile] else { continue };
            if matches!(sums.at.columns, ColumnLayout::SplitK(_)) {
                let (sums, shape) = (sums.clone(), self.plan.steps.tiles[tile].shape.clone());
                let joined = self.reduce_split_k_registers(sums, &shape);
                self.tiles.accumulators[tile] = Some(LoopAccumulator::Registers(joined));
            }
        }
    }

    /// Replaces running maxima by those of all tasks, and rescales the task's sums accordingly.
    fn reduce_maxima_over_cluster(&mut self) -> Result<(), CannotLower> {
        let mut maxima = Vec::new();
        for tile in self.plan.steps.in_stage(Stage::Loop) {
            if !matches!(self.plan.steps.tiles[tile].step, TileStep::RunningMax { .. }) {
                continue;
            }
            let places = [&self.tiles.homes[tile], &self.tiles.previous_maxima[tile]].map(|places| {
                match places.first() {
                    Some(TileHome::Registers(registers)) => Ok(registers.clone()),
                    Some(TileHome::Shared(_)) | None => Err(outside_of_registers()),
                }
            });
            let [now, before] = places;
            let (now, before) = (now?, before?);
            for register in 0..now.at.registers_per_thread() {
                let Location { buffer, offset } = self.location(now.buffer, register);
                let value = self.program.exprs.load(buffer, offset, 1, None);
                self.code.body.push(Stmt::Store { buffer: before.buffer, offset, value, mask: None });
            }
            maxima.push((now.buffer, now.at.registers_per_thread()));
            // What was copied elsewhere is of the task.
            self.tiles.homes[tile] = vec![TileHome::Registers(now)];
            self.tiles.previous_maxima[tile] = vec![TileHome::Registers(before)];
        }
        if maxima.is_empty() {
            return Ok(());
        }
        self.all_reduce_through_dsmem(&maxima, ReduceFn::Max);
        self.tiles.rescale_factors.clear();
        for tile in 0..self.plan.steps.tiles.len() {
            let TileStep::Accumulate { how, .. } = self.plan.steps.tiles[tile].step else { continue };
            let Some(rescale) = Rescale::of(how) else { continue };
            let registers = match &self.tiles.accumulators[tile] {
                Some(LoopAccumulator::Registers(registers)) => registers.clone(),
                Some(LoopAccumulator::ReductionState(ReductionState::InRegisters(rows))) => {
                    rows.partial.clone()
                }
                Some(
                    LoopAccumulator::ReductionState(ReductionState::ThreadGroups(_))
                    | LoopAccumulator::Shared(_),
                ) => {
                    return Err(outside_of_registers());
                }
                None => continue,
            };
            self.rescale_registers(&registers, rescale);
        }
        Ok(())
    }

    /// Combines scratch of so many elements with that of the same threads of the other tasks; of many elements only the first
    /// task has the result.
    fn all_reduce_through_dsmem(&mut self, scratch: &[(BufferId, usize)], f: ReduceFn) {
        let mut exchanged = Vec::new();
        for &(buffer, elems) in scratch {
            let own = self.add_buffer("exchange", DType::F32, elems * self.threads(), Scope::Shared);
            for part in 0..elems / lanes(elems) {
                let part = self.index(part);
                let (to, from) =
                    (self.exchange_location(own, part, elems), self.register_group(buffer, part, elems));
                let value = self.program.exprs.load(from.buffer, from.offset, lanes(elems), None);
                self.code.body.push(Stmt::Store { buffer: own, offset: to.offset, value, mask: None });
            }
            exchanged.push((buffer, elems, own));
        }
        self.emit_cluster_barrier();
        let (many, few): (Vec<_>, Vec<_>) = exchanged.into_iter().partition(|&(_, elems, _)| {
            self.plan.schedule.cluster > 2 && elems / lanes(elems) >= self.plan.schedule.cluster
        });
        for &(buffer, elems, own) in &few {
            for part in 0..elems / lanes(elems) {
                let part = self.index(part);
                let value = self.reduce_over_ranks(own, (part, elems), f);
                let to = self.register_group(buffer, part, elems);
                self.code.body.push(Stmt::Store { buffer, offset: to.offset, value, mask: None });
            }
        }
        for &(_, elems, own) in &many {
            self.reduce_own_share(own, elems, f);
        }
        if !many.is_empty() {
            self.emit_cluster_barrier();
            let outer = std::mem::take(&mut self.code.body);
            for &(buffer, elems, own) in &many {
                for part in 0..elems / lanes(elems) {
                    let owner = self.index(part % self.plan.schedule.cluster);
                    let part = self.index(part);
                    let from = self.exchange_location(own, part, elems);
                    let value = self.load_dsmem(owner, from, lanes(elems));
                    let to = self.register_group(buffer, part, elems);
                    self.code.body.push(Stmt::Store { buffer, offset: to.offset, value, mask: None });
                }
            }
            let gathered = std::mem::replace(&mut self.code.body, outer);
            self.emit_on_rank_zero(gathered);
        }
    }

    /// Combines every so many-th part of what all tasks have left, and leaves it in its place.
    fn reduce_own_share(&mut self, own: BufferId, elems: usize, f: ReduceFn) {
        let (parts, tasks) = (elems / lanes(elems), self.plan.schedule.cluster);
        for first in (0..parts).step_by(tasks) {
            let part = self.program.exprs.add_const(self.ids.cta_rank, first as i64);
            let outer = std::mem::take(&mut self.code.body);
            let value = self.reduce_over_ranks(own, (part, elems), f);
            let to = self.exchange_location(own, part, elems);
            self.code.body.push(Stmt::Store { buffer: own, offset: to.offset, value, mask: None });
            let then = std::mem::replace(&mut self.code.body, outer);
            match self.is_below(part, parts).filter(|_| first + tasks > parts) {
                Some(condition) => {
                    self.code.body.push(Stmt::If { condition, then, otherwise: Vec::new() });
                }
                None => self.code.body.extend(then),
            }
        }
    }

    /// What all tasks have left of a part, combined in their order.
    fn reduce_over_ranks(&mut self, own: BufferId, (part, elems): (ExprId, usize), f: ReduceFn) -> ExprId {
        let from = self.exchange_location(own, part, elems);
        let parts: Vec<ExprId> = (0..self.plan.schedule.cluster)
            .map(|rank| {
                let rank = self.index(rank);
                self.load_dsmem(rank, from, lanes(elems))
            })
            .collect();
        let mut parts = parts.into_iter();
        let first = parts.next().expect("a cluster has tasks");
        parts.fold(first, |all, part| self.combine(f, all, part))
    }

    fn emit_cluster_barrier(&mut self) {
        self.code.body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        self.pending.accesses = SharedAccesses::default();
    }

    /// Adds a group of statements that one task of a cluster runs.
    pub fn emit_on_rank_zero(&mut self, stmts: Vec<Stmt>) {
        if self.plan.schedule.cluster == 1 {
            self.emit(stmts);
            return;
        }
        let zero = self.index(0);
        let condition = self.program.exprs.eq(self.ids.cta_rank, zero);
        self.emit(vec![Stmt::If { condition, then: stmts, otherwise: Vec::new() }]);
    }

    /// Waits for all threads of a cluster, whose tasks then no longer read each other's sums.
    pub fn emit_final_cluster_barrier(&mut self) {
        if self.plan.schedule.cluster > 1 {
            self.code.body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        }
    }

    /// Where a thread leaves a part of its sums for the other tasks: neighbouring threads side by side.
    fn exchange_location(&mut self, buffer: BufferId, part: ExprId, elems: usize) -> Location {
        let (threads, lanes) = (self.threads(), lanes(elems));
        let exprs = &mut self.program.exprs;
        let offset = exprs.linear_index(&[part, self.ids.thread], &[threads * lanes, lanes]);
        Location { buffer, offset: self.simplifier.simplify(&mut self.program.exprs, offset) }
    }

    /// A part of scratch.
    fn register_group(&mut self, buffer: BufferId, part: ExprId, elems: usize) -> Location {
        Location { buffer, offset: self.program.exprs.mul_const(part, lanes(elems) as i64) }
    }

    /// What the thread of the same number of a task left.
    fn load_dsmem(&mut self, rank: ExprId, from: Location, lanes: usize) -> ExprId {
        let exprs = &mut self.program.exprs;
        let var = exprs.declare_register("part", Type { dtype: DType::F32, lanes });
        let part = exprs.var(var);
        self.code.body.push(Stmt::Cta(CtaStmt::LoadDsmem { var, rank, from }));
        part
    }
}

fn outside_of_registers() -> CannotLower {
    CannotLower("tasks that share a block have sums or maxima outside of registers".to_owned())
}

/// How many of so many sums are exchanged at once.
fn lanes(elems: usize) -> usize {
    if elems.is_multiple_of(LANES) { LANES } else { 1 }
}
