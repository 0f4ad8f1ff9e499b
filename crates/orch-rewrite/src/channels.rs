//! Convolutions of channels that no multiple of an access fills, with zeros beside them.
//!
//! Channels last, a pixel of 3 or 12 channels of half precision starts where memory is not read 16 bytes at a time, and tensor cores get their operand
//! element by element. With zeros up to the next multiple, in images and weights, each pixel is read by whole accesses:
//!
//! ```text
//! x [n, c, ..] * w [o, c, ..]    as    [x, 0] [n, c', ..] * [w, 0] [o, c', ..]
//! ```
//!
//! Gradients of weights read images with batch and channels exchanged: zeros beside the channels are images beside the batch then, whose results are
//! cut off.
//!
//! Whether the zeros are written by a kernel of their own, or are in what the convolution reads, is for the choice of kernels. Stands after the
//! rewriting. Exact: what is added is zero times zero.

use crate::prepare::{computed, rebuilt, sliced, zero_padded};
use crate::weights::Weights;
use orch_ir::permutation::exchanges_first_two;
use orch_ir::{ConvSpec, NodeId, PrimGraph, PrimOp, TensorId};

/// Which convolutions have zeros beside their channels.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChannelAlignment {
    /// Channels are a multiple of so many.
    pub multiple: usize,
    /// Operations of a convolution, a multiply-add as two, from which on that may be worth a copy.
    pub least_flops: f64,
    /// The same where there are fewer channels than that multiple, so that most of what is multiplied is zero.
    pub least_sparse_flops: f64,
    /// Which convolutions stay as they are, as they are computed by no tiles.
    pub short: ShortProducts,
}

/// Products of many rows (pixels of all images) with few columns (maps) and a short K dimension (channels times window).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ShortProducts {
    /// Rows from which on.
    pub rows: usize,
    /// Columns, and elements of K, up to which.
    pub most: usize,
}

/// The graph with zeros beside the channels of convolutions.
pub fn align_channels(graph: &PrimGraph, alignment: ChannelAlignment) -> PrimGraph {
    let mut images: Vec<Option<TensorId>> = vec![None; graph.tensors().len()];
    rebuilt(graph, |id, result, known| {
        let exchanged = exchanged_image(graph, id);
        let Some(missing) = missing_channels(graph, id, exchanged, alignment) else { return false };
        let node = graph.node(id);
        let (image, weights) = (exchanged.unwrap_or(node.inputs[0]), node.inputs[1]);
        let image_with_zeros = images[image.index()].unwrap_or_else(|| {
            let image = computed(known, image);
            let (low, high) = beside(result.shape(image).rank(), missing);
            zero_padded(result, image, low, high)
        });
        images[image.index()] = Some(image_with_zeros);
        if exchanged.is_some() {
            let expected = "zeros beside the batch leave results";
            let exchange = graph.node(graph.producer(node.inputs[0]).expect(expected)).op.clone();
            let image = result.add(exchange, &[image_with_zeros]).expect(expected);
            let maps = result.add(node.op.clone(), &[image, computed(known, weights)]).expect(expected);
            let sizes = graph.shape(node.outputs[0]).to_vec();
            known[node.outputs[0].index()] = Some(sliced(result, maps, vec![0; sizes.len()], sizes));
            return true;
        }
        let (low, high) = beside(graph.shape(weights).rank(), missing);
        let weights = Weights::of_graph(graph, known, weights).padded(result, low, high).tensor(result);
        let maps = result.add(node.op.clone(), &[image_with_zeros, weights]);
        known[node.outputs[0].index()] = Some(maps.expect("both have as many channels"));
        true
    })
}

/// Zeros after the channels, the second of so many dimensions: before and after each dimension.
fn beside(rank: usize, missing: usize) -> (Vec<usize>, Vec<usize>) {
    let mut high = vec![0; rank];
    high[1] = missing;
    (vec![0; rank], high)
}

/// What a convolution reads with batch and channels exchanged.
fn exchanged_image(graph: &PrimGraph, id: NodeId) -> Option<TensorId> {
    let exchange = graph.node(graph.producer(*graph.node(id).inputs.first()?)?);
    let PrimOp::Transpose { perm } = &exchange.op else { return None };
    exchanges_first_two(perm).then_some(exchange.inputs[0])
}

