//! Floor division and remainder of normal forms by constants.
//!
//! [`Simplifier::reduce`] brings `L` and `d` to a smaller division by four steps, each an equality of integers
//! for `d > 0`; `L = d * floor(L / d) + L mod d` holds before and after.
//!
//! 1. *Multiples leave*: `floor((d*m + r) / d) = m + floor(r / d)`.
//! 2. *One period*: if `m*d <= L < (m + 1)*d` always, the quotient is `m` and the remainder `L - m*d`.
//! 3. *Common factors*: with `g | d` and `L = g*t + k`, `0 <= k < g`: the quotient is `floor(t / (d/g))` and the
//!    remainder `g * (t mod d/g) + k`.
//! 4. *Small summands*: with `g | d`, `L = t + s`, `t` a multiple of `g` (by its coefficients or the classes of its
//!    atoms) and `m*g <= s < (m + 1)*g`: `s - m*g` goes to the remainder and `t + m*g` is divided.

use super::{Simplifier, is_moderate};
use crate::affine::{Linear, gcd};
use crate::expr::{Expr, ExprId, Exprs};

/// A division of `L` by `d` in reduced form:
/// `floor(L / d) = quotient + floor(dividend / divisor)` and
/// `L mod d = offset + scale * (dividend mod divisor)`.
struct Division {
    quotient: Linear,
    offset: Linear,
    scale: i64,
    dividend: Linear,
    divisor: i64,
}

impl Division {
    /// Ends the division: `rest`, a multiple `m*d` apart from the true rest in one period, is the remainder.
    fn finish(&mut self, rest: &Linear, periods: i64) {
        let in_period = rest.plus_constant(-periods * self.divisor);
        self.quotient = self.quotient.plus_constant(periods);
        self.offset = self.offset.plus_scaled(&in_period, self.scale);
        self.dividend = Linear::constant(0);
        self.divisor = 1;
    }
}

impl Simplifier {
    /// `floor(dividend / divisor)`, `divisor > 0`.
    pub(super) fn quotient(&mut self, exprs: &mut Exprs, dividend: &Linear, divisor: i64) -> Linear {
        if !is_moderate(dividend) {
            return Linear::atom(floor_div(exprs, dividend.clone(), divisor));
        }
        let division = self.reduce(exprs, dividend, divisor);
        let inner = self.reduced_quotient(exprs, division.dividend, division.divisor);
        division.quotient.plus(&inner)
    }

    /// `dividend - divisor * floor(dividend / divisor)`, `divisor > 0`.
    pub(super) fn remainder(&mut self, exprs: &mut Exprs, dividend: &Linear, divisor: i64) -> Linear {
        if !is_moderate(dividend) {
            return Linear::atom(floor_rem(exprs, dividend.clone(), divisor));
        }
        let division = self.reduce(exprs, dividend, divisor);
        let inner = self.reduced_remainder(exprs, division.dividend, division.divisor);
        division.offset.plus_scaled(&inner, division.scale)
    }

    /// The quotient of a division that [`Simplifier::reduce`] leaves. Nested divisions merge:
    /// `floor((floor(x / a) + k) / d) = floor((x + k*a) / (a*d))`, `floor((x mod d*m) / d) = floor(x / d) mod m`.
    fn reduced_quotient(&mut self, exprs: &mut Exprs, dividend: Linear, divisor: i64) -> Linear {
        if divisor == 1 {
            return dividend;
        }
        let k = dividend.constant_term();
        if let Some(atom) = dividend.plus_constant(-k).as_atom() {
            match *exprs.get(atom) {
                Expr::FloorDiv(x, a) => {
                    let inner = exprs.as_int(a).filter(|&a| a > 0);
                    let merged = inner.and_then(|a| Some((k.checked_mul(a)?, divisor.checked_mul(a)?)));
                    if let Some((offset, divisor)) = merged {
                        let x = self.form(exprs, x).plus_constant(offset);
                        return self.quotient(exprs, &x, divisor);
                    }
                }
                Expr::FloorRem(x, m) if k == 0 => {
                    if let Some(m) = exprs.as_int(m).filter(|&m| m > 0 && m % divisor == 0) {
                        let x = self.form(exprs, x);
                        let high = self.quotient(exprs, &x, divisor);
                        return self.remainder(exprs, &high, m / divisor);
                    }
                }
                _ => {}
            }
        }
        let dividend = self.sum(exprs, dividend);
        let divisor = exprs.index(divisor);
        let quotient = exprs.floor_div(dividend, divisor);
        self.atom_or_constant(exprs, quotient)
    }

    /// The remainder of a division that [`Simplifier::reduce`] leaves. Inner remainders that do not matter go:
    /// `(c * (x mod m) + r) mod d = (c * x + r) mod d` if `d` divides `c * m`.
    fn reduced_remainder(&mut self, exprs: &mut Exprs, dividend: Linear, divisor: i64) -> Linear {
        if divisor == 1 {
            return Linear::constant(0);
        }
        let mut unwrapped = dividend.clone();
        for &(atom, c) in dividend.terms() {
            if let Expr::FloorRem(x, m) = *exprs.get(atom)
                && let Some(m) = exprs.as_int(m)
                && i128::from(c) * i128::from(m) % i128::from(divisor) == 0
            {
                unwrapped = unwrapped.plus_term(atom, -c).plus_scaled(&self.form(exprs, x), c);
            }
        }
        if unwrapped != dividend {
            return self.remainder(exprs, &unwrapped, divisor);
        }
        let dividend = self.sum(exprs, dividend);
        let divisor = exprs.index(divisor);
        let remainder = exprs.floor_rem(dividend, divisor);
        self.atom_or_constant(exprs, remainder)
    }

