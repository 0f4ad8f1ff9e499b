//! Transposes that meet: moved through what stands between them, and into contractions, whose labels take any order.

use crate::facts::splat;
use crate::site::{Made, Site};
use crate::{Numerics, Rule};
use orch_ir::permutation::inverse;
use orch_ir::{Contract, PrimOp, Shape, TensorId};

/// The family.
pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "contract-of-transpose",
        equation: "contract(transpose(x), y) = contract(x, y) with other labels",
        guards: "",
        numerics: Numerics::Exact,
        source: "a contraction is defined by labels, not by positions",
        apply: contract_of_transpose,
    },
    Rule {
        name: "transpose-of-contract",
        equation: "transpose(contract(x, y)) = contract(x, y) with other labels",
        guards: "the contraction has no other use; the innermost dimension stays, so that no store becomes scattered",
        numerics: Numerics::Exact,
        source: "a contraction is defined by labels, not by positions",
        apply: transpose_of_contract,
    },
    Rule {
        name: "transpose-of-unit-reshape",
        equation: "transpose(reshape(x)) = reshape(transpose(x))",
        guards: "the reshape only inserts or drops dimensions of extent 1",
        numerics: Numerics::Exact,
        source: "composition of index maps",
        apply: transpose_of_unit_reshape,
    },
    Rule {
        name: "transpose-sandwich",
        equation: "transpose(f(transpose(x))) = transpose(f(x))",
        guards: "f is a slice, padding, selection, or an elementwise function whose other operands are all one number or \
                 transposed alike; f has no other use",
        numerics: Numerics::Exact,
        source: "transpose sinking; TASO substitution set",
        apply: transpose_sandwich,
    },
    Rule {
        name: "map-of-transposes",
        equation: "f(transpose(x), transpose(y)) = transpose(f(x, y))",
        guards: "the same permutation, at least two transposes without other use; other operands are all one number",
        numerics: Numerics::Exact,
        source: "transpose sinking",
        apply: map_of_transposes,
    },
    Rule {
        name: "reduce-of-transpose",
        equation: "reduce(transpose(x)) = transpose(reduce(x))",
        guards: "sum, product, maximum, minimum; the transpose has no other use",
        numerics: Numerics::Reassociate,
        source: "composition of index maps",
        apply: reduce_of_transpose,
    },
];

/// Operand and permutation of the transpose that computes a tensor.
fn transpose_of(site: &Site<'_>, id: TensorId) -> Option<(TensorId, Vec<usize>)> {
    let made = site.maker(id)?;
    let PrimOp::Transpose { perm } = &*made.op else { return None };
    Some((made.inputs[0], perm.clone()))
}

fn contract_of_transpose(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Contract(contract) = &*root.op else { return None };
    for operand in 0..2 {
        if let Some((x, perm)) = transpose_of(site, root.inputs[operand]) {
            let mut moved = contract.clone();
            let labels = if operand == 0 { &mut moved.lhs } else { &mut moved.rhs };
            *labels = inverse(&perm).iter().map(|&position| labels[position]).collect();
            let mut inputs = root.inputs.to_vec();
            inputs[operand] = x;
            return site.emit(PrimOp::Contract(moved), &inputs);
        }
    }
    None
}

fn transpose_of_contract(site: &mut Site<'_>) -> Option<TensorId> {
    let (product, perm) = transpose_of(site, site.result())?;
    let made = site.maker(product).filter(|_| site.single(product))?;
    let PrimOp::Contract(Contract { lhs, rhs, out }) = &*made.op else { return None };
    let shape = site.shape(product);
    let innermost = (0..shape.rank()).rev().find(|&dim| shape[dim] != 1);
    if perm.iter().rev().copied().find(|&dim| shape[dim] != 1) != innermost {
        return None;
    }
    let out = perm.iter().map(|&dim| out[dim]).collect();
    site.emit_for(&made, PrimOp::Contract(Contract { lhs: lhs.clone(), rhs: rhs.clone(), out }), &made.inputs)
}

