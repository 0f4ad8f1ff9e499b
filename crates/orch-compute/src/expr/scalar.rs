//! Scalar semantics of the thread-program interpreter: one definition per function for all element types.
//!
//! Integers and booleans compute in `i128`, floats in `f64`; both hold every operand exactly, and the result is
//! rounded to the element type once. For `f32`, `f16` and `bf16` that gives the correctly rounded `+ - * /` and
//! square root, because `f64` has more than twice their digits. Speed does not matter here.

use half::{bf16, f16};
use orch_ir::{BinaryFn, CompareFn, DType, UnaryFn, philox};

/// The value of one element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// Of a floating-point type.
    Float(f64),
    /// Of an integer type or `Bool` (0 or 1).
    Int(i128),
}

impl Number {
    /// A boolean.
    pub fn bool(value: bool) -> Self {
        Number::Int(i128::from(value))
    }

    /// The value that `bits`, an element of `dtype` zero-extended, stands for.
    pub fn from_bits(dtype: DType, bits: u64) -> Self {
        match dtype {
            DType::Bool => Number::bool(bits != 0),
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => Number::Int(i128::from(bits)),
            DType::I8 => Number::Int(i128::from(bits as u8 as i8)),
            DType::I16 => Number::Int(i128::from(bits as u16 as i16)),
            DType::I32 => Number::Int(i128::from(bits as u32 as i32)),
            DType::I64 => Number::Int(i128::from(bits as i64)),
            DType::F16 => Number::Float(f16::from_bits(bits as u16).to_f64()),
            DType::BF16 => Number::Float(bf16::from_bits(bits as u16).to_f64()),
            DType::F32 => Number::Float(f64::from(f32::from_bits(bits as u32))),
            DType::F64 => Number::Float(f64::from_bits(bits)),
        }
    }

    /// The bits of this value, which is one of `dtype`'s, zero-extended.
    pub fn to_bits(self, dtype: DType) -> u64 {
        match (dtype, self) {
            (DType::F16, Number::Float(v)) => u64::from(f16::from_f32(narrow_to_odd(v)).to_bits()),
            (DType::BF16, Number::Float(v)) => u64::from(bf16::from_f32(narrow_to_odd(v)).to_bits()),
            (DType::F32, Number::Float(v)) => u64::from((v as f32).to_bits()),
            (_, Number::Float(v)) => v.to_bits(),
            (_, Number::Int(v)) => match dtype.size_bytes() {
                1 => u64::from(v as u8),
                2 => u64::from(v as u16),
                4 => u64::from(v as u32),
                _ => v as u64,
            },
        }
    }

    /// Rounds to nearest even (floats) or wraps (integers) to `dtype`; booleans are `!= 0`.
    pub fn round_to(self, dtype: DType) -> Self {
        match (dtype, self) {
            (DType::F64, _) => self,
            (DType::Bool, Number::Int(v)) => Number::bool(v != 0),
            _ => Number::from_bits(dtype, self.to_bits(dtype)),
        }
    }

    /// Conversion to `dtype` as [`orch_ir::ScalarFn::Cast`].
    pub fn cast(self, dtype: DType) -> Self {
        match self {
            Number::Int(v) if dtype == DType::F32 => Number::Float(f64::from(v as f32)),
            Number::Int(v) if dtype.is_float() => Number::Float(v as f64).round_to(dtype),
            Number::Float(v) if !dtype.is_float() => Number::Int(match dtype {
                DType::Bool => i128::from(v != 0.0),
                DType::I8 => i128::from(v as i8),
                DType::I16 => i128::from(v as i16),
                DType::I32 => i128::from(v as i32),
                DType::I64 => i128::from(v as i64),
                DType::U8 => i128::from(v as u8),
                DType::U16 => i128::from(v as u16),
                DType::U32 => i128::from(v as u32),
                _ => i128::from(v as u64),
            }),
            _ => self.round_to(dtype),
        }
    }

    /// True if not zero: how a boolean is read.
    pub fn is_true(self) -> bool {
        self != Number::Int(0)
    }

    /// The value as an `i64` if it is an integer that fits.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Number::Int(v) => i64::try_from(v).ok(),
            Number::Float(_) => None,
        }
    }
}

/// Rounds to `f32` so that rounding again to a type of at most 22 digits equals rounding once: an inexact result
/// gets an odd last digit.
fn narrow_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let back = f64::from(nearest);
    if back == value || value.is_nan() || nearest.to_bits() & 1 == 1 {
        return nearest;
    }
    let step: i32 = if back.abs() < value.abs() { 1 } else { -1 };
    f32::from_bits(nearest.to_bits().wrapping_add_signed(step))
}

/// `f(x)` for an element type, or `None` if `f` is not defined for it.
pub fn unary(f: UnaryFn, dtype: DType, x: Number) -> Option<Number> {
    let result = match x {
        Number::Float(v) => Number::Float(unary_float(f, v)?),
        Number::Int(v) => Number::Int(match f {
            UnaryFn::Neg => -v,
            UnaryFn::Abs => v.abs(),
            UnaryFn::Sign => v.signum(),
            UnaryFn::Not if dtype == DType::Bool => 1 - v,
            UnaryFn::Not => !v,
            _ => return None,
        }),
    };
    Some(result.round_to(dtype))
}

