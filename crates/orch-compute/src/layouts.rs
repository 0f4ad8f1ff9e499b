//! Chooses a memory layout for every tensor of a primitive graph.
//!
//! Convolutions and pooling store channels-last, so that their vectors run along channels; everything else takes
//! the layout that makes it a view or lets it read contiguously. A convolution to a handful of maps is row-major: its
//! vectors run along pixels. Graph inputs, graph outputs and the operands
//! and results of opaque routines and of primitives that are a kernel by themselves are row-major. One forward pass suffices: a transpose or reshape of a
//! channels-last tensor is given the layout under which it is the same bytes, so the transposes that models put
//! between convolutions and attention or normalisation vanish.
//!
//! Precondition: a valid graph after rewriting. Postcondition: one [`Layout`] of the right rank per tensor.

use crate::alone::stands_alone;
use crate::layout::Layout;
use orch_ir::permutation::exchanges_first_two;
use orch_ir::{NodeId, PrimGraph, PrimNode, PrimOp, ScalarFn, Shape, TensorId};
use std::collections::BTreeMap;

/// The layout of every tensor for a CPU; index with [`TensorId::index`].
pub fn assign(graph: &PrimGraph) -> Vec<Layout> {
    let mut pinned = row_major_only(graph);
    pin_planar_convolutions(graph, &mut pinned);
    let [images, weights] = [0, 1].map(|operand| convolved_only(graph, &graph.consumers(), operand));
    let layout = |copy: TensorId| {
        let shape = graph.shape(copy);
        if images[copy.index()][0] {
            Some(Layout::channels_last(shape.rank()))
        } else if weights[copy.index()][0] && shape[1] == 1 {
            // Channels of images and results lie side by side, as do those of their weights.
            Some(maps_last(shape.rank()))
        } else {
            None
        }
    };
    let copies = graph.nodes().iter().filter_map(|node| node.outputs.first().copied());
    let chosen =
        copies.filter(|&copy| is_copy(graph, copy)).filter_map(|copy| Some((copy, layout(copy)?))).collect();
    forward(graph, &pinned, &chosen, |_| false)
}

/// The layout of every tensor for a GPU.
///
/// Convolutions are channels-last whatever their number of maps, and so are their weights, if these are constants, copies or parts: the
/// terms of a sum then lie side by side in both factors, window by window. Weights of a single channel per map lie map
/// by map, as the channels of the pixels do.
pub fn assign_gpu(graph: &PrimGraph) -> Vec<Layout> {
    let consumers = graph.consumers();
    let images = convolved_only(graph, &consumers, 0);
    let chosen: BTreeMap<TensorId, Layout> = (weight_layouts(graph, &consumers).into_iter())
        .chain(copy_layouts(graph, &consumers, &images))
        .chain(padded_layouts(graph, &images))
        .collect();
    let is_image = |tensor: TensorId| images[tensor.index()][0] && has_aligned_channels(graph, tensor);
    forward(graph, &row_major_only(graph), &chosen, is_image)
}

/// Layouts of copies of inputs that nothing but convolutions reads. Images, also with batch and channels exchanged, as gradients of weights
/// read them, have channels last, if their rows are aligned then. Weights whose maps and channels are exchanged, as gradients of images
/// read them, have their maps last.
fn copy_layouts(
    graph: &PrimGraph,
    consumers: &[Vec<NodeId>],
    images: &[[bool; 2]],
) -> Vec<(TensorId, Layout)> {
    let weights = convolved_only(graph, consumers, 1);
    let is_exchanged = |&reader: &NodeId| {
        let node = graph.node(reader);
        let is_exchange = matches!(&node.op, PrimOp::Transpose { perm } if exchanges_first_two(perm));
        is_exchange && weights[node.outputs[0].index()][0]
    };
    let layout = |copy: TensorId| {
        let (rank, readers) = (graph.shape(copy).rank(), &consumers[copy.index()]);
        if has_aligned_channels(graph, copy) && images[copy.index()][1] {
            Some(Layout::channels_last(rank))
        } else if !readers.is_empty() && readers.iter().all(is_exchanged) {
            Some(maps_last(rank))
        } else {
            None
        }
    };
    let copies = graph.nodes().iter().filter_map(|node| node.outputs.first().copied());
    copies
        .filter(|&copy| is_copy_of_input(graph, copy))
        .filter_map(|copy| Some((copy, layout(copy)?)))
        .collect()
}