fn transpose_of_unit_reshape(site: &mut Site<'_>) -> Option<TensorId> {
    let (reshaped, perm) = transpose_of(site, site.result())?;
    let made = site.maker(reshaped)?;
    let PrimOp::Reshape { shape } = &*made.op else { return None };
    let from = site.shape(made.inputs[0]).clone();
    let solid = |shape: &Shape| -> Vec<usize> { (0..shape.rank()).filter(|&dim| shape[dim] != 1).collect() };
    let (before, after) = (solid(&from), solid(shape));
    if before.len() != after.len() || !before.iter().zip(&after).all(|(&a, &b)| from[a] == shape[b]) {
        return None;
    }
    let mut moved =
        perm.iter().filter_map(|dim| after.iter().position(|other| other == dim)).map(|at| before[at]);
    let inner: Vec<usize> = (0..from.rank())
        .map(|dim| if from[dim] == 1 { Some(dim) } else { moved.next() })
        .collect::<Option<_>>()?;
    let transposed = site.transpose(made.inputs[0], inner)?;
    let result = site.shape(site.result()).clone();
    site.reshape(transposed, result)
}

fn transpose_sandwich(site: &mut Site<'_>) -> Option<TensorId> {
    let (between, outer) = transpose_of(site, site.result())?;
    let made = site.maker(between).filter(|_| site.single(between))?;
    let (moved, inner) = before_transpose(site, &made)?;
    site.transpose(moved, outer.iter().map(|&dim| inner[dim]).collect())
}

/// What a primitive of transposed operands computes before the transpose, and the permutation that follows it then.
fn before_transpose(site: &mut Site<'_>, made: &Made) -> Option<(TensorId, Vec<usize>)> {
    let transposed = made.inputs.iter().find_map(|&input| transpose_of(site, input));
    let (source, perm) = transposed?;
    let place = inverse(&perm);
    let at = |dim: usize| place[dim];
    let rank = perm.len();
    let op = match &*made.op {
        PrimOp::Map(_) => {
            let inputs = untransposed(site, made, &perm)?;
            return Some((site.emit((*made.op).clone(), &inputs)?, perm));
        }
        PrimOp::Slice { starts, steps, sizes } => PrimOp::Slice {
            starts: (0..rank).map(|dim| starts[at(dim)]).collect(),
            steps: (0..rank).map(|dim| steps[at(dim)]).collect(),
            sizes: (0..rank).map(|dim| sizes[at(dim)]).collect(),
        },
        PrimOp::Pad { mode, low, high } => PrimOp::Pad {
            mode: *mode,
            low: (0..rank).map(|dim| low[at(dim)]).collect(),
            high: (0..rank).map(|dim| high[at(dim)]).collect(),
        },
        PrimOp::Select { positions } => {
            PrimOp::Select { positions: (0..rank).map(|dim| positions[at(dim)].clone()).collect() }
        }
        _ => return None,
    };
    let mut inputs = made.inputs.to_vec();
    inputs[0] = source;
    Some((site.emit(op, &inputs)?, perm))
}

/// The operands of an elementwise function before the transpose by `perm` that each is, numbers repeated anew.
fn untransposed(site: &mut Site<'_>, made: &Made, perm: &[usize]) -> Option<Vec<TensorId>> {
    let shape = site.shape(made.inputs[0]);
    let before: Shape = inverse(perm).iter().map(|&position| shape[position]).collect::<Vec<_>>().into();
    let mut inputs = Vec::with_capacity(made.inputs.len());
    for &input in made.inputs.iter() {
        inputs.push(match transpose_of(site, input) {
            Some((x, own)) if own == perm => x,
            Some(_) => return None,
            None => {
                splat(site, input)?;
                site.first_element_repeated(input, &before)?
            }
        });
    }
    Some(inputs)
}

fn map_of_transposes(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Map(_) = &*root.op else { return None };
    let spent = |&&input: &&TensorId| transpose_of(site, input).is_some() && site.single(input);
    if root.inputs.iter().filter(spent).count() < 2 {
        return None;
    }
    let (value, perm) = before_transpose(site, &root)?;
    site.transpose(value, perm)
}

