//! Products with few results and a long K dimension, in parts (split-K).
//!
//! The work items of a product are tiles of its result. A product of a row with 4096 x 32 weights has two of 16 columns, so that
//! two threads would read all weights. Its K dimension becomes two, of which the first one counts parts:
//!
//! ```text
//! y[m, n] = sum [k] x[m, k] w[k, n]  =  sum [s] p[s, m, n],     p[s, m, n] = sum [j] x[m, s, j] w[s, j, n]
//! ```
//!
//! Stands after the rewriting. Exact, but for the order in which floats are added up, which does not depend on the number of threads.

use crate::prepare::rebuilt;
use crate::weights::Weights;
use orch_ir::{Contract, NodeId, PrimGraph, PrimOp, ReduceOp, TensorId};
use std::collections::BTreeMap;

/// What is multiplied, with all dimensions of one kind as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProductExtents {
    /// Of dimensions that both operands and the result have.
    pub batch: usize,
    /// Of the result's other dimensions, those of the first operand.
    pub m: usize,
    /// Those of the second operand.
    pub n: usize,
    /// Of the dimensions that are summed.
    pub k: usize,
}

/// The graph with products by constants in parts where `most_parts` says so: in the largest number of equal parts of one dimension that is
/// summed, up to the number that it gives. Products of computed tensors stay as they are, since they may be attention's, which is found as a
/// whole; types of less than 32 bits do, since results between the parts would be rounded.
pub fn split_products(graph: &PrimGraph, most_parts: impl Fn(ProductExtents) -> usize) -> PrimGraph {
    let split = |id| SplitProduct::of(graph, id, &most_parts);
    if graph.node_ids().all(|id| split(id).is_none()) {
        return graph.clone();
    }
    rebuilt(graph, |id, result, known| {
        let Some(split) = split(id) else { return false };
        let node = graph.node(id);
        let [lhs, rhs] = [0, 1].map(|operand| Weights::of_graph(graph, known, node.inputs[operand]));
        known[node.outputs[0].index()] = Some(split.emit(result, lhs, rhs));
        true
    })
}

/// A product, a dimension that it sums and the number of its parts.
struct SplitProduct<'a> {
    product: &'a Contract,
    label: u8,
    parts: usize,
}

