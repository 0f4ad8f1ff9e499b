//! Expressions in index notation: what a region computes, without layouts, in a normal form.
//!
//! A value depends on a set of labels; broadcasting it along other labels needs no expression. The constructors
//! recognise the operators that programs have (sigmoid, SiLU, GELU, RMS norm), move constant scales out of products and
//! contractions, and leave out the maximum in `exp(x - max(x))`. Equal expressions have the same id.

use super::index::Label;
use crate::op::{BinaryFn, ReduceFn, UnaryFn};
use crate::rational::Rational;
use std::collections::{BTreeMap, BTreeSet};

/// An expression's number.
pub(super) type ExprId = usize;

/// How a value along an index of extent `n` becomes one along an index of extent `2 n`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Doubling {
    /// `[a, b]` to `[a, b, a, b]`.
    Concat,
    /// `[a, b]` to `[a, a, b, b]`.
    Repeat,
}

/// What a value is.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Expr {
    /// The bits of a number.
    Const(u64),
    /// A tensor that is read, by position.
    Input(usize),
    /// 1 where `column <= row + offset`.
    Causal {
        row: Label,
        column: Label,
        offset: i64,
    },
    Unary(UnaryFn, ExprId),
    Scale(Rational, ExprId),
    Offset(Rational, ExprId),
    Binary(BinaryFn, ExprId, ExprId),
    /// `1 / x`
    Recip(ExprId),
    /// True for NaN.
    IsNan(ExprId),
    Reduce(ReduceFn, Vec<Label>, ExprId),
    /// The sum of products over labels that both depend on.
    Contract(Vec<Label>, ExprId, ExprId),
    /// `x / sqrt(mean of x² over the labels + eps)`
    RmsNorm(Rational, Vec<Label>, ExprId),
    /// Along a label, as [`Op::Rotate`](crate::Op::Rotate) with this group.
    Rotate(Label, usize, ExprId),
    /// An input that has the label `part`, doubled to the label `whole`.
    Doubled {
        how: Doubling,
        whole: Label,
        part: Label,
        x: ExprId,
    },
    /// Two values concatenated along a label, in whose place each value has labels of its own.
    Concat(Label, [Vec<Label>; 2], [ExprId; 2]),
}

impl Expr {
    /// The operands.
    pub(super) fn operands(&self) -> Vec<ExprId> {
        match self {
            Expr::Const(_) | Expr::Input(_) | Expr::Causal { .. } => Vec::new(),
            Expr::Unary(_, x) | Expr::Scale(_, x) | Expr::Offset(_, x) | Expr::Recip(x) => vec![*x],
            Expr::IsNan(x) | Expr::Reduce(_, _, x) | Expr::RmsNorm(_, _, x) => vec![*x],
            Expr::Rotate(_, _, x) | Expr::Doubled { x, .. } => vec![*x],
            Expr::Binary(_, a, b) | Expr::Contract(_, a, b) | Expr::Concat(_, _, [a, b]) => vec![*a, *b],
        }
    }
}

/// All expressions of a region.
#[derive(Clone, Debug, Default)]
pub(super) struct Exprs {
    exprs: Vec<Expr>,
    labels: Vec<BTreeSet<Label>>,
    known: BTreeMap<Expr, ExprId>,
    /// The extent of each label.
    pub(super) extents: BTreeMap<Label, usize>,
    /// The labels of each input.
    pub(super) inputs: Vec<BTreeSet<Label>>,
    /// Exponentials from whose exponents a maximum was subtracted, which was left out, and the labels that it was over.
    pub(super) without_maximum: BTreeMap<ExprId, BTreeSet<Label>>,
    /// Exponentials from whose exponents nothing was subtracted.
    pub(super) plain: BTreeSet<ExprId>,
    /// Masked values for which the primitives use a large negative number instead of minus infinity.
    pub(super) finite_masks: BTreeSet<ExprId>,
    /// Values in which the primitives replace NaN by 0.
    pub(super) without_nan: BTreeSet<ExprId>,
    /// Lower bounds of the lengths that the primitives divide vectors by; the normalisation operator has no such bound.
    pub(super) without_bound: Vec<f64>,
}

impl Exprs {
    pub(super) fn get(&self, id: ExprId) -> &Expr {
        &self.exprs[id]
    }

