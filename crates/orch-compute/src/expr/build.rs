//! Smart constructors: the way to build expressions.
//!
//! Each takes operands of any lanes (a scalar beside a vector is splatted), folds constants exactly
//! ([`crate::expr::fold`]), drops identities and orders the operands of commutative integer functions, so that equal
//! computations more often get equal ids. What is uniform over the lanes stays scalar: an operation on splats is
//! the splat of the operation. Float identities are only those that hold for every value, NaN, infinities and
//! signed zeros included: `x * 1` is `x`, but `x + 0.0` and `x * 0.0` stay.
//!
//! What needs ranges of variables is [`simplify`](mod@crate::simplify)'s.

mod access;
mod identities;

use crate::expr::fold::{fold_binary, fold_cast, fold_compare, fold_unary};
use crate::expr::{Const, Expr, ExprId, Exprs, LaneGroup, LaneHalf};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};

/// Constants.
impl Exprs {
    /// An integer or boolean constant, wrapped to the width of `dtype`.
    pub fn int(&mut self, dtype: DType, value: i64) -> ExprId {
        self.add(Expr::Const(Const::int(dtype, value.into())))
    }

    /// A boolean constant.
    pub fn bool(&mut self, value: bool) -> ExprId {
        self.int(DType::Bool, value.into())
    }

    /// Zero (`false`) of any type.
    pub fn zero(&mut self, dtype: DType) -> ExprId {
        self.add(Expr::Const(Const { dtype, bits: 0 }))
    }

    /// The constant that an expression is, in every lane if it is a vector.
    pub fn as_const(&self, id: ExprId) -> Option<Const> {
        match self.get(id) {
            Expr::Const(c) => Some(*c),
            Expr::Splat(a, _) => self.as_const(*a),
            _ => None,
        }
    }

    /// The value of a boolean constant (of every lane, if it is a vector).
    pub fn as_bool(&self, id: ExprId) -> Option<bool> {
        self.as_const(id).filter(|c| c.dtype == DType::Bool).map(|c| c.bits != 0)
    }
}

/// Lanes.
impl Exprs {
    /// `value` in each of `lanes` lanes; `value` itself if it has that many already.
    pub fn splat(&mut self, value: ExprId, lanes: usize) -> ExprId {
        if self.lanes(value) == lanes {
            return value;
        }
        self.add(Expr::Splat(value, lanes))
    }

    /// Both operands with the lanes of the wider one.
    pub fn lift(&mut self, a: ExprId, b: ExprId) -> (ExprId, ExprId) {
        let lanes = self.lanes(a).max(self.lanes(b));
        (self.splat(a, lanes), self.splat(b, lanes))
    }

    /// `base + stride * lane` for each of `lanes` lanes, `base` an integer scalar.
    pub fn ramp(&mut self, base: ExprId, stride: i64, lanes: usize) -> ExprId {
        match (lanes, stride) {
            (1, _) => base,
            (_, 0) => self.splat(base, lanes),
            _ => self.add(Expr::Ramp { base, stride, lanes }),
        }
    }

    /// The scalar that every lane holds, if the expression says so.
    pub fn uniform(&self, id: ExprId) -> Option<ExprId> {
        match self.get(id) {
            Expr::Splat(a, _) => Some(*a),
            _ if self.lanes(id) == 1 => Some(id),
            _ => None,
        }
    }

    /// All lanes of `operation` computed once on the scalars behind uniform `operands`, if they are uniform and
    /// one of them is a vector.
    fn on_scalars<const N: usize>(
        &mut self,
        operands: [ExprId; N],
        operation: impl FnOnce(&mut Self, [ExprId; N]) -> ExprId,
    ) -> Option<ExprId> {
        let lanes = operands.iter().map(|&id| self.lanes(id)).max().filter(|&lanes| lanes > 1)?;
        let mut scalars = operands;
        for scalar in &mut scalars {
            *scalar = self.uniform(*scalar)?;
        }
        let scalar = operation(self, scalars);
        Some(self.splat(scalar, lanes))
    }
}

