//! The order of a selection: best first, NaN as if larger than any number.

use orch_compute::SelectionProgram;
use orch_compute::expr::{Const, Expr, ExprId, Exprs, fold::int_range};
use orch_ir::DType;

/// How keys are ordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyOrder {
    /// The type of keys.
    pub key: DType,
    /// Whether the largest are best, or the smallest.
    pub largest: bool,
}

impl KeyOrder {
    /// The order of a selection.
    pub fn of(program: &SelectionProgram) -> Self {
        Self { key: program.key_type(), largest: program.largest }
    }

    /// Whether `a` is better than `b`, scalars or vectors.
    pub fn is_before(self, exprs: &mut Exprs, a: ExprId, b: ExprId) -> ExprId {
        if !self.key.is_float() {
            return if self.largest { exprs.gt(a, b) } else { exprs.lt(a, b) };
        }
        // NaN fails the comparison: it comes before numbers if the largest are best, and no number is before it otherwise.
        let (other_way, number) = if self.largest { (exprs.ge(b, a), b) } else { (exprs.le(b, a), a) };
        let (is_before_or_nan, is_nan) = (exprs.not(other_way), exprs.is_nan(number));
        let is_number = exprs.not(is_nan);
        exprs.and(is_before_or_nan, is_number)
    }

    /// A key that is better than none.
    pub fn worst(self, exprs: &mut Exprs) -> ExprId {
        match (self.key.is_float(), self.largest) {
            (true, true) => exprs.constant(self.key, f64::NEG_INFINITY),
            (true, false) => exprs.constant(self.key, f64::NAN),
            (false, largest) => {
                let (low, high) = int_range(self.key);
                exprs.add(Expr::Const(Const::int(self.key, if largest { low } else { high })))
            }
        }
    }
}
