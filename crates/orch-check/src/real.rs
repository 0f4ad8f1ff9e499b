//! Two further kinds of values: signs, and floating-point numbers.

use crate::eval::Domain;
use crate::field::Key;
use crate::program::Scalar;

/// Which signs a value may have; a set of bits.
pub type Sign = u8;
/// Less than zero.
pub const NEGATIVE: Sign = 1;
/// Zero.
pub const ZERO: Sign = 2;
const POSITIVE: Sign = 4;
/// Minus infinity.
pub const INFINITE: Sign = 8;
const FINITE: Sign = 7;
const RISING: [Sign; 4] = [INFINITE, NEGATIVE, ZERO, POSITIVE];

/// Computes which signs values may have, for all inputs.
pub struct Signs;

/// Applies a function of single signs to sets of them; what may be minus infinity is left out.
fn combined(a: Sign, b: Sign, f: impl Fn(Sign, Sign) -> Sign) -> Sign {
    let bits = |set: Sign| RISING[1..].iter().filter(move |&bit| set & bit != 0);
    bits(a).flat_map(|a| bits(b).map(move |b| (a, b))).fold(0, |set, (&a, &b)| set | f(a, b))
}

fn product(a: Sign, b: Sign) -> Sign {
    match (a, b) {
        (ZERO, _) | (_, ZERO) => ZERO,
        (a, b) if a == b => POSITIVE,
        _ => NEGATIVE,
    }
}

fn sum(a: Sign, b: Sign) -> Sign {
    match (a, b) {
        (ZERO, sign) | (sign, ZERO) => sign,
        (a, b) if a == b => a,
        _ => FINITE,
    }
}

fn of(num: i64) -> Sign {
    match num.signum() {
        -1 => NEGATIVE,
        0 => ZERO,
        _ => POSITIVE,
    }
}

/// The largest of numbers with these signs.
fn largest(args: &[Sign]) -> Sign {
    let order = |sign: Sign| RISING.iter().position(|&other| sign == other).unwrap_or(0);
    // The least that one of them is for certain.
    let least = |&set: &Sign| RISING.iter().position(|sign| set & sign != 0).unwrap_or(0);
    let least = args.iter().map(least).max().unwrap_or(0);
    let all = args.iter().fold(RISING[least], |all, set| all | set);
    RISING.into_iter().filter(|&sign| order(sign) >= least).fold(0, |set, sign| set | all & sign)
}

impl Domain for Signs {
    type Value = Sign;
    const IS_UNIFORM: bool = true;

    fn input(&mut self, _tensor: usize, is_mask: bool, _at: usize) -> Sign {
        if is_mask { ZERO | POSITIVE } else { FINITE }
    }

    fn either(&mut self, a: Sign, b: Sign) -> Sign {
        a | b
    }

    fn apply(&mut self, scalar: &Scalar, args: &[Sign]) -> Sign {
        let added = |args: &[Sign]| {
            let any = args.iter().fold(0, |any, x| any | x);
            args.iter().fold(ZERO, |all, &x| combined(all, x, sum)) | any & INFINITE
        };
        let where_infinite = |x: Sign, sign: Sign| if x & INFINITE != 0 { sign } else { 0 };
        match (scalar, args) {
            (Scalar::Constant(ratio), _) => of(ratio.num),
            (Scalar::Sum, _) => added(args),
            (Scalar::Mul, &[a, b]) => combined(a, b, product),
            (Scalar::Largest, _) => largest(args),
            (Scalar::Mask, &[x, mask]) => {
                (if mask & (NEGATIVE | POSITIVE) != 0 { x } else { 0 })
                    | if mask & ZERO != 0 { INFINITE } else { 0 }
            }
            (Scalar::Exp, &[x]) => (if x & FINITE != 0 { POSITIVE } else { 0 }) | where_infinite(x, ZERO),
            (Scalar::Guard, &[x]) => x & FINITE | where_infinite(x, ZERO),
            (Scalar::Square, &[x]) => combined(x, x, |a, _| product(a, a)),
            // Where it is not defined the program is not.
            (Scalar::Sqrt, &[x]) => x & (ZERO | POSITIVE),
            (Scalar::Log, _) => FINITE,
            (Scalar::Relu, &[x]) => largest(&[x, ZERO]),
            (Scalar::Offset(ratio), &[x]) => added(&[x, of(ratio.num)]),
            (Scalar::Scale(ratio), &[x]) => combined(x, of(ratio.num), product) | x & INFINITE,
            // Signs of an error function, an inverse and a positive multiple are those of the number.
            (_, args) => args.first().map_or(FINITE, |x| x & FINITE),
        }
    }
}

/// Computes with floating-point numbers at random inputs: shows that programs differ, never that they agree.
pub struct Floats<'a> {
    /// The key of inputs.
    pub key: Key,
    /// At an input its number.
    pub inputs: &'a [u64],
    /// The logarithm to base 2 of how many neighbours of a mask are one number.
    pub run: u32,
}

