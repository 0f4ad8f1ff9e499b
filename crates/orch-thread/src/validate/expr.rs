//! Violations by expressions.

use crate::text::type_text;
use crate::validate::{Checker, MAX_LANES, VarState};
use orch_compute::expr::{BufferId, Expr, ExprId, Type};
use orch_ir::{DType, ReduceOp};

impl Checker<'_> {
    /// Checks an operand that must be a scalar index.
    pub(crate) fn index(&mut self, place: &str, operand: ExprId) {
        self.expr(place, operand);
        let ty = self.program.exprs.ty(operand);
        self.expect(ty == Type::INDEX, || format!("{place}: an index is {}", type_text(ty)));
    }

    /// Checks the types of an access to `lanes` elements.
    pub(crate) fn access(
        &mut self,
        place: &str,
        buffer: BufferId,
        offset: ExprId,
        lanes: usize,
        mask: Option<ExprId>,
    ) {
        self.known_buffer(place, buffer);
        self.expr(place, offset);
        let ty = self.program.exprs.ty(offset);
        self.expect(ty.dtype == DType::I64 && (ty.lanes == 1 || ty.lanes == lanes), || {
            format!("{place}: the offset of {lanes} elements of {buffer} is {}", type_text(ty))
        });
        if let Some(mask) = mask {
            self.expr(place, mask);
            let ty = self.program.exprs.ty(mask);
            self.expect(ty == Type::vector(DType::Bool, lanes), || {
                format!("{place}: the mask of {lanes} elements of {buffer} is {}", type_text(ty))
            });
        }
    }

    /// Checks an expression that a statement evaluates: its variables are in scope, and each part is well formed.
    pub(crate) fn expr(&mut self, place: &str, root: ExprId) {
        for id in self.program.exprs.reachable(&[root]) {
            if let Expr::Var(var) = self.program.exprs.get(id) {
                let state = self.states[var.index()];
                let name = self.var_name(*var);
                self.expect(matches!(state, VarState::Fixed | VarState::Register), || match state {
                    VarState::OutOfScope => format!("{place}: {name} is used out of its scope"),
                    _ => format!("{place}: {name} is used before it is declared"),
                });
            }
            if self.checked.insert(id) {
                self.node(place, id);
            }
        }
    }

    fn node(&mut self, place: &str, id: ExprId) {
        let exprs = &self.program.exprs;
        let ty = exprs.ty(id);
        let node = exprs.get(id);
        let problem = match node {
            Expr::Unary(f, a) => (!f.accepts(exprs.dtype(*a))).then_some("is not defined for this type"),
            Expr::Binary(f, a, _) => (!f.accepts(exprs.dtype(*a))).then_some("is not defined for this type"),
            Expr::Select(condition, ..) => {
                (exprs.dtype(*condition) != DType::Bool).then_some("has a condition that is not boolean")
            }
            Expr::IsNan(a) | Expr::IsInf(a) => (!exprs.dtype(*a).is_float()).then_some("is not of a float"),
            Expr::Fma(a, ..) => (exprs.dtype(*a) == DType::Bool).then_some("is of booleans"),
            Expr::DotPairs(.., c) => (exprs.lanes(*c) == 1).then_some("has one lane"),
            Expr::Interleave(_, a, _) | Expr::Half(_, a) => {
                (exprs.dtype(*a) == DType::Bool).then_some("is of booleans")
            }
            Expr::FloorDiv(a, b) | Expr::FloorRem(a, b) if exprs.dtype(*a).is_int() => {
                let divisor = exprs.as_const(*b).and_then(|c| c.as_int());
                divisor.is_some_and(|d| d <= 0).then_some("divides by a constant that is not positive")
            }
            Expr::FloorDiv(..) | Expr::FloorRem(..) => Some("is not of integers"),
            Expr::Ramp { base, .. } => (!exprs.dtype(*base).is_int() || exprs.lanes(*base) != 1)
                .then_some("has no integer scalar base"),
            Expr::ReduceLanes(ReduceOp::ArgMax { .. } | ReduceOp::ArgMin { .. }, _) => {
                Some("is an arg-reduction")
            }
            Expr::Read { .. } | Expr::Stage(_) => Some("is an expression of block programs"),
            Expr::Load { buffer, offset, lanes, mask } => {
                self.access(place, *buffer, *offset, *lanes, *mask);
                None
            }
            Expr::Const(_)
            | Expr::Var(_)
            | Expr::Compare(..)
            | Expr::Cast(..)
            | Expr::Splat(..)
            | Expr::ReduceLanes(..) => None,
        };
        if let Some(problem) = problem {
            self.problems.push(format!("{place}: {id} = {node:?} {problem}"));
        }
        let lanes = ty.lanes;
        self.expect(lanes.is_power_of_two() && lanes <= MAX_LANES, || {
            format!("{place}: {id} has {lanes} lanes")
        });
    }
}