/// Elementwise functions.
impl Exprs {
    /// A function of one operand.
    pub fn unary(&mut self, f: UnaryFn, a: ExprId) -> ExprId {
        if let Some(uniform) = self.on_scalars([a], |exprs, [a]| exprs.unary(f, a)) {
            return uniform;
        }
        if let Some(folded) = self.as_const(a).and_then(|a| fold_unary(f, a)) {
            return self.add(Expr::Const(folded));
        }
        self.unary_identity(f, a).unwrap_or_else(|| self.add(Expr::Unary(f, a)))
    }

    /// A function of two operands of one element type.
    pub fn binary(&mut self, f: BinaryFn, a: ExprId, b: ExprId) -> ExprId {
        if let Some(uniform) = self.on_scalars([a, b], |exprs, [a, b]| exprs.binary(f, a, b)) {
            return uniform;
        }
        let (a, b) = self.lift(a, b);
        if let (Some(x), Some(y)) = (self.as_const(a), self.as_const(b))
            && let Some(folded) = fold_binary(f, x, y)
        {
            return self.add(Expr::Const(folded));
        }
        let (a, b) = self.ordered(f, a, b);
        if let Some(simpler) = self.binary_identity(f, a, b) {
            return simpler;
        }
        self.add(Expr::Binary(f, a, b))
    }

    /// A comparison.
    pub fn compare(&mut self, f: CompareFn, a: ExprId, b: ExprId) -> ExprId {
        if let Some(uniform) = self.on_scalars([a, b], |exprs, [a, b]| exprs.compare(f, a, b)) {
            return uniform;
        }
        let (a, b) = self.lift(a, b);
        if let (Some(x), Some(y)) = (self.as_const(a), self.as_const(b)) {
            return self.bool(fold_compare(f, x, y));
        }
        self.compare_identity(f, a, b).unwrap_or_else(|| self.add(Expr::Compare(f, a, b)))
    }

    /// `condition ? if_true : if_false`; both may be evaluated.
    pub fn select(&mut self, condition: ExprId, if_true: ExprId, if_false: ExprId) -> ExprId {
        let operands = [condition, if_true, if_false];
        if let Some(uniform) = self.on_scalars(operands, |exprs, [c, a, b]| exprs.select(c, a, b)) {
            return uniform;
        }
        let (if_true, if_false) = self.lift(if_true, if_false);
        let (condition, if_true) = self.lift(condition, if_true);
        let (if_true, if_false) = self.lift(if_true, if_false);
        if if_true == if_false || self.is_zero_unless(if_true, condition) && self.is_zero_bits(if_false) {
            return if_true;
        }
        match (self.as_bool(condition), self.get(condition).clone()) {
            (Some(true), _) => if_true,
            (Some(false), _) => if_false,
            (None, Expr::Unary(UnaryFn::Not, opposite)) => self.select(opposite, if_false, if_true),
            _ => match (self.as_bool(if_true), self.as_bool(if_false)) {
                (Some(true), Some(false)) => condition,
                (Some(false), Some(true)) => self.not(condition),
                _ => self.add(Expr::Select(condition, if_true, if_false)),
            },
        }
    }

    /// Conversion to another element type, as [`orch_ir::ScalarFn::Cast`].
    pub fn cast(&mut self, dtype: DType, a: ExprId) -> ExprId {
        if self.dtype(a) == dtype {
            return a;
        }
        if let Some(uniform) = self.on_scalars([a], |exprs, [a]| exprs.cast(dtype, a)) {
            return uniform;
        }
        if let Some(folded) = self.as_const(a).and_then(|a| fold_cast(dtype, a)) {
            return self.add(Expr::Const(folded));
        }
        match *self.get(a) {
            Expr::Cast(middle, inner) if identities::drops_out(self.dtype(inner), middle, dtype) => {
                self.cast(dtype, inner)
            }
            _ => self.add(Expr::Cast(dtype, a)),
        }
    }

    /// True for NaN.
    pub fn is_nan(&mut self, a: ExprId) -> ExprId {
        if let Some(uniform) = self.on_scalars([a], |exprs, [a]| exprs.is_nan(a)) {
            return uniform;
        }
        match self.as_const(a).and_then(Const::as_float) {
            Some(value) => self.bool(value.is_nan()),
            None => self.add(Expr::IsNan(a)),
        }
    }

