//! A primitive graph without its free primitives, which every reader computes again.

use orch_ir::{NodeId, PrimGraph, TensorId};
use std::collections::BTreeSet;

/// What primitives that are not free read of each other.
pub struct Wiring<'a> {
    graph: &'a PrimGraph,
    free: &'a [bool],
    /// Of each primitive that is not free the tensors that it reads, through free primitives.
    sources: Vec<Vec<TensorId>>,
    /// Of each primitive those that read its results.
    readers: Vec<Vec<NodeId>>,
}

impl<'a> Wiring<'a> {
    /// The wiring of a graph, with a flag for each primitive that is free.
    pub fn of(graph: &'a PrimGraph, free: &'a [bool]) -> Self {
        let mut sources = vec![Vec::new(); graph.nodes().len()];
        let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.nodes().len()];
        for node in graph.node_ids().filter(|node| !free[node.index()]) {
            let inputs = graph.node(node).inputs.iter();
            let read: BTreeSet<TensorId> = inputs.filter_map(|&input| source(graph, free, input)).collect();
            for before in read.iter().filter_map(|&tensor| graph.producer(tensor)) {
                readers[before.index()].push(node);
            }
            sources[node.index()] = read.into_iter().collect();
        }
        Self { graph, free, sources, readers }
    }

    /// Whether a primitive is free.
    pub fn is_free(&self, node: NodeId) -> bool {
        self.free[node.index()]
    }

    /// The primitive that makes what a tensor is made of through free ones.
    pub fn maker(&self, tensor: TensorId) -> Option<NodeId> {
        source(self.graph, self.free, tensor).and_then(|source| self.graph.producer(source))
    }

    /// The tensors that a primitive reads, through free ones.
    pub fn sources(&self, node: NodeId) -> &[TensorId] {
        &self.sources[node.index()]
    }

    /// The primitives that make what a primitive reads, through free ones.
    pub fn before(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.sources[node.index()].iter().filter_map(|&tensor| self.graph.producer(tensor))
    }

    /// The primitives that read what a primitive makes, through free ones.
    pub fn readers(&self, node: NodeId) -> &[NodeId] {
        &self.readers[node.index()]
    }

    /// Whether a primitive makes an output of the graph.
    pub fn writes_output(&self, node: NodeId) -> bool {
        let made = &self.graph.node(node).outputs;
        self.graph.outputs.iter().any(|(_, output)| made.contains(output))
    }

    /// Whether others than a set, ascending, read what a primitive makes.
    pub fn escapes(&self, node: NodeId, set: &[NodeId]) -> bool {
        let is_other = |reader: &NodeId| set.binary_search(reader).is_err();
        self.writes_output(node) || self.readers[node.index()].iter().any(is_other)
    }
}

/// The stored tensor that a tensor is made of through free primitives, which have one operand each at most; `None` if it
/// is made of nothing.
fn source(graph: &PrimGraph, free: &[bool], mut tensor: TensorId) -> Option<TensorId> {
    while let Some(node) = graph.producer(tensor).filter(|node| free[node.index()]) {
        tensor = *graph.node(node).inputs.first()?;
    }
    Some(tensor)
}
