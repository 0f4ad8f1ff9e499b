//! A primitive graph while it is rewritten: nodes can be added and replaced, uses are exact at all times.
//!
//! Invariants: every live node has a use; no two live nodes are equal (same primitive on the same operands; the
//! operands of commutative functions count as a set); what depends on constants alone is a constant if it is worth
//! storing (see [`fold`](crate::fold)).

use crate::RewriteOptions;
use bytes::Bytes;
use orch_ir::infer::infer;
use orch_ir::{DType, NodeId, PrimGraph, PrimOp, ScalarFn, Shape, Tensor, TensorId};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// A graph under change.
pub(crate) struct Draft {
    pub(crate) name: String,
    pub(crate) tensors: Vec<DraftTensor>,
    pub(crate) nodes: Vec<DraftNode>,
    pub(crate) inputs: Vec<(String, TensorId)>,
    pub(crate) outputs: Vec<(String, TensorId)>,
    /// Live nodes by operands: those with equal operands may be equal.
    by_operands: BTreeMap<Vec<TensorId>, Vec<NodeId>>,
    /// Constants by type and elements.
    by_value: BTreeMap<(DType, Shape, Bytes), TensorId>,
    /// Nodes that rules have not seen since their surroundings changed, in topological order of the original graph.
    pub(crate) worklist: BTreeSet<(u32, NodeId)>,
    pub(crate) fold_limit_bytes: usize,
    pub(crate) merged: usize,
    pub(crate) folded: usize,
}

/// A tensor of a [`Draft`].
pub(crate) struct DraftTensor {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// The node that computes it, and which of its results it is.
    pub(crate) producer: Option<NodeId>,
    /// The value of a constant.
    pub(crate) value: Option<Tensor>,
    /// If it depends on constants alone: the bytes of those constants.
    pub(crate) source_bytes: Option<usize>,
    /// Its value, once that was evaluated for a question.
    pub(crate) evaluated: OnceCell<Tensor>,
    /// The nodes that read it, once per operand.
    pub(crate) readers: Vec<NodeId>,
    /// How many graph outputs it is.
    pub(crate) exports: usize,
}

/// A node of a [`Draft`].
pub(crate) struct DraftNode {
    pub(crate) op: Rc<PrimOp>,
    pub(crate) inputs: Rc<[TensorId]>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) origin: Rc<str>,
    /// Position in the original graph of the node it is, or replaces (part of).
    pub(crate) rank: u32,
    pub(crate) live: bool,
}

/// How much larger than the constants they come from stored results may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Folding {
    /// Little.
    Thrifty,
    /// Up to the limit.
    Generous,
}

/// Where a new node comes from.
#[derive(Clone)]
pub(crate) struct Provenance {
    pub(crate) origin: Rc<str>,
    pub(crate) rank: u32,
}

impl Draft {
    /// The graph without duplicates, foldable constants and dead nodes.
    pub(crate) fn new(graph: &PrimGraph, options: &RewriteOptions) -> Self {
        let mut draft = Self {
            name: graph.name.clone(),
            tensors: Vec::new(),
            nodes: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            by_operands: BTreeMap::new(),
            by_value: BTreeMap::new(),
            worklist: BTreeSet::new(),
            fold_limit_bytes: options.fold_limit_bytes,
            merged: 0,
            folded: 0,
        };
        let mut renamed: BTreeMap<TensorId, TensorId> = BTreeMap::new();
        for (name, input) in &graph.inputs {
            let info = graph.tensor(*input);
            let id = draft.add_tensor(info.dtype, info.shape.clone(), None);
            renamed.insert(*input, id);
            draft.inputs.push((name.clone(), id));
        }
        for (&id, value) in graph.constants() {
            renamed.insert(id, draft.constant(value.clone()));
        }
        let live = live_nodes(graph);
        for id in graph.node_ids().filter(|id| live[id.index()]) {
            let node = graph.node(id);
            let inputs: Vec<TensorId> = node.inputs.iter().map(|input| renamed[input]).collect();
            let provenance = Provenance { origin: graph.origin(id).into(), rank: id.0 };
            let (nodes, folded) = (draft.nodes.len(), draft.folded);
            let outputs = draft
                .add(Rc::new(node.op.clone()), &inputs, &provenance)
                .expect("inference accepted the node in the original graph");
            draft.merged += usize::from(draft.nodes.len() == nodes && draft.folded == folded);
            renamed.extend(node.outputs.iter().copied().zip(outputs));
        }
        for (name, output) in &graph.outputs {
            let id = renamed[output];
            draft.tensors[id.index()].exports += 1;
            draft.outputs.push((name.clone(), id));
        }
        draft.sweep(0);
        draft.requeue_all();
        draft
    }

