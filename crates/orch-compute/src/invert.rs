//! Inverses of index maps, derived from their mixed-radix form and checked. They turn a consumer into an epilogue
//! (Hidet, ASPLOS'23, section 4.2, where inverses are registered by hand).
//!
//! A map `(x_0, x_1, ..) -> index` onto a shape is first flattened to one number, row-major. If that is
//!
//! ```text
//! f = sum of c_i * digit_i        c_0 = 1,  c_(i+1) = c_i * n_i,  0 <= digit_i < n_i
//! ```
//!
//! then `digit_i = floor(f / c_i) mod n_i`. Digits are variables, or digits `floor(y / a) mod n` of expressions `y`
//! over them, in which case the digits of one `y` must make up all of it, and `y` is inverted in turn. This covers
//! any chain of reshapes, transpositions and flips. Other bijections (rotations, say) are not found.

use crate::expr::substitute::Substitution;
use crate::expr::{Expr, ExprId, Exprs, VarId};
use crate::simplify::Simplifier;
use rustc_hash::FxHashMap;

/// Up to this many points, an inverse that is not proved is checked at every point.
const MAX_ENUMERATED_POINTS: usize = 4096;

/// The inverse of the index map `axes -> index`: if `index` (over the variables `axes`, each of a declared range
/// `0..=n`) runs through every point of `0..shape` exactly once, the value of each axis as an expression over the
/// point `at`. `None` if the map is no such bijection, or not of a form that can be inverted.
///
/// # Panics
/// If `index`, `shape` and `at` differ in length.
pub fn invert_index(
    exprs: &mut Exprs,
    index: &[ExprId],
    shape: &[usize],
    axes: &[VarId],
    at: &[ExprId],
) -> Option<Vec<ExprId>> {
    assert!(
        index.len() == shape.len() && at.len() == shape.len(),
        "one index and one position per dimension"
    );
    let points: usize = shape.iter().product();
    let mut domain = 1usize;
    for &axis in axes {
        domain = domain.checked_mul(extent(exprs, axis)?)?;
    }
    if points == 0 || domain != points {
        return None;
    }
    let mut simplifier = Simplifier::new();
    let index = index.iter().map(|&position| simplifier.simplify(exprs, position)).collect();
    let point: Vec<VarId> = shape.iter().map(|&extent| exprs.declare_index("y", extent)).collect();
    let map = IndexMap { axes: axes.to_vec(), index, point };
    let inverse = Inversion { simplifier: &mut simplifier, values: FxHashMap::default() }.run(exprs, &map)?;
    let is_inverse = map.is_proved(exprs, &mut simplifier, &inverse)
        || (points <= MAX_ENUMERATED_POINTS && map.holds_everywhere(exprs, &inverse));
    if !is_inverse {
        return None;
    }
    let bindings: Vec<(VarId, ExprId)> = map.point.into_iter().zip(at.iter().copied()).collect();
    let mut placement = Substitution::new(&bindings);
    let placed: Vec<ExprId> = inverse.into_iter().map(|value| placement.apply(exprs, value)).collect();
    Some(placed.into_iter().map(|value| simplifier.simplify(exprs, value)).collect())
}

/// A map from axes to the points of a shape with as many points as the axes have values.
struct IndexMap {
    axes: Vec<VarId>,
    /// Over the axes.
    index: Vec<ExprId>,
    /// Variables for a point of the shape.
    point: Vec<VarId>,
}

impl IndexMap {
    /// True if the map stays within the shape and `inverse` after it gives the axes back: then it is a bijection.
    fn is_proved(&self, exprs: &mut Exprs, simplifier: &mut Simplifier, inverse: &[ExprId]) -> bool {
        let stays_inside = self.index.iter().zip(&self.point).all(|(&position, &dim)| {
            let range = simplifier.range(exprs, position);
            exprs.var_info(dim).range.is_some_and(|(low, high)| range.is_within(low, high))
        });
        let bindings: Vec<(VarId, ExprId)> =
            self.point.iter().copied().zip(self.index.iter().copied()).collect();
        let mut round_trip = Substitution::new(&bindings);
        stays_inside
            && self.axes.iter().zip(inverse).all(|(&axis, &value)| {
                let (back, there) = (round_trip.apply(exprs, value), exprs.var(axis));
                simplifier.simplify(exprs, back) == simplifier.simplify(exprs, there)
            })
    }

