//! State of the emission of a block, and helpers that every other file uses: adding statements with the
//! barriers they need, index expressions of lanes, warps and registers, loops.

use super::accumulate::{LoopAccumulator, Rescale};
use super::conditional_rescale::ConditionalRescale;
use super::hazards::SharedAccesses;
use super::layout::{
    ColumnLayout, FRAGMENT_COLUMNS, FRAGMENT_ROWS, FragmentLayout, RegisterSlot, RegisterTile, WarpGrid,
};
use super::overlap::SoftmaxOverlap;
use super::persistent::{BlockLoop, PersistentCtas};
use super::steps::TileSteps;
use super::tma::PendingTma;
use super::value::{SharedTile, TileHome};
use super::visible::{BlockOrder, CtaIterations, VisibleIterations};
use crate::graph::BlockGraph;
use crate::lower::Request;
use orch_compute::{BufferId, ExprId, Simplifier, Type, VarId};
use orch_ir::DType;
use orch_thread::OperandPrecision;
use orch_thread::cta::WARP;
use orch_thread::{Buffer, CtaStmt, Location, LoopKind, Scope, Stmt, ThreadProgram};
use std::collections::BTreeMap;

/// Elements of scratch up to which a fill is unrolled, so that scratch can be registers.
const MAX_UNROLLED_FILL: usize = 256;
/// Rounds of a loop over elements that are unrolled.
const UNROLLED_ROUNDS: usize = 4;

/// Emits the statements of one block: the plan, which does not change, and the state of emission.
pub(super) struct BlockEmitter<'a> {
    /// What was decided before the first statement.
    pub plan: BlockPlan<'a>,
    /// The program that is written: its expressions, buffers, tensor maps and mbarriers. Its statements are in `code` until
    /// the end.
    pub program: ThreadProgram,
    /// Remembers the simplified form of expressions of `program`.
    pub simplifier: Simplifier,
    /// Index expressions of the thread, warp, lane, CTA and block.
    pub ids: ThreadIds,
    /// The loop iteration of the CTA: 0 outside of the loop, its variable inside. Set by `pipeline::emit_loop`, read by
    /// whatever reads a tile of global memory.
    pub iteration: ExprId,
    /// The extents of the grid of blocks.
    pub grid: Vec<usize>,
    /// Which iterations show a block something of its mask, if others are left out.
    pub visible: Option<VisibleIterations>,
    /// The iterations that the CTA runs, of the block. Set by `new`.
    pub iterations: CtaIterations,
    /// The loop of a persistent CTA over its blocks; `None` where a CTA runs one block.
    pub block_loop: Option<BlockLoop>,
    /// Index of the unrolled copy of the loop body ([`TileSteps::unroll`]). Set by `pipeline::emit_loop` and
    /// `register_direct::start_direct_loads`, read by `register_direct` to select registers.
    pub unroll_index: ExprId,
    /// The buffer of each tensor of the µGraph that is a kernel argument, by tensor. Set by `declare_arguments`.
    pub arguments: Vec<Option<BufferId>>,
    /// What exists of each tile so far.
    pub tiles: TileState,
    /// The statements so far.
    pub code: StatementLists,
    /// Asynchronous work and shared-memory accesses that later statements may have to wait for.
    pub pending: PendingWork,
    /// Tiles that TMA loads. Set by `tma::assign_tma`, read where wgmma may stay in flight.
    pub tma_tiles: Vec<usize>,
    /// Set by `conditional_rescale` in the loop while a running maximum is updated conditionally; `None` after it.
    pub conditional_rescale: Option<ConditionalRescale>,
    /// Softmax/GEMM overlap of the loop, if it has the form of attention. Set by `pipeline::start_loads`.
    pub overlap: Option<SoftmaxOverlap>,
    /// Empty mbarriers of the loop.
    pub empty: EmptyMbarriers,
}

/// What is decided before a statement is written.
#[derive(Clone, Copy)]
pub(super) struct BlockPlan<'a> {
    /// The kernel: the µGraph, and how its tensors lie in memory.
    pub request: &'a Request<'a>,
    /// The tiles of the block in order of computation.
    pub steps: &'a TileSteps,
    /// Type to which operands of matrix products are rounded.
    pub precision: OperandPrecision,
    /// Warps, stages, and which techniques are used.
    pub schedule: BlockSchedule,
}