    /// The labels that a value depends on.
    pub(super) fn labels(&self, id: ExprId) -> &BTreeSet<Label> {
        &self.labels[id]
    }

    /// The value of a constant.
    pub(super) fn number(&self, id: ExprId) -> Option<f64> {
        match self.exprs[id] {
            Expr::Const(bits) => Some(f64::from_bits(bits)),
            _ => None,
        }
    }

    /// The id of an expression, with the labels that follow from its operands.
    pub(super) fn add_expr(&mut self, expr: Expr) -> ExprId {
        if let Some(&id) = self.known.get(&expr) {
            return id;
        }
        let mut labels: BTreeSet<Label> =
            expr.operands().iter().flat_map(|operand| self.labels[*operand].iter().copied()).collect();
        match &expr {
            Expr::Input(input) => labels.clone_from(&self.inputs[*input]),
            Expr::Causal { row, column, .. } => labels.extend([*row, *column]),
            Expr::Reduce(_, summed, _) | Expr::Contract(summed, ..) => {
                labels.retain(|label| !summed.contains(label));
            }
            Expr::Doubled { whole, part, .. } => {
                labels.remove(part);
                labels.insert(*whole);
            }
            Expr::Concat(whole, parts, _) => {
                labels.retain(|label| !parts.iter().flatten().any(|part| part == label));
                labels.insert(*whole);
            }
            _ => {}
        }
        self.exprs.push(expr.clone());
        self.labels.push(labels);
        self.known.insert(expr, self.exprs.len() - 1);
        self.exprs.len() - 1
    }

    /// Merges two labels in all expressions: `inner` becomes the label of both, `outer` is removed.
    pub(super) fn join(&mut self, outer: Label, inner: Label) {
        let times = self.extents.remove(&outer).unwrap_or(1);
        let within = self.extents.get(&inner).copied().unwrap_or(1);
        if let Some(extent) = self.extents.get_mut(&inner) {
            *extent *= times;
        }
        for labels in self.labels.iter_mut().chain(&mut self.inputs).chain(self.without_maximum.values_mut())
        {
            labels.remove(&outer);
        }
        for expr in &mut self.exprs {
            if let Expr::Reduce(_, over, _) | Expr::Contract(over, ..) | Expr::RmsNorm(_, over, _) = expr {
                over.retain(|label| *label != outer);
            }
            if let Expr::Concat(_, parts, _) = expr {
                parts.iter_mut().for_each(|part| part.retain(|label| *label != outer));
            }
            if let Expr::Rotate(label, group, _) = expr
                && *label == outer
            {
                (*label, *group) = (inner, *group * within);
            }
        }
        self.known = self.exprs.iter().cloned().enumerate().map(|(id, expr)| (expr, id)).collect();
    }

    /// Replaces an input along `part` by the input doubled to `whole`, which has twice the extent, for all its users.
    /// The input's own label is then a new one, which is returned.
    pub(super) fn double_input(&mut self, how: Doubling, whole: Label, part: Label, input: ExprId) -> Label {
        let name = self.extents.last_key_value().map_or(0, |(label, _)| label + 1);
        self.extents.insert(name, self.extents[&part]);
        if let Expr::Input(position) = self.exprs[input] {
            self.inputs[position].remove(&part);
            self.inputs[position].insert(name);
        }
        let mut own = self.labels[input].clone();
        own.remove(&part);
        own.insert(name);
        self.labels[input].insert(whole);
        self.labels.push(own);
        self.exprs.push(self.exprs[input].clone());
        self.exprs[input] = Expr::Doubled { how, whole, part: name, x: self.exprs.len() - 1 };
        name
    }

    pub(super) fn constant(&mut self, value: f64) -> ExprId {
        self.add_expr(Expr::Const(value.to_bits()))
    }

    /// `c * x`
    pub(super) fn scale(&mut self, c: Rational, x: ExprId) -> Option<ExprId> {
        if c == Rational::ONE {
            return Some(x);
        }
        match *self.get(x) {
            Expr::Const(bits) => Some(self.constant(c.to_f64() * f64::from_bits(bits))),
            Expr::Scale(inner, y) => match c.times(inner) {
                Some(product) => self.scale(product, y),
                None => Some(self.add_expr(Expr::Scale(c, x))),
            },
            _ => Some(self.gelu(c, x).unwrap_or_else(|| self.add_expr(Expr::Scale(c, x)))),
        }
    }

