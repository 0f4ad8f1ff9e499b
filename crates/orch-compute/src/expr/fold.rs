//! Evaluation of scalar functions on constants, with the semantics of [`crate::expr::scalar`].
//!
//! Integers are exact and wrap as the element type does. Floats are folded only where the result is the one
//! correctly rounded value (`+ - * /`, square root, rounding, sign changes); anything that yields NaN, depends on
//! the order of signed zeros or calls a transcendental function is left to run time.

use crate::expr::Const;
use crate::expr::scalar::{Number, binary, compare, unary};
use orch_ir::{BinaryFn, CompareFn, DType, UnaryFn};
use std::cmp::Ordering;

/// The largest magnitude below which every integer is an `f64`.
const EXACT_F64: i128 = 1 << 53;

impl Const {
    /// The integer or boolean `value` in `dtype`, wrapped to its width.
    pub fn int(dtype: DType, value: i128) -> Self {
        Self::of(dtype, Number::Int(value).round_to(dtype))
    }

    /// The float `value` rounded to `dtype`, a floating-point type.
    pub fn float(dtype: DType, value: f64) -> Self {
        Self::of(dtype, Number::Float(value))
    }

    /// `value` converted to any type: floats round, integers truncate and saturate.
    pub fn converted(dtype: DType, value: f64) -> Self {
        Self::of(dtype, Number::Float(value).cast(dtype))
    }

    /// The value of an integer or boolean.
    pub fn as_int(self) -> Option<i128> {
        match self.number() {
            Number::Int(value) => Some(value),
            Number::Float(_) => None,
        }
    }

    /// The value of a float; exact.
    pub fn as_float(self) -> Option<f64> {
        match self.number() {
            Number::Float(value) => Some(value),
            Number::Int(_) => None,
        }
    }

    /// True if this float is exactly `value`, the sign of zero included.
    pub fn is_float(self, value: f64) -> bool {
        self.as_float().is_some_and(|v| v.to_bits() == value.to_bits())
    }

    fn of(dtype: DType, value: Number) -> Self {
        Self { dtype, bits: value.to_bits(dtype) }
    }

    fn number(self) -> Number {
        Number::from_bits(self.dtype, self.bits)
    }
}

/// `f(a)`, if it may be folded.
pub fn fold_unary(f: UnaryFn, a: Const) -> Option<Const> {
    let is_exact = match f {
        UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::RoundEven => true,
        UnaryFn::Trunc | UnaryFn::Sqrt | UnaryFn::Recip => true,
        _ => !a.dtype.is_float(),
    };
    is_exact.then(|| not_nan(a.dtype, unary(f, a.dtype, a.number())?)).flatten()
}

/// `f(a, b)`, if it may be folded.
pub fn fold_binary(f: BinaryFn, a: Const, b: Const) -> Option<Const> {
    let is_exact = match f {
        _ if !a.dtype.is_float() => true,
        BinaryFn::Add | BinaryFn::Sub | BinaryFn::Mul | BinaryFn::Div => true,
        BinaryFn::Max | BinaryFn::Min => {
            a.as_float()?.partial_cmp(&b.as_float()?).is_some_and(Ordering::is_ne)
        }
        _ => false,
    };
    is_exact.then(|| not_nan(a.dtype, binary(f, a.dtype, a.number(), b.number())?)).flatten()
}

/// `a f b`.
pub fn fold_compare(f: CompareFn, a: Const, b: Const) -> bool {
    compare(f, a.number(), b.number())
}

/// `a` converted to `dtype`, as [`orch_ir::ScalarFn::Cast`].
pub fn fold_cast(dtype: DType, a: Const) -> Option<Const> {
    let is_exact = match a.number() {
        Number::Int(value) => !dtype.is_float() || value.abs() <= EXACT_F64,
        Number::Float(value) => !value.is_nan(),
    };
    is_exact.then(|| Const::of(dtype, a.number().cast(dtype)))
}

/// The inclusive range of an integer or boolean type.
pub fn int_range(dtype: DType) -> (i128, i128) {
    let width = 8 * dtype.size_bytes() as u32;
    match dtype {
        DType::Bool => (0, 1),
        _ if dtype.is_signed_int() => (-(1 << (width - 1)), (1 << (width - 1)) - 1),
        _ => (0, (1 << width) - 1),
    }
}

