//! What the caller decides about rewriting.

use crate::{CostModel, GraphLimits};

/// How far the result of a rule may differ from what it replaces. The order is from strict to free.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Numerics {
    /// The same bits, NaN payloads aside.
    Exact,
    /// Equal over the real numbers: rounding, the sign of zero, and overflow at the edge of the range may differ, as
    /// they do between two orders of summation.
    Reassociate,
    /// Differs by more, or on inputs such as NaN and infinities.
    Approximate,
}

/// Options of [`rewrite`](crate::rewrite).
#[derive(Clone, Debug)]
pub struct RewriteOptions {
    /// The freest class of rules to apply.
    pub numerics: Numerics,
    /// Results of constant folding larger than this stay nodes.
    pub fold_limit_bytes: usize,
    /// Rule applications after which rewriting stops.
    pub max_applications: usize,
    /// Limits of the e-graph.
    pub graph_limits: GraphLimits,
    /// What decides between alternatives.
    pub cost: CostModel,
}

impl Default for RewriteOptions {
    fn default() -> Self {
        Self {
            numerics: Numerics::Reassociate,
            fold_limit_bytes: 1 << 28,
            max_applications: 1 << 20,
            graph_limits: GraphLimits::default(),
            cost: CostModel::default(),
        }
    }
}