/// Layouts of images with zeros beside their channels that convolutions read, also with batch and channels exchanged: channels last.
fn padded_layouts(graph: &PrimGraph, images: &[[bool; 2]]) -> Vec<(TensorId, Layout)> {
    let padded = |node: &PrimNode| {
        let PrimOp::Pad { low, high, .. } = &node.op else { return None };
        let (output, rank) = (node.outputs[0], low.len());
        let is_beside = (0..rank).all(|dim| (dim == 1) == (low[dim] + high[dim] > 0));
        let is_image = rank > 2 && is_beside && images[output.index()][1];
        is_image.then(|| (output, Layout::channels_last(rank)))
    };
    graph.nodes().iter().filter_map(padded).collect()
}

/// For each tensor whether nothing but convolutions reads it, as this operand: moved within its dimensions, and with the first two of them
/// exchanged never, or at most once.
fn convolved_only(graph: &PrimGraph, consumers: &[Vec<NodeId>], operand: usize) -> Vec<[bool; 2]> {
    let mut only = vec![[false; 2]; graph.tensors().len()];
    for &tensor in graph.nodes().iter().rev().flat_map(|node| &node.outputs) {
        let is_read = |reader: &NodeId, exchanges: usize| {
            let node = graph.node(*reader);
            match &node.op {
                PrimOp::Conv(_) => node.inputs[operand] == tensor && node.inputs[1 - operand] != tensor,
                PrimOp::Transpose { perm } => {
                    exchanges == 1 && exchanges_first_two(perm) && only[node.outputs[0].index()][0]
                }
                PrimOp::Slice { .. } | PrimOp::Pad { .. } | PrimOp::Concat { .. } => {
                    only[node.outputs[0].index()][exchanges]
                }
                _ => false,
            }
        };
        let readers = &consumers[tensor.index()];
        only[tensor.index()] = [0, 1]
            .map(|exchanges| !readers.is_empty() && readers.iter().all(|reader| is_read(reader, exchanges)));
    }
    only
}

/// Channels of which a multiple is read by the widest accesses: 16 bytes of half precision.
const ALIGNED_CHANNELS: usize = 8;

/// True for a tensor with dimensions behind its channels, whose number is a multiple of [`ALIGNED_CHANNELS`].
fn has_aligned_channels(graph: &PrimGraph, tensor: TensorId) -> bool {
    let shape = graph.shape(tensor);
    shape.rank() > 2 && shape[1].is_multiple_of(ALIGNED_CHANNELS)
}

/// True for a conversion of an input of the graph, which may be one to its own type.
fn is_copy_of_input(graph: &PrimGraph, tensor: TensorId) -> bool {
    converted(graph, tensor).is_some_and(|operand| graph.inputs.iter().any(|&(_, input)| input == operand))
}

/// True for a conversion to the type that its operand has.
fn is_copy(graph: &PrimGraph, tensor: TensorId) -> bool {
    converted(graph, tensor).is_some_and(|operand| graph.dtype(operand) == graph.dtype(tensor))
}

/// What a conversion converts, which may be to its own type; `None` of results of other primitives.
fn converted(graph: &PrimGraph, tensor: TensorId) -> Option<TensorId> {
    let producer = graph.node(graph.producer(tensor)?);
    matches!(producer.op, PrimOp::Map(ScalarFn::Cast(_))).then(|| producer.inputs[0])
}

