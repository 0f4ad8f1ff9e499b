//! Bounds of reduction loops from guards: terms that a guard makes vanish need not be visited, and the terms that
//! are visited need no guard.
//!
//! In a pooling window at `h`, the guard `h * s + k - p >= 0` of the padding bounds the loop over `k` from below by
//! `ceil((p - h * s) / 1)`.

use super::flat::{Nest, NestReduction};
use super::identity::identity;
use orch_compute::expr::{Expr, ExprId, Exprs, VarId};
use orch_ir::{BinaryFn, CompareFn, ReduceOp};

/// A bound of a loop over a reduced axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopBound {
    /// The axis.
    pub axis: VarId,
    /// True for the first value, false for the end.
    pub is_start: bool,
    /// The bound, a scalar over axes of the domain.
    pub bound: ExprId,
}

/// The reduction without the guards that the returned limits stand for. Only guards are taken whose bound depends on
/// no axis but those that `is_usable` admits, for loops over `looped` axes.
pub(super) fn limits(
    nest: &mut Nest,
    reduction: &NestReduction,
    looped: &[VarId],
    is_usable: &dyn Fn(VarId) -> bool,
) -> (NestReduction, Vec<LoopBound>) {
    let mut reduction = reduction.clone();
    let mut limits = Vec::new();
    for condition in conditions(&nest.program.exprs, reduction.body) {
        if !vanishes(&nest.program.exprs, reduction.op, reduction.body, condition) {
            continue;
        }
        let limit =
            looped.iter().find_map(|&axis| limit(nest, condition, axis, &reduction.reduced, is_usable));
        let Some(limit) = limit else { continue };
        limits.push(limit);
        let always = [(condition, nest.program.exprs.bool(true))];
        reduction.body = nest.replace(reduction.body, &always);
        reduction.factors =
            reduction.factors.map(|(lhs, rhs)| (nest.replace(lhs, &always), nest.replace(rhs, &always)));
    }
    (reduction, limits)
}

/// The comparisons of indices that guards below `root` are conjunctions of.
pub(super) fn conditions(exprs: &Exprs, root: ExprId) -> Vec<ExprId> {
    let mut found = Vec::new();
    for id in exprs.reachable(&[root]) {
        let guard = match *exprs.get(id) {
            Expr::Load { mask: Some(mask), .. } => mask,
            Expr::Select(condition, ..) => condition,
            _ => continue,
        };
        for part in exprs.conjuncts(guard) {
            if matches!(exprs.get(part), Expr::Compare(..)) && !found.contains(&part) {
                found.push(part);
            }
        }
    }
    found
}

/// True if the term changes nothing wherever the condition is false.
fn vanishes(exprs: &Exprs, op: ReduceOp, term: ExprId, condition: ExprId) -> bool {
    let has = |guard: ExprId| exprs.conjuncts(guard).contains(&condition);
    let is_identity = |id: ExprId| match *exprs.get(id) {
        Expr::Const(c) => !op.is_arg() && c == identity(op, c.dtype),
        _ => false,
    };
    let is_sum = op == ReduceOp::Sum;
    // A product is zero where a factor is.
    let factors = exprs.reachable_along(term, |node, operands| match *node {
        Expr::Cast(_, inner) if is_sum => operands.push(inner),
        Expr::Binary(BinaryFn::Mul, a, b) if is_sum => operands.extend([a, b]),
        _ => {}
    });
    factors.into_iter().any(|id| match *exprs.get(id) {
        Expr::Select(guard, _, otherwise) if has(guard) => is_identity(otherwise),
        Expr::Load { mask: Some(mask), .. } => is_sum && has(mask),
        _ => false,
    })
}

/// The bound on `axis` that a comparison means.
fn limit(
    nest: &mut Nest,
    condition: ExprId,
    axis: VarId,
    reduced: &[VarId],
    is_usable: &dyn Fn(VarId) -> bool,
) -> Option<LoopBound> {
    let Expr::Compare(f, a, b) = *nest.program.exprs.get(condition) else { return None };
    if nest.program.exprs.ty(a) != orch_compute::expr::Type::INDEX {
        return None;
    }
    // The condition as `factor * axis + rest >= 0` or `factor * axis + rest < 0`, the factor positive.
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    let difference = exprs.sub(a, b);
    let (difference, is_start) = match f {
        CompareFn::Ge => (difference, true),
        CompareFn::Lt => (difference, false),
        CompareFn::Gt => (exprs.add_const(difference, -1), true),
        CompareFn::Le => (exprs.add_const(difference, -1), false),
        CompareFn::Eq | CompareFn::Ne => return None,
    };
    let factor = simplifier.stride(exprs, difference, axis).filter(|&factor| factor > 0)?;
    let own = exprs.var(axis);
    let own = exprs.mul_const(own, factor);
    let rest = exprs.sub(difference, own);
    let rest = simplifier.simplify(exprs, rest);
    if exprs.free_vars(rest).iter().any(|&var| reduced.contains(&var) || !is_usable(var)) {
        return None;
    }
    // The first value that is not below: ceil(-rest / factor).
    let negated = exprs.neg(rest);
    let rounded = exprs.add_const(negated, factor - 1);
    let divisor = exprs.index(factor);
    let bound = exprs.floor_div(rounded, divisor);
    let bound = simplifier.simplify(exprs, bound);
    Some(LoopBound { axis, is_start, bound })
}