    /// Adds a constant, or finds an equal one.
    pub(crate) fn constant(&mut self, value: Tensor) -> TensorId {
        let key = (value.dtype(), value.shape().clone(), value.bytes().clone());
        if let Some(&id) = self.by_value.get(&key) {
            return id;
        }
        let id = self.add_tensor(value.dtype(), value.shape().clone(), None);
        let tensor = &mut self.tensors[id.index()];
        tensor.source_bytes = Some(value.bytes().len());
        tensor.value = Some(value);
        self.by_value.insert(key, id);
        id
    }

    /// The results of a primitive: of an equal node, evaluated, or of a new node. `None` if the operands do not suit.
    pub(crate) fn add(
        &mut self,
        op: Rc<PrimOp>,
        inputs: &[TensorId],
        provenance: &Provenance,
    ) -> Option<Vec<TensorId>> {
        self.add_as(op, inputs, provenance, Folding::Thrifty)
    }

    /// [`Draft::add`], where what depends on constants alone is stored even if it is much larger than they are.
    pub(crate) fn add_folding(
        &mut self,
        op: Rc<PrimOp>,
        inputs: &[TensorId],
        provenance: &Provenance,
    ) -> Option<Vec<TensorId>> {
        self.add_as(op, inputs, provenance, Folding::Generous)
    }

    fn add_as(
        &mut self,
        op: Rc<PrimOp>,
        inputs: &[TensorId],
        provenance: &Provenance,
        folding: Folding,
    ) -> Option<Vec<TensorId>> {
        let types: Vec<(DType, &Shape)> = inputs
            .iter()
            .map(|id| &self.tensors[id.index()])
            .map(|tensor| (tensor.dtype, &tensor.shape))
            .collect();
        let results = infer(&op, &types).ok()?;
        if let Some(equal) = self.find_equal(&op, inputs) {
            return Some(self.nodes[equal.index()].outputs.clone());
        }
        let source_bytes = self.source_bytes(&op, inputs);
        let growth = match folding {
            Folding::Thrifty => source_bytes,
            Folding::Generous => source_bytes.map(|_| self.fold_limit_bytes),
        };
        if let Some(values) = growth.and_then(|bytes| self.fold(&op, inputs, &results, bytes)) {
            self.folded += 1;
            return Some(values.into_iter().map(|value| self.constant(value)).collect());
        }
        let node = NodeId::new(self.nodes.len());
        let outputs: Vec<TensorId> =
            results.into_iter().map(|(dtype, shape)| self.add_tensor(dtype, shape, Some(node))).collect();
        for output in &outputs {
            self.tensors[output.index()].source_bytes = source_bytes;
        }
        self.nodes.push(DraftNode {
            op,
            inputs: inputs.into(),
            outputs: outputs.clone(),
            origin: provenance.origin.clone(),
            rank: provenance.rank,
            live: true,
        });
        for input in inputs {
            self.tensors[input.index()].readers.push(node);
        }
        self.index(node);
        self.worklist.insert((provenance.rank, node));
        Some(outputs)
    }

    /// Makes every reader of `old` read `new`, which has the same type, and drops what nobody reads any more.
    pub(crate) fn replace(&mut self, old: TensorId, new: TensorId) {
        let exports = std::mem::take(&mut self.tensors[old.index()].exports);
        self.tensors[new.index()].exports += exports;
        for (_, output) in self.outputs.iter_mut().filter(|(_, output)| *output == old) {
            *output = new;
        }
        let mut readers = std::mem::take(&mut self.tensors[old.index()].readers);
        self.tensors[new.index()].readers.extend(&readers);
        readers.sort_unstable();
        readers.dedup();
        for reader in readers {
            self.unindex(reader);
            let node = &mut self.nodes[reader.index()];
            node.inputs = node.inputs.iter().map(|&input| if input == old { new } else { input }).collect();
            let rank = node.rank;
            self.index(reader);
            self.worklist.insert((rank, reader));
        }
        if let Some(producer) = self.tensors[old.index()].producer {
            for node in self.drop_if_dead(producer) {
                self.worklist.insert((self.nodes[node.index()].rank, node));
            }
        }
    }

