//! From a choice back to the draft.

use super::Space;
use super::extract::Choice;
use super::term::{Symbol, Term};
use crate::draft::{Draft, Provenance};
use egg::Id;
use orch_ir::TensorId;
use std::collections::BTreeMap;

/// Replaces the roots by what was chosen for them.
pub(crate) fn replay(draft: &mut Draft, space: &Space, choice: &Choice) {
    let mut built = BTreeMap::new();
    let mut pairs = Vec::new();
    for &(tensor, class) in &space.roots {
        if let Some(new) = build(draft, space, &choice.terms, class, &mut built) {
            draft.tensors[new.index()].exports += 1;
            pairs.push((tensor, new));
        }
    }
    for &(old, new) in &pairs {
        if old != new {
            draft.replace(old, new);
        }
    }
    for (_, new) in pairs {
        draft.tensors[new.index()].exports -= 1;
    }
    draft.sweep(0);
    draft.requeue_all();
}

/// The tensor of a class: its term, built on the tensors of the classes below. Whatever is known is evaluated.
pub(crate) fn build(
    draft: &mut Draft,
    space: &Space,
    terms: &BTreeMap<Id, Term>,
    class: Id,
    built: &mut BTreeMap<Id, TensorId>,
) -> Option<TensorId> {
    let mut stack = vec![space.graph.find(class)];
    while let Some(&class) = stack.last() {
        if built.contains_key(&class) {
            stack.pop();
            continue;
        }
        let term = terms.get(&class)?;
        let children: Vec<Id> = term.children.iter().map(|&child| space.graph.find(child)).collect();
        let missing: Vec<Id> = children.iter().copied().filter(|child| !built.contains_key(child)).collect();
        if !missing.is_empty() {
            stack.extend(missing);
            continue;
        }
        let tensor = match term.symbol {
            Symbol::Leaf(tensor) => tensor,
            Symbol::Op(number) => {
                let inputs: Vec<TensorId> = children.iter().map(|child| built[child]).collect();
                let op = space.graph.analysis.ops[number as usize].clone();
                let none = || Provenance { origin: "".into(), rank: 0 };
                let provenance = space.provenance.get(&class).cloned().unwrap_or_else(none);
                *draft.add_folding(op, &inputs, &provenance)?.first()?
            }
        };
        built.insert(class, tensor);
        stack.pop();
    }
    built.get(&space.graph.find(class)).copied()
}

/// Replaces the only root by a class all of whose terms are the only ones of their classes.
#[cfg(test)]
pub(crate) fn put(draft: &mut Draft, space: &Space, class: Id) {
    let terms = space.graph.classes().map(|class| (class.id, class.nodes[0].clone())).collect();
    let new = build(draft, space, &terms, class, &mut BTreeMap::new()).expect("every class has a term");
    let (_, old) = draft.outputs[0].clone();
    draft.replace(old, new);
    draft.sweep(0);
}
