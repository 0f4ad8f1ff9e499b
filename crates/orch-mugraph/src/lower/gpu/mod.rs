//! Block graphs as thread programs of CTAs.
//!
//! A block is a task of a CTA of [`FEW_WARPS`] or [`MANY_WARPS`] warps, or a cluster of tasks that share its iterations
//! (`cluster`). Each tile is in one of three places (`value::Place`): in shared memory; in registers, in the layout in which
//! matrix instructions leave sums (`layout`); or nowhere, computed from its operands where an element of it is needed (`keep`
//! decides). Tiles of tensors are copied to shared memory, those of the loop several iterations ahead (`tensors`, `pipeline`),
//! factors of whole tiles by the copy engine (`boxes`). Large factors of few rows go straight to registers (`stream`), or come
//! in boxes as well (`few_rows`, `refine`): that is a choice (`schedules`). Products (`factor`, `multiply`, `tiles`, `sums`)
//! and what follows them stay in registers as long as readers need elements at their own place (`accumulate`, `reduce`); all
//! else goes through shared memory, element by element (`elements`). Barriers are set where statements need them (`hazards`).

mod accumulate;
mod boxes;
mod cluster;
mod combine;
mod elements;
mod factor;
mod few_rows;
mod hazards;
mod keep;
mod layout;
mod lazy;
mod lowering;
mod multiply;
mod overlap;
mod pipeline;
mod reduce;
mod refine;
mod schedules;
mod steps;
mod store;
mod stream;
mod sums;
mod tensors;
mod tiles;
mod value;

use super::{CannotLower, Request};
use crate::graph::{BlockGraph, TensorId};
use crate::op::Op;
use crate::tiling::Stage;
use layout::{Columns, Fragments, Rows};
use lowering::{Lowering, Plan};
use orch_compute::ArgId;
use orch_thread::OperandPrecision;
use orch_thread::cta::WARP_GROUP;
use orch_thread::kernel::{Binding, Kernel};
use orch_thread::{Buffer, CtaStmt, GpuTarget, Scope, Stmt};
pub use schedules::{Schedule, lower, lower_as, schedules};
use steps::{Step, Steps};

/// Warps of a CTA, if its sums are few.
pub const FEW_WARPS: usize = 4;
/// Warps of a CTA, if its sums are many.
pub const MANY_WARPS: usize = 8;
/// Registers of a thread for sums, from which on more warps share them.
const MANY_SUMS: usize = 128;
/// The same where warps multiply whole tiles, which more of them can do.
const MANY_TILE_SUMS: usize = 96;
/// The same where fewer warps multiply whole tiles and more of them do not.
const MOST_TILE_SUMS: usize = 160;
/// Iterations whose tiles are in shared memory at once, at most.
const MOST_STAGES: usize = 8;
/// Bytes of copies by threads that keep the memory of a multiprocessor busy.
const BYTES_UNDER_WAY: usize = 64 << 10;
/// Elements of a tile from on which more warps share them.
const MANY_ELEMS: usize = 4096;

/// Lowers the steps of a block with as many stages as suit the target.
fn lower_steps(
    request: &Request<'_>,
    (block, steps): (&BlockGraph, &Steps),
    target: &GpuTarget,
    (factors, Schedule { tma_operands: boxes, ctas: tasks }): (OperandPrecision, Schedule),
) -> Result<Kernel, CannotLower> {
    let tiles = target.has_wgmma && matches!(factors, OperandPrecision::F16 | OperandPrecision::Bf16);
    let warps = if boxes { few_rows::groups(steps) * WARP_GROUP } else { choose_warps(steps, tiles) };
    let with = |plan: Plan| emit(request, block, (steps, factors), plan);
    let combines = combine::combines_parts(steps);
    let one = Plan {
        warps,
        stages: 1,
        stages_all: !combines,
        tiles,
        overlaps: false,
        gates: false,
        few_rows: boxes,
        combines,
        tasks,
    };
    let kernel = with(one)?;
    let bytes = kernel.program.shared_bytes();
    if bytes > target.shared_bytes {
        let kernel = with(Plan { stages_all: false, ..one })?;
        let bytes = kernel.program.shared_bytes();
        return match bytes <= target.shared_bytes {
            true => Ok(kernel),
            false => Err(CannotLower(format!(
                "tiles of {bytes} bytes, more than the {} of {}",
                target.shared_bytes, target.name
            ))),
        };
    }
    if steps.loop_range == 1 {
        return Ok(kernel);
    }
    let more = with(Plan { stages: 2, ..one })?.program.shared_bytes() - bytes;
    // Nobody waits for boxes by the way, so that they may be as many as fit.
    let under_way = if boxes { target.shared_bytes } else { BYTES_UNDER_WAY };
    let iterations = steps.loop_range / tasks;
    let stages = choose_stages((block.blocks(), iterations), (bytes, more, under_way), target);
    if stages > 1 { with(Plan { stages, overlaps: !boxes, gates: !boxes, ..one }) } else { Ok(kernel) }
}

