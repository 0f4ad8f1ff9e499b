//! Simplification of index and boolean expressions with what is known of their variables.
//!
//! Integer index expressions (`i64` scalars) become [normal forms](crate::affine); on those, with ranges and
//! congruences from [`Bounds`],
//!
//! - `floor_div` and `floor_rem` by constants cancel in mixed radix: with `0 <= b < c`, `(a*c + b) / c` is `a` and
//!   `(a*c + b) % c` is `b`; nested divisions merge (`divide`);
//! - quotients and remainders of one expression join again: `(x / c) * c + x % c` is `x` (`recombine`), so that
//!   linearizing after delinearizing gives back what went in, also through partial reshapes;
//! - comparisons are decided, or lose the summands that cannot matter (`compare`), and with them guards, masks,
//!   minima, maxima and selections go.
//!
//! Everything else (values, reads, loads) is rebuilt from simplified operands by the smart constructors.
//!
//! Exactness: a result equals its source for every value of the variables within their declared ranges, where
//! arithmetic wraps as in [`Expr`]. One premise is taken from the program: the dividend of a `FloorDiv` or
//! `FloorRem` does not overflow (those nodes occur in index arithmetic alone, and elements are fewer than 2^40).

mod compare;
mod divide;
mod recombine;

use crate::affine::Linear;
use crate::bounds::{Bounds, IntRange};
use crate::expr::fold::int_range;
use crate::expr::{Expr, ExprId, Exprs, Type, VarId};
use orch_ir::{BinaryFn, DType, UnaryFn};
use rustc_hash::FxHashMap;

/// `root` simplified; use a [`Simplifier`] for many expressions of one arena.
pub fn simplify(exprs: &mut Exprs, root: ExprId) -> ExprId {
    Simplifier::new().simplify(exprs, root)
}

/// The value that a boolean expression has for all values of its variables, if that can be shown.
pub fn prove(exprs: &mut Exprs, condition: ExprId) -> Option<bool> {
    Simplifier::new().prove(exprs, condition)
}

/// Simplifies expressions of one arena and remembers what it did: each expression is worked on once. Declared
/// ranges of variables must not change in between.
#[derive(Clone, Default, Debug)]
pub struct Simplifier {
    bounds: Bounds,
    /// From an expression to its simplified form.
    done: FxHashMap<ExprId, ExprId>,
    /// Normal forms of simplified index expressions that are neither atoms nor constants.
    forms: FxHashMap<ExprId, Linear>,
}

impl Simplifier {
    /// A simplifier that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// An expression that equals `root` for all values of its variables.
    pub fn simplify(&mut self, exprs: &mut Exprs, root: ExprId) -> ExprId {
        if let Some(&simple) = self.done.get(&root) {
            return simple;
        }
        for id in exprs.reachable_unless(&[root], |id| self.done.contains_key(&id)) {
            let node = exprs.get(id).map_operands(|operand| self.done[&operand]);
            let simple = if exprs.ty(id) == Type::INDEX {
                self.index_node(exprs, node)
            } else {
                self.value_node(exprs, node)
            };
            let simple = self.constant_if_exact(exprs, simple);
            self.done.insert(simple, simple);
            self.done.insert(id, simple);
        }
        self.done[&root]
    }

    /// The value that a boolean expression has for all values of its variables, if that can be shown.
    pub fn prove(&mut self, exprs: &mut Exprs, condition: ExprId) -> Option<bool> {
        let simple = self.simplify(exprs, condition);
        exprs.as_bool(simple)
    }

    /// The normal form of an index expression.
    pub fn linear(&mut self, exprs: &mut Exprs, index: ExprId) -> Linear {
        let simple = self.simplify(exprs, index);
        self.form(exprs, simple)
    }

    /// The range and congruence class of an integer expression. Of a sum, the class takes the whole normal form
    /// into account.
    pub fn range(&mut self, exprs: &mut Exprs, value: ExprId) -> IntRange {
        let simple = self.simplify(exprs, value);
        self.bounds.of(exprs, simple)
    }

    /// The `s` for which `index` is `s * var` plus something that does not mention `var`; `None` if it is not of
    /// that form.
    pub fn stride(&mut self, exprs: &mut Exprs, index: ExprId, var: VarId) -> Option<i64> {
        let form = self.linear(exprs, index);
        let var_expr = exprs.var(var);
        let is_independent = |&(atom, _): &(ExprId, i64)| atom == var_expr || !exprs.depends_on(atom, var);
        form.terms().iter().all(is_independent).then(|| form.coefficient(var_expr))
    }

    /// A simplified index expression from node and simplified operands.
    fn index_node(&mut self, exprs: &mut Exprs, node: Expr) -> ExprId {
        let sum = match node {
            Expr::Unary(UnaryFn::Neg, a) => self.form(exprs, a).scaled(-1),
            Expr::Binary(BinaryFn::Add, a, b) => self.form(exprs, a).plus(&self.form(exprs, b)),
            Expr::Binary(BinaryFn::Sub, a, b) => self.form(exprs, a).plus_scaled(&self.form(exprs, b), -1),
            Expr::Binary(BinaryFn::Mul, a, b) => {
                let (a_form, b_form) = (self.form(exprs, a), self.form(exprs, b));
                match (a_form.as_constant(), b_form.as_constant()) {
                    (_, Some(factor)) => a_form.scaled(factor),
                    (Some(factor), None) => b_form.scaled(factor),
                    (None, None) => return exprs.mul(a, b),
                }
            }
            Expr::Binary(f @ (BinaryFn::Min | BinaryFn::Max), a, b) => return self.extremum(exprs, f, a, b),
            Expr::Binary(f @ (BinaryFn::Div | BinaryFn::FloorMod | BinaryFn::TruncMod), a, b) => {
                return self.value_division(exprs, f, a, b);
            }
            Expr::FloorDiv(a, b) => match exprs.as_int(b) {
                Some(divisor) if divisor > 0 => {
                    let dividend = self.form(exprs, a);
                    self.quotient(exprs, &dividend, divisor)
                }
                _ => return exprs.floor_div(a, b),
            },
            Expr::FloorRem(a, b) => match exprs.as_int(b) {
                Some(divisor) if divisor > 0 => {
                    let dividend = self.form(exprs, a);
                    self.remainder(exprs, &dividend, divisor)
                }
                _ => return exprs.floor_rem(a, b),
            },
            Expr::Cast(to, a) => return self.cast(exprs, to, a),
            node => return exprs.rebuild(node),
        };
        self.sum(exprs, sum)
    }

