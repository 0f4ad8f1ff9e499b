//! Template for scattering on CPUs: a task copies a part of the data, then applies the updates that fall into it, in order.
//!
//! ```text
//! for row of the part:     y[row, columns] = data[row, columns]
//! for update:              row = index[update];  if row is of the part:  y[row, columns] = updates[update, columns]
//! ```
//!
//! Parts are some rows by some columns. Where each element has an index of its own, parts of columns share nothing; parts of rows
//! look at all indices, so that there are few of them.

use crate::Design;
use crate::bind::{add_arguments, bound_kernel};
use orch_compute::expr::{ArgId, BufferId, Expr, ExprId};
use orch_compute::{ArgRole, ScatterData, ScatterIndex, ScatterProgram};
use orch_ir::{DType, ReduceOp};
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Stmt, ThreadProgram};
use orch_thread::target::CpuTarget;
use std::fmt;

/// How a scatter is cut into tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScatterSchedule {
    /// Rows of a part.
    pub rows: usize,
    /// Columns of a part.
    pub columns: usize,
}

/// Tasks that keep the threads of a CPU busy.
const ENOUGH_TASKS: usize = 64;

/// Elements of a part, at least.
const LEAST_ELEMS: usize = 8 << 10;

/// Elements that are copied in the time of looking at eight indices and passing them over, so that looking adds an eighth at most.
const LOOK_ELEMS: usize = 32;

/// Columns of a part are a multiple of as many elements as a cache line has of f32, so that tasks do not write the same one.
const COLUMN_UNIT: usize = 16;

/// The text is the key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for ScatterSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows={} columns={}", self.rows, self.columns)
    }
}

impl ScatterSchedule {
    /// The schedule of a scatter.
    pub fn of(scatter: &ScatterProgram) -> Self {
        let ScatterProgram { outer, extent, inner, count, ref index, .. } = *scatter;
        let whole = Self { rows: extent, columns: inner };
        let elems = extent * inner;
        let parts = ENOUGH_TASKS.div_ceil(outer).min(elems / LEAST_ELEMS).max(1);
        if *index == ScatterIndex::Elements && inner >= 2 * COLUMN_UNIT {
            return Self { columns: inner.div_ceil(parts).next_multiple_of(COLUMN_UNIT).min(inner), ..whole };
        }
        let looked_at = if *index == ScatterIndex::Elements { count * inner } else { count };
        let parts = parts.min(elems / (LOOK_ELEMS * looked_at).max(1)).clamp(1, extent);
        Self { rows: extent.div_ceil(parts), ..whole }
    }

    /// Parts of rows and of columns.
    fn parts(&self, scatter: &ScatterProgram) -> [usize; 2] {
        [scatter.extent.div_ceil(self.rows), scatter.inner.div_ceil(self.columns)]
    }

    /// Tasks of the kernel.
    pub fn tasks(&self, scatter: &ScatterProgram) -> usize {
        scatter.outer * self.parts(scatter).iter().product::<usize>()
    }
}

/// The design of a scatter.
pub fn design(scatter: &ScatterProgram, target: &CpuTarget) -> Design {
    let schedule = ScatterSchedule::of(scatter);
    Design { kernel: lower(scatter, &schedule, target), schedule: format!("scatter {schedule}") }
}

/// Lowers a scatter under a schedule.
pub fn lower(scatter: &ScatterProgram, schedule: &ScatterSchedule, target: &CpuTarget) -> Kernel {
    let mut program = ThreadProgram::new(&scatter.name, schedule.tasks(scatter));
    add_arguments(&mut program, &scatter.args);
    let lanes = target.lanes(scatter.dtype().size_bytes()).min(MAX_COPY_LANES);
    let zero = program.exprs.index(0);
    let part = Part { outer: zero, rows: (zero, zero), columns: (zero, zero) };
    let mut emitter = Emitter { scatter, schedule: *schedule, lanes, program, part };
    let body = emitter.task();
    emitter.program.body = body;
    bound_kernel(emitter.program, &scatter.args)
}

/// Longest vector of a copy.
const MAX_COPY_LANES: usize = 32;

/// What a task writes: rows and columns from the first up to the second.
#[derive(Clone, Copy)]
struct Part {
    outer: ExprId,
    rows: (ExprId, ExprId),
    columns: (ExprId, ExprId),
}

struct Emitter<'a> {
    scatter: &'a ScatterProgram,
    schedule: ScatterSchedule,
    lanes: usize,
    program: ThreadProgram,
    part: Part,
}

