//! The program while it is written: its threads, lists of statements with the barriers that they need, and short ways to
//! say things.

use super::accumulate::{Accumulator, Rescale};
use super::boxes::Due;
use super::hazards::Touched;
use super::layout::{Columns, Fragments, Registers, Rows, Site, TILE_COLUMNS, TILE_ROWS};
use super::lazy::Lazy;
use super::overlap::Overlap;
use super::steps::Steps;
use super::value::{Place, View};
use crate::graph::BlockGraph;
use crate::lower::Request;
use orch_compute::{BufferId, ExprId, Simplifier, Type, VarId};
use orch_ir::DType;
use orch_thread::OperandPrecision;
use orch_thread::cta::WARP;
use orch_thread::{Buffer, CtaStmt, Location, LoopKind, Scope, Stmt, ThreadProgram};
use std::collections::BTreeMap;

/// Elements of scratch that may be registers.
const MOST_REGISTERS: usize = 256;
/// Rounds of a loop that are written out.
const UNROLLED_ROUNDS: usize = 4;

/// A kernel while it is lowered.
pub(super) struct Lowering<'a> {
    pub request: &'a Request<'a>,
    pub steps: &'a Steps,
    pub factors: OperandPrecision,
    pub plan: Plan,
    pub program: ThreadProgram,
    pub simplifier: Simplifier,
    pub thread: ExprId,
    /// The thread's warp, and its place in it.
    pub warp: ExprId,
    pub lane: ExprId,
    /// The task's number among those of its block.
    pub rank: ExprId,
    /// The block's index in the grid.
    pub block: Vec<ExprId>,
    /// The iteration of the loop.
    pub iteration: ExprId,
    /// Which of the iterations that are written out one after the other this is.
    pub turn: ExprId,
    /// The buffer of each tensor that is passed.
    pub arguments: Vec<Option<BufferId>>,
    /// Where each tile is; nowhere if it is computed where it is needed.
    pub places: Vec<Vec<Place>>,
    /// Copies of tiles that are factors of products.
    pub operands: Vec<Vec<View>>,
    /// Of running maxima, where those of the iteration before are.
    pub before: Vec<Vec<Place>>,
    /// What accumulators are while the loop runs.
    pub accumulators: Vec<Option<Accumulator>>,
    /// The registers to which factors are streamed, by product.
    pub streamed: BTreeMap<usize, BufferId>,
    /// What rows are multiplied by whose maximum has grown, by maximum and degree, in registers.
    pub rescales: Vec<(Rescale, Registers)>,
    /// A maximum of the loop that may stay behind.
    pub lazy: Option<Lazy>,
    /// The list that is written, and how many statements at its start name the threads' places.
    pub body: Vec<Stmt>,
    pub names: usize,
    /// What is done before anything else, and before the loop.
    pub first: Vec<Stmt>,
    pub before_loop: Vec<Stmt>,
    /// Brings factors from shared memory to registers in which they stay while the loop runs.
    pub held_firsts: Vec<Stmt>,
    pub touched: Touched,
    /// Buffers that copies before the loop fill, a group of copies each, which have not been waited for; and how many
    /// groups were started after them.
    pub under_way: Vec<BufferId>,
    pub later_groups: usize,
    /// Tiles that come in boxes and have not been awaited.
    pub due: Vec<Due>,
    /// A product that is added an iteration later.
    pub overlap: Option<Overlap>,
    /// Tiles that come in boxes.
    pub boxed: Vec<usize>,
    /// Whether threads pass gates in the loop, and whether that suffices.
    pub gates: bool,
    pub gates_suffice: bool,
    /// Whether products are under way when the loop ends.
    pub run_on: bool,
}

/// What is chosen before anything is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub warps: usize,
    /// Iterations whose tiles are in shared memory at once.
    pub stages: usize,
    /// Whether tiles that are no factors of products are copied to shared memory as well, if their readers wait for
    /// others.
    pub stages_all: bool,
    /// Whether groups of warps multiply whole tiles.
    pub tiles: bool,
    /// Whether a product may run while what follows another one is computed.
    pub overlaps: bool,
    /// Whether threads may pass gates instead of waiting for each other.
    pub gates: bool,
    /// Whether elements of results are combined from few parts each.
    pub combines: bool,
    /// Whether groups of warps multiply all products, which have few rows.
    pub few_rows: bool,
    /// Tasks that share the iterations of a block.
    pub tasks: usize,
}

