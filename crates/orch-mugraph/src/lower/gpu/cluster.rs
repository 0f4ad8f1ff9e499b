//! Split-K (split-KV) over a cluster: the CTAs of a cluster share the iterations of a block, and reduce
//! through DSMEM.
//!
//! ```text
//! CTA r of c runs iterations r * n / c .. (r + 1) * n / c, of the visible ones where a mask hides others (`visible`)
//! after its loop:   running maxima: all-reduce (max) -> accumulators rescaled to the common maximum
//!                   accumulators:   all-reduce (few), or reduce-scatter and gather by rank 0 (many, more than 2 CTAs)
//! then              all CTAs compute what follows; rank 0 stores
//! exchange buffer:  [part, thread, 4] f32 in each CTA's shared memory; a thread reads its own registers' counterparts
//! ```
//!
//! For grids of so few blocks that half of the SMs would idle: these neither saturate memory nor compute all
//! that they could. On an H200 8 CTAs exchange 32 KiB each in 4.5 us (15.7 us if each reads all), 2 CTAs in
//! 2.2 us; a second kernel that combines partial results takes 3.5 us and its launch.

use super::accumulate::{LoopAccumulator, Rescale};
use super::emitter::BlockEmitter;
use super::hazards::SharedAccesses;
use super::layout::ColumnLayout;
use super::reduce::ReductionState;
use super::skinny::is_skinny_shape;
use super::steps::{TileStep, TileSteps};
use super::value::TileHome;
use crate::graph::{Accumulation, BlockGraph};
use crate::lower::CannotLower;
use crate::op::{Op, ReduceFn};
use crate::tiling::Stage;
use orch_compute::{BufferId, ExprId, Type};
use orch_ir::DType;
use orch_thread::cta::WARP_GROUP_ROWS;
use orch_thread::{CtaStmt, GpuTarget, Location, Scope, Stmt};

/// Accumulators per vector of an exchange.
const EXCHANGE_VECTOR: usize = 4;

/// Whether `ctas` CTAs may share the iterations of a block, with `least` or more each: clusters fit on the
/// device, iterations divide evenly, and all accumulations stay in registers.
pub(super) fn can_split_iterations(
    block: &BlockGraph,
    shapes: &[Vec<usize>],
    (ctas, least): (usize, usize),
    target: &GpuTarget,
) -> bool {
    if ctas == 1 {
        return true;
    }
    let suits = target.has_clusters
        && block.blocks() * ctas <= target.ctas_in_clusters(ctas)
        && block.loop_range.is_multiple_of(ctas)
        && block.loop_range / ctas >= least;
    suits && TileSteps::of(block, shapes).is_ok_and(|steps| accumulators_are_in_registers(&steps))
}

/// Whether all products have whole rows of 64, as wgmma takes them: clusters are preferred for these.
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

/// Whether all accumulations are fused sums of products and reductions, which are in registers.
fn accumulators_are_in_registers(steps: &TileSteps) -> bool {
    steps.tiles.iter().enumerate().filter(|(_, tile)| tile.readers > 0).all(|(at, tile)| {
        let TileStep::Accumulate { how, tile: from } = tile.step else { return true };
        let is_sum = match &steps.tiles[from].step {
            TileStep::Op { op: Op::Matmul, .. } => is_skinny_shape(&tile.shape),
            TileStep::Op { op, .. } => matches!(op, Op::Reduce { .. }),
            TileStep::Load { .. } | TileStep::Inside { .. } => false,
            TileStep::Accumulate { .. } | TileStep::RunningMax { .. } => false,
        };
        is_sum && how != Accumulation::Max && steps.only_reader(from) == Some(at)
    })
}