impl Emitter<'_> {
    fn task(&mut self) -> Vec<Stmt> {
        let ScatterProgram { outer, extent, inner, .. } = *self.scatter;
        let [row_parts, column_parts] = self.schedule.parts(self.scatter);
        let mut body = Vec::new();
        let task = self.program.exprs.var(self.program.task);
        let parts = self.program.exprs.unflatten(task, &[outer, row_parts, column_parts]);
        let first = self.bind(&mut body, "outer", parts[0]);
        let rows = self.span(&mut body, "row", (parts[1], row_parts), (self.schedule.rows, extent));
        let columns =
            self.span(&mut body, "column", (parts[2], column_parts), (self.schedule.columns, inner));
        self.part = Part { outer: first, rows, columns };
        if self.scatter.arg(ScatterProgram::RESULT).role == ArgRole::Output {
            body.extend(self.copy());
        }
        body.push(match &self.scatter.index {
            ScatterIndex::Elements => self.apply_elements(row_parts > 1),
            ScatterIndex::Tuples(extents) => self.apply_tuples(extents, row_parts > 1),
        });
        body
    }

    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        if self.program.exprs.as_int(value).is_some() {
            return value;
        }
        let var = self.program.exprs.declare_register(name, self.program.exprs.ty(value));
        body.push(Stmt::Let(var, value));
        self.program.exprs.var(var)
    }

    /// First and last of some rows or columns of a part.
    fn span(
        &mut self,
        body: &mut Vec<Stmt>,
        name: &str,
        (part, parts): (ExprId, usize),
        (each, all): (usize, usize),
    ) -> (ExprId, ExprId) {
        let exprs = &mut self.program.exprs;
        let end = exprs.index(all as i64);
        if parts == 1 {
            return (exprs.index(0), end);
        }
        let first = exprs.mul_const(part, each as i64);
        let next = exprs.add_const(first, each as i64);
        let last = exprs.min(next, end);
        let first = self.bind(body, &format!("first_{name}"), first);
        (first, self.bind(body, &format!("last_{name}"), last))
    }

    fn for_each(
        &mut self,
        name: &str,
        (start, end, extent): (ExprId, ExprId, usize),
        body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>,
    ) -> Stmt {
        let (var, value) = self.program.exprs.fresh_index(name, extent);
        let body = body(self, value);
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }
    }

    /// Loops over elements from `start` up to `end`, in vectors and one by one, which take the element and its lanes.
    fn vectors(
        &mut self,
        (start, end, extent): (ExprId, ExprId, usize),
        mut body: impl FnMut(&mut Self, ExprId, usize) -> Vec<Stmt>,
    ) -> Vec<Stmt> {
        let lanes = self.lanes;
        let exprs = &mut self.program.exprs;
        let (count, width) = (exprs.sub(end, start), exprs.index(lanes as i64));
        let whole = exprs.floor_div(count, width);
        let whole = exprs.mul_const(whole, lanes as i64);
        let whole_end = exprs.add2(start, whole);
        let mut out = Vec::new();
        let whole_end = self.bind(&mut out, "whole_end", whole_end);
        if extent >= lanes {
            let (var, at) = self.program.exprs.fresh_index("vector", extent);
            let stmts = body(self, at, lanes);
            let (step, kind) = (lanes as i64, LoopKind::Serial);
            out.push(Stmt::For { var, start, end: whole_end, step, kind, body: stmts });
        }
        let rest = if extent >= lanes { whole_end } else { start };
        out.push(self.for_each("element", (rest, end, extent), |emitter, at| body(emitter, at, 1)));
        out
    }

    /// Copies the data of the part.
    fn copy(&mut self) -> Vec<Stmt> {
        let ScatterProgram { outer, extent, inner, .. } = *self.scatter;
        let Part { outer: part, rows, columns } = self.part;
        let move_elems = |emitter: &mut Self, at: ExprId, lanes: usize| {
            let value = match emitter.scatter.data {
                ScatterData::Tensor(data) => emitter.elements(data, at, lanes),
                ScatterData::Fill(value) => {
                    let value = emitter.program.exprs.add(Expr::Const(value));
                    emitter.program.exprs.splat(value, lanes)
                }
            };
            vec![emitter.store(at, value)]
        };
        let exprs = &mut self.program.exprs;
        let first = exprs.mul_const(part, extent as i64);
        if self.schedule.columns == inner {
            // Rows lie one after the other.
            let all = outer * extent * inner;
            let [start, end] = [rows.0, rows.1].map(|row| {
                let row = exprs.add2(first, row);
                exprs.mul_const(row, inner as i64)
            });
            return self.vectors((start, end, all), move_elems);
        }
        let rows = self.for_each("row", (rows.0, rows.1, extent), |emitter, row| {
            let exprs = &mut emitter.program.exprs;
            let row = exprs.add2(first, row);
            let base = exprs.mul_const(row, inner as i64);
            emitter.vectors((columns.0, columns.1, inner), |emitter, column, lanes| {
                let at = emitter.program.exprs.add2(base, column);
                move_elems(emitter, at, lanes)
            })
        });
        vec![rows]
    }

    fn load(&mut self, arg: ArgId, at: ExprId, lanes: usize) -> ExprId {
        self.program.exprs.load(BufferId::new(arg.index()), at, lanes, None)
    }

    /// The same as elements of the result, whose type may be another.
    fn elements(&mut self, arg: ArgId, at: ExprId, lanes: usize) -> ExprId {
        let loaded = self.load(arg, at, lanes);
        self.program.exprs.cast(self.scatter.dtype(), loaded)
    }

    fn store(&mut self, offset: ExprId, value: ExprId) -> Stmt {
        Stmt::Store { buffer: BufferId::new(ScatterProgram::RESULT.index()), offset, value, mask: None }
    }

    /// An index, limited to the extent that it addresses.
    fn index(&mut self, at: ExprId, extent: usize) -> ExprId {
        let value = self.load(ScatterProgram::INDICES, at, 1);
        let exprs = &mut self.program.exprs;
        let value = exprs.cast(DType::I64, value);
        let (zero, last) = (exprs.index(0), exprs.index(extent as i64 - 1));
        let above = exprs.max(value, zero);
        exprs.min(above, last)
    }

    /// Statements that run only if a row is of the part.
    fn if_of_part(&mut self, row: ExprId, is_cut: bool, then: Vec<Stmt>) -> Vec<Stmt> {
        if !is_cut {
            return then;
        }
        let exprs = &mut self.program.exprs;
        let (is_after, is_below) = (exprs.ge(row, self.part.rows.0), exprs.lt(row, self.part.rows.1));
        let condition = exprs.and(is_after, is_below);
        vec![Stmt::If { condition, then, otherwise: Vec::new() }]
    }

    /// Combines an update with what is there.
    fn update(&mut self, to: ExprId, from: ExprId, lanes: usize) -> Stmt {
        let dtype = self.scatter.dtype();
        let new = self.elements(ScatterProgram::UPDATES, from, lanes);
        let Some(function) = self.scatter.combine.and_then(ReduceOp::combining) else {
            return self.store(to, new);
        };
        let old = self.load(ScatterProgram::RESULT, to, lanes);
        let exprs = &mut self.program.exprs;
        let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let (old, new) = (exprs.cast(wide, old), exprs.cast(wide, new));
        let combined = exprs.binary(function, old, new);
        let rounded = exprs.cast(dtype, combined);
        self.store(to, rounded)
    }

    fn apply_elements(&mut self, is_cut: bool) -> Stmt {
        let ScatterProgram { extent, inner, count, .. } = *self.scatter;
        let Part { outer, columns, .. } = self.part;
        let (zero, all) = (self.program.exprs.index(0), self.program.exprs.index(count as i64));
        self.for_each("update", (zero, all, count), |emitter, update| {
            vec![emitter.for_each("column", (columns.0, columns.1, inner), |emitter, column| {
                let mut body = Vec::new();
                let strides = [count * inner, inner, 1];
                let from = emitter.program.exprs.linear_index(&[outer, update, column], &strides);
                let row = emitter.index(from, extent);
                let row = emitter.bind(&mut body, "row", row);
                let to =
                    emitter.program.exprs.linear_index(&[outer, row, column], &[extent * inner, inner, 1]);
                let stmt = emitter.update(to, from, 1);
                body.extend(emitter.if_of_part(row, is_cut, vec![stmt]));
                body
            })]
        })
    }

    fn apply_tuples(&mut self, extents: &[usize], is_cut: bool) -> Stmt {
        let ScatterProgram { inner, count, .. } = *self.scatter;
        let columns = self.part.columns;
        let (zero, all) = (self.program.exprs.index(0), self.program.exprs.index(count as i64));
        self.for_each("update", (zero, all, count), |emitter, update| {
            let mut body = Vec::new();
            let first = emitter.program.exprs.mul_const(update, extents.len() as i64);
            let mut row = emitter.program.exprs.index(0);
            for (dim, &extent) in extents.iter().enumerate() {
                let at = emitter.program.exprs.add_const(first, dim as i64);
                let index = emitter.index(at, extent);
                let exprs = &mut emitter.program.exprs;
                let before = exprs.mul_const(row, extent as i64);
                row = exprs.add2(before, index);
            }
            let row = emitter.bind(&mut body, "row", row);
            let stmts = emitter.vectors((columns.0, columns.1, inner), |emitter, column, lanes| {
                let exprs = &mut emitter.program.exprs;
                let [to, from] = [row, update].map(|row| exprs.linear_index(&[row, column], &[inner, 1]));
                vec![emitter.update(to, from, lanes)]
            });
            body.extend(emitter.if_of_part(row, is_cut, stmts));
            body
        })
    }
}
