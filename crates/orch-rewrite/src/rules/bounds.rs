//! Maxima and minima whose outcome the range of their operand decides.

use crate::facts::{range, splat};
use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, TensorId};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "bound-within-range",
        equation: "max(x, C) = x where x >= C; min(x, C) = x where x <= C",
        guards: "C is one number; x is known to be in range, or NaN",
        numerics: Numerics::Exact,
        source: "definition; NaN wins on both sides",
        apply: bound_within_range,
    },
    Rule {
        name: "merge-bounds",
        equation: "max(max(x, A), B) = max(x, max(A, B)), the same for min",
        guards: "the inner result has no other use",
        numerics: Numerics::Exact,
        source: "associativity",
        apply: merge_bounds,
    },
    Rule {
        name: "lower-bound-first",
        equation: "max(min(x, A), B) = min(max(x, B), A)",
        guards: "A and B are numbers, B < A; the inner result has no other use",
        numerics: Numerics::Exact,
        source: "distributive lattice",
        apply: lower_bound_first,
    },
];

fn bound_within_range(site: &mut Site<'_>) -> Option<TensorId> {
    for f in [BinaryFn::Max, BinaryFn::Min] {
        if let Some((x, c)) = site.with_constant(site.result(), f) {
            let (bound, (low, high)) = (splat(site, c)?, range(site, x)?);
            let decided = if f == BinaryFn::Max { low > bound } else { high < bound };
            // Zeros of either sign are equal, and which one a bound returns is its own choice.
            let touches = bound != 0.0 && if f == BinaryFn::Max { low == bound } else { high == bound };
            return (decided || touches).then_some(x);
        }
    }
    None
}

fn merge_bounds(site: &mut Site<'_>) -> Option<TensorId> {
    for f in [BinaryFn::Max, BinaryFn::Min] {
        if let Some((inner, b)) = site.with_constant(site.result(), f) {
            let (x, a) = site.with_constant(inner, f).filter(|_| site.single(inner))?;
            let merged = site.binary(f, a, b)?;
            return site.binary(f, x, merged);
        }
    }
    None
}

fn lower_bound_first(site: &mut Site<'_>) -> Option<TensorId> {
    let (inner, low) = site.with_constant(site.result(), BinaryFn::Max)?;
    let (x, high) = site.with_constant(inner, BinaryFn::Min).filter(|_| site.single(inner))?;
    if splat(site, low)? >= splat(site, high)? {
        return None;
    }
    let bounded = site.binary(BinaryFn::Max, x, low)?;
    site.binary(BinaryFn::Min, bounded, high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};
    use orch_ir::{DType, PrimGraph, PrimOp, Tensor, UnaryFn};

    /// Nodes left of `max(f(x), low)` and `min(.., high)`.
    fn nodes_left(f: UnaryFn, low: f32, high: f32) -> usize {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, []);
        let y = graph.add(PrimOp::Map(f.into()), &[x]).expect("a float");
        let low = graph.add_constant(Tensor::scalar(low));
        let high = graph.add_constant(Tensor::scalar(high));
        let y = graph.add(PrimOp::Map(BinaryFn::Max.into()), &[y, low]).expect("floats");
        let y = graph.add(PrimOp::Map(BinaryFn::Min.into()), &[y, high]).expect("floats");
        graph.add_output("y", y);
        crate::rewrite(&graph, &crate::RewriteOptions::default()).0.nodes().len()
    }

    #[test]
    fn ranges_of_functions_are_known() {
        assert_eq!(nodes_left(UnaryFn::Exp, -1.0, f32::INFINITY), 1);
        assert_eq!(nodes_left(UnaryFn::Exp, 0.5, f32::INFINITY), 2);
        assert_eq!(nodes_left(UnaryFn::Tanh, -1.0, 1.0), 1);
        assert_eq!(nodes_left(UnaryFn::Tanh, -1.0, 0.5), 2);
        assert_eq!(nodes_left(UnaryFn::Neg, -1.0, 1.0), 3);
    }

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "bound-within-range",
                    nodes: (6, 4),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let y = g.with(BinaryFn::Max, x, 2.0);
                        let y = g.with(BinaryFn::Min, y, 8.0);
                        g.with(BinaryFn::Max, y, 1.0)
                    },
                },
                Case {
                    rule: "merge-bounds",
                    nodes: (4, 2),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let y = g.with(BinaryFn::Max, x, 2.0);
                        g.with(BinaryFn::Max, y, 3.0)
                    },
                },
                Case {
                    rule: "lower-bound-first",
                    nodes: (4, 4),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let y = g.with(BinaryFn::Min, x, 6.0);
                        g.with(BinaryFn::Max, y, 1.0)
                    },
                },
            ],
        );
    }
}