/// Layouts from the inputs on: those that are chosen, and elsewhere what each primitive prefers. Reshapes that have to be copies, and
/// elementwise results of row-major tensors, have channels last where they are images for convolutions.
fn forward(
    graph: &PrimGraph,
    pinned: &[bool],
    chosen: &BTreeMap<TensorId, Layout>,
    is_image: impl Fn(TensorId) -> bool,
) -> Vec<Layout> {
    let mut layouts: Vec<Layout> =
        graph.tensors().iter().map(|info| Layout::row_major(info.shape.rank())).collect();
    for (tensor, layout) in chosen {
        layouts[tensor.index()] = layout.clone();
    }
    for node in graph.nodes() {
        for &output in &node.outputs {
            if !pinned[output.index()] && !chosen.contains_key(&output) {
                layouts[output.index()] = preferred(graph, node, output, &layouts, &is_image);
            }
        }
    }
    layouts
}

/// Layouts of constants, and of tensors that other tensors are copied to, that nothing but convolutions reads, as their weights.
fn weight_layouts(graph: &PrimGraph, consumers: &[Vec<NodeId>]) -> Vec<(TensorId, Layout)> {
    let is_output = |tensor| graph.outputs.iter().any(|(_, output)| *output == tensor);
    let mut found = Vec::new();
    for node in graph.nodes() {
        let PrimOp::Conv(spec) = &node.op else { continue };
        let weights = node.inputs[1];
        let is_weight = |&reader: &NodeId| {
            let reader = graph.node(reader);
            let is_same = matches!(&reader.op, PrimOp::Conv(other) if other.groups == spec.groups);
            is_same && reader.inputs[1] == weights && reader.inputs[0] != weights
        };
        let only_weights = consumers[weights.index()].iter().all(is_weight);
        let is_part = graph.producer(weights).is_some_and(|producer| {
            let op = &graph.node(producer).op;
            matches!(op, PrimOp::Slice { .. } | PrimOp::Pad { .. } | PrimOp::Concat { .. })
        });
        let is_own = graph.constant(weights).is_some() || is_part || is_copy_of_input(graph, weights);
        if !is_own || is_output(weights) || !only_weights {
            continue;
        }
        let rank = graph.shape(weights).rank();
        let is_by_channel = spec.groups > 1 && graph.shape(weights)[1] == 1;
        let layout = if is_by_channel { maps_last(rank) } else { Layout::channels_last(rank) };
        found.push((weights, layout));
    }
    found
}

/// The first dimension innermost, all others in order.
fn maps_last(rank: usize) -> Layout {
    Layout::from_order((1..rank).chain([0]).collect()).expect("every dimension once")
}

/// True for a reshape or transpose whose result is its operand's bytes under the given layouts.
pub fn is_view(graph: &PrimGraph, node: &PrimNode, layouts: &[Layout]) -> bool {
    let (Some(&input), Some(&output)) = (node.inputs.first(), node.outputs.first()) else {
        return false;
    };
    let from = &layouts[input.index()];
    let as_view = match &node.op {
        PrimOp::Transpose { perm } => Some(from.transposed(perm)),
        PrimOp::Reshape { shape } => from.reshaped(graph.shape(input), shape),
        _ => None,
    };
    let shape = graph.shape(output);
    as_view.is_some_and(|layout| layout.same_bytes(&layouts[output.index()], shape))
}

/// Tensors that the outside, an opaque routine or a primitive that is a kernel by itself sees.
fn row_major_only(graph: &PrimGraph) -> Vec<bool> {
    let mut pinned = vec![false; graph.tensors().len()];
    let boundary = graph.inputs.iter().chain(&graph.outputs).map(|(_, tensor)| *tensor);
    let opaque = (graph.nodes().iter())
        .filter(|node| matches!(node.op, PrimOp::Opaque(_)) || stands_alone(&node.op))
        .flat_map(|node| node.inputs.iter().chain(&node.outputs).copied());
    for tensor in boundary.chain(opaque) {
        pinned[tensor.index()] = true;
    }
    pinned
}

/// Convolutions with fewer maps than this leave most lanes idle when vectors run along maps.
const FEW_MAPS: usize = 5;

