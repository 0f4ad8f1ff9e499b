//! The abstract program that candidates are grown on: nodes that read and write tensors, and for each node the few
//! facts that decide which kernels can hold it.
//!
//! It knows no operator, shape or cost. Ids are those of the primitive graph, so a caller fills a [`Dag`] by
//! walking its nodes once. A tensor that no node produces is a *source* (graph input or constant) and is always
//! available.
//!
//! Invariants, checked by [`Dag::new`]:
//! 1. every tensor id is below the number of tensors;
//! 2. a tensor has at most one producer;
//! 3. a node stands after the producers of what it reads (so a [`NodeId`] order is a topological order);
//! 4. a node has at least one output.

use fixedbitset::FixedBitSet;
use orch_ir::{NodeId, TensorId};

/// What decides which kernels can hold a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NodeKind {
    /// Each output element reads a bounded number of input elements (elementwise, layout, broadcast).
    Injective,
    /// Each output element reads many input elements, without data reuse (reductions, pooling).
    Reduce,
    /// The contraction or convolution that a kernel's schedule is built around.
    Anchor,
    /// A routine that is a kernel by itself.
    Opaque,
}

impl NodeKind {
    /// All kinds, in the order of their discriminants.
    pub const ALL: [NodeKind; 4] =
        [NodeKind::Injective, NodeKind::Reduce, NodeKind::Anchor, NodeKind::Opaque];
}

/// A node of a [`Dag`].
#[derive(Clone, PartialEq, Debug)]
pub struct DagNode {
    /// What decides which kernels can hold it.
    pub kind: NodeKind,
    /// May run again inside a kernel to spare its tensors the way through memory.
    pub is_cheap: bool,
    /// Tensors read; repetitions are allowed.
    pub inputs: Vec<TensorId>,
    /// Tensors written, at least one.
    pub outputs: Vec<TensorId>,
}

/// A directed acyclic graph of nodes and tensors.
#[derive(Clone, Debug)]
pub struct Dag {
    nodes: Vec<DagNode>,
    outputs: Vec<TensorId>,
    is_output: FixedBitSet,
    producer: Vec<Option<NodeId>>,
    consumers: Vec<Vec<NodeId>>,
    predecessors: Vec<Vec<NodeId>>,
    successors: Vec<Vec<NodeId>>,
}

/// Why nodes and tensors are not a [`Dag`]. Each names the offender: these are bugs of the caller.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant documents its fields")]
pub enum DagError {
    /// Invariant 1.
    #[error("{tensor} does not exist: the graph has {tensors} tensors")]
    UnknownTensor { tensor: TensorId, tensors: usize },
    /// Invariant 2.
    #[error("{tensor} is produced by {first} and again by {second}")]
    ProducedTwice { tensor: TensorId, first: NodeId, second: NodeId },
    /// Invariant 3.
    #[error("{node} reads {tensor}, which the later {producer} produces: nodes must be in topological order")]
    NotTopological { node: NodeId, tensor: TensorId, producer: NodeId },
    /// Invariant 4.
    #[error("{node} has no outputs")]
    NoOutputs { node: NodeId },
}

impl Dag {
    /// A graph of `tensors` tensors, of which `outputs` must be produced (an output may be a source).
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn new(tensors: usize, nodes: Vec<DagNode>, outputs: Vec<TensorId>) -> Result<Self, DagError> {
        let producer = producers(tensors, &nodes)?;
        let mut dag = Dag {
            is_output: FixedBitSet::with_capacity(tensors),
            consumers: vec![Vec::new(); tensors],
            predecessors: Vec::with_capacity(nodes.len()),
            successors: vec![Vec::new(); nodes.len()],
            nodes,
            outputs,
            producer,
        };
        for &tensor in &dag.outputs {
            check_tensor(tensor, tensors)?;
            dag.is_output.insert(tensor.index());
        }
        for index in 0..dag.nodes.len() {
            dag.connect(NodeId::new(index))?;
        }
        Ok(dag)
    }

