//! Drops nodes and constants that no output needs.

use orch_ir::{PrimGraph, TensorId};
use std::collections::BTreeMap;

/// The same graph without dead nodes and constants; all inputs stay.
pub(crate) fn prune(graph: &PrimGraph) -> PrimGraph {
    let live = live_tensors(graph);
    let mut pruned = PrimGraph::new(&graph.name);
    let mut renamed: BTreeMap<TensorId, TensorId> = BTreeMap::new();
    for (name, input) in &graph.inputs {
        let info = graph.tensor(*input);
        renamed.insert(*input, pruned.add_input(name, info.dtype, info.shape.clone()));
    }
    for (&id, value) in graph.constants().iter().filter(|(id, _)| live[id.index()]) {
        renamed.insert(id, pruned.add_constant(value.clone()));
    }
    let mut origin = None;
    for id in graph.node_ids() {
        let node = graph.node(id);
        if !node.outputs.iter().any(|output| live[output.index()]) {
            continue;
        }
        if origin != Some(node.origin) {
            pruned.set_origin(graph.origin(id));
            origin = Some(node.origin);
        }
        let inputs = node.inputs.iter().map(|input| renamed[input]).collect();
        let outputs = (pruned.add_node(node.op.clone(), inputs)).expect("it was added to the original graph");
        renamed.extend(node.outputs.iter().copied().zip(outputs));
    }
    for (name, output) in &graph.outputs {
        pruned.add_output(name, renamed[output]);
    }
    pruned
}

/// For each tensor, whether an output depends on it.
fn live_tensors(graph: &PrimGraph) -> Vec<bool> {
    let mut live = vec![false; graph.tensors().len()];
    for (_, output) in &graph.outputs {
        live[output.index()] = true;
    }
    for node in graph.nodes().iter().rev() {
        if node.outputs.iter().any(|output| live[output.index()]) {
            for input in &node.inputs {
                live[input.index()] = true;
            }
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_ir::{DType, PrimOp, ScalarFn, Tensor, UnaryFn};

    #[test]
    fn dead_nodes_go_and_inputs_stay() {
        let mut graph = PrimGraph::new("g");
        let x = graph.add_input("x", DType::F32, [2]);
        graph.add_input("unused", DType::F32, [2]);
        let dead = graph.add_constant(Tensor::scalar(1.0f32));
        graph.set_origin("a");
        graph.add(PrimOp::Reshape { shape: [1].into() }, &[dead]).expect("one element");
        graph.set_origin("b");
        let y = graph.add(PrimOp::Map(ScalarFn::Unary(UnaryFn::Neg)), &[x]).expect("floats");
        graph.add_output("y", y);
        let pruned = prune(&graph);
        assert_eq!((pruned.nodes().len(), pruned.inputs.len(), pruned.constants().len()), (1, 2, 0));
        assert_eq!(pruned.origin(pruned.producer(pruned.outputs[0].1).expect("a node")), "b");
    }
}
