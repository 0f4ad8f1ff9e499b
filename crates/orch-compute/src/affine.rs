//! The normal form of integer index expressions: a sum of multiples of atoms, plus a constant.
//!
//! ```text
//! c_0 * a_0 + c_1 * a_1 + .. + k        a_i distinct, ascending by id; c_i != 0
//! ```
//!
//! An *atom* is an expression that is no such sum itself: a variable, a floor division or remainder of a normal
//! form by a constant, or anything else that yields an integer. Arithmetic on normal forms wraps in 64 bits as the
//! expressions do, so a normal form always equals what it came from. [`Simplifier`](crate::Simplifier) computes
//! normal forms.

use crate::expr::{ExprId, Exprs};

/// A sum of multiples of atoms, plus a constant. Equal sums are equal values of this type.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Linear {
    terms: Vec<(ExprId, i64)>,
    constant: i64,
}

impl Linear {
    /// The constant `k`.
    pub fn constant(k: i64) -> Self {
        Self { terms: Vec::new(), constant: k }
    }

    /// The sum `1 * atom + 0`.
    pub fn atom(atom: ExprId) -> Self {
        Self { terms: vec![(atom, 1)], constant: 0 }
    }

    /// `(atom, coefficient)` pairs, ascending by atom; no coefficient is 0.
    pub fn terms(&self) -> &[(ExprId, i64)] {
        &self.terms
    }

    /// The constant summand.
    pub fn constant_term(&self) -> i64 {
        self.constant
    }

    /// The value, if there are no atoms.
    pub fn as_constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    /// The atom, if the sum is `1 * atom + 0`.
    pub fn as_atom(&self) -> Option<ExprId> {
        match self.terms[..] {
            [(atom, 1)] if self.constant == 0 => Some(atom),
            _ => None,
        }
    }

    /// The coefficient of an atom, 0 if it does not occur.
    pub fn coefficient(&self, atom: ExprId) -> i64 {
        match self.terms.binary_search_by_key(&atom, |&(a, _)| a) {
            Ok(position) => self.terms[position].1,
            Err(_) => 0,
        }
    }

    /// `self + other * factor`.
    pub fn plus_scaled(&self, other: &Self, factor: i64) -> Self {
        let mut terms = Vec::with_capacity(self.terms.len() + other.terms.len());
        let (mut left, mut right) = (self.terms.iter().peekable(), other.terms.iter().peekable());
        loop {
            let (atom, coefficient) = match (left.peek(), right.peek()) {
                (Some(&&(a, c)), Some(&&(b, d))) if a == b => {
                    left.next();
                    right.next();
                    (a, c.wrapping_add(d.wrapping_mul(factor)))
                }
                (Some(&&(a, c)), other) if other.is_none_or(|&&(b, _)| a < b) => {
                    left.next();
                    (a, c)
                }
                (_, Some(&&(b, d))) => {
                    right.next();
                    (b, d.wrapping_mul(factor))
                }
                (_, None) => break,
            };
            if coefficient != 0 {
                terms.push((atom, coefficient));
            }
        }
        let constant = self.constant.wrapping_add(other.constant.wrapping_mul(factor));
        Self { terms, constant }
    }

    /// `self + other`.
    pub fn plus(&self, other: &Self) -> Self {
        self.plus_scaled(other, 1)
    }

    /// `self + coefficient * atom`.
    pub fn plus_term(&self, atom: ExprId, coefficient: i64) -> Self {
        self.plus_scaled(&Self::atom(atom), coefficient)
    }

    /// `self + k`.
    pub fn plus_constant(&self, k: i64) -> Self {
        Self { terms: self.terms.clone(), constant: self.constant.wrapping_add(k) }
    }

    /// `self * factor`.
    pub fn scaled(&self, factor: i64) -> Self {
        Self::default().plus_scaled(self, factor)
    }

