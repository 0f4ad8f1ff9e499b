//! Reductions along a dimension. Each has three parts, so that the second one can be in a loop: registers are
//! set to the identity, elements are combined into them, and lanes, warps and threads are reduced.
//!
//! ```text
//! of a tile in registers, along its columns:  thread's columns -> shuffle over the 4 lanes of a row -> column warps (shared)
//! of any other tile:   `group` threads per result; thread's elements -> shuffles in the warp -> warps (shared)
//! ```

use super::emitter::BlockEmitter;
use super::layout::{ColumnLayout, FragmentLayout, RegisterTile};
use super::value::{SharedTile, TileHome, TilePoint};
use crate::op::{Op, ReduceFn};
use orch_compute::{BufferId, ExprId};
use orch_ir::{DType, ReduceOp};
use orch_thread::cta::WARP;
use orch_thread::{LoopKind, Scope, Stmt, Widening, vectorize};

/// Results of a thread up to which they are in registers (unrolled).
const MAX_REGISTER_ROUNDS: usize = 32;

/// A reduction whose partial results are in registers.
#[derive(Clone, Debug)]
pub(super) enum ReductionState {
    InRegisters(RegisterReduction),
    ThreadGroups(ThreadGroupReduction),
}

/// Along the columns of a tile in registers: one partial result per row of the thread.
#[derive(Clone, Debug)]
pub(super) struct RegisterReduction {
    f: ReduceFn,
    from: usize,
    at: FragmentLayout,
    pub partial: RegisterTile,
}

/// Of a tile that is read by coordinates: a group of threads per result.
#[derive(Clone, Debug)]
pub(super) struct ThreadGroupReduction {
    f: ReduceFn,
    from: usize,
    /// The dimension, and the results that remain along it: element `i` adds to result `i % keep`.
    dim: usize,
    keep: usize,
    /// Shape of the result; elements per result.
    shape: Vec<usize>,
    count: usize,
    /// Threads per result (a power of two); elements per vector read; results per thread.
    group: usize,
    lanes: usize,
    rounds: usize,
    /// A register per round.
    partial: BufferId,
}

impl ReductionState {
    /// The scratch buffer of partial results, and its elements.
    pub fn parts(&self) -> (BufferId, usize) {
        match self {
            ReductionState::InRegisters(rows) => {
                (rows.partial.buffer, rows.partial.at.registers_per_thread())
            }
            ReductionState::ThreadGroups(groups) => (groups.partial, groups.rounds),
        }
    }

    /// The function.
    pub fn combination(&self) -> ReduceFn {
        match self {
            ReductionState::InRegisters(rows) => rows.f,
            ReductionState::ThreadGroups(groups) => groups.f,
        }
    }
}

