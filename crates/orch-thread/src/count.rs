//! Estimates how many instructions a thread program for a CPU runs, to rank schedules of one computation; how often the loops of one
//! for a GPU wait for memory; and what its CTAs take of an SM.

use crate::cta::CtaStmt;
use crate::known::Known;
use crate::program::{LoopKind, Stmt, ThreadProgram};
use crate::target::CtaResources;
use orch_compute::BufferId;
use orch_compute::expr::scalar::Number;
use orch_compute::expr::{Expr, ExprId, Exprs, VarId};
use orch_ir::{BinaryFn, DType, UnaryFn};
use std::collections::BTreeSet;

/// Instructions of all tasks, each on one vector or one element. Arithmetic of indices does not count.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct InstructionCounts {
    /// Multiply-adds, additions, comparisons and the like.
    pub simple: f64,
    /// Loads and stores.
    pub accesses: f64,
    /// Divisions and square roots.
    pub divisions: f64,
    /// Exponentials and other functions that are polynomials.
    pub functions: f64,
    /// Iterations of loops that are not unrolled.
    pub iterations: f64,
}

/// Instructions to combine the lanes of a vector.
const LANE_REDUCTION: f64 = 8.0;

/// Counts the instructions of the first work item, times the number of work items. What a loop does is counted in its first iteration,
/// of a branch on data the longer side. For programs whose first work item and iterations have whole parts, as those of µGraphs.
pub fn count(program: &ThreadProgram) -> InstructionCounts {
    let vars = program.exprs.vars().len();
    let mut counter = Counter { exprs: &program.exprs, values: vec![None; vars] };
    counter.values[program.task.index()] = Some(0);
    if let Some(groups) = program.groups {
        counter.values[groups.first.index()] = Some(1);
    }
    counter.body(&program.body).times(program.tasks as f64)
}

/// What a statement takes, without those nested in it: its instructions by their usual times.
pub(crate) fn instructions(exprs: &Exprs, stmt: &Stmt) -> f64 {
    /// Half of the accesses run beside arithmetic.
    const ACCESS: f64 = 0.5;
    const DIVISION: f64 = 8.0;
    const FUNCTION: f64 = 16.0;
    let stored = match stmt {
        Stmt::Store { offset, .. } => 2.0 * exprs.lanes(*offset) as f64,
        _ => 0.0,
    };
    let counts = of_exprs(exprs, &stmt.operands());
    counts.simple
        + ACCESS * (counts.accesses + stored)
        + DIVISION * counts.divisions
        + FUNCTION * counts.functions
}

/// Iterations of a loop; the most that the declared range allows where bounds are not constant.
pub(crate) fn trips(exprs: &Exprs, var: VarId, start: ExprId, end: ExprId, step: i64) -> f64 {
    let constant = |id| match exprs.get(id) {
        Expr::Const(value) => Some(value.bits as i64),
        _ => None,
    };
    let extent = match (constant(start), constant(end)) {
        (Some(start), Some(end)) => end.saturating_sub(start),
        _ => {
            let (least, most) = exprs.var_info(var).range.unwrap_or((0, 0));
            most.saturating_sub(least).saturating_add(1)
        }
    };
    (extent.max(0) as f64 / step.max(1) as f64).ceil()
}

/// How often the loops of a task wait for loads to shared memory that the same iteration has issued: the whole latency of the
/// memory each time. Loops that load ahead do not.
pub fn exposed_waits(program: &ThreadProgram) -> f64 {
    loop_waits(&program.exprs, &program.body, None)
}

/// What a CTA takes of its SM. Registers are estimated: the accumulators of `mma` and `wgmma`, and others.
pub fn cta_resources(program: &ThreadProgram) -> CtaResources {
    /// Registers of a thread beside accumulators: operands, maxima, sums and indices. NVRTC takes 58 for attention of heads of 64, 74
    /// for heads of 128.
    const OTHER_REGISTERS: usize = 60;
    let mut accumulators = BTreeSet::new();
    add_accumulators(&program.body, &mut accumulators);
    let elems: usize = accumulators.into_iter().map(|buffer| program.buffer(buffer).elems).sum();
    CtaResources {
        threads: program.cta.as_ref().map_or(1, |cta| cta.threads),
        registers: elems + OTHER_REGISTERS,
        shared_bytes: program.shared_bytes(),
    }
}

