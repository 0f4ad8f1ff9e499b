//! The primitive graph and its smart constructors.

use crate::DType;
use crate::infer::{InferError, infer};
use crate::{NodeId, PrimOp, Shape, Tensor, TensorId};
use std::collections::BTreeMap;

/// A tensor program over primitives, in static single assignment form: every tensor is a graph input, a
/// constant, or a result of exactly one node; nodes are in topological order.
#[derive(Clone, Debug, Default)]
pub struct PrimGraph {
    /// A name for people.
    pub name: String,
    tensors: Vec<TensorInfo>,
    nodes: Vec<PrimNode>,
    /// Graph inputs with their external names, in order.
    pub inputs: Vec<(String, TensorId)>,
    /// Graph outputs with their external names, in order. A tensor may be several outputs, or an input.
    pub outputs: Vec<(String, TensorId)>,
    constants: BTreeMap<TensorId, Tensor>,
    /// What [`PrimNode::origin`] counts; no two neighbours are equal.
    origins: Vec<String>,
    /// The origin of nodes added from now on.
    current_origin: String,
}

impl PartialEq for PrimGraph {
    /// Equality of the programs, names and origins included; what a node added next would come from does not count.
    fn eq(&self, other: &Self) -> bool {
        let Self { name, tensors, nodes, inputs, outputs, constants, origins, current_origin: _ } = self;
        *name == other.name
            && *tensors == other.tensors
            && *nodes == other.nodes
            && *inputs == other.inputs
            && *outputs == other.outputs
            && *constants == other.constants
            && *origins == other.origins
    }
}

/// Type and provenance of a tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorInfo {
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: Shape,
    /// The node that computes it; `None` for inputs and constants.
    pub producer: Option<NodeId>,
}

/// One primitive applied to tensors.
#[derive(Clone, PartialEq, Debug)]
pub struct PrimNode {
    /// What is computed.
    pub op: PrimOp,
    /// Operands.
    pub inputs: Vec<TensorId>,
    /// Results: one, but for opaque operations.
    pub outputs: Vec<TensorId>,
    /// Index into [`PrimGraph::origin`]'s table: which operator of the user's model this comes from.
    pub origin: u32,
}

impl PrimGraph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// All nodes in topological order; a [`NodeId`] is a position here.
    pub fn nodes(&self) -> &[PrimNode] {
        &self.nodes
    }

    /// Node ids in topological order.
    pub fn node_ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + use<> {
        (0..self.nodes.len()).map(NodeId::new)
    }

    /// The node with this id.
    pub fn node(&self, id: NodeId) -> &PrimNode {
        &self.nodes[id.index()]
    }

    /// All tensors; a [`TensorId`] is a position here.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor with this id.
    pub fn tensor(&self, id: TensorId) -> &TensorInfo {
        &self.tensors[id.index()]
    }

    /// The shape of a tensor.
    pub fn shape(&self, id: TensorId) -> &Shape {
        &self.tensor(id).shape
    }

    /// The element type of a tensor.
    pub fn dtype(&self, id: TensorId) -> DType {
        self.tensor(id).dtype
    }

    /// The node that computes a tensor.
    pub fn producer(&self, id: TensorId) -> Option<NodeId> {
        self.tensor(id).producer
    }

    /// The value of a constant tensor.
    pub fn constant(&self, id: TensorId) -> Option<&Tensor> {
        self.constants.get(&id)
    }

    /// All constants.
    pub fn constants(&self) -> &BTreeMap<TensorId, Tensor> {
        &self.constants
    }

    /// The operator of the user's model that a node comes from, as errors and reports show it:
    /// `/encoder/layer.0/attn/MatMul (MatMul)`.
    pub fn origin(&self, id: NodeId) -> &str {
        self.origins.get(self.node(id).origin as usize).map_or("", String::as_str)
    }

    /// For each tensor, the nodes that read it, in order, each node once.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut consumers = vec![Vec::new(); self.tensors.len()];
        for id in self.node_ids() {
            for input in &self.node(id).inputs {
                let list: &mut Vec<NodeId> = &mut consumers[input.index()];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        consumers
    }

    /// Sets the operator that nodes added from now on come from.
    pub fn set_origin(&mut self, origin: impl Into<String>) {
        self.current_origin = origin.into();
    }

    /// Adds a graph input.
    pub fn add_input(&mut self, name: impl Into<String>, dtype: DType, shape: impl Into<Shape>) -> TensorId {
        let id = self.add_tensor(dtype, shape.into(), None);
        self.inputs.push((name.into(), id));
        id
    }

    /// Adds a constant.
    pub fn add_constant(&mut self, value: Tensor) -> TensorId {
        let id = self.add_tensor(value.dtype(), value.shape().clone(), None);
        self.constants.insert(id, value);
        id
    }

    /// Makes a tensor a graph output.
    pub fn add_output(&mut self, name: impl Into<String>, tensor: TensorId) {
        self.outputs.push((name.into(), tensor));
    }

    /// Adds a node and returns its results.
    ///
    /// # Errors
    /// If the operands do not suit the primitive.
    pub fn add_node(&mut self, op: PrimOp, inputs: Vec<TensorId>) -> Result<Vec<TensorId>, InferError> {
        let types: Vec<(DType, &Shape)> = inputs.iter().map(|&t| (self.dtype(t), self.shape(t))).collect();
        let results = infer(&op, &types)?;
        let node = NodeId::new(self.nodes.len());
        let outputs: Vec<TensorId> =
            results.into_iter().map(|(dtype, shape)| self.add_tensor(dtype, shape, Some(node))).collect();
        if self.origins.last() != Some(&self.current_origin) {
            self.origins.push(self.current_origin.clone());
        }
        let origin = u32::try_from(self.origins.len() - 1).expect("fewer origins than nodes");
        self.nodes.push(PrimNode { op, inputs, outputs: outputs.clone(), origin });
        Ok(outputs)
    }

    /// Adds a node with one result and returns it.
    ///
    /// # Errors
    /// If the operands do not suit the primitive.
    pub fn add(&mut self, op: PrimOp, inputs: &[TensorId]) -> Result<TensorId, InferError> {
        let outputs = self.add_node(op, inputs.to_vec())?;
        Ok(outputs[0])
    }

    fn add_tensor(&mut self, dtype: DType, shape: Shape, producer: Option<NodeId>) -> TensorId {
        let id = TensorId::new(self.tensors.len());
        self.tensors.push(TensorInfo { dtype, shape, producer });
        id
    }
}