/// Pins the operand and the result of convolutions to few maps: their vectors run along pixels. Only an operand that
/// is padded, and so copied anyway, is pinned.
fn pin_planar_convolutions(graph: &PrimGraph, pinned: &mut [bool]) {
    for node in graph.nodes() {
        let PrimOp::Conv(spec) = &node.op else { continue };
        let (operand, result) = (node.inputs[0], node.outputs[0]);
        let is_padded = graph
            .producer(operand)
            .is_some_and(|producer| matches!(graph.node(producer).op, PrimOp::Pad { .. }));
        if spec.groups == 1 && graph.shape(result)[1] < FEW_MAPS && is_padded {
            pinned[operand.index()] = true;
            pinned[result.index()] = true;
        }
    }
}

fn preferred(
    graph: &PrimGraph,
    node: &PrimNode,
    output: TensorId,
    layouts: &[Layout],
    is_image: impl Fn(TensorId) -> bool,
) -> Layout {
    let rank = graph.shape(output).rank();
    let of = |tensor: TensorId| &layouts[tensor.index()];
    match &node.op {
        PrimOp::Conv(_) | PrimOp::ConvTranspose { .. } => Layout::channels_last(rank),
        PrimOp::Window { .. } => Layout::channels_last(rank),
        PrimOp::Transpose { perm } => of(node.inputs[0]).transposed(perm),
        PrimOp::Reshape { shape } => {
            let copy = if is_image(output) { Layout::channels_last(rank) } else { Layout::row_major(rank) };
            of(node.inputs[0]).reshaped(graph.shape(node.inputs[0]), shape).unwrap_or(copy)
        }
        PrimOp::Reduce { axes, .. } => of(node.inputs[0]).without(axes),
        PrimOp::Map(_) | PrimOp::Concat { .. } => match leading(graph, &node.inputs, layouts).map(of) {
            Some(layout) if !layout.is_row_major() => layout.clone(),
            _ if is_image(output) => Layout::channels_last(rank),
            _ => Layout::row_major(rank),
        },
        PrimOp::Slice { .. } | PrimOp::Pad { .. } | PrimOp::Select { .. } => of(node.inputs[0]).clone(),
        PrimOp::Broadcast { .. }
        | PrimOp::Contract(_)
        | PrimOp::Take { .. }
        | PrimOp::TakeAlong { .. }
        | PrimOp::GatherNd { .. }
        | PrimOp::ScatterAlong { .. }
        | PrimOp::ScatterNd { .. }
        | PrimOp::Iota { .. }
        | PrimOp::Recurrence(_)
        | PrimOp::Opaque(_) => Layout::row_major(rank),
    }
}

/// The operand whose layout an elementwise result takes: a computed tensor of full size, one with an unusual
/// layout before a row-major one.
fn leading(graph: &PrimGraph, operands: &[TensorId], layouts: &[Layout]) -> Option<TensorId> {
    let full_size = |tensor: &&TensorId| {
        graph.constant(**tensor).is_none()
            && graph
                .producer(**tensor)
                .is_none_or(|node| !matches!(graph.node(node).op, PrimOp::Broadcast { .. }))
    };
    let mut candidates = operands.iter().filter(full_size).copied();
    let unusual = candidates.clone().find(|tensor| !layouts[tensor.index()].is_row_major());
    unusual.or_else(|| candidates.next())
}

impl Layout {
    /// The layout of a tensor whose dimensions `axes` have been reduced away.
    pub fn without(&self, axes: &[usize]) -> Layout {
        let renumber = |dim: usize| dim - axes.iter().filter(|&&axis| axis < dim).count();
        let order = self.order().iter().filter(|dim| !axes.contains(dim)).map(|&dim| renumber(dim)).collect();
        Layout::from_order(order).expect("removing dimensions leaves a permutation")
    }

    /// True if both layouts put every element of `shape` at the same place: dimensions of extent 1 may differ.
    pub fn same_bytes(&self, other: &Layout, shape: &Shape) -> bool {
        let kept = |layout: &Layout| -> Vec<usize> {
            layout.order().iter().copied().filter(|&dim| shape[dim] != 1).collect()
        };
        shape.elems() == 0 || kept(self) == kept(other)
    }