    /// `x + c`
    pub(super) fn offset(&mut self, c: Rational, x: ExprId) -> Option<ExprId> {
        match *self.get(x) {
            _ if c == Rational::ZERO => Some(x),
            Expr::Const(bits) => Some(self.constant(c.to_f64() + f64::from_bits(bits))),
            _ => Some(self.add_expr(Expr::Offset(c, x))),
        }
    }

    /// A function of one value other than the exponential; `None` for constants.
    pub(super) fn unary(&mut self, f: UnaryFn, x: ExprId) -> Option<ExprId> {
        self.number(x).is_none().then(|| self.add_expr(Expr::Unary(f, x)))
    }

    /// `e^x`. For `x = a - max(a)` it is `e^a`, recorded in `without_maximum`; any other exponent in `plain`.
    pub(super) fn exp(&mut self, x: ExprId) -> Option<ExprId> {
        let relative = match *self.get(x) {
            Expr::Binary(BinaryFn::Sub, a, max) => match self.get(max) {
                Expr::Reduce(ReduceFn::Max, over, of) if *of == a => Some((a, over.clone())),
                _ => None,
            },
            _ => None,
        };
        let Some((exponent, over)) = relative else {
            let exp = self.unary(UnaryFn::Exp, x)?;
            self.plain.insert(exp);
            return Some(exp);
        };
        let exp = self.unary(UnaryFn::Exp, exponent)?;
        let over: BTreeSet<Label> = over.into_iter().collect();
        let known = self.without_maximum.entry(exp).or_insert_with(|| over.clone());
        known.retain(|label| over.contains(label));
        Some(exp)
    }

    /// [`Expr::Rotate`]: rotates pairs of elements that are `group` apart along a label. `None` if the value does not
    /// depend on the label.
    pub(super) fn rotate(&mut self, label: Label, group: usize, x: ExprId) -> Option<ExprId> {
        self.labels(x).contains(&label).then(|| self.add_expr(Expr::Rotate(label, group, x)))
    }

    /// `a + b`
    pub(super) fn add(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        match (self.number(a), self.number(b)) {
            (Some(a), Some(b)) => Some(self.constant(a + b)),
            (Some(c), None) => self.offset(rational(c)?, b),
            (None, Some(c)) => self.offset(rational(c)?, a),
            (None, None) => Some(self.add_expr(Expr::Binary(BinaryFn::Add, a, b))),
        }
    }

    /// `a - b`
    pub(super) fn sub(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        match (self.number(a), self.number(b)) {
            (None, None) => Some(self.add_expr(Expr::Binary(BinaryFn::Sub, a, b))),
            _ => {
                let negated = self.scale(Rational::ONE.negated(), b)?;
                self.add(a, negated)
            }
        }
    }

    /// `a b`, elementwise
    pub(super) fn mul(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        match (self.number(a), self.number(b)) {
            (Some(c), _) => return self.scale(rational(c)?, b),
            (None, Some(c)) => return self.scale(rational(c)?, a),
            (None, None) => {}
        }
        if a == b {
            return self.unary(UnaryFn::Square, a);
        }
        match (self.get(a).clone(), self.get(b).clone()) {
            (Expr::Scale(c, x), _) => {
                let product = self.mul(x, b)?;
                self.scale(c, product)
            }
            (_, Expr::Scale(c, y)) => {
                let product = self.mul(a, y)?;
                self.scale(c, product)
            }
            (_, Expr::Recip(y)) => self.div(a, y),
            (Expr::Recip(x), _) => self.div(b, x),
            (_, Expr::Unary(UnaryFn::Sigmoid, y)) if y == a => self.unary(UnaryFn::Silu, a),
            (Expr::Unary(UnaryFn::Sigmoid, x), _) if x == b => self.unary(UnaryFn::Silu, b),
            _ => Some(self.add_expr(Expr::Binary(BinaryFn::Mul, a, b))),
        }
    }

