//! One rule per target: a function that adds operators for one call and returns the call's results.

use crate::call::Call;
use crate::emit::{Emitter, Refusal, Val};

mod attention;
mod batch_norm;
mod contraction;
mod convolution;
mod create;
mod divide;
mod extremes;
mod index;
mod index_put;
mod layer_norm;
mod pointwise;
mod pooling;
mod pooling_backward;
mod random;
mod reduce;
mod replace;
mod scatter;
mod softmax;
mod sort;
mod strided;
mod transform;
mod unary;
mod view;

/// A target that is supported.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The overload, as `aten.add.Tensor`.
    pub name: &'static str,
    /// The arguments that are known, in the order of the target's schema, with spaces between.
    pub parameters: &'static str,
    /// What is required besides element types that exist here; empty if nothing is.
    pub condition: &'static str,
}

/// The results of a call; `None` for one that is no tensor.
pub(crate) type Applied = Result<Vec<Option<Val>>, Refusal>;

type Apply = fn(&mut Emitter, &Call) -> Applied;

/// How a target is translated.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    pub target: Target,
    pub apply: Apply,
}

/// A rule for a target.
const fn rule(name: &'static str, parameters: &'static str, apply: Apply) -> Rule {
    Rule { target: Target { name, parameters, condition: "" }, apply }
}

impl Rule {
    /// The same rule, with what it requires.
    const fn when(self, condition: &'static str) -> Self {
        Self { target: Target { condition, ..self.target }, ..self }
    }
}

/// All families.
const FAMILIES: &[&[Rule]] = &[
    view::RULES,
    strided::RULES,
    replace::RULES,
    create::RULES,
    random::RULES,
    unary::RULES,
    pointwise::RULES,
    divide::RULES,
    reduce::RULES,
    extremes::RULES,
    sort::RULES,
    softmax::RULES,
    layer_norm::RULES,
    batch_norm::RULES,
    contraction::RULES,
    convolution::RULES,
    pooling::RULES,
    pooling_backward::RULES,
    index::RULES,
    index_put::RULES,
    scatter::RULES,
    attention::RULES,
    transform::RULES,
];

fn rules() -> impl Iterator<Item = &'static Rule> {
    FAMILIES.iter().flat_map(|family| family.iter())
}

/// The rule of a target.
pub(crate) fn find(target: &str) -> Option<&'static Rule> {
    rules().find(|rule| rule.target.name == target)
}

/// All targets that are supported, in the order of their families.
pub fn targets() -> impl Iterator<Item = Target> {
    rules().map(|rule| rule.target)
}

/// The usual case: one tensor.
fn one(value: Val) -> Applied {
    Ok(vec![Some(value)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_target_has_two_rules() {
        let mut seen = BTreeSet::new();
        for target in targets() {
            assert!(seen.insert(target.name), "{} is listed twice", target.name);
        }
    }
}
