//! Ranges and congruences of integer expressions: for each, an interval `low..=high` and a class
//! `residue (mod modulus)` that contain every value it can take, from what is declared of its variables
//! ([`VarInfo::range`](crate::VarInfo) and `multiple_of`).
//!
//! Arithmetic that could leave the element type wraps there, so a result whose exact interval does not fit is
//! only known to be of its type. `u64` is taken as unknown.

use crate::affine::{Linear, gcd};
use crate::expr::fold::int_range;
use crate::expr::{Expr, ExprId, Exprs, VarInfo};
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};
use rustc_hash::FxHashMap;

/// What is known of an integer's value: `low <= value <= high` and `value = residue (mod modulus)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntRange {
    /// Smallest possible value.
    pub low: i64,
    /// Largest possible value.
    pub high: i64,
    /// The value is `residue` plus a multiple of this; 0 if it is `residue` exactly.
    pub modulus: i64,
    /// In `0..modulus`, or the value.
    pub residue: i64,
}

impl IntRange {
    /// Nothing known.
    pub const FULL: Self = Self { low: i64::MIN, high: i64::MAX, modulus: 1, residue: 0 };

    /// Exactly `value`.
    pub const fn exactly(value: i64) -> Self {
        Self { low: value, high: value, modulus: 0, residue: value }
    }

    /// Any of `low..=high`.
    pub fn interval(low: i64, high: i64) -> Self {
        Self { low, high, modulus: 1, residue: 0 }.tightened()
    }

    /// The value, if there is only one.
    pub fn as_exact(self) -> Option<i64> {
        (self.low == self.high).then_some(self.low)
    }

    /// True if every value is within `low..=high`.
    pub fn is_within(self, low: i64, high: i64) -> bool {
        low <= self.low && self.high <= high
    }

    /// True if every value is a multiple of `divisor`, which is positive.
    pub fn is_multiple_of(self, divisor: i64) -> bool {
        self.modulus % divisor == 0 && self.residue % divisor == 0
    }

    /// The same set with an interval whose ends are in the class, and an exact class if they meet.
    fn tightened(self) -> Self {
        let Self { mut low, mut high, modulus, residue } = self;
        if modulus == 0 {
            return Self::exactly(residue);
        }
        if modulus > 1 && low != i64::MIN && high != i64::MAX {
            let up = i128::from(low) + (i128::from(residue) - i128::from(low)).rem_euclid(modulus.into());
            let down = i128::from(high) - (i128::from(high) - i128::from(residue)).rem_euclid(modulus.into());
            if up <= down {
                (low, high) = (up as i64, down as i64);
            }
        }
        if low == high { Self::exactly(low) } else { Self { low, high, modulus, residue } }
    }

    /// Every value of either.
    fn join(self, other: Self) -> Self {
        let difference = self.residue.abs_diff(other.residue).try_into().unwrap_or(1);
        let modulus = gcd(gcd(self.modulus, other.modulus), difference);
        Self { low: self.low.min(other.low), high: self.high.max(other.high), ..class(modulus, self.residue) }
            .tightened()
    }
}

/// The class alone.
fn class(modulus: i64, residue: i64) -> IntRange {
    let residue = if modulus == 0 { residue } else { residue.rem_euclid(modulus) };
    IntRange { modulus, residue, ..IntRange::FULL }
}

/// Ranges of the expressions of one arena, computed on demand and remembered.
#[derive(Clone, Default, Debug)]
pub struct Bounds {
    known: FxHashMap<ExprId, IntRange>,
}

impl Bounds {
    /// Nothing computed yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The range of an integer or boolean expression; of all lanes together if it is a vector.
    pub fn of(&mut self, exprs: &Exprs, id: ExprId) -> IntRange {
        if let Some(&range) = self.known.get(&id) {
            return range;
        }
        for id in exprs.reachable_unless(&[id], |id| self.known.contains_key(&id)) {
            let range = self.node(exprs, id);
            self.known.insert(id, range);
        }
        self.known[&id]
    }

