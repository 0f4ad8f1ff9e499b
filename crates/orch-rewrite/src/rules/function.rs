//! Identities of elementary functions.
//!
//! They are the only rules that use what functions are, so that a finite field knows nothing of them: they are tried in f64, on a
//! dense range of arguments, element by element.

use crate::facts::splat;
use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, CompareFn, ScalarFn, TensorId, UnaryFn};

/// The family.
pub(super) const RULES: &[Rule] = &[Rule {
    name: "tanh-of-softplus",
    equation: "tanh(max(x, 0) + log1p(d)) = u w / (u w + 2 v^2), d = exp(-|x|), u = (x < 0 ? d : 1), v = (x < 0 ? 1 : d), \
               w = 1 + d + v",
    guards: "softplus and its logarithm have no other use",
    numerics: Numerics::Reassociate,
    source: "tanh(y) = (e^2y - 1) / (e^2y + 1) where e^y = (1 + d) / v, and (1 + d)^2 - v^2 = u w; all terms are positive, so \
             nothing cancels: one exponential and one division instead of three and a logarithm",
    apply: tanh_of_softplus,
}];

fn tanh_of_softplus(site: &mut Site<'_>) -> Option<TensorId> {
    let [soft] = site.root_map(UnaryFn::Tanh)?;
    let [lhs, rhs] = site.mapped(soft, BinaryFn::Add)?;
    let (x, zero, decay) = [(lhs, rhs), (rhs, lhs)].into_iter().find_map(|(positive, rest)| {
        let (x, zero) = site.with_constant(positive, BinaryFn::Max)?;
        let [decay] = site.mapped(rest, UnaryFn::Log1p)?;
        let [negated] = site.mapped(decay, UnaryFn::Exp)?;
        let [size] = site.mapped(negated, UnaryFn::Neg)?;
        let is_softplus = site.mapped(size, UnaryFn::Abs) == Some([x]) && splat(site, zero) == Some(0.0);
        (is_softplus && site.single(rest) && site.single(soft)).then_some((x, zero, decay))
    })?;
    let (dtype, shape) = (site.dtype(x), site.shape(x).clone());
    let one = site.full(dtype, 1.0, &shape)?;
    let is_negative = site.map(CompareFn::Lt, &[x, zero])?;
    let u = site.map(ScalarFn::Select, &[is_negative, decay, one])?;
    let v = site.map(ScalarFn::Select, &[is_negative, one, decay])?;
    let w = site.binary(BinaryFn::Add, decay, one)?;
    let w = site.binary(BinaryFn::Add, w, v)?;
    let numerator = site.binary(BinaryFn::Mul, u, w)?;
    let square = site.binary(BinaryFn::Mul, v, v)?;
    let double = site.binary(BinaryFn::Add, square, square)?;
    let divisor = site.binary(BinaryFn::Add, numerator, double)?;
    site.binary(BinaryFn::Div, numerator, divisor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check_functions};

    #[test]
    fn rules_hold() {
        check_functions(
            RULES,
            &[Case {
                rule: "tanh-of-softplus",
                nodes: (8, 15),
                build: |g, [a, b, _]| {
                    let x = g.input([a, b]);
                    let size = g.map(UnaryFn::Abs, &[x]);
                    let negated = g.map(UnaryFn::Neg, &[size]);
                    let decay = g.map(UnaryFn::Exp, &[negated]);
                    let rest = g.map(UnaryFn::Log1p, &[decay]);
                    let zero = g.full_like(x, 0.0);
                    let positive = g.map(BinaryFn::Max, &[x, zero]);
                    let soft = g.map(BinaryFn::Add, &[rest, positive]);
                    g.map(UnaryFn::Tanh, &[soft])
                },
            }],
        );
    }
}
