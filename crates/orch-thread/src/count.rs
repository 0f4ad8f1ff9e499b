//! Estimates how many instructions a thread program for a CPU runs, to rank schedules of one computation.

use crate::program::{LoopKind, Stmt, ThreadProgram};
use orch_compute::expr::{Expr, ExprId, Exprs, VarId};
use orch_ir::{BinaryFn, DType, UnaryFn};

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

/// Counts the instructions of a program; of a branch, those of the longer side.
pub fn count(program: &ThreadProgram) -> InstructionCounts {
    let counter = Counter { exprs: &program.exprs };
    counter.body(&program.body).times(program.tasks as f64)
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

struct Counter<'a> {
    exprs: &'a Exprs,
}

impl Counter<'_> {
    fn body(&self, body: &[Stmt]) -> InstructionCounts {
        let mut counts = InstructionCounts::default();
        for stmt in body {
            counts = counts.plus(self.stmt(stmt));
        }
        counts
    }

    fn stmt(&self, stmt: &Stmt) -> InstructionCounts {
        match stmt {
            Stmt::Comment(_) | Stmt::Prefetch { .. } | Stmt::Amx(_) | Stmt::Cta(_) => {
                InstructionCounts::default()
            }
            Stmt::Let(_, value) | Stmt::Register(_, value) | Stmt::Assign(_, value) => self.exprs(&[*value]),
            Stmt::Store { offset, value, mask, .. } => {
                let roots: Vec<ExprId> = [*offset, *value].into_iter().chain(*mask).collect();
                let lanes = self.exprs.lanes(*offset) as f64;
                self.exprs(&roots).plus(InstructionCounts { accesses: 2.0 * lanes, ..Default::default() })
            }
            Stmt::For { var, start, end, step, kind, body } => {
                let trips = trips(self.exprs, *var, *start, *end, *step);
                let of_loop = match kind {
                    LoopKind::Unroll => 0.0,
                    _ => trips,
                };
                let inner = self.body(body).times(trips);
                inner.plus(InstructionCounts { iterations: of_loop, ..Default::default() })
            }
            Stmt::If { condition, then, otherwise } => {
                let (then, otherwise) = (self.body(then), self.body(otherwise));
                let longer = if then.sum() >= otherwise.sum() { then } else { otherwise };
                self.exprs(&[*condition]).plus(longer)
            }
        }
    }

    fn exprs(&self, roots: &[ExprId]) -> InstructionCounts {
        let mut counts = InstructionCounts::default();
        for id in self.exprs.reachable(roots) {
            counts = counts.plus(self.expr(id));
        }
        counts
    }

    fn expr(&self, id: ExprId) -> InstructionCounts {
        let none = InstructionCounts::default();
        let simple = |simple| InstructionCounts { simple, ..none };
        let is_index = |id| matches!(self.exprs.dtype(id), DType::I64);
        match self.exprs.get(id) {
            Expr::Load { offset, .. } => {
                InstructionCounts { accesses: self.exprs.lanes(*offset) as f64, ..none }
            }
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
            | Expr::Ramp { .. } => none,
        }
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
}
