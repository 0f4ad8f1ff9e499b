//! Widening: the values of a scalar expression at neighbouring values of a variable, as one vector expression.
//!
//! With `e[x := v]` the expression `e` where `x` has the value `v`, lane `l` of the result is
//!
//! ```text
//! vectorize(e, x, base, lanes)[l] = e[x := base + l]        0 <= l < lanes
//! ```
//!
//! Nothing is widened before it must be: what does not depend on `x` stays scalar; sums and constant multiples of
//! `x` are ramps; a quotient, remainder or comparison that is the same in all lanes, or follows them, because
//! `base` is aligned, stays scalar or a ramp; one that changes at most once within the vector becomes a selection
//! instead of a vector division. A load at a ramp of stride 1 is contiguous, at a scalar offset one scalar load, whatever lanes want
//! it; at a ramp divided by 2, 4, .. that starts at a multiple it is a shorter contiguous one whose lanes are repeated; anywhere else
//! a gather.
//!
//! The variable keeps its meaning of a scalar index (its declared range is that of single elements); `base` is
//! another expression, of the first lane: usually a loop variable declared as a multiple of `lanes`.

use orch_compute::affine::gcd;
use orch_compute::expr::{BufferId, Expr, ExprId, Exprs, VarId};
use orch_compute::simplify::Simplifier;
use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp};
use rustc_hash::FxHashMap;

/// What to widen over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Widening {
    /// The index variable that differs between lanes.
    pub var: VarId,
    /// Its value in lane 0.
    pub base: ExprId,
    /// Number of lanes, at least 2.
    pub lanes: usize,
    /// Lanes that count, where some do not (the last vector of a remainder): `lanes` booleans, at least one of
    /// them true. Loads that vary access no other lane; values in other lanes are arbitrary.
    pub mask: Option<ExprId>,
    /// Registers that differ between lanes too, and the vectors of `lanes` lanes that hold them.
    pub registers: Vec<(VarId, ExprId)>,
}

impl Widening {
    /// All of `lanes` lanes, the first at `var = base`.
    pub fn new(var: VarId, base: ExprId, lanes: usize) -> Self {
        Self { var, base, lanes, mask: None, registers: Vec::new() }
    }

    /// As [`Widening::new`], with the lanes whose `var` is below `extent`, which lies above `base`.
    pub fn below(exprs: &mut Exprs, var: VarId, base: ExprId, lanes: usize, extent: ExprId) -> Self {
        let positions = exprs.ramp(base, 1, lanes);
        let mask = exprs.lt(positions, extent);
        Self { mask: Some(mask), ..Self::new(var, base, lanes) }
    }
}

/// The vector form of a scalar expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vectorized {
    /// The expression: a scalar if it is the same in all lanes.
    pub value: ExprId,
    /// The loads that it makes, each distinct one counted once.
    pub loads: LoadCounts,
}

/// How many loads of each kind an expression makes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LoadCounts {
    /// Vectors of consecutive elements.
    pub contiguous: usize,
    /// Vectors of elements anywhere.
    pub gathers: usize,
    /// Single elements.
    pub scalar: usize,
}

impl LoadCounts {
    /// The loads of `root`.
    pub fn of(exprs: &Exprs, root: ExprId) -> Self {
        let mut counts = Self::default();
        for id in exprs.reachable(&[root]) {
            if let Expr::Load { offset, lanes, .. } = exprs.get(id) {
                match (*lanes, exprs.lanes(*offset)) {
                    (1, _) => counts.scalar += 1,
                    (_, 1) => counts.contiguous += 1,
                    _ => counts.gathers += 1,
                }
            }
        }
        counts
    }
}

/// The values of a scalar expression in the lanes that `over` describes.
///
/// # Panics
/// If vectors in `root` depend on the variable already, or `root` reads arguments of a block program at it.
pub fn vectorize(exprs: &mut Exprs, root: ExprId, over: &Widening) -> Vectorized {
    let mut simplifier = Simplifier::new();
    let mut vectorizer = Vectorizer::new(exprs, over);
    let value = vectorizer.widen(exprs, &mut simplifier, root);
    Vectorized { value, loads: LoadCounts::of(exprs, value) }
}