    /// The layout of `reshape(x, to)` over the same bytes as `x` of shape `from` in this layout, or `None` if a
    /// reshape needs a copy.
    ///
    /// Row-major reshapes factor into groups of neighbouring dimensions with equal element counts. A group that
    /// is one dimension before may be split anywhere; a group of several must lie together, in order.
    pub fn reshaped(&self, from: &Shape, to: &Shape) -> Option<Layout> {
        if from.elems() == 0 {
            return Some(Layout::row_major(to.rank()));
        }
        let groups = reshape_groups(from, to);
        let physical: Vec<usize> = self.order().iter().copied().filter(|&dim| from[dim] != 1).collect();
        let mut order = Vec::with_capacity(to.rank());
        let mut position = 0;
        while position < physical.len() {
            let group = groups.iter().find(|group| group.0.contains(&physical[position]))?;
            let together = physical.get(position..position + group.0.len())?;
            if together != group.0 {
                return None;
            }
            order.extend(&group.1);
            position += group.0.len();
        }
        for dim in (0..to.rank()).filter(|&dim| to[dim] == 1) {
            let place = order.iter().position(|&other| other > dim).unwrap_or(order.len());
            order.insert(place, dim);
        }
        Layout::from_order(order)
    }
}

/// Minimal runs of dimensions (those of extent 1 left out) of `from` and `to` with equal element counts.
fn reshape_groups(from: &Shape, to: &Shape) -> Vec<(Vec<usize>, Vec<usize>)> {
    let mut from_dims = (0..from.rank()).filter(|&dim| from[dim] != 1);
    let mut to_dims = (0..to.rank()).filter(|&dim| to[dim] != 1);
    let mut groups = Vec::new();
    while let (Some(first), Some(second)) = (from_dims.next(), to_dims.next()) {
        let (mut left, mut right) = (vec![first], vec![second]);
        let (mut left_elems, mut right_elems) = (from[first], to[second]);
        while left_elems != right_elems {
            let (dims, shape, list, elems) = if left_elems < right_elems {
                (&mut from_dims as &mut dyn Iterator<Item = usize>, from, &mut left, &mut left_elems)
            } else {
                (&mut to_dims as &mut dyn Iterator<Item = usize>, to, &mut right, &mut right_elems)
            };
            let Some(dim) = dims.next() else { break };
            list.push(dim);
            *elems *= shape[dim];
        }
        groups.push((left, right));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::{ConvSpec, DType, Window};

    /// A window over two dimensions of one extent.
    fn square(kernel: usize, stride: usize, padding: usize) -> Window {
        Window {
            kernel: vec![kernel; 2],
            strides: vec![stride; 2],
            dilations: vec![1; 2],
            low: vec![padding; 2],
            high: vec![padding; 2],
        }
    }

    #[test]
    fn spatial_dimensions_flatten_in_place() {
        let layout = Layout::channels_last(4).reshaped(&[1, 32, 8, 8].into(), &[1, 32, 64].into()).unwrap();
        assert!(layout.same_bytes(&Layout::channels_last(3), &[1, 32, 64].into()));
        assert!(layout.transposed(&[0, 2, 1]).same_bytes(&Layout::row_major(3), &[1, 64, 32].into()));
    }

    #[test]
    fn flattening_channels_with_pixels_needs_a_copy() {
        assert_eq!(Layout::channels_last(4).reshaped(&[1, 32, 8, 8].into(), &[1, 2048].into()), None);
        assert!(Layout::row_major(3).reshaped(&[3, 4, 5].into(), &[60].into()).is_some());
        assert!(Layout::row_major(3).reshaped(&[3, 4, 5].into(), &[5, 4, 3].into()).unwrap().is_row_major());
    }

    #[test]
    fn channels_split_into_heads() {
        let layout = Layout::channels_last(3).reshaped(&[1, 32, 64].into(), &[1, 4, 8, 64].into()).unwrap();
        assert_eq!(layout.strides(&[1, 4, 8, 64].into())[1..], [8, 1, 32]);
    }

    #[test]
    fn weights_lie_as_a_gpu_reads_them() {
        let mut graph = PrimGraph::new("convolutions");
        let x = graph.add_input("x", DType::F32, [1, 4, 8, 8]);
        let window = square(3, 1, 1);
        let mut conv = |x, groups, weights: [usize; 4]| {
            let weights = graph.add_constant(orch_ir::Tensor::zeros(DType::F32, weights));
            let spec = ConvSpec { window: window.clone(), groups };
            (weights, graph.add(PrimOp::Conv(spec), &[x, weights]).unwrap())
        };
        let (by_channel, y) = conv(x, 4, [4, 1, 3, 3]);
        let (dense, y) = conv(y, 1, [2, 4, 3, 3]);
        graph.add_output("y", y);
        let layouts = assign_gpu(&graph);
        assert_eq!(layouts[dense.index()], Layout::channels_last(4));
        assert_eq!(layouts[by_channel.index()].order(), [1, 2, 3, 0]);
        assert!(assign(&graph)[dense.index()].is_row_major());
    }

    #[test]
    fn copies_of_weights_that_are_inputs_lie_as_a_gpu_reads_them() {
        let mut graph = PrimGraph::new("convolution");
        let x = graph.add_input("x", DType::F16, [1, 4, 8, 8]);
        let given = graph.add_input("w", DType::F16, [2, 4, 1, 1]);
        let weights = graph.add(PrimOp::Map(ScalarFn::Cast(DType::F16)), &[given]).unwrap();
        let window = square(1, 1, 0);
        let y = graph.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, weights]).unwrap();
        graph.add_output("y", y);
        let layouts = assign_gpu(&graph);
        assert_eq!(layouts[weights.index()], Layout::channels_last(4));
        assert!(layouts[given.index()].is_row_major());
    }

    #[test]
    fn copies_of_images_have_channels_last_if_their_rows_are_aligned() {
        for channels in [3, 8] {
            let mut graph = PrimGraph::new("convolution");
            let given = graph.add_input("x", DType::F16, [1, channels, 8, 8]);
            let weights = graph.add_input("w", DType::F16, [2, channels, 1, 1]);
            let image = graph.add(PrimOp::Map(ScalarFn::Cast(DType::F16)), &[given]).unwrap();
            let spec = ConvSpec { window: square(1, 1, 0), groups: 1 };
            let y = graph.add(PrimOp::Conv(spec), &[image, weights]).unwrap();
            graph.add_output("y", y);
            assert_eq!(assign_gpu(&graph)[image.index()].is_row_major(), channels == 3);
        }
    }

    #[test]
    fn elementwise_results_that_only_convolutions_read_have_channels_last() {
        for is_read_elsewhere in [false, true] {
            let mut graph = PrimGraph::new("activation before a convolution");
            let x = graph.add_input("x", DType::F16, [1, 16, 8, 8]);
            let image = graph.add(PrimOp::Map(ScalarFn::Unary(orch_ir::UnaryFn::Neg)), &[x]).unwrap();
            let weights = graph.add_constant(orch_ir::Tensor::zeros(DType::F16, [16, 16, 3, 3]));
            let spec = ConvSpec { window: square(3, 1, 1), groups: 1 };
            let y = graph.add(PrimOp::Conv(spec), &[image, weights]).unwrap();
            graph.add_output("y", y);
            if is_read_elsewhere {
                let sums = PrimOp::Reduce { op: orch_ir::ReduceOp::Sum, axes: vec![2, 3] };
                let sums = graph.add(sums, &[image]).unwrap();
                graph.add_output("sums", sums);
            }
            assert_eq!(assign_gpu(&graph)[image.index()].is_row_major(), is_read_elsewhere);
        }
    }

    #[test]
    fn copies_that_convolutions_read_have_channels_last_on_a_cpu() {
        let mut graph = PrimGraph::new("convolution");
        let given = graph.add_input("x", DType::F32, [1, 16, 8, 8]);
        let image = graph.add(PrimOp::Map(ScalarFn::Cast(DType::F32)), &[given]).unwrap();
        let weights = graph.add_constant(orch_ir::Tensor::zeros(DType::F32, [16, 16, 3, 3]));
        let spec = ConvSpec { window: square(3, 1, 1), groups: 1 };
        let y = graph.add(PrimOp::Conv(spec), &[image, weights]).unwrap();
        graph.add_output("y", y);
        let layouts = assign(&graph);
        assert_eq!(layouts[image.index()], Layout::channels_last(4));
        assert!(layouts[given.index()].is_row_major() && layouts[y.index()].is_row_major());
    }

    #[test]
    fn images_that_are_copied_from_heads_have_channels_last() {
        // [batch, heads, pixels, channels of a head] as [batch, channels, height, width].
        let mut graph = PrimGraph::new("attention before a convolution");
        let heads = graph.add_input("heads", DType::F16, [1, 4, 64, 8]);
        let turned = graph.add(PrimOp::Transpose { perm: vec![0, 1, 3, 2] }, &[heads]).unwrap();
        let image = graph.add(PrimOp::Reshape { shape: [1, 32, 8, 8].into() }, &[turned]).unwrap();
        let weights = graph.add_constant(orch_ir::Tensor::zeros(DType::F16, [2, 32, 3, 3]));
        let spec = ConvSpec { window: square(3, 1, 1), groups: 1 };
        let y = graph.add(PrimOp::Conv(spec), &[image, weights]).unwrap();
        graph.add_output("y", y);
        assert_eq!(assign_gpu(&graph)[image.index()], Layout::channels_last(4));
    }

    #[test]
    fn reversed_weights_lie_as_a_gpu_reads_them() {
        let mut graph = PrimGraph::new("gradient");
        let x = graph.add_input("x", DType::F16, [1, 4, 8, 8]);
        let given = graph.add_input("w", DType::F16, [4, 2, 3, 3]);
        let turned = graph.add(PrimOp::Transpose { perm: vec![1, 0, 2, 3] }, &[given]).unwrap();
        let reversed =
            PrimOp::Slice { starts: vec![0, 0, 2, 2], steps: vec![1, 1, -1, -1], sizes: vec![2, 4, 3, 3] };
        let weights = graph.add(reversed, &[turned]).unwrap();
        let spec = ConvSpec { window: square(3, 1, 1), groups: 1 };
        let y = graph.add(PrimOp::Conv(spec), &[x, weights]).unwrap();
        graph.add_output("y", y);
        let layouts = assign_gpu(&graph);
        assert_eq!(layouts[weights.index()], Layout::channels_last(4));
        assert!(layouts[given.index()].is_row_major());
    }

    #[test]
    fn tokens_after_a_convolution_are_views() {
        let mut graph = PrimGraph::new("patch");
        let x = graph.add_input("x", DType::F32, [1, 3, 8, 8]);
        let w = graph.add_input("w", DType::F32, [16, 3, 2, 2]);
        let window = square(2, 2, 0);
        let conv = graph.add(PrimOp::Conv(ConvSpec { window, groups: 1 }), &[x, w]).unwrap();
        let flat = graph.add(PrimOp::Reshape { shape: [1, 16, 16].into() }, &[conv]).unwrap();
        let tokens = graph.add(PrimOp::Transpose { perm: vec![0, 2, 1] }, &[flat]).unwrap();
        let sum = graph.add(PrimOp::Map(orch_ir::ScalarFn::Unary(orch_ir::UnaryFn::Neg)), &[tokens]).unwrap();
        graph.add_output("y", sum);
        let layouts = assign(&graph);
        for tensor in [flat, tokens] {
            let node = graph.producer(tensor).unwrap();
            assert!(is_view(&graph, graph.node(node), &layouts), "{tensor}");
        }
        assert!(layouts[tokens.index()].same_bytes(&Layout::row_major(3), graph.shape(tokens)));
    }
}
