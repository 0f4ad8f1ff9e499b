//! What rewriting did.

use crate::GraphReport;
use std::collections::BTreeMap;
use std::fmt;

/// What [`rewrite`](crate::rewrite) did, and why it stopped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RewriteReport {
    /// How often each rule was applied.
    pub applied: BTreeMap<&'static str, usize>,
    /// Nodes given.
    pub nodes_before: usize,
    /// Nodes returned.
    pub nodes_after: usize,
    /// Nodes that were merged with an equal one.
    pub merged: usize,
    /// Results that were evaluated because they depend on constants alone.
    pub folded: usize,
    /// The e-graph.
    pub graph: GraphReport,
    /// Limits that stopped rewriting before it was done.
    pub limits_hit: Vec<&'static str>,
}

impl RewriteReport {
    /// Counts one application of a rule.
    pub(crate) fn count(&mut self, rule: &'static str) {
        *self.applied.entry(rule).or_default() += 1;
    }

    /// All applications of rules.
    pub fn applications(&self) -> usize {
        self.applied.values().sum()
    }
}

impl fmt::Display for RewriteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} nodes -> {} ({} merged, {} results folded)",
            self.nodes_before, self.nodes_after, self.merged, self.folded
        )?;
        for (rule, times) in &self.applied {
            writeln!(f, "  {times:>5} x {rule}")?;
        }
        let GraphReport { nodes_before, nodes_after, classes, rounds, changed } = self.graph;
        writeln!(
            f,
            "  e-graph: {nodes_before} nodes -> {nodes_after} in {classes} classes, {rounds} rounds, {changed} changed"
        )?;
        for limit in &self.limits_hit {
            writeln!(f, "  stopped by: {limit}")?;
        }
        Ok(())
    }
}