fn add_accumulators(body: &[Stmt], buffers: &mut BTreeSet<BufferId>) {
    for stmt in body {
        if let Stmt::Cta(CtaStmt::Mma { acc, .. } | CtaStmt::Wgmma { acc, .. }) = stmt {
            buffers.insert(acc.buffer);
        }
        stmt.bodies().for_each(|body| add_accumulators(body, buffers));
    }
}

/// Loads to shared memory that an iteration has issued, and not waited for.
#[derive(Default)]
struct IssuedLoads {
    /// A group of `cp.async`.
    group: bool,
    /// Full mbarriers of TMA loads.
    mbarriers: Vec<ExprId>,
}

/// Waits of a body for loads that it has issued itself, if it is that of a loop, and those of the loops in it.
fn loop_waits(exprs: &Exprs, body: &[Stmt], mut issued: Option<&mut IssuedLoads>) -> f64 {
    let mut waits = 0.0;
    for stmt in body {
        waits += match stmt {
            Stmt::For { var, start, end, step, kind: LoopKind::Unroll, body } => {
                trips(exprs, *var, *start, *end, *step) * loop_waits(exprs, body, issued.as_deref_mut())
            }
            Stmt::For { var, start, end, step, body, .. } => {
                let own = Some(&mut IssuedLoads::default());
                trips(exprs, *var, *start, *end, *step) * loop_waits(exprs, body, own)
            }
            Stmt::If { then, otherwise, .. } => {
                let then = loop_waits(exprs, then, issued.as_deref_mut());
                then.max(loop_waits(exprs, otherwise, issued.as_deref_mut()))
            }
            Stmt::Cta(stmt) => {
                match issued.as_deref_mut().is_some_and(|issued| issued.are_waited_for(stmt)) {
                    true => 1.0,
                    false => 0.0,
                }
            }
            _ => 0.0,
        };
    }
    waits
}

impl IssuedLoads {
    /// Notes the loads that a statement issues; true if it waits for loads of before.
    fn are_waited_for(&mut self, stmt: &CtaStmt) -> bool {
        match stmt {
            CtaStmt::CpAsyncCommit => self.group = true,
            CtaStmt::CpAsyncWait(0) => return std::mem::take(&mut self.group),
            CtaStmt::TmaLoad { mbarrier, .. } => self.mbarriers.push(*mbarrier),
            CtaStmt::MbarrierWaitFull { mbarrier, .. } if self.mbarriers.contains(mbarrier) => {
                self.mbarriers.clear();
                return true;
            }
            _ => {}
        }
        false
    }
}

struct Counter<'a> {
    exprs: &'a Exprs,
    /// Values of variables of indices, where they are known.
    values: Vec<Option<i64>>,
}

