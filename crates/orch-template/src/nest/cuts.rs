//! Where to cut loops so that each guard is constant within a piece: at the border of a padded image, between the parts
//! of a concatenation.

use super::flat::Nest;
use super::limits::conditions;
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, Type, VarId};
use orch_ir::CompareFn;

/// A range of at most this many points in which a guard changes is cut into single points, each with its own code.
const MAX_SINGLE_POINTS: i64 = 3;

/// The values within an axis at which guards below `roots` may change, ascending.
pub(super) fn guard_cuts(nest: &mut Nest, roots: &[ExprId], axis: &Axis) -> Vec<usize> {
    let mut cuts: Vec<usize> = Vec::new();
    for &root in roots {
        for condition in conditions(&nest.program.exprs, root) {
            let changes = changes(nest, condition, axis.var).into_iter();
            cuts.extend(changes.filter_map(|cut| usize::try_from(cut).ok()));
        }
    }
    cuts.retain(|&cut| 0 < cut && cut < axis.extent);
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The values of an axis at which a comparison may change its truth value, given the ranges of its other variables.
fn changes(nest: &mut Nest, condition: ExprId, axis: VarId) -> Vec<i64> {
    let Expr::Compare(f, a, b) = *nest.program.exprs.get(condition) else { return Vec::new() };
    if nest.program.exprs.ty(a) != Type::INDEX {
        return Vec::new();
    }
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    // `stride * axis + rest` compared with 0, the stride positive.
    let (a, b, f) = match simplifier.stride(exprs, a, axis).zip(simplifier.stride(exprs, b, axis)) {
        Some((x, y)) if x > y => (a, b, f),
        Some((x, y)) if x < y => (b, a, mirrored(f)),
        _ => return Vec::new(),
    };
    let difference = exprs.sub(a, b);
    let Some(stride) = simplifier.stride(exprs, difference, axis) else { return Vec::new() };
    let own = exprs.var(axis);
    let own = exprs.mul_const(own, stride);
    let rest = exprs.sub(difference, own);
    let range = simplifier.range(exprs, rest);
    if range.low < -(1 << 40) || range.high > 1 << 40 {
        return Vec::new();
    }
    // The smallest value of the axis with `stride * axis + rest >= bound`, for a value of the rest.
    let first = |rest: i64, bound: i64| (bound - rest + stride - 1).div_euclid(stride);
    let bounds: &[i64] = match f {
        CompareFn::Ge | CompareFn::Lt => &[0],
        CompareFn::Gt | CompareFn::Le => &[1],
        CompareFn::Eq | CompareFn::Ne => &[0, 1],
    };
    let mut changes = Vec::new();
    for &bound in bounds {
        let (low, high) = (first(range.high, bound), first(range.low, bound));
        if high - low <= MAX_SINGLE_POINTS {
            changes.extend(low..=high);
        } else {
            changes.extend([low, high]);
        }
    }
    changes
}

/// The comparison `g` with `g(b, a) == f(a, b)`.
fn mirrored(f: CompareFn) -> CompareFn {
    match f {
        CompareFn::Lt => CompareFn::Gt,
        CompareFn::Le => CompareFn::Ge,
        CompareFn::Gt => CompareFn::Lt,
        CompareFn::Ge => CompareFn::Le,
        CompareFn::Eq | CompareFn::Ne => f,
    }
}