    /// Records who reads what `node` reads.
    fn connect(&mut self, node: NodeId) -> Result<(), DagError> {
        let mut predecessors = Vec::new();
        for &tensor in &self.nodes[node.index()].inputs {
            check_tensor(tensor, self.producer.len())?;
            if self.consumers[tensor.index()].last() != Some(&node) {
                self.consumers[tensor.index()].push(node);
            }
            match self.producer[tensor.index()] {
                Some(producer) if producer >= node => {
                    return Err(DagError::NotTopological { node, tensor, producer });
                }
                Some(producer) => predecessors.push(producer),
                None => {}
            }
        }
        predecessors.sort_unstable();
        predecessors.dedup();
        for predecessor in &predecessors {
            self.successors[predecessor.index()].push(node);
        }
        self.predecessors.push(predecessors);
        Ok(())
    }

    /// All nodes in topological order; a [`NodeId`] is a position here.
    pub fn nodes(&self) -> &[DagNode] {
        &self.nodes
    }

    /// Node ids in topological order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + use<> {
        (0..self.nodes.len()).map(NodeId::new)
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &DagNode {
        &self.nodes[id.index()]
    }

    /// The number of tensors, sources included.
    pub fn tensor_count(&self) -> usize {
        self.producer.len()
    }

    /// The tensors that every plan must leave behind.
    pub fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }

    /// True for the tensors of [`Dag::outputs`].
    pub fn is_output(&self, tensor: TensorId) -> bool {
        self.is_output.contains(tensor.index())
    }

    /// The node that writes a tensor; `None` for sources.
    pub fn producer(&self, tensor: TensorId) -> Option<NodeId> {
        self.producer[tensor.index()]
    }

    /// The nodes that read a tensor, ascending, each once.
    pub fn consumers(&self, tensor: TensorId) -> &[NodeId] {
        &self.consumers[tensor.index()]
    }

    /// The nodes that a node reads from, ascending, each once.
    pub fn predecessors(&self, node: NodeId) -> &[NodeId] {
        &self.predecessors[node.index()]
    }

    /// The nodes that read from a node, ascending, each once.
    pub fn successors(&self, node: NodeId) -> &[NodeId] {
        &self.successors[node.index()]
    }

    /// True if a tensor is an output of the graph, or read by a node that is not among `nodes`, which ascend.
    pub fn escapes(&self, tensor: TensorId, nodes: &[NodeId]) -> bool {
        self.is_output(tensor) || self.consumers(tensor).iter().any(|node| nodes.binary_search(node).is_err())
    }

    /// True if a graph output is among the node's results.
    pub fn writes_output(&self, node: NodeId) -> bool {
        self.node(node).outputs.iter().any(|&tensor| self.is_output(tensor))
    }

    /// The part of the graph between a cut and some tensors: what must run to make `outputs` when `sources` are
    /// given. Tensor ids stay; nodes are renumbered, and the second value names each one's original.
    pub fn between(&self, sources: &[TensorId], outputs: &[TensorId]) -> (Dag, Vec<NodeId>) {
        let mut needed = FixedBitSet::with_capacity(self.nodes.len());
        let mut pending: Vec<TensorId> = outputs.to_vec();
        while let Some(tensor) = pending.pop() {
            let producer = self.producer(tensor).filter(|_| !sources.contains(&tensor));
            if let Some(node) = producer
                && !needed.put(node.index())
            {
                pending.extend(&self.node(node).inputs);
            }
        }
        let originals: Vec<NodeId> = needed.ones().map(NodeId::new).collect();
        let nodes = originals.iter().map(|&node| self.node(node).clone()).collect();
        let part = Dag::new(self.tensor_count(), nodes, outputs.to_vec())
            .expect("a subsequence of a topological order is one");
        (part, originals)
    }
}

