//! Divisions and reciprocals.
//!
//! No rule turns `x / y` into `x (1 / y)`, which rounds twice: many quotients would differ in the last place,
//! and rounding to integers makes a whole unit of that. (`divide-by-power-of-two` is exact.)

use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, TensorId, UnaryFn};

/// The family.
pub(super) const RULES: &[Rule] = &[
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