fn reduce_of_transpose(site: &mut Site<'_>) -> Option<TensorId> {
    let root = site.root();
    let PrimOp::Reduce { op, axes } = &*root.op else { return None };
    if op.is_arg() {
        return None;
    }
    let (x, perm) = transpose_of(site, root.inputs[0]).filter(|_| site.single(root.inputs[0]))?;
    let mut inner: Vec<usize> = axes.iter().map(|&axis| perm[axis]).collect();
    inner.sort_unstable();
    let rank_after = |dim: usize| dim - inner.iter().filter(|&&axis| axis < dim).count();
    let kept = (0..perm.len())
        .filter(|position| !axes.contains(position))
        .map(|position| rank_after(perm[position]));
    let kept: Vec<usize> = kept.collect();
    let reduced = site.emit(PrimOp::Reduce { op: *op, axes: inner }, &[x])?;
    site.transpose(reduced, kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Case, check};
    use orch_ir::{BinaryFn, PadMode, ReduceOp, UnaryFn};

    #[test]
    fn rules_hold() {
        check(
            RULES,
            &[
                Case {
                    rule: "contract-of-transpose",
                    nodes: (3, 1),
                    build: |g, [a, b, c]| {
                        let (x, y) = (g.input([a, b, 2]), g.input([2, c, b]));
                        let (x, y) = (g.transpose(x, &[2, 0, 1]), g.transpose(y, &[0, 2, 1]));
                        g.contract("abc,acd->abd", x, y)
                    },
                },
                Case {
                    rule: "transpose-of-contract",
                    nodes: (2, 1),
                    build: |g, [a, b, c]| {
                        let (x, y) = (g.input([2, a, b]), g.input([2, b, c]));
                        let z = g.contract("abc,acd->abd", x, y);
                        g.transpose(z, &[1, 0, 2])
                    },
                },
                Case {
                    rule: "transpose-of-unit-reshape",
                    nodes: (2, 2),
                    build: |g, [a, b, c]| {
                        let x = g.input([1, a, b, 1, c]);
                        let y = g.reshape(x, [a, 1, b, c]);
                        g.transpose(y, &[3, 1, 0, 2])
                    },
                },
                Case {
                    rule: "transpose-sandwich",
                    nodes: (8, 5),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c]);
                        let x = g.transpose(x, &[2, 0, 1]);
                        let x = g.slice(x, 0, 1, c - 1);
                        let x = g.transpose(x, &[0, 2, 1]);
                        let x = g.with(BinaryFn::Max, x, 0.5);
                        let x = g.transpose(x, &[1, 0, 2]);
                        let x = g.op(
                            PrimOp::Pad { mode: PadMode::Edge, low: vec![0, 1, 0], high: vec![2, 0, 0] },
                            &[x],
                        );
                        g.transpose(x, &[1, 0, 2])
                    },
                },
                Case {
                    rule: "transpose-sandwich",
                    nodes: (3, 2),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c]);
                        let x = g.transpose(x, &[2, 0, 1]);
                        let picked = vec![Some(vec![0; 4]), None, Some(vec![b - 1, 0])];
                        let x = g.op(PrimOp::Select { positions: picked }, &[x]);
                        g.transpose(x, &[0, 2, 1])
                    },
                },
                Case {
                    rule: "map-of-transposes",
                    nodes: (3, 2),
                    build: |g, [a, b, c]| {
                        let (x, y) = (g.input([a, b, c]), g.input([a, b, c]));
                        let (x, y) = (g.transpose(x, &[2, 0, 1]), g.transpose(y, &[2, 0, 1]));
                        g.map(BinaryFn::Sub, &[x, y])
                    },
                },
                Case {
                    rule: "reduce-of-transpose",
                    nodes: (4, 4),
                    build: |g, [a, b, c]| {
                        let x = g.input([a, b, c, 2]);
                        let y = g.transpose(x, &[2, 3, 0, 1]);
                        let y = g.reduce(ReduceOp::Sum, y, &[1]);
                        let z = g.map(UnaryFn::Abs, &[y]);
                        g.reduce(ReduceOp::Max, z, &[2])
                    },
                },
            ],
        );
    }
}