/// How the block is run on the target.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSchedule {
    /// Warps of a CTA.
    pub warps: usize,
    /// Stages of the shared-memory ring: iterations whose tiles are in shared memory at once.
    pub stages: usize,
    /// Whether tiles that are no operands of products are staged in shared memory too, if their readers would wait for
    /// global memory otherwise.
    pub stages_all_loads: bool,
    /// Whether warp groups may use wgmma.
    pub wgmma: bool,
    /// Whether the softmax of attention may overlap with the product by V ([`SoftmaxOverlap`]).
    pub overlaps_softmax: bool,
    /// Whether the softmax is computed before the wait for the product that it overlaps with.
    pub softmax_first: bool,
    /// Whether empty mbarriers may replace the barrier at the start of each iteration.
    pub empty_mbarriers: bool,
    /// Whether this is a combine kernel: each thread reduces the few partial results of its elements (`combine`).
    pub is_combine: bool,
    /// Whether this is a skinny GEMM by wgmma with both operands loaded by TMA (`skinny`).
    pub is_skinny: bool,
    /// CTAs of the cluster that splits the iterations of a block; 1 without a cluster.
    pub cluster: usize,
    /// The persistent CTAs that share all blocks; `None` if each block has a CTA, or cluster, of its own.
    pub persistent: Option<PersistentCtas>,
}

/// Index expressions that are bound at the start of the kernel; those of the block at the start of each block.
pub(super) struct ThreadIds {
    /// The thread in its CTA.
    pub thread: ExprId,
    /// The warp in its CTA.
    pub warp: ExprId,
    /// The lane in its warp.
    pub lane: ExprId,
    /// The CTA in its cluster.
    pub cta_rank: ExprId,
    /// The block in each dimension of the grid.
    pub block: Vec<ExprId>,
}

/// What exists of each tile, by tile.
pub(super) struct TileState {
    /// Where the tile can be read: registers, shared memory, or both. Empty if it is recomputed at each use.
    pub homes: Vec<Vec<TileHome>>,
    /// Copies in shared memory as mma takes operands. Set and read by `operand::shared_operand`.
    pub operand_copies: Vec<Vec<SharedTile>>,
    /// Of running maxima: where the maxima before this iteration are. Set by `accumulate::emit_running_max`, read where
    /// accumulators are rescaled.
    pub previous_maxima: Vec<Vec<TileHome>>,
    /// What holds an accumulation while the loop runs. Set by `emit_accumulate`, read by `cluster`, taken by
    /// `finish_accumulator`.
    pub accumulators: Vec<Option<LoopAccumulator>>,
    /// The registers to which B is loaded directly, by product. Set by `register_direct::start_direct_loads`.
    pub direct_registers: BTreeMap<usize, BufferId>,
    /// Factors `e^(degree * (max_before - max))`, one per row, that are in registers. Set by `prepare_rescale`.
    pub rescale_factors: Vec<(Rescale, RegisterTile)>,
}

/// Lists of statements. `body` grows; the others are moved into it where they belong.
pub(super) struct StatementLists {
    /// The list that statements are added to: of the kernel, or while the loop is written of the loop.
    pub body: Vec<Stmt>,
    /// Where `prologue` goes: behind the statements that bind [`ThreadIds`], those of the block excepted if the CTA is persistent.
    pub prologue_at: usize,
    /// Statements of a persistent CTA before its first block. Moved by `finish`.
    pub before_blocks: Vec<Stmt>,
    /// Statements before all others, with a barrier after them (zeros that pad operands). Moved by `finish`.
    pub prologue: Vec<Stmt>,
    /// Statements before the loop (initial values of accumulators). Moved by `pipeline::emit_loop`.
    pub before_loop: Vec<Stmt>,
    /// Loads to registers of A operands that the loop does not change. Moved by `pipeline::emit_loop`.
    pub resident_a: Vec<Stmt>,
}

