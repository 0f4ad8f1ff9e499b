//! What the ways to apply updates share: the tile of a CTA, its slots, the places of updates, and loops over what a thread owns.

use super::schedule::GpuScatterSchedule;
use crate::bind::{bind_index, bind_value, bind_var};
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId, VarId};
use orch_compute::simplify::simplify;
use orch_compute::{ArgRole, ScatterData, ScatterIndex, ScatterProgram};
use orch_ir::{DType, ReduceOp};
use orch_thread::cta::CtaStmt;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};

/// Bytes of the widest access to memory.
const WIDEST_BYTES: usize = 16;

/// Vectors of a thread that are in flight together.
const IN_FLIGHT: usize = 4;

/// Writes the program of a scatter.
pub(super) struct Emitter<'a> {
    pub scatter: &'a ScatterProgram,
    pub schedule: GpuScatterSchedule,
    pub program: ThreadProgram,
    pub thread: ExprId,
    /// Slots of a tile, and the columns of each.
    pub slots: usize,
    pub width: usize,
    /// Elements of a vector.
    pub lanes: usize,
    /// Threads that share the columns of a slot; a power of two, as all threads.
    pub column_threads: usize,
    outer: ExprId,
    first_row: ExprId,
    first_column: ExprId,
}

/// Vectors of a thread: a slot and a column of it, and whether they exist.
#[derive(Clone, Copy)]
pub(super) struct Owned {
    /// The number of the vector among those that are in flight together, an unrolled variable.
    pub number: ExprId,
    pub slot: ExprId,
    pub column: ExprId,
    pub exists: ExprId,
}

impl<'a> Emitter<'a> {
    /// An emitter whose tile is not placed yet.
    pub fn new(
        scatter: &'a ScatterProgram,
        schedule: GpuScatterSchedule,
        mut program: ThreadProgram,
        thread: VarId,
    ) -> Self {
        let GpuScatterSchedule { rows, columns, threads } = schedule;
        let (slots, width) = match scatter.index {
            ScatterIndex::Elements => (rows * columns, 1),
            ScatterIndex::Tuples(_) => (rows, columns),
        };
        let widest = WIDEST_BYTES / scatter.dtype().size_bytes();
        let shared = [width, columns, scatter.inner].map(usize::trailing_zeros).into_iter().min();
        let lanes = widest.min(1 << shared.unwrap_or(0).min(4));
        let column_threads = width.div_ceil(lanes).next_power_of_two().min(threads);
        let (thread, zero) = (program.exprs.var(thread), program.exprs.index(0));
        let (outer, first_row, first_column) = (zero, zero, zero);
        Self {
            scatter,
            schedule,
            program,
            thread,
            slots,
            width,
            lanes,
            column_threads,
            outer,
            first_row,
            first_column,
        }
    }

    /// Statements that find the tile.
    pub fn place(&mut self) -> Vec<Stmt> {
        let [row_parts, column_parts] = self.schedule.parts(self.scatter);
        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let parts = self.program.exprs.unflatten(task, &[self.scatter.outer, row_parts, column_parts]);
        self.outer = bind_index(&mut self.program, &mut body, "outer", parts[0], self.scatter.outer);
        let (rows, columns) = (self.schedule.rows, self.schedule.columns);
        let first_row = self.program.exprs.mul_const(parts[1], rows as i64);
        self.first_row =
            bind_index(&mut self.program, &mut body, "first_row", first_row, (row_parts - 1) * rows + 1);
        self.first_column = self.program.exprs.mul_const(parts[2], columns as i64);
        body
    }

    /// Threads among which slots are shared.
    pub fn slot_threads(&self) -> usize {
        self.schedule.threads / self.column_threads
    }

    pub fn shared(&mut self, name: &str, dtype: DType, elems: usize) -> BufferId {
        self.buffer(name, dtype, elems, Scope::Shared)
    }

    /// Elements of a thread, in registers.
    pub fn scratch(&mut self, name: &str, dtype: DType, elems: usize) -> BufferId {
        self.buffer(name, dtype, elems, Scope::Scratch)
    }

    fn buffer(&mut self, name: &str, dtype: DType, elems: usize, scope: Scope) -> BufferId {
        self.program.add_buffer(Buffer { name: name.to_owned(), dtype, elems, scope })
    }

    pub fn index(&mut self, value: usize) -> ExprId {
        self.program.exprs.index(value as i64)
    }

    pub fn number(&mut self, value: i64) -> ExprId {
        self.program.exprs.int(DType::I32, value)
    }

    pub fn as_number(&mut self, value: ExprId) -> ExprId {
        self.program.exprs.cast(DType::I32, value)
    }