    /// True if every point of the shape is the map of its `inverse`, and that lies within the axes: then both are
    /// bijections.
    fn holds_everywhere(&self, exprs: &Exprs, inverse: &[ExprId]) -> bool {
        let extents: Option<Vec<usize>> = self.point.iter().map(|&dim| extent(exprs, dim)).collect();
        let Some(extents) = extents else { return false };
        (0..extents.iter().product::<usize>()).all(|linear| {
            let position = unflatten(linear, &extents);
            let at: Vec<(VarId, i64)> = self.point.iter().copied().zip(position.iter().copied()).collect();
            let values: Option<Vec<(VarId, i64)>> = (self.axes.iter().zip(inverse))
                .map(|(&axis, &value)| {
                    let value = exprs.evaluate(value, &at)?;
                    let (low, high) = exprs.var_info(axis).range?;
                    (low <= value && value <= high).then_some((axis, value))
                })
                .collect();
            let is_there = |values: &[_], (&i, &expected)| exprs.evaluate(i, values) == Some(expected);
            values.is_some_and(|values| self.index.iter().zip(&position).all(|pair| is_there(&values, pair)))
        })
    }
}

/// The number of values of an axis, if they are known to start at 0.
fn extent(exprs: &Exprs, axis: VarId) -> Option<usize> {
    let (low, high) = exprs.var_info(axis).range?;
    (low == 0 && high >= 0).then_some(usize::try_from(high).ok()? + 1)
}

/// The axes' values found so far.
struct Inversion<'a> {
    simplifier: &'a mut Simplifier,
    values: FxHashMap<VarId, ExprId>,
}

/// A summand of a mixed-radix number: `coefficient * digit`.
struct Summand {
    coefficient: i64,
    atom: ExprId,
    /// Largest value of the digit.
    last: i64,
    /// The digit is `last - atom`.
    is_flipped: bool,
}

/// Part of an expression: `floor(whole / scale) mod (last + 1)`, and what it must be.
struct Digit {
    scale: i64,
    last: i64,
    value: ExprId,
}

