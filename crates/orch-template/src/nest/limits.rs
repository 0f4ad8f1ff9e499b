//! Bounds of reduction loops from guards: iterations in which a guard makes the reduced value the identity element are
//! left out, and the iterations that remain need no guard.
//!
//! In a pooling window at `h`, the guard `h * s + k - p >= 0` of the padding bounds the loop over `k` from below by
//! `ceil((p - h * s) / 1)`.

use super::flat::{Nest, NestReduction};
use super::identity::identity;
use orch_compute::expr::{Expr, ExprId, Exprs, VarId};
use orch_ir::{BinaryFn, CompareFn, ReduceOp};

/// A bound of the loop over a reduced axis, which a guard implies.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuardBound {
    /// The axis.
    pub axis: VarId,
    /// True for a lower bound (the first value), false for an upper one (the first value after the last).
    pub is_start: bool,
    /// The bound, a scalar over axes of the domain.
    pub bound: ExprId,
}

/// The reduction without the guards that the returned loop bounds imply. A guard is replaced only if it bounds one of
/// the `looped` axes and its bound depends on no reduced axis and only on axes that `is_usable` admits.
pub(super) fn limits(
    nest: &mut Nest,
    reduction: &NestReduction,
    looped: &[VarId],
    is_usable: &dyn Fn(VarId) -> bool,
) -> (NestReduction, Vec<GuardBound>) {
    let mut reduction = reduction.clone();
    let mut limits = Vec::new();
    for condition in conditions(&nest.program.exprs, reduction.body) {
        if !is_identity_unless(&nest.program.exprs, reduction.op, reduction.body, condition) {
            continue;
        }
        let limit =
            looped.iter().find_map(|&axis| limit(nest, condition, axis, &reduction.reduced, is_usable));
        let Some(limit) = limit else { continue };
        limits.push(limit);
        let always = [(condition, nest.program.exprs.bool(true))];
        reduction.body = nest.replace(reduction.body, &always);
        reduction.operands =
            reduction.operands.map(|operands| operands.map(|operand| nest.replace(operand, &always)));
    }
    (reduction, limits)
}

/// The comparisons whose conjunctions are the guards (load masks, conditions of selections) below `root`.
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

/// True if the value is the identity element of the reduction wherever the condition is false.
fn is_identity_unless(exprs: &Exprs, op: ReduceOp, value: ExprId, condition: ExprId) -> bool {
    let has = |guard: ExprId| exprs.conjuncts(guard).contains(&condition);
    let is_identity = |id: ExprId| match *exprs.get(id) {
        Expr::Const(c) => !op.is_arg() && c == identity(op, c.dtype),
        _ => false,
    };
    let is_sum = op == ReduceOp::Sum;
    // A product is zero where one of its operands is.
    let operands = exprs.reachable_along(value, |node, pending| match *node {
        Expr::Cast(_, inner) if is_sum => pending.push(inner),
        Expr::Binary(BinaryFn::Mul, a, b) if is_sum => pending.extend([a, b]),
        _ => {}
    });
    operands.into_iter().any(|id| match *exprs.get(id) {
        Expr::Select(guard, _, otherwise) if has(guard) => is_identity(otherwise),
        Expr::Load { mask: Some(mask), .. } => is_sum && has(mask),
        _ => false,
    })
}

/// The bound on `axis` that an index comparison implies.
fn limit(
    nest: &mut Nest,
    condition: ExprId,
    axis: VarId,
    reduced: &[VarId],
    is_usable: &dyn Fn(VarId) -> bool,
) -> Option<GuardBound> {
    let Expr::Compare(f, a, b) = *nest.program.exprs.get(condition) else { return None };
    if nest.program.exprs.ty(a) != orch_compute::expr::Type::INDEX {
        return None;
    }
    // The condition as `stride * axis + rest >= 0` or `stride * axis + rest < 0`, the stride positive.
    let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
    let difference = exprs.sub(a, b);
    let (difference, is_start) = match f {
        CompareFn::Ge => (difference, true),
        CompareFn::Lt => (difference, false),
        CompareFn::Gt => (exprs.add_const(difference, -1), true),
        CompareFn::Le => (exprs.add_const(difference, -1), false),
        CompareFn::Eq | CompareFn::Ne => return None,
    };
    let stride = simplifier.stride(exprs, difference, axis).filter(|&stride| stride > 0)?;
    let own = exprs.var(axis);
    let own = exprs.mul_const(own, stride);
    let rest = exprs.sub(difference, own);
    let rest = simplifier.simplify(exprs, rest);
    if exprs.free_vars(rest).iter().any(|&var| reduced.contains(&var) || !is_usable(var)) {
        return None;
    }
    // The smallest value of the axis with `stride * axis + rest >= 0`: ceil(-rest / stride).
    let negated = exprs.neg(rest);
    let rounded = exprs.add_const(negated, stride - 1);
    let divisor = exprs.index(stride);
    let bound = exprs.floor_div(rounded, divisor);
    let bound = simplifier.simplify(exprs, bound);
    Some(GuardBound { axis, is_start, bound })
}