    /// True for either infinity.
    pub fn is_inf(&mut self, a: ExprId) -> ExprId {
        if let Some(uniform) = self.on_scalars([a], |exprs, [a]| exprs.is_inf(a)) {
            return uniform;
        }
        match self.as_const(a).and_then(Const::as_float) {
            Some(value) => self.bool(value.is_infinite()),
            None => self.add(Expr::IsInf(a)),
        }
    }

    /// `a * b + c` with one rounding.
    pub fn fma(&mut self, a: ExprId, b: ExprId, c: ExprId) -> ExprId {
        if let Some(uniform) = self.on_scalars([a, b, c], |exprs, [a, b, c]| exprs.fma(a, b, c)) {
            return uniform;
        }
        let (a, b) = self.lift(a, b);
        let (a, c) = self.lift(a, c);
        let (a, b) = self.lift(a, b);
        self.add(Expr::Fma(a, b, c))
    }

    /// Products of pairs of bf16 added to f32: [`Expr::DotPairs`].
    pub fn dot_pairs(&mut self, a: ExprId, b: ExprId, c: ExprId) -> ExprId {
        self.add(Expr::DotPairs(a, b, c))
    }

    /// Lanes of two vectors by turns: [`Expr::Interleave`].
    pub fn interleave(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.interleave_groups(LaneGroup::One, a, b)
    }

    /// Groups of lanes of two vectors by turns: [`Expr::Interleave`].
    pub fn interleave_groups(&mut self, group: LaneGroup, a: ExprId, b: ExprId) -> ExprId {
        self.add(Expr::Interleave(group, a, b))
    }

    /// The lower or the upper half of a vector's lanes: [`Expr::Half`].
    pub fn half(&mut self, half: LaneHalf, a: ExprId) -> ExprId {
        match *self.get(a) {
            Expr::Splat(scalar, lanes) => self.splat(scalar, lanes / 2),
            _ => self.add(Expr::Half(half, a)),
        }
    }

    /// The transpose of a matrix whose rows are these vectors, of one type, and whose elements are groups of their lanes: as many vectors as
    /// those have groups, with as many groups as those are. Both numbers are powers of two, and there are no fewer vectors than groups.
    ///
    /// The elements in their order are cut in two halves, which are interleaved: that moves the highest bit of an element's number, of its
    /// row, behind the lowest one, of its column. A round for each bit of the row exchanges them.
    pub fn transpose(&mut self, group: LaneGroup, mut vectors: Vec<ExprId>) -> Vec<ExprId> {
        let rows = vectors.len();
        let most = rows * group.lanes();
        assert!(rows.is_power_of_two() && vectors.iter().all(|&vector| self.lanes(vector) <= most));
        for _ in 0..rows.ilog2() {
            let (first, second) = vectors.split_at(vectors.len() / 2);
            let mut shuffled = Vec::with_capacity(vectors.len());
            for (&a, &b) in first.iter().zip(second) {
                let both = self.interleave_groups(group, a, b);
                match self.lanes(both) <= most {
                    true => shuffled.push(both),
                    false => shuffled.extend(LaneHalf::BOTH.map(|half| self.half(half, both))),
                }
            }
            vectors = shuffled;
        }
        vectors
    }

    /// Combines the lanes of a vector into a scalar.
    pub fn reduce_lanes(&mut self, op: ReduceOp, a: ExprId) -> ExprId {
        match self.get(a) {
            _ if self.lanes(a) == 1 => a,
            Expr::Splat(value, _) if matches!(op, ReduceOp::Max | ReduceOp::Min) => *value,
            _ => self.add(Expr::ReduceLanes(op, a)),
        }
    }
}

/// Arithmetic by name.
impl Exprs {
    /// `a + b`.
    pub fn add2(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(BinaryFn::Add, a, b)
    }

