//! Costly values that several stages compute are computed once: the first stage that needs one stores it in scratch,
//! and later stages load it. Example: the exponentials of a softmax, which are summed and then divided by their sum.

use super::cost::operation_cycles;
use super::flat::{Nest, NestStage, StageWork};
use orch_compute::block::Axis;
use orch_compute::expr::{Expr, ExprId, VarId};
use std::collections::BTreeSet;

/// A value that a stage saves for later ones.
#[derive(Clone, Debug)]
pub(crate) struct SharedValue {
    /// The stage that saves it, as a position among the stages.
    pub stage: usize,
    /// The saved value, a scalar expression.
    pub value: ExprId,
    /// The axes that the stage loops over, apart from outer ones: the value varies over all of them.
    pub axes: Vec<VarId>,
}

/// Modelled cycles per vector of a value's operations from which on it is worth a store and a load.
const MIN_CYCLES: f64 = 6.0;

/// Number of loads in a value from which on it is worth a store and a load.
const MIN_LOADS: usize = 3;

/// Whether a value is worth saving, where the values of the set are saved already.
pub(crate) type IsWorthSaving = fn(&Nest, ExprId, &BTreeSet<ExprId>) -> bool;

/// The values worth saving, by the stage that saves them: each is used by a later stage that loops over the same inner
/// axes in another loop.
pub(crate) fn shared_values(nest: &Nest, outer: &[Axis], is_worth_saving: IsWorthSaving) -> Vec<SharedValue> {
    let mut shared = Vec::new();
    for (position, stage) in nest.stages.iter().enumerate() {
        let axes = inner_axes(stage, outer);
        let later: Vec<&NestStage> = (nest.stages[position + 1..].iter())
            .filter(|other| inner_axes(other, outer) == axes && !is_same_loop(stage, other))
            .collect();
        if axes.is_empty() || later.is_empty() {
            continue;
        }
        let known: BTreeSet<ExprId> = shared.iter().map(|shared: &SharedValue| shared.value).collect();
        let used: BTreeSet<ExprId> =
            later.iter().flat_map(|stage| nest.program.exprs.reachable(&stage.roots())).collect();
        let is_wanted = |id: ExprId| {
            used.contains(&id) && varies_over(nest, id, &axes) && is_worth_saving(nest, id, &known)
        };
        for value in outermost(nest, &stage.roots(), &known, &is_wanted) {
            shared.push(SharedValue { stage: position, value, axes: axes.iter().copied().collect() });
        }
    }
    shared
}

/// The axes that a stage loops over at a point of the outer axes.
fn inner_axes(stage: &NestStage, outer: &[Axis]) -> BTreeSet<VarId> {
    stage.axes().into_iter().filter(|axis| outer.iter().all(|other| other.var != *axis)).collect()
}

/// True for stores that run in one loop.
fn is_same_loop(a: &NestStage, b: &NestStage) -> bool {
    matches!((&a.work, &b.work), (StageWork::Store { .. }, StageWork::Store { .. }))
}

/// Subexpressions that satisfy a condition and are not part of another one that does, nor of a known one.
fn outermost(
    nest: &Nest,
    roots: &[ExprId],
    known: &BTreeSet<ExprId>,
    condition: &dyn Fn(ExprId) -> bool,
) -> Vec<ExprId> {
    let mut found = Vec::new();
    let mut seen = known.clone();
    let mut pending = roots.to_vec();
    while let Some(id) = pending.pop() {
        if !seen.insert(id) {
            continue;
        }
        if condition(id) {
            found.push(id);
        } else {
            nest.program.exprs.get(id).for_each_operand(|operand| pending.push(operand));
        }
    }
    found.sort_unstable();
    found
}

/// True if the value varies over all of the axes and is not index arithmetic.
fn varies_over(nest: &Nest, value: ExprId, axes: &BTreeSet<VarId>) -> bool {
    let exprs = &nest.program.exprs;
    if exprs.ty(value) == orch_compute::expr::Type::INDEX {
        return false;
    }
    let vars = exprs.free_vars(value);
    axes.iter().all(|axis| vars.contains(axis))
}

/// True if computing the value costs more than a store to scratch and a load.
pub(super) fn costs_more_than_scratch(nest: &Nest, value: ExprId, _: &BTreeSet<ExprId>) -> bool {
    let exprs = &nest.program.exprs;
    if matches!(exprs.get(value), Expr::Load { .. }) {
        return false;
    }
    let parts = exprs.reachable(&[value]);
    let loads = parts.iter().filter(|&&id| matches!(exprs.get(id), Expr::Load { .. })).count();
    let cycles: f64 = parts.iter().map(|&id| operation_cycles(exprs, id)).sum();
    loads >= MIN_LOADS || cycles >= MIN_CYCLES
}

/// True if computing the value again costs more than keeping it in registers: it loads something that is not saved, or
/// takes [`MIN_CYCLES`].
pub(crate) fn costs_more_than_registers(nest: &Nest, value: ExprId, saved: &BTreeSet<ExprId>) -> bool {
    let exprs = &nest.program.exprs;
    let parts = exprs.reachable_unless(&[value], |id| saved.contains(&id));
    let loads = parts.iter().any(|&id| matches!(exprs.get(id), Expr::Load { .. }));
    let cycles: f64 = parts.iter().map(|&id| operation_cycles(exprs, id)).sum();
    loads || cycles >= MIN_CYCLES
}
