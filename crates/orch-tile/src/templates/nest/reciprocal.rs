//! Division by a value that does not change along a loop becomes multiplication by its reciprocal.
//!
//! `x / u` and `x * (1 / u)` differ by at most one unit in the last place while `u` and `1 / u` are normal numbers;
//! the loop is emitted twice, and which one runs is decided by the value of `u`. For `u` zero, infinite or NaN the
//! division runs too, and where a rounding or comparison would make a whole unit of such a difference.

use super::emit::Emitter;
use super::flat::Step;
use super::place::Place;
use crate::expr::{Expr, ExprId, Exprs, Type, VarId};
use crate::thread::Stmt;
use orch_ir::{BinaryFn, DType, ReduceOp, UnaryFn};

/// Emits steps at places.
type EmitSteps<'e, 'f> = dyn FnMut(&mut Emitter<'e>, &[Step], &[Place]) -> Vec<Stmt> + 'f;

/// Loops that run fewer times keep their divisions.
const MIN_ITERATIONS: usize = 4;

/// Divisors for which a loop is emitted twice.
const MAX_DIVISORS: usize = 2;

/// True for functions that turn a difference in the last place into one of a whole unit.
fn is_discontinuous(exprs: &Exprs, id: ExprId) -> bool {
    match exprs.get(id) {
        Expr::Unary(
            UnaryFn::RoundEven | UnaryFn::Floor | UnaryFn::Ceil | UnaryFn::Trunc | UnaryFn::Sign,
            a,
        )
        | Expr::Cast(_, a)
            if exprs.dtype(*a).is_float() =>
        {
            !matches!(exprs.get(id), Expr::Cast(to, _) if to.is_float())
        }
        Expr::Compare(_, a, _) | Expr::Binary(BinaryFn::FloorMod | BinaryFn::TruncMod, a, _) => {
            exprs.dtype(*a).is_float()
        }
        _ => false,
    }
}

impl<'e> Emitter<'e> {
    /// Emits `steps`, which share a loop, with reciprocals where that is possible.
    pub fn with_reciprocals(
        &mut self,
        steps: &[Step],
        places: &[Place],
        emit: &mut EmitSteps<'e, '_>,
    ) -> Vec<Stmt> {
        let divisors = self.invariant_divisors(steps);
        let [place] = places else { return emit(self, steps, places) };
        if divisors.is_empty() || divisors.len() > MAX_DIVISORS {
            return emit(self, steps, places);
        }
        let mut out = Vec::new();
        let mut quick_place = place.clone();
        let mut quick_steps = steps.to_vec();
        let mut is_safe = self.nest.program.exprs.bool(true);
        for divisor in divisors {
            let (reciprocal, condition) = self.reciprocal(&mut quick_place, divisor, &mut out);
            is_safe = self.nest.program.exprs.and(is_safe, condition);
            for step in &mut quick_steps {
                self.multiply_instead(step, divisor, reciprocal);
            }
        }
        let otherwise = emit(self, steps, places);
        let then = emit(self, &quick_steps, &[quick_place]);
        out.push(Stmt::If { condition: is_safe, then, otherwise });
        out
    }

    /// Float divisors below the steps that do not vary over their inner axes.
    fn invariant_divisors(&self, steps: &[Step]) -> Vec<ExprId> {
        let mut divisors = Vec::new();
        for step in steps {
            let inner: Vec<VarId> = self.inner_axes(&step.axes()).iter().map(|axis| axis.var).collect();
            let vector = self
                .plan
                .vector
                .as_ref()
                .map_or(1, |axis| if inner.contains(&axis.var) { self.plan.lanes } else { 1 });
            if self.nest.points(&inner) < MIN_ITERATIONS * vector {
                continue;
            }
            let exprs = &self.nest.program.exprs;
            let expressions = exprs.reachable(&step.roots());
            if expressions.iter().any(|&id| is_discontinuous(exprs, id)) {
                continue;
            }
            for id in expressions {
                let Expr::Binary(BinaryFn::Div, _, divisor) = *exprs.get(id) else { continue };
                let vars = exprs.free_vars(divisor);
                let is_invariant = inner.iter().all(|axis| !vars.contains(axis));
                let is_narrow = matches!(exprs.dtype(divisor), DType::F32 | DType::F64);
                if is_narrow
                    && is_invariant
                    && exprs.as_const(divisor).is_none()
                    && !divisors.contains(&divisor)
                {
                    divisors.push(divisor);
                }
            }
        }
        divisors
    }

    /// Binds the reciprocal of a divisor at a place to a placeholder, and the condition that it may be used.
    fn reciprocal(&mut self, place: &mut Place, divisor: ExprId, out: &mut Vec<Stmt>) -> (VarId, ExprId) {
        let value = self.nest.full_value(place, divisor);
        let exprs = &mut self.nest.program.exprs;
        let Type { dtype, lanes } = exprs.ty(value);
        let named = exprs.declare_register("divisor", Type { dtype, lanes });
        out.push(Stmt::Let(named, value));
        let value = exprs.var(named);
        let (low, high) = match dtype {
            DType::F64 => (f64::powi(2.0, -1020), f64::powi(2.0, 1020)),
            _ => (f64::powi(2.0, -125), f64::powi(2.0, 125)),
        };
        let magnitude = exprs.unary(UnaryFn::Abs, value);
        let (smallest, largest) =
            (exprs.reduce_lanes(ReduceOp::Min, magnitude), exprs.reduce_lanes(ReduceOp::Max, magnitude));
        let (low, high) = (exprs.constant(dtype, low), exprs.constant(dtype, high));
        let (above, below) = (exprs.ge(smallest, low), exprs.le(largest, high));
        let condition = exprs.and(above, below);
        let one = exprs.constant(dtype, 1.0);
        let one = exprs.splat(one, lanes);
        let quotient = exprs.binary(BinaryFn::Div, one, value);
        let inverse = exprs.declare_register("reciprocal", Type { dtype, lanes });
        out.push(Stmt::Let(inverse, quotient));
        let inverse = exprs.var(inverse);
        let placeholder = exprs.declare_register("reciprocal", Type::scalar(dtype));
        place.define(placeholder, inverse);
        (placeholder, condition)
    }

    /// Replaces divisions by `divisor` in a step.
    fn multiply_instead(&mut self, step: &mut Step, divisor: ExprId, reciprocal: VarId) {
        let exprs = &mut self.nest.program.exprs;
        let factor = exprs.var(reciprocal);
        let divides =
            |id: &ExprId| matches!(*exprs.get(*id), Expr::Binary(BinaryFn::Div, _, d) if d == divisor);
        let quotients: Vec<ExprId> = exprs.reachable(&step.roots()).into_iter().filter(divides).collect();
        for quotient in quotients {
            let Expr::Binary(_, dividend, _) = *self.nest.program.exprs.get(quotient) else { continue };
            let product = self.nest.program.exprs.mul(dividend, factor);
            step.map_roots(|root| self.nest.replace(root, &[(quotient, product)]));
        }
    }
}
