//! Merging of axes that are contiguous in every access: an elementwise kernel has one axis, whatever its rank.

use super::flat::{Nest, NestStage};
use orch_compute::block::Axis;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{Expr, ExprId, VarId};

/// Merges pairs of axes until no two can be.
pub(crate) fn merge_axes(nest: &mut Nest) {
    nest.axes
        .retain(|axis| axis.extent != 1 || nest.stages.iter().any(|stage| stage.axes().contains(&axis.var)));
    while let Some((outer, inner)) = mergeable_pair(nest) {
        merge(nest, outer, inner);
    }
}

/// Two axes, outer and inner, where the whole inner axis spans one step of the outer one.
fn mergeable_pair(nest: &mut Nest) -> Option<(Axis, Axis)> {
    let axes = nest.axes.clone();
    for inner in &axes {
        for outer in &axes {
            let same_role = nest.stages.iter().all(|stage| role(stage, outer.var) == role(stage, inner.var));
            if outer.var != inner.var
                && same_role
                && strides_allow(nest, outer, inner)
                && merges(nest, outer, inner)
            {
                return Some((outer.clone(), inner.clone()));
            }
        }
    }
    None
}

/// Whether a stage has the axis in its domain, reduces it, or neither.
fn role(stage: &NestStage, var: VarId) -> (bool, bool) {
    (stage.domain.contains(&var), stage.reduced().contains(&var))
}

/// A quick test: one access of each buffer at most can tell that the pair does not merge.
fn strides_allow(nest: &mut Nest, outer: &Axis, inner: &Axis) -> bool {
    let roots: Vec<ExprId> = nest.stages.iter().flat_map(NestStage::roots).collect();
    let Nest { program, simplifier, .. } = nest;
    for id in program.exprs.reachable(&roots) {
        let Expr::Load { offset, .. } = *program.exprs.get(id) else { continue };
        let slow = simplifier.stride(&mut program.exprs, offset, outer.var);
        let fast = simplifier.stride(&mut program.exprs, offset, inner.var);
        if let (Some(slow), Some(fast)) = (slow, fast)
            && slow != fast * inner.extent as i64
        {
            return false;
        }
    }
    true
}

/// True if no expression needs to know the two axes apart.
fn merges(nest: &mut Nest, outer: &Axis, inner: &Axis) -> bool {
    let (merged, bindings) = merged_axis(nest, outer, inner);
    let mut substitution = Substitution::new(&bindings);
    let roots: Vec<ExprId> = nest.stages.iter().flat_map(NestStage::roots).collect();
    roots.into_iter().all(|root| {
        let replaced = substitution.apply(&mut nest.program.exprs, root);
        let replaced = nest.simplify(replaced);
        !takes_apart(nest, replaced, merged)
    })
}

/// True if a quotient or remainder of the axis is left.
fn takes_apart(nest: &Nest, root: ExprId, axis: VarId) -> bool {
    let exprs = &nest.program.exprs;
    exprs.reachable(&[root]).into_iter().any(|id| match exprs.get(id) {
        Expr::FloorDiv(a, _) | Expr::FloorRem(a, _) => exprs.depends_on(*a, axis),
        _ => false,
    })
}

/// An axis that runs through both, and both in terms of it.
fn merged_axis(nest: &mut Nest, outer: &Axis, inner: &Axis) -> (VarId, [(VarId, ExprId); 2]) {
    let exprs = &mut nest.program.exprs;
    let name = format!("{}_{}", exprs.var_info(outer.var).name, exprs.var_info(inner.var).name);
    let (var, value) = exprs.fresh_index(name, outer.extent * inner.extent);
    let extent = exprs.index(inner.extent as i64);
    let (slow, fast) = (exprs.floor_div(value, extent), exprs.floor_rem(value, extent));
    (var, [(outer.var, slow), (inner.var, fast)])
}

fn merge(nest: &mut Nest, outer: Axis, inner: Axis) {
    let (merged, bindings) = merged_axis(nest, &outer, &inner);
    nest.substitute(&bindings);
    let rename = |axes: &mut Vec<VarId>| {
        for axis in axes.iter_mut().filter(|axis| **axis == outer.var) {
            *axis = merged;
        }
        axes.retain(|&axis| axis != inner.var);
    };
    for stage in &mut nest.stages {
        rename(&mut stage.domain);
        if let super::flat::StageWork::Reduce(reduction) = &mut stage.work {
            rename(&mut reduction.reduced);
        }
    }
    nest.axes.retain(|axis| axis.var != inner.var);
    for axis in nest.axes.iter_mut().filter(|axis| axis.var == outer.var) {
        *axis = Axis { var: merged, extent: outer.extent * inner.extent };
    }
}