/// Widens several expressions over the same lanes, sharing work between them.
#[derive(Clone, Debug)]
pub struct Vectorizer {
    over: Widening,
    done: FxHashMap<ExprId, ExprId>,
}

impl Vectorizer {
    /// A vectorizer that has seen nothing.
    ///
    /// # Panics
    /// If there are fewer than two lanes, or the mask or a register has another number of them.
    pub fn new(exprs: &mut Exprs, over: &Widening) -> Self {
        assert!(over.lanes > 1, "a vector has at least two lanes");
        let vectors = over.mask.iter().chain(over.registers.iter().map(|(_, vector)| vector));
        for &vector in vectors {
            assert!([1, over.lanes].contains(&exprs.lanes(vector)), "{} lanes expected", over.lanes);
        }
        let mut done = FxHashMap::default();
        for &(register, vector) in &over.registers {
            done.insert(exprs.var(register), vector);
        }
        let (var, positions) = (exprs.var(over.var), exprs.ramp(over.base, 1, over.lanes));
        done.insert(var, positions);
        Self { over: over.clone(), done }
    }

    /// As [`vectorize`]. The simplifier is one of the same arena.
    ///
    /// # Panics
    /// As [`vectorize`].
    pub fn widen(&mut self, exprs: &mut Exprs, simplifier: &mut Simplifier, root: ExprId) -> ExprId {
        let root = simplifier.simplify(exprs, root);
        for id in exprs.reachable_unless(&[root], |id| self.done.contains_key(&id)) {
            let node = exprs.get(id).clone();
            let mut is_changed = false;
            let widened = node.map_operands(|operand| {
                let new = self.done[&operand];
                is_changed |= new != operand;
                new
            });
            let new = if is_changed { self.node(exprs, simplifier, widened) } else { id };
            self.done.insert(id, new);
        }
        let widened = self.done[&root];
        simplifier.simplify(exprs, widened)
    }

    /// A node whose operands, some of which have changed, are widened.
    fn node(&self, exprs: &mut Exprs, simplifier: &mut Simplifier, node: Expr) -> ExprId {
        match node {
            Expr::FloorDiv(a, b) => {
                ramp_quotient(exprs, simplifier, a, b).unwrap_or_else(|| exprs.floor_div(a, b))
            }
            Expr::FloorRem(a, b) => {
                ramp_remainder(exprs, simplifier, a, b).unwrap_or_else(|| exprs.floor_rem(a, b))
            }
            Expr::Compare(f, a, b) => {
                uniform_comparison(exprs, simplifier, f, a, b).unwrap_or_else(|| exprs.compare(f, a, b))
            }
            Expr::Load { buffer, offset, lanes, mask } => {
                assert_eq!(lanes, 1, "a vector load cannot be widened");
                let offset_is_uniform = exprs.lanes(offset) == 1;
                if offset_is_uniform && mask.is_none_or(|mask| exprs.lanes(mask) == 1) {
                    return exprs.load(buffer, offset, 1, mask);
                }
                let mask = exprs.and_guard(mask, self.over.mask);
                let ramp = mask.is_none().then(|| RepeatedRamp::of(exprs, simplifier, offset)).flatten();
                if let Some(value) = ramp.and_then(|ramp| ramp.load(exprs, buffer)) {
                    return value;
                }
                match mask {
                    // One element, read if any lane wants it.
                    Some(mask) if offset_is_uniform => {
                        let any = exprs.reduce_lanes(ReduceOp::Max, mask);
                        let element = exprs.load(buffer, offset, 1, Some(any));
                        let zero = exprs.zero(exprs.dtype(element));
                        exprs.select(mask, element, zero)
                    }
                    _ => exprs.load(buffer, offset, self.over.lanes, mask),
                }
            }
            Expr::Read { .. } | Expr::Stage(_) => panic!("a block program's access cannot be widened"),
            Expr::Splat(..)
            | Expr::Ramp { .. }
            | Expr::ReduceLanes(..)
            | Expr::DotPairs(..)
            | Expr::Interleave(..)
            | Expr::Half(..) => {
                panic!("a vector cannot be widened")
            }
            node => exprs.rebuild(node),
        }
    }
}

