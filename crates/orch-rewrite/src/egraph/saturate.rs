//! Application of rules until nothing new is found, or a limit is hit.

use super::term::Term;
use super::{GraphLimits, GraphRule, Space};
use crate::RewriteReport;
use egg::Id;
use std::collections::BTreeMap;

/// Rounds done, and the name of the rule and class of every union.
pub(crate) type Saturation = (usize, Vec<(&'static str, Id)>);

/// Applies `rules` to every term, in rounds.
pub(crate) fn saturate(
    space: &mut Space,
    rules: &[&GraphRule],
    limits: &GraphLimits,
    report: &mut RewriteReport,
) -> Saturation {
    let limit = space.node_count() + limits.max_new_nodes;
    let mut unions = Vec::new();
    // What a rule sees of a term changes with the classes of its operands alone.
    let mut seen: BTreeMap<Term, usize> = BTreeMap::new();
    for round in 0..limits.max_rounds {
        let mut found = Vec::new();
        for (class, term) in terms(space) {
            let surroundings: usize = term.children.iter().map(|&child| space.graph[child].len()).sum();
            if seen.insert(term.clone(), surroundings) == Some(surroundings) {
                continue;
            }
            for rule in rules {
                let known_classes = space.graph.nodes().len();
                for equal in (rule.apply)(space, &term) {
                    found.push((rule.name, class, equal));
                }
                inherit(space, class, known_classes);
            }
            if space.node_count() > limit {
                report.limits_hit.push("graph_limits.max_new_nodes");
                break;
            }
        }
        let mut changed = false;
        for (rule, class, equal) in found {
            if space.graph.union(class, equal) {
                unions.push((rule, class));
                changed = true;
            }
        }
        space.graph.rebuild();
        if !changed || space.node_count() > limit {
            return (round + 1, unions);
        }
    }
    report.limits_hit.push("graph_limits.max_rounds");
    (limits.max_rounds, unions)
}

/// All terms with their classes, in order of the classes.
fn terms(space: &Space) -> Vec<(Id, Term)> {
    let mut terms: Vec<(Id, Term)> = space
        .graph
        .classes()
        .flat_map(|class| class.nodes.iter().map(|term| (class.id, term.clone())))
        .collect();
    terms.sort();
    terms
}

/// Terms added for a class come from where it comes from.
fn inherit(space: &mut Space, class: Id, first_new: usize) {
    let Some(provenance) = space.provenance.get(&class).cloned() else { return };
    for index in first_new..space.graph.nodes().len() {
        space.provenance.entry(Id::from(index)).or_insert_with(|| provenance.clone());
    }
}
