//! Rewriting by alternatives: rules that pay only together, or only for some shapes, are applied in an e-graph, and
//! what is cheapest is taken out (egg, POPL'21; TENSAT, MLSys'21; Korch, ASPLOS'24, section 4.1).
//!
//! [`Space`] holds a graph with its alternatives; [`saturate`] applies rules within limits; [`extract`] chooses, by
//! the caller's [`CostModel`](crate::CostModel); [`improve`] does all three and puts the choice back into the draft.
//! A rule never makes a term depend on more than the term that it replaces does, so no choice is cyclic through the
//! operations that are left out (those with several results).

mod cost;
mod extract;
pub(crate) mod product;
pub(crate) mod replay;
pub mod rules;
mod saturate;
mod space;
mod term;

pub use cost::CostModel;
pub(crate) use space::Space;
pub(crate) use term::Term;

use crate::draft::Draft;
use crate::{Numerics, RewriteOptions, RewriteReport};
use egg::Id;

/// A rule that offers alternatives to a term: whether one is taken is a matter of cost.
#[derive(Clone, Copy)]
pub struct GraphRule {
    /// A unique name, in kebab case.
    pub name: &'static str,
    /// What equals what. Capitals are constants.
    pub equation: &'static str,
    /// When it applies, beyond what the equation says.
    pub guards: &'static str,
    /// How far the results may differ.
    pub numerics: Numerics,
    /// Where it comes from.
    pub source: &'static str,
    /// Adds terms that equal the given one, and returns their classes.
    pub(crate) apply: fn(&mut Space, &Term) -> Vec<Id>,
}

impl std::fmt::Debug for GraphRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.equation)
    }
}

/// Limits of the e-graph.
#[derive(Clone, Copy, Debug)]
pub struct GraphLimits {
    /// E-nodes after which no rule is applied any more, beyond those of the graph itself.
    pub max_new_nodes: usize,
    /// Rounds in which every rule is tried at every term.
    pub max_rounds: usize,
}

impl Default for GraphLimits {
    fn default() -> Self {
        Self { max_new_nodes: 20_000, max_rounds: 32 }
    }
}

/// What happened in the e-graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GraphReport {
    /// E-nodes of the graph as given.
    pub nodes_before: usize,
    /// E-nodes after the last round.
    pub nodes_after: usize,
    /// Classes after the last round.
    pub classes: usize,
    /// Rounds.
    pub rounds: usize,
    /// Classes for which something else than the original term was taken.
    pub changed: usize,
}

/// Replaces parts of the draft by cheaper alternatives; true if anything changed.
pub(crate) fn improve(
    draft: &mut Draft,
    rules: &[&[GraphRule]],
    options: &RewriteOptions,
    report: &mut RewriteReport,
) -> bool {
    let rules: Vec<&GraphRule> =
        rules.iter().copied().flatten().filter(|rule| rule.numerics <= options.numerics).collect();
    let mut space = Space::new(draft);
    let nodes_before = space.node_count();
    let (rounds, unions) = saturate::saturate(&mut space, &rules, &options.graph_limits, report);
    report.graph = GraphReport {
        nodes_before,
        nodes_after: space.node_count(),
        classes: space.class_count(),
        rounds,
        changed: 0,
    };
    if unions.is_empty() {
        return false;
    }
    let choice = extract::extract(&space, &options.cost);
    report.graph.changed = choice.changed;
    if choice.changed == 0 {
        return false;
    }
    for (rule, class) in unions {
        if choice.is_changed(&space, class) {
            report.count(rule);
        }
    }
    replay::replay(draft, &space, &choice);
    true
}