/// The channels that the image of a convolution, or what it is an exchange of, lacks to a multiple, if it is to have them.
fn missing_channels(
    graph: &PrimGraph,
    id: NodeId,
    exchanged: Option<TensorId>,
    alignment: ChannelAlignment,
) -> Option<usize> {
    let node = graph.node(id);
    let PrimOp::Conv(ConvSpec { groups: 1, .. }) = &node.op else { return None };
    let channels = graph.shape(exchanged.unwrap_or(node.inputs[0]))[1];
    let weights = graph.shape(node.inputs[1]);
    let ChannelAlignment { multiple, least_flops, least_sparse_flops, short } = alignment;
    let (maps, k): (usize, usize) = (weights[0], weights[1..].iter().product());
    let results = graph.shape(node.outputs[0]).elems();
    if maps <= short.most && k <= short.most && results / maps.max(1) >= short.rows {
        return None;
    }
    let flops = 2.0 * (results * k) as f64;
    let missing = channels.next_multiple_of(multiple) - channels;
    let least = if channels < multiple { least_sparse_flops } else { least_flops };
    (missing > 0 && flops >= least).then_some(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{DType, Shape, Tensor, Window};

    const ALIGNMENT: ChannelAlignment = ChannelAlignment {
        multiple: 8,
        least_flops: 1e3,
        least_sparse_flops: 1e5,
        short: ShortProducts { rows: 1 << 12, most: 32 },
    };

    fn numbers(shape: &[usize]) -> Tensor {
        let shape = Shape::from(shape);
        Tensor::from_vec(shape.clone(), (0..shape.elems()).map(|at| ((at * 7) % 11) as f32 - 5.0).collect())
    }

    /// A window of one kernel, stride and padding before the image in both dimensions.
    fn square([kernel, stride, low]: [usize; 3]) -> Window {
        let both = |extent: usize| vec![extent; 2];
        Window {
            kernel: both(kernel),
            strides: both(stride),
            dilations: both(1),
            low: both(low),
            high: both(0),
        }
    }

    /// Two convolutions of 3 x 3 of one image of `[1, channels, side, side]`, by a constant and by an input.
    fn convolutions(channels: usize, side: usize) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [1, channels, side, side]);
        let given = graph.add_input("w", DType::F32, [2, channels, 3, 3]);
        let stored = graph.add_constant(numbers(&[4, channels, 3, 3]));
        let window = square([3, 2, 1]);
        for (name, weights) in [("y", stored), ("z", given)] {
            let conv = PrimOp::Conv(ConvSpec { window: window.clone(), groups: 1 });
            let maps = graph.add(conv, &[x, weights]).unwrap();
            graph.add_output(name, maps);
        }
        graph
    }

    #[test]
    fn zeros_beside_exchanged_channels_are_cut_off() {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [2, 12, 9, 9]);
        let gradient = graph.add_input("g", DType::F32, [4, 2, 7, 7]);
        let exchanged = graph.add(PrimOp::Transpose { perm: vec![1, 0, 2, 3] }, &[x]).unwrap();
        let window = square([7, 1, 0]);
        let conv = PrimOp::Conv(ConvSpec { window, groups: 1 });
        let maps = graph.add(conv, &[exchanged, gradient]).unwrap();
        graph.add_output("y", maps);
        let aligned = align_channels(&graph, ALIGNMENT);
        assert!(aligned.nodes().iter().any(|node| matches!(node.op, PrimOp::Slice { .. })));
        let inputs = [numbers(&[2, 12, 9, 9]), numbers(&[4, 2, 7, 7])];
        let result = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap()[0].clone();
        let (expected, given) = (result(&graph), result(&aligned));
        assert_eq!((expected.shape(), expected.to_f64()), (given.shape(), given.to_f64()));
    }

    #[test]
    fn zeros_beside_channels_change_nothing() {
        // The result of 3 channels of 130 x 130 has 65 x 65 pixels, with a K dimension of 27.
        for (channels, side, pads) in [(12, 9, 2), (3, 64, 2), (3, 9, 0), (3, 130, 0), (16, 9, 0)] {
            let graph = convolutions(channels, side);
            let aligned = align_channels(&graph, ALIGNMENT);
            let found = aligned.nodes().iter().filter(|node| matches!(node.op, PrimOp::Pad { .. })).count();
            // The image once, and the weights that are given.
            assert_eq!(found, pads, "{channels} channels");
            let inputs = [numbers(&[1, channels, side, side]), numbers(&[2, channels, 3, 3])];
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
            for (expected, given) in results(&graph).iter().zip(&results(&aligned)) {
                assert_eq!((expected.shape(), expected.to_f64()), (given.shape(), given.to_f64()));
            }
        }
    }
}