    /// The interval of a normal form in exact arithmetic, saturating far outside 64 bits.
    pub fn of_linear(&mut self, exprs: &Exprs, linear: &Linear) -> (i128, i128) {
        let constant = i128::from(linear.constant_term());
        linear.terms().iter().fold((constant, constant), |(low, high), &(atom, c)| {
            let range = self.of(exprs, atom);
            let ends = (i128::from(range.low) * i128::from(c), i128::from(range.high) * i128::from(c));
            (low.saturating_add(ends.0.min(ends.1)), high.saturating_add(ends.0.max(ends.1)))
        })
    }

    /// The largest divisor that the sum without its constant is known to be a multiple of; 0 of no terms.
    pub fn divisor(&mut self, exprs: &Exprs, linear: &Linear) -> i64 {
        linear.terms().iter().fold(0, |divisor, &(atom, c)| gcd(divisor, self.term_divisor(exprs, atom, c)))
    }

    /// A number that `c * atom` is always a multiple of.
    pub fn term_divisor(&mut self, exprs: &Exprs, atom: ExprId, c: i64) -> i64 {
        let range = self.of(exprs, atom);
        let divisor = gcd(range.modulus, range.residue);
        divisor.checked_mul(c).map_or(gcd(c, 0), |product| gcd(product, 0))
    }

    /// The range of a node whose operands are known.
    fn node(&self, exprs: &Exprs, id: ExprId) -> IntRange {
        let dtype = exprs.dtype(id);
        if dtype.is_float() || dtype == DType::U64 {
            return IntRange::FULL;
        }
        let range = match exprs.get(id) {
            Expr::Const(_) => exprs.as_int(id).map(IntRange::exactly),
            Expr::Var(var) => declared(exprs.var_info(*var)),
            Expr::Unary(f, a) => unary(*f, dtype, self.known[a]),
            Expr::Binary(f, a, b) if dtype == DType::Bool => logic(*f, self.known[a], self.known[b]),
            Expr::Binary(f, a, b) => binary(*f, dtype, self.known[a], self.known[b]),
            Expr::FloorDiv(a, b) => floor_div(self.known[a], self.known[b]),
            Expr::FloorRem(a, b) => floor_rem(self.known[a], self.known[b]),
            Expr::Compare(f, a, b) if is_tracked(exprs.dtype(*a)) => {
                compare(*f, self.known[a], self.known[b])
            }
            Expr::Select(condition, a, b) => Some(match self.known[condition].as_exact() {
                Some(0) => self.known[b],
                Some(_) => self.known[a],
                None => self.known[a].join(self.known[b]),
            }),
            Expr::Cast(to, a) if is_tracked(exprs.dtype(*a)) => cast(*to, self.known[a]),
            Expr::Splat(a, _) => Some(self.known[a]),
            Expr::Ramp { base, stride, lanes } => ramp(dtype, self.known[base], *stride, *lanes),
            Expr::ReduceLanes(ReduceOp::Max | ReduceOp::Min, a) => Some(self.known[a]),
            _ => None,
        };
        range.unwrap_or_else(|| of_type(dtype))
    }
}

/// True for the types whose values are followed.
fn is_tracked(dtype: DType) -> bool {
    !dtype.is_float() && dtype != DType::U64
}

/// Every value of an integer or boolean type but `u64`.
fn of_type(dtype: DType) -> IntRange {
    let (low, high) = int_range(dtype);
    IntRange::interval(low as i64, high as i64)
}

fn declared(info: &VarInfo) -> Option<IntRange> {
    let (low, high) = info.range.filter(|(low, high)| low <= high).unwrap_or_else(|| {
        let all = of_type(info.ty.dtype);
        (all.low, all.high)
    });
    Some(IntRange { low, high, ..class(info.multiple_of.max(1), 0) }.tightened())
}

