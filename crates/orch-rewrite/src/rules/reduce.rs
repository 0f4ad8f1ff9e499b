//! Reductions of nothing, of reductions and of repeated elements.

use crate::facts::splat;
use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{BinaryFn, PrimOp, ReduceOp, TensorId};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "reduce-units",
        equation: "reduce(x) = reshape(x)",
        guards: "all reduced dimensions have extent 1; maximum, minimum, product",
        numerics: Numerics::Exact,
        source: "definition",
        apply: reduce_units,
    },
    Rule {
        name: "sum-units",
        equation: "sum(x) = reshape(x)",
        guards: "all reduced dimensions have extent 1",
        numerics: Numerics::Reassociate,
        source: "definition; 0 + -0 is +0",
        apply: sum_units,
    },
    Rule {
        name: "reduce-of-reduce",
        equation: "reduce_a(reduce_b(x)) = reduce_(a, b)(x)",
        guards: "the same of sum, product, maximum, minimum; the inner one has no other use",
        numerics: Numerics::Reassociate,
        source: "associativity",
        apply: reduce_of_reduce,
    },
    Rule {
        name: "sum-of-scaled",
        equation: "sum(x C) = sum(x) C",
        guards: "C is one number; the product has no other use; floats",
        numerics: Numerics::Reassociate,
        source: "distributivity",
        apply: sum_of_scaled,
    },
    Rule {
        name: "sum-of-broadcast",
        equation: "sum(broadcast(x)) = x N",
        guards: "every reduced dimension repeats; f32 and f64",
        numerics: Numerics::Reassociate,
        source: "N is how often an element repeats",
        apply: sum_of_broadcast,
    },
];

/// The reduction at the root, if it only drops dimensions of extent 1.
fn unit_reduction(site: &mut Site<'_>, accept: impl Fn(ReduceOp) -> bool) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Reduce { op, axes } = &*root.op else { return None };
    let shape = site.shape(root.inputs[0]);
    if op.is_arg() || !accept(*op) || !axes.iter().all(|&axis| shape[axis] == 1) {
        return None;
    }
    let result = site.shape(site.result()).clone();
    site.reshape(root.inputs[0], result)
}

fn reduce_units(site: &mut Site<'_>) -> Option<TensorId> {
    unit_reduction(site, |op| op != ReduceOp::Sum)
}

fn sum_units(site: &mut Site<'_>) -> Option<TensorId> {
    unit_reduction(site, |op| op == ReduceOp::Sum)
}

fn reduce_of_reduce(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Reduce { op, axes } = &*root.op else { return None };
    let made = site.maker(root.inputs[0]).filter(|_| site.single(root.inputs[0]))?;
    let PrimOp::Reduce { op: inner_op, axes: inner_axes } = &*made.op else { return None };
    if op != inner_op || op.is_arg() {
        return None;
    }
    let rank = site.shape(made.inputs[0]).rank();
    let kept: Vec<usize> = (0..rank).filter(|dim| !inner_axes.contains(dim)).collect();
    let mut all: Vec<usize> = axes.iter().map(|&axis| kept[axis]).chain(inner_axes.iter().copied()).collect();
    all.sort_unstable();
    site.emit_for(&made, PrimOp::Reduce { op: *op, axes: all }, &[made.inputs[0]])
}

fn sum_of_scaled(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Reduce { op: ReduceOp::Sum, .. } = &*root.op else { return None };
    let scaled = root.inputs[0];
    let (x, factor) = site.with_constant(scaled, BinaryFn::Mul).filter(|_| site.single(scaled))?;
    splat(site, factor)?;
    if !site.dtype(x).is_float() {
        return None;
    }
    let sum = site.emit((*root.op).clone(), &[x])?;
    let shape = site.shape(sum).clone();
    let factor = site.first_element_repeated(factor, &shape)?;
    site.binary(BinaryFn::Mul, sum, factor)
}

fn sum_of_broadcast(site: &mut Site<'_>) -> Option<TensorId> {
    use orch_ir::DType;
    let root = site.root();
    let PrimOp::Reduce { op: ReduceOp::Sum, axes } = &*root.op else { return None };
    let (source, dims) = site.broadcast_of(root.inputs[0])?;
    let dtype = site.dtype(source);
    if !matches!(dtype, DType::F32 | DType::F64) || dims.iter().any(|dim| axes.contains(dim)) {
        return None;
    }
    let whole = site.shape(root.inputs[0]);
    let times: usize = axes.iter().map(|&axis| whole[axis]).product();
    if times == 0 {
        return None;
    }
    let targets: Vec<usize> =
        dims.iter().map(|&dim| dim - axes.iter().filter(|&&axis| axis < dim).count()).collect();
    let shape = site.shape(source).clone();
    let factor = site.full(dtype, times as f64, &shape)?;
    let product = site.binary(BinaryFn::Mul, source, factor)?;
    let result = site.shape(site.result()).clone();
    site.broadcast(product, &result, &targets)
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
                    rule: "reduce-units",
                    nodes: (1, 1),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, 1, b, 1]);
                        g.reduce(ReduceOp::Max, x, &[1, 3])
                    },
                },
                Case {
                    rule: "sum-units",
                    nodes: (1, 1),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, 1, b, 1]);
                        g.reduce(ReduceOp::Sum, x, &[1, 3])
                    },
                },
                Case {
                    rule: "reduce-of-reduce",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, 2, c]);
                        let y = g.reduce(ReduceOp::Sum, x, &[1]);
                        g.reduce(ReduceOp::Sum, y, &[1, 2])
                    },
                },
                Case {
                    rule: "sum-of-scaled",
                    nodes: (3, 3),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let y = g.with(BinaryFn::Mul, x, 0.25);
                        g.reduce(ReduceOp::Sum, y, &[1])
                    },
                },
                Case {
                    rule: "sum-of-broadcast",
                    nodes: (2, 3),
                    build: |g, [a, b, c]| {
                        let x = g.input([a]);
                        let y = g.broadcast(x, [b, a, c], &[1]);
                        g.reduce(ReduceOp::Sum, y, &[0])
                    },
                },
            ],
        );
    }
}
