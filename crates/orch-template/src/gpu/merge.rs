//! Template for selections of the best of lines that consist of sorted runs, on GPUs: each thread finds the rank of an element.
//!
//! ```text
//! rank of x[i, p]  =  p + sum over other runs j of how many of x[j] come before it, by binary search
//!                     (of earlier runs also those that are equal: ties go to the lower position)
//! values[rank], places[rank] = x[i, p], i * length + p, where rank < k
//! ```
//!
//! Searches in several runs go on together, so that their loads are in flight at the same time. Ranks are all different, so that
//! threads write different elements. Exact.

use crate::Design;
use crate::bind::{add_arguments, bind_index, bind_value, bound_kernel};
use crate::selection::order::KeyOrder;
use orch_compute::SelectionProgram;
use orch_compute::expr::{BufferId, ExprId, Type};
use orch_compute::simplify::simplify;
use orch_ir::DType;
use orch_thread::cta::WARP;
use orch_thread::kernel::Kernel;
use orch_thread::program::{Buffer, LoopKind, Scope, Stmt, ThreadProgram};
use orch_thread::target::GpuTarget;

/// Threads of a CTA: few, so that short lines are on many SMs.
const THREADS: usize = 128;

/// Runs in which a thread searches at the same time.
const TOGETHER: usize = 8;

/// Instructions of a step of a search, and cycles until its load has arrived.
const STEP_INSTRUCTIONS: f64 = 10.0;
const STEP_CYCLES: f64 = 200.0;

/// Elements of a run of a selection.
fn run_length(selection: &SelectionProgram) -> usize {
    selection.extent / selection.runs
}

/// Steps of a search in a run.
fn steps(selection: &SelectionProgram) -> u32 {
    run_length(selection).ilog2() + 1
}

/// CTAs of a line.
fn parts(selection: &SelectionProgram) -> usize {
    selection.extent.div_ceil(THREADS)
}

/// Modelled cycles of an SM for all lines.
pub fn cycles(selection: &SelectionProgram, target: &GpuTarget) -> f64 {
    let warps = (selection.lines() * parts(selection) * (THREADS / WARP)) as f64;
    let searches = f64::from(steps(selection)) * selection.runs as f64;
    let issued = warps * searches * STEP_INSTRUCTIONS / (4.0 * target.sms as f64);
    let waves = (warps * WARP as f64 / (target.sms * target.sm_threads) as f64).ceil();
    let waited = waves * f64::from(steps(selection)) * selection.runs.div_ceil(TOGETHER) as f64 * STEP_CYCLES;
    issued.max(waited)
}

/// The design of a selection of lines that consist of runs.
pub fn design(selection: &SelectionProgram) -> Design {
    Design { kernel: lower(selection), schedule: format!("merge runs={} threads={THREADS}", selection.runs) }
}

/// Lowers a selection of lines that consist of runs.
pub fn lower(selection: &SelectionProgram) -> Kernel {
    let mut program = ThreadProgram::new(&selection.name, selection.lines() * parts(selection));
    let thread = program.set_cta(THREADS, 1);
    add_arguments(&mut program, &selection.args);
    let (name, scope) = ("found".to_owned(), Scope::Scratch);
    let found = program.add_buffer(Buffer { name, dtype: DType::I64, elems: TOGETHER, scope });
    let thread = program.exprs.var(thread);
    let mut emitter = Emitter { selection, order: KeyOrder::of(selection), program, found, thread };
    let body = emitter.cta();
    emitter.program.body = body;
    bound_kernel(emitter.program, &selection.args)
}

struct Emitter<'a> {
    selection: &'a SelectionProgram,
    order: KeyOrder,
    program: ThreadProgram,
    /// For each search that goes on: how many elements come before.
    found: BufferId,
    thread: ExprId,
}

/// The element whose rank is searched.
#[derive(Clone, Copy)]
struct Element {
    /// Where its line begins.
    base: ExprId,
    key: ExprId,
    run: ExprId,
    /// Whether it may be selected.
    counts: ExprId,
}