/// `floor(a / b)` of a ramp without a vector division, if lanes cross at most one multiple of `b`.
fn ramp_quotient(exprs: &mut Exprs, simplifier: &mut Simplifier, a: ExprId, b: ExprId) -> Option<ExprId> {
    let ramp = DividedRamp::new(exprs, a, b)?;
    match ramp.crossings(exprs, simplifier) {
        Crossings::None => Some(exprs.floor_div(ramp.base, ramp.divisor)),
        Crossings::AtMostOne => {
            let quotient = exprs.floor_div(ramp.base, ramp.divisor);
            let next = exprs.add_const(quotient, ramp.stride.signum());
            let (_, crossed) = ramp.crossing_lanes(exprs);
            Some(exprs.select(crossed, next, quotient))
        }
        Crossings::Many => None,
    }
}

/// `a mod b` of a ramp without a vector division, if lanes cross at most one multiple of `b`.
fn ramp_remainder(exprs: &mut Exprs, simplifier: &mut Simplifier, a: ExprId, b: ExprId) -> Option<ExprId> {
    let ramp = DividedRamp::new(exprs, a, b)?;
    match ramp.crossings(exprs, simplifier) {
        Crossings::None => {
            let remainder = exprs.floor_rem(ramp.base, ramp.divisor);
            Some(exprs.ramp(remainder, ramp.stride, ramp.lanes))
        }
        Crossings::AtMostOne => {
            let (relative, crossed) = ramp.crossing_lanes(exprs);
            let period = exprs.mul_const(ramp.divisor, ramp.stride.signum());
            let beyond = exprs.sub(relative, period);
            Some(exprs.select(crossed, beyond, relative))
        }
        Crossings::Many => None,
    }
}

/// A ramp `base + stride * lane`, divided by a positive constant.
struct DividedRamp {
    base: ExprId,
    stride: i64,
    lanes: usize,
    divisor: ExprId,
    divisor_value: i64,
}

/// Offsets `base + l / times` of lanes `l`.
struct RepeatedRamp {
    base: ExprId,
    /// A power of two that divides the lanes.
    times: usize,
    lanes: usize,
}

impl RepeatedRamp {
    fn of(exprs: &mut Exprs, simplifier: &mut Simplifier, offset: ExprId) -> Option<Self> {
        match *exprs.get(offset) {
            Expr::FloorDiv(dividend, divisor) => {
                let DividedRamp { base, stride, lanes, divisor, divisor_value } =
                    DividedRamp::new(exprs, dividend, divisor)?;
                let times = usize::try_from(divisor_value).ok()?;
                let range = simplifier.range(exprs, base);
                let is_aligned = [range.modulus, range.residue].iter().all(|part| part % divisor_value == 0);
                let is_served = stride == 1 && times.is_power_of_two() && lanes.is_multiple_of(times);
                let base = (is_aligned && is_served).then(|| exprs.floor_div(base, divisor))?;
                Some(Self { base, times, lanes })
            }
            Expr::Binary(BinaryFn::Add, a, b) => {
                let (varying, added) = match (exprs.uniform(a), exprs.uniform(b)) {
                    (Some(added), None) => (b, added),
                    (None, Some(added)) => (a, added),
                    _ => return None,
                };
                let repeated = Self::of(exprs, simplifier, varying)?;
                Some(Self { base: exprs.add2(repeated.base, added), ..repeated })
            }
            _ => None,
        }
    }

    /// The elements there; `None` if they are booleans, which are not interleaved.
    fn load(&self, exprs: &mut Exprs, buffer: BufferId) -> Option<ExprId> {
        let mut value = exprs.load(buffer, self.base, self.lanes / self.times, None);
        if exprs.lanes(value) == 1 {
            return Some(exprs.splat(value, self.lanes));
        }
        let is_served = exprs.dtype(value) != DType::Bool;
        while is_served && exprs.lanes(value) < self.lanes {
            value = exprs.interleave(value, value);
        }
        is_served.then_some(value)
    }
}

/// How often lanes may leave the period of the divisor that lane 0 is in.
enum Crossings {
    None,
    AtMostOne,
    Many,
}

impl DividedRamp {
    fn new(exprs: &Exprs, dividend: ExprId, divisor: ExprId) -> Option<Self> {
        let Expr::Ramp { base, stride, lanes } = *exprs.get(dividend) else { return None };
        let divisor = exprs.uniform(divisor)?;
        let divisor_value = exprs.as_int(divisor).filter(|&divisor| divisor > 0)?;
        Some(Self { base, stride, lanes, divisor, divisor_value })
    }

