//! Counts the elements that a loop nest accesses one at a time.

use super::flat::{Nest, NestStage, StageWork};
use super::plan::NestPlan;
use super::tile::is_transposed;
use crate::singles::{SingleAccesses, VectorAccess};
use orch_compute::expr::{Expr, ExprId, VarId};
use orch_thread::target::CpuTarget;

/// Counts the accesses of all stages.
pub(super) fn count(nest: &mut Nest, plan: &NestPlan, target: &CpuTarget) -> SingleAccesses {
    let mut singles = SingleAccesses::default();
    let vector = plan.vector.as_ref().map(|axis| axis.var);
    let exprs = &nest.program.exprs;
    let (mut transposed, mut copied) = (Vec::new(), Vec::new());
    if let Some(tiling) = &plan.tiling {
        for &value in &tiling.values {
            let is_transposed = is_transposed(exprs, tiling, value, plan.lanes);
            if is_transposed { &mut transposed } else { &mut copied }.push(value);
        }
    }
    let [transposed, copied] = [transposed, copied].map(|values| exprs.reachable(&values));
    let lines = plan.lanes * plan.vectors;
    for stage in nest.stages.clone() {
        for (id, offset) in accesses(nest, &stage) {
            let exprs = &nest.program.exprs;
            let size = exprs.dtype(id).size_bytes();
            // Vectors are innermost, so that each is loaded at all points of the other axes, but once for the points of a register block.
            let is_shared = |&(axis, _): &(VarId, usize)| !exprs.depends_on(offset, axis);
            let shared = plan.block.filter(is_shared).map_or(1, |(_, points)| points);
            let varies_along_vector = vector.is_some_and(|vector| exprs.depends_on(offset, vector));
            let varying = |axis: &VarId| varies_along_vector || exprs.depends_on(offset, *axis);
            let axes: Vec<VarId> = stage.axes().into_iter().filter(varying).collect();
            let points = nest.points(&axes) / shared;
            let (exprs, simplifier) = (&mut nest.program.exprs, &mut nest.simplifier);
            let stride = vector.and_then(|vector| simplifier.stride(exprs, offset, vector));
            let lines = if copied.contains(&id) { 0 } else { lines };
            match (VectorAccess { stride, lines, size }).single(target) {
                None => {}
                Some(_) if transposed.contains(&id) => singles.transposed += points,
                Some(single) => singles.add(single, points),
            }
        }
    }
    singles
}

/// The loads and the store of a stage, with their offsets. Constants are packed in the order in which they are read.
fn accesses(nest: &Nest, stage: &NestStage) -> Vec<(ExprId, ExprId)> {
    let exprs = &nest.program.exprs;
    let loads = exprs.reachable(&stage.roots()).into_iter().filter_map(|id| match *exprs.get(id) {
        Expr::Load { buffer, offset, .. } if !nest.constants.contains(&buffer) => Some((id, offset)),
        _ => None,
    });
    let store = match stage.work {
        StageWork::Store { offset, body, .. } => Some((body, offset)),
        StageWork::Reduce(_) => None,
    };
    loads.chain(store).collect()
}
