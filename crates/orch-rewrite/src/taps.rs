//! Convolutions to few maps as convolutions to one map for each tap, and sums of shifted images.
//!
//! A CPU's vectors lie along maps or along pixels. Three maps leave most lanes of the first idle, and the second copy each pixel once for each
//! weight of a kernel, 81 times for 9 x 9, to use it for three products. With one map for each tap of the kernel's last dimensions, 27 here, maps fill
//! vectors, and the window of what is left is short. In one dimension, with dilation `d`:
//!
//! ```text
//! y[o, i]  =  sum over taps q of p[q, o, i + d q - low],    p[q, o, i]  =  sum over channels c of x[c, i] w[o, c, q]
//! ```
//!
//! where `p` is zero outside of the image. Stands after the rewriting. Exact, but for the order in which floats are added up.

use crate::prepare::{computed, rebuilt, sliced, zero_padded};
use crate::weights::Weights;
use orch_ir::{BinaryFn, ConvSpec, NodeId, PrimGraph, PrimOp, ScalarFn, Shape, Tensor, TensorId, Window};

/// Maps that leave half of the lanes of a vector idle and more.
const MOST_MAPS: usize = 8;

/// Maps of the convolution that takes its place, at most: the images of more are larger than what they are sums of by too much.
const MOST_TAP_MAPS: usize = 48;

/// Lanes of a vector.
const LANES: usize = 16;

/// The share of lanes that is worth no further image.
const FILLED: f64 = 0.75;

/// Channels for which the sums of shifted images are little beside the products.
const LEAST_CHANNELS: usize = 16;

/// The graph with convolutions by constants to few maps, of so many pixels at least, as convolutions to one map for each tap.
pub fn split_taps(graph: &PrimGraph, least_pixels: usize) -> PrimGraph {
    rebuilt(graph, |id, result, known| {
        let Some(split) = SplitTaps::of(graph, id, least_pixels) else { return false };
        let x = computed(known, graph.node(id).inputs[0]);
        known[graph.node(id).outputs[0].index()] = Some(split.emit(result, x));
        true
    })
}

/// A convolution whose last dimensions are split into their taps.
struct SplitTaps<'a> {
    window: &'a Window,
    weight: &'a Tensor,
    /// The shape of the result.
    shape: &'a Shape,
    /// How many of the last dimensions.
    dims: usize,
}

