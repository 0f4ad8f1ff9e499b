//! Transposes and reshapes that undo, repeat or do nothing.

use crate::site::Site;
use crate::{Numerics, Rule};
use orch_ir::{PrimOp, Shape, TensorId};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "reshape-of-reshape",
        equation: "reshape(reshape(x)) = reshape(x)",
        guards: "",
        numerics: Numerics::Exact,
        source: "the same row-major order",
        apply: reshape_of_reshape,
    },
    Rule {
        name: "reshape-identity",
        equation: "reshape(x) = x",
        guards: "the shape is that of x",
        numerics: Numerics::Exact,
        source: "definition",
        apply: reshape_identity,
    },
    Rule {
        name: "transpose-of-transpose",
        equation: "transpose_p(transpose_q(x)) = transpose_(q[p])(x)",
        guards: "",
        numerics: Numerics::Exact,
        source: "composition of permutations",
        apply: transpose_of_transpose,
    },
    Rule {
        name: "transpose-of-units",
        equation: "transpose_p(x) = reshape(x)",
        guards: "p keeps the order of the dimensions that are not 1",
        numerics: Numerics::Exact,
        source: "definition",
        apply: transpose_of_units,
    },
    Rule {
        name: "concat-of-one",
        equation: "concat(x) = x",
        guards: "operands of extent 0 along the axis do not count",
        numerics: Numerics::Exact,
        source: "definition",
        apply: concat_of_one,
    },
    Rule {
        name: "concat-of-concat",
        equation: "concat(.., concat(x, y), ..) = concat(.., x, y, ..)",
        guards: "the same axis",
        numerics: Numerics::Exact,
        source: "TASO substitution set",
        apply: concat_of_concat,
    },
    Rule {
        name: "pad-nothing",
        equation: "pad(x) = x",
        guards: "all amounts are 0",
        numerics: Numerics::Exact,
        source: "definition",
        apply: pad_nothing,
    },
];

fn reshape_of_reshape(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Reshape { shape } = &*root.op else { return None };
    let inner = site.maker(root.inputs[0])?;
    let PrimOp::Reshape { .. } = &*inner.op else { return None };
    site.reshape(inner.inputs[0], shape.clone())
}

fn reshape_identity(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Reshape { shape } = &*root.op else { return None };
    (site.shape(root.inputs[0]) == shape).then_some(root.inputs[0])
}

fn transpose_of_transpose(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Transpose { perm: outer } = &*root.op else { return None };
    let made = site.maker(root.inputs[0])?;
    let PrimOp::Transpose { perm: inner } = &*made.op else { return None };
    site.transpose(made.inputs[0], outer.iter().map(|&dim| inner[dim]).collect())
}

fn transpose_of_units(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Transpose { perm } = &*root.op else { return None };
    let shape = site.shape(root.inputs[0]);
    let moved = perm.iter().filter(|&&dim| shape[dim] != 1);
    if !moved.is_sorted() {
        return None;
    }
    let result: Shape = perm.iter().map(|&dim| shape[dim]).collect::<Vec<_>>().into();
    site.reshape(root.inputs[0], result)
}

fn concat_of_one(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Concat { axis } = &*root.op else { return None };
    let parts: Vec<TensorId> =
        root.inputs.iter().copied().filter(|&part| site.shape(part)[*axis] > 0).collect();
    match parts[..] {
        [] => Some(root.inputs[0]),
        [one] => Some(one),
        _ if parts.len() < root.inputs.len() => site.emit(PrimOp::Concat { axis: *axis }, &parts),
        _ => None,
    }
}

fn concat_of_concat(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Concat { .. } = &*root.op else { return None };
    let mut parts = Vec::new();
    for &part in root.inputs.iter() {
        match site.maker(part) {
            Some(inner) if inner.op == root.op && site.single(part) => parts.extend(inner.inputs.iter()),
            _ => parts.push(part),
        }
    }
    if parts.len() == root.inputs.len() { None } else { site.emit((*root.op).clone(), &parts) }
}

fn pad_nothing(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Pad { low, high, .. } = &*root.op else { return None };
    low.iter().chain(high).all(|&amount| amount == 0).then_some(root.inputs[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};
    use orch_ir::PadMode;

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "reshape-of-reshape",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c]);
                        let flat = g.reshape(x, [a * b * c]);
                        g.reshape(flat, [c, a * b])
                    },
                },
                Case {
                    rule: "reshape-identity",
                    nodes: (1, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        g.reshape(x, [a, b])
                    },
                },
                Case {
                    rule: "transpose-of-transpose",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c]);
                        let y = g.transpose(x, &[1, 2, 0]);
                        g.transpose(y, &[1, 0, 2])
                    },
                },
                Case {
                    rule: "transpose-of-units",
                    nodes: (1, 1),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, 1, b, 1]);
                        g.transpose(x, &[1, 0, 3, 2])
                    },
                },
                Case {
                    rule: "concat-of-one",
                    nodes: (1, 0),
                    build: |g, [a, b, _]| {
                        let (x, nothing) = (g.input([a, b]), g.input([a, 0]));
                        g.op(PrimOp::Concat { axis: 1 }, &[nothing, x])
                    },
                },
                Case {
                    rule: "concat-of-concat",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let (x, y, z) = (g.input([a, b]), g.input([a, c]), g.input([a, 2]));
                        let inner = g.op(PrimOp::Concat { axis: 1 }, &[y, z]);
                        g.op(PrimOp::Concat { axis: 1 }, &[x, inner, y])
                    },
                },
                Case {
                    rule: "pad-nothing",
                    nodes: (1, 0),
                    build: |g, [a, b, _]| {
                        let x = g.input([a, b]);
                        let pad = PrimOp::Pad { mode: PadMode::Edge, low: vec![0, 0], high: vec![0, 0] };
                        g.op(pad, &[x])
                    },
                },
            ],
        );
    }
}
