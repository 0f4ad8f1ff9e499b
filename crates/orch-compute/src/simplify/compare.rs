//! Comparisons of index expressions, and conjunctions of them.
//!
//! `a < b` and the like become `T <= K` for a sum `T` without constant and a constant `K`. It is decided by the
//! range of `T` where possible. Otherwise
//!
//! - common factors leave: `g*T <= K` is `T <= floor(K / g)`;
//! - small summands leave: with `T = G + S`, `G` always a multiple of `g`, and `floor((K - S) / g) = m` for all
//!   values of `S`, it is `G <= m*g`. A guard of a vector whose bound is aligned thus loses the lane.

use super::{Simplifier, is_moderate};
use crate::affine::{Linear, gcd};
use crate::expr::{Expr, ExprId, Exprs, Type};
use orch_ir::CompareFn;

impl Simplifier {
    /// `a f b` of simplified index expressions.
    pub(super) fn comparison(&mut self, exprs: &mut Exprs, f: CompareFn, a: ExprId, b: ExprId) -> ExprId {
        let (a_form, b_form) = (self.form(exprs, a), self.form(exprs, b));
        let difference = a_form.plus_scaled(&b_form, -1);
        if !self.is_exact(exprs, &a_form) || !self.is_exact(exprs, &b_form) || !is_moderate(&difference) {
            return exprs.compare(f, a, b);
        }
        let simpler = match f {
            CompareFn::Lt => self.at_most_zero(exprs, difference.plus_constant(1)),
            CompareFn::Le => self.at_most_zero(exprs, difference),
            CompareFn::Gt => self.at_most_zero(exprs, difference.scaled(-1).plus_constant(1)),
            CompareFn::Ge => self.at_most_zero(exprs, difference.scaled(-1)),
            CompareFn::Eq => self.is_zero(exprs, difference),
            CompareFn::Ne => self.is_zero(exprs, difference).map(|is_zero| exprs.not(is_zero)),
        };
        simpler.unwrap_or_else(|| exprs.compare(f, a, b))
    }

    /// `sum <= 0`, or `None` if its sides would overflow.
    fn at_most_zero(&mut self, exprs: &mut Exprs, mut sum: Linear) -> Option<ExprId> {
        loop {
            let (low, high) = self.bounds.of_linear(exprs, &sum);
            if high <= 0 || low > 0 {
                return Some(exprs.bool(high <= 0));
            }
            let content = sum.content();
            let bound = sum.constant_term().checked_neg()?.div_euclid(content);
            let reduced = sum.filtered(|_, _| true);
            let reduced = (reduced.terms().iter())
                .fold(Linear::default(), |terms, &(atom, c)| terms.plus_term(atom, c / content));
            match self.without_small(exprs, &reduced, bound) {
                Some(smaller) => sum = smaller,
                None => return self.upper_bound(exprs, &reduced, bound),
            }
        }
    }

    /// For `terms <= bound`, an equivalent `sum <= 0` with fewer terms.
    fn without_small(&mut self, exprs: &Exprs, terms: &Linear, bound: i64) -> Option<Linear> {
        let divisors: Vec<(ExprId, i64)> = (terms.terms().iter())
            .map(|&(atom, c)| (atom, gcd(self.bounds.term_divisor(exprs, atom, c), 0)))
            .collect();
        for &(_, g) in &divisors {
            let is_multiple = |atom: ExprId| divisors.iter().any(|&(a, d)| a == atom && d % g.max(1) == 0);
            let small = terms.filtered(|atom, _| !is_multiple(atom));
            if g <= 1 || small.terms().is_empty() {
                continue;
            }
            let (low, high) = self.bounds.of_linear(exprs, &small);
            let m = (i128::from(bound) - low).div_euclid(g.into());
            if m == (i128::from(bound) - high).div_euclid(g.into()) {
                let new_bound = i64::try_from(m * i128::from(g)).ok()?;
                return Some(terms.filtered(|atom, _| is_multiple(atom)).plus_constant(-new_bound));
            }
        }
        None
    }

    /// `terms <= bound` as an expression whose sides have no negative coefficient.
    fn upper_bound(&mut self, exprs: &mut Exprs, terms: &Linear, bound: i64) -> Option<ExprId> {
        let left = terms.filtered(|_, c| c > 0);
        let right = terms.filtered(|_, c| c < 0).scaled(-1);
        let above = bound.checked_add(1)?;
        let (f, left, right) = if right.terms().is_empty() {
            (CompareFn::Lt, left, right.plus_constant(above))
        } else if left.terms().is_empty() {
            (CompareFn::Ge, right, left.plus_constant(bound.checked_neg()?))
        } else if bound >= 0 {
            (CompareFn::Le, left, right.plus_constant(bound))
        } else {
            (CompareFn::Lt, left.plus_constant(-above), right)
        };
        self.compare_sums(exprs, f, left, right)
    }

