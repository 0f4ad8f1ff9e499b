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

use super::accumulate::{Accumulator, Rescale};
use super::few_rows::is_few;
use super::hazards::Touched;
use super::layout::Columns;
use super::lowering::Lowering;
use super::reduce::Reduction;
use super::steps::{Step, Steps};
use super::tiles::GROUP_ROWS;
use super::value::Place;
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
pub(super) fn may_share(
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
    suits && Steps::of(block, shapes).is_ok_and(|steps| sums_are_scratch(&steps))
}

/// Whether a block adds up products of whole tiles of rows: where blocks are few, tasks are preferred to share its iterations.
pub(super) fn sums_tiles(block: &BlockGraph, shapes: &[Vec<usize>]) -> bool {
    let has_tiles = |steps: Steps| {
        let products = steps.tiles.iter().filter(|tile| matches!(tile.step, Step::Op { op: Op::Matmul, .. }));
        products.filter(|tile| tile.readers > 0).all(|tile| {
            let rows = tile.shape.iter().rev().nth(1);
            rows.is_some_and(|rows| rows.is_multiple_of(GROUP_ROWS))
        })
    };
    Steps::of(block, shapes).is_ok_and(has_tiles)
}

/// Whether all that is accumulated are sums of products and reductions that nothing else reads: they are in scratch.
fn sums_are_scratch(steps: &Steps) -> bool {
    steps.tiles.iter().enumerate().filter(|(_, tile)| tile.readers > 0).all(|(at, tile)| {
        let Step::Accumulate { how, tile: from } = tile.step else { return true };
        let is_sum = match &steps.tiles[from].step {
            Step::Op { op: Op::Matmul, .. } => is_few(&tile.shape),
            Step::Op { op, .. } => matches!(op, Op::Reduce { .. }),
            Step::Load { .. } | Step::Accumulate { .. } | Step::RunningMax { .. } => false,
        };
        is_sum && how != Accumulation::Max && steps.only_reader(from) == Some(at)
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

    /// Combines what the tasks of a cluster have: maxima first, to the largest of which sums are rescaled, and then sums.
    ///
    /// # Errors
    /// If not all of it is in registers.
    pub fn join_tasks(&mut self) -> Result<(), CannotLower> {
        if self.plan.tasks == 1 {
            return Ok(());
        }
        self.join_maxima()?;
        self.join_warps();
        let mut sums = Vec::new();
        for accumulator in self.accumulators.iter().flatten() {
            sums.push(match accumulator {
                Accumulator::Registers(sums) => (sums.buffer, sums.at.registers()),
                Accumulator::Reduction(reduction) => reduction.parts(),
                Accumulator::Shared(_) => return Err(outside_of_registers()),
            });
        }
        self.exchange(&sums, ReduceFn::Sum);
        Ok(())
    }

    /// Adds the summands that several warps have, so that there is less to exchange.
    fn join_warps(&mut self) {
        for tile in 0..self.accumulators.len() {
            let Some(Accumulator::Registers(sums)) = &self.accumulators[tile] else { continue };
            if matches!(sums.at.columns, Columns::Summands(_)) {
                let (sums, shape) = (sums.clone(), self.steps.tiles[tile].shape.clone());
                let joined = self.joined_summands(sums, &shape);
                self.accumulators[tile] = Some(Accumulator::Registers(joined));
            }
        }
    }

    /// Replaces running maxima by those of all tasks, and rescales the task's sums accordingly.
    fn join_maxima(&mut self) -> Result<(), CannotLower> {
        let mut maxima = Vec::new();
        for tile in self.steps.in_stage(Stage::Loop) {
            if !matches!(self.steps.tiles[tile].step, Step::RunningMax { .. }) {
                continue;
            }
            let places = [&self.places[tile], &self.before[tile]].map(|places| match places.first() {
                Some(Place::Registers(registers)) => Ok(registers.clone()),
                Some(Place::Shared(_)) | None => Err(outside_of_registers()),
            });
            let [now, before] = places;
            let (now, before) = (now?, before?);
            for register in 0..now.at.registers() {
                let Location { buffer, offset } = self.place(now.buffer, register);
                let value = self.program.exprs.load(buffer, offset, 1, None);
                self.body.push(Stmt::Store { buffer: before.buffer, offset, value, mask: None });
            }
            maxima.push((now.buffer, now.at.registers()));
            // What was copied elsewhere is of the task.
            self.places[tile] = vec![Place::Registers(now)];
            self.before[tile] = vec![Place::Registers(before)];
        }
        if maxima.is_empty() {
            return Ok(());
        }
        self.exchange(&maxima, ReduceFn::Max);
        self.rescales.clear();
        for tile in 0..self.steps.tiles.len() {
            let Step::Accumulate { how, .. } = self.steps.tiles[tile].step else { continue };
            let Some(rescale) = Rescale::of(how) else { continue };
            let registers = match &self.accumulators[tile] {
                Some(Accumulator::Registers(registers)) => registers.clone(),
                Some(Accumulator::Reduction(Reduction::Rows(rows))) => rows.partial.clone(),
                Some(Accumulator::Reduction(Reduction::Groups(_)) | Accumulator::Shared(_)) => {
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
    fn exchange(&mut self, scratch: &[(BufferId, usize)], f: ReduceFn) {
        let mut exchanged = Vec::new();
        for &(buffer, elems) in scratch {
            let own = self.add_buffer("exchange", DType::F32, elems * self.threads(), Scope::Shared);
            for part in 0..elems / lanes(elems) {
                let part = self.index(part);
                let (to, from) = (self.exchange_place(own, part, elems), self.part(buffer, part, elems));
                let value = self.program.exprs.load(from.buffer, from.offset, lanes(elems), None);
                self.body.push(Stmt::Store { buffer: own, offset: to.offset, value, mask: None });
            }
            exchanged.push((buffer, elems, own));
        }
        self.cluster_barrier();
        let (many, few): (Vec<_>, Vec<_>) = exchanged
            .into_iter()
            .partition(|&(_, elems, _)| self.plan.tasks > 2 && elems / lanes(elems) >= self.plan.tasks);
        for &(buffer, elems, own) in &few {
            for part in 0..elems / lanes(elems) {
                let part = self.index(part);
                let value = self.of_all(own, (part, elems), f);
                let to = self.part(buffer, part, elems);
                self.body.push(Stmt::Store { buffer, offset: to.offset, value, mask: None });
            }
        }
        for &(_, elems, own) in &many {
            self.combine_share(own, elems, f);
        }
        if !many.is_empty() {
            self.cluster_barrier();
            let outer = std::mem::take(&mut self.body);
            for &(buffer, elems, own) in &many {
                for part in 0..elems / lanes(elems) {
                    let owner = self.index(part % self.plan.tasks);
                    let part = self.index(part);
                    let from = self.exchange_place(own, part, elems);
                    let value = self.of_peer(owner, from, lanes(elems));
                    let to = self.part(buffer, part, elems);
                    self.body.push(Stmt::Store { buffer, offset: to.offset, value, mask: None });
                }
            }
            let gathered = std::mem::replace(&mut self.body, outer);
            self.run_once(gathered);
        }
    }

    /// Combines every so many-th part of what all tasks have left, and leaves it in its place.
    fn combine_share(&mut self, own: BufferId, elems: usize, f: ReduceFn) {
        let (parts, tasks) = (elems / lanes(elems), self.plan.tasks);
        for first in (0..parts).step_by(tasks) {
            let part = self.program.exprs.add_const(self.rank, first as i64);
            let outer = std::mem::take(&mut self.body);
            let value = self.of_all(own, (part, elems), f);
            let to = self.exchange_place(own, part, elems);
            self.body.push(Stmt::Store { buffer: own, offset: to.offset, value, mask: None });
            let then = std::mem::replace(&mut self.body, outer);
            match self.below(part, parts).filter(|_| first + tasks > parts) {
                Some(condition) => {
                    self.body.push(Stmt::If { condition, then, otherwise: Vec::new() });
                }
                None => self.body.extend(then),
            }
        }
    }

    /// What all tasks have left of a part, combined in their order.
    fn of_all(&mut self, own: BufferId, (part, elems): (ExprId, usize), f: ReduceFn) -> ExprId {
        let from = self.exchange_place(own, part, elems);
        let parts: Vec<ExprId> = (0..self.plan.tasks)
            .map(|rank| {
                let rank = self.index(rank);
                self.of_peer(rank, from, lanes(elems))
            })
            .collect();
        let mut parts = parts.into_iter();
        let first = parts.next().expect("a cluster has tasks");
        parts.fold(first, |all, part| self.combined(f, all, part))
    }

    fn cluster_barrier(&mut self) {
        self.body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        self.touched = Touched::default();
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
            self.body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        }
    }

    /// Where a thread leaves a part of its sums for the other tasks: neighbouring threads side by side.
    fn exchange_place(&mut self, buffer: BufferId, part: ExprId, elems: usize) -> Location {
        let (threads, lanes) = (self.threads(), lanes(elems));
        let exprs = &mut self.program.exprs;
        let offset = exprs.linear_index(&[part, self.thread], &[threads * lanes, lanes]);
        Location { buffer, offset: self.simplifier.simplify(&mut self.program.exprs, offset) }
    }

    /// A part of scratch.
    fn part(&mut self, buffer: BufferId, part: ExprId, elems: usize) -> Location {
        Location { buffer, offset: self.program.exprs.mul_const(part, lanes(elems) as i64) }
    }

    /// What the thread of the same number of a task left.
    fn of_peer(&mut self, rank: ExprId, from: Location, lanes: usize) -> ExprId {
        let exprs = &mut self.program.exprs;
        let var = exprs.declare_register("part", Type { dtype: DType::F32, lanes });
        let part = exprs.var(var);
        self.body.push(Stmt::Cta(CtaStmt::LoadDsmem { var, rank, from }));
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
