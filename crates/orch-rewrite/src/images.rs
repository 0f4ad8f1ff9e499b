//! Copies between images whose channels lie plane after plane, as models take and return them, and convolutions, which run on
//! channels side by side.

use crate::prepare::with_copies;
use orch_ir::{ConvSpec, NodeId, PrimGraph, PrimNode, PrimOp, ScalarFn, TensorId};
use std::collections::BTreeMap;

/// The graph in which convolutions of at least `channels` channels to as many maps, and those of each of so many channels by itself
/// (depthwise), read copies of planar images, and planar outputs that the former compute, or both read, are copies: the images of convolutions
/// are free to have channels last. Whether that pays is for the choice of kernels, which may fuse a copy with the convolution: it then reads,
/// or stores, planes.
///
/// `is_planar` says of which tensors each channel is a plane in memory.
pub fn stage_images(graph: &PrimGraph, channels: usize, is_planar: impl Fn(TensorId) -> bool) -> PrimGraph {
    let is_wide = |id: NodeId| is_wide_convolution(graph, graph.node(id), channels);
    let is_read = |id: NodeId, image: TensorId| {
        let node = graph.node(id);
        let is_staged = is_wide(id) || depthwise_channels(graph, node).is_some_and(|own| own >= channels);
        is_staged && node.inputs[0] == image && node.inputs[1] != image
    };
    let consumers = graph.consumers();
    let is_staged_output = |image: TensorId| {
        let is_output = graph.outputs.iter().any(|&(_, output)| output == image);
        let is_of_convolution = |producer: NodeId| {
            is_wide(producer) || consumers[image.index()].iter().any(|&reader| is_read(reader, image))
        };
        is_output && is_planar(image) && graph.producer(image).is_some_and(is_of_convolution)
    };
    let mut staged = with_copies(
        graph,
        |id, input| is_read(id, input) && is_planar(input) && !is_staged_output(input),
        |result, _, given| copied(result, given),
    );
    let computed = std::mem::take(&mut staged.outputs);
    let mut copies: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for (&(_, before), (name, tensor)) in graph.outputs.iter().zip(computed) {
        let output = if is_staged_output(before) {
            *copies.entry(tensor).or_insert_with(|| copied(&mut staged, tensor))
        } else {
            tensor
        };
        staged.add_output(name, output);
    }
    staged
}

/// The graph in which convolutions of each channel by itself (depthwise) read copies of weights that are no constants, which are free to have
/// channels side by side. Whether that pays is for the choice of kernels.
pub fn stage_depthwise_weights(graph: &PrimGraph) -> PrimGraph {
    let is_staged = |id: NodeId, weights: TensorId| {
        let node = graph.node(id);
        depthwise_channels(graph, node).is_some()
            && node.inputs[1] == weights
            && node.inputs[0] != weights
            && graph.shape(weights)[2..].iter().product::<usize>() > 1
            && graph.constant(weights).is_none()
    };
    with_copies(graph, is_staged, |result, _, given| copied(result, given))
}

/// True for a convolution in one group, from and to so many channels at least.
fn is_wide_convolution(graph: &PrimGraph, node: &PrimNode, channels: usize) -> bool {
    let PrimOp::Conv(ConvSpec { groups: 1, .. }) = node.op else { return false };
    [node.inputs[0], node.outputs[0]].into_iter().all(|image| graph.shape(image)[1] >= channels)
}

/// The channels of a convolution of each of several channels by itself; `None` of other nodes.
fn depthwise_channels(graph: &PrimGraph, node: &PrimNode) -> Option<usize> {
    let PrimOp::Conv(ConvSpec { groups, .. }) = node.op else { return None };
    (groups > 1 && groups == graph.shape(node.inputs[0])[1]).then_some(groups)
}

