//! Products of products, and sums of products of the same tensor: adapters of low rank, chains of linear layers.

use crate::Numerics;
use crate::egraph::product::ContractProduct;
use crate::egraph::{GraphRule, Space, Term};
use egg::Id;
use orch_ir::{BinaryFn, PrimOp, ScalarFn};

/// The family.
pub(super) const RULES: &[GraphRule] = &[
    GraphRule {
        name: "compose-products",
        equation: "(x A) B = x (A B)",
        guards: "A and B are known and share a summed dimension; floats",
        numerics: Numerics::Reassociate,
        source: "associativity; TASO substitution set",
        apply: compose_products,
    },
    GraphRule {
        name: "sum-of-products",
        equation: "x A + x B = x (A + B)",
        guards: "A and B are known; floats",
        numerics: Numerics::Reassociate,
        source: "distributivity; TASO substitution set",
        apply: sum_of_products,
    },
];

/// The most multiplications that folding one product of constants may take.
const MAX_FOLD_PRODUCTS: usize = 1 << 32;

fn compose_products(space: &mut Space, term: &Term) -> Vec<Id> {
    let Some(view) = space.view(term) else { return Vec::new() };
    let mut found = Vec::new();
    for outer in ContractProduct::both(&view) {
        let floats = space.dtype(outer.x).is_float();
        if !floats || !space.is_known(outer.matrix) || space.is_known(outer.x) {
            continue;
        }
        for inner in space.views(outer.x) {
            for inner in ContractProduct::both(&inner) {
                if space.is_known(inner.matrix) && !space.is_known(inner.x) {
                    found.extend(composed(space, &outer, &inner));
                }
            }
        }
    }
    found
}

/// `contract(x, contract(A, B))` for `contract(contract(x, A), B)`.
fn composed(space: &mut Space, outer: &ContractProduct, inner: &ContractProduct) -> Option<Id> {
    // The outer labels of the inner result, and new labels for what the inner product sums.
    let mut fresh = outer.fresh();
    let mut rename = vec![None; 256];
    inner.out.iter().zip(&outer.own).for_each(|(&from, &to)| rename[usize::from(from)] = Some(to));
    let mut renamed = |labels: &[u8]| -> Option<Vec<u8>> {
        let mut result = Vec::with_capacity(labels.len());
        for &label in labels {
            let slot = &mut rename[usize::from(label)];
            if slot.is_none() {
                *slot = fresh.next();
            }
            result.push((*slot)?);
        }
        Some(result)
    };
    let (own, a) = (renamed(&inner.own)?, renamed(&inner.other)?);
    let b = &outer.other;
    let summed = |label: &u8| !outer.out.contains(label) && !own.contains(label);
    if !a.iter().any(|label| b.contains(label) && summed(label)) {
        return None;
    }
    let mut out: Vec<u8> = Vec::new();
    for label in a.iter().chain(b) {
        if !summed(label) && !out.contains(label) {
            out.push(*label);
        }
    }
    let matrix = ContractProduct {
        x: inner.matrix,
        matrix: outer.matrix,
        own: a.clone(),
        other: b.clone(),
        out: out.clone(),
    };
    let mut labels = out.clone();
    labels.extend(a.iter().filter(|label| summed(label)));
    let elems = matrix.shape_of(space, &labels).elems();
    if elems > MAX_FOLD_PRODUCTS {
        return None;
    }
    let matrix = matrix.emit(space)?;
    ContractProduct { x: inner.x, matrix, own, other: out, out: outer.out.clone() }.emit(space)
}

fn sum_of_products(space: &mut Space, term: &Term) -> Vec<Id> {
    let Some(view) = space.view(term) else { return Vec::new() };
    let f = match &*view.op {
        PrimOp::Map(ScalarFn::Binary(f @ (BinaryFn::Add | BinaryFn::Sub))) => *f,
        _ => return Vec::new(),
    };
    let products = |space: &Space, class: Id| -> Vec<ContractProduct> {
        let known = |product: &ContractProduct| {
            space.is_known(product.matrix) && !space.is_known(product.x) && space.dtype(product.x).is_float()
        };
        space.views(class).iter().flat_map(ContractProduct::both).filter(known).collect()
    };
    let (left, right) = (products(space, view.children[0]), products(space, view.children[1]));
    let mut found = Vec::new();
    for a in &left {
        for b in right.iter().filter(|b| b.x == a.x) {
            found.extend(joined(space, f, a, b));
        }
    }
    found
}

/// `x f(A, B)`, if the products differ in their matrices alone.
fn joined(space: &mut Space, f: BinaryFn, a: &ContractProduct, b: &ContractProduct) -> Option<Id> {
    // Labels of b by those of a: x's dimensions, then the result's.
    let pairs = b.own.iter().zip(&a.own).chain(b.out.iter().zip(&a.out));
    let mut rename = vec![None; 256];
    for (&from, &to) in pairs {
        if rename[usize::from(from)].replace(to).is_some_and(|before| before != to) {
            return None;
        }
    }
    let other: Vec<u8> = b.other.iter().map(|&label| rename[usize::from(label)]).collect::<Option<_>>()?;
    if other.len() != a.other.len() {
        return None;
    }
    let perm =
        a.other.iter().map(|label| other.iter().position(|found| found == label)).collect::<Option<_>>()?;
    let second = space.transpose(b.matrix, perm)?;
    let matrix = space.map(f, &[a.matrix, second])?;
    ContractProduct { matrix, ..a.clone() }.emit(space)
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
                    rule: "compose-products",
                    nodes: &[(2, 1)],
                    build: |g, [a, b, c]| {
                        let (x, w, v) = (g.input([a, b, 2]), g.weight([c, b]), g.weight([c, 7, 2]));
                        let y = g.contract("abc,db->cda", x, w);
                        g.contract("bda,abc->dc", v, y)
                    },
                },
                GraphCase {
                    rule: "sum-of-products",
                    nodes: &[(3, 1)],
                    build: |g, [a, b, c]| {
                        let (x, w, v) = (g.input([a, b]), g.weight([b, c]), g.weight([c, b]));
                        let (y, z) = (g.contract("ab,bc->ca", x, w), g.contract("cb,ab->ca", v, x));
                        g.map(BinaryFn::Sub, &[y, z])
                    },
                },
            ],
        );
    }
}
