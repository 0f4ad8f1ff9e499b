//! Two further kinds of values: signs, and floating-point numbers.

use crate::eval::{Domain, Places, Stop};
use crate::field::Key;
use crate::op::{Op, Ratio};

/// Which signs a value may have; a set of bits.
pub type Sign = u8;
const NEGATIVE: Sign = 1;
const ZERO: Sign = 2;
const POSITIVE: Sign = 4;
const INFINITE: Sign = 8; // Minus infinity.
const FINITE: Sign = 7;

/// Computes which signs values may have, for all inputs, and at which places divisors are never zero.
pub struct Signs {
    /// By place: the signs of any of its values.
    pub at: Vec<Sign>,
}

impl Signs {
    /// A program with so many places.
    pub fn new(places: usize) -> Signs {
        Signs { at: vec![0; places] }
    }

    /// True if no value of a place is zero.
    pub fn is_nonzero(&self, place: usize) -> bool {
        self.at[place] & (ZERO | INFINITE) == 0
    }

    /// True if no value of a place is negative.
    pub fn is_nonnegative(&self, place: usize) -> bool {
        self.at[place] & (NEGATIVE | INFINITE) == 0
    }
}

/// Applies a function of single signs to sets of them.
fn combined(a: Sign, b: Sign, f: impl Fn(Sign, Sign) -> Sign) -> Sign {
    let bits = |set: Sign| [NEGATIVE, ZERO, POSITIVE].into_iter().filter(move |bit| set & bit != 0);
    bits(a).flat_map(|a| bits(b).map(move |b| (a, b))).fold(0, |set, (a, b)| set | f(a, b))
}

fn product(a: Sign, b: Sign) -> Sign {
    match (a, b) {
        (ZERO, _) | (_, ZERO) => ZERO,
        (a, b) if a == b => POSITIVE,
        _ => NEGATIVE,
    }
}

impl Places for Signs {
    type Value = Sign;

    fn finish(&mut self, place: usize, values: &[Sign]) {
        self.at[place] = values.iter().fold(self.at[place], |all, x| all | x);
    }

    fn stopped(&mut self) -> Option<Stop> {
        None
    }
}

impl Domain for Signs {
    fn input(&mut self, _place: usize, is_mask: bool, _at: usize) -> Sign {
        if is_mask { ZERO | POSITIVE } else { FINITE }
    }

    fn constant(&mut self, ratio: Ratio) -> Sign {
        match ratio.num {
            0 => ZERO,
            num if num < 0 => NEGATIVE,
            _ => POSITIVE,
        }
    }

    fn unary(&mut self, op: &Op, x: Sign) -> Sign {
        let finite = x & FINITE;
        match op {
            Op::Exp => (if finite != 0 { POSITIVE } else { 0 }) | (if x & INFINITE != 0 { ZERO } else { 0 }),
            Op::Guard => finite | (if x & INFINITE != 0 { ZERO } else { 0 }),
            Op::Square => combined(finite, finite, |a, _| product(a, a)),
            // Where it is not defined the program is not.
            Op::Sqrt => finite & (ZERO | POSITIVE),
            Op::Log => FINITE,
            _ => finite,
        }
    }

    fn binary(&mut self, op: &Op, a: Sign, b: Sign) -> Sign {
        let sum = |a: Sign, b: Sign| match (a, b) {
            (ZERO, sign) | (sign, ZERO) => sign,
            (a, b) if a == b => a,
            _ => FINITE,
        };
        match op {
            Op::Add => combined(a, b, sum) | (a | b) & INFINITE,
            Op::Sub => combined(a, combined(b, NEGATIVE, product), sum) | a & INFINITE,
            Op::Mul => combined(a, b, product),
            Op::Scale(_) => combined(a, b, product) | if b == POSITIVE { a & INFINITE } else { 0 },
            _ => {
                let masked = if b & ZERO != 0 { INFINITE } else { 0 };
                if b & (NEGATIVE | POSITIVE) != 0 { a | masked } else { masked }
            }
        }
    }