fn unary_float(f: UnaryFn, v: f64) -> Option<f64> {
    Some(match f {
        UnaryFn::Neg => -v,
        UnaryFn::Abs => v.abs(),
        UnaryFn::Sign if v == 0.0 || v.is_nan() => v,
        UnaryFn::Sign => v.signum(),
        UnaryFn::Ceil => v.ceil(),
        UnaryFn::Floor => v.floor(),
        UnaryFn::RoundEven => v.round_ties_even(),
        UnaryFn::Trunc => v.trunc(),
        UnaryFn::Sqrt => v.sqrt(),
        UnaryFn::Recip => v.recip(),
        UnaryFn::Exp => v.exp(),
        UnaryFn::Expm1 => v.exp_m1(),
        UnaryFn::Log => v.ln(),
        UnaryFn::Log1p => v.ln_1p(),
        UnaryFn::Sin => v.sin(),
        UnaryFn::Cos => v.cos(),
        UnaryFn::Tan => v.tan(),
        UnaryFn::Asin => v.asin(),
        UnaryFn::Acos => v.acos(),
        UnaryFn::Atan => v.atan(),
        UnaryFn::Sinh => v.sinh(),
        UnaryFn::Cosh => v.cosh(),
        UnaryFn::Tanh => v.tanh(),
        UnaryFn::Asinh => libm::asinh(v),
        UnaryFn::Acosh => libm::acosh(v),
        UnaryFn::Atanh => libm::atanh(v),
        UnaryFn::Erf => libm::erf(v),
        UnaryFn::Not => return None,
    })
}

/// `f(x, y)` for an element type, or `None` if `f` is not defined for it.
pub fn binary(f: BinaryFn, dtype: DType, x: Number, y: Number) -> Option<Number> {
    let result = match (x, y) {
        (Number::Float(x), Number::Float(y)) => Number::Float(binary_float(f, x, y)?),
        (Number::Int(x), Number::Int(y)) => Number::Int(binary_int(f, dtype, x, y)?),
        _ => return None,
    };
    Some(result.round_to(dtype))
}

fn binary_float(f: BinaryFn, x: f64, y: f64) -> Option<f64> {
    Some(match f {
        BinaryFn::Add => x + y,
        BinaryFn::Sub => x - y,
        BinaryFn::Mul => x * y,
        BinaryFn::Div => x / y,
        BinaryFn::FloorMod => {
            let remainder = x % y;
            if remainder != 0.0 && (remainder < 0.0) != (y < 0.0) { remainder + y } else { remainder }
        }
        BinaryFn::TruncMod => x % y,
        BinaryFn::Pow => x.powf(y),
        BinaryFn::Max => {
            if x.is_nan() || x >= y {
                x
            } else {
                y
            }
        }
        BinaryFn::Min => {
            if x.is_nan() || x <= y {
                x
            } else {
                y
            }
        }
        BinaryFn::Atan2 => x.atan2(y),
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor | BinaryFn::Shl | BinaryFn::Shr | BinaryFn::Philox => {
            return None;
        }
    })
}

fn binary_int(f: BinaryFn, dtype: DType, x: i128, y: i128) -> Option<i128> {
    let width = 8 * dtype.size_bytes() as i128;
    // A negative shift count is a large unsigned one.
    let count = if (0..width).contains(&y) { y } else { width };
    Some(match f {
        BinaryFn::Add => x + y,
        BinaryFn::Sub => x - y,
        BinaryFn::Mul => x.wrapping_mul(y),
        BinaryFn::Div | BinaryFn::FloorMod | BinaryFn::TruncMod if y == 0 => 0,
        BinaryFn::Div => x / y,
        BinaryFn::FloorMod => x - floor_div(x, y) * y,
        BinaryFn::TruncMod => x % y,
        BinaryFn::Pow => pow_int(x, y),
        BinaryFn::Max => x.max(y),
        BinaryFn::Min => x.min(y),
        BinaryFn::And => x & y,
        BinaryFn::Or => x | y,
        BinaryFn::Xor => x ^ y,
        BinaryFn::Shl if count == width => 0,
        BinaryFn::Shl => x << count,
        BinaryFn::Shr => x >> count,
        BinaryFn::Philox => i128::from(philox(x as u64, y as u64)),
        BinaryFn::Atan2 => return None,
    })
}

/// `floor(x / y)`, `y != 0`.
pub fn floor_div(x: i128, y: i128) -> i128 {
    let quotient = x / y;
    if x % y != 0 && (x < 0) != (y < 0) { quotient - 1 } else { quotient }
}