/// The same elements in a tensor of their own.
pub(crate) fn copied(graph: &mut PrimGraph, tensor: TensorId) -> TensorId {
    let same = PrimOp::Map(ScalarFn::Cast(graph.dtype(tensor)));
    graph.add(same, &[tensor]).expect("a tensor of a type is one of that type")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::tests::values;
    use orch_interp::{EvalOptions, evaluate};
    use orch_ir::{DType, Window};

    /// A convolution from and to so many channels, in so many groups, of an image, with constant weights.
    fn conv(graph: &mut PrimGraph, image: TensorId, channels: [usize; 2], groups: usize) -> TensorId {
        let weights = graph.add_constant(values(&[channels[1], channels[0] / groups, 3, 3], channels[1]));
        conv_by(graph, image, weights, groups)
    }

    /// A convolution of an image by weights of 3 x 3, in so many groups.
    fn conv_by(graph: &mut PrimGraph, image: TensorId, weights: TensorId, groups: usize) -> TensorId {
        let window = Window {
            kernel: vec![3; 2],
            strides: vec![1; 2],
            dilations: vec![1; 2],
            low: vec![1; 2],
            high: vec![1; 2],
        };
        graph.add(PrimOp::Conv(ConvSpec { window, groups }), &[image, weights]).unwrap()
    }

    /// What is copied: inputs, results of convolutions, others.
    fn copies(graph: &PrimGraph) -> Vec<&'static str> {
        let is_copy = |node: &&PrimNode| matches!(node.op, PrimOp::Map(ScalarFn::Cast(_)));
        let copied = graph.nodes().iter().filter(is_copy).map(|node| node.inputs[0]);
        copied
            .map(|tensor| match graph.producer(tensor).map(|producer| &graph.node(producer).op) {
                None => "input",
                Some(PrimOp::Conv(_)) => "convolution",
                Some(_) => "other",
            })
            .collect()
    }

    fn assert_same_results(graph: &PrimGraph, staged: &PrimGraph, shape: &[usize]) {
        let inputs = [values(shape, 3)];
        let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
        let (expected, given) = (results(graph), results(staged));
        assert_eq!(expected.len(), given.len());
        for (expected, given) in expected.iter().zip(given) {
            assert_eq!(expected.to_f64(), given.to_f64());
        }
    }

    #[test]
    fn a_planar_input_and_an_output_are_copied_once() {
        let mut graph = PrimGraph::new("two of one image");
        let x = graph.add_input("x", DType::F32, vec![1, 4, 5, 6]);
        for number in 0..2 {
            let y = conv(&mut graph, x, [4, 4 + number], 1);
            graph.add_output(format!("y{number}"), y);
        }
        let staged = stage_images(&graph, 4, |_| true);
        assert_eq!(copies(&staged), ["input", "convolution", "convolution"]);
        assert_same_results(&graph, &staged, &[1, 4, 5, 6]);
        assert!(copies(&stage_images(&graph, 4, |_| false)).is_empty());
    }

    #[test]
    fn depthwise_weights_are_copied_unless_they_are_constants() {
        for (groups, is_constant, copied) in [(4, false, 1), (4, true, 0), (2, false, 0)] {
            let mut graph = PrimGraph::new("depthwise");
            let x = graph.add_input("x", DType::F32, vec![1, 4, 5, 6]);
            let y = match is_constant {
                true => conv(&mut graph, x, [4, 4], groups),
                false => {
                    let w = graph.add_input("w", DType::F32, vec![4, 4 / groups, 3, 3]);
                    conv_by(&mut graph, x, w, groups)
                }
            };
            graph.add_output("y", y);
            let staged = stage_depthwise_weights(&graph);
            assert_eq!(copies(&staged).len(), copied, "{groups} groups, constant {is_constant}");
            let mut inputs = vec![values(&[1, 4, 5, 6], 3)];
            inputs.extend((!is_constant).then(|| values(&[4, 4 / groups, 3, 3], 5)));
            let results = |graph| evaluate(graph, &inputs, &EvalOptions::default()).unwrap();
            assert_eq!(results(&graph)[0].to_f64(), results(&staged)[0].to_f64());
        }
    }

    #[test]
    fn few_channels_and_groups_of_several_stay() {
        for (channels, groups) in [([4, 2], 1), ([2, 4], 1), ([4, 4], 2), ([2, 2], 2)] {
            let mut graph = PrimGraph::new("one");
            let x = graph.add_input("x", DType::F32, vec![1, channels[0], 5, 6]);
            let y = conv(&mut graph, x, channels, groups);
            graph.add_output("y", y);
            assert!(copies(&stage_images(&graph, 3, |_| true)).is_empty(), "{channels:?} {groups}");
        }
    }

    #[test]
    fn images_of_depthwise_convolutions_are_copied_and_their_results_are_not() {
        let mut graph = PrimGraph::new("depthwise");
        let x = graph.add_input("x", DType::F32, vec![1, 4, 5, 6]);
        let y = conv(&mut graph, x, [4, 4], 4);
        graph.add_output("y", y);
        let staged = stage_images(&graph, 3, |_| true);
        assert_eq!(copies(&staged), ["input"]);
        assert_same_results(&graph, &staged, &[1, 4, 5, 6]);
    }

    /// What is an output and read on: the convolution reads what was computed, and the output is the copy.
    #[test]
    fn outputs_that_convolutions_read_are_copied() {
        let mut graph = PrimGraph::new("levels");
        let x = graph.add_input("x", DType::F32, vec![1, 1, 5, 6]);
        let first = conv(&mut graph, x, [1, 4], 1);
        let level = graph.add(PrimOp::Map(ScalarFn::Unary(orch_ir::UnaryFn::Neg)), &[first]).unwrap();
        graph.add_output("level", level);
        let y = conv(&mut graph, level, [4, 4], 1);
        graph.add_output("y", y);
        let staged = stage_images(&graph, 4, |_| true);
        assert_eq!(copies(&staged), ["other", "convolution"]);
        let last = staged.nodes().iter().rfind(|node| matches!(node.op, PrimOp::Conv(_))).unwrap();
        assert!(staged.outputs.iter().all(|&(_, output)| output != last.inputs[0]));
        assert_same_results(&graph, &staged, &[1, 1, 5, 6]);
    }
}