/// `low..=high` in the class, or `None` if the type does not hold it.
fn fitting(dtype: DType, low: i128, high: i128, class: IntRange) -> Option<IntRange> {
    let (least, greatest) = int_range(dtype);
    let fits = least <= low && high <= greatest;
    fits.then(|| IntRange { low: low as i64, high: high as i64, ..class }.tightened())
}

fn unary(f: UnaryFn, dtype: DType, a: IntRange) -> Option<IntRange> {
    let (low, high) = (i128::from(a.low), i128::from(a.high));
    match f {
        UnaryFn::Neg => fitting(dtype, -high, -low, scaled_class(a, -1)),
        UnaryFn::Abs if a.low >= 0 => Some(a),
        UnaryFn::Abs => fitting(dtype, 0.max(low.min(-high)), high.max(-low), class(1, 0)),
        UnaryFn::Sign => Some(IntRange::interval(a.low.signum(), a.high.signum())),
        UnaryFn::Not if dtype == DType::Bool => Some(IntRange::interval(1 - a.high, 1 - a.low)),
        _ => None,
    }
}

fn logic(f: BinaryFn, a: IntRange, b: IntRange) -> Option<IntRange> {
    match f {
        BinaryFn::And | BinaryFn::Min => Some(IntRange::interval(a.low.min(b.low), a.high.min(b.high))),
        BinaryFn::Or | BinaryFn::Max => Some(IntRange::interval(a.low.max(b.low), a.high.max(b.high))),
        _ => None,
    }
}

fn binary(f: BinaryFn, dtype: DType, a: IntRange, b: IntRange) -> Option<IntRange> {
    let (al, ah) = (i128::from(a.low), i128::from(a.high));
    let (bl, bh) = (i128::from(b.low), i128::from(b.high));
    match f {
        BinaryFn::Add => fitting(dtype, al + bl, ah + bh, sum_class(a, b)),
        BinaryFn::Sub => fitting(dtype, al - bh, ah - bl, sum_class(a, scaled_class(b, -1))),
        BinaryFn::Mul => {
            let corners = [al * bl, al * bh, ah * bl, ah * bh];
            let low = corners.into_iter().min().expect("four corners");
            let high = corners.into_iter().max().expect("four corners");
            fitting(dtype, low, high, product_class(a, b))
        }
        BinaryFn::Max => {
            Some(IntRange { low: a.low.max(b.low), high: a.high.max(b.high), ..a.join(b) }.tightened())
        }
        BinaryFn::Min => {
            Some(IntRange { low: a.low.min(b.low), high: a.high.min(b.high), ..a.join(b) }.tightened())
        }
        BinaryFn::Div if bl > 0 && al >= 0 => floor_div(a, b),
        BinaryFn::Div if bl > 0 => fitting(dtype, al / bl, (ah / bl).max(ah / bh), class(1, 0)),
        BinaryFn::FloorMod if bl > 0 => floor_rem(a, b),
        BinaryFn::TruncMod if bl > 0 && al >= 0 => floor_rem(a, b),
        BinaryFn::TruncMod if bl > 0 => Some(IntRange::interval(a.low.max(1 - b.high), b.high - 1)),
        BinaryFn::And if al >= 0 && bl >= 0 => Some(IntRange::interval(0, a.high.min(b.high))),
        BinaryFn::Or | BinaryFn::Xor if al >= 0 && bl >= 0 => {
            // No bit beyond the operands' is set.
            let bits = 64 - (a.high | b.high).leading_zeros();
            Some(IntRange::interval(0, i64::MAX.checked_shr(63 - bits).unwrap_or(0)))
        }
        BinaryFn::Shl if a.low >= 0 => {
            let factor = 1i64.checked_shl(u32::try_from(b.as_exact()?).ok()?)?;
            binary(BinaryFn::Mul, dtype, a, IntRange::exactly(factor).positive()?)
        }
        BinaryFn::Shr => {
            let divisor = 1i64.checked_shl(u32::try_from(b.as_exact()?).ok()?)?;
            floor_div(a, IntRange::exactly(divisor).positive()?)
        }
        _ => None,
    }
}