    /// `a / b`, elementwise
    pub(super) fn div(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        if let Some(c) = self.number(b) {
            return self.scale(inverse(rational(c)?)?, a);
        }
        if let Some(c) = self.number(a) {
            let inverse = self.recip(b)?;
            return self.scale(rational(c)?, inverse);
        }
        if let Some(x) = self.one_plus_exp_of_negated(b) {
            let sigmoid = self.unary(UnaryFn::Sigmoid, x)?;
            return self.mul(a, sigmoid);
        }
        if let Some(normalised) = self.normalised(a, b) {
            return Some(normalised);
        }
        match self.get(a).clone() {
            Expr::Scale(c, x) => {
                let quotient = self.div(x, b)?;
                self.scale(c, quotient)
            }
            _ => Some(self.add_expr(Expr::Binary(BinaryFn::Div, a, b))),
        }
    }

    /// `1 / x`
    pub(super) fn recip(&mut self, x: ExprId) -> Option<ExprId> {
        match self.one_plus_exp_of_negated(x) {
            Some(y) => self.unary(UnaryFn::Sigmoid, y),
            None => Some(self.add_expr(Expr::Recip(x))),
        }
    }

    /// The elementwise maximum
    pub(super) fn max(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        match (self.number(a), self.number(b)) {
            (None, Some(0.0)) => self.unary(UnaryFn::Relu, a),
            (Some(0.0), None) => self.unary(UnaryFn::Relu, b),
            _ => Some(self.add_expr(Expr::Binary(BinaryFn::Max, a, b))),
        }
    }

    /// A sum or maximum over labels. A sum over labels that the value does not depend on is a multiple of the value.
    pub(super) fn reduce(&mut self, f: ReduceFn, over: &[Label], x: ExprId) -> Option<ExprId> {
        let (mut own, others): (Vec<Label>, Vec<Label>) =
            over.iter().partition(|label| self.labels(x).contains(label));
        own.sort_unstable();
        let times: usize = others.iter().map(|label| self.extents[label]).product();
        let reduced = if own.is_empty() { x } else { self.add_expr(Expr::Reduce(f, own, x)) };
        match f {
            ReduceFn::Max => Some(reduced),
            ReduceFn::Sum => self.scale(Rational::new(i64::try_from(times).ok()?, 1)?, reduced),
        }
    }

    /// The sum of products over labels. `None` unless both operands depend on all of them and there is at least one.
    pub(super) fn contract(&mut self, over: &[Label], a: ExprId, b: ExprId) -> Option<ExprId> {
        let is_shared = |label: &Label| self.labels(a).contains(label) && self.labels(b).contains(label);
        if over.is_empty() || !over.iter().all(is_shared) {
            return None;
        }
        match (self.get(a).clone(), self.get(b).clone()) {
            (Expr::Scale(c, x), _) => {
                let product = self.contract(over, x, b)?;
                self.scale(c, product)
            }
            (_, Expr::Scale(c, y)) => {
                let product = self.contract(over, a, y)?;
                self.scale(c, product)
            }
            _ => {
                let mut over = over.to_vec();
                over.sort_unstable();
                Some(self.add_expr(Expr::Contract(over, a, b)))
            }
        }
    }

    /// `x`, for the expression `1 + e^-x`.
    fn one_plus_exp_of_negated(&self, id: ExprId) -> Option<ExprId> {
        let Expr::Offset(Rational::ONE, exp) = *self.get(id) else { return None };
        let Expr::Unary(UnaryFn::Exp, exponent) = *self.get(exp) else { return None };
        match *self.get(exponent) {
            Expr::Scale(c, x) if c == Rational::ONE.negated() => Some(x),
            _ => None,
        }
    }

