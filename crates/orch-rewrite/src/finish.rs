//! From a draft back to a primitive graph: live nodes in topological order, as near as possible to the original one.

use crate::draft::Draft;
use orch_ir::{NodeId, PrimGraph, TensorId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

impl Draft {
    /// The graph. All inputs stay; constants that nobody reads go.
    pub(crate) fn finish(&self) -> PrimGraph {
        let mut graph = PrimGraph::new(&self.name);
        let mut renamed: BTreeMap<TensorId, TensorId> = BTreeMap::new();
        for (name, id) in &self.inputs {
            let tensor = &self.tensors[id.index()];
            renamed.insert(*id, graph.add_input(name, tensor.dtype, tensor.shape.clone()));
        }
        for (index, tensor) in self.tensors.iter().enumerate() {
            let id = TensorId::new(index);
            if let Some(value) = tensor.value.as_ref().filter(|_| self.uses(id) > 0) {
                renamed.insert(id, graph.add_constant(value.clone()));
            }
        }
        let mut current = None;
        for id in self.order() {
            let node = &self.nodes[id.index()];
            if current != Some(&node.origin) {
                graph.set_origin(node.origin.as_ref());
                current = Some(&node.origin);
            }
            let inputs = node.inputs.iter().map(|input| renamed[input]).collect();
            let outputs =
                graph.add_node((*node.op).clone(), inputs).expect("inference accepted the node in the draft");
            renamed.extend(node.outputs.iter().copied().zip(outputs));
        }
        for (name, output) in &self.outputs {
            graph.add_output(name, renamed[output]);
        }
        graph
    }

    /// Live nodes, each after those it reads; among those that are ready the one that stood first comes first.
    pub(crate) fn order(&self) -> Vec<NodeId> {
        let producer_of = |input: &TensorId| self.tensors[input.index()].producer;
        let mut waiting_for: Vec<usize> =
            self.nodes.iter().map(|node| node.inputs.iter().filter_map(producer_of).count()).collect();
        let mut ready: BinaryHeap<Reverse<(u32, NodeId)>> = BinaryHeap::new();
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.live) {
            if waiting_for[index] == 0 {
                ready.push(Reverse((node.rank, NodeId::new(index))));
            }
        }
        let mut order = Vec::new();
        while let Some(Reverse((_, id))) = ready.pop() {
            order.push(id);
            let outputs = &self.nodes[id.index()].outputs;
            for &reader in outputs.iter().flat_map(|output| &self.tensors[output.index()].readers) {
                waiting_for[reader.index()] -= 1;
                if waiting_for[reader.index()] == 0 {
                    ready.push(Reverse((self.nodes[reader.index()].rank, reader)));
                }
            }
        }
        order
    }
}