impl SplitTaps<'_> {
    fn of(graph: &PrimGraph, id: NodeId, least_pixels: usize) -> Option<SplitTaps<'_>> {
        let node = graph.node(id);
        let PrimOp::Conv(ConvSpec { window, groups: 1 }) = &node.op else { return None };
        let (weight, shape) = (graph.constant(node.inputs[1])?, graph.shape(node.outputs[0]));
        let [maps, channels] = [weight.shape()[0], weight.shape()[1]];
        let pixels: usize = shape[2..].iter().product();
        if maps > MOST_MAPS || channels < LEAST_CHANNELS || pixels < least_pixels {
            return None;
        }
        let taps = |dims: usize| window.kernel.iter().rev().take(dims).product::<usize>();
        let fits = |&dims: &usize| {
            let steps = window.strides.iter().rev().take(dims);
            steps.copied().all(|step| step == 1) && maps * taps(dims) <= MOST_TAP_MAPS
        };
        let filled = |dims: usize| {
            let all = maps * taps(dims);
            (all as f64 / all.next_multiple_of(LANES) as f64).min(FILLED)
        };
        let ways = (1..=window.kernel.len()).take_while(fits).filter(|&dims| taps(dims) > 1);
        // The fewest dimensions that fill vectors.
        let dims = ways.reduce(|best, dims| if filled(dims) > filled(best) { dims } else { best })?;
        Some(SplitTaps { window, weight, shape, dims })
    }

    /// The spatial dimensions that are split.
    fn split(&self) -> std::ops::Range<usize> {
        self.window.kernel.len() - self.dims..self.window.kernel.len()
    }

    /// The taps, row-major.
    fn taps(&self) -> Vec<Vec<usize>> {
        self.window.kernel[self.split()].iter().fold(vec![Vec::new()], |taps, &extent| {
            let longer = |tap: Vec<usize>| (0..extent).map(move |at| [&tap[..], &[at]].concat());
            taps.into_iter().flat_map(longer).collect()
        })
    }

    /// Weights `[maps, channels, kernel ..]` as `[taps * maps, channels, what is left of the kernel ..]`.
    fn weights(&self, graph: &mut PrimGraph) -> TensorId {
        let rank = self.weight.shape().rank();
        let first = rank - self.dims;
        let perm = (first..rank).chain(0..first).collect();
        let mut shape = self.weight.shape()[..first].to_vec();
        shape[0] *= self.taps().len();
        shape.resize(rank, 1);
        let transposed = Weights::Stored(self.weight.clone()).then(graph, PrimOp::Transpose { perm });
        transposed.then(graph, PrimOp::Reshape { shape: shape.into() }).tensor(graph)
    }

    fn emit(&self, graph: &mut PrimGraph, x: TensorId) -> TensorId {
        let expected = "images of taps have the shapes of the convolution";
        let weights = self.weights(graph);
        let mut window = self.window.clone();
        for dim in self.split() {
            (window.kernel[dim], window.dilations[dim], window.low[dim], window.high[dim]) = (1, 1, 0, 0);
        }
        let conv = PrimOp::Conv(ConvSpec { window, groups: 1 });
        let images = graph.add(conv, &[x, weights]).expect(expected);
        let images = self.padded(graph, images);
        let (rank, maps) = (self.shape.rank(), self.shape[1]);
        let mut sum = None;
        for (number, tap) in self.taps().into_iter().enumerate() {
            let mut starts = vec![0; rank];
            starts[1] = (number * maps) as i64;
            for (dim, at) in self.split().zip(tap) {
                starts[2 + dim] = (self.window.dilations[dim] * at) as i64;
            }
            let image = sliced(graph, images, starts, self.shape.to_vec());
            let add = PrimOp::Map(ScalarFn::Binary(BinaryFn::Add));
            sum = Some(sum.map_or(image, |sum| graph.add(add, &[sum, image]).expect(expected)));
        }
        sum.expect("there are several taps")
    }

    /// The images with the zeros that the convolution has around its operand.
    fn padded(&self, graph: &mut PrimGraph, images: TensorId) -> TensorId {
        let around = |amounts: &[usize]| {
            let mut all = vec![0; self.shape.rank()];
            self.split().for_each(|dim| all[2 + dim] = amounts[dim]);
            all
        };
        let (low, high) = (around(&self.window.low), around(&self.window.high));
        if low.iter().chain(&high).all(|&amount| amount == 0) {
            return images;
        }
        zero_padded(graph, images, low, high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::DType;

    fn numbers(shape: &[usize]) -> Tensor {
        let shape = Shape::from(shape);
        Tensor::from_vec(shape.clone(), (0..shape.elems()).map(|at| ((at * 7) % 11) as f32 - 5.0).collect())
    }

    /// A convolution of `[1, 16, ..]` to so many maps, all of them `[kernel, stride, dilation, low, high]` by dimension.
    fn convolution(maps: usize, extents: &[usize], windows: &[[usize; 5]]) -> PrimGraph {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [&[1, 16], extents].concat());
        let part = |which: usize| windows.iter().map(|window| window[which]).collect::<Vec<_>>();
        let weight = graph.add_constant(numbers(&[&[maps, 16], &part(0)[..]].concat()));
        let window =
            Window { kernel: part(0), strides: part(1), dilations: part(2), low: part(3), high: part(4) };
        let y = graph.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, weight]).unwrap();
        graph.add_output("y", y);
        graph
    }

    fn kernels(graph: &PrimGraph) -> Vec<Vec<usize>> {
        let kernel = |op: &PrimOp| match op {
            PrimOp::Conv(spec) => Some(spec.window.kernel.clone()),
            _ => None,
        };
        graph.nodes().iter().filter_map(|node| kernel(&node.op)).collect()
    }

    #[test]
    fn sums_of_taps_are_the_convolution() {
        for (maps, extents, windows, left) in [
            (3, &[40, 40][..], &[[9, 1, 1, 0, 0], [9, 1, 1, 0, 0]][..], vec![9, 1]),
            (3, &[33, 35], &[[5, 1, 1, 2, 2], [5, 1, 2, 4, 3]], vec![5, 1]),
            (3, &[34, 34], &[[3, 1, 1, 1, 1], [3, 1, 1, 1, 0]], vec![1, 1]),
            (2, &[70, 34], &[[3, 2, 1, 1, 1], [3, 1, 1, 1, 1]], vec![3, 1]),
            (5, &[34, 34], &[[3, 1, 1, 1, 1], [3, 1, 1, 1, 1]], vec![3, 1]),
            (1, &[1030], &[[7, 1, 1, 3, 3]], vec![1]),
        ] {
            let graph = convolution(maps, extents, windows);
            let split = split_taps(&graph, 1000);
            assert_eq!(kernels(&split), [left], "{windows:?}");
            let input = numbers(&[&[1, 16], extents].concat());
            let results = |graph| {
                evaluate(graph, std::slice::from_ref(&input), &EvalOptions::default()).unwrap()[0].clone()
            };
            let (expected, given) = (results(&graph), results(&split));
            assert_eq!((expected.shape(), expected.to_f64()), (given.shape(), given.to_f64()), "{windows:?}");
        }
    }

    #[test]
    fn others_stay_convolutions() {
        let plain = [3, 1, 1, 1, 1];
        for (maps, extents, windows) in [
            (9, &[40, 40][..], &[plain, plain][..]),
            (3, &[20, 20], &[plain, plain]),
            (3, &[80, 80], &[plain, [3, 2, 1, 1, 1]]),
            (3, &[40, 40], &[[1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]),
            (6, &[40, 40], &[plain, [9, 1, 1, 4, 4]]),
        ] {
            let graph = convolution(maps, extents, windows);
            assert_eq!(
                orch_ir::text::print(&split_taps(&graph, 1000)),
                orch_ir::text::print(&graph),
                "{windows:?}"
            );
        }
    }
}