/// What later statements may have to wait for. `emit` waits for what its statements touch.
pub(super) struct PendingWork {
    /// Accesses to shared memory since the last barrier.
    pub accesses: SharedAccesses,
    /// The buffers that cp.async groups before the loop fill, one per group in order of commit, not yet waited for.
    pub cp_async: Vec<BufferId>,
    /// cp.async groups committed after those of `cp_async`: the first stages of the loop.
    pub later_cp_async: usize,
    /// TMA loads not yet waited for.
    pub tma: Vec<PendingTma>,
    /// Whether wgmma of the loop are in flight when it ends.
    pub loop_wgmma: bool,
}

/// Empty mbarriers, which order reads of a stage before the TMA load that overwrites it.
pub(super) struct EmptyMbarriers {
    /// Whether iterations use them instead of a barrier. Set by `pipeline::start_loads`.
    pub in_use: bool,
    /// Whether they order all that threads of the loop share. Set by `pipeline::emit_loop`; if not, the block is emitted
    /// again with barriers.
    pub suffice: bool,
}

impl<'a> BlockEmitter<'a> {
    /// An emitter whose only statements bind the thread's warp, lane, CTA rank and block.
    pub fn new(plan: BlockPlan<'a>, block: &BlockGraph) -> BlockEmitter<'a> {
        let BlockSchedule { warps, cluster, persistent, .. } = plan.schedule;
        let ctas = persistent.map_or(block.blocks() * cluster, |persistent| persistent.ctas);
        let mut program = ThreadProgram::new(plan.request.name, ctas);
        let thread = program.set_cta(warps * WARP, cluster);
        let (thread, cta) = (program.exprs.var(thread), program.exprs.var(program.task));
        let zero = program.exprs.index(0);
        let tiles = plan.steps.tiles.len();
        let mut emitter = BlockEmitter {
            plan,
            program,
            simplifier: Simplifier::new(),
            ids: ThreadIds { thread, warp: zero, lane: zero, cta_rank: zero, block: Vec::new() },
            iteration: zero,
            grid: block.grid.clone(),
            visible: VisibleIterations::of(plan.request, plan.steps, &block.grid),
            iterations: CtaIterations { first: zero, count: zero },
            block_loop: None,
            unroll_index: zero,
            arguments: vec![None; plan.request.graph.shapes().len()],
            tiles: TileState {
                homes: vec![Vec::new(); tiles],
                operand_copies: vec![Vec::new(); tiles],
                previous_maxima: vec![Vec::new(); tiles],
                accumulators: vec![None; tiles],
                direct_registers: BTreeMap::new(),
                rescale_factors: Vec::new(),
            },
            code: StatementLists {
                body: Vec::new(),
                prologue_at: 0,
                before_blocks: Vec::new(),
                prologue: Vec::new(),
                before_loop: Vec::new(),
                resident_a: Vec::new(),
            },
            pending: PendingWork {
                accesses: SharedAccesses::default(),
                cp_async: Vec::new(),
                later_cp_async: 0,
                tma: Vec::new(),
                loop_wgmma: false,
            },
            tma_tiles: Vec::new(),
            conditional_rescale: None,
            overlap: None,
            empty: EmptyMbarriers { in_use: false, suffice: true },
        };
        emitter.bind_thread(thread);
        match persistent {
            Some(persistent) => {
                emitter.code.prologue_at = emitter.code.body.len();
                emitter.start_block_loop(persistent, cta);
            }
            None => {
                let order = emitter
                    .visible
                    .and_then(|visible| visible.order(emitter.plan.request, emitter.plan.steps));
                emitter.bind_block(cta, order);
                emitter.code.prologue_at = emitter.code.body.len();
            }
        }
        emitter
    }
}

impl BlockEmitter<'_> {
    /// Binds warp and lane.
    fn bind_thread(&mut self, thread: ExprId) {
        let warps = self.plan.schedule.warps;
        let mut body = Vec::new();
        let parts = self.program.exprs.unflatten(thread, &[warps, WARP]);
        self.ids.warp = self.bind_index(&mut body, "warp", parts[0], (warps, 1));
        self.ids.lane = self.bind_index(&mut body, "lane", parts[1], (WARP, 1));
        self.code.body.extend(body);
    }