    fn largest(&mut self, items: &[Sign]) -> Sign {
        // The least sign that one of them has for certain.
        let least = items.iter().map(|x| match x {
            x if x & INFINITE != 0 => INFINITE,
            x => 1 << x.trailing_zeros().min(2),
        });
        let order = |sign: Sign| [INFINITE, NEGATIVE, ZERO, POSITIVE].iter().position(|&other| other == sign);
        let least = least.max_by_key(|&sign| order(sign)).unwrap_or(INFINITE);
        let all = items.iter().fold(least, |all, x| all | x);
        [INFINITE, NEGATIVE, ZERO, POSITIVE]
            .into_iter()
            .filter(|&sign| order(sign) >= order(least))
            .fold(0, |set, sign| set | all & sign)
    }
}

/// Computes with floating-point numbers at random inputs: shows that programs differ, never that they agree.
pub struct Floats<'a> {
    /// The key of inputs.
    pub key: Key,
    /// At the place of an input its number.
    pub inputs: &'a [u64],
}

impl Places for Floats<'_> {
    type Value = f64;

    fn stopped(&mut self) -> Option<Stop> {
        None
    }
}

impl Domain for Floats<'_> {
    fn input(&mut self, place: usize, is_mask: bool, at: usize) -> f64 {
        let number = self.inputs[place];
        let bits = self.key.pair(at as u64, number).0;
        if is_mask { (bits >> 63) as f64 } else { (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0 }
    }

    fn constant(&mut self, ratio: Ratio) -> f64 {
        ratio.num as f64 / ratio.den as f64
    }

    fn unary(&mut self, op: &Op, x: f64) -> f64 {
        match op {
            Op::Exp => x.exp(),
            Op::Square => x * x,
            Op::Sqrt => x.sqrt(),
            Op::Log => x.ln(),
            Op::Erf => erf(x),
            Op::Reciprocal => 1.0 / x,
            Op::Guard if x == f64::NEG_INFINITY => 0.0,
            Op::GeluFactor => 2.0 * (2.0 / std::f64::consts::PI).sqrt() * x,
            _ => x,
        }
    }

    fn binary(&mut self, op: &Op, a: f64, b: f64) -> f64 {
        match op {
            Op::Add => a + b,
            Op::Sub => a - b,
            Op::Mul | Op::Scale(_) => a * b,
            _ if b == 0.0 => f64::NEG_INFINITY,
            _ => a,
        }
    }

    fn largest(&mut self, items: &[f64]) -> f64 {
        items.iter().copied().fold(f64::NEG_INFINITY, f64::max)
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
        let mut signs = Signs::new(0);
        assert_eq!(signs.unary(&Op::Square, FINITE), ZERO | POSITIVE);
        assert_eq!(signs.binary(&Op::Add, ZERO | POSITIVE, POSITIVE), POSITIVE);
        assert_eq!(signs.binary(&Op::Add, NEGATIVE, POSITIVE), FINITE);
        assert_eq!(signs.binary(&Op::Sub, POSITIVE, NEGATIVE), POSITIVE);
        assert_eq!(signs.binary(&Op::Mul, NEGATIVE, NEGATIVE | ZERO), POSITIVE | ZERO);
        let masked = signs.binary(&Op::Mask, POSITIVE, ZERO | POSITIVE);
        assert_eq!((masked, signs.unary(&Op::Exp, masked)), (POSITIVE | INFINITE, POSITIVE | ZERO));
        assert_eq!(signs.largest(&[FINITE, ZERO]), ZERO | POSITIVE);
        assert_eq!(signs.largest(&[masked, masked]), POSITIVE | INFINITE);
        assert_eq!(signs.largest(&[masked, NEGATIVE]), POSITIVE | NEGATIVE);
        assert_eq!(signs.largest(&[]), INFINITE);
    }
}
