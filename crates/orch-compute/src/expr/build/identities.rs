//! Algebraic identities that the smart constructors apply: each holds for every value of the operands.

use crate::expr::{Const, Expr, ExprId, Exprs};
use orch_ir::{BinaryFn, CompareFn, DType, UnaryFn};

impl Exprs {
    /// Operands of a commutative integer function in canonical order: a constant last, otherwise by id.
    pub(super) fn ordered(&self, f: BinaryFn, a: ExprId, b: ExprId) -> (ExprId, ExprId) {
        let key = |id: ExprId| (self.as_const(id).is_some(), id);
        if f.is_commutative() && !self.dtype(a).is_float() && key(b) < key(a) { (b, a) } else { (a, b) }
    }

    pub(super) fn unary_identity(&mut self, f: UnaryFn, a: ExprId) -> Option<ExprId> {
        match (f, self.get(a).clone()) {
            (UnaryFn::Neg, Expr::Unary(UnaryFn::Neg, inner)) => Some(inner),
            (UnaryFn::Not, Expr::Unary(UnaryFn::Not, inner)) => Some(inner),
            (UnaryFn::Abs, Expr::Unary(UnaryFn::Abs, _)) => Some(a),
            (UnaryFn::Abs, Expr::Unary(UnaryFn::Neg, inner)) => Some(self.unary(UnaryFn::Abs, inner)),
            (UnaryFn::Neg, Expr::Ramp { base, stride, lanes }) if stride != i64::MIN => {
                let base = self.neg(base);
                Some(self.ramp(base, -stride, lanes))
            }
            (UnaryFn::Not, Expr::Compare(f, x, y)) => {
                let opposite = opposite(f, self.dtype(x).is_float())?;
                Some(self.compare(opposite, x, y))
            }
            _ => None,
        }
    }

    pub(super) fn binary_identity(&mut self, f: BinaryFn, a: ExprId, b: ExprId) -> Option<ExprId> {
        match self.dtype(a) {
            DType::Bool => self.bool_identity(f, a, b),
            dtype if dtype.is_float() => self.float_identity(f, a, b),
            _ => self.int_identity(f, a, b),
        }
    }

    fn bool_identity(&mut self, f: BinaryFn, a: ExprId, b: ExprId) -> Option<ExprId> {
        match (f, self.as_bool(b)) {
            (BinaryFn::Max, _) => Some(self.or(a, b)),
            (BinaryFn::Min, _) => Some(self.and(a, b)),
            (BinaryFn::And, Some(true)) | (BinaryFn::Or | BinaryFn::Xor, Some(false)) => Some(a),
            (BinaryFn::And, Some(false)) | (BinaryFn::Or, Some(true)) => Some(b),
            (BinaryFn::Xor, Some(true)) => Some(self.not(a)),
            (BinaryFn::And | BinaryFn::Or, None) if a == b => Some(a),
            _ => None,
        }
    }

    fn float_identity(&mut self, f: BinaryFn, a: ExprId, b: ExprId) -> Option<ExprId> {
        let (left, right) = (self.as_const(a), self.as_const(b));
        let right_is = |value| right.is_some_and(|c| c.is_float(value));
        let left_is = |value| left.is_some_and(|c| c.is_float(value));
        match f {
            BinaryFn::Add if right_is(-0.0) => Some(a),
            BinaryFn::Add if left_is(-0.0) => Some(b),
            BinaryFn::Sub if right_is(0.0) => Some(a),
            BinaryFn::Mul | BinaryFn::Div if right_is(1.0) => Some(a),
            BinaryFn::Mul if left_is(1.0) => Some(b),
            BinaryFn::Mul | BinaryFn::Div if right_is(-1.0) => Some(self.neg(a)),
            BinaryFn::Mul if left_is(-1.0) => Some(self.neg(b)),
            // The product is the correctly rounded square, for every operand.
            BinaryFn::Pow if right_is(2.0) => Some(self.mul(a, a)),
            BinaryFn::Pow if right_is(1.0) => Some(a),
            BinaryFn::Max | BinaryFn::Min if a == b => Some(a),
            BinaryFn::Div => {
                let reciprocal = exact_reciprocal(right?)?;
                let reciprocal = self.add(Expr::Const(reciprocal));
                Some(self.mul(a, reciprocal))
            }
            _ => None,
        }
    }

