//! The choice of one term per class.
//!
//! First bottom-up: each class takes the term whose terms below cost least in total, shared ones counted once
//! (greedy DAG extraction, after `faster-greedy-dag` of the extraction gym). That does not see what two outputs
//! share, so then every class that left its original term is offered that again, and every class that kept it the
//! others of a merge, by the cost of the whole. Deterministic: ties go to original terms, then to the order of terms.

use super::term::{Symbol, Term};
use super::{CostModel, Space};
use egg::Id;
use fixedbitset::FixedBitSet;
use orch_ir::PrimOp;
use std::collections::{BTreeMap, BTreeSet};

/// Passes over all classes, after which the choice is taken as it is.
const MAX_PASSES: usize = 16;

/// A choice is left only for one that is better by this part.
const MARGIN: f64 = 1e-6;

/// One term per class.
pub(crate) struct Choice {
    /// The chosen term, by canonical class.
    pub(crate) terms: BTreeMap<Id, Term>,
    /// Classes in use for which another than the original term is chosen.
    pub(crate) changed: usize,
    changed_classes: BTreeSet<Id>,
}

impl Choice {
    /// True if `class` is in use, with another term than the original one.
    pub(crate) fn is_changed(&self, space: &Space, class: Id) -> bool {
        self.changed_classes.contains(&space.graph.find(class))
    }
}

/// The costs of terms, with everything canonical.
struct Costs<'s> {
    space: &'s Space,
    model: &'s CostModel,
    roots: Vec<Id>,
    originals: BTreeMap<Id, Term>,
    /// For classes that depend on constants alone: the bytes that are stored for them, and how they are computed.
    known: BTreeMap<Id, (usize, Term)>,
}

/// Chooses the cheapest terms for the roots.
pub(crate) fn extract(space: &Space, model: &CostModel) -> Choice {
    let canonical = |class: Id| space.graph.find(class);
    let mut originals = BTreeMap::new();
    for (term, class) in &space.originals {
        let term =
            Term { symbol: term.symbol, children: term.children.iter().map(|&c| canonical(c)).collect() };
        originals.entry(canonical(*class)).or_insert(term);
    }
    let roots = space.roots.iter().map(|(_, class)| canonical(*class)).collect();
    let mut costs = Costs { space, model, roots, originals, known: BTreeMap::new() };
    costs.known = costs.known_terms();
    let mut terms = costs.bottom_up();
    costs.revise(&mut terms);
    let reached = costs.total(&terms).map(|(_, reached)| reached).unwrap_or_default();
    let changed_classes: BTreeSet<Id> =
        reached.into_iter().filter(|&class| costs.differs(class, &terms)).collect();
    Choice { terms, changed: changed_classes.len(), changed_classes }
}

