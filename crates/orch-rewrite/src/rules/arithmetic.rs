//! Neutral elements, constants met twice, and cheaper functions for constant operands.

use crate::facts::{elements, is_nonnegative, normal_range, splat};
use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, PrimOp, ScalarFn, TensorId, UnaryFn};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "neutral-exact",
        equation: "x 1 = x, x / 1 = x, x - 0 = x, x + (-0) = x, x^1 = x",
        guards: "x + 0 = x for integers only",
        numerics: Numerics::Exact,
        source: "IEEE 754",
        apply: neutral_exact,
    },
    Rule {
        name: "neutral-zero",
        equation: "x + 0 = x",
        guards: "floats",
        numerics: Numerics::Reassociate,
        source: "neutral element; -0 + 0 is +0",
        apply: neutral_zero,
    },
    Rule {
        name: "negation-of-negation",
        equation: "-(-x) = x",
        guards: "",
        numerics: Numerics::Exact,
        source: "involution",
        apply: negation_of_negation,
    },
    Rule {
        name: "add-of-negation",
        equation: "x + (-y) = x - y, x - (-y) = x + y",
        guards: "",
        numerics: Numerics::Exact,
        source: "IEEE 754 defines subtraction so",
        apply: add_of_negation,
    },
    Rule {
        name: "subtract-constant",
        equation: "x - C = x + (-C)",
        guards: "",
        numerics: Numerics::Exact,
        source: "IEEE 754 defines subtraction so",
        apply: subtract_constant,
    },
    Rule {
        name: "divide-by-power-of-two",
        equation: "x / C = x (1 / C)",
        guards: "every element of C is a power of two with a normal reciprocal",
        numerics: Numerics::Exact,
        source: "scaling by a power of two rounds as division does",
        apply: divide_by_power_of_two,
    },
    Rule {
        name: "merge-constants",
        equation: "(x + A) + B = x + (A + B), (x A) B = x (A B)",
        guards: "the inner result has no other use; floats",
        numerics: Numerics::Reassociate,
        source: "associativity",
        apply: merge_constants,
    },
    Rule {
        name: "merge-integer-constants",
        equation: "(x + A) + B = x + (A + B), (x A) B = x (A B)",
        guards: "the inner result has no other use; integers",
        numerics: Numerics::Exact,
        source: "integers wrap",
        apply: merge_integer_constants,
    },
    Rule {
        name: "small-power",
        equation: "x^2 = x x, x^3 = x x x, x^-1 = 1 / x",
        guards: "floats",
        numerics: Numerics::Reassociate,
        source: "definition",
        apply: small_power,
    },
    Rule {
        name: "power-half",
        equation: "x^(1/2) = sqrt(x)",
        guards: "x >= 0 is known, because the square root of -0 and -inf differs",
        numerics: Numerics::Reassociate,
        source: "definition",
        apply: power_half,
    },
];

fn neutral_exact(site: &mut Site<'_>) -> Option<TensorId> {
    let (f, x, value) = scalar_operand(site)?;
    let float = site.dtype(x).is_float();
    let neutral = match f {
        BinaryFn::Mul | BinaryFn::Div | BinaryFn::Pow => value == 1.0,
        BinaryFn::Sub => value == 0.0 && value.is_sign_positive(),
        BinaryFn::Add => value == 0.0 && (value.is_sign_negative() || !float),
        _ => false,
    };
    neutral.then_some(x)
}

fn neutral_zero(site: &mut Site<'_>) -> Option<TensorId> {
    let (f, x, value) = scalar_operand(site)?;
    (f == BinaryFn::Add && value == 0.0).then_some(x)
}

/// The root as a function of one operand and a number.
fn scalar_operand(site: &Site<'_>) -> Option<(BinaryFn, TensorId, f64)> {
    let root = site.root();
    let PrimOp::Map(ScalarFn::Binary(f)) = *root.op else { return None };
    let (x, c) = site.with_constant(site.result(), f)?;
    Some((f, x, splat(site, c)?))
}