    fn int_identity(&mut self, f: BinaryFn, a: ExprId, b: ExprId) -> Option<ExprId> {
        let dtype = self.dtype(a);
        let right = self.as_const(b).and_then(Const::as_int);
        let zero = |exprs: &mut Self| {
            let zero = exprs.zero(dtype);
            exprs.splat(zero, exprs.lanes(a))
        };
        match (f, right) {
            (
                BinaryFn::Add | BinaryFn::Sub | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr,
                Some(0),
            )
            | (BinaryFn::Mul | BinaryFn::Div | BinaryFn::Pow, Some(1)) => return Some(a),
            (BinaryFn::Mul | BinaryFn::And, Some(0)) => return Some(zero(self)),
            (BinaryFn::FloorMod | BinaryFn::TruncMod, Some(1)) => return Some(zero(self)),
            (BinaryFn::Sub, Some(value)) => {
                let negated = self.add(Expr::Const(Const::int(dtype, -value)));
                return Some(self.add2(a, negated));
            }
            (BinaryFn::Sub | BinaryFn::Xor, None) if a == b => return Some(zero(self)),
            (BinaryFn::Max | BinaryFn::Min | BinaryFn::And | BinaryFn::Or, _) if a == b => return Some(a),
            _ => {}
        }
        self.ramp_identity(f, a, b).or_else(|| self.reassociated(f, a, b))
    }

    /// `(x f c1) f c2` is `x f (c1 f c2)`.
    fn reassociated(&mut self, f: BinaryFn, a: ExprId, b: ExprId) -> Option<ExprId> {
        let is_associative =
            matches!(f, BinaryFn::Add | BinaryFn::Mul | BinaryFn::Max | BinaryFn::Min | BinaryFn::And)
                || matches!(f, BinaryFn::Or | BinaryFn::Xor);
        match *self.get(a) {
            Expr::Binary(g, x, c1) if g == f && is_associative => {
                self.as_const(c1)?;
                self.as_const(b)?;
                let constant = self.binary(f, c1, b);
                Some(self.binary(f, x, constant))
            }
            _ => None,
        }
    }

    /// Sums and constant multiples of ramps are ramps.
    fn ramp_identity(&mut self, f: BinaryFn, a: ExprId, b: ExprId) -> Option<ExprId> {
        match (f, self.get(a).clone(), self.get(b).clone()) {
            (BinaryFn::Add, Expr::Ramp { base, stride, lanes }, Expr::Splat(x, _))
            | (BinaryFn::Add, Expr::Splat(x, _), Expr::Ramp { base, stride, lanes }) => {
                let base = self.add2(base, x);
                Some(self.ramp(base, stride, lanes))
            }
            (BinaryFn::Sub, Expr::Ramp { base, stride, lanes }, Expr::Splat(x, _)) => {
                let base = self.sub(base, x);
                Some(self.ramp(base, stride, lanes))
            }
            (BinaryFn::Sub, Expr::Splat(x, _), Expr::Ramp { base, stride, lanes }) => {
                let base = self.sub(x, base);
                Some(self.ramp(base, stride.checked_neg()?, lanes))
            }
            (
                BinaryFn::Add,
                Expr::Ramp { base: x, stride: s, lanes },
                Expr::Ramp { base: y, stride: t, .. },
            ) => {
                let base = self.add2(x, y);
                Some(self.ramp(base, s.checked_add(t)?, lanes))
            }
            (
                BinaryFn::Sub,
                Expr::Ramp { base: x, stride: s, lanes },
                Expr::Ramp { base: y, stride: t, .. },
            ) => {
                let base = self.sub(x, y);
                Some(self.ramp(base, s.checked_sub(t)?, lanes))
            }
            (BinaryFn::Mul, Expr::Ramp { base, stride, lanes }, Expr::Splat(x, _)) => {
                let factor = i64::try_from(self.as_const(x)?.as_int()?).ok()?;
                let base = self.mul(base, x);
                Some(self.ramp(base, stride.checked_mul(factor)?, lanes))
            }
            _ => None,
        }
    }