impl Inversion<'_> {
    /// The axes as expressions over the point, not checked yet.
    fn run(mut self, exprs: &mut Exprs, map: &IndexMap) -> Option<Vec<ExprId>> {
        let extents: Option<Vec<usize>> = map.point.iter().map(|&dim| extent(exprs, dim)).collect();
        let strides = orch_ir::Shape::from(extents?).strides();
        let point: Vec<ExprId> = map.point.iter().map(|&dim| exprs.var(dim)).collect();
        let flat_index = exprs.linear_index(&map.index, &strides);
        let flat_point = exprs.linear_index(&point, &strides);
        self.solve(exprs, flat_index, flat_point)?;
        let zero = exprs.index(0);
        (map.axes.iter())
            .map(|&axis| match self.values.get(&axis) {
                Some(&value) => Some(value),
                None => (extent(exprs, axis) == Some(1)).then_some(zero),
            })
            .collect()
    }

    /// Finds the variables for which `sum` is `value`.
    fn solve(&mut self, exprs: &mut Exprs, sum: ExprId, value: ExprId) -> Option<()> {
        let summands = self.mixed_radix(exprs, sum)?;
        // Digits by the expression they are part of, in order of first appearance.
        let mut wholes: Vec<(ExprId, Vec<Digit>)> = Vec::new();
        for summand in summands {
            let (whole, digit) = self.digit(exprs, &summand, value);
            match wholes.iter_mut().find(|(known, _)| *known == whole) {
                Some((_, digits)) => digits.push(digit),
                None => wholes.push((whole, vec![digit])),
            }
        }
        for (whole, digits) in wholes {
            let value = self.composed(exprs, whole, digits)?;
            if let Expr::Var(axis) = *exprs.get(whole) {
                if self.values.insert(axis, value).is_some() {
                    return None;
                }
            } else if self.simplifier.linear(exprs, whole).as_atom().is_none() {
                self.solve(exprs, whole, value)?;
            } else {
                return None;
            }
        }
        Some(())
    }

    /// The summands of a mixed-radix number in ascending order, or `None` if the expression is none.
    fn mixed_radix(&mut self, exprs: &mut Exprs, sum: ExprId) -> Option<Vec<Summand>> {
        let form = self.simplifier.linear(exprs, sum);
        let mut constant = form.constant_term();
        let mut summands = Vec::new();
        for &(atom, c) in form.terms() {
            let range = self.simplifier.range(exprs, atom);
            if range.low != 0 {
                return None;
            }
            if c < 0 {
                constant = constant.checked_add(c.checked_mul(range.high)?)?;
            }
            let coefficient = c.checked_abs()?;
            summands.push(Summand { coefficient, atom, last: range.high, is_flipped: c < 0 });
        }
        summands.sort_by_key(|summand| summand.coefficient);
        let mut expected = 1i64;
        for summand in &summands {
            if summand.coefficient != expected {
                return None;
            }
            expected = expected.checked_mul(summand.last.checked_add(1)?)?;
        }
        (constant == 0).then_some(summands)
    }

    /// What a summand's atom is part of, and what that part must be for the whole sum to be `value`.
    fn digit(&mut self, exprs: &mut Exprs, summand: &Summand, value: ExprId) -> (ExprId, Digit) {
        let Summand { coefficient, atom, last, is_flipped } = *summand;
        let (coefficient, count) = (exprs.index(coefficient), exprs.index(last + 1));
        let shifted = exprs.floor_div(value, coefficient);
        let mut value = exprs.floor_rem(shifted, count);
        if is_flipped {
            let last = exprs.index(last);
            value = exprs.sub(last, value);
        }
        let value = self.simplifier.simplify(exprs, value);
        let divided = |id: ExprId| match *exprs.get(id) {
            Expr::FloorDiv(whole, scale) => exprs.as_int(scale).map(|scale| (whole, scale)),
            _ => None,
        };
        let (whole, scale) = match *exprs.get(atom) {
            Expr::FloorRem(dividend, _) => divided(dividend).unwrap_or((dividend, 1)),
            _ => divided(atom).unwrap_or((atom, 1)),
        };
        (whole, Digit { scale, last, value })
    }

    /// The value of an expression from all its digits, or `None` if some are missing.
    fn composed(&mut self, exprs: &mut Exprs, whole: ExprId, mut digits: Vec<Digit>) -> Option<ExprId> {
        digits.sort_by_key(|digit| digit.scale);
        let mut value = exprs.index(0);
        let mut expected = 1i64;
        for digit in &digits {
            if digit.scale != expected {
                return None;
            }
            expected = expected.checked_mul(digit.last.checked_add(1)?)?;
            let scale = exprs.index(digit.scale);
            let part = exprs.mul(digit.value, scale);
            value = exprs.add2(value, part);
        }
        let range = self.simplifier.range(exprs, whole);
        // The highest digit may take more values than the whole needs, where the whole's last block is short.
        (range.low == 0 && range.high < expected).then(|| self.simplifier.simplify(exprs, value))
    }
}

fn unflatten(mut linear: usize, shape: &[usize]) -> Vec<i64> {
    let mut index = vec![0; shape.len()];
    for (position, &extent) in index.iter_mut().zip(shape).rev() {
        *position = (linear % extent) as i64;
        linear /= extent;
    }
    index
}

#[cfg(test)]
mod tests;