fn negation_of_negation(site: &mut Site<'_>) -> Option<TensorId> {
    let [negated] = site.root_map(UnaryFn::Neg)?;
    let [x] = site.mapped(negated, UnaryFn::Neg)?;
    Some(x)
}

fn add_of_negation(site: &mut Site<'_>) -> Option<TensorId> {
    if let Some([x, y]) = site.root_map(BinaryFn::Sub) {
        let [y] = site.mapped(y, UnaryFn::Neg)?;
        return site.binary(BinaryFn::Add, x, y);
    }
    let [x, y] = site.root_map(BinaryFn::Add)?;
    if let Some([y]) = site.mapped(y, UnaryFn::Neg) {
        return site.binary(BinaryFn::Sub, x, y);
    }
    let [x] = site.mapped(x, UnaryFn::Neg)?;
    site.binary(BinaryFn::Sub, y, x)
}

fn subtract_constant(site: &mut Site<'_>) -> Option<TensorId> {
    let (x, c) = site.with_constant(site.result(), BinaryFn::Sub)?;
    let negated = site.map(UnaryFn::Neg, &[c])?;
    site.binary(BinaryFn::Add, x, negated)
}

fn divide_by_power_of_two(site: &mut Site<'_>) -> Option<TensorId> {
    let (x, divisor) = site.with_constant(site.result(), BinaryFn::Div)?;
    let normal = normal_range(site.dtype(x))?;
    let suits = |value: &f64| {
        let size = value.abs();
        let is_power_of_two = size.to_bits().trailing_zeros() >= f64::MANTISSA_DIGITS - 1;
        is_power_of_two && normal.contains(&size) && normal.contains(&size.recip())
    };
    elements(site, divisor)?.iter().all(suits).then_some(())?;
    let reciprocal = site.map(UnaryFn::Recip, &[divisor])?;
    site.binary(BinaryFn::Mul, x, reciprocal)
}

fn merge_constants(site: &mut Site<'_>) -> Option<TensorId> {
    if site.dtype(site.result()).is_float() { merge(site) } else { None }
}

fn merge_integer_constants(site: &mut Site<'_>) -> Option<TensorId> {
    if site.dtype(site.result()).is_int() { merge(site) } else { None }
}

fn merge(site: &mut Site<'_>) -> Option<TensorId> {
    for f in [BinaryFn::Add, BinaryFn::Mul] {
        if let Some((inner, b)) = site.with_constant(site.result(), f) {
            let (x, a) = site.with_constant(inner, f).filter(|_| site.single(inner))?;
            let merged = site.binary(f, a, b)?;
            return site.binary(f, x, merged);
        }
    }
    None
}

fn small_power(site: &mut Site<'_>) -> Option<TensorId> {
    let (BinaryFn::Pow, x, power) = scalar_operand(site)? else { return None };
    if !site.dtype(x).is_float() {
        return None;
    }
    if power == 2.0 {
        site.binary(BinaryFn::Mul, x, x)
    } else if power == 3.0 {
        let square = site.binary(BinaryFn::Mul, x, x)?;
        site.binary(BinaryFn::Mul, square, x)
    } else if power == -1.0 {
        site.map(UnaryFn::Recip, &[x])
    } else {
        None
    }
}

