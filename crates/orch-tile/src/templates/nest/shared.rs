//! Costly values that several stages compute are computed once: the first stage that needs them leaves them in
//! scratch, as softmax does with its exponentials.

use super::cost::operation_cycles;
use super::flat::{Nest, Step, Work};
use crate::block::Axis;
use crate::expr::{Expr, ExprId, VarId};
use std::collections::BTreeSet;

/// A value that a stage saves for later ones.
#[derive(Clone, Debug)]
pub(in crate::templates) struct Shared {
    /// The stage that saves it, as a position among the steps.
    pub step: usize,
    /// What is saved.
    pub value: ExprId,
    /// The axes it varies over, apart from outer ones.
    pub axes: Vec<VarId>,
}

/// Operations, in cycles per vector, from which on a value is worth a store and a load.
const MIN_CYCLES: f64 = 6.0;

/// Loads from which on a value is worth a store and a load.
const MIN_LOADS: usize = 3;

/// The values worth saving, by stage.
pub(in crate::templates) fn shared_values(nest: &Nest, outer: &[Axis]) -> Vec<Shared> {
    let mut shared = Vec::new();
    for (position, step) in nest.steps.iter().enumerate() {
        let axes = inner_axes(step, outer);
        let later: Vec<&Step> = (nest.steps[position + 1..].iter())
            .filter(|other| inner_axes(other, outer) == axes && !is_same_loop(step, other))
            .collect();
        if axes.is_empty() || later.is_empty() {
            continue;
        }
        let known: BTreeSet<ExprId> = shared.iter().map(|shared: &Shared| shared.value).collect();
        let used: BTreeSet<ExprId> =
            later.iter().flat_map(|step| nest.program.exprs.reachable(&step.roots())).collect();
        for value in
            outermost(nest, &step.roots(), &|id| used.contains(&id) && is_worth_saving(nest, id, &axes))
        {
            if !known.contains(&value) {
                shared.push(Shared { step: position, value, axes: axes.iter().copied().collect() });
            }
        }
    }
    shared
}

/// The axes that a step loops over at a point of the outer axes.
fn inner_axes(step: &Step, outer: &[Axis]) -> BTreeSet<VarId> {
    step.axes().into_iter().filter(|axis| outer.iter().all(|other| other.var != *axis)).collect()
}

/// True for stores that run in one loop.
fn is_same_loop(a: &Step, b: &Step) -> bool {
    matches!((&a.work, &b.work), (Work::Store { .. }, Work::Store { .. }))
}

/// Subexpressions that satisfy a condition and are not part of another one that does.
fn outermost(nest: &Nest, roots: &[ExprId], condition: &dyn Fn(ExprId) -> bool) -> Vec<ExprId> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
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

/// True if the value varies over all of the axes and costs more than to save it.
fn is_worth_saving(nest: &Nest, value: ExprId, axes: &BTreeSet<VarId>) -> bool {
    let exprs = &nest.program.exprs;
    if exprs.ty(value) == crate::expr::Type::INDEX || matches!(exprs.get(value), Expr::Load { .. }) {
        return false;
    }
    let parts = exprs.reachable(&[value]);
    let loads = parts.iter().filter(|&&id| matches!(exprs.get(id), Expr::Load { .. })).count();
    let cycles: f64 = parts.iter().map(|&id| operation_cycles(exprs, id)).sum();
    let vars = exprs.free_vars(value);
    (loads >= MIN_LOADS || cycles >= MIN_CYCLES) && axes.iter().all(|axis| vars.contains(axis))
}
