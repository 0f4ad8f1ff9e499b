//! Sums in which quotients and remainders of one expression meet.
//!
//! With `q = floor(x / e)` and `r = x mod e`, for any factor `c`:
//!
//! 1. *Join*: `c*r + c*e*q = c*x`;
//! 2. *Merge*: `c*r + c*e*(q mod b) = c*(x mod e*b)`;
//! 3. *Split off*: `c*x - c*e*q = c*r`.
//!
//! `q` stands for its normal form, which need not be a single atom.

use super::Simplifier;
use crate::affine::Linear;
use crate::expr::{Expr, ExprId, Exprs};

/// Rewrites of one sum after which it is left as it is; real sums take a few.
const MAX_STEPS: usize = 64;

impl Simplifier {
    /// An equal sum in which none of the rules of this file applies.
    pub(super) fn recombined(&mut self, exprs: &mut Exprs, mut sum: Linear) -> Linear {
        for _ in 0..MAX_STEPS {
            match self.recombined_once(exprs, &sum) {
                Some(simpler) => sum = simpler,
                None => break,
            }
        }
        sum
    }

    fn recombined_once(&mut self, exprs: &mut Exprs, sum: &Linear) -> Option<Linear> {
        if sum.terms().len() < 2 {
            return None;
        }
        for &(atom, c) in sum.terms() {
            let simpler = match *exprs.get(atom) {
                Expr::FloorRem(x, e) => {
                    let (x, e) = (self.form(exprs, x), divisor(exprs, e)?);
                    let quotient = self.quotient(exprs, &x, e);
                    let part = Part { atom, c, x, e };
                    meet_remainder(sum, &part, &quotient).or_else(|| self.merge(exprs, sum, &part, &quotient))
                }
                Expr::FloorDiv(x, e) => {
                    let (x, e) = (self.form(exprs, x), divisor(exprs, e)?);
                    let remainder = self.remainder(exprs, &x, e);
                    meet_quotient(sum, &Part { atom, c, x, e }, &remainder)
                }
                _ => None,
            };
            if simpler.is_some() {
                return simpler;
            }
        }
        None
    }

    /// Rule 2 for a remainder.
    fn merge(
        &mut self,
        exprs: &mut Exprs,
        sum: &Linear,
        Part { atom, c, x, e }: &Part,
        quotient: &Linear,
    ) -> Option<Linear> {
        for &(other, factor) in sum.terms() {
            if let Expr::FloorRem(q, b) = *exprs.get(other)
                && Some(factor) == c.checked_mul(*e)
                && self.form(exprs, q) == *quotient
            {
                let modulus = divisor(exprs, b)?.checked_mul(*e)?;
                let merged = self.remainder(exprs, x, modulus);
                return Some(sum.plus_term(*atom, -c).plus_term(other, -factor).plus_scaled(&merged, *c));
            }
        }
        None
    }
}

/// A summand `c * atom` where `atom` is `floor(x / e)` or `x mod e`.
struct Part {
    atom: ExprId,
    c: i64,
    x: Linear,
    e: i64,
}

/// Rule 1 for a remainder.
fn meet_remainder(sum: &Linear, Part { atom, c, x, e }: &Part, quotient: &Linear) -> Option<Linear> {
    let factor = c.checked_mul(*e)?;
    contains_multiple(sum, quotient, factor)
        .then(|| sum.plus_term(*atom, -c).plus_scaled(quotient, -factor).plus_scaled(x, *c))
}

/// Rules 1 and 3 for a quotient; the remainder may have been written in another way than as `x mod e`.
fn meet_quotient(sum: &Linear, Part { atom, c, x, e }: &Part, remainder: &Linear) -> Option<Linear> {
    let factor = (c % e == 0).then_some(c / e)?;
    let opposite = factor.checked_neg()?;
    let rest = || sum.plus_term(*atom, -c);
    if contains_multiple(sum, remainder, factor) {
        return Some(rest().plus_scaled(remainder, opposite).plus_scaled(x, factor));
    }
    contains_multiple(sum, x, opposite)
        .then(|| rest().plus_scaled(x, factor).plus_scaled(remainder, opposite))
}

/// True if `part` has terms and each occurs in `sum` with exactly `factor` times its coefficient.
fn contains_multiple(sum: &Linear, part: &Linear, factor: i64) -> bool {
    let occurs = |&(atom, c): &(ExprId, i64)| c.checked_mul(factor) == Some(sum.coefficient(atom));
    !part.terms().is_empty() && part.terms().iter().all(occurs)
}

fn divisor(exprs: &Exprs, id: ExprId) -> Option<i64> {
    exprs.as_int(id).filter(|&d| d > 0)
}
