//! Scalar functions on the two types that scalars are computed in: `f64` and `i128`.
//!
//! Every element type embeds exactly in one of them, so one definition per function serves all. For `f32` results
//! of `+ - * / sqrt` the single rounding from `f64` is the correctly rounded result.

use orch_ir::{BinaryFn, CompareFn, UnaryFn, philox};

/// A type that scalar functions compute in.
pub trait Calc: Copy + PartialOrd + Send + Sync {
    /// The function of one operand, or `None` where it is not defined for this type. `Not` is bitwise.
    fn unary(function: UnaryFn) -> Option<fn(Self) -> Self>;
    /// The function of two operands, or `None` where it is not defined for this type. The last argument is the
    /// width of the element type in bits, which shifts need.
    fn binary(function: BinaryFn) -> Option<fn(Self, Self, u32) -> Self>;
    /// True for NaN.
    fn is_nan(self) -> bool;
    /// True for either infinity.
    fn is_infinite(self) -> bool;
    /// The value as `f64`, rounded to nearest even.
    fn to_f64(self) -> f64;
    /// The value as an integer; truncated toward zero.
    fn to_int(self) -> i128;
}

/// The comparison as a function.
pub fn compare<C: PartialOrd>(function: CompareFn) -> fn(&C, &C) -> bool {
    match function {
        CompareFn::Eq => C::eq,
        CompareFn::Ne => C::ne,
        CompareFn::Lt => C::lt,
        CompareFn::Le => C::le,
        CompareFn::Gt => C::gt,
        CompareFn::Ge => C::ge,
    }
}

/// The larger; NaN if either is NaN.
pub fn max<C: Calc>(x: C, y: C) -> C {
    if x.is_nan() || x >= y { x } else { y }
}

/// The smaller; NaN if either is NaN.
pub fn min<C: Calc>(x: C, y: C) -> C {
    if x.is_nan() || x <= y { x } else { y }
}

impl Calc for f64 {
    fn unary(function: UnaryFn) -> Option<fn(f64) -> f64> {
        Some(match function {
            UnaryFn::Neg => |x| -x,
            UnaryFn::Abs => f64::abs,
            UnaryFn::Sign => sign,
            UnaryFn::Ceil => f64::ceil,
            UnaryFn::Floor => f64::floor,
            UnaryFn::RoundEven => f64::round_ties_even,
            UnaryFn::Trunc => f64::trunc,
            UnaryFn::Sqrt => f64::sqrt,
            UnaryFn::Recip => f64::recip,
            UnaryFn::Exp => f64::exp,
            UnaryFn::Expm1 => f64::exp_m1,
            UnaryFn::Log => f64::ln,
            UnaryFn::Log1p => f64::ln_1p,
            UnaryFn::Sin => f64::sin,
            UnaryFn::Cos => f64::cos,
            UnaryFn::Tan => f64::tan,
            UnaryFn::Asin => f64::asin,
            UnaryFn::Acos => f64::acos,
            UnaryFn::Atan => f64::atan,
            UnaryFn::Sinh => f64::sinh,
            UnaryFn::Cosh => f64::cosh,
            UnaryFn::Tanh => f64::tanh,
            UnaryFn::Asinh => libm::asinh,
            UnaryFn::Acosh => libm::acosh,
            UnaryFn::Atanh => libm::atanh,
            UnaryFn::Erf => libm::erf,
            UnaryFn::Not => return None,
        })
    }

    fn binary(function: BinaryFn) -> Option<fn(f64, f64, u32) -> f64> {
        Some(match function {
            BinaryFn::Add => |x, y, _| x + y,
            BinaryFn::Sub => |x, y, _| x - y,
            BinaryFn::Mul => |x, y, _| x * y,
            BinaryFn::Div => |x, y, _| x / y,
            BinaryFn::FloorMod => |x, y, _| floor_mod(x, y),
            BinaryFn::TruncMod => |x, y, _| x % y,
            BinaryFn::Pow => |x, y, _| x.powf(y),
            BinaryFn::Max => |x, y, _| max(x, y),
            BinaryFn::Min => |x, y, _| min(x, y),
            BinaryFn::Atan2 => |y, x, _| y.atan2(x),
            BinaryFn::And
            | BinaryFn::Or
            | BinaryFn::Xor
            | BinaryFn::Shl
            | BinaryFn::Shr
            | BinaryFn::Philox => {
                return None;
            }
        })
    }

    fn is_nan(self) -> bool {
        f64::is_nan(self)
    }
    fn is_infinite(self) -> bool {
        f64::is_infinite(self)
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn to_int(self) -> i128 {
        self as i128
    }
}

/// -1, 0 or 1; NaN stays NaN.
fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

/// The remainder with the sign of the divisor.
fn floor_mod(x: f64, y: f64) -> f64 {
    let remainder = x % y;
    if remainder != 0.0 && (remainder < 0.0) != (y < 0.0) { remainder + y } else { remainder }
}

impl Calc for i128 {
    fn unary(function: UnaryFn) -> Option<fn(i128) -> i128> {
        Some(match function {
            UnaryFn::Neg => |x| -x,
            UnaryFn::Abs => i128::abs,
            UnaryFn::Sign => i128::signum,
            UnaryFn::Not => |x| !x,
            _ => return None,
        })
    }