impl BlockEmitter<'_> {
    /// The most iterations that a CTA runs.
    pub fn iterations_per_cta(&self) -> usize {
        self.plan.steps.loop_range / self.plan.schedule.cluster
    }

    /// The block's iteration that is iteration `iteration` of this CTA.
    pub fn block_iteration(&mut self, iteration: ExprId) -> ExprId {
        self.program.exprs.add2(self.iterations.first, iteration)
    }

    /// Reduces what the CTAs of a cluster have accumulated: maxima first, to which accumulators are rescaled,
    /// then accumulators.
    pub fn reduce_over_cluster(&mut self) -> Result<(), CannotLower> {
        if self.plan.schedule.cluster == 1 {
            return Ok(());
        }
        self.reduce_maxima_over_cluster()?;
        self.reduce_over_warps_first();
        let mut accumulators = Vec::new();
        for accumulator in self.tiles.accumulators.iter().flatten() {
            accumulators.push(match accumulator {
                LoopAccumulator::Registers(accumulators) => {
                    (accumulators.buffer, accumulators.at.registers_per_thread())
                }
                LoopAccumulator::Reduction(reduction) => reduction.parts(),
                LoopAccumulator::Shared(_) => return Err(outside_of_registers()),
            });
        }
        self.all_reduce_through_dsmem(&accumulators, ReduceFn::Sum);
        Ok(())
    }

    /// Reduces split-K over warps before the exchange, which is then smaller.
    fn reduce_over_warps_first(&mut self) {
        for tile in 0..self.tiles.accumulators.len() {
            let Some(LoopAccumulator::Registers(accumulators)) = &self.tiles.accumulators[tile] else {
                continue;
            };
            if matches!(accumulators.at.columns, ColumnLayout::SplitK(_)) {
                let (accumulators, shape) = (accumulators.clone(), self.plan.steps.tiles[tile].shape.clone());
                let reduced = self.reduce_split_k_registers(accumulators, &shape);
                self.tiles.accumulators[tile] = Some(LoopAccumulator::Registers(reduced));
            }
        }
    }

    /// All-reduces running maxima. `max_before` is set to the CTA's own maxima first, so that the rescaling
    /// by `max_before - max` brings the CTA's accumulators to the common maximum. An error if maxima or
    /// accumulators are not in registers.
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
            // Copies in shared memory are stale.
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
                Some(LoopAccumulator::Reduction(ReductionState::InRegisters(rows))) => rows.partial.clone(),
                Some(
                    LoopAccumulator::Reduction(ReductionState::ThreadGroups(_)) | LoopAccumulator::Shared(_),
                ) => {
                    return Err(outside_of_registers());
                }
                None => continue,
            };
            self.rescale_registers(&registers, rescale);
        }
        Ok(())
    }

    /// Combines scratch buffers of so many elements with those of the same threads in the other CTAs. Few
    /// elements: every CTA reads all. Many: each CTA reduces a share (reduce-scatter), and only rank 0 has
    /// the result.
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

    /// Reduces every `cluster`-th part, from `cta_rank` on, and leaves it in this CTA's exchange buffer.
    fn reduce_own_share(&mut self, own: BufferId, elems: usize, f: ReduceFn) {
        let (parts, ctas) = (elems / lanes(elems), self.plan.schedule.cluster);
        for first in (0..parts).step_by(ctas) {
            let part = self.program.exprs.add_const(self.ids.cta_rank, first as i64);
            let outer = std::mem::take(&mut self.code.body);
            let value = self.reduce_over_ranks(own, (part, elems), f);
            let to = self.exchange_location(own, part, elems);
            self.code.body.push(Stmt::Store { buffer: own, offset: to.offset, value, mask: None });
            let then = std::mem::replace(&mut self.code.body, outer);
            match self.is_below(part, parts).filter(|_| first + ctas > parts) {
                Some(condition) => {
                    self.code.body.push(Stmt::If { condition, then, otherwise: Vec::new() });
                }
                None => self.code.body.extend(then),
            }
        }
    }

    /// A part combined over all CTAs in order of rank, so that all get the same value.
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

    /// Adds a cluster barrier, which is a CTA barrier too.
    fn emit_cluster_barrier(&mut self) {
        self.code.body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        self.pending.accesses = SharedAccesses::default();
    }

    /// Adds statements that only rank 0 runs.
    pub fn emit_on_rank_zero(&mut self, stmts: Vec<Stmt>) {
        if self.plan.schedule.cluster == 1 {
            self.emit(stmts);
            return;
        }
        let zero = self.index(0);
        let condition = self.program.exprs.eq(self.ids.cta_rank, zero);
        self.emit(vec![Stmt::If { condition, then: stmts, otherwise: Vec::new() }]);
    }

    /// Waits for the cluster before the CTA exits: others may still read its shared memory.
    pub fn emit_final_cluster_barrier(&mut self) {
        if self.plan.schedule.cluster > 1 {
            self.code.body.push(Stmt::Cta(CtaStmt::ClusterBarrier));
        }
    }

    /// Where the thread leaves part `part` of its registers: `[part, thread, lane]`.
    fn exchange_location(&mut self, buffer: BufferId, part: ExprId, elems: usize) -> Location {
        let (threads, lanes) = (self.threads(), lanes(elems));
        let exprs = &mut self.program.exprs;
        let offset = exprs.linear_index(&[part, self.ids.thread], &[threads * lanes, lanes]);
        Location { buffer, offset: self.simplifier.simplify(&mut self.program.exprs, offset) }
    }

    /// A part of a scratch buffer.
    fn register_group(&mut self, buffer: BufferId, part: ExprId, elems: usize) -> Location {
        Location { buffer, offset: self.program.exprs.mul_const(part, lanes(elems) as i64) }
    }

    /// Loads a part from the same place of CTA `rank` (`ld.shared::cluster`).
    fn load_dsmem(&mut self, rank: ExprId, from: Location, lanes: usize) -> ExprId {
        let exprs = &mut self.program.exprs;
        let var = exprs.declare_register("part", Type { dtype: DType::F32, lanes });
        let part = exprs.var(var);
        self.code.body.push(Stmt::Cta(CtaStmt::LoadDsmem { var, rank, from }));
        part
    }
}

/// The error for accumulators that a cluster cannot exchange.
fn outside_of_registers() -> CannotLower {
    CannotLower("tasks that share a block have sums or maxima outside of registers".to_owned())
}

/// Vector width of an exchange of `elems` registers.
fn lanes(elems: usize) -> usize {
    if elems.is_multiple_of(EXCHANGE_VECTOR) { EXCHANGE_VECTOR } else { 1 }
}
