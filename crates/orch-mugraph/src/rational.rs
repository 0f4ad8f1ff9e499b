//! Exact constants of programs: ratios of two 64-bit integers in lowest terms.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A ratio `num / den` in lowest terms with a positive denominator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Rational {
    num: i64,
    den: i64,
}

impl Rational {
    /// Zero.
    pub const ZERO: Rational = Rational { num: 0, den: 1 };
    /// One.
    pub const ONE: Rational = Rational { num: 1, den: 1 };

    /// `num / den`, or `None` for a denominator of zero and for what 64 bits do not hold.
    pub fn new(num: i64, den: i64) -> Option<Rational> {
        Self::of_wide(num.into(), den.into())
    }

    /// `1 / den` for a positive extent.
    pub fn one_over(den: usize) -> Option<Rational> {
        Self::new(1, i64::try_from(den).ok()?)
    }

    fn of_wide(num: i128, den: i128) -> Option<Rational> {
        if den == 0 {
            return None;
        }
        let divisor = gcd(num.unsigned_abs(), den.unsigned_abs()) as i128 * den.signum();
        Some(Rational { num: i64::try_from(num / divisor).ok()?, den: i64::try_from(den / divisor).ok()? })
    }

    /// The numerator; negative for negative ratios.
    pub fn num(self) -> i64 {
        self.num
    }

    /// The denominator, positive.
    pub fn den(self) -> i64 {
        self.den
    }

    /// The nearest 64-bit number.
    pub fn to_f64(self) -> f64 {
        self.num as f64 / self.den as f64
    }

    /// The sum, where 64 bits hold it.
    pub fn plus(self, other: Rational) -> Option<Rational> {
        let (a, b, c, d) = (self.num as i128, self.den as i128, other.num as i128, other.den as i128);
        Self::of_wide(a * d + c * b, b * d)
    }

    /// The product, where 64 bits hold it.
    pub fn times(self, other: Rational) -> Option<Rational> {
        Self::of_wide(self.num as i128 * other.num as i128, self.den as i128 * other.den as i128)
    }

    /// The negated ratio.
    pub fn negated(self) -> Rational {
        Rational { num: self.num.saturating_neg(), den: self.den }
    }

    /// Reads `3`, `-1/8`.
    pub fn parse(text: &str) -> Option<Rational> {
        let (num, den) = text.split_once('/').unwrap_or((text, "1"));
        Self::new(num.parse().ok()?, den.parse().ok()?)
    }
}

impl fmt::Display for Rational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.den {
            1 => write!(f, "{}", self.num),
            den => write!(f, "{}/{den}", self.num),
        }
    }
}

fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_kept_in_lowest_terms() {
        let ratio = Rational::new(6, -8).unwrap();
        assert_eq!((ratio.num(), ratio.den(), ratio.to_string()), (-3, 4, "-3/4".into()));
        assert_eq!(Rational::parse("-3/4"), Some(ratio));
        assert_eq!(Rational::new(1, 0), None);
        assert_eq!(ratio.plus(Rational::ONE).unwrap().to_string(), "1/4");
        assert_eq!(ratio.times(ratio).unwrap().to_string(), "9/16");
    }
}
