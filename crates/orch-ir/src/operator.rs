//! The operator graph: a model as its file states it, names and attributes kept, nothing interpreted.
//!
//! Import (`orch-onnx`) produces it, fission (`orch-fission`) consumes it. Functions of the model are already
//! inlined and symbolic dimensions bound. Nodes are in topological order.

use crate::{DType, Encoding, Tensor, ValueId};
use std::collections::BTreeMap;

/// A model, or a subgraph of a control-flow operator.
#[derive(Clone, Debug, Default)]
pub struct OperatorGraph {
    /// The model's own name for the graph.
    pub name: String,
    /// The version of each operator set the model asks for, by domain (`""` is the ONNX domain).
    pub opsets: BTreeMap<String, i64>,
    /// All values; a [`ValueId`] is a position here.
    pub values: Vec<Value>,
    /// The operators, every node after the nodes it reads.
    pub nodes: Vec<OperatorNode>,
    /// What the caller gives, in order. Initializers that are also inputs are not listed.
    pub inputs: Vec<ValueId>,
    /// What the caller gets, in order.
    pub outputs: Vec<ValueId>,
    /// Constants stored in the model.
    pub initializers: BTreeMap<ValueId, Tensor>,
    /// In a subgraph: values of an enclosing graph that are read here, as (value here, name outside).
    pub captures: Vec<(ValueId, String)>,
}

/// A value of an [`OperatorGraph`].
#[derive(Clone, Debug, Default)]
pub struct Value {
    /// The name in the model.
    pub name: String,
    /// The element type the model declares, if it does; that of the codes, if the elements are encoded.
    pub dtype: Option<DType>,
    /// How the elements are encoded, if they are of a type that nothing computes in.
    pub encoding: Option<Encoding>,
    /// The shape the model declares, if it does; a dimension without a value stays `None`. Graph inputs
    /// of the main graph have every dimension bound, but for sequences and optionals, which have neither type nor shape.
    pub shape: Option<Vec<Option<usize>>>,
}

/// One operator of the model.
#[derive(Clone, Debug)]
pub struct OperatorNode {
    /// The node's name in the model, or `OpType_position` where it has none: errors show it.
    pub name: String,
    /// The operator set the operator belongs to; `""` is ONNX's own.
    pub domain: String,
    /// The operator's name in its operator set.
    pub op_type: String,
    /// The version of the operator set of `domain` that the model (or inlined function) asks for.
    pub opset: i64,
    /// Operands; `None` where an optional one is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Results; `None` where an optional one is left out.
    pub outputs: Vec<Option<ValueId>>,
    /// Attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the names are the documentation")]
pub enum Attribute {
    Int(i64),
    Float(f32),
    String(String),
    Tensor(Tensor),
    /// The codes of a tensor of an encoded type.
    Encoded(Tensor, Encoding),
    Graph(Box<OperatorGraph>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<String>),
    /// Kinds that no operator we import uses (sparse tensors, type protos, lists of graphs or tensors).
    Unsupported(&'static str),
}

impl OperatorGraph {
    /// The value with this id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Adds a value and returns its id.
    pub fn add_value(&mut self, value: Value) -> ValueId {
        let id = ValueId::new(self.values.len());
        self.values.push(value);
        id
    }
}
