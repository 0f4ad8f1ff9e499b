//! Convolutions of patches as matrix products.
//!
//! The first layer of vision models convolves few channels with windows side by side. Channels-last, each read would be of a few
//! elements; as a product the rows of a patch are read as they lie:
//!
//! ```text
//! x [n, c, h, w]  *  weight [o, c, p, q], strides p and q    as    x [n, c, h / p, p, w / q, q]  times  weight, summed over c, p, q
//! ```
//!
//! Stands after the rewriting. Exact, but for the order in which floats are added up.

use crate::prepare::{computed, rebuilt};
use orch_ir::{Contract, NodeId, PrimGraph, PrimOp};

/// Channels of so many elements fill vectors: those of more are best channels-last.
const MOST_CHANNELS: usize = 7;

/// Elements of a patch's row that are worth it.
const LEAST_ROW: usize = 4;

/// The graph with convolutions of few channels by windows side by side as products.
pub fn patch_products(graph: &PrimGraph) -> PrimGraph {
    if !graph.node_ids().any(|id| is_of_patches(graph, id)) {
        return graph.clone();
    }
    rebuilt(graph, |id, result, known| {
        let node = graph.node(id);
        let PrimOp::Conv(spec) = &node.op else { return false };
        if !is_of_patches(graph, id) {
            return false;
        }
        let expected = "windows side by side fill the image";
        let [x, weight] = [0, 1].map(|operand| computed(known, node.inputs[operand]));
        let shape = result.shape(x).to_vec();
        let spatial = spec.window.kernel.len() as u8;
        // Labels: 0 of the batch, 1 of channels, then the windows and the elements of each dimension, and last the maps.
        let (mut apart, mut lhs, mut rhs) = (shape[..2].to_vec(), vec![0, 1], vec![2 + 2 * spatial, 1]);
        let mut out = vec![0];
        for (dim, &kernel) in (0..spatial).zip(&spec.window.kernel) {
            let (window, element) = (2 + 2 * dim, 3 + 2 * dim);
            apart.extend([shape[2 + usize::from(dim)] / kernel, kernel]);
            lhs.extend([window, element]);
            rhs.push(element);
            out.push(window);
        }
        out.push(rhs[0]);
        let patches = result.add(PrimOp::Reshape { shape: apart.into() }, &[x]).expect(expected);
        let product = PrimOp::Contract(Contract { lhs, rhs, out });
        let product = result.add(product, &[patches, weight]).expect(expected);
        let last = 1 + usize::from(spatial);
        let perm = [0, last].into_iter().chain(1..last).collect();
        let maps = result.add(PrimOp::Transpose { perm }, &[product]).expect(expected);
        known[node.outputs[0].index()] = Some(maps);
        true
    })
}

fn is_of_patches(graph: &PrimGraph, id: NodeId) -> bool {
    let node = graph.node(id);
    let PrimOp::Conv(spec) = &node.op else { return false };
    let (window, shape) = (&spec.window, graph.shape(node.inputs[0]));
    let is_plain = window.low.iter().chain(&window.high).all(|&amount| amount == 0)
        && window.dilations.iter().all(|&dilation| dilation == 1)
        && window.kernel == window.strides;
    let is_filled =
        window.kernel.iter().zip(&shape[2..]).all(|(kernel, extent)| extent.is_multiple_of(*kernel));
    let has_rows = window.kernel.last().is_some_and(|&row| row >= LEAST_ROW);
    spec.groups == 1 && shape[1] <= MOST_CHANNELS && is_plain && is_filled && has_rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{ConvSpec, DType, Shape, Tensor, Window};

    fn convolution(shape: &[usize], kernel: &[usize], strides: &[usize]) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, shape.to_vec());
        let weight = graph.add_input("w", DType::F32, [&[3, shape[1]], kernel].concat());
        let ones = vec![1; kernel.len()];
        let none = vec![0; kernel.len()];
        let window = Window {
            kernel: kernel.to_vec(),
            strides: strides.to_vec(),
            dilations: ones,
            low: none.clone(),
            high: none,
        };
        let y = graph.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, weight]).unwrap();
        graph.add_output("y", y);
        graph
    }

    #[test]
    fn windows_side_by_side_are_products() {
        for (shape, kernel) in
            [(&[2, 3, 8, 12][..], &[4, 4][..]), (&[1, 1, 2, 8], &[1, 8]), (&[1, 2, 8], &[4])]
        {
            let graph = convolution(shape, kernel, kernel);
            let product = patch_products(&graph);
            assert!(product.nodes().iter().any(|node| matches!(node.op, PrimOp::Contract(_))));
            let numbers = |shape: &Shape| {
                Tensor::from_vec(
                    shape.clone(),
                    (0..shape.elems()).map(|at| ((at * 7) % 11) as f32 - 5.0).collect(),
                )
            };
            let inputs: Vec<Tensor> =
                graph.inputs.iter().map(|&(_, input)| numbers(graph.shape(input))).collect();
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap()[0].clone();
            let (expected, given) = (results(&graph), results(&product));
            assert_eq!((expected.shape(), expected.to_f64()), (given.shape(), given.to_f64()), "{shape:?}");
        }
    }

    #[test]
    fn others_stay_convolutions() {
        for (shape, kernel, strides) in [
            (&[1, 8, 8, 8][..], &[4, 4][..], &[4, 4][..]),
            (&[1, 3, 8, 8], &[4, 4], &[2, 4]),
            (&[1, 3, 9, 8], &[4, 4], &[4, 4]),
            (&[1, 3, 8, 8], &[2, 2], &[2, 2]),
        ] {
            let graph = convolution(shape, kernel, strides);
            assert_eq!(orch_ir::text::print(&patch_products(&graph)), orch_ir::text::print(&graph));
        }
    }
}
