//! Template for cumulative sums and products on CPUs: a task scans some lines of `x [outer, extent, inner]` along the extent, one vector
//! lane for each of `columns` neighbouring inner indices.
//!
//! ```text
//! acc = identity
//! for each chunk of `steps` positions:      partial[0] = x[0],  partial[i] = partial[i - 1] + x[i]
//!                                           y[i] = acc + partial[i];  acc = y[last]
//! ```
//!
//! Only the last addition of a chunk depends on the chunk before: `acc` is waited for once in `steps` positions.

use crate::bind::{add_arguments, bind_value, bound_kernel};
use crate::nest::identity::identity;
use crate::{Design, TASK_CYCLES};
use orch_compute::CumulativeProgram;
use orch_compute::expr::{BufferId, Expr, ExprId, VarId};
use orch_ir::BinaryFn;
use orch_thread::kernel::Kernel;
use orch_thread::program::{LoopKind, Stmt, ThreadProgram};
use orch_thread::target::CpuTarget;
use std::fmt;

/// How a cumulative operation is cut into tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CumulativeSchedule {
    /// Outer indices of a task.
    pub outer: usize,
    /// Neighbouring inner indices of a task.
    pub columns: usize,
    /// Positions of a chunk, which are combined before the accumulator is.
    pub steps: usize,
}

/// Vectors of accumulators.
const MAX_VECTORS: usize = 8;

/// Vectors of operands in registers beside the accumulators.
const VECTORS_IN_FLIGHT: usize = 8;

/// Longest vector.
const MAX_LANES: usize = 32;

/// The text is the key in records of measured times: it may not change while the schedule means the same.
impl fmt::Display for CumulativeSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { outer, columns, steps } = self;
        write!(f, "outer={outer} columns={columns} steps={steps}")
    }
}

impl CumulativeSchedule {
    /// The schedule of a cumulative operation.
    pub fn of(program: &CumulativeProgram, target: &CpuTarget) -> Self {
        let lanes = lanes(program, target);
        let blocks = program.inner.div_ceil(MAX_VECTORS * lanes);
        let each = program.inner.div_ceil(blocks);
        let columns = if blocks > 1 { each.next_multiple_of(lanes) } else { each };
        let vectors = pieces(columns, lanes).len();
        let steps = (VECTORS_IN_FLIGHT / vectors).clamp(1, program.extent);
        let one = Self { outer: 1, columns, steps };
        let outer = (TASK_CYCLES / one.task_cycles(program, target)).ceil().min(program.outer as f64);
        Self { outer: (outer as usize).max(1), ..one }
    }

    /// Tasks of the kernel.
    pub fn tasks(&self, program: &CumulativeProgram) -> usize {
        program.outer.div_ceil(self.outer) * program.inner.div_ceil(self.columns)
    }

    /// Modelled cycles of a task whose lines are in L1.
    pub fn task_cycles(&self, program: &CumulativeProgram, target: &CpuTarget) -> f64 {
        /// Cycles of the work on a vector or scalar, and until the accumulator can be used again.
        const VECTOR: f64 = 1.0;
        const WAIT: f64 = 4.0;
        let vectors = pieces(self.columns, lanes(program, target)).len();
        let step = (VECTOR * vectors as f64).max(WAIT / self.steps as f64);
        (self.outer * program.extent) as f64 * step
    }
}

/// Lanes of a vector of accumulators.
fn lanes(program: &CumulativeProgram, target: &CpuTarget) -> usize {
    target.lanes(program.accumulator_type().size_bytes()).min(MAX_LANES)
}

/// The vectors that some columns are: first column and lanes, a power of two.
fn pieces(columns: usize, lanes: usize) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    let mut first = 0;
    while first < columns {
        let rest = columns - first;
        let lanes = if rest >= lanes { lanes } else { 1 << rest.ilog2() };
        pieces.push((first, lanes));
        first += lanes;
    }
    pieces
}

/// The design of a cumulative operation.
pub fn design(program: &CumulativeProgram, target: &CpuTarget) -> Design {
    let schedule = CumulativeSchedule::of(program, target);
    Design { kernel: lower(program, &schedule, target), schedule: format!("cumulative {schedule}") }
}

/// Lowers a cumulative operation under a schedule.
pub fn lower(cumulative: &CumulativeProgram, schedule: &CumulativeSchedule, target: &CpuTarget) -> Kernel {
    let mut program = ThreadProgram::new(&cumulative.name, schedule.tasks(cumulative));
    add_arguments(&mut program, &cumulative.args);
    let mut emitter = Emitter { cumulative, schedule: *schedule, lanes: lanes(cumulative, target), program };
    let body = emitter.task();
    emitter.program.body = body;
    bound_kernel(emitter.program, &cumulative.args)
}

struct Emitter<'a> {
    cumulative: &'a CumulativeProgram,
    schedule: CumulativeSchedule,
    lanes: usize,
    program: ThreadProgram,
}

/// Neighbouring lines in the lanes of a vector: the offset of their first position, the lanes, the accumulator.
#[derive(Clone, Copy)]
struct Lines {
    first: ExprId,
    lanes: usize,
    acc: (VarId, ExprId),
}

