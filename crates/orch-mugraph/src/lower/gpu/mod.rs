//! GPU lowering of a block graph: one kernel of a µGraph as a thread program of CTAs.
//!
//! ```text
//! kernel      grid of blocks; a block is one CTA, or a cluster of CTAs that split its loop (cluster); or CTAs share the blocks
//!                (persistent)
//!  └ CTA      4 or 8 warps = 1 or 2 warp groups; a WarpGrid deals rows and columns of tiles to warps (layout)
//!     └ loop  over the K dimension, keys of attention, ...; a ring of stages in shared memory (pipeline)
//!
//! iteration:  0     1     2     3     4        stages = 4
//! load into   s0    s1    s2    s3    s0 ...   TMA (tma) or cp.async (staging), `stages - 1` ahead
//!             full mbarrier of the stage (or cp.async.wait_group) -> compute
//!             -> barrier, or empty mbarrier of the stage -> the stage is loaded again
//! ```
//!
//! Where a tile lives (`value::TileHome`, decided by `materialize`):
//!
//! - registers, in the accumulator layout of `mma`/`wgmma` (`layout`): results of products and what is
//!   computed from them element by element;
//! - shared memory: staged loads (swizzled for wgmma, padded against bank conflicts for ldmatrix), copies
//!   that other threads read;
//! - nowhere: recomputed from its operands at each use.
//!
//! Parts, in order of use:
//!
//! - `schedules` chooses among ways to run a block; `steps` normalises its tiles; `skinny` and
//!   `split_iterations` choose K per iteration of skinny GEMMs;
//! - `staging`, `tma`, `register_direct` load from global memory: cp.async, TMA, or direct loads to
//!   registers;
//! - `operand`, `mma`, `wgmma`, `split_k` multiply tiles; `accumulate`, `reduce` carry sums and maxima
//!   through the loop;
//! - `persistent` has each CTA run one block after the other, with loads of the next one in flight;
//! - `visible` leaves out iterations that a causal mask or a window hides; `sms` has how long the blocks that are left take;
//! - `overlap` and `conditional_rescale` are softmax/GEMM overlap (FlashAttention-3) and conditional
//!   rescaling (FlashAttention-4);
//! - `cluster` reduces over CTAs through DSMEM; `combine` is the kernel that combines the partial results of
//!   split-KV or split-K;
//! - `emitter` holds the state; `hazards` places barriers; `elements` and `value` compute elements; `store`
//!   writes results.

mod accumulate;
mod cluster;
mod combine;
mod conditional_rescale;
mod elements;
mod emitter;
mod hazards;
mod hidden;
mod layout;
mod materialize;
mod mma;
mod operand;
mod overlap;
mod persistent;
mod pipeline;
mod reduce;
mod register_direct;
mod schedules;
mod skinny;
mod sms;
mod split_iterations;
mod split_k;
mod staging;
mod steps;
mod store;
mod tma;
mod value;
mod visible;
mod wgmma;

use super::{CannotLower, Request};
use crate::graph::{BlockGraph, TensorId};
use crate::op::Op;
use crate::tiling::Stage;
use emitter::{BlockEmitter, BlockPlan, BlockSchedule};
use layout::{ColumnLayout, FragmentLayout, WarpGrid};
use orch_compute::ArgId;
use orch_thread::OperandPrecision;
use orch_thread::count::cta_resources;
use orch_thread::cta::WARP_GROUP;
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::{Buffer, CtaResources, CtaStmt, GpuTarget, Scope, Stmt};
use persistent::PersistentCtas;
pub use schedules::{MugraphSchedule, lower, lower_as, schedules};
use steps::{TileStep, TileSteps};
pub use visible::{EmittedKernel, LoopDevice, iterations, visible_share};

/// Warps of a CTA with few accumulators: one warp group.
pub const FEW_WARPS: usize = 4;
/// Warps of a CTA with many accumulators: two warp groups.
pub const MANY_WARPS: usize = 8;
/// Accumulator registers of a thread, at [`FEW_WARPS`], above which [`MANY_WARPS`] share them: of products by `mma`.
const MANY_ACCUMULATORS: usize = 128;
/// The same of products by wgmma where each of [`MANY_WARPS`] has rows of its own. Chosen by timing
/// attention, whose accumulators are scores and outputs; a plain GEMM may do better with the other number.
const MANY_WGMMA_ACCUMULATORS: usize = 96;
/// The same where only [`FEW_WARPS`] have rows of their own, so that more warps would give up wgmma for `mma`.
const MAX_WGMMA_ACCUMULATORS: usize = 160;
/// Most stages of the shared-memory ring.
const MAX_STAGES: usize = 8;
/// Bytes of cp.async or direct loads in flight per SM that saturate memory. The same for all targets: too few
/// where memory has more bandwidth per SM or more latency than an H200's.
const BYTES_IN_FLIGHT: usize = 64 << 10;
/// Elements of a tile, in a block without products, from which [`MANY_WARPS`] share them.
const MANY_ELEMS: usize = 4096;