impl Domain for Floats<'_> {
    type Value = f64;

    fn input(&mut self, tensor: usize, is_mask: bool, at: usize) -> f64 {
        let bits = |at: usize| self.key.pair(at as u64, self.inputs[tensor]).0;
        if is_mask {
            (bits(at >> self.run) >> 63) as f64
        } else {
            (bits(at) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    }

    fn apply(&mut self, scalar: &Scalar, args: &[f64]) -> f64 {
        match (scalar, args) {
            (Scalar::Constant(ratio), _) => ratio.num as f64 / ratio.den as f64,
            (Scalar::Sum, _) => args.iter().sum(),
            (Scalar::Mul, &[a, b]) => a * b,
            (Scalar::Largest, _) => args.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            (Scalar::Mask, &[_, 0.0]) => f64::NEG_INFINITY,
            (Scalar::Exp, &[x]) => x.exp(),
            (Scalar::Square, &[x]) => x * x,
            (Scalar::Sqrt, &[x]) => x.sqrt(),
            (Scalar::Log, &[x]) => x.ln(),
            (Scalar::Erf, &[x]) => erf(x),
            (Scalar::Relu, &[x]) => x.max(0.0),
            (Scalar::Reciprocal, &[x]) => 1.0 / x,
            (Scalar::Guard, &[f64::NEG_INFINITY]) => 0.0,
            (Scalar::GeluFactor, &[x]) => 2.0 * (2.0 / std::f64::consts::PI).sqrt() * x,
            (Scalar::Scale(ratio), &[x]) => x * (ratio.num as f64 / ratio.den as f64),
            (Scalar::Offset(ratio), &[x]) => x + ratio.num as f64 / ratio.den as f64,
            (_, args) => args.first().copied().unwrap_or(0.0),
        }
    }
}

/// The error function by its series of terms of one sign.
fn erf(x: f64) -> f64 {
    let x = x.clamp(-6.0, 6.0);
    let (mut term, mut sum, mut n) = (x, 0.0, 0.0);
    while f64::abs(term) > 1e-18 {
        sum += term;
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
    }
    sum * (-x * x).exp() * std::f64::consts::FRAC_2_SQRT_PI
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Ratio;

    #[test]
    fn the_error_function_is_right() {
        for (x, expected) in
            [(0.0, 0.0), (0.5, 0.520_499_877_813_046_5), (-2.0, -0.995_322_265_018_952_7), (7.0, 1.0)]
        {
            assert!((erf(x) - expected).abs() < 1e-15, "{x}");
        }
    }

    #[test]
    fn signs_are_sets_of_what_may_be() {
        let apply = |scalar: Scalar, args: &[Sign]| Signs.apply(&scalar, args);
        let constant = |num: i64| apply(Scalar::Constant(Ratio { num, den: 3 }), &[]);
        assert_eq!([-5, 0, 7].map(constant), [NEGATIVE, ZERO, POSITIVE]);
        assert_eq!(apply(Scalar::Square, &[FINITE]), ZERO | POSITIVE);
        assert_eq!(apply(Scalar::Sum, &[ZERO | POSITIVE, POSITIVE]), POSITIVE);
        assert_eq!(apply(Scalar::Sum, &[NEGATIVE, POSITIVE]), FINITE);
        assert_eq!(apply(Scalar::Sum, &[NEGATIVE, NEGATIVE, ZERO]), NEGATIVE);
        assert_eq!(apply(Scalar::Offset(Ratio { num: 1, den: 1 }), &[POSITIVE | ZERO]), POSITIVE);
        assert_eq!(apply(Scalar::Scale(Ratio { num: -2, den: 1 }), &[POSITIVE | ZERO]), NEGATIVE | ZERO);
        assert_eq!(apply(Scalar::Mul, &[NEGATIVE, NEGATIVE | ZERO]), POSITIVE | ZERO);
        assert_eq!(apply(Scalar::Sqrt, &[FINITE]), POSITIVE | ZERO);
        assert_eq!([Scalar::Log, Scalar::Erf].map(|scalar| apply(scalar, &[POSITIVE])), [FINITE, POSITIVE]);
        let masked = apply(Scalar::Mask, &[POSITIVE, ZERO | POSITIVE]);
        assert_eq!((masked, apply(Scalar::Exp, &[masked])), (POSITIVE | INFINITE, POSITIVE | ZERO));
        assert_eq!(apply(Scalar::Sum, &[masked, POSITIVE]), POSITIVE | INFINITE);
        assert_eq!(apply(Scalar::Guard, &[masked]), POSITIVE | ZERO);
        assert_eq!(apply(Scalar::Mask, &[POSITIVE, POSITIVE]), POSITIVE);
        assert_eq!(apply(Scalar::Relu, &[FINITE]), ZERO | POSITIVE);
        assert_eq!(largest(&[FINITE, ZERO]), ZERO | POSITIVE);
        assert_eq!(largest(&[masked, masked]), POSITIVE | INFINITE);
        assert_eq!(largest(&[masked, NEGATIVE]), POSITIVE | NEGATIVE);
        assert_eq!(largest(&[]), INFINITE);
    }
}