/// The constant, unless it is NaN.
fn not_nan(dtype: DType, value: Number) -> Option<Const> {
    let is_nan = matches!(value, Number::Float(value) if value.is_nan());
    (!is_nan).then(|| Const::of(dtype, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(dtype: DType, value: i128) -> Const {
        Const::int(dtype, value)
    }

    #[test]
    fn integers_wrap_at_their_width() {
        let folded = fold_binary(BinaryFn::Add, int(DType::I8, 127), int(DType::I8, 1)).unwrap();
        assert_eq!((folded.bits, folded.as_int()), (0x80, Some(-128)));
        let folded =
            fold_binary(BinaryFn::Mul, int(DType::U64, u64::MAX.into()), int(DType::U64, 3)).unwrap();
        assert_eq!(folded.bits, u64::MAX.wrapping_mul(3));
        let min = int(DType::I32, i32::MIN.into());
        assert_eq!(fold_binary(BinaryFn::Div, min, int(DType::I32, -1)), Some(min));
        assert_eq!(fold_unary(UnaryFn::Abs, min), Some(min));
    }

    #[test]
    fn division_by_zero_is_zero() {
        for f in [BinaryFn::Div, BinaryFn::FloorMod, BinaryFn::TruncMod] {
            assert_eq!(fold_binary(f, int(DType::I64, -7), int(DType::I64, 0)), Some(int(DType::I64, 0)));
        }
    }

    #[test]
    fn the_two_remainders_differ_in_sign() {
        let (x, y) = (int(DType::I64, -7), int(DType::I64, 3));
        assert_eq!(fold_binary(BinaryFn::FloorMod, x, y), Some(int(DType::I64, 2)));
        assert_eq!(fold_binary(BinaryFn::TruncMod, x, y), Some(int(DType::I64, -1)));
        let (x, y) = (int(DType::I64, 7), int(DType::I64, -3));
        assert_eq!(fold_binary(BinaryFn::FloorMod, x, y), Some(int(DType::I64, -2)));
        assert_eq!(fold_binary(BinaryFn::TruncMod, x, y), Some(int(DType::I64, 1)));
    }

    #[test]
    fn shifts_beyond_the_width() {
        let x = int(DType::I8, -3);
        assert_eq!(fold_binary(BinaryFn::Shl, x, int(DType::I8, 8)), Some(int(DType::I8, 0)));
        assert_eq!(fold_binary(BinaryFn::Shr, x, int(DType::I8, 100)), Some(int(DType::I8, -1)));
    }

    #[test]
    fn nan_and_ambiguous_zeros_are_left_alone() {
        let inf = Const::float(DType::F32, f64::INFINITY);
        assert_eq!(fold_binary(BinaryFn::Sub, inf, inf), None);
        let (zero, minus_zero) = (Const::float(DType::F32, 0.0), Const::float(DType::F32, -0.0));
        assert_eq!(fold_binary(BinaryFn::Max, zero, minus_zero), None);
        assert_eq!(fold_binary(BinaryFn::Add, minus_zero, minus_zero), Some(minus_zero));
        assert_eq!(fold_unary(UnaryFn::Sqrt, Const::float(DType::F32, -1.0)), None);
        assert_eq!(fold_unary(UnaryFn::Exp, zero), None);
        assert!(fold_compare(CompareFn::Ne, Const::float(DType::F32, f64::NAN), zero));
        assert!(!fold_compare(CompareFn::Ge, Const::float(DType::F32, f64::NAN), zero));
    }

    #[test]
    fn casts_truncate_saturate_and_wrap() {
        let float = |v| Const::float(DType::F32, v);
        assert_eq!(fold_cast(DType::U8, float(-1.5)), Some(int(DType::U8, 0)));
        assert_eq!(fold_cast(DType::I8, float(1e9)), Some(int(DType::I8, 127)));
        assert_eq!(fold_cast(DType::U64, float(f64::INFINITY)), Some(int(DType::U64, u64::MAX.into())));
        assert_eq!(fold_cast(DType::U8, int(DType::I32, -1)), Some(int(DType::U8, 255)));
        assert_eq!(fold_cast(DType::Bool, float(0.5)), Some(int(DType::Bool, 1)));
        assert_eq!(fold_cast(DType::I8, float(f64::NAN)), None);
        assert_eq!(fold_cast(DType::F32, int(DType::I64, (1 << 60) + 1)), None);
    }

    #[test]
    fn half_precision_rounds_once() {
        let (a, b) = (Const::float(DType::F16, 2048.0), Const::float(DType::F16, 3.0));
        assert!(fold_binary(BinaryFn::Add, a, b).unwrap().is_float(2052.0));
        assert!(
            fold_binary(BinaryFn::Mul, a, Const::float(DType::F16, 64.0)).unwrap().is_float(f64::INFINITY)
        );
    }
}