    /// The sum of the terms for which `keep` holds of `(atom, coefficient)`, without the constant.
    pub fn filtered(&self, keep: impl Fn(ExprId, i64) -> bool) -> Self {
        let terms = self.terms.iter().copied().filter(|&(atom, c)| keep(atom, c)).collect();
        Self { terms, constant: 0 }
    }

    /// The greatest common divisor of the coefficients, 0 without terms.
    pub fn content(&self) -> i64 {
        self.terms.iter().fold(0, |divisor, &(_, c)| gcd(divisor, c))
    }

    /// The sum as an expression: larger coefficients first, subtractions after additions, the constant last.
    pub fn to_expr(&self, exprs: &mut Exprs) -> ExprId {
        let mut terms = self.terms.clone();
        terms.sort_by_key(|&(atom, c)| (c < 0, std::cmp::Reverse(c.unsigned_abs()), atom));
        let mut sum = None;
        for (atom, c) in terms {
            sum = Some(match sum {
                None => exprs.mul_const(atom, c),
                Some(sum) if c < 0 && c != i64::MIN => {
                    let term = exprs.mul_const(atom, -c);
                    exprs.sub(sum, term)
                }
                Some(sum) => {
                    let term = exprs.mul_const(atom, c);
                    exprs.add2(sum, term)
                }
            });
        }
        match sum {
            Some(sum) => exprs.add_const(sum, self.constant),
            None => exprs.index(self.constant),
        }
    }
}

/// The greatest common divisor, not negative; `gcd(0, x)` is `|x|`. Of 2^63, which is no `i64`, the half.
pub fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    i64::try_from(a).unwrap_or(1 << 62)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_canonical() {
        let mut exprs = Exprs::new();
        let (_, x) = exprs.fresh_index("x", 8);
        let (_, y) = exprs.fresh_index("y", 8);
        let sum = Linear::default().plus_term(y, 3).plus_term(x, 2).plus_constant(5);
        let same = Linear::constant(5).plus_term(x, 2).plus_term(y, 4).plus_term(y, -1);
        assert_eq!(sum, same);
        assert_eq!(sum.terms(), [(x, 2), (y, 3)]);
        assert_eq!((sum.coefficient(y), sum.constant_term()), (3, 5));
        let nothing = sum.plus_scaled(&same, -1);
        assert_eq!(nothing.as_constant(), Some(0));
        assert_eq!(sum.scaled(0), nothing);
        assert_eq!(sum.filtered(|_, c| c > 2), Linear::default().plus_term(y, 3));
    }

    #[test]
    fn arithmetic_wraps() {
        let mut exprs = Exprs::new();
        let (_, x) = exprs.fresh_index("x", 8);
        let large = Linear::constant(i64::MAX).plus_term(x, i64::MIN);
        let sum = large.plus(&large);
        assert_eq!(sum, Linear::constant(-2));
    }

    #[test]
    fn expressions_lead_with_large_strides() {
        let mut exprs = Exprs::new();
        let (_, x) = exprs.fresh_index("x", 8);
        let (_, y) = exprs.fresh_index("y", 8);
        let (_, z) = exprs.fresh_index("z", 8);
        let sum = Linear::constant(-7).plus_term(x, 1).plus_term(y, 64).plus_term(z, -2);
        let got = sum.to_expr(&mut exprs);
        let expected = exprs.mul_const(y, 64);
        let expected = exprs.add2(expected, x);
        let twice = exprs.mul_const(z, 2);
        let expected = exprs.sub(expected, twice);
        assert_eq!(got, exprs.add_const(expected, -7));
    }

    #[test]
    fn divisors_of_extremes() {
        assert_eq!([gcd(12, -18), gcd(0, -5), gcd(0, 0), gcd(7, 13)], [6, 5, 0, 1]);
        assert_eq!(gcd(i64::MIN, 0), 1 << 62);
        assert_eq!(gcd(i64::MIN, 6), 2);
    }
}
