//! What a rule is.

use crate::Numerics;
use crate::site::Site;
use orch_ir::TensorId;

/// A local rule: a pattern that ends in one node, and what replaces that node's result.
///
/// A rule is applied wherever it matches, so it never makes a graph slower: it removes work, or brings it into the
/// form that other rules expect.
#[derive(Clone, Copy)]
pub struct Rule {
    /// A unique name, in kebab case.
    pub name: &'static str,
    /// What is replaced by what. Capitals are constants.
    pub equation: &'static str,
    /// When it applies, beyond what the equation says.
    pub guards: &'static str,
    /// How far the results may differ.
    pub numerics: Numerics,
    /// Where it comes from.
    pub source: &'static str,
    /// Tries the rule at a node: the tensor that replaces the node's result, or `None` where the rule does not match.
    pub(crate) apply: fn(&mut Site<'_>) -> Option<TensorId>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.equation)
    }
}
