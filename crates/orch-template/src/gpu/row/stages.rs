//! The stages of a nest, at a point of the outer axes: over which axes they loop, and what they share.

use crate::nest::flat::{Nest, NestStage};
use crate::nest::plan::outer_axes;
use crate::nest::shared::{SharedValue, costs_more_than_registers, shared_values};
use orch_compute::block::Axis;
use orch_compute::expr::VarId;

/// True if a stage loops over axes at a point of the outer ones: there is something that threads do together.
pub(in crate::gpu) fn serves(nest: &Nest) -> bool {
    let outer = outer_axes(nest);
    nest.stages.iter().any(|step| !inner_axes(step, &outer).is_empty())
}

/// The values that stages may keep in registers for later ones.
pub(super) fn kept_values(nest: &Nest, outer: &[Axis]) -> Vec<SharedValue> {
    let mut kept = shared_values(nest, outer, costs_more_than_registers);
    kept.retain(|shared| is_read_in_order(nest, outer, shared));
    kept
}

/// True if every later stage that needs the value loops over the same axes: its iterations are the same thread's in the same
/// round.
fn is_read_in_order(nest: &Nest, outer: &[Axis], shared: &SharedValue) -> bool {
    nest.stages[shared.stage + 1..].iter().all(|step| {
        let axes = inner_axes(step, outer);
        let is_alike = axes.len() == shared.axes.len() && axes.iter().all(|axis| shared.axes.contains(axis));
        is_alike || !nest.program.exprs.reachable(&step.roots()).contains(&shared.value)
    })
}

/// True if a reduction has a result for each point of axes that are not outer.
pub(super) fn has_arrays(nest: &Nest, outer: &[Axis]) -> bool {
    nest.stages.iter().any(|step| has_array(step, outer))
}

/// True for a reduction with a result for each point of axes that are not outer.
pub(super) fn has_array(step: &NestStage, outer: &[Axis]) -> bool {
    step.result().is_some() && has_inner(&step.domain, outer)
}

/// The axes that a stage loops over at a point of the outer axes.
pub(super) fn inner_axes(step: &NestStage, outer: &[Axis]) -> Vec<VarId> {
    step.axes().into_iter().filter(|axis| outer.iter().all(|other| other.var != *axis)).collect()
}

fn has_inner(axes: &[VarId], outer: &[Axis]) -> bool {
    axes.iter().any(|axis| outer.iter().all(|other| other.var != *axis))
}