    /// `a / b` as an RMS norm: `b` is `sqrt(mean(a²) + eps)`, or the length `sqrt(sum(a²))`, perhaps bounded from
    /// below.
    fn normalised(&mut self, a: ExprId, b: ExprId) -> Option<ExprId> {
        let (root, bound) = match *self.get(b) {
            Expr::Binary(BinaryFn::Max, root, bound) => (root, self.number(bound)?),
            _ => (b, 0.0),
        };
        let Expr::Unary(UnaryFn::Sqrt, under) = *self.get(root) else { return None };
        let (eps, mean) = match *self.get(under) {
            Expr::Offset(eps, mean) => (eps, mean),
            _ => (Rational::ZERO, under),
        };
        let (scale, sum) = match *self.get(mean) {
            Expr::Scale(scale, sum) => (scale, sum),
            _ => (Rational::ONE, mean),
        };
        let Expr::Reduce(ReduceFn::Sum, over, square) = self.get(sum).clone() else { return None };
        if *self.get(square) != Expr::Unary(UnaryFn::Square, a) || (bound != 0.0 && eps != Rational::ZERO) {
            return None;
        }
        let count: usize = over.iter().map(|label| self.extents[label]).product();
        let is_mean = scale.to_f64() as f32 == (1.0 / count as f64) as f32;
        let norm = |eps| Expr::RmsNorm(eps, over.clone(), a);
        let normalised = match (is_mean, scale == Rational::ONE) {
            (true, _) => self.add_expr(norm(eps)),
            // The length is the root mean square times the square root of the count, which must be an integer.
            (false, true) if eps == Rational::ZERO => {
                let root = count.isqrt();
                if root * root != count {
                    return None;
                }
                let normalised = self.add_expr(norm(Rational::ZERO));
                self.scale(Rational::one_over(root)?, normalised)?
            }
            _ => return None,
        };
        if bound > MAX_LENGTH_BOUND {
            return None;
        }
        if bound > 0.0 {
            self.without_bound.push(bound);
        }
        Some(normalised)
    }

    /// `c x` as a GELU in its tanh form: `c = 1/2` and `x = y (1 + tanh(√(2/π) (y + 0.044715 y³)))`.
    fn gelu(&mut self, c: Rational, x: ExprId) -> Option<ExprId> {
        let Expr::Binary(BinaryFn::Mul, a, b) = *self.get(x) else { return None };
        let half = Rational::new(1, 2)?;
        let is_gelu = |y: ExprId, one_plus_tanh: ExprId| {
            let Expr::Offset(Rational::ONE, tanh) = *self.get(one_plus_tanh) else { return false };
            let Expr::Unary(UnaryFn::Tanh, scaled) = *self.get(tanh) else { return false };
            let Expr::Scale(outer, sum) = *self.get(scaled) else { return false };
            let Expr::Binary(BinaryFn::Add, lhs, rhs) = *self.get(sum) else { return false };
            let cubic = if lhs == y { rhs } else { lhs };
            let Expr::Scale(inner, cube) = *self.get(cubic) else { return false };
            let Expr::Binary(BinaryFn::Mul, p, q) = *self.get(cube) else { return false };
            let square = if p == y { q } else { p };
            (lhs == y || rhs == y)
                && (p == y || q == y)
                && *self.get(square) == Expr::Unary(UnaryFn::Square, y)
                && outer.to_f64() as f32 == 0.797_884_560_802_865_4_f64 as f32
                && inner.to_f64() as f32 == 0.044_715_f32
        };
        let (holds, y) = if is_gelu(a, b) { (true, a) } else { (is_gelu(b, a), b) };
        (holds && c == half).then(|| self.add_expr(Expr::Unary(UnaryFn::Gelu, y)))
    }
}

/// Lower bounds of a length up to this one are treated as guards against division by zero.
const MAX_LENGTH_BOUND: f64 = 1e-6;

/// A number as an exact ratio; `None` if numerator or denominator does not fit in 64 bits.
pub(super) fn rational(value: f64) -> Option<Rational> {
    if !value.is_finite() {
        return None;
    }
    let (mut num, mut den) = (value, 1i64);
    while num.fract() != 0.0 {
        num *= 2.0;
        den = den.checked_mul(2)?;
    }
    // Magnitudes below 2^62 are exact integers of 64 bits.
    (num.abs() < 2f64.powi(62)).then(|| Rational::new(num as i64, den))?
}

fn inverse(ratio: Rational) -> Option<Rational> {
    Rational::new(ratio.den(), ratio.num())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_or_refused() {
        assert_eq!(rational(0.125).map(|r| r.to_string()), Some("1/8".into()));
        assert_eq!(rational(f64::from(0.1f32)).map(Rational::to_f64), Some(f64::from(0.1f32)));
        assert_eq!(rational(-3.0).map(|r| r.to_string()), Some("-3".into()));
        assert_eq!(rational(1e-30), None);
        assert_eq!(rational(f64::NEG_INFINITY), None);
    }
}
