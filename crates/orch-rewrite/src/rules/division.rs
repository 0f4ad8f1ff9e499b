//! Divisions turned into fewer divisions.

use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, DType, TensorId, UnaryFn};

/// How many times fewer divisions there must be.
const GAIN: usize = 4;

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "divide-by-broadcast",
        equation: "x / broadcast(y) = x broadcast(1 / y)",
        guards: "y has at most a quarter of the elements; f32 and f64, where 1 / y overflows for subnormal y only",
        numerics: Numerics::Reassociate,
        source: "field axioms",
        apply: divide_by_broadcast,
    },
    Rule {
        name: "divide-one",
        equation: "1 / x = recip(x)",
        guards: "floats",
        numerics: Numerics::Exact,
        source: "definition",
        apply: divide_one,
    },
    Rule {
        name: "multiply-by-reciprocal",
        equation: "x (1 / y) = x / y",
        guards: "the reciprocal has no other use and is as large as x",
        numerics: Numerics::Reassociate,
        source: "field axioms",
        apply: multiply_by_reciprocal,
    },
];

fn divide_by_broadcast(site: &mut Site<'_>) -> Option<TensorId> {
    let [x, divisor] = site.root_map(BinaryFn::Div)?;
    let (source, dims) = site.broadcast_of(divisor)?;
    let fewer = site.shape(source).elems().saturating_mul(GAIN) <= site.shape(x).elems();
    if !fewer || site.is_known(divisor) || !matches!(site.dtype(x), DType::F32 | DType::F64) {
        return None;
    }
    let reciprocal = site.map(UnaryFn::Recip, &[source])?;
    let shape = site.shape(x).clone();
    let reciprocal = site.broadcast(reciprocal, &shape, &dims)?;
    site.binary(BinaryFn::Mul, x, reciprocal)
}

fn divide_one(site: &mut Site<'_>) -> Option<TensorId> {
    let [one, x] = site.root_map(BinaryFn::Div)?;
    if !site.dtype(x).is_float() || crate::facts::splat(site, one)? != 1.0 {
        return None;
    }
    site.map(UnaryFn::Recip, &[x])
}

fn multiply_by_reciprocal(site: &mut Site<'_>) -> Option<TensorId> {
    let [x, y] = site.root_map(BinaryFn::Mul)?;
    for (numerator, reciprocal) in [(x, y), (y, x)] {
        if let Some([divisor]) = site.mapped(reciprocal, UnaryFn::Recip)
            && site.single(reciprocal)
            && !site.is_known(divisor)
        {
            return site.binary(BinaryFn::Div, numerator, divisor);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "divide-by-broadcast",
                    nodes: (2, 3),
                    build: |g, [a, b, c]| {
                        let (x, y) = (g.input([a, b, c]), g.input([b]));
                        let y = g.broadcast(y, [a, b, c], &[1]);
                        g.map(BinaryFn::Div, &[x, y])
                    },
                },
                Case {
                    rule: "divide-one",
                    nodes: (2, 1),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let one = g.full_like(x, 1.0);
                        g.map(BinaryFn::Div, &[one, x])
                    },
                },
                Case {
                    rule: "multiply-by-reciprocal",
                    nodes: (2, 1),
                    build: |g, [a, b, _]| {
                        let (x, y) = (g.input([a, b]), g.input([a, b]));
                        let y = g.map(UnaryFn::Recip, &[y]);
                        g.map(BinaryFn::Mul, &[y, x])
                    },
                },
            ],
        );
    }
}