    /// An i32 of a buffer.
    pub fn load_number(&mut self, buffer: BufferId, at: ExprId, mask: Option<ExprId>) -> ExprId {
        self.program.exprs.load(buffer, at, 1, mask)
    }

    /// An i32 of a buffer, as an index.
    pub fn load_index(&mut self, buffer: BufferId, at: ExprId, mask: Option<ExprId>) -> ExprId {
        let value = self.load_number(buffer, at, mask);
        self.program.exprs.cast(DType::I64, value)
    }

    pub fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        let value = simplify(&mut self.program.exprs, value);
        bind_value(&mut self.program, body, name, value)
    }

    /// Binds an index in `0..extent`.
    pub fn bind_index(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId, extent: usize) -> ExprId {
        bind_index(&mut self.program, body, name, value, extent)
    }

    pub fn barrier() -> Stmt {
        Stmt::Cta(CtaStmt::Barrier)
    }

    /// A loop over every `step`th of `0..extent`.
    pub fn serial(
        &mut self,
        name: &str,
        extent: usize,
        step: usize,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let (var, value) = self.program.exprs.fresh_index(name, extent);
        let body = body(self, value);
        let (start, end) = (self.index(0), self.index(extent));
        Stmt::For { var, start, end, step: step as i64, kind: LoopKind::Serial, body }
    }

    /// An unrolled loop over `0..extent`.
    pub fn unrolled(
        &mut self,
        name: &str,
        extent: usize,
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let (var, value) = self.program.exprs.fresh_index(name, extent);
        let body = body(self, value);
        let (start, end) = (self.index(0), self.index(extent));
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body }
    }

    /// A loop over the slots of the tile that the threads share one by one.
    pub fn each_slot(&mut self, body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>) -> Stmt {
        let (var, value) = self.program.exprs.fresh_index("slot", self.slots);
        let body = body(self, value);
        let (end, step) = (self.index(self.slots), self.schedule.threads as i64);
        Stmt::For { var, start: self.thread, end, step, kind: LoopKind::Serial, body }
    }

    /// Loops over the vectors of the tile that a thread owns, some of them in flight together: `load` of all, then `store` of all.
    /// Slots are a thread's own by their number, in every loop.
    pub fn each_owned(
        &mut self,
        load: impl FnOnce(&mut Self, Owned) -> Vec<Stmt>,
        store: impl FnOnce(&mut Self, Owned) -> Vec<Stmt>,
    ) -> Stmt {
        let (threads, columns) = (self.slot_threads(), self.columns_of_thread());
        let count = self.slots.div_ceil(threads) * columns;
        let together = IN_FLIGHT.min(count);
        self.serial("first", count, together, |emitter, first| {
            let loads = emitter.unrolled("number", together, |emitter, number| {
                let (mut body, owned) = emitter.owned(first, number);
                body.extend(load(emitter, owned));
                body
            });
            let stores = emitter.unrolled("number", together, |emitter, number| {
                let (mut body, owned) = emitter.owned(first, number);
                body.extend(store(emitter, owned));
                body
            });
            vec![loads, stores]
        })
    }

    /// Buffers for vectors that are in flight together.
    pub fn in_flight(&mut self, name: &str) -> BufferId {
        let (dtype, elems) = (self.scatter.dtype(), IN_FLIGHT * self.lanes);
        self.scratch(name, dtype, elems)
    }

    /// Vectors of a thread along the columns of a slot.
    pub fn columns_of_thread(&self) -> usize {
        self.width.div_ceil(self.lanes * self.column_threads)
    }

    fn owned(&mut self, first: ExprId, number: ExprId) -> (Vec<Stmt>, Owned) {
        let mut body = Vec::new();
        let columns = self.columns_of_thread();
        let threads = self.slot_threads();
        let iterations =
            (self.slots.div_ceil(threads) * columns).next_multiple_of(IN_FLIGHT).div_ceil(columns);
        let columns = self.index(columns);
        let own = self.own_slot();
        let exprs = &mut self.program.exprs;
        let vector = exprs.add2(first, number);
        let (iteration, column) = (exprs.floor_div(vector, columns), exprs.floor_rem(vector, columns));
        let slot = exprs.mul_const(iteration, threads as i64);
        let slot = exprs.add2(slot, own);
        let slot = self.bind_index(&mut body, "slot", slot, iterations * threads);
        let column = self.own_column(&mut body, column);
        let exists = self.exists(slot, column);
        let exists = self.bind(&mut body, "exists", exists);
        (body, Owned { number, slot, column, exists })
    }

    /// What a slot of this thread is by the number of slot threads.
    pub fn own_slot(&mut self) -> ExprId {
        let columns = self.index(self.column_threads);
        self.program.exprs.floor_div(self.thread, columns)
    }

    /// The first column of a thread's vector.
    pub fn own_column(&mut self, body: &mut Vec<Stmt>, iteration: ExprId) -> ExprId {
        let extent = self.columns_of_thread() * self.column_threads * self.lanes;
        let columns = self.index(self.column_threads);
        let exprs = &mut self.program.exprs;
        let own = exprs.floor_rem(self.thread, columns);
        let before = exprs.mul_const(iteration, self.column_threads as i64);
        let vector = exprs.add2(before, own);
        let column = exprs.mul_const(vector, self.lanes as i64);
        let var = bind_var(&mut self.program, body, "column", column, extent);
        self.program.exprs.set_multiple_of(var, self.lanes as i64);
        self.program.exprs.var(var)
    }

    /// Row and column of an element within the result's.
    fn element(&mut self, slot: ExprId, column: ExprId) -> (ExprId, ExprId) {
        let (row, column) = match self.scatter.index {
            ScatterIndex::Tuples(_) => (slot, column),
            ScatterIndex::Elements => {
                let columns = self.index(self.schedule.columns);
                (self.program.exprs.floor_div(slot, columns), self.program.exprs.floor_rem(slot, columns))
            }
        };
        let exprs = &mut self.program.exprs;
        (exprs.add2(self.first_row, row), exprs.add2(self.first_column, column))
    }

    /// Whether a column of a slot is of the tile and of the result.
    pub fn exists(&mut self, slot: ExprId, column: ExprId) -> ExprId {
        let (row, whole_column) = self.element(slot, column);
        let limits = [
            (slot, self.slots),
            (column, self.width),
            (row, self.scatter.extent),
            (whole_column, self.scatter.inner),
        ];
        let conditions = limits.map(|(value, limit)| {
            let limit = self.index(limit);
            self.program.exprs.lt(value, limit)
        });
        let all = self.program.exprs.all(conditions);
        simplify(&mut self.program.exprs, all)
    }

    /// Where an element is in the result.
    pub fn offset(&mut self, slot: ExprId, column: ExprId) -> ExprId {
        let ScatterProgram { extent, inner, .. } = *self.scatter;
        let (row, column) = self.element(slot, column);
        let offset = self.program.exprs.linear_index(&[self.outer, row, column], &[extent * inner, inner, 1]);
        simplify(&mut self.program.exprs, offset)
    }

    /// Where an element of an update is. Of elements with an index each, the column is the update's.
    pub fn update_offset(&mut self, update: ExprId, column: ExprId) -> ExprId {
        let ScatterProgram { count, inner, .. } = *self.scatter;
        let (row, column) = match self.scatter.index {
            ScatterIndex::Tuples(_) => (update, column),
            ScatterIndex::Elements => {
                let columns = self.index(self.schedule.columns);
                let exprs = &mut self.program.exprs;
                (exprs.floor_div(update, columns), exprs.floor_rem(update, columns))
            }
        };
        let exprs = &mut self.program.exprs;
        let column = exprs.add2(self.first_column, column);
        let offset = exprs.linear_index(&[self.outer, row, column], &[count * inner, inner, 1]);
        simplify(&mut self.program.exprs, offset)
    }

    /// A vector or scalar of an argument, zero where the mask is false.
    pub fn load(&mut self, arg: ArgId, at: ExprId, lanes: usize, mask: ExprId) -> ExprId {
        let mask = self.program.exprs.splat(mask, lanes);
        let mask = (self.program.exprs.as_bool(mask) != Some(true)).then_some(mask);
        self.program.exprs.load(BufferId::new(arg.index()), at, lanes, mask)
    }

    /// The same as elements of the result, whose type may be another.
    pub fn elements(&mut self, arg: ArgId, at: ExprId, lanes: usize, mask: ExprId) -> ExprId {
        let loaded = self.load(arg, at, lanes, mask);
        self.program.exprs.cast(self.scatter.dtype(), loaded)
    }

    /// What is updated.
    pub fn data(&mut self, slot: ExprId, column: ExprId, mask: ExprId) -> ExprId {
        match self.scatter.data {
            ScatterData::Tensor(data) => {
                let at = self.offset(slot, column);
                // A result in the memory of the data is read where its own thread writes it.
                let is_in_place = self.scatter.arg(ScatterProgram::RESULT).role == ArgRole::Updated;
                let from = if is_in_place { ScatterProgram::RESULT } else { data };
                self.elements(from, at, self.lanes, mask)
            }
            ScatterData::Fill(value) => {
                let value = self.program.exprs.add(Expr::Const(value));
                self.program.exprs.splat(value, self.lanes)
            }
        }
    }

    /// A store of a vector to the result.
    pub fn store(&mut self, owned: Owned, value: ExprId) -> Stmt {
        let offset = self.offset(owned.slot, owned.column);
        let buffer = BufferId::new(ScatterProgram::RESULT.index());
        let store = Stmt::Store { buffer, offset, value, mask: None };
        Stmt::If { condition: owned.exists, then: vec![store], otherwise: Vec::new() }
    }

    /// Combines an update with what is there, rounded to the type of the elements.
    pub fn combined(&mut self, op: ReduceOp, old: ExprId, new: ExprId) -> ExprId {
        let dtype = self.scatter.dtype();
        let function = op.combining().expect("updates combine by a function of two");
        let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let exprs = &mut self.program.exprs;
        let (old, new) = (exprs.cast(wide, old), exprs.cast(wide, new));
        let combined = exprs.binary(function, old, new);
        exprs.cast(dtype, combined)
    }

    /// Statements that find the slot of an update, by its number in the tile: an i32 in `slots[number]`, -1 if it is none of the tile's.
    pub fn find_slot(&mut self, update: ExprId, slots: BufferId, number: ExprId) -> Vec<Stmt> {
        let mut body = Vec::new();
        let count = self.schedule.updates(self.scatter);
        let limit = self.index(count);
        let mut exists = self.program.exprs.lt(update, limit);
        let (row, column) = match &self.scatter.index {
            ScatterIndex::Elements => {
                let columns = self.index(self.schedule.columns);
                let column = self.program.exprs.floor_rem(update, columns);
                let (whole, inner) =
                    (self.program.exprs.add2(self.first_column, column), self.index(self.scatter.inner));
                let is_inside = self.program.exprs.lt(whole, inner);
                exists = self.program.exprs.and(exists, is_inside);
                exists = self.bind(&mut body, "exists", exists);
                let zero = self.index(0);
                let at = self.update_offset(update, zero);
                (self.limited_index(&mut body, at, self.scatter.extent, exists), Some(column))
            }
            ScatterIndex::Tuples(extents) => {
                exists = self.bind(&mut body, "exists", exists);
                let first = self.program.exprs.mul_const(update, extents.len() as i64);
                let mut row = self.index(0);
                for (dim, &extent) in extents.iter().enumerate() {
                    let at = self.program.exprs.add_const(first, dim as i64);
                    let index = self.limited_index(&mut body, at, extent, exists);
                    let before = self.program.exprs.mul_const(row, extent as i64);
                    row = self.program.exprs.add2(before, index);
                }
                (row, None)
            }
        };
        let row = self.program.exprs.sub(row, self.first_row);
        let (zero, rows) = (self.index(0), self.index(self.schedule.rows));
        let exprs = &mut self.program.exprs;
        let is_of_tile = [exprs.ge(row, zero), exprs.lt(row, rows), exists];
        let is_of_tile = exprs.all(is_of_tile);
        let slot = match column {
            Some(column) => {
                let before = exprs.mul_const(row, self.schedule.columns as i64);
                exprs.add2(before, column)
            }
            None => row,
        };
        let slot = exprs.cast(DType::I32, slot);
        let none = self.number(-1);
        let value = self.program.exprs.select(is_of_tile, slot, none);
        body.push(Stmt::Store { buffer: slots, offset: number, value, mask: None });
        body
    }

    /// What [`find_slot`](Self::find_slot) has found: a slot, 0 if it is none of the tile's, and whether it is one.
    pub fn found_slot(&mut self, slots: BufferId, number: ExprId) -> (ExprId, ExprId) {
        let (slot, zero) = (self.load_number(slots, number, None), self.number(0));
        let exprs = &mut self.program.exprs;
        let (some, is_of_tile) = (exprs.max(slot, zero), exprs.ge(slot, zero));
        (exprs.cast(DType::I64, some), is_of_tile)
    }

    /// An index, limited to the extent that it addresses.
    fn limited_index(&mut self, body: &mut Vec<Stmt>, at: ExprId, extent: usize, mask: ExprId) -> ExprId {
        let value = self.load(ScatterProgram::INDICES, at, 1, mask);
        let exprs = &mut self.program.exprs;
        let value = exprs.cast(DType::I64, value);
        let (zero, last) = (exprs.index(0), exprs.index(extent as i64 - 1));
        let above = exprs.max(value, zero);
        let limited = exprs.min(above, last);
        self.bind_index(body, "index", limited, extent)
    }
}