impl<'a> Lowering<'a> {
    /// A kernel of which nothing is written but who its threads are.
    pub fn new(
        request: &'a Request<'a>,
        (block, steps): (&BlockGraph, &'a Steps),
        factors: OperandPrecision,
        plan: Plan,
    ) -> Lowering<'a> {
        let mut program = ThreadProgram::new(request.name, block.blocks() * plan.tasks);
        let thread = program.set_cta(plan.warps * WARP, plan.tasks);
        let (thread, task) = (program.exprs.var(thread), program.exprs.var(program.task));
        let zero = program.exprs.index(0);
        let tiles = steps.tiles.len();
        let mut lowering = Lowering {
            request,
            steps,
            factors,
            plan,
            program,
            simplifier: Simplifier::new(),
            thread,
            warp: zero,
            lane: zero,
            rank: zero,
            block: Vec::new(),
            iteration: zero,
            turn: zero,
            arguments: vec![None; request.graph.shapes().len()],
            places: vec![Vec::new(); tiles],
            operands: vec![Vec::new(); tiles],
            before: vec![Vec::new(); tiles],
            accumulators: vec![None; tiles],
            streamed: BTreeMap::new(),
            rescales: Vec::new(),
            lazy: None,
            body: Vec::new(),
            names: 0,
            first: Vec::new(),
            before_loop: Vec::new(),
            held_firsts: Vec::new(),
            touched: Touched::default(),
            under_way: Vec::new(),
            later_groups: 0,
            due: Vec::new(),
            overlap: None,
            boxed: Vec::new(),
            gates: false,
            gates_suffice: true,
            run_on: false,
        };
        let mut body = Vec::new();
        let parts = lowering.program.exprs.unflatten(thread, &[plan.warps, WARP]);
        lowering.warp = lowering.bind(&mut body, "warp", parts[0], (plan.warps, 1));
        lowering.lane = lowering.bind(&mut body, "lane", parts[1], (WARP, 1));
        let mut index = lowering.program.exprs.unflatten(task, &[&block.grid[..], &[plan.tasks]].concat());
        if let Some(rank) = index.pop() {
            lowering.rank = lowering.bind(&mut body, "rank", rank, (plan.tasks, 1));
        }
        for (part, &blocks) in index.into_iter().zip(&block.grid) {
            let part = if blocks == 1 { zero } else { lowering.bind(&mut body, "block", part, (blocks, 1)) };
            lowering.block.push(part);
        }
        lowering.names = body.len();
        lowering.body = body;
        lowering
    }
}