impl BlockEmitter<'_> {
    /// Emits the reduction of a tile that is not fused with an accumulation.
    pub fn emit_reduce(&mut self, tile: usize, (f, dim, keep): (ReduceFn, usize, usize), from: usize) {
        let reduction = self.new_reduction(from, (f, dim, keep));
        let start = self.start_reduction(&reduction);
        self.emit(start);
        self.add_to_reduction(&reduction, None);
        let place = self.finish_reduction(&reduction);
        self.tiles.homes[tile].push(place);
    }

    /// Chooses how a tile is reduced, and allocates registers.
    pub fn new_reduction(&mut self, from: usize, (f, dim, keep): (ReduceFn, usize, usize)) -> ReductionState {
        let shape = self.plan.steps.tiles[from].shape.clone();
        let at = self.register_layout(from).filter(|at| matches!(at.columns, ColumnLayout::Partitioned(_)));
        if let Some(at) = at.filter(|_| dim + 1 == shape.len() && keep == 1) {
            let rows = FragmentLayout::per_row(&at.rows);
            let buffer = self.add_buffer("row_part", DType::F32, rows.registers_per_thread(), Scope::Scratch);
            return ReductionState::InRegisters(RegisterReduction {
                f,
                from,
                at,
                partial: RegisterTile { at: rows, buffer },
            });
        }
        let count = shape[dim] / keep;
        let (results, is_last) = (crate::op::elems(&shape) / count, dim + 1 == shape.len() && keep == 1);
        let threads = self.threads();
        let suits =
            |lanes: &usize| is_last && count.is_multiple_of(*lanes) && results * count / lanes >= threads;
        let lanes = [8, 4, 2].into_iter().find(suits).unwrap_or(1);
        let group = power_below((threads / results).clamp(1, count / lanes));
        let rounds = results.div_ceil(threads / group);
        let partial = self.add_buffer("part", DType::F32, rounds, Scope::Scratch);
        let shape = crate::op::with(&shape, dim, keep);
        ReductionState::ThreadGroups(ThreadGroupReduction {
            f,
            from,
            dim,
            keep,
            shape,
            count,
            group,
            lanes,
            rounds,
            partial,
        })
    }

    /// Statements that set registers to the identity.
    pub fn start_reduction(&mut self, reduction: &ReductionState) -> Vec<Stmt> {
        let (buffer, elems) = reduction.parts();
        let identity = self.identity(reduction.combination());
        self.fill_registers(buffer, elems, identity)
    }

    /// Rescales partial results, if asked, and combines a tile's elements into them.
    pub fn add_to_reduction(
        &mut self,
        reduction: &ReductionState,
        rescale: Option<super::accumulate::Rescale>,
    ) {
        match reduction {
            ReductionState::InRegisters(rows) => self.add_to_rows(rows, rescale),
            ReductionState::ThreadGroups(groups) => self.add_to_groups(groups, rescale),
        }
    }

    /// Reduces partial results over lanes, warps and threads, and gives the home of the result.
    pub fn finish_reduction(&mut self, reduction: &ReductionState) -> TileHome {
        match reduction {
            ReductionState::InRegisters(rows) => TileHome::Registers(self.finish_rows(rows)),
            ReductionState::ThreadGroups(groups) => TileHome::Shared(self.finish_groups(groups)),
        }
    }

    /// Combines the columns of a thread into its rows' partial results.
    fn add_to_rows(&mut self, rows: &RegisterReduction, rescale: Option<super::accumulate::Rescale>) {
        if let Some(rescale) = rescale {
            self.rescale_registers(&rows.partial, rescale);
        }
        self.prepare(rows.from, Some(&rows.at));
        let shape = self.plan.steps.tiles[rows.from].shape.clone();
        let identity = self.identity(rows.f);
        let stmts = self.for_each_slot(&rows.at, |this, slot| {
            let [_, column] = this.element_coords(&slot);
            let inside = this.is_below(column, rows.at.n());
            let point = this.point_of_slot(&slot, &shape);
            let mut value = this.value_at(rows.from, &point);
            if let Some(inside) = inside {
                value = this.program.exprs.select(inside, value, identity);
            }
            let buffer = rows.partial.buffer;
            let offset = this.register_offset(&slot, &rows.partial.at);
            let so_far = this.program.exprs.load(buffer, offset, 1, None);
            let value = this.combine(rows.f, so_far, value);
            vec![Stmt::Store { buffer, offset, value, mask: None }]
        });
        self.emit(stmts);
    }

    /// Reduces rows over the 4 lanes that share a row (shuffles by 1 and 2), and over column warps through
    /// shared memory.
    fn finish_rows(&mut self, rows: &RegisterReduction) -> RegisterTile {
        let at = rows.partial.at.clone();
        let result = self.add_buffer("row_value", DType::F32, at.registers_per_thread(), Scope::Scratch);
        let column_warps = at.rows.column_warps;
        let lines = at.rows.batch() * at.rows.row_warps * at.rows.row_tiles() * super::layout::FRAGMENT_ROWS;
        let exchange = (column_warps > 1)
            .then(|| self.add_buffer("row_parts", DType::F32, column_warps * lines, Scope::Shared));
        let stmts = self.for_each_slot(&at, |this, slot| {
            let offset = this.register_offset(&slot, &at);
            let mut stmts = Vec::new();
            let mut value = this.program.exprs.load(rows.partial.buffer, offset, 1, None);
            for with in [1, 2] {
                let other = this.shuffle_xor(&mut stmts, value, with);
                let both = this.combine(rows.f, value, other);
                value = this.let_value(&mut stmts, "row", both);
            }
            match exchange {
                None => stmts.push(Stmt::Store { buffer: result, offset, value, mask: None }),
                Some(buffer) => {
                    let [_, warp] = this.warp_coords(&at);
                    let offset = this.exchange_offset(&slot, (warp, lines));
                    let (lane, zero) = (this.lane_field(1, 4, 1), this.index(0));
                    let is_first = this.program.exprs.eq(lane, zero);
                    stmts.push(Stmt::Store { buffer, offset, value, mask: Some(is_first) });
                }
            }
            stmts
        });
        self.emit(stmts);
        if let Some(exchange) = exchange {
            let stmts = self.for_each_slot(&at, |this, slot| {
                let mut total = None;
                for warp in 0..column_warps {
                    let warp = this.index(warp);
                    let offset = this.exchange_offset(&slot, (warp, lines));
                    let part = this.program.exprs.load(exchange, offset, 1, None);
                    total = Some(total.map_or(part, |total| this.combine(rows.f, total, part)));
                }
                let offset = this.register_offset(&slot, &at);
                let value = total.unwrap_or_else(|| this.identity(rows.f));
                vec![Stmt::Store { buffer: result, offset, value, mask: None }]
            });
            self.emit(stmts);
        }
        RegisterTile { at, buffer: result }
    }

    /// Where a column warp leaves its part of a row: `[column_warp, lead, row]`.
    fn exchange_offset(
        &mut self,
        slot: &super::layout::RegisterSlot,
        (warp, lines): (ExprId, usize),
    ) -> ExprId {
        let [row, _] = self.element_coords(slot);
        let height = lines / slot.at.rows.batch();
        self.program.exprs.linear_index(&[warp, slot.lead, row], &[lines, height, 1])
    }

    /// The result that a thread works on in a round, `[round, group of threads]`, and whether it exists.
    fn result_of_round(&mut self, groups: &ThreadGroupReduction, round: ExprId) -> (ExprId, Option<ExprId>) {
        let per_round = self.threads() / groups.group;
        let group = self.index(groups.group);
        let own = self.program.exprs.floor_div(self.ids.thread, group);
        let result = self.program.exprs.linear_index(&[round, own], &[per_round, 1]);
        let results = crate::op::elems(&groups.shape);
        let exists = self.is_below(result, results);
        (result, exists)
    }

    /// Combines each thread's elements of its results into its registers.
    fn add_to_groups(&mut self, groups: &ThreadGroupReduction, rescale: Option<super::accumulate::Rescale>) {
        self.prepare(groups.from, None);
        if let Some(rescale) = rescale {
            self.share_maxima(rescale);
        }
        let stmts = self.loop_of("round", groups.rounds, rounds_kind(groups.rounds), |this, round| {
            let (result, exists) = this.result_of_round(groups, round);
            let mut body = Vec::new();
            let mut coords = Vec::new();
            let parts = this.program.exprs.unflatten(result, &groups.shape);
            for (&part, &extent) in parts.iter().zip(&groups.shape) {
                coords.push(this.bind_index(&mut body, "at", part, (extent, 1)));
            }
            if let Some(rescale) = rescale {
                let point = TilePoint { coords: coords.clone(), slot: None };
                let factor = this.rescale_factor(rescale, &point);
                let so_far = this.program.exprs.load(groups.partial, round, 1, None);
                let value = this.program.exprs.mul(so_far, factor);
                body.push(Stmt::Store { buffer: groups.partial, offset: round, value, mask: None });
            }
            body.extend(this.reduce_own_elements(groups, &coords, round));
            match exists {
                Some(condition) => vec![Stmt::If { condition, then: body, otherwise: Vec::new() }],
                None => body,
            }
        });
        self.emit(stmts);
    }

    /// Combines a thread's vectors of a result: `[step, thread in the group]`.
    fn reduce_own_elements(
        &mut self,
        groups: &ThreadGroupReduction,
        coords: &[ExprId],
        round: ExprId,
    ) -> Vec<Stmt> {
        let vectors = groups.count / groups.lanes;
        let steps = vectors.div_ceil(groups.group);
        self.loop_of("step", steps, BlockEmitter::round_loop_kind(steps), |this, step| {
            let mut body = Vec::new();
            let group = this.index(groups.group);
            let lane = this.program.exprs.floor_rem(this.ids.thread, group);
            let vector = this.program.exprs.linear_index(&[step, lane], &[groups.group, 1]);
            let exists = this.is_below(vector, vectors).filter(|_| !vectors.is_multiple_of(groups.group));
            let vector = if exists.is_some() { this.clamped_below(vector, vectors) } else { vector };
            let first = this.program.exprs.mul_const(vector, groups.lanes as i64);
            let first = this.bind_index(&mut body, "first", first, (groups.count, groups.lanes));
            let mut value = this.vector_of_elements(groups, coords, first);
            if let Some(exists) = exists {
                let identity = this.identity(groups.f);
                value = this.program.exprs.select(exists, value, identity);
            }
            let so_far = this.program.exprs.load(groups.partial, round, 1, None);
            let value = this.combine(groups.f, so_far, value);
            body.push(Stmt::Store { buffer: groups.partial, offset: round, value, mask: None });
            body
        })
    }

    /// The combination of `lanes` consecutive elements from `first` on.
    fn vector_of_elements(
        &mut self,
        groups: &ThreadGroupReduction,
        coords: &[ExprId],
        first: ExprId,
    ) -> ExprId {
        let at = |this: &mut Self, term: ExprId| {
            let mut coords = coords.to_vec();
            let step = this.program.exprs.mul_const(term, groups.keep as i64);
            coords[groups.dim] = this.program.exprs.add2(coords[groups.dim], step);
            let value = this.value_at(groups.from, &TilePoint { coords, slot: None });
            this.simplifier.simplify(&mut this.program.exprs, value)
        };
        if groups.lanes == 1 {
            return at(self, first);
        }
        let (var, each) = self.program.exprs.fresh_index("each", groups.count);
        let scalar = at(self, each);
        let over = Widening::new(var, first, groups.lanes);
        let exprs = &mut self.program.exprs;
        let wide = vectorize(exprs, scalar, &over).value;
        let wide = exprs.splat(wide, groups.lanes);
        let op = if groups.f == ReduceFn::Sum { ReduceOp::Sum } else { ReduceOp::Max };
        exprs.reduce_lanes(op, wide)
    }

    /// Reduces over the threads of each group, by shuffles and, for groups of several warps, through shared
    /// memory; results are in shared memory.
    fn finish_groups(&mut self, groups: &ThreadGroupReduction) -> SharedTile {
        let rank = groups.shape.len();
        let view = self.alloc_shared("reduced", DType::F32, &groups.shape, rank.saturating_sub(1));
        let warps = groups.group.div_ceil(WARP);
        let exchange = (warps > 1)
            .then(|| self.add_buffer("warp_parts", DType::F32, self.plan.schedule.warps, Scope::Shared));
        let stmts = self.loop_of("round", groups.rounds, rounds_kind(groups.rounds), |this, round| {
            let mut body = Vec::new();
            let mut value = this.program.exprs.load(groups.partial, round, 1, None);
            let mut with = 1;
            while with < groups.group.min(WARP) {
                let other = this.shuffle_xor(&mut body, value, with);
                let both = this.combine(groups.f, value, other);
                value = this.let_value(&mut body, "both", both);
                with *= 2;
            }
            match exchange {
                None => body.push(this.store_result(groups, &view, round, value)),
                Some(buffer) => {
                    let zero = this.index(0);
                    let is_first = this.program.exprs.eq(this.ids.lane, zero);
                    let offset = this.ids.warp;
                    body.push(Stmt::Store { buffer, offset, value, mask: Some(is_first) });
                }
            }
            body
        });
        self.emit(stmts);
        if let Some(exchange) = exchange {
            // Groups of several warps leave one round.
            let (zero, size) = (self.index(0), self.index(warps));
            let group = self.program.exprs.floor_div(self.ids.warp, size);
            let mut total = None;
            for warp in 0..warps {
                let offset = self.program.exprs.mul_const(group, warps as i64);
                let offset = self.program.exprs.add_const(offset, warp as i64);
                let part = self.program.exprs.load(exchange, offset, 1, None);
                total = Some(total.map_or(part, |total| self.combine(groups.f, total, part)));
            }
            let value = total.unwrap_or_else(|| self.identity(groups.f));
            let store = self.store_result(groups, &view, zero, value);
            self.emit(vec![store]);
        }
        view
    }

    /// Stores a result by the first thread of its group.
    fn store_result(
        &mut self,
        groups: &ThreadGroupReduction,
        view: &SharedTile,
        round: ExprId,
        value: ExprId,
    ) -> Stmt {
        let (result, exists) = self.result_of_round(groups, round);
        let coords = self.program.exprs.unflatten(result, &groups.shape);
        let offset = self.shared_offset(view, &coords);
        let (group, zero) = (self.index(groups.group), self.index(0));
        let lane = self.program.exprs.floor_rem(self.ids.thread, group);
        let is_first = self.program.exprs.eq(lane, zero);
        let is_first = self.simplifier.simplify(&mut self.program.exprs, is_first);
        let mask = self.program.exprs.and_guard(exists, Some(is_first));
        Stmt::Store { buffer: view.buffer, offset, value, mask }
    }

    /// The identity of a reduction.
    pub fn identity(&mut self, f: ReduceFn) -> ExprId {
        match f {
            ReduceFn::Sum => self.float(0.0),
            ReduceFn::Max => self.float(f64::NEG_INFINITY),
        }
    }

    /// Two values combined.
    pub fn combine(&mut self, f: ReduceFn, a: ExprId, b: ExprId) -> ExprId {
        match f {
            ReduceFn::Sum => self.program.exprs.add2(a, b),
            ReduceFn::Max => self.program.exprs.max(a, b),
        }
    }
}

/// The function, dimension and group of a reducing operator.
pub(super) fn reduction_of(op: &Op) -> Option<(ReduceFn, usize, usize)> {
    match op {
        Op::Reduce { f, dim, keep } => Some((*f, *dim, *keep)),
        _ => None,
    }
}

/// Unrolled, so that results are registers, unless they are too many.
fn rounds_kind(rounds: usize) -> LoopKind {
    if rounds <= MAX_REGISTER_ROUNDS { LoopKind::Unroll } else { LoopKind::Serial }
}

/// The largest power of two that is at most `value`.
fn power_below(value: usize) -> usize {
    1 << value.max(1).ilog2()
}