impl IntRange {
    fn positive(self) -> Option<Self> {
        (self.low > 0).then_some(self)
    }
}

fn floor_div(a: IntRange, b: IntRange) -> Option<IntRange> {
    b.positive()?;
    let low = a.low.div_euclid(if a.low < 0 { b.low } else { b.high });
    let high = a.high.div_euclid(if a.high < 0 { b.high } else { b.low });
    let class = match b.as_exact() {
        Some(d) if a.modulus % d == 0 => class(a.modulus / d, a.residue.div_euclid(d)),
        _ => class(1, 0),
    };
    Some(IntRange { low, high, ..class }.tightened())
}

fn floor_rem(a: IntRange, b: IntRange) -> Option<IntRange> {
    b.positive()?;
    let Some(d) = b.as_exact() else {
        let high = if a.low >= 0 { a.high.min(b.high - 1) } else { b.high - 1 };
        return Some(IntRange::interval(0, high));
    };
    if a.low.div_euclid(d) == a.high.div_euclid(d) {
        let base = a.low - a.low.rem_euclid(d);
        return binary(BinaryFn::Sub, DType::I64, a, IntRange::exactly(base));
    }
    Some(IntRange { low: 0, high: d - 1, ..class(gcd(a.modulus, d), a.residue) }.tightened())
}

fn compare(f: CompareFn, a: IntRange, b: IntRange) -> Option<IntRange> {
    let truth = match f {
        CompareFn::Lt => below(a, b),
        CompareFn::Ge => below(a, b).map(|truth| !truth),
        CompareFn::Gt => below(b, a),
        CompareFn::Le => below(b, a).map(|truth| !truth),
        CompareFn::Eq => equal(a, b),
        CompareFn::Ne => equal(a, b).map(|truth| !truth),
    };
    truth.map(|truth| IntRange::exactly(truth.into()))
}

fn below(a: IntRange, b: IntRange) -> Option<bool> {
    match (a.high < b.low, a.low >= b.high) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

fn equal(a: IntRange, b: IntRange) -> Option<bool> {
    let apart = a.residue.abs_diff(b.residue) as i128;
    let modulus = i128::from(gcd(a.modulus, b.modulus));
    let same_class = if modulus == 0 { apart == 0 } else { apart % modulus == 0 };
    if a.high < b.low || b.high < a.low || !same_class {
        return Some(false);
    }
    (a.as_exact().is_some() && a.as_exact() == b.as_exact()).then_some(true)
}

fn cast(to: DType, a: IntRange) -> Option<IntRange> {
    if to == DType::Bool {
        return equal(a, IntRange::exactly(0)).map(|is_zero| IntRange::exactly((!is_zero).into()));
    }
    fitting(to, a.low.into(), a.high.into(), a)
}

fn ramp(dtype: DType, base: IntRange, stride: i64, lanes: usize) -> Option<IntRange> {
    let reach = i128::from(stride) * (lanes as i128 - 1);
    let class = class(gcd(base.modulus, stride), base.residue);
    fitting(dtype, i128::from(base.low) + reach.min(0), i128::from(base.high) + reach.max(0), class)
}

fn sum_class(a: IntRange, b: IntRange) -> IntRange {
    match a.residue.checked_add(b.residue) {
        Some(residue) => class(gcd(a.modulus, b.modulus), residue),
        None => class(1, 0),
    }
}

fn scaled_class(a: IntRange, factor: i64) -> IntRange {
    product_class(a, IntRange::exactly(factor))
}

/// `(r + m s)(q + n t) = r q  (mod gcd(m n, m q, n r))`.
fn product_class(a: IntRange, b: IntRange) -> IntRange {
    let products = (|| {
        let modulus = gcd(a.modulus.checked_mul(b.modulus)?, a.modulus.checked_mul(b.residue)?);
        Some(class(gcd(modulus, b.modulus.checked_mul(a.residue)?), a.residue.checked_mul(b.residue)?))
    })();
    products.unwrap_or(class(1, 0))
}

#[cfg(test)]
mod tests;