impl Costs<'_> {
    /// The cost of a term alone; inputs cost nothing, constants their way from memory.
    fn term_us(&self, class: Id, term: &Term) -> f64 {
        if let Some((bytes, _)) = self.known.get(&class) {
            return self.model.constant_us(*bytes);
        }
        let Some(view) = self.space.view(term) else { return 0.0 };
        let operands: Vec<_> = term.children.iter().map(|&child| self.space.facts(child)).collect();
        self.model.primitive_us(&view.op, &operands, self.space.facts(class))
    }

    /// For every class that depends on constants alone the term that stores least: a repeated constant is stored once,
    /// anything else is evaluated.
    fn known_terms(&self) -> BTreeMap<Id, (usize, Term)> {
        let mut classes: Vec<Id> = self.space.graph.classes().map(|class| class.id).collect();
        classes.retain(|&class| self.space.is_known(class));
        classes.sort_unstable();
        let mut found: BTreeMap<Id, (usize, Term)> = BTreeMap::new();
        for _ in 0..MAX_PASSES {
            let mut improved = false;
            for &class in &classes {
                for term in self.candidates(class) {
                    let stored: Option<Vec<usize>> =
                        term.children.iter().map(|child| found.get(child).map(|(bytes, _)| *bytes)).collect();
                    let Some(stored) = stored else { continue };
                    let repeated = self.space.view(&term).is_some_and(|view| is_repetition(&view.op));
                    let bytes = if repeated { stored.iter().sum() } else { self.space.facts(class).bytes() };
                    if found.get(&class).is_none_or(|(best, _)| bytes < *best) {
                        found.insert(class, (bytes, term));
                        improved = true;
                    }
                }
            }
            if !improved {
                break;
            }
        }
        found
    }

    /// The terms of a class, the original one first.
    fn candidates(&self, class: Id) -> Vec<Term> {
        let original = self.originals.get(&class);
        let mut terms: Vec<Term> = self.space.graph[class].nodes.clone();
        for term in &mut terms {
            term.children.iter_mut().for_each(|child| *child = self.space.graph.find(*child));
        }
        terms.sort();
        terms.sort_by_key(|term| (Some(term) != original, !matches!(term.symbol, Symbol::Leaf(_))));
        terms
    }

    /// The locally cheapest term of every class that has a term without cycle.
    fn bottom_up(&self) -> BTreeMap<Id, Term> {
        let mut classes: Vec<Id> = self.space.graph.classes().map(|class| class.id).collect();
        classes.sort_unstable();
        let width = classes.last().map_or(0, |&last| usize::from(last) + 1);
        let candidates: Vec<(Id, Vec<Term>)> =
            classes.into_iter().map(|class| (class, self.candidates(class))).collect();
        let mut own_us = vec![0.0; width];
        let mut below: Vec<Option<FixedBitSet>> = vec![None; width];
        let mut totals = vec![f64::INFINITY; width];
        let mut chosen = BTreeMap::new();
        for (&class, (bytes, term)) in &self.known {
            let at = usize::from(class);
            own_us[at] = self.model.constant_us(*bytes);
            totals[at] = own_us[at];
            below[at] = Some(FixedBitSet::from_iter([at]));
            chosen.insert(class, term.clone());
        }
        for _ in 0..MAX_PASSES {
            let mut improved = false;
            for (class, terms) in candidates.iter().filter(|(class, _)| !self.known.contains_key(class)) {
                let at = usize::from(*class);
                for term in terms {
                    let Some(set) = union_below(&below, term, at, width) else { continue };
                    let us = self.term_us(*class, term);
                    let total = us + set.ones().map(|other| own_us[other]).sum::<f64>();
                    if total < totals[at] * (1.0 - MARGIN) || totals[at].is_infinite() {
                        let mut set = set;
                        set.insert(at);
                        (own_us[at], totals[at], below[at]) = (us, total, Some(set));
                        chosen.insert(*class, term.clone());
                        improved = true;
                    }
                }
            }
            if !improved {
                break;
            }
        }
        chosen
    }

    /// Goes back to original terms where the whole is not dearer with them.
    fn revise(&self, terms: &mut BTreeMap<Id, Term>) {
        let Some((mut best, mut reached)) = self.total(terms) else {
            *terms = self.all_original();
            return;
        };
        let changed: Vec<Id> = reached.iter().copied().filter(|&class| self.differs(class, terms)).collect();
        for class in changed.into_iter().rev() {
            if !reached.contains(&class) {
                continue;
            }
            let Some(original) = self.originals.get(&class) else { continue };
            let Some(left) = terms.insert(class, original.clone()) else { continue };
            match self.total(terms) {
                Some((total, now)) if total <= best * (1.0 + MARGIN) => (best, reached) = (total, now),
                _ => {
                    terms.insert(class, left);
                }
            }
        }
        let unchanged = self.total(&self.all_original()).map_or(f64::INFINITY, |(total, _)| total);
        if best >= unchanged * (1.0 - MARGIN) {
            *terms = self.all_original();
        }
    }

    fn all_original(&self) -> BTreeMap<Id, Term> {
        let mut terms = self.originals.clone();
        for class in self.space.graph.classes() {
            if let Some(leaf) = class.nodes.iter().find(|term| matches!(term.symbol, Symbol::Leaf(_))) {
                terms.entry(class.id).or_insert_with(|| leaf.clone());
            }
        }
        terms
    }

    fn differs(&self, class: Id, terms: &BTreeMap<Id, Term>) -> bool {
        let is_leaf = |term: &Term| matches!(term.symbol, Symbol::Leaf(_));
        if self.known.contains_key(&class) {
            return false;
        }
        terms.get(&class).is_some_and(|term| !is_leaf(term) && self.originals.get(&class) != Some(term))
    }

    /// The cost of what the roots need, each class once, and these classes; `None` if the choice is cyclic or has
    /// gaps.
    fn total(&self, terms: &BTreeMap<Id, Term>) -> Option<(f64, BTreeSet<Id>)> {
        let mut done = BTreeSet::new();
        let mut open = BTreeSet::new();
        let mut total = 0.0;
        let mut stack: Vec<(Id, bool)> = self.roots.iter().map(|&root| (root, false)).collect();
        while let Some((class, finished)) = stack.pop() {
            if finished {
                open.remove(&class);
                done.insert(class);
                continue;
            }
            if done.contains(&class) {
                continue;
            }
            if !open.insert(class) {
                return None;
            }
            let term = terms.get(&class)?;
            total += self.term_us(class, term);
            stack.push((class, true));
            if self.known.contains_key(&class) {
                continue;
            }
            for &child in &term.children {
                let child = self.space.graph.find(child);
                if open.contains(&child) {
                    return None;
                }
                if !done.contains(&child) {
                    stack.push((child, false));
                }
            }
        }
        Some((total, done))
    }
}

/// True for primitives whose result is read through them, not stored.
fn is_repetition(op: &PrimOp) -> bool {
    matches!(op, PrimOp::Broadcast { .. } | PrimOp::Iota { .. })
}

/// The classes that a term needs below it, or `None` if one has no term yet or the term would need its own class.
fn union_below(
    below: &[Option<FixedBitSet>],
    term: &Term,
    class: usize,
    width: usize,
) -> Option<FixedBitSet> {
    let mut set = FixedBitSet::with_capacity(width);
    for &child in &term.children {
        set.union_with(below[usize::from(child)].as_ref()?);
    }
    (!set.contains(class)).then_some(set)
}