/// Lowers the tiles of a block to a kernel, with as many stages as suit the target. Emits the block with one and with two
/// stages first, to learn how many bytes of shared memory the first stage and each further one take.
fn lower_steps(
    request: &Request<'_>,
    (block, steps): (&BlockGraph, &TileSteps),
    target: &GpuTarget,
    (precision, schedule): (OperandPrecision, MugraphSchedule),
) -> Result<Kernel, CannotLower> {
    let MugraphSchedule { tma_operands, ctas, persistent } = schedule;
    let wgmma = target.has_wgmma && matches!(precision, OperandPrecision::F16 | OperandPrecision::Bf16);
    let warps =
        if tma_operands { skinny::warp_groups(steps) * WARP_GROUP } else { choose_warps(steps, wgmma) };
    let emit = |schedule: BlockSchedule| emit_block(BlockPlan { request, steps, precision, schedule }, block);
    let is_combine = combine::combines_partials(steps);
    // A loop that loads nothing ahead overlaps nothing with the next block either.
    let unstaged = |kernel: Kernel| match persistent {
        true => Err(CannotLower("persistent CTAs need stages".to_owned())),
        false => Ok(kernel),
    };
    let one_stage = BlockSchedule {
        warps,
        stages: 1,
        stages_all_loads: !is_combine,
        wgmma,
        overlaps_softmax: false,
        softmax_first: false,
        empty_mbarriers: false,
        is_skinny: tma_operands,
        is_combine,
        cluster: ctas,
        persistent: None,
    };
    let kernel = emit(one_stage)?;
    let resources = cta_resources(&kernel.program);
    let first_bytes = resources.shared_bytes;
    if first_bytes > target.shared_bytes {
        let kernel = emit(BlockSchedule { stages_all_loads: false, ..one_stage })?;
        let bytes = kernel.program.shared_bytes();
        return match bytes <= target.shared_bytes {
            true => unstaged(kernel),
            false => Err(CannotLower(format!(
                "tiles of {bytes} bytes, more than the {} of {}",
                target.shared_bytes, target.name
            ))),
        };
    }
    if steps.loop_range == 1 {
        return unstaged(kernel);
    }
    let two_stages = emit(BlockSchedule { stages: 2, ..one_stage })?;
    let stage_bytes = two_stages.program.shared_bytes().saturating_sub(first_bytes);
    // A skinny GEMM has nothing but its loads to do: all of shared memory may be in flight.
    let bytes_in_flight = if tma_operands { target.shared_bytes } else { BYTES_IN_FLIGHT };
    let needs = StageNeeds { resources, stage_bytes, bytes_in_flight };
    match choose_stages(block.blocks(), steps.loop_range / ctas, needs, target) {
        1 => unstaged(kernel),
        stages => {
            let pipelined = !tma_operands;
            let shared_bytes = first_bytes + (stages - 1) * stage_bytes;
            let resident = target.resident_ctas(CtaResources { shared_bytes, ..resources });
            let is_alone = block.blocks() <= target.sms || resident <= 1;
            let schedule = BlockSchedule {
                stages,
                overlaps_softmax: pipelined,
                softmax_first: is_alone,
                empty_mbarriers: pipelined,
                ..one_stage
            };
            if !persistent {
                return emit(schedule);
            }
            let shared = PersistentCtas::of(request, block, steps, target).filter(|_| is_alone);
            let shared =
                shared.ok_or_else(|| CannotLower(format!("persistent CTAs do not suit {}", target.name)))?;
            let kernel = emit(BlockSchedule { persistent: Some(shared), ..schedule })?;
            let bytes = kernel.program.shared_bytes();
            let fits = bytes <= target.shared_bytes;
            fits.then_some(kernel).ok_or_else(|| CannotLower(format!("persistent CTAs of {bytes} bytes")))
        }
    }
}

/// What the number of stages is chosen by.
struct StageNeeds {
    /// What the block takes with one stage.
    resources: CtaResources,
    /// Shared memory of each further stage.
    stage_bytes: usize,
    /// Bytes of loads per SM that should be in flight.
    bytes_in_flight: usize,
}