    fn binary(function: BinaryFn) -> Option<fn(i128, i128, u32) -> i128> {
        Some(match function {
            BinaryFn::Add => |x, y, _| x + y,
            BinaryFn::Sub => |x, y, _| x - y,
            BinaryFn::Mul => |x, y, _| x.wrapping_mul(y),
            BinaryFn::Div => |x, y, _| x.checked_div(y).unwrap_or(0),
            BinaryFn::FloorMod => |x, y, _| floor_mod_int(x, y),
            BinaryFn::TruncMod => |x, y, _| x.checked_rem(y).unwrap_or(0),
            BinaryFn::Pow => |x, y, _| pow(x, y),
            BinaryFn::Max => |x, y, _| x.max(y),
            BinaryFn::Min => |x, y, _| x.min(y),
            BinaryFn::And => |x, y, _| x & y,
            BinaryFn::Or => |x, y, _| x | y,
            BinaryFn::Xor => |x, y, _| x ^ y,
            BinaryFn::Shl => |x, y, bits| if (0..i128::from(bits)).contains(&y) { x << y } else { 0 },
            BinaryFn::Shr => |x, y, bits| {
                if (0..i128::from(bits)).contains(&y) { x >> y } else { x >> (i128::BITS - 1) }
            },
            BinaryFn::Philox => |x, y, _| i128::from(philox(x as u64, y as u64)),
            BinaryFn::Atan2 => return None,
        })
    }

    fn is_nan(self) -> bool {
        false
    }
    fn is_infinite(self) -> bool {
        false
    }
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn to_int(self) -> i128 {
        self
    }
}

/// The remainder with the sign of the divisor; 0 for a zero divisor.
fn floor_mod_int(x: i128, y: i128) -> i128 {
    let remainder = x.checked_rem(y).unwrap_or(0);
    if remainder != 0 && (remainder < 0) != (y < 0) { remainder + y } else { remainder }
}

/// `x^y` modulo 2^128; for a negative exponent, the quotient `1 / x^-y` truncated toward zero.
fn pow(x: i128, y: i128) -> i128 {
    if y < 0 {
        return match x {
            1 => 1,
            -1 => {
                if y % 2 == 0 {
                    1
                } else {
                    -1
                }
            }
            _ => 0,
        };
    }
    let (mut result, mut base, mut exponent) = (1i128, x, y);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(function: BinaryFn, x: i128, y: i128) -> i128 {
        i128::binary(function).expect("defined for integers")(x, y, 8)
    }

    #[test]
    fn integer_division_and_remainders() {
        let cases =
            [(7, 2, 3, 1, 1), (-7, 2, -3, 1, -1), (7, -2, -3, -1, 1), (-7, -2, 3, -1, -1), (5, 0, 0, 0, 0)];
        for (x, y, quotient, floor, trunc) in cases {
            assert_eq!(int(BinaryFn::Div, x, y), quotient, "{x} / {y}");
            assert_eq!(int(BinaryFn::FloorMod, x, y), floor, "{x} floor_mod {y}");
            assert_eq!(int(BinaryFn::TruncMod, x, y), trunc, "{x} trunc_mod {y}");
        }
    }

    #[test]
    fn integer_powers() {
        let cases = [
            (3, 4, 81),
            (-2, 3, -8),
            (0, 0, 1),
            (2, -1, 0),
            (1, -5, 1),
            (-1, -3, -1),
            (-1, -4, 1),
            (0, -1, 0),
        ];
        for (x, y, expected) in cases {
            assert_eq!(pow(x, y), expected, "{x} ^ {y}");
        }
    }

    #[test]
    fn shifts_beyond_the_width() {
        assert_eq!(int(BinaryFn::Shl, 1, 7), 128);
        assert_eq!(int(BinaryFn::Shl, 1, 8), 0);
        assert_eq!(int(BinaryFn::Shr, -128, 9), -1);
        assert_eq!(int(BinaryFn::Shr, 255, 300), 0);
        assert_eq!(int(BinaryFn::Shr, -5, 1), -3);
    }

    #[test]
    fn float_remainders_and_extrema() {
        assert_eq!(floor_mod(-5.5, 2.0), 0.5);
        assert_eq!(floor_mod(5.5, -2.0), -0.5);
        assert_eq!(floor_mod(4.0, -2.0), 0.0);
        assert!(max(1.0, f64::NAN).is_nan() && max(f64::NAN, 1.0).is_nan());
        assert!(min(1.0, f64::NAN).is_nan() && min(f64::NAN, 1.0).is_nan());
        assert!(sign(f64::NAN).is_nan());
        assert_eq!(sign(-0.25), -1.0);
    }

    #[test]
    fn error_function_is_accurate() {
        let erf = f64::unary(UnaryFn::Erf).expect("defined for floats");
        assert!((erf(0.5) - 0.520_499_877_813_046_5).abs() < 1e-15);
        assert!((erf(-2.0) + 0.995_322_265_018_952_7).abs() < 1e-15);
    }
}
