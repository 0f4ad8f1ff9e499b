//! Products before layout: contractions, and convolutions that are contractions, moved ahead of what only arranges or
//! repeats their input, where there is less to compute.

use crate::Numerics;
use crate::egraph::product::ContractProduct;
use crate::egraph::{GraphRule, Space, Term};
use egg::Id;
use orch_ir::{Contract, PrimOp, Shape};

/// The family.
pub(super) const RULES: &[GraphRule] = &[
    GraphRule {
        name: "pointwise-conv",
        equation: "conv(x, W) = transpose(contract(x, reshape(W)))",
        guards: "W is known; window 1, steps 1, no padding, one group",
        numerics: Numerics::Exact,
        source: "definition",
        apply: pointwise_conv,
    },
    GraphRule {
        name: "product-before-transpose",
        equation: "contract(transpose(x), W) = transpose(contract(x, W))",
        guards: "W is known",
        numerics: Numerics::Exact,
        source: "a contraction is defined by labels, not by positions",
        apply: before_transpose,
    },
    GraphRule {
        name: "product-before-reshape",
        equation: "contract(reshape(x), W) = reshape(contract(x, W))",
        guards: "W is known; the reshape leaves the dimensions that W has as they are",
        numerics: Numerics::Exact,
        source: "composition of index maps",
        apply: before_reshape,
    },
    GraphRule {
        name: "product-before-pick",
        equation: "contract(pick(x), W) = pick(contract(x, W))",
        guards: "W is known and has none of the picked dimensions",
        numerics: Numerics::Exact,
        source: "the product acts at each position alone",
        apply: before_pick,
    },
    GraphRule {
        name: "product-before-broadcast",
        equation: "contract(broadcast(x), W) = broadcast(contract(x, W))",
        guards: "W is known and has none of the repeated dimensions",
        numerics: Numerics::Exact,
        source: "the product acts at each position alone",
        apply: before_broadcast,
    },
];

fn pointwise_conv(space: &mut Space, term: &Term) -> Vec<Id> {
    pointwise(space, term).into_iter().collect()
}

fn pointwise(space: &mut Space, term: &Term) -> Option<Id> {
    let view = space.view(term)?;
    let PrimOp::Conv(spec) = &*view.op else { return None };
    let window = &spec.window;
    let plain = spec.groups == 1
        && window.kernel.iter().chain(&window.strides).all(|&extent| extent == 1)
        && window.low.iter().chain(&window.high).all(|&amount| amount == 0);
    let [x, weights] = view.children[..] else { return None };
    if !plain || !space.is_known(weights) {
        return None;
    }
    let rank = u8::try_from(space.shape(x).rank()).ok()?;
    let matrix: Shape = space.shape(weights)[..2].into();
    let matrix = space.reshape(weights, matrix)?;
    // Dimensions [n, c, d_0, ..] by number; the output channel is a new label. Channels stay last in memory.
    let output_channel = rank;
    let own: Vec<u8> = (0..rank).collect();
    let out: Vec<u8> = [0].into_iter().chain(2..rank).chain([output_channel]).collect();
    let contract = Contract { lhs: own, rhs: vec![output_channel, 1], out };
    let product = space.emit(PrimOp::Contract(contract), &[x, matrix])?;
    let last = usize::from(rank) - 1;
    space.transpose(product, [0, last].into_iter().chain(1..last).collect())
}

/// What `rewrite` makes of every product with a known matrix whose operand is computed by a primitive.
fn each_product(
    space: &mut Space,
    term: &Term,
    rewrite: fn(&mut Space, &ContractProduct, &PrimOp, &[Id]) -> Option<Id>,
) -> Vec<Id> {
    let Some(view) = space.view(term) else { return Vec::new() };
    let mut found = Vec::new();
    for product in ContractProduct::both(&view) {
        if !space.is_known(product.matrix) || space.is_known(product.x) || !product.sums_shared_labels_only()
        {
            continue;
        }
        for inner in space.views(product.x) {
            found.extend(rewrite(space, &product, &inner.op, &inner.children));
        }
    }
    found
}

fn before_transpose(space: &mut Space, term: &Term) -> Vec<Id> {
    each_product(space, term, |space, product, op, children| {
        let PrimOp::Transpose { perm } = op else { return None };
        let mut own = product.own.clone();
        perm.iter().zip(&product.own).for_each(|(&dim, &label)| own[dim] = label);
        let moved = product.of(children[0], own);
        let result = moved.emit(space)?;
        product.ordered(space, result, &moved.out)
    })
}

fn before_reshape(space: &mut Space, term: &Term) -> Vec<Id> {
    each_product(space, term, |space, product, op, children| {
        let PrimOp::Reshape { shape } = op else { return None };
        let from = space.shape(children[0]).clone();
        let own = labels_before_reshape(product, &from, shape)?;
        let moved = product.of(children[0], own);
        let result = moved.emit(space)?;
        let labels = product.in_place();
        let reshaped = space.reshape(result, product.shape_of(space, &labels))?;
        product.ordered(space, reshaped, &labels)
    })
}