    /// An equal live node, other than `node` itself.
    pub(crate) fn duplicate_of(&self, node: NodeId) -> Option<NodeId> {
        let this = &self.nodes[node.index()];
        let bucket = self.by_operands.get(&operand_key(&this.op, &this.inputs))?;
        bucket.iter().copied().find(|&other| other != node && self.nodes[other.index()].op == this.op)
    }

    /// Drops the nodes added since there were `first` nodes that nobody reads. Others have the uses again that they had before, so that
    /// none is queued: an attempt that fails would be made again and again.
    pub(crate) fn sweep(&mut self, first: usize) {
        for index in (first..self.nodes.len()).rev() {
            self.drop_if_dead(NodeId::new(index));
        }
    }

    /// Queues all live nodes.
    pub(crate) fn requeue_all(&mut self) {
        let live = self.nodes.iter().enumerate().filter(|(_, node)| node.live);
        self.worklist = live.map(|(index, node)| (node.rank, NodeId::new(index))).collect();
    }

    /// True if two tensors have the same type and shape.
    pub(crate) fn same_type(&self, a: TensorId, b: TensorId) -> bool {
        let (a, b) = (&self.tensors[a.index()], &self.tensors[b.index()]);
        a.dtype == b.dtype && a.shape == b.shape
    }

    /// The number of uses of a tensor: operands and graph outputs.
    pub(crate) fn uses(&self, id: TensorId) -> usize {
        let tensor = &self.tensors[id.index()];
        tensor.readers.len() + tensor.exports
    }

    fn find_equal(&self, op: &PrimOp, inputs: &[TensorId]) -> Option<NodeId> {
        let bucket = self.by_operands.get(&operand_key(op, inputs))?;
        bucket.iter().copied().find(|&other| *self.nodes[other.index()].op == *op)
    }

    /// Drops a node without uses, and what only it reads. Gives the nodes that are the only readers of a tensor now.
    fn drop_if_dead(&mut self, first: NodeId) -> Vec<NodeId> {
        let mut work = vec![first];
        let mut alone = Vec::new();
        while let Some(id) = work.pop() {
            let used = self.nodes[id.index()].outputs.iter().any(|&output| self.uses(output) > 0);
            if used || !self.nodes[id.index()].live {
                continue;
            }
            self.unindex(id);
            let node = &mut self.nodes[id.index()];
            node.live = false;
            let inputs = node.inputs.clone();
            self.worklist.remove(&(node.rank, id));
            for &input in inputs.iter() {
                let tensor = &mut self.tensors[input.index()];
                if let Some(position) = tensor.readers.iter().position(|&reader| reader == id) {
                    tensor.readers.swap_remove(position);
                }
                if let [last] = tensor.readers[..] {
                    alone.push(last);
                }
                work.extend(tensor.producer);
            }
        }
        alone.retain(|node| self.nodes[node.index()].live);
        alone
    }

    fn add_tensor(&mut self, dtype: DType, shape: Shape, producer: Option<NodeId>) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        let (value, source_bytes, readers) = (None, None, Vec::new());
        let evaluated = OnceCell::new();
        self.tensors.push(DraftTensor {
            dtype,
            shape,
            producer,
            value,
            source_bytes,
            evaluated,
            readers,
            exports: 0,
        });
        id
    }

    fn index(&mut self, id: NodeId) {
        let node = &self.nodes[id.index()];
        self.by_operands.entry(operand_key(&node.op, &node.inputs)).or_default().push(id);
    }

    fn unindex(&mut self, id: NodeId) {
        let node = &self.nodes[id.index()];
        if let Some(bucket) = self.by_operands.get_mut(&operand_key(&node.op, &node.inputs)) {
            bucket.retain(|&other| other != id);
        }
    }
}

/// The operands as equality of nodes counts them.
fn operand_key(op: &PrimOp, inputs: &[TensorId]) -> Vec<TensorId> {
    let mut key = inputs.to_vec();
    if matches!(op, PrimOp::Map(ScalarFn::Binary(f)) if f.is_commutative()) {
        key.sort_unstable();
    }
    key
}

/// For each node, whether an output depends on it.
fn live_nodes(graph: &PrimGraph) -> Vec<bool> {
    let mut wanted = vec![false; graph.tensors().len()];
    for (_, output) in &graph.outputs {
        wanted[output.index()] = true;
    }
    let mut live = vec![false; graph.nodes().len()];
    for id in graph.node_ids().rev() {
        let node = graph.node(id);
        if node.outputs.iter().any(|output| wanted[output.index()]) {
            live[id.index()] = true;
            node.inputs.iter().for_each(|input| wanted[input.index()] = true);
        }
    }
    live
}