fn check_tensor(tensor: TensorId, tensors: usize) -> Result<(), DagError> {
    if tensor.index() < tensors { Ok(()) } else { Err(DagError::UnknownTensor { tensor, tensors }) }
}

fn producers(tensors: usize, nodes: &[DagNode]) -> Result<Vec<Option<NodeId>>, DagError> {
    let mut producer: Vec<Option<NodeId>> = vec![None; tensors];
    for (index, node) in nodes.iter().enumerate() {
        let second = NodeId::new(index);
        if node.outputs.is_empty() {
            return Err(DagError::NoOutputs { node: second });
        }
        for &tensor in &node.outputs {
            check_tensor(tensor, tensors)?;
            if let Some(first) = producer[tensor.index()].replace(second) {
                return Err(DagError::ProducedTwice { tensor, first, second });
            }
        }
    }
    Ok(producer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(inputs: &[u32], outputs: &[u32]) -> DagNode {
        let ids = |list: &[u32]| list.iter().map(|&id| TensorId(id)).collect();
        DagNode { kind: NodeKind::Injective, is_cheap: true, inputs: ids(inputs), outputs: ids(outputs) }
    }

    #[test]
    fn edges_are_sorted_and_without_repetition() {
        let nodes = vec![node(&[0], &[1, 2]), node(&[1, 2, 1], &[3]), node(&[1, 3], &[4])];
        let dag = Dag::new(5, nodes, vec![TensorId(4)]).unwrap();
        assert_eq!(dag.predecessors(NodeId(2)), [NodeId(0), NodeId(1)]);
        assert_eq!(dag.successors(NodeId(0)), [NodeId(1), NodeId(2)]);
        assert_eq!(dag.consumers(TensorId(1)), [NodeId(1), NodeId(2)]);
        assert_eq!(dag.producer(TensorId(0)), None);
        assert!(dag.writes_output(NodeId(2)) && !dag.writes_output(NodeId(1)));
    }

    #[test]
    fn every_invariant_is_checked() {
        let refused = |nodes, outputs: &[u32]| {
            Dag::new(3, nodes, outputs.iter().map(|&id| TensorId(id)).collect()).unwrap_err().to_string()
        };
        assert_eq!(refused(vec![node(&[0], &[7])], &[]), "t7 does not exist: the graph has 3 tensors");
        assert_eq!(refused(vec![node(&[9], &[1])], &[]), "t9 does not exist: the graph has 3 tensors");
        assert_eq!(refused(vec![], &[3]), "t3 does not exist: the graph has 3 tensors");
        let twice = vec![node(&[0], &[1]), node(&[0], &[1])];
        assert_eq!(refused(twice, &[]), "t1 is produced by n0 and again by n1");
        let backward = vec![node(&[1], &[2]), node(&[0], &[1])];
        assert!(refused(backward, &[]).starts_with("n0 reads t1, which the later n1 produces"));
        assert!(refused(vec![node(&[1], &[1])], &[]).starts_with("n0 reads t1, which the later n0"));
        assert_eq!(refused(vec![node(&[0], &[])], &[]), "n0 has no outputs");
    }

    #[test]
    fn between_stops_at_the_cut() {
        let nodes = vec![node(&[0], &[1]), node(&[1], &[2]), node(&[1], &[3]), node(&[2, 3], &[4])];
        let dag = Dag::new(5, nodes, vec![TensorId(4)]).unwrap();
        let (part, originals) = dag.between(&[TensorId(1)], &[TensorId(3)]);
        assert_eq!(originals, [NodeId(2)]);
        assert_eq!(part.outputs(), [TensorId(3)]);
        let (part, originals) = dag.between(&[TensorId(2)], &[TensorId(4)]);
        assert_eq!(originals, [NodeId(0), NodeId(2), NodeId(3)]);
        assert_eq!(part.producer(TensorId(4)), Some(NodeId(2)));
    }
}