/// As many stages as let so many bytes be under way, if tiles take `bytes` in one stage and `more` in each further one.
fn choose_stages(
    (blocks, loop_range): (usize, usize),
    (bytes, more, under_way): (usize, usize, usize),
    target: &GpuTarget,
) -> usize {
    let most = MOST_STAGES.min(loop_range);
    let fitting = |resident: usize| (target.shared_bytes / resident).saturating_sub(bytes) / more.max(1) + 1;
    // Two blocks of a multiprocessor hide each other's waiting.
    let resident = if blocks > target.sms && fitting(2) > 1 { 2 } else { 1 };
    let wanted = under_way.div_ceil(more.max(1) * resident) + 1;
    let stages = wanted.min(fitting(resident)).clamp(1, most);
    // Of a power of two the stage of an iteration is found by one instruction instead of seven.
    let rounded = stages.next_power_of_two();
    if rounded <= fitting(resident).min(most) { rounded } else { stages }
}

/// Whether every tensor that is loaded or stored lies in memory as its shape says.
fn check_request(request: &Request<'_>, block: &BlockGraph) -> Result<(), CannotLower> {
    if request.stored.len() < request.graph.shapes().len() {
        return Err(CannotLower(format!("{} tensors are described", request.stored.len())));
    }
    let in_memory = |tensor: &TensorId| request.graph.computed_mask(*tensor).is_none();
    for tensor in block.loaded().filter(in_memory).chain(results(request, block)) {
        let (shape, stored) = (request.graph.shape(tensor), &request.stored[tensor.index()]);
        if stored.strides.len() != shape.len() {
            return Err(CannotLower(format!("{tensor} has {} strides", stored.strides.len())));
        }
    }
    Ok(())
}

/// The tensors that a kernel stores.
fn results(request: &Request<'_>, block: &BlockGraph) -> impl Iterator<Item = TensorId> {
    let first = request.kernel.0;
    (0..block.stores.len() as u32).map(move |at| TensorId(first + at))
}

/// As many warps as leave few sums, or elements, to each, or have much under way; but no more than have rows of their own,
/// where groups of them multiply whole tiles.
fn choose_warps(steps: &Steps, tiles: bool) -> usize {
    if !steps.streams.is_empty() {
        return MANY_WARPS;
    }
    let live = || steps.tiles.iter().filter(|tile| tile.readers > 0);
    let is_product = |tile: &&steps::Tile| matches!(tile.step, Step::Op { op: Op::Matmul, .. });
    let suits = |warps: usize| {
        let rows = |tile: &steps::Tile| Rows::of(&tile.shape, warps);
        live().filter(is_product).all(|tile| rows(tile).is_some_and(|rows| tiles::are_groups(&rows)))
    };
    let sums = |tile: &steps::Tile| {
        let n = tile.shape[tile.shape.len() - 1];
        let at = |rows| Fragments { rows, columns: Columns::Spread(n) };
        Rows::of(&tile.shape, FEW_WARPS).map_or(0, |rows| at(rows).registers())
    };
    let products: Vec<usize> = live().filter(is_product).map(sums).collect();
    let many = match products.is_empty() {
        true => live().any(|tile| crate::op::elems(&tile.shape) >= MANY_ELEMS),
        false => {
            let few = match tiles {
                true if suits(MANY_WARPS) => MANY_TILE_SUMS,
                true if suits(FEW_WARPS) => MOST_TILE_SUMS,
                _ => MANY_SUMS,
            };
            products.into_iter().sum::<usize>() > few
        }
    };
    if many { MANY_WARPS } else { FEW_WARPS }
}