    fn crossings(&self, exprs: &mut Exprs, simplifier: &mut Simplifier) -> Crossings {
        let Some(reach) = self.stride.checked_mul(self.lanes as i64 - 1) else { return Crossings::Many };
        let range = simplifier.range(exprs, self.base);
        if stays_in_period((range.modulus, range.residue), self.divisor_value, reach) {
            Crossings::None
        } else if reach.unsigned_abs() <= self.divisor_value.unsigned_abs() {
            Crossings::AtMostOne
        } else {
            Crossings::Many
        }
    }

    /// `base mod divisor + stride * lane`, and the lanes where that is not in `0..divisor` but in the next period
    /// that way.
    fn crossing_lanes(&self, exprs: &mut Exprs) -> (ExprId, ExprId) {
        let remainder = exprs.floor_rem(self.base, self.divisor);
        let relative = exprs.ramp(remainder, self.stride, self.lanes);
        let crossed = if self.stride > 0 {
            exprs.ge(relative, self.divisor)
        } else {
            let zero = exprs.index(0);
            exprs.lt(relative, zero)
        };
        (relative, crossed)
    }
}

/// True if, for all `x = residue (mod modulus)`, all of `x ..= x + reach` (or `x + reach ..= x`) lie between the
/// same multiples of `period`. With `g = gcd(modulus, period)`, the remainders of `x` by `period` are at least
/// `residue mod g` and at most `period - g + residue mod g`.
fn stays_in_period((modulus, residue): (i64, i64), period: i64, reach: i64) -> bool {
    let g = gcd(modulus, period);
    residue.rem_euclid(g).checked_add(reach).is_some_and(|last| 0 <= last && last < g)
}

/// The comparison in lane 0, if all lanes agree with it.
fn uniform_comparison(
    exprs: &mut Exprs,
    simplifier: &mut Simplifier,
    f: CompareFn,
    a: ExprId,
    b: ExprId,
) -> Option<ExprId> {
    let ((first, stride), (second, other_stride)) = (ramp_of(exprs, a)?, ramp_of(exprs, b)?);
    let lanes = exprs.lanes(a).max(exprs.lanes(b));
    // Written so that the difference grows with the lane.
    let (f, first, second, stride) = match stride.checked_sub(other_stride)? {
        stride if stride < 0 => (mirrored(f)?, second, first, stride.checked_neg()?),
        stride => (f, first, second, stride),
    };
    let reach = stride.checked_mul(lanes as i64 - 1)?;
    let difference = exprs.sub(first, second);
    let range = simplifier.range(exprs, difference);
    // `d < 0` may change at d = 0, `d <= 0` at d = 1.
    let residue = match f {
        CompareFn::Lt | CompareFn::Ge => range.residue,
        CompareFn::Le | CompareFn::Gt => range.residue.checked_sub(1)?,
        CompareFn::Eq | CompareFn::Ne => return None,
    };
    let is_uniform = range.modulus > 0
        && range.is_within(-MODERATE, MODERATE)
        && stays_in_period((range.modulus, residue), range.modulus, reach);
    is_uniform.then(|| exprs.compare(f, first, second))
}

/// Bound on differences that are far from overflowing.
const MODERATE: i64 = 1 << 60;

/// Base and stride of an index ramp, or of a scalar.
fn ramp_of(exprs: &Exprs, id: ExprId) -> Option<(ExprId, i64)> {
    match *exprs.get(id) {
        _ if exprs.dtype(id) != DType::I64 => None,
        Expr::Ramp { base, stride, .. } => Some((base, stride)),
        _ => exprs.uniform(id).map(|scalar| (scalar, 0)),
    }
}

/// The comparison of `(b, a)` that says what `f` says of `(a, b)`.
fn mirrored(f: CompareFn) -> Option<CompareFn> {
    match f {
        CompareFn::Lt => Some(CompareFn::Gt),
        CompareFn::Le => Some(CompareFn::Ge),
        CompareFn::Gt => Some(CompareFn::Lt),
        CompareFn::Ge => Some(CompareFn::Le),
        CompareFn::Eq | CompareFn::Ne => None,
    }
}

#[cfg(test)]
mod tests;