    /// Binds the block, the CTA's rank, and the iterations that the CTA runs, given the number `[grid.., cta_rank]` in the order in which
    /// blocks start.
    pub fn bind_block(&mut self, number: ExprId, order: Option<BlockOrder>) {
        let (grid, cluster) = (self.grid.clone(), self.plan.schedule.cluster);
        let zero = self.index(0);
        let mut body = Vec::new();
        let extents = BlockOrder::extents(order, &grid);
        let mut index = self.program.exprs.unflatten(number, &[&extents[..], &[cluster]].concat());
        if let Some(rank) = index.pop() {
            self.ids.cta_rank = self.bind_index(&mut body, "rank", rank, (cluster, 1));
        }
        let index = match order {
            Some(order) => order.grid_index(&mut self.program.exprs, index, &grid),
            None => index,
        };
        self.ids.block.clear();
        for (part, &blocks) in index.into_iter().zip(&grid) {
            let part =
                if blocks == 1 { zero } else { self.bind_index(&mut body, "block", part, (blocks, 1)) };
            self.ids.block.push(part);
        }
        self.code.body.extend(body);
        self.iterations = self.bind_iterations();
    }

    /// Threads of the CTA.
    pub fn threads(&self) -> usize {
        self.plan.schedule.warps * WARP
    }

    /// How warps share a tile of this shape: by warp groups in a skinny GEMM, otherwise by its rows.
    pub fn warp_grid(&self, shape: &[usize]) -> Option<WarpGrid> {
        match self.plan.schedule.is_skinny {
            true => WarpGrid::of_warp_groups(shape, self.plan.schedule.warps),
            false => WarpGrid::of(shape, self.plan.schedule.warps),
        }
    }

    /// Adds a group of statements in which threads do not depend on each other. Before it come what it needs:
    /// `cp.async.wait_group` and waits for full mbarriers for the shared buffers it reads, and a barrier if
    /// it conflicts with accesses since the last one.
    pub fn emit(&mut self, stmts: Vec<Stmt>) {
        let touched = SharedAccesses::of(&self.program, &stmts);
        if let Some(last) = self.pending.cp_async.iter().rposition(|&buffer| touched.reads(buffer)) {
            self.wait_for_cp_async(last + 1);
        }
        self.wait_for_tma(|buffer| touched.reads(buffer));
        if self.pending.accesses.needs_barrier_before(&touched) {
            self.emit_barrier();
        }
        self.pending.accesses.join(touched);
        self.code.body.extend(stmts);
    }