/// Labels of a tensor of shape `from` whose reshape has the product's: the matrix's own for dimensions that the
/// reshape leaves as they are, new ones for the others.
fn labels_before_reshape(product: &ContractProduct, from: &Shape, to: &Shape) -> Option<Vec<u8>> {
    let mut fresh = product.fresh();
    let mut labels = Vec::with_capacity(from.rank());
    let (mut at, mut elems_from, mut elems_to) = (0, 1usize, 1usize);
    for dim in (0..to.rank()).filter(|&dim| !product.is_free(dim)) {
        // Everything between two dimensions of the matrix may be regrouped.
        elems_to *= to[..dim].iter().product::<usize>() / elems_to.max(1);
        while elems_from < elems_to || (from.get(at)? != &to[dim]) {
            elems_from *= *from.get(at)?;
            labels.push(fresh.next()?);
            at += 1;
        }
        if elems_from != elems_to {
            return None;
        }
        labels.push(product.own[dim]);
        (elems_from, elems_to) = (elems_from * from[at], elems_to * to[dim]);
        at += 1;
    }
    while at < from.rank() {
        labels.push(fresh.next()?);
        at += 1;
    }
    Some(labels)
}

fn before_pick(space: &mut Space, term: &Term) -> Vec<Id> {
    each_product(space, term, |space, product, op, children| {
        let PrimOp::Select { positions } = op else { return None };
        let moved = product.of(children[0], product.own.clone());
        let mut after = vec![None; moved.out.len()];
        for (dim, list) in positions.iter().enumerate().filter(|(_, list)| list.is_some()) {
            if !product.is_free(dim) {
                return None;
            }
            after[moved.out_dim(product.own[dim])?] = list.clone();
        }
        let result = moved.emit(space)?;
        let picked = space.emit(PrimOp::Select { positions: after }, &[result])?;
        product.ordered(space, picked, &moved.out)
    })
}

fn before_broadcast(space: &mut Space, term: &Term) -> Vec<Id> {
    each_product(space, term, |space, product, op, children| {
        let PrimOp::Broadcast { shape, dims } = op else { return None };
        let from = space.shape(children[0]).clone();
        let kept =
            |dim: usize| dims.iter().position(|&to| to == dim).is_some_and(|at| from[at] == shape[dim]);
        if !(0..shape.rank()).all(|dim| product.is_free(dim) || kept(dim)) {
            return None;
        }
        let moved = product.of(children[0], dims.iter().map(|&dim| product.own[dim]).collect());
        let targets: Vec<usize> =
            moved.out.iter().map(|&label| product.out_dim(label)).collect::<Option<_>>()?;
        let result = moved.emit(space)?;
        let shape = product.shape_of(space, &product.out);
        space.spread(result, &shape, &targets)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{GraphCase, check_graph_rules};
    use orch_ir::{ConvSpec, Window};

    #[test]
    fn rules_hold() {
        check_graph_rules(
            RULES,
            &[
                GraphCase {
                    rule: "pointwise-conv",
                    nodes: &[(1, 2)],
                    build: |g, [a, b, c]| {
                        let (x, w) = (g.input([2, a, b, 3]), g.weight([c, a, 1, 1]));
                        let ones = vec![1, 1];
                        let window = Window {
                            kernel: ones.clone(),
                            strides: ones.clone(),
                            dilations: ones,
                            low: vec![0, 0],
                            high: vec![0, 0],
                        };
                        g.op(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, w])
                    },
                },
                GraphCase {
                    rule: "product-before-transpose",
                    nodes: &[(2, 2)],
                    build: |g, [a, b, c]| {
                        let (x, w) = (g.input([a, b, 2]), g.weight([2, c]));
                        let x = g.transpose(x, &[2, 0, 1]);
                        g.contract("cab,cd->bda", x, w)
                    },
                },
                GraphCase {
                    rule: "product-before-reshape",
                    nodes: &[(2, 3)],
                    build: |g, [a, b, c]| {
                        let (x, w) = (g.input([a, 4, c, b]), g.weight([c, 7]));
                        let x = g.reshape(x, [2 * a, 2, c, 1, b]);
                        g.contract("abcde,cf->fabde", x, w)
                    },
                },
                GraphCase {
                    rule: "product-before-pick",
                    nodes: &[(2, 3)],
                    build: |g, [a, b, c]| {
                        let (x, w) = (g.input([a, b, c]), g.weight([7, c]));
                        let twice = (0..2 * b).map(|at| at / 2).collect();
                        let x = g.op(PrimOp::Select { positions: vec![None, Some(twice), None] }, &[x]);
                        g.contract("dc,abc->bad", w, x)
                    },
                },
                GraphCase {
                    rule: "product-before-broadcast",
                    nodes: &[(2, 3)],
                    build: |g, [a, b, c]| {
                        let (x, w) = (g.input([1, c]), g.weight([7, c]));
                        let x = g.broadcast(x, [a, b, c], &[0, 2]);
                        g.contract("abc,dc->dba", x, w)
                    },
                },
            ],
        );
    }
}