    fn atom_or_constant(&mut self, exprs: &Exprs, atom: ExprId) -> Linear {
        self.bounds.of(exprs, atom).as_exact().map_or_else(|| Linear::atom(atom), Linear::constant)
    }

    /// Applies the steps of this file until none does.
    fn reduce(&mut self, exprs: &Exprs, dividend: &Linear, divisor: i64) -> Division {
        let mut division = Division {
            quotient: Linear::default(),
            offset: Linear::default(),
            scale: 1,
            dividend: dividend.clone(),
            divisor,
        };
        loop {
            take_multiples(&mut division);
            if division.divisor == 1 {
                division.quotient = division.quotient.plus(&division.dividend);
                division.dividend = Linear::constant(0);
                return division;
            }
            if self.is_one_period(exprs, &mut division) {
                return division;
            }
            let is_smaller = take_common_factor(&mut division) || self.take_small(exprs, &mut division);
            if !is_smaller {
                return division;
            }
        }
    }

    /// Step 2, also after taking the multiples out of coefficients that `d` does not divide.
    fn is_one_period(&mut self, exprs: &Exprs, division: &mut Division) -> bool {
        let (rest, divisor) = (division.dividend.clone(), division.divisor);
        if let Some(periods) = self.period(exprs, &rest, divisor) {
            division.finish(&rest, periods);
            return true;
        }
        let multiples = scaled_terms(&rest, |c| c / divisor);
        let small = rest.plus_scaled(&multiples, -divisor);
        match self.period(exprs, &small, divisor) {
            Some(periods) if small != rest => {
                division.quotient = division.quotient.plus(&multiples);
                division.finish(&small, periods);
                true
            }
            _ => false,
        }
    }

    /// `floor(sum / length)`, if it is one number.
    fn period(&mut self, exprs: &Exprs, sum: &Linear, length: i64) -> Option<i64> {
        let (low, high) = self.bounds.of_linear(exprs, sum);
        let (low, high) = (low.div_euclid(length.into()), high.div_euclid(length.into()));
        (low == high).then(|| i64::try_from(low).ok()).flatten()
    }

    /// Step 4.
    fn take_small(&mut self, exprs: &Exprs, division: &mut Division) -> bool {
        let (rest, divisor) = (division.dividend.clone(), division.divisor);
        let divisors: Vec<(ExprId, i64)> = (rest.terms().iter())
            .map(|&(atom, c)| (atom, gcd(self.bounds.term_divisor(exprs, atom, c), divisor)))
            .collect();
        let mut candidates: Vec<i64> = divisors.iter().map(|&(_, g)| g).filter(|&g| g > 1).collect();
        candidates.sort_unstable_by(|a, b| b.cmp(a));
        candidates.dedup();
        for g in candidates {
            let is_multiple = |atom: ExprId| divisors.iter().any(|&(a, d)| a == atom && d % g == 0);
            let large = rest.filtered(|atom, _| is_multiple(atom));
            let k = rest.constant_term();
            let small = rest.filtered(|atom, _| !is_multiple(atom)).plus_constant(k.rem_euclid(g));
            if small.as_constant() == Some(0) {
                continue;
            }
            if let Some(periods) = self.period(exprs, &small, g) {
                let carried = k - k.rem_euclid(g) + periods * g;
                division.offset =
                    division.offset.plus_scaled(&small.plus_constant(-periods * g), division.scale);
                division.dividend = large.plus_constant(carried);
                return true;
            }
        }
        false
    }
}

/// Step 1.
fn take_multiples(division: &mut Division) {
    let (rest, divisor) = (&division.dividend, division.divisor);
    let k = rest.constant_term();
    let multiples = scaled_terms(rest, |c| if c % divisor == 0 { c / divisor } else { 0 })
        .plus_constant(k.div_euclid(divisor));
    division.dividend = rest.plus_scaled(&multiples, -divisor);
    division.quotient = division.quotient.plus(&multiples);
}

/// Step 3.
fn take_common_factor(division: &mut Division) -> bool {
    let rest = &division.dividend;
    let g = gcd(rest.content(), division.divisor);
    if g <= 1 {
        return false;
    }
    let k = rest.constant_term();
    division.offset = division.offset.plus_constant(k.rem_euclid(g).wrapping_mul(division.scale));
    division.dividend = scaled_terms(rest, |c| c / g).plus_constant(k.div_euclid(g));
    division.divisor /= g;
    division.scale *= g;
    true
}

/// The terms with their coefficients mapped, without the constant.
fn scaled_terms(sum: &Linear, map: impl Fn(i64) -> i64) -> Linear {
    sum.terms().iter().fold(Linear::default(), |result, &(atom, c)| result.plus_term(atom, map(c)))
}

fn floor_div(exprs: &mut Exprs, dividend: Linear, divisor: i64) -> ExprId {
    let (dividend, divisor) = (dividend.to_expr(exprs), exprs.index(divisor));
    exprs.floor_div(dividend, divisor)
}

fn floor_rem(exprs: &mut Exprs, dividend: Linear, divisor: i64) -> ExprId {
    let (dividend, divisor) = (dividend.to_expr(exprs), exprs.index(divisor));
    exprs.floor_rem(dividend, divisor)
}