impl Lowering<'_> {
    /// Threads of the CTA.
    pub fn threads(&self) -> usize {
        self.plan.warps * WARP
    }

    /// How warps share the rows of a tile.
    pub fn rows(&self, shape: &[usize]) -> Option<Rows> {
        match self.plan.few_rows {
            true => Rows::of_groups(shape, self.plan.warps),
            false => Rows::of(shape, self.plan.warps),
        }
    }

    /// Adds a group of statements, after a barrier if it needs one.
    pub fn run(&mut self, stmts: Vec<Stmt>) {
        let touched = Touched::by(&self.program, &stmts);
        if let Some(last) = self.under_way.iter().rposition(|&buffer| touched.reads(buffer)) {
            self.wait_for(last + 1);
        }
        self.await_boxes(|buffer| touched.reads(buffer));
        if self.touched.precedes(&touched) {
            self.barrier();
        }
        self.touched.join(touched);
        self.body.extend(stmts);
    }

    /// Waits for the first of the groups of copies that are under way.
    pub fn wait_for(&mut self, groups: usize) {
        self.under_way.drain(..groups);
        let left = self.under_way.len() + self.later_groups;
        self.body.push(Stmt::Cta(CtaStmt::CpAsyncWait(left)));
        self.barrier();
    }

    /// Adds a barrier.
    pub fn barrier(&mut self) {
        self.body.push(Stmt::Cta(CtaStmt::Barrier));
        self.touched = Touched::default();
    }

    /// Adds a buffer that is not an argument.
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

    /// A constant place of a buffer.
    pub fn place(&mut self, buffer: BufferId, offset: usize) -> Location {
        Location { buffer, offset: self.index(offset) }
    }

    /// Binds an index with values `0..extent`, multiples of `factor`, to a name; a constant stays one.
    pub fn bind(
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

    /// Binds a value to a name.
    pub fn let_value(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        let ty: Type = self.program.exprs.ty(value);
        let var = self.program.exprs.declare_register(name, ty);
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// The value that another lane gives.
    pub fn shuffled(&mut self, body: &mut Vec<Stmt>, value: ExprId, with: usize) -> ExprId {
        let var = self.program.exprs.declare_register("other", Type::scalar(DType::F32));
        body.push(Stmt::Cta(CtaStmt::Shuffle { var, value, with }));
        self.program.exprs.var(var)
    }

    /// A loop of `extent` iterations.
    pub fn repeated(
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
        vec![self.for_each(var, extent, kind, body)]
    }

    /// A loop over `0..extent`.
    pub fn for_each(&mut self, var: VarId, extent: usize, kind: LoopKind, body: Vec<Stmt>) -> Stmt {
        let (start, end) = (self.index(0), self.index(extent));
        Stmt::For { var, start, end, step: 1, kind, body }
    }

    /// How to run a loop whose iterations do not name registers.
    pub fn rounds_kind(rounds: usize) -> LoopKind {
        if rounds <= UNROLLED_ROUNDS { LoopKind::Unroll } else { LoopKind::UnrollBy(UNROLLED_ROUNDS as u32) }
    }

    /// `lane / divide % modulus * times`.
    pub fn of_lane(&mut self, divide: usize, modulus: usize, times: usize) -> ExprId {
        let (divide, modulus) = (self.index(divide), self.index(modulus));
        let exprs = &mut self.program.exprs;
        let quotient = exprs.floor_div(self.lane, divide);
        let rest = exprs.floor_rem(quotient, modulus);
        let value = exprs.mul_const(rest, times as i64);
        self.simplifier.simplify(exprs, value)
    }

    /// The row and the column of the warp among those of a layout.
    pub fn warp_place(&mut self, at: &Fragments) -> [ExprId; 2] {
        let beside = self.index(at.rows.column_warps);
        let exprs = &mut self.program.exprs;
        let place = [exprs.floor_div(self.warp, beside), exprs.floor_rem(self.warp, beside)];
        place.map(|id| self.simplifier.simplify(&mut self.program.exprs, id))
    }

    /// Loops, unrolled, over the tiles of a layout: leading element, tile of rows, tile of columns.
    pub fn each_tile(
        &mut self,
        at: &Fragments,
        body: impl FnOnce(&mut Self, [ExprId; 3]) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let [lead, rows, columns] = [at.rows.batch(), at.rows.row_tiles(), at.column_tiles()];
        self.repeated("lead", lead, LoopKind::Unroll, |this, lead| {
            this.repeated("row_tile", rows, LoopKind::Unroll, |this, row| {
                this.repeated("column_tile", columns, LoopKind::Unroll, |this, column| {
                    body(this, [lead, row, column])
                })
            })
        })
    }

    /// The place of a site's register, in another layout that is seen from it.
    pub fn register(&mut self, site: &Site, at: &Fragments) -> ExprId {
        let rows = at.rows.row_tiles();
        let exprs = &mut self.program.exprs;
        let row = exprs.linear_index(&[site.lead, site.row_tile], &[rows, 1]);
        let offset = match at.columns {
            Columns::One => {
                let first = exprs.mul_const(row, 2);
                exprs.add_const(first, site.half as i64)
            }
            Columns::Spread(_) | Columns::Summands(_) | Columns::Streamed(_) => {
                let tile = exprs.linear_index(&[row, site.column_tile], &[at.column_tiles(), 1]);
                let first = exprs.mul_const(tile, 4);
                exprs.add_const(first, (2 * site.half + site.side) as i64)
            }
        };
        self.simplifier.simplify(&mut self.program.exprs, offset)
    }

    /// The row and column of a site, which may lie beyond the last ones.
    pub fn row_and_column(&mut self, site: &Site) -> [ExprId; 2] {
        let [warp_row, warp_column] = self.warp_place(&site.at);
        let (group, within) = (self.of_lane(4, 8, 1), self.of_lane(1, 4, 2));
        let (rows, columns) = (site.at.rows.row_tiles(), site.at.column_tiles());
        let exprs = &mut self.program.exprs;
        let tile = exprs.linear_index(&[warp_row, site.row_tile], &[rows, 1]);
        let row = exprs.linear_index(&[tile, group], &[TILE_ROWS, 1]);
        let row = exprs.add_const(row, 8 * site.half as i64);
        let column = match site.at.columns {
            Columns::One => exprs.index(0),
            Columns::Spread(_) | Columns::Summands(_) => {
                let spread = matches!(site.at.columns, Columns::Spread(_));
                let first = if spread { warp_column } else { exprs.index(0) };
                let tile = exprs.linear_index(&[first, site.column_tile], &[columns, 1]);
                let column = exprs.linear_index(&[tile, within], &[TILE_COLUMNS, 1]);
                exprs.add_const(column, site.side as i64)
            }
            Columns::Streamed(_) => {
                let tiles = site.at.interleaved();
                let parts = exprs.unflatten(site.column_tile, &[columns / tiles, tiles]);
                let number = exprs.add_const(within, site.side as i64);
                exprs.linear_index(&[parts[0], number, parts[1]], &[TILE_COLUMNS * tiles, tiles, 1])
            }
        };
        [row, column].map(|id| self.simplifier.simplify(&mut self.program.exprs, id))
    }

    /// `value`, or the last index below `extent` if it may lie beyond.
    pub fn clamped(&mut self, value: ExprId, extent: usize) -> ExprId {
        let last = self.index(extent - 1);
        let value = self.program.exprs.min(value, last);
        self.simplifier.simplify(&mut self.program.exprs, value)
    }

    /// Whether an index lies below `extent`; `None` if it always does.
    pub fn below(&mut self, value: ExprId, extent: usize) -> Option<ExprId> {
        let limit = self.index(extent);
        let below = self.program.exprs.lt(value, limit);
        let below = self.simplifier.simplify(&mut self.program.exprs, below);
        (self.program.exprs.as_bool(below) != Some(true)).then_some(below)
    }

    /// Fills scratch with a value.
    pub fn filled(&mut self, buffer: BufferId, elems: usize, value: ExprId) -> Vec<Stmt> {
        let kind = if elems <= MOST_REGISTERS { LoopKind::Unroll } else { LoopKind::Serial };
        self.repeated("i", elems, kind, |_, offset| vec![Stmt::Store { buffer, offset, value, mask: None }])
    }
}
