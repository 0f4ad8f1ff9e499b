//! Merging of axes that are contiguous in every access: `[.., outer, inner, ..]` becomes `[.., outer * inner, ..]`. An
//! elementwise kernel over row-major tensors has one axis, whatever its rank.

use super::flat::{Nest, NestStage};
use orch_compute::block::Axis;
use orch_compute::expr::substitute::Substitution;
use orch_compute::expr::{Expr, ExprId, VarId};

/// Removes axes of extent 1 that no stage uses, and merges pairs of axes until no pair can be merged.
pub(crate) fn merge_axes(nest: &mut Nest) {
    nest.axes
        .retain(|axis| axis.extent != 1 || nest.stages.iter().any(|stage| stage.axes().contains(&axis.var)));
    while let Some(pair) = mergeable_pair(nest) {
        merge(nest, &pair);
    }
}

/// Two axes that may become one.
struct AxisPair {
    outer: Axis,
    inner: Axis,
}

/// A merged axis.
struct MergedAxis {
    /// Its variable, in `0..outer * inner`.
    var: VarId,
    /// The outer and the inner axis as quotient and remainder of `var`.
    bindings: [(VarId, ExprId); 2],
}

/// A pair of axes such that in every access the stride of the outer axis is the inner extent times the inner stride.
fn mergeable_pair(nest: &mut Nest) -> Option<AxisPair> {
    let axes = nest.axes.clone();
    for inner in &axes {
        for outer in &axes {
            let same_role = nest.stages.iter().all(|stage| role(stage, outer.var) == role(stage, inner.var));
            let pair = AxisPair { outer: outer.clone(), inner: inner.clone() };
            if outer.var != inner.var && same_role && strides_allow(nest, &pair) && merges(nest, &pair) {
                return Some(pair);
            }
        }
    }
    None
}

/// How a stage uses an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AxisRole {
    is_in_domain: bool,
    is_reduced: bool,
}

fn role(stage: &NestStage, var: VarId) -> AxisRole {
    AxisRole { is_in_domain: stage.domain.contains(&var), is_reduced: stage.reduced().contains(&var) }
}

/// A quick test before [`merges`]: false if the constant strides of some load rule the pair out.
fn strides_allow(nest: &mut Nest, AxisPair { outer, inner }: &AxisPair) -> bool {
    let roots: Vec<ExprId> = nest.stages.iter().flat_map(NestStage::roots).collect();
    let Nest { program, simplifier, .. } = nest;
    for id in program.exprs.reachable(&roots) {
        let Expr::Load { offset, .. } = *program.exprs.get(id) else { continue };
        let outer_stride = simplifier.stride(&mut program.exprs, offset, outer.var);
        let inner_stride = simplifier.stride(&mut program.exprs, offset, inner.var);
        if let (Some(outer_stride), Some(inner_stride)) = (outer_stride, inner_stride)
            && outer_stride != inner_stride * inner.extent as i64
        {
            return false;
        }
    }
    true
}

/// True if in every expression, after both axes are replaced by quotient and remainder of the merged one, neither is
/// left.
fn merges(nest: &mut Nest, pair: &AxisPair) -> bool {
    let merged = merged_axis(nest, pair);
    let mut substitution = Substitution::new(&merged.bindings);
    let roots: Vec<ExprId> = nest.stages.iter().flat_map(NestStage::roots).collect();
    roots.into_iter().all(|root| {
        let replaced = substitution.apply(&mut nest.program.exprs, root);
        let replaced = nest.simplify(replaced);
        !divides(nest, replaced, merged.var)
    })
}

/// True if an expression contains a quotient or remainder of the axis.
fn divides(nest: &Nest, root: ExprId, axis: VarId) -> bool {
    let exprs = &nest.program.exprs;
    exprs.reachable(&[root]).into_iter().any(|id| match exprs.get(id) {
        Expr::FloorDiv(a, _) | Expr::FloorRem(a, _) => exprs.depends_on(*a, axis),
        _ => false,
    })
}

/// A fresh axis for a pair.
fn merged_axis(nest: &mut Nest, AxisPair { outer, inner }: &AxisPair) -> MergedAxis {
    let exprs = &mut nest.program.exprs;
    let name = format!("{}_{}", exprs.var_info(outer.var).name, exprs.var_info(inner.var).name);
    let (var, value) = exprs.fresh_index(name, outer.extent * inner.extent);
    let extent = exprs.index(inner.extent as i64);
    let (quotient, remainder) = (exprs.floor_div(value, extent), exprs.floor_rem(value, extent));
    MergedAxis { var, bindings: [(outer.var, quotient), (inner.var, remainder)] }
}

/// Replaces both axes of a pair by a merged one, in the nest and in every stage.
fn merge(nest: &mut Nest, pair: &AxisPair) {
    let MergedAxis { var: merged, bindings } = merged_axis(nest, pair);
    let AxisPair { outer, inner } = pair;
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