    pub(super) fn compare_identity(&mut self, f: CompareFn, a: ExprId, b: ExprId) -> Option<ExprId> {
        if self.as_const(a).is_some() && self.as_const(b).is_none() {
            return Some(self.compare(swapped(f), b, a));
        }
        if self.dtype(a).is_float() {
            return None;
        }
        if a == b {
            let value = self.bool(matches!(f, CompareFn::Eq | CompareFn::Le | CompareFn::Ge));
            return Some(self.splat(value, self.lanes(a)));
        }
        match (f, self.as_bool(b)?) {
            (CompareFn::Eq, true) | (CompareFn::Ne, false) => Some(a),
            (CompareFn::Eq, false) | (CompareFn::Ne, true) => Some(self.not(a)),
            _ => None,
        }
    }
}

/// True if `to(middle(x))` is `to(x)` for every `x` of type `from`: nothing is lost on the way.
pub(super) fn drops_out(from: DType, middle: DType, to: DType) -> bool {
    // Converting an integer wraps where converting the equal float saturates.
    let changes_overflow = !from.is_float() && middle.is_float() && !to.is_float() && to != DType::Bool;
    is_lossless(from, middle) && !changes_overflow
}

/// True if every value of `from` is a value of `to`.
fn is_lossless(from: DType, to: DType) -> bool {
    let bits = |dtype: DType| 8 * dtype.size_bytes();
    let mantissa_bits = match to {
        DType::F16 => 11,
        DType::BF16 => 8,
        DType::F32 => 24,
        DType::F64 => 53,
        _ => 0,
    };
    match from {
        _ if from == to => true,
        DType::Bool => true,
        _ if from.is_float() => to.is_float() && bits(from) < bits(to),
        _ if to.is_float() => bits(from) <= mantissa_bits,
        _ if from.is_unsigned_int() && to.is_unsigned_int() => bits(from) <= bits(to),
        _ if to.is_signed_int() => bits(from) + usize::from(from.is_unsigned_int()) <= bits(to),
        _ => false,
    }
}

/// The constant `1 / c`, if it is exact and division by `c` is therefore multiplication by it.
fn exact_reciprocal(c: Const) -> Option<Const> {
    let value = c.as_float()?;
    let reciprocal = Const::float(c.dtype, 1.0 / value);
    let is_power_of_two = value.is_normal() && value.to_bits().trailing_zeros() >= 52;
    let is_exact = reciprocal.as_float()? * value == 1.0;
    (is_power_of_two && is_exact).then_some(reciprocal)
}

/// The comparison that holds of `(b, a)` where `f` holds of `(a, b)`.
fn swapped(f: CompareFn) -> CompareFn {
    match f {
        CompareFn::Eq | CompareFn::Ne => f,
        CompareFn::Lt => CompareFn::Gt,
        CompareFn::Le => CompareFn::Ge,
        CompareFn::Gt => CompareFn::Lt,
        CompareFn::Ge => CompareFn::Le,
    }
}

/// The comparison that holds where `f` does not; NaN leaves only equality with one.
fn opposite(f: CompareFn, is_float: bool) -> Option<CompareFn> {
    match f {
        CompareFn::Eq => Some(CompareFn::Ne),
        CompareFn::Ne => Some(CompareFn::Eq),
        _ if is_float => None,
        CompareFn::Lt => Some(CompareFn::Ge),
        CompareFn::Le => Some(CompareFn::Gt),
        CompareFn::Gt => Some(CompareFn::Le),
        CompareFn::Ge => Some(CompareFn::Lt),
    }
}