impl Emitter<'_> {
    fn task(&mut self) -> Vec<Stmt> {
        let CumulativeProgram { outer, extent, inner, .. } = *self.cumulative;
        let CumulativeSchedule { outer: each, columns, .. } = self.schedule;
        let (outers, blocks) = (outer.div_ceil(each), inner.div_ceil(columns));
        let exprs = &mut self.program.exprs;
        let task = exprs.var(self.program.task);
        let parts = exprs.unflatten(task, &[outers, blocks]);
        let start = exprs.mul_const(parts[0], each as i64);
        let (next, all) = (exprs.add_const(start, each as i64), exprs.index(outer as i64));
        let end = if outer.is_multiple_of(each) { next } else { exprs.min(next, all) };
        let (var, index) = exprs.fresh_index("outer", outer);
        let base = exprs.linear_index(&[index, parts[1]], &[extent * inner, columns]);
        let mut body = Vec::new();
        let base = bind_value(&mut self.program, &mut body, "base", base);
        let rest = inner - (blocks - 1) * columns;
        if rest == columns {
            body.extend(self.lines(base, columns));
        } else {
            let last = self.program.exprs.index(blocks as i64 - 1);
            let condition = self.program.exprs.lt(parts[1], last);
            let (then, otherwise) = (self.lines(base, columns), self.lines(base, rest));
            body.push(Stmt::If { condition, then, otherwise });
        }
        vec![Stmt::For { var, start, end, step: 1, kind: LoopKind::Serial, body }]
    }

    /// Scans so many neighbouring lines.
    fn lines(&mut self, base: ExprId, columns: usize) -> Vec<Stmt> {
        let mut body = Vec::new();
        let lines: Vec<Lines> = pieces(columns, self.lanes)
            .into_iter()
            .map(|(column, lanes)| {
                let identity = identity(self.cumulative.spec.op, self.cumulative.accumulator_type());
                let exprs = &mut self.program.exprs;
                let first = exprs.add_const(base, column as i64);
                let identity = exprs.add(Expr::Const(identity));
                let identity = exprs.splat(identity, lanes);
                let var = exprs.declare_register("acc", exprs.ty(identity));
                body.push(Stmt::Register(var, identity));
                Lines { first, lanes, acc: (var, exprs.var(var)) }
            })
            .collect();
        let (extent, steps) = (self.cumulative.extent, self.schedule.steps);
        let whole = extent - extent % steps;
        for (from, to, steps) in [(0, whole, steps), (whole, extent, 1)] {
            if from == to {
                continue;
            }
            let exprs = &mut self.program.exprs;
            let (start, end) = (exprs.index(from as i64), exprs.index(to as i64));
            let (var, position) = exprs.fresh_index("position", extent);
            let mut chunk = Vec::new();
            for &lines in &lines {
                self.chunk(&mut chunk, lines, (position, steps));
            }
            body.push(Stmt::For { var, start, end, step: steps as i64, kind: LoopKind::Serial, body: chunk });
        }
        body
    }

    /// A chunk of positions of the lines of a vector.
    fn chunk(&mut self, body: &mut Vec<Stmt>, lines: Lines, (position, steps): (ExprId, usize)) {
        let spec = self.cumulative.spec;
        // Arg-reductions are not cumulative.
        let function = spec.op.combining().unwrap_or(BinaryFn::Add);
        let offsets: Vec<ExprId> = (0..steps).map(|step| self.offset(lines, position, step)).collect();
        let mut partial = None;
        let mut results = vec![lines.acc.1];
        for &offset in &offsets {
            let wide = self.cumulative.accumulator_type();
            let exprs = &mut self.program.exprs;
            let element = exprs.load(BufferId::new(CumulativeProgram::X.index()), offset, lines.lanes, None);
            let element = exprs.cast(wide, element);
            let sum = partial.map_or(element, |partial| exprs.binary(function, partial, element));
            let sum = bind_value(&mut self.program, body, "partial", sum);
            partial = Some(sum);
            let result = self.program.exprs.binary(function, lines.acc.1, sum);
            results.push(bind_value(&mut self.program, body, "result", result));
        }
        let last = results[steps];
        let stored = if spec.exclusive { &results[..steps] } else { &results[1..] };
        for (&offset, &result) in offsets.iter().zip(stored) {
            let value = self.program.exprs.cast(self.cumulative.arg(CumulativeProgram::Y).dtype, result);
            let buffer = BufferId::new(CumulativeProgram::Y.index());
            body.push(Stmt::Store { buffer, offset, value, mask: None });
        }
        body.push(Stmt::Assign(lines.acc.0, last));
    }

    /// The offset of a position of lines, counted in the direction of the scan.
    fn offset(&mut self, lines: Lines, position: ExprId, step: usize) -> ExprId {
        let CumulativeProgram { extent, inner, spec, .. } = *self.cumulative;
        let exprs = &mut self.program.exprs;
        let mut at = exprs.add_const(position, step as i64);
        if spec.reverse {
            let last = exprs.index(extent as i64 - 1);
            at = exprs.sub(last, at);
        }
        let along = exprs.mul_const(at, inner as i64);
        exprs.add2(lines.first, along)
    }
}
