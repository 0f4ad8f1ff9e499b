//! Products distributed over sums, joins and factors that do not take part in the sum.

use crate::Numerics;
use crate::egraph::product::ContractProduct;
use crate::egraph::{GraphRule, Space, Term};
use egg::Id;
use orch_ir::{BinaryFn, PrimOp, ScalarFn, UnaryFn};

/// The family.
pub(super) const RULES: &[GraphRule] = &[
    GraphRule {
        name: "product-of-sum",
        equation: "(x + y) W = x W + y W, (x - y) W = x W - y W, (-x) W = -(x W)",
        guards: "W is known; floats",
        numerics: Numerics::Reassociate,
        source: "linearity; TASO substitution set",
        apply: product_of_sum,
    },
    GraphRule {
        name: "product-of-concat",
        equation: "concat(x, y, ..) W = x W[first rows] + y W[next rows] + ..",
        guards: "W is known; joined along the summed dimension; floats",
        numerics: Numerics::Reassociate,
        source: "block matrix product; TASO substitution set",
        apply: product_of_concat,
    },
    GraphRule {
        name: "factor-after-product",
        equation: "(x s) W = (x W) s, (x / s) W = (x W) / s",
        guards: "s does not vary along dimensions that W has; floats",
        numerics: Numerics::Reassociate,
        source: "linearity; Korch, figure 2: the division of softmax after the product",
        apply: factor_after_product,
    },
];

/// What `rewrite` makes of every product of floats whose operand is computed by a primitive.
fn each_product(
    space: &mut Space,
    term: &Term,
    rewrite: fn(&mut Space, &ContractProduct, &PrimOp, &[Id]) -> Option<Id>,
) -> Vec<Id> {
    let Some(view) = space.view(term) else { return Vec::new() };
    let mut found = Vec::new();
    for product in ContractProduct::both(&view) {
        let suits = space.dtype(product.x).is_float() && product.sums_shared_labels_only();
        if !suits || space.is_known(product.x) {
            continue;
        }
        for inner in space.views(product.x) {
            found.extend(rewrite(space, &product, &inner.op, &inner.children));
        }
    }
    found
}

fn product_of_sum(space: &mut Space, term: &Term) -> Vec<Id> {
    each_product(space, term, |space, product, op, children| {
        let linear = matches!(
            op,
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Add | BinaryFn::Sub))
                | PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg))
        );
        if !linear || !space.is_known(product.matrix) {
            return None;
        }
        let mut terms = Vec::with_capacity(children.len());
        for &x in children {
            terms.push(ContractProduct { x, ..product.clone() }.emit(space)?);
        }
        space.emit(op.clone(), &terms)
    })
}

fn product_of_concat(space: &mut Space, term: &Term) -> Vec<Id> {
    each_product(space, term, |space, product, op, children| {
        let PrimOp::Concat { axis } = op else { return None };
        let label = product.own[*axis];
        if product.out.contains(&label) || !space.is_known(product.matrix) {
            return None;
        }
        let row = product.other.iter().position(|&other| other == label)?;
        let mut sum = None;
        let mut start = 0;
        for &x in children {
            let extent = space.shape(x)[*axis];
            let mut sizes = space.shape(product.matrix).to_vec();
            let (mut starts, steps) = (vec![0; sizes.len()], vec![1; sizes.len()]);
            (starts[row], sizes[row]) = (i64::try_from(start).ok()?, extent);
            let matrix = space.emit(PrimOp::Slice { starts, steps, sizes }, &[product.matrix])?;
            let part = ContractProduct { x, matrix, ..product.clone() }.emit(space)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => space.map(BinaryFn::Add, &[sum, part])?,
            });
            start += extent;
        }
        sum
    })
}

fn factor_after_product(space: &mut Space, term: &Term) -> Vec<Id> {
    each_product(space, term, |space, product, op, children| {
        let (f, orders): (BinaryFn, &[[usize; 2]]) = match op {
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Mul)) => (BinaryFn::Mul, &[[0, 1], [1, 0]]),
            PrimOp::Map(ScalarFn::Binary(BinaryFn::Div)) => (BinaryFn::Div, &[[0, 1]]),
            _ => return None,
        };
        for &[x, factor] in orders {
            if let Some((source, targets)) = factor_of_result(space, product, children[factor]) {
                let result = ContractProduct { x: children[x], ..product.clone() }.emit(space)?;
                let shape = product.shape_of(space, &product.out);
                let factor = space.spread(source, &shape, &targets)?;
                return space.map(f, &[result, factor]);
            }
        }
        None
    })
}

/// A broadcast factor of the operand as one of the result: its source without dimensions of extent 1, and where those
/// are in the result.
fn factor_of_result(space: &mut Space, product: &ContractProduct, factor: Id) -> Option<(Id, Vec<usize>)> {
    for view in space.views(factor) {
        let PrimOp::Broadcast { dims, .. } = &*view.op else { continue };
        let from = space.shape(view.children[0]).clone();
        let solid: Vec<usize> = (0..from.rank()).filter(|&dim| from[dim] != 1).collect();
        if !solid.iter().all(|&dim| product.is_free(dims[dim])) {
            continue;
        }
        let targets =
            solid.iter().map(|&dim| product.out_dim(product.own[dims[dim]])).collect::<Option<Vec<_>>>()?;
        let squeezed = solid.iter().map(|&dim| from[dim]).collect::<Vec<_>>().into();
        return Some((space.reshape(view.children[0], squeezed)?, targets));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{GraphCase, check_graph_rules};

    #[test]
    fn rules_hold() {
        check_graph_rules(
            RULES,
            &[
                GraphCase {
                    rule: "product-of-sum",
                    nodes: &[(2, 3)],
                    build: |g, [a, b, c]| {
                        let (x, y, w) = (g.input([a, b]), g.input([a, b]), g.weight([b, c]));
                        let sum = g.map(BinaryFn::Sub, &[x, y]);
                        g.contract("ab,bc->ca", sum, w)
                    },
                },
                GraphCase {
                    rule: "product-of-concat",
                    nodes: &[(2, 5)],
                    build: |g, [a, b, c]| {
                        let (x, y, z) = (g.input([a, b, 2]), g.input([a, c, 2]), g.input([a, 1, 2]));
                        let w = g.weight([7, b + c + 1]);
                        let joined = g.op(PrimOp::Concat { axis: 1 }, &[x, y, z]);
                        g.contract("db,abc->cad", w, joined)
                    },
                },
                GraphCase {
                    rule: "factor-after-product",
                    nodes: &[(3, 4)],
                    build: |g, [a, b, c]| {
                        let (x, y, s) = (g.input([2, a, b]), g.input([2, b, c]), g.input([1, a, 1]));
                        let s = g.broadcast(s, [2, a, b], &[0, 1, 2]);
                        let x = g.map(BinaryFn::Div, &[x, s]);
                        g.contract("abc,acd->adb", x, y)
                    },
                },
            ],
        );
    }
}