fn power_half(site: &mut Site<'_>) -> Option<TensorId> {
    let (BinaryFn::Pow, x, 0.5) = scalar_operand(site)? else { return None };
    if site.dtype(x).is_float() && is_nonnegative(site, x) { site.map(UnaryFn::Sqrt, &[x]) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};
    use orch_ir::DType;

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "neutral-exact",
                    nodes: (10, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let x = g.with(BinaryFn::Mul, x, 1.0);
                        let x = g.with(BinaryFn::Div, x, 1.0);
                        let x = g.with(BinaryFn::Sub, x, 0.0);
                        let x = g.with(BinaryFn::Add, x, -0.0);
                        g.with(BinaryFn::Pow, x, 1.0)
                    },
                },
                Case {
                    rule: "neutral-exact",
                    nodes: (2, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input_of(DType::I32, [a, b]);
                        g.with(BinaryFn::Add, x, 0.0)
                    },
                },
                Case {
                    rule: "neutral-zero",
                    nodes: (2, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.with(BinaryFn::Add, x, 0.0)
                    },
                },
                Case {
                    rule: "negation-of-negation",
                    nodes: (2, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let y = g.map(UnaryFn::Neg, &[x]);
                        g.map(UnaryFn::Neg, &[y])
                    },
                },
                Case {
                    rule: "add-of-negation",
                    nodes: (4, 2),
                    build: |g, [a, b, _]| {
                        let (x, y) = (g.input([a, b]), g.input([a, b]));
                        let negated = g.map(UnaryFn::Neg, &[y]);
                        let difference = g.map(BinaryFn::Add, &[negated, x]);
                        let negated = g.map(UnaryFn::Neg, &[x]);
                        g.map(BinaryFn::Sub, &[difference, negated])
                    },
                },
                Case {
                    rule: "subtract-constant",
                    nodes: (2, 2),
                    build: |g, [a, b, _]| {
                        let (x, w) = (g.input([a, b]), g.weight([b]));
                        let w = g.broadcast(w, [a, b], &[1]);
                        g.map(BinaryFn::Sub, &[x, w])
                    },
                },
                Case {
                    rule: "divide-by-power-of-two",
                    nodes: (2, 2),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.with(BinaryFn::Div, x, -8.0)
                    },
                },
                Case {
                    rule: "merge-constants",
                    nodes: (7, 4),
                    build: |g, [a, b, _]| {
                        let (x, w) = (g.input([a, b]), g.weight([b]));
                        let w = g.broadcast(w, [a, b], &[1]);
                        let x = g.map(BinaryFn::Mul, &[w, x]);
                        let x = g.with(BinaryFn::Mul, x, 0.5);
                        let x = g.with(BinaryFn::Add, x, 3.0);
                        g.map(BinaryFn::Add, &[x, w])
                    },
                },
                Case {
                    rule: "merge-integer-constants",
                    nodes: (4, 2),
                    build: |g, [a, b, _]| {
                        let x = g.input_of(DType::I64, [a, b]);
                        let x = g.with(BinaryFn::Add, x, 3.0);
                        g.with(BinaryFn::Add, x, 4.0)
                    },
                },
                Case {
                    rule: "small-power",
                    nodes: (2, 2),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.with(BinaryFn::Pow, x, 3.0)
                    },
                },
                Case {
                    rule: "power-half",
                    nodes: (4, 3),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let square = g.map(BinaryFn::Mul, &[x, x]);
                        let sum = g.reduce(orch_ir::ReduceOp::Sum, square, &[1]);
                        g.with(BinaryFn::Pow, sum, 0.5)
                    },
                },
            ],
        );
    }

    #[test]
    fn divisors_without_an_exact_reciprocal_stay() {
        use orch_ir::Tensor;
        let divisors = [
            Tensor::from_vec([2], vec![1e-40f32, 2.0]),
            Tensor::from_vec([2], vec![2.0f32, 3.0]),
            Tensor::from_vec([1], vec![f32::exp2(100.0) * (1.0 + f32::EPSILON)]),
            Tensor::from_vec([1], vec![f64::exp2(100.0) * (1.0 + f64::EPSILON)]),
        ];
        for divisor in divisors {
            let mut graph = orch_ir::PrimGraph::new("g");
            let x = graph.add_input("x", divisor.dtype(), divisor.shape().clone());
            let c = graph.add_constant(divisor);
            let y = graph.add(PrimOp::Map(BinaryFn::Div.into()), &[x, c]).expect("floats");
            graph.add_output("y", y);
            let (_, report) = crate::rewrite(&graph, &crate::RewriteOptions::default());
            assert_eq!(report.applied, Default::default());
        }
    }
}
