//! Values of expressions of which some variables are known.

use orch_compute::expr::scalar::{self, Number};
use orch_compute::expr::{Const, Expr, ExprId, Exprs};

/// What is known of the variables of a program, by variable.
pub(crate) struct Known<'a> {
    pub exprs: &'a Exprs,
    /// Their values.
    pub values: &'a [Option<i64>],
    /// What those of which the value is not known are bound to, if that may be evaluated in its place.
    pub bound: Option<&'a [Option<ExprId>]>,
}

impl Known<'_> {
    /// A lane of a value; `None` if it depends on memory, or on a variable of which nothing is known.
    pub fn eval(&self, id: ExprId, lane: usize) -> Option<Number> {
        let exprs = self.exprs;
        let dtype = exprs.dtype(id);
        match exprs.get(id) {
            Expr::Const(Const { dtype, bits }) => Some(Number::from_bits(*dtype, *bits)),
            Expr::Var(var) => match (exprs.lanes(id), self.values[var.index()]) {
                (1, Some(value)) => Some(Number::Int(value.into())),
                _ => self.eval(self.bound?[var.index()]?, lane),
            },
            Expr::Unary(f, a) => scalar::unary(*f, dtype, self.eval(*a, lane)?),
            Expr::Binary(f, a, b) => scalar::binary(*f, dtype, self.eval(*a, lane)?, self.eval(*b, lane)?),
            Expr::Compare(f, a, b) => {
                Some(Number::bool(scalar::compare(*f, self.eval(*a, lane)?, self.eval(*b, lane)?)))
            }
            Expr::Select(condition, a, b) => {
                self.eval(if self.eval(*condition, lane)?.is_true() { *a } else { *b }, lane)
            }
            Expr::Cast(to, a) => Some(self.eval(*a, lane)?.cast(*to)),
            Expr::FloorDiv(a, b) | Expr::FloorRem(a, b) => {
                let (a, b) = (self.eval(*a, lane)?.as_i64()?, self.eval(*b, lane)?.as_i64()?);
                let is_quotient = matches!(exprs.get(id), Expr::FloorDiv(..));
                let value = if is_quotient { a.checked_div_euclid(b) } else { a.checked_rem_euclid(b) };
                Some(Number::Int(value?.into()))
            }
            Expr::Splat(a, _) => self.eval(*a, 0),
            Expr::Ramp { base, stride, .. } => {
                Some(Number::Int((self.eval(*base, 0)?.as_i64()? + stride * lane as i64).into()))
            }
            _ => None,
        }
    }
}