    /// `sum == 0`, or `None` if its sides would overflow.
    fn is_zero(&mut self, exprs: &mut Exprs, sum: Linear) -> Option<ExprId> {
        let (low, high) = self.bounds.of_linear(exprs, &sum);
        let divisor = self.bounds.divisor(exprs, &sum);
        let k = sum.constant_term();
        if sum.terms().is_empty() || low > 0 || high < 0 || (divisor != 0 && k % divisor != 0) {
            return Some(exprs.bool(sum.as_constant() == Some(0)));
        }
        let content = sum.content();
        if k % content != 0 {
            return Some(exprs.bool(false));
        }
        let terms = (sum.terms().iter())
            .fold(Linear::default(), |terms, &(atom, c)| terms.plus_term(atom, c / content));
        let left = terms.filtered(|_, c| c > 0);
        let right = terms.filtered(|_, c| c < 0).scaled(-1);
        let bound = k.checked_neg()? / content;
        if left.terms().is_empty() {
            return self.compare_sums(exprs, CompareFn::Eq, right, Linear::constant(-bound));
        }
        self.compare_sums(exprs, CompareFn::Eq, left, right.plus_constant(bound))
    }

    fn compare_sums(
        &mut self,
        exprs: &mut Exprs,
        f: CompareFn,
        left: Linear,
        right: Linear,
    ) -> Option<ExprId> {
        if !self.is_exact(exprs, &left) || !self.is_exact(exprs, &right) {
            return None;
        }
        let (left, right) = (self.sum(exprs, left), self.sum(exprs, right));
        Some(exprs.compare(f, left, right))
    }

    /// `a && b` of simplified booleans: each conjunct once, in order of id, of several bounds on one expression
    /// the tightest, and false if they contradict.
    pub(super) fn conjunction(&mut self, exprs: &mut Exprs, a: ExprId, b: ExprId) -> ExprId {
        let mut conjuncts = [exprs.conjuncts(a), exprs.conjuncts(b)].concat();
        conjuncts.sort_unstable();
        conjuncts.dedup();
        let intervals: Vec<Option<Interval>> = conjuncts.iter().map(|&id| interval(exprs, id)).collect();
        if contradict(&intervals) {
            return exprs.bool(false);
        }
        let is_implied = |at: usize| {
            let Some(weak) = intervals[at] else { return false };
            intervals.iter().enumerate().any(|(other, strong)| {
                other != at
                    && strong.is_some_and(|strong| strong.implies(weak) && (strong != weak || other < at))
            })
        };
        let kept: Vec<ExprId> =
            (0..conjuncts.len()).filter(|&at| !is_implied(at)).map(|at| conjuncts[at]).collect();
        exprs.all(kept)
    }
}

/// A comparison with a constant: `low <= of <= high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interval {
    of: ExprId,
    low: i64,
    high: i64,
}

impl Interval {
    fn implies(self, other: Self) -> bool {
        self.of == other.of && other.low <= self.low && self.high <= other.high
    }
}

fn interval(exprs: &Exprs, id: ExprId) -> Option<Interval> {
    let Expr::Compare(f, of, bound) = *exprs.get(id) else { return None };
    let bound = exprs.as_int(bound).filter(|_| exprs.ty(of) == Type::INDEX)?;
    let (low, high) = match f {
        CompareFn::Lt => (i64::MIN, bound.checked_sub(1)?),
        CompareFn::Le => (i64::MIN, bound),
        CompareFn::Gt => (bound.checked_add(1)?, i64::MAX),
        CompareFn::Ge => (bound, i64::MAX),
        CompareFn::Eq => (bound, bound),
        CompareFn::Ne => return None,
    };
    Some(Interval { of, low, high })
}

/// True if two conjuncts bound one expression to disjoint intervals.
fn contradict(intervals: &[Option<Interval>]) -> bool {
    let known: Vec<&Interval> = intervals.iter().flatten().collect();
    let disjoint = |a: &Interval, b: &Interval| a.of == b.of && (a.high < b.low || b.high < a.low);
    (known.iter().enumerate()).any(|(at, a)| known[at + 1..].iter().any(|b| disjoint(a, b)))
}