impl Counter<'_> {
    fn body(&mut self, body: &[Stmt]) -> InstructionCounts {
        let are_stores = |a: &Stmt, b: &Stmt| [a, b].iter().all(|stmt| matches!(stmt, Stmt::Store { .. }));
        let mut counts = InstructionCounts::default();
        for run in body.chunk_by(are_stores) {
            counts = counts.plus(match run {
                [stmt] => self.stmt(stmt),
                stores => self.stores(stores),
            });
        }
        counts
    }

    /// Stores one after the other: nothing is assigned between them, so that what several of them store from is computed once.
    fn stores(&self, stores: &[Stmt]) -> InstructionCounts {
        let roots: Vec<ExprId> = stores.iter().flat_map(Stmt::operands).collect();
        let accesses = stores.iter().map(|stmt| match stmt {
            Stmt::Store { offset, .. } => 2.0 * self.exprs.lanes(*offset) as f64,
            _ => 0.0,
        });
        let stored = InstructionCounts { accesses: accesses.sum(), ..Default::default() };
        of_exprs(self.exprs, &roots).plus(stored)
    }

    fn stmt(&mut self, stmt: &Stmt) -> InstructionCounts {
        match stmt {
            Stmt::Comment(_) | Stmt::Prefetch { .. } | Stmt::Amx(_) | Stmt::Cta(_) => {
                InstructionCounts::default()
            }
            Stmt::Let(var, value) => {
                self.values[var.index()] = self.eval(*value).and_then(Number::as_i64);
                of_exprs(self.exprs, &[*value])
            }
            Stmt::Register(_, value) | Stmt::Assign(_, value) => of_exprs(self.exprs, &[*value]),
            Stmt::Store { .. } => self.stores(std::slice::from_ref(stmt)),
            Stmt::For { var, start, end, step, kind, body } => {
                let [first, past] = [start, end].map(|bound| self.eval(*bound).and_then(Number::as_i64));
                let trips = match first.zip(past) {
                    Some((first, past)) => {
                        (past.saturating_sub(first).max(0) as f64 / (*step).max(1) as f64).ceil()
                    }
                    None => trips(self.exprs, *var, *start, *end, *step),
                };
                if trips == 0.0 {
                    return InstructionCounts::default();
                }
                let of_loop = match kind {
                    LoopKind::Unroll => 0.0,
                    _ => trips,
                };
                self.values[var.index()] = first;
                let inner = self.body(body).times(trips);
                inner.plus(InstructionCounts { iterations: of_loop, ..Default::default() })
            }
            Stmt::If { condition, then, otherwise } => {
                let taken = match self.eval(*condition) {
                    Some(value) => self.body(if value.is_true() { then } else { otherwise }),
                    None => {
                        let (then, otherwise) = (self.body(then), self.body(otherwise));
                        if then.sum() >= otherwise.sum() { then } else { otherwise }
                    }
                };
                of_exprs(self.exprs, &[*condition]).plus(taken)
            }
        }
    }

    fn eval(&self, id: ExprId) -> Option<Number> {
        if self.exprs.lanes(id) != 1 {
            return None;
        }
        Known { exprs: self.exprs, values: &self.values, bound: None }.eval(id, 0)
    }
}

/// Counts expressions, each once.
fn of_exprs(exprs: &Exprs, roots: &[ExprId]) -> InstructionCounts {
    exprs
        .reachable(roots)
        .into_iter()
        .fold(InstructionCounts::default(), |counts, id| counts.plus(of_expr(exprs, id)))
}

/// Counts an expression without its operands.
fn of_expr(exprs: &Exprs, id: ExprId) -> InstructionCounts {
    let none = InstructionCounts::default();
    let simple = |simple| InstructionCounts { simple, ..none };
    let is_index = |id| matches!(exprs.dtype(id), DType::I64);
    match exprs.get(id) {
        Expr::Load { offset, .. } => InstructionCounts { accesses: exprs.lanes(*offset) as f64, ..none },
        Expr::ReduceLanes(..) => simple(LANE_REDUCTION),
        _ if is_index(id) => none,
        Expr::Unary(f, _) => match f {
            UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Not => simple(1.0),
            UnaryFn::Sqrt | UnaryFn::Recip => InstructionCounts { divisions: 1.0, ..none },
            _ => InstructionCounts { functions: 1.0, ..none },
        },
        Expr::Binary(BinaryFn::Div, ..) => InstructionCounts { divisions: 1.0, ..none },
        Expr::Binary(..)
        | Expr::Compare(..)
        | Expr::Select(..)
        | Expr::Cast(..)
        | Expr::IsNan(_)
        | Expr::IsInf(_)
        | Expr::Fma(..)
        | Expr::DotPairs(..)
        | Expr::Interleave(..) => simple(1.0),
        Expr::Const(_)
        | Expr::Var(_)
        | Expr::FloorDiv(..)
        | Expr::FloorRem(..)
        | Expr::Read { .. }
        | Expr::Stage(_)
        | Expr::Splat(..)
        | Expr::Half(..)
        | Expr::Ramp { .. } => none,
    }
}

impl InstructionCounts {
    fn plus(self, other: Self) -> Self {
        Self {
            simple: self.simple + other.simple,
            accesses: self.accesses + other.accesses,
            divisions: self.divisions + other.divisions,
            functions: self.functions + other.functions,
            iterations: self.iterations + other.iterations,
        }
    }

    fn times(self, count: f64) -> Self {
        Self {
            simple: self.simple * count,
            accesses: self.accesses * count,
            divisions: self.divisions * count,
            functions: self.functions * count,
            iterations: self.iterations * count,
        }
    }