impl SplitProduct<'_> {
    fn of(
        graph: &PrimGraph,
        id: NodeId,
        most_parts: impl Fn(ProductExtents) -> usize,
    ) -> Option<SplitProduct<'_>> {
        let node = graph.node(id);
        let PrimOp::Contract(product) = &node.op else { return None };
        let has_constant = node.inputs.iter().any(|&operand| graph.constant(operand).is_some());
        if !has_constant || graph.dtype(node.outputs[0]).size_bytes() < size_of::<f32>() {
            return None;
        }
        let mut extents = ProductExtents { batch: 1, m: 1, n: 1, k: 1 };
        let mut summed = BTreeMap::new();
        for (labels, operand) in [(&product.lhs, node.inputs[0]), (&product.rhs, node.inputs[1])] {
            for (&label, &extent) in labels.iter().zip(graph.shape(operand).iter()) {
                let is_in = |labels: &[u8]| labels.contains(&label);
                match (is_in(&product.lhs), is_in(&product.rhs), is_in(&product.out)) {
                    (.., false) => _ = summed.insert(label, extent),
                    // Counted where the first operand has it.
                    (true, true, true) if labels == &product.lhs => extents.batch *= extent,
                    (true, true, true) => {}
                    (true, false, true) => extents.m *= extent,
                    (false, _, true) => extents.n *= extent,
                }
            }
        }
        extents.k = summed.values().product();
        let most = most_parts(extents);
        let (&label, &extent) = summed.iter().max_by_key(|(_, extent)| **extent)?;
        let parts = (2..=most.min(extent)).rev().find(|parts| extent.is_multiple_of(*parts))?;
        Some(SplitProduct { product, label, parts })
    }

    fn emit(&self, graph: &mut PrimGraph, lhs: Weights, rhs: Weights) -> TensorId {
        let expected = "parts have the shapes of the product";
        let Contract { lhs: of_lhs, rhs: of_rhs, out } = self.product;
        let own = of_lhs.iter().chain(of_rhs).max().map_or(0, |last| last + 1);
        let labels = |labels: &[u8]| {
            let of_label = |&label: &u8| if label == self.label { vec![own, label] } else { vec![label] };
            labels.iter().flat_map(of_label).collect::<Vec<u8>>()
        };
        let in_parts = |graph: &mut PrimGraph, operand: Weights, labels: &[u8]| {
            let shape = operand.shape(graph);
            let of_label = |(&label, &extent): (&u8, &usize)| match label == self.label {
                true => vec![self.parts, extent / self.parts],
                false => vec![extent],
            };
            let shape: Vec<usize> = labels.iter().zip(shape.iter()).flat_map(of_label).collect();
            operand.then(graph, PrimOp::Reshape { shape: shape.into() }).tensor(graph)
        };
        let operands = [in_parts(graph, lhs, of_lhs), in_parts(graph, rhs, of_rhs)];
        let product = Contract { lhs: labels(of_lhs), rhs: labels(of_rhs), out: [&[own], &out[..]].concat() };
        let parts = graph.add(PrimOp::Contract(product), &operands).expect(expected);
        graph.add(PrimOp::Reduce { op: ReduceOp::Sum, axes: vec![0] }, &[parts]).expect(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{DType, Tensor};

    /// A product of an input and a constant.
    fn product(product: Contract, lhs: &[usize], rhs: &[usize], dtype: DType) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", dtype, lhs);
        let w = graph.add_constant(Tensor::from_f64(dtype, rhs, &numbers(rhs).to_f64()));
        let y = graph.add(PrimOp::Contract(product), &[x, w]).unwrap();
        graph.add_output("y", y);
        graph
    }

    fn numbers(shape: &[usize]) -> Tensor {
        let elems = shape.iter().product();
        Tensor::from_vec(shape, (0..elems).map(|i: usize| (i * 37 % 11) as f32 - 5.0).collect())
    }

    #[test]
    fn products_in_parts_give_the_same() {
        let contract = |lhs: &[u8], rhs: &[u8], out: &[u8]| Contract {
            lhs: lhs.to_vec(),
            rhs: rhs.to_vec(),
            out: out.to_vec(),
        };
        for (by, lhs, rhs, extents, parts) in [
            (Contract::matmul(0), &[3, 12][..], &[12, 5][..], [1, 3, 5, 12], 4),
            (Contract::matmul(1), &[2, 3, 10], &[2, 10, 5], [2, 3, 5, 10], 2),
            // Two dimensions are summed, of which the longer one is divided.
            (contract(&[0, 1, 2], &[2, 1, 3], &[3, 0]), &[3, 4, 9], &[9, 4, 2], [1, 3, 2, 36], 3),
            // The second operand has them in another order, and no dimension of its own.
            (contract(&[5, 7], &[7], &[5]), &[6, 8], &[8], [1, 6, 1, 8], 4),
        ] {
            let graph = product(by, lhs, rhs, DType::F32);
            let split = split_products(&graph, |found| {
                assert_eq!([found.batch, found.m, found.n, found.k], extents);
                4
            });
            let [.., parted, sum] = split.nodes() else { panic!("a product and a sum") };
            assert!(matches!(sum.op, PrimOp::Reduce { op: ReduceOp::Sum, .. }));
            assert_eq!(split.shape(parted.outputs[0])[0], parts, "{lhs:?} x {rhs:?}");
            let inputs = [numbers(lhs)];
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap()[0].clone();
            let (expected, given) = (results(&graph), results(&split));
            assert_eq!((expected.shape(), expected.to_f64()), (given.shape(), given.to_f64()));
        }
    }

    #[test]
    fn others_stay_as_they_are() {
        let graph = product(Contract::matmul(0), &[3, 12], &[12, 5], DType::F32);
        assert_eq!(split_products(&graph, |_| 1), graph);
        let prime = product(Contract::matmul(0), &[3, 13], &[13, 5], DType::F32);
        assert_eq!(split_products(&prime, |_| 8), prime);
        let half = product(Contract::matmul(0), &[3, 12], &[12, 5], DType::F16);
        assert_eq!(split_products(&half, |_| 8), half);
        let mut computed = PrimGraph::new("g");
        let [x, w] =
            [("x", [3, 12]), ("w", [12, 5])].map(|(name, shape)| computed.add_input(name, DType::F32, shape));
        let y = computed.add(PrimOp::Contract(Contract::matmul(0)), &[x, w]).unwrap();
        computed.add_output("y", y);
        assert_eq!(split_products(&computed, |_| 8), computed);
    }
}