    /// Waits for the first `groups` of the pending cp.async groups, then a barrier.
    pub fn wait_for_cp_async(&mut self, groups: usize) {
        self.pending.cp_async.drain(..groups);
        let left = self.pending.cp_async.len() + self.pending.later_cp_async;
        self.code.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(left)));
        self.emit_barrier();
    }

    /// Adds a CTA barrier (`bar.sync`).
    pub fn emit_barrier(&mut self) {
        self.code.body.push(Stmt::Cta(CtaStmt::Barrier));
        self.pending.accesses = SharedAccesses::default();
    }

    /// Adds a scratch (register) or shared buffer.
    pub fn add_buffer(&mut self, name: &str, dtype: DType, elems: usize, scope: Scope) -> BufferId {
        self.program.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope })
    }

    /// An index constant.
    pub fn index(&mut self, value: usize) -> ExprId {
        self.program.exprs.index(value as i64)
    }

    /// An f32 constant.
    pub fn float(&mut self, value: f64) -> ExprId {
        self.program.exprs.constant(DType::F32, value)
    }

    /// A constant offset in a buffer.
    pub fn location(&mut self, buffer: BufferId, offset: usize) -> Location {
        Location { buffer, offset: self.index(offset) }
    }

    /// Binds an index in `0..extent`, a multiple of `factor`, to a new variable and gives the variable;
    /// constants are given as they are.
    pub fn bind_index(
        &mut self,
        body: &mut Vec<Stmt>,
        name: &str,
        value: ExprId,
        (extent, factor): (usize, usize),
    ) -> ExprId {
        let value = self.simplifier.simplify(&mut self.program.exprs, value);
        if extent <= 1 || self.program.exprs.as_int(value).is_some() {
            return value;
        }
        let (var, bound) = self.program.exprs.fresh_index(name, extent);
        self.program.exprs.set_multiple_of(var, factor as i64);
        body.push(Stmt::Let(var, value));
        bound
    }

    /// Binds a value to a new variable and gives the variable.
    pub fn let_value(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        let ty: Type = self.program.exprs.ty(value);
        let var = self.program.exprs.declare_register(name, ty);
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// `shfl.sync.bfly`: the value of lane `lane ^ with`.
    pub fn shuffle_xor(&mut self, body: &mut Vec<Stmt>, value: ExprId, with: usize) -> ExprId {
        let var = self.program.exprs.declare_register("other", Type::scalar(DType::F32));
        body.push(Stmt::Cta(CtaStmt::Shuffle { var, value, with }));
        self.program.exprs.var(var)
    }

    /// The body in a loop over `0..extent`; without a loop, at index 0, if the extent is 1.
    pub fn loop_of(
        &mut self,
        name: &str,
        extent: usize,
        kind: LoopKind,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        if extent == 1 {
            let zero = self.index(0);
            return body(self, zero);
        }
        let (var, value) = self.program.exprs.fresh_index(name, extent);
        let body = body(self, value);
        vec![self.for_loop(var, extent, kind, body)]
    }

    /// A loop over `0..extent`.
    pub fn for_loop(&mut self, var: VarId, extent: usize, kind: LoopKind, body: Vec<Stmt>) -> Stmt {
        let (start, end) = (self.index(0), self.index(extent));
        Stmt::For { var, start, end, step: 1, kind, body }
    }

    /// How loops over elements are unrolled whose bodies do not index registers.
    pub fn round_loop_kind(rounds: usize) -> LoopKind {
        if rounds <= UNROLLED_ROUNDS { LoopKind::Unroll } else { LoopKind::UnrollBy(UNROLLED_ROUNDS as u32) }
    }

    /// `lane / divide % modulus * times`: a field of the lane's number, as `lane_field(4, 8, 1)` for `g` and
    /// `lane_field(1, 4, 2)` for `2c`.
    pub fn lane_field(&mut self, divide: usize, modulus: usize, times: usize) -> ExprId {
        let (divide, modulus) = (self.index(divide), self.index(modulus));
        let exprs = &mut self.program.exprs;
        let quotient = exprs.floor_div(self.ids.lane, divide);
        let rest = exprs.floor_rem(quotient, modulus);
        let value = exprs.mul_const(rest, times as i64);
        self.simplifier.simplify(exprs, value)
    }

    /// The warp's `[row_warp, column_warp]` in the warp grid of a layout.
    pub fn warp_coords(&mut self, at: &FragmentLayout) -> [ExprId; 2] {
        let column_warps = self.index(at.rows.column_warps);
        let exprs = &mut self.program.exprs;
        let place =
            [exprs.floor_div(self.ids.warp, column_warps), exprs.floor_rem(self.ids.warp, column_warps)];
        place.map(|id| self.simplifier.simplify(&mut self.program.exprs, id))
    }

    /// Unrolled loops over the warp's fragments: `[lead, row_tile, column_tile]`.
    pub fn for_each_fragment(
        &mut self,
        at: &FragmentLayout,
        body: impl FnOnce(&mut Self, [ExprId; 3]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let [lead, rows, columns] = [at.rows.batch(), at.rows.row_tiles(), at.column_tiles()];
        self.loop_of("lead", lead, LoopKind::Unroll, |this, lead| {
            this.loop_of("row_tile", rows, LoopKind::Unroll, |this, row| {
                this.loop_of("column_tile", columns, LoopKind::Unroll, |this, column| {
                    body(this, [lead, row, column])
                })
            })
        })
    }

    /// The register of a slot in layout `at`, which the slot's layout [covers](FragmentLayout::covers).
    pub fn register_offset(&mut self, slot: &RegisterSlot, at: &FragmentLayout) -> ExprId {
        let rows = at.rows.row_tiles();
        let exprs = &mut self.program.exprs;
        let row = exprs.linear_index(&[slot.lead, slot.row_tile], &[rows, 1]);
        let offset = match at.columns {
            ColumnLayout::PerRow => {
                // [lead, row_tile, row_half]
                let first = exprs.mul_const(row, 2);
                exprs.add_const(first, slot.row_half as i64)
            }
            ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_) | ColumnLayout::SplitKInterleaved(_) => {
                // [lead, row_tile, column_tile, row_half, column_half]
                let tile = exprs.linear_index(&[row, slot.column_tile], &[at.column_tiles(), 1]);
                let first = exprs.mul_const(tile, 4);
                exprs.add_const(first, (2 * slot.row_half + slot.column_half) as i64)
            }
        };
        self.simplifier.simplify(&mut self.program.exprs, offset)
    }

    /// The `[row, column]` of the element in a slot; they may lie beyond the tile's last row or column.
    pub fn element_coords(&mut self, slot: &RegisterSlot) -> [ExprId; 2] {
        let [warp_row, warp_column] = self.warp_coords(&slot.at);
        let (group, within) = (self.lane_field(4, 8, 1), self.lane_field(1, 4, 2));
        let (rows, columns) = (slot.at.rows.row_tiles(), slot.at.column_tiles());
        let exprs = &mut self.program.exprs;
        // row = 16 * (warp_row * row_tiles + row_tile) + g + 8 * row_half
        let tile = exprs.linear_index(&[warp_row, slot.row_tile], &[rows, 1]);
        let row = exprs.linear_index(&[tile, group], &[FRAGMENT_ROWS, 1]);
        let row = exprs.add_const(row, 8 * slot.row_half as i64);
        let column = match slot.at.columns {
            ColumnLayout::PerRow => exprs.index(0),
            ColumnLayout::Partitioned(_) | ColumnLayout::SplitK(_) => {
                // column = 8 * (warp_column * column_tiles + column_tile) + 2c + column_half
                let spread = matches!(slot.at.columns, ColumnLayout::Partitioned(_));
                let first = if spread { warp_column } else { exprs.index(0) };
                let tile = exprs.linear_index(&[first, slot.column_tile], &[columns, 1]);
                let column = exprs.linear_index(&[tile, within], &[FRAGMENT_COLUMNS, 1]);
                exprs.add_const(column, slot.column_half as i64)
            }
            ColumnLayout::SplitKInterleaved(_) => {
                let tiles = slot.at.interleaved();
                // column = 8 v * unit + v * (2c + column_half) + fragment of the unit, v fragments per unit
                let parts = exprs.unflatten(slot.column_tile, &[columns / tiles, tiles]);
                let number = exprs.add_const(within, slot.column_half as i64);
                exprs.linear_index(&[parts[0], number, parts[1]], &[FRAGMENT_COLUMNS * tiles, tiles, 1])
            }
        };
        [row, column].map(|id| self.simplifier.simplify(&mut self.program.exprs, id))
    }

    /// `min(value, extent - 1)`.
    pub fn clamped_below(&mut self, value: ExprId, extent: usize) -> ExprId {
        let last = self.index(extent - 1);
        let value = self.program.exprs.min(value, last);
        self.simplifier.simplify(&mut self.program.exprs, value)
    }

    /// The predicate `value < extent`, or `None` if it is proved to hold always and needs no guard.
    pub fn is_below(&mut self, value: ExprId, extent: usize) -> Option<ExprId> {
        let limit = self.index(extent);
        let below = self.program.exprs.lt(value, limit);
        let below = self.simplifier.simplify(&mut self.program.exprs, below);
        (self.program.exprs.as_bool(below) != Some(true)).then_some(below)
    }

    /// Sets the elements of a scratch buffer to a value.
    pub fn fill_registers(&mut self, buffer: BufferId, elems: usize, value: ExprId) -> Vec<Stmt> {
        let kind = if elems <= MAX_UNROLLED_FILL { LoopKind::Unroll } else { LoopKind::Serial };
        self.loop_of("i", elems, kind, |_, offset| vec![Stmt::Store { buffer, offset, value, mask: None }])
    }
}
