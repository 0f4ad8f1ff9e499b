//! The list of rules.

use crate::{Call, Context, Operand, RuleError, rules};

/// The results of an operator, in the operator's order. Trailing optional results may be missing.
pub type Applied = Result<Vec<Operand>, RuleError>;

/// How one operator becomes primitives.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The operator set; `""` is ONNX's own.
    pub domain: &'static str,
    /// The operator's name.
    pub op_type: &'static str,
    /// The oldest version of the operator set whose semantics the rule knows.
    pub since: i64,
    /// True if elements are only moved, so that operands may be of a type that nothing computes in.
    pub moves: bool,
    /// Adds the primitives to the context's graph and returns the results.
    pub apply: fn(&mut Context<'_>, &Call<'_>) -> Applied,
}

impl Rule {
    /// A rule for an operator of ONNX's own set, in every version from 1 on.
    pub const fn onnx(op_type: &'static str, apply: fn(&mut Context<'_>, &Call<'_>) -> Applied) -> Self {
        Self { domain: "", op_type, since: 1, moves: false, apply }
    }

    /// The same rule, knowing the operator only from version `since` of the operator set on.
    pub const fn since(self, since: i64) -> Self {
        Self { since, ..self }
    }

    /// The same rule, of an operator that only moves elements.
    pub const fn moves(self) -> Self {
        Self { moves: true, ..self }
    }

    /// The same rule, of an operator of another operator set.
    pub const fn in_domain(self, domain: &'static str) -> Self {
        Self { domain, ..self }
    }
}

/// All rules, in the order of their families.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    rules::FAMILIES.iter().flat_map(|family| family.iter())
}

/// The rule for an operator.
pub fn find(domain: &str, op_type: &str) -> Option<&'static Rule> {
    let domain = if domain == "ai.onnx" { "" } else { domain };
    rules().find(|rule| rule.op_type == op_type && rule.domain == domain)
}

/// The usual case: an operator with one tensor as its result.
pub fn one(tensor: orch_ir::TensorId) -> Applied {
    Ok(vec![Operand::Tensor(tensor)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_operator_has_two_rules() {
        let mut seen = BTreeSet::new();
        for rule in rules() {
            assert!(seen.insert((rule.domain, rule.op_type)), "{} is listed twice", rule.op_type);
        }
    }
}