/// The kernel of a plan; without overlap, if products that were to overlap turn out not to be of whole tiles, and with barriers,
/// if gates turn out not to order all that is shared.
///
/// # Errors
/// If boxes were to bring factors of few rows, and bring none; or tasks cannot share a block.
fn emit(
    request: &Request<'_>,
    block: &BlockGraph,
    (steps, factors): (&Steps, OperandPrecision),
    plan: Plan,
) -> Result<Kernel, CannotLower> {
    let mut lowering = Lowering::new(request, (block, steps), factors, plan);
    let bindings = lowering.declare_arguments(block);
    lowering.body(block)?;
    if plan.few_rows && !lowering.brings_factors() {
        return Err(CannotLower("the copy engine does not take the factors".to_owned()));
    }
    if lowering.overlap.as_ref().is_some_and(|overlap| !overlap.is_written()) {
        return emit(request, block, (steps, factors), Plan { overlaps: false, ..plan });
    }
    if !lowering.gates_suffice {
        return emit(request, block, (steps, factors), Plan { gates: false, ..plan });
    }
    Ok(lowering.finish(bindings))
}

impl Lowering<'_> {
    /// The kernel that has been written.
    fn finish(mut self, bindings: Vec<Binding>) -> Kernel {
        let mut body = self.body;
        if !self.first.is_empty() {
            // Names of the threads' places come before anything else.
            let (at, barrier) = (self.names, Stmt::Cta(CtaStmt::Barrier));
            body.splice(at..at, self.first.into_iter().chain([barrier]));
        }
        self.program.body = body;
        if let Some(cta) = self.program.cta.as_mut() {
            cta.loads_ahead |= self.plan.combines;
        }
        Kernel { program: self.program, bindings }
    }

    /// Adds a buffer for each tensor in memory that is read or written.
    fn declare_arguments(&mut self, block: &BlockGraph) -> Vec<Binding> {
        let mut bindings = Vec::new();
        let read: Vec<usize> =
            (0..self.steps.tiles.len()).filter(|&at| self.steps.tiles[at].readers > 0).collect();
        let read: Vec<TensorId> = read.into_iter().filter_map(|tile| self.tensor_in_memory(tile)).collect();
        let written: Vec<TensorId> = results(self.request, block).collect();
        let both = [(read, Scope::Input), (written, Scope::Output)];
        for (tensor, scope) in
            both.into_iter().flat_map(|(all, scope)| all.into_iter().map(move |t| (t, scope)))
        {
            if self.arguments[tensor.index()].is_none() {
                let stored = &self.request.stored[tensor.index()];
                let (dtype, elems) = (stored.dtype, stored.elems);
                let buffer = Buffer { name: tensor.to_string(), dtype, elems, scope };
                self.arguments[tensor.index()] = Some(self.program.add_buffer(buffer));
                bindings.push(Binding::Arg(ArgId(tensor.0)));
            }
        }
        bindings
    }

    fn body(&mut self, block: &BlockGraph) -> Result<(), CannotLower> {
        let looped = self.start_copies();
        for tile in self.steps.in_stage(Stage::Invariant) {
            self.tile(tile);
        }
        if self.steps.loop_range > 1 {
            self.whole_loop(&looped);
        }
        self.join_tasks()?;
        for tile in self.steps.in_stage(Stage::After) {
            match self.steps.tiles[tile].step {
                Step::Accumulate { .. } => self.finish_accumulator(tile),
                _ => self.tile(tile),
            }
        }
        let stores = self.steps.stores.iter().zip(results(self.request, block));
        for ((tile, grid), tensor) in stores {
            self.store(*tile, grid, tensor);
        }
        if !self.under_way.is_empty() {
            self.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(0)));
        }
        self.await_boxes(|_| true);
        self.leave_cluster();
        Ok(())
    }
}