    fn sum(self) -> f64 {
        self.simple + self.accesses + self.divisions + self.functions + self.iterations
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_thread;

    /// `tasks` times a row of 64 elements in vectors of 16: a scaled exponential, and its quotient by the first element.
    fn row(tasks: usize) -> ThreadProgram {
        let text = format!(
            "program k, {tasks} tasks task: i64 [0..={}]
  input x: f32[{elems}]
  output y: f32[{elems}]
{{
  let first: f32 = x[(task * 64)]
  for i: i64 [0..=48] = 0 to 64 step 16 {{
    y[(i + (task * 64))] = (exp(x[(i + (task * 64)); 16]) / splat(first; 16))
  }}
}}
",
            tasks - 1,
            elems = 64 * tasks
        );
        parse_thread(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn accumulators_are_counted_once() {
        let program = copies(
            "    mma f16, acc[0], factors[0], factors[4]\n    mma f16, acc[4], factors[0], factors[4]",
        );
        let resources = cta_resources(&program);
        assert_eq!((resources.threads, resources.shared_bytes), (32, 256));
        assert_eq!(resources.registers - cta_resources(&copies("")).registers, 8);
    }

    #[test]
    fn vectors_count_once_and_loops_by_iterations() {
        let counts = count(&row(3));
        // Each task: one load before the loop, and in each of four iterations a load and a store, which counts twice.
        let expected = InstructionCounts {
            simple: 0.0,
            accesses: 3.0 * (1.0 + 4.0 * 3.0),
            divisions: 3.0 * 4.0,
            functions: 3.0 * 4.0,
            iterations: 3.0 * 4.0,
        };
        assert_eq!(counts, expected);
    }

    /// Parts of 32 of 80 elements, in vectors of 16, then 8: the last part has one vector. The first one counts.
    #[test]
    fn parts_count_as_the_first_one() {
        let text = "program k, 3 tasks task: i64 [0..=2]
  input x: f32[80]
  output y: f32[80]
{
  let len: i64 [0..=32] = min(32, (80 - (task * 32)))
  let past: i64 [0..=32] = ((len // 16) * 16)
  for i: i64 [0..=31] = 0 to past step 16 {
    y[(i + (task * 32))] = exp(x[(i + (task * 32)); 16])
  }
  for j: i64 [0..=31] = past to len step 8 {
    y[(j + (task * 32))] = exp(x[(j + (task * 32)); 8])
  }
  if (past < len) {
    y[79] = 0.0
  }
}
";
        let program = parse_thread(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let counts = count(&program);
        assert_eq!((counts.functions, counts.iterations), (3.0 * 2.0, 3.0 * 2.0));
        assert_eq!(counts.accesses, 3.0 * 2.0 * 3.0);
    }

    /// A loop of eight copies from an input, of which each iteration waits for its own, or for that of the one before.
    fn copies(body: &str) -> ThreadProgram {
        let text = format!(
            "program k, 2 tasks task: i64 [0..=1]
  cta 32 threads thread: i64 [0..=31], clusters of 1
  input x: f32[288]
  output y: f32[512]
  shared a: f32[64]
  scratch acc: f32[8]
  scratch factors: f16[8]
{{
  cp_async a[thread], x[thread], 1
  cp_async_commit
  cp_async_wait 0
  for i: i64 [0..=7] = 0 to 8 step 1 {{
{body}
    barrier
    y[(((task * 256) + (i * 32)) + thread)] = a[thread]
  }}
}}
"
        );
        parse_thread(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn loops_wait_for_what_their_iterations_issue() {
        let copy = "    cp_async a[thread], x[((i * 32) + thread)], 1\n    cp_async_commit";
        assert_eq!(exposed_waits(&copies(&format!("{copy}\n    cp_async_wait 0"))), 8.0);
        // Loads of the iteration before have had its time to arrive; so has a group, if one more may be in flight.
        assert_eq!(exposed_waits(&copies(&format!("    cp_async_wait 0\n{copy}"))), 0.0);
        assert_eq!(exposed_waits(&copies(&format!("{copy}\n    cp_async_wait 1"))), 0.0);
        // Before a loop nothing could hide them.
        assert_eq!(exposed_waits(&copies("")), 0.0);
    }
}