impl Emitter<'_> {
    fn cta(&mut self) -> Vec<Stmt> {
        let SelectionProgram { outer, extent, inner, k, .. } = *self.selection;
        let mut body = Vec::new();
        let exprs = &mut self.program.exprs;
        let task = exprs.var(self.program.task);
        let places = exprs.unflatten(task, &[outer, inner, parts(self.selection)]);
        let line = [places[0], places[1]];
        let offset = |exprs: &mut orch_compute::expr::Exprs, count: usize| {
            let offset = exprs.linear_index(&line, &[count * inner, 1]);
            simplify(exprs, offset)
        };
        let (base, result) = (offset(exprs, extent), offset(exprs, k));
        let first = exprs.mul_const(places[2], THREADS as i64);
        let position = exprs.add2(first, self.thread);
        let base = bind_index(&mut self.program, &mut body, "base", base, outer * extent * inner);
        let positions = parts(self.selection) * THREADS;
        let position = bind_index(&mut self.program, &mut body, "position", position, positions);
        let exprs = &mut self.program.exprs;
        let (length, all, most) = (
            exprs.index(run_length(self.selection) as i64),
            exprs.index(extent as i64),
            exprs.index(k as i64),
        );
        let (run, within) = (exprs.floor_div(position, length), exprs.floor_rem(position, length));
        let runs = positions.div_ceil(run_length(self.selection));
        let run = bind_index(&mut self.program, &mut body, "run", run, runs);
        let within = bind_index(&mut self.program, &mut body, "within", within, run_length(self.selection));
        let exprs = &mut self.program.exprs;
        let (exists, is_early) = (exprs.lt(position, all), exprs.lt(within, most));
        let counts = exprs.and(exists, is_early);
        let counts = self.bind(&mut body, "counts", counts);
        let value = self.element(base, position, counts);
        let value = self.bind(&mut body, "value", value);
        let key = self.program.exprs.cast(self.order.key, value);
        let key = self.bind(&mut body, "key", key);
        let rank = self.program.exprs.declare_register("rank", Type::INDEX);
        body.push(Stmt::Register(rank, within));
        body.push(self.search_all(Element { base, key, run, counts }, rank));
        let exprs = &mut self.program.exprs;
        let rank = exprs.var(rank);
        let is_selected = exprs.lt(rank, most);
        let condition = exprs.and(counts, is_selected);
        let then = self.write(result, rank, [value, position]);
        body.push(Stmt::If { condition, then, otherwise: Vec::new() });
        body
    }

    fn bind(&mut self, body: &mut Vec<Stmt>, name: &str, value: ExprId) -> ExprId {
        let value = simplify(&mut self.program.exprs, value);
        bind_value(&mut self.program, body, name, value)
    }

    /// An element of a line.
    fn element(&mut self, base: ExprId, position: ExprId, mask: ExprId) -> ExprId {
        let exprs = &mut self.program.exprs;
        let scaled = exprs.mul_const(position, self.selection.inner as i64);
        let at = exprs.add2(base, scaled);
        exprs.load(BufferId::new(SelectionProgram::X.index()), at, 1, Some(mask))
    }

    /// Adds up how many elements of other runs come before.
    fn search_all(&mut self, element: Element, rank: orch_compute::expr::VarId) -> Stmt {
        let runs = self.selection.runs;
        let (var, first) = self.program.exprs.fresh_index("first", runs);
        let mut body = vec![self.unrolled(|emitter, number| {
            let zero = emitter.program.exprs.index(0);
            vec![Stmt::Store { buffer: emitter.found, offset: number, value: zero, mask: None }]
        })];
        for step in (0..steps(self.selection)).rev().map(|log| 1usize << log) {
            body.push(self.unrolled(|emitter, number| emitter.search_step(element, first, number, step)));
        }
        body.push(self.unrolled(|emitter, number| {
            let exprs = &mut emitter.program.exprs;
            let (so_far, found) = (exprs.var(rank), exprs.load(emitter.found, number, 1, None));
            vec![Stmt::Assign(rank, exprs.add2(so_far, found))]
        }));
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(runs as i64));
        Stmt::For { var, start, end, step: TOGETHER as i64, kind: LoopKind::Serial, body }
    }

    /// A step of a search: `found += step` if the element that many further on comes before.
    fn search_step(&mut self, element: Element, first: ExprId, number: ExprId, step: usize) -> Vec<Stmt> {
        let mut body = Vec::new();
        let length = run_length(self.selection);
        let exprs = &mut self.program.exprs;
        let other = exprs.add2(first, number);
        let found = exprs.load(self.found, number, 1, None);
        let found = bind_index(&mut self.program, &mut body, "found", found, length + 1);
        let exprs = &mut self.program.exprs;
        let further = exprs.add_const(found, step as i64);
        let (runs, end) = (exprs.index(self.selection.runs as i64), exprs.index(length as i64));
        let conditions =
            [exprs.lt(other, runs), exprs.ne(other, element.run), exprs.le(further, end), element.counts];
        let is_searched = exprs.all(conditions);
        let is_searched = self.bind(&mut body, "is_searched", is_searched);
        let exprs = &mut self.program.exprs;
        let start = exprs.mul_const(other, length as i64);
        let position = exprs.add2(start, further);
        let position = exprs.add_const(position, -1);
        let value = self.element(element.base, position, is_searched);
        let value = self.program.exprs.cast(self.order.key, value);
        let value = self.bind(&mut body, "other", value);
        let exprs = &mut self.program.exprs;
        let is_before = self.order.is_before(exprs, value, element.key);
        let is_after = self.order.is_before(exprs, element.key, value);
        let is_not_after = exprs.not(is_after);
        let is_earlier = exprs.lt(other, element.run);
        let precedes = exprs.select(is_earlier, is_not_after, is_before);
        let moves = exprs.and(is_searched, precedes);
        let value = exprs.select(moves, further, found);
        body.push(Stmt::Store { buffer: self.found, offset: number, value, mask: None });
        body
    }

    fn unrolled(&mut self, body: impl FnOnce(&mut Self, ExprId) -> Vec<Stmt>) -> Stmt {
        let together = TOGETHER.min(self.selection.runs);
        let (var, number) = self.program.exprs.fresh_index("number", together);
        let body = body(self, number);
        let (start, end) = (self.program.exprs.index(0), self.program.exprs.index(together as i64));
        Stmt::For { var, start, end, step: 1, kind: LoopKind::Unroll, body }
    }

    fn write(&mut self, base: ExprId, rank: ExprId, [value, position]: [ExprId; 2]) -> Vec<Stmt> {
        let SelectionProgram { inner, values, places, .. } = *self.selection;
        let mut body = Vec::new();
        for (arg, value) in [(values, value), (places, position)] {
            let Some(arg) = arg else { continue };
            let exprs = &mut self.program.exprs;
            let scaled = exprs.mul_const(rank, inner as i64);
            let offset = exprs.add2(base, scaled);
            let value = exprs.cast(self.selection.arg(arg).dtype, value);
            body.push(Stmt::Store { buffer: BufferId::new(arg.index()), offset, value, mask: None });
        }
        body
    }
}