/// The number of stages for a grid of `blocks` whose loops have so many `iterations`: enough for `bytes_in_flight`, at most as
/// many as fit into shared memory, a power of two if that fits.
fn choose_stages(blocks: usize, iterations: usize, needs: StageNeeds, target: &GpuTarget) -> usize {
    let StageNeeds { resources, stage_bytes, bytes_in_flight } = needs;
    let most = MAX_STAGES.min(iterations);
    let fitting = |resident: usize| {
        target.shared_bytes_beside(resident).saturating_sub(resources.shared_bytes) / stage_bytes.max(1) + 1
    };
    // Two resident CTAs per SM hide each other's stalls.
    let two_fit = fitting(2) > 1 && target.resident_ctas(resources) > 1;
    let resident = if blocks > target.sms && two_fit { 2 } else { 1 };
    let wanted = bytes_in_flight.div_ceil(stage_bytes.max(1) * resident) + 1;
    let stages = wanted.min(fitting(resident)).clamp(1, most);
    // `iteration % stages` is one instruction for a power of two, seven otherwise.
    let rounded = stages.next_power_of_two();
    if rounded <= fitting(resident).min(most) { rounded } else { stages }
}

/// Checks that `stored` gives strides for every tensor in memory that is loaded or stored.
fn check_request(request: &Request<'_>, block: &BlockGraph) -> Result<(), CannotLower> {
    if request.stored.len() < request.graph.shapes().len() {
        return Err(CannotLower(format!("{} tensors are described", request.stored.len())));
    }
    for tensor in block.loaded().filter(|tensor| request.is_in_memory(*tensor)).chain(results(request, block))
    {
        let (shape, stored) = (request.graph.shape(tensor), &request.stored[tensor.index()]);
        if stored.strides.len() != shape.len() {
            return Err(CannotLower(format!("{tensor} has {} strides", stored.strides.len())));
        }
    }
    Ok(())
}

/// The tensors that the kernel stores: consecutive numbers from the kernel's on, one per store.
fn results(request: &Request<'_>, block: &BlockGraph) -> impl Iterator<Item = TensorId> {
    let first = request.kernel.0;
    (0..block.stores.len() as u32).map(move |at| TensorId(first + at))
}

/// Two warp groups if accumulators (or, without products, elements) are many, or if B is loaded directly to
/// registers, where more warps have more bytes in flight; one otherwise. With wgmma, two only if all their
/// warps have rows of their own.
fn choose_warps(steps: &TileSteps, tiles: bool) -> usize {
    if !steps.direct_loads.is_empty() {
        return MANY_WARPS;
    }
    let suits = |warps: usize| {
        let rows = |tile: &steps::BlockTile| WarpGrid::of(&tile.shape, warps);
        products(steps).all(|tile| rows(tile).is_some_and(|rows| wgmma::is_per_warp_group(&rows)))
    };
    let many = match products(steps).next() {
        None => {
            steps.tiles.iter().any(|tile| tile.readers > 0 && crate::op::elems(&tile.shape) >= MANY_ELEMS)
        }
        Some(_) => {
            let few = match tiles {
                true if suits(MANY_WARPS) => MANY_WGMMA_ACCUMULATORS,
                true if suits(FEW_WARPS) => MAX_WGMMA_ACCUMULATORS,
                _ => MANY_ACCUMULATORS,
            };
            accumulators(steps, FEW_WARPS) > few
        }
    };
    if many { MANY_WARPS } else { FEW_WARPS }
}

/// Accumulator registers of a thread: of all products of the block, by so many warps.
fn accumulators(steps: &TileSteps, warps: usize) -> usize {
    let registers = |tile: &steps::BlockTile| {
        let columns = ColumnLayout::Partitioned(tile.shape[tile.shape.len() - 1]);
        let at = |rows| FragmentLayout { rows, columns };
        WarpGrid::of(&tile.shape, warps).map_or(0, |rows| at(rows).registers_per_thread())
    };
    products(steps).map(registers).sum()
}

/// The products of a block that are read.
fn products(steps: &TileSteps) -> impl Iterator<Item = &steps::BlockTile> {
    let is_product = |tile: &&steps::BlockTile| matches!(tile.step, TileStep::Op { op: Op::Matmul, .. });
    steps.tiles.iter().filter(|tile| tile.readers > 0).filter(is_product)
}