/// `x^y` modulo 2^128; negative exponents truncate toward zero, and 0 to a negative power is 0.
fn pow_int(x: i128, y: i128) -> i128 {
    match (x, y) {
        (1, _) => 1,
        (-1, _) if y % 2 == 0 => 1,
        (-1, _) => -1,
        (_, ..0) => 0,
        _ => {
            let (mut base, mut exponent, mut result) = (x, y, 1i128);
            while exponent > 0 {
                if exponent & 1 == 1 {
                    result = result.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                exponent >>= 1;
            }
            result
        }
    }
}

/// `x f y`.
pub fn compare(f: CompareFn, x: Number, y: Number) -> bool {
    let order = match (x, y) {
        (Number::Float(x), Number::Float(y)) => x.partial_cmp(&y),
        (Number::Int(x), Number::Int(y)) => Some(x.cmp(&y)),
        _ => None,
    };
    match f {
        CompareFn::Eq => order.is_some_and(|o| o.is_eq()),
        CompareFn::Ne => !order.is_some_and(|o| o.is_eq()),
        CompareFn::Lt => order.is_some_and(|o| o.is_lt()),
        CompareFn::Le => order.is_some_and(|o| o.is_le()),
        CompareFn::Gt => order.is_some_and(|o| o.is_gt()),
        CompareFn::Ge => order.is_some_and(|o| o.is_ge()),
    }
}

/// `a * b + c` rounded once; `f16` and `bf16` round to `f32` first.
pub fn fma(dtype: DType, a: Number, b: Number, c: Number) -> Option<Number> {
    match (a, b, c) {
        (Number::Float(a), Number::Float(b), Number::Float(c)) => Some(if dtype == DType::F64 {
            Number::Float(a.mul_add(b, c))
        } else {
            let wide = (a as f32).mul_add(b as f32, c as f32);
            Number::Float(f64::from(wide)).round_to(dtype)
        }),
        (Number::Int(a), Number::Int(b), Number::Int(c)) => {
            Some(Number::Int(a.wrapping_mul(b).wrapping_add(c)).round_to(dtype))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_read_back() {
        for dtype in DType::ALL {
            for bits in [0u64, 1] {
                assert_eq!(Number::from_bits(dtype, bits).to_bits(dtype), bits, "{dtype} {bits}");
            }
        }
        assert_eq!(Number::from_bits(DType::I16, 0xffff), Number::Int(-1));
        assert_eq!(Number::Int(-1).to_bits(DType::I16), 0xffff);
    }

    #[test]
    fn narrowing_rounds_once() {
        // Halfway between two bf16 values plus a little that f32 cannot hold.
        let value = 1.0 + f64::powi(2.0, -8) + f64::powi(2.0, -40);
        assert_eq!(Number::Float(value).round_to(DType::BF16), Number::Float(1.0 + f64::powi(2.0, -7)));
        assert_eq!(
            Number::Float(1.0 + f64::powi(2.0, -8)).round_to(DType::BF16),
            Number::Float(1.0),
            "a tie goes to even"
        );
        assert_eq!(Number::Float(1e300).round_to(DType::F16), Number::Float(f64::INFINITY));
        assert_eq!(Number::Float(65519.0).round_to(DType::F16), Number::Float(65504.0));
    }

    #[test]
    fn casts_saturate_from_floats_and_wrap_from_integers() {
        assert_eq!(Number::Float(-3.7).cast(DType::I8), Number::Int(-3));
        assert_eq!(Number::Float(300.0).cast(DType::U8), Number::Int(255));
        assert_eq!(Number::Float(f64::NAN).cast(DType::I32), Number::Int(0));
        assert_eq!(Number::Int(300).cast(DType::U8), Number::Int(44));
        assert_eq!(Number::Float(f64::NAN).cast(DType::Bool), Number::Int(1));
    }

    #[test]
    fn integer_edges() {
        let int = |f, x, y| binary(f, DType::I8, Number::Int(x), Number::Int(y));
        assert_eq!(int(BinaryFn::Div, -128, -1), Some(Number::Int(-128)));
        assert_eq!(int(BinaryFn::Div, 5, 0), Some(Number::Int(0)));
        assert_eq!(int(BinaryFn::FloorMod, -7, 3), Some(Number::Int(2)));
        assert_eq!(int(BinaryFn::TruncMod, -7, 3), Some(Number::Int(-1)));
        assert_eq!(int(BinaryFn::Shl, 1, 8), Some(Number::Int(0)));
        assert_eq!(int(BinaryFn::Shr, -2, 100), Some(Number::Int(-1)));
        assert_eq!(int(BinaryFn::Pow, 3, 5), Some(Number::Int(-13)));
        assert_eq!(int(BinaryFn::Pow, 2, -1), Some(Number::Int(0)));
        assert_eq!(int(BinaryFn::Atan2, 2, -1), None);
    }

    #[test]
    fn maximum_propagates_nan() {
        for (x, y) in [(f64::NAN, 1.0), (1.0, f64::NAN)] {
            let Some(Number::Float(v)) =
                binary(BinaryFn::Max, DType::F32, Number::Float(x), Number::Float(y))
            else {
                panic!("a float")
            };
            assert!(v.is_nan());
        }
    }
}