    /// `a - b`.
    pub fn sub(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(BinaryFn::Sub, a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(BinaryFn::Mul, a, b)
    }

    /// The smaller of two.
    pub fn min(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(BinaryFn::Min, a, b)
    }

    /// The larger of two.
    pub fn max(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(BinaryFn::Max, a, b)
    }

    /// `-a`.
    pub fn neg(&mut self, a: ExprId) -> ExprId {
        self.unary(UnaryFn::Neg, a)
    }

    /// `a + value`, of an index.
    pub fn add_const(&mut self, a: ExprId, value: i64) -> ExprId {
        let value = self.index(value);
        self.add2(a, value)
    }

    /// `a * value`, of an index.
    pub fn mul_const(&mut self, a: ExprId, value: i64) -> ExprId {
        let value = self.index(value);
        self.mul(a, value)
    }

    /// `floor(a / b)` of integers, `b > 0`.
    pub fn floor_div(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.floor_op(Expr::FloorDiv, |x, y| x.div_euclid(y), a, b)
    }

    /// `a - floor(a / b) * b` of integers, `b > 0`.
    pub fn floor_rem(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.floor_op(Expr::FloorRem, |x, y| x.rem_euclid(y), a, b)
    }

    fn floor_op(
        &mut self,
        node: fn(ExprId, ExprId) -> Expr,
        fold: fn(i128, i128) -> i128,
        a: ExprId,
        b: ExprId,
    ) -> ExprId {
        let again = |exprs: &mut Self, [a, b]: [ExprId; 2]| exprs.floor_op(node, fold, a, b);
        if let Some(uniform) = self.on_scalars([a, b], again) {
            return uniform;
        }
        let (a, b) = self.lift(a, b);
        let dividend = self.as_const(a).and_then(Const::as_int);
        match (dividend, self.as_const(b).and_then(Const::as_int)) {
            (Some(x), Some(y)) if y > 0 => self.add(Expr::Const(Const::int(self.dtype(a), fold(x, y)))),
            (Some(0), _) => a,
            (None, Some(1)) if fold(1, 1) == 1 => a,
            (None, Some(1)) => {
                let zero = self.zero(self.dtype(a));
                self.splat(zero, self.lanes(a))
            }
            _ => self.add(node(a, b)),
        }
    }
}

/// Comparisons and logic by name.
impl Exprs {
    /// `a < b`.
    pub fn lt(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.compare(CompareFn::Lt, a, b)
    }

    /// `a <= b`.
    pub fn le(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.compare(CompareFn::Le, a, b)
    }

    /// `a > b`.
    pub fn gt(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.compare(CompareFn::Gt, a, b)
    }

    /// `a >= b`.
    pub fn ge(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.compare(CompareFn::Ge, a, b)
    }

    /// `a == b`.
    pub fn eq(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.compare(CompareFn::Eq, a, b)
    }

    /// `a != b`.
    pub fn ne(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.compare(CompareFn::Ne, a, b)
    }

    /// `a && b` of booleans, bitwise and of integers.
    pub fn and(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(BinaryFn::And, a, b)
    }

    /// `a || b` of booleans, bitwise or of integers.
    pub fn or(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(BinaryFn::Or, a, b)
    }

    /// `!a` of a boolean, bitwise not of an integer.
    pub fn not(&mut self, a: ExprId) -> ExprId {
        self.unary(UnaryFn::Not, a)
    }

    /// The conjunction of all `conditions`; true of none.
    pub fn all(&mut self, conditions: impl IntoIterator<Item = ExprId>) -> ExprId {
        let mut result = self.bool(true);
        for condition in conditions {
            result = self.and(result, condition);
        }
        result
    }

    /// The conjunction of two optional conditions, where `None` is always true.
    pub fn and_guard(&mut self, a: Option<ExprId>, b: Option<ExprId>) -> Option<ExprId> {
        let condition = match (a, b) {
            (Some(a), Some(b)) => self.and(a, b),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return None,
        };
        (self.as_bool(condition) != Some(true)).then_some(condition)
    }

    /// `low <= a && a < high`, of an index.
    pub fn in_range(&mut self, a: ExprId, low: i64, high: i64) -> ExprId {
        let (low, high) = (self.index(low), self.index(high));
        let (above, below) = (self.ge(a, low), self.lt(a, high));
        self.and(above, below)
    }
}

#[cfg(test)]
mod tests;