    /// A simplified expression of any other type from node and simplified operands.
    fn value_node(&mut self, exprs: &mut Exprs, node: Expr) -> ExprId {
        match node {
            Expr::Compare(f, a, b) if exprs.ty(a) == Type::INDEX => self.comparison(exprs, f, a, b),
            Expr::Binary(BinaryFn::And, a, b) if exprs.ty(a) == Type::scalar(DType::Bool) => {
                self.conjunction(exprs, a, b)
            }
            Expr::Cast(to, a) => self.cast(exprs, to, a),
            node => exprs.rebuild(node),
        }
    }

    /// A conversion, past one on the way that changes no value.
    fn cast(&mut self, exprs: &mut Exprs, to: DType, a: ExprId) -> ExprId {
        if let Expr::Cast(middle, inner) = *exprs.get(a)
            && !middle.is_float()
            && !exprs.dtype(inner).is_float()
            && exprs.dtype(inner) != DType::U64
        {
            let range = self.bounds.of(exprs, inner);
            let (low, high) = int_range(middle);
            if low <= range.low.into() && i128::from(range.high) <= high {
                return exprs.cast(to, inner);
            }
        }
        exprs.cast(to, a)
    }

    /// The smaller or larger of two index expressions.
    fn extremum(&mut self, exprs: &mut Exprs, f: BinaryFn, a: ExprId, b: ExprId) -> ExprId {
        let (a_form, b_form) = (self.form(exprs, a), self.form(exprs, b));
        if self.is_exact(exprs, &a_form) && self.is_exact(exprs, &b_form) {
            let (low, high) = self.bounds.of_linear(exprs, &a_form.plus_scaled(&b_form, -1));
            let (smaller, larger) = if high <= 0 { (a, b) } else { (b, a) };
            if high <= 0 || low >= 0 {
                return if f == BinaryFn::Min { smaller } else { larger };
            }
        }
        exprs.binary(f, a, b)
    }

    /// Division as values define it, which is floor division where signs allow.
    fn value_division(&mut self, exprs: &mut Exprs, f: BinaryFn, a: ExprId, b: ExprId) -> ExprId {
        let dividend = self.form(exprs, a);
        let is_exact = self.is_exact(exprs, &dividend);
        let (low, _) = self.bounds.of_linear(exprs, &dividend);
        match exprs.as_int(b).filter(|&divisor| divisor > 0 && is_exact) {
            Some(divisor) if f == BinaryFn::FloorMod || (f == BinaryFn::TruncMod && low >= 0) => {
                let remainder = self.remainder(exprs, &dividend, divisor);
                self.sum(exprs, remainder)
            }
            Some(divisor) if f == BinaryFn::Div && low >= 0 => {
                let quotient = self.quotient(exprs, &dividend, divisor);
                self.sum(exprs, quotient)
            }
            _ => exprs.binary(f, a, b),
        }
    }

    /// The normal form of a simplified index expression.
    fn form(&self, exprs: &Exprs, simple: ExprId) -> Linear {
        match (self.forms.get(&simple), exprs.as_int(simple)) {
            (Some(form), _) => form.clone(),
            (None, Some(value)) => Linear::constant(value),
            (None, None) => Linear::atom(simple),
        }
    }

    /// The simplified expression with this normal form, after quotients and remainders in it have met.
    fn sum(&mut self, exprs: &mut Exprs, sum: Linear) -> ExprId {
        let sum = self.recombined(exprs, sum);
        let simple = sum.to_expr(exprs);
        if sum.as_constant().is_none() && sum.as_atom().is_none() {
            self.forms.insert(simple, sum);
        }
        simple
    }

    /// The constant that an integer or boolean always is, or the expression itself.
    fn constant_if_exact(&mut self, exprs: &mut Exprs, id: ExprId) -> ExprId {
        let Type { dtype, lanes } = exprs.ty(id);
        if dtype.is_float() || exprs.as_const(id).is_some() {
            return id;
        }
        match self.bounds.of(exprs, id).as_exact() {
            Some(value) => {
                let value = exprs.int(dtype, value);
                exprs.splat(value, lanes)
            }
            None => id,
        }
    }

    /// True if the sum cannot leave 64 bits, so that it may be compared as an exact integer.
    fn is_exact(&mut self, exprs: &Exprs, sum: &Linear) -> bool {
        let (low, high) = self.bounds.of_linear(exprs, sum);
        low >= i64::MIN.into() && high <= i64::MAX.into()
    }
}

/// True if coefficients and constant are far from overflowing: what real index arithmetic has.
fn is_moderate(sum: &Linear) -> bool {
    const LIMIT: u64 = 1 << 56;
    let coefficients = sum.terms().iter().map(|&(_, c)| c);
    coefficients.chain([sum.constant_term()]).all(|c| c.unsigned_abs() < LIMIT)
}

#[cfg(test)]
mod tests;