/// Emits the kernel of a schedule. What shows only once statements are written switches techniques off, and the block is emitted
/// again: the softmax overlap, if its products turn out not to be wgmma; empty mbarriers, if they do not order all accesses
/// to shared memory.
///
/// # Errors
/// If a skinny GEMM's B is not loaded by TMA, blocks cannot follow each other in a persistent CTA, or accumulators that a cluster would
/// reduce are not in registers.
fn emit_block(plan: BlockPlan<'_>, block: &BlockGraph) -> Result<Kernel, CannotLower> {
    let mut emitter = BlockEmitter::new(plan, block);
    let bindings = emitter.declare_arguments(block);
    emitter.emit_body(block)?;
    let schedule = plan.schedule;
    emitter.check_block_loop()?;
    let again = |schedule| emit_block(BlockPlan { schedule, ..plan }, block);
    if schedule.is_skinny && !emitter.loads_skinny_b_by_tma() {
        return Err(CannotLower("TMA does not take the operands".to_owned()));
    }
    if emitter.overlap.as_ref().is_some_and(|overlap| !overlap.is_written()) {
        return again(BlockSchedule { overlaps_softmax: false, ..schedule });
    }
    if !emitter.empty.suffice {
        return again(BlockSchedule { empty_mbarriers: false, ..schedule });
    }
    Ok(emitter.finish(bindings))
}

impl BlockEmitter<'_> {
    /// The kernel: moves the prologue behind the statements that bind thread ids, with a barrier after it.
    fn finish(mut self, bindings: Vec<Binding>) -> Kernel {
        let mut body = std::mem::take(&mut self.code.body);
        if self.block_loop.is_some() {
            let of_block = body.split_off(self.code.prologue_at);
            body.extend(self.over_blocks(of_block));
        }
        if !self.code.prologue.is_empty() {
            // The prologue uses the ids that the statements before it bind.
            let (at, barrier) = (self.code.prologue_at, Stmt::Cta(CtaStmt::Barrier));
            body.splice(at..at, self.code.prologue.into_iter().chain([barrier]));
        }
        self.program.body = body;
        if let Some(cta) = self.program.cta.as_mut() {
            cta.loads_ahead |= self.plan.schedule.is_combine;
        }
        Kernel { program: self.program, bindings }
    }

    /// Adds a buffer for each tensor in memory that is read or written, and gives what each is bound to.
    fn declare_arguments(&mut self, block: &BlockGraph) -> Vec<Binding> {
        let mut bindings = Vec::new();
        let read: Vec<usize> =
            (0..self.plan.steps.tiles.len()).filter(|&at| self.plan.steps.tiles[at].readers > 0).collect();
        let read: Vec<TensorId> = read.into_iter().filter_map(|tile| self.tensor_in_memory(tile)).collect();
        let written: Vec<TensorId> = results(self.plan.request, block).collect();
        let both = [(read, Scope::Input), (written, Scope::Output)];
        for (tensor, scope) in
            both.into_iter().flat_map(|(all, scope)| all.into_iter().map(move |t| (t, scope)))
        {
            if self.arguments[tensor.index()].is_none() {
                let stored = &self.plan.request.stored[tensor.index()];
                let (dtype, elems) = (stored.dtype, stored.elems);
                let buffer = Buffer { name: tensor.to_string(), dtype, elems, scope };
                self.arguments[tensor.index()] = Some(self.program.add_buffer(buffer));
                bindings.push(Binding::Arg(ArgId(tensor.0)));
            }
        }
        bindings
    }

    /// Emits loads, loop-invariant tiles, the loop, the reduction over the cluster, tiles after the loop, and
    /// stores.
    fn emit_body(&mut self, block: &BlockGraph) -> Result<(), CannotLower> {
        let staged = self.start_loads();
        for tile in self.plan.steps.in_stage(Stage::Invariant) {
            self.emit_tile(tile);
        }
        if self.plan.steps.loop_range > 1 {
            self.emit_loop(&staged);
        }
        self.reduce_over_cluster()?;
        for tile in self.plan.steps.in_stage(Stage::After) {
            match self.plan.steps.tiles[tile].step {
                TileStep::Accumulate { .. } => self.finish_accumulator(tile),
                _ => self.emit_tile(tile),
            }
        }
        let stores = self.plan.steps.stores.iter().zip(results(self.plan.request, block));
        for ((tile, grid), tensor) in stores {
            self.emit_store(*tile, grid, tensor);
        }
        if !self.pending.cp_async.is_empty() {
            self.code.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
        }
        self.wait_for_tma(|_| true);
        self.emit_final_cluster_barrier();
        Ok(())
    }
}
