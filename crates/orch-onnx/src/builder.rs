//! Small ONNX models written in Rust, for tests and examples here and in other crates.
//!
//! ```
//! use orch_ir::{DType, Tensor};
//! use orch_onnx::ImportOptions;
//! use orch_onnx::builder::{GraphBuilder, node};
//!
//! let model = GraphBuilder::new("scaled")
//!     .symbolic_input("x", DType::F32, &["batch", "3"])
//!     .initializer("w", &Tensor::from_vec([3], vec![1.0f32, 2.0, 3.0]))
//!     .node(node("Mul", ["x", "w"], ["t"]))
//!     .node(node("Softmax", ["t"], ["y"]).attr("axis", -1))
//!     .output("y")
//!     .model(17);
//! let import = orch_onnx::import(model.encode(), &ImportOptions::default().dim("batch", 8))?;
//! assert_eq!(import.graph.nodes.len(), 2);
//! # Ok::<(), orch_onnx::ImportErrors>(())
//! ```
//!
//! Nothing is checked: a test of the importer has to be able to write bad models. What is missing here can be set
//! on the public `proto` field of each builder.

use crate::proto::attribute_proto::AttributeType;
use crate::proto::tensor_shape_proto::Dimension;
use crate::proto::tensor_shape_proto::dimension::Value as DimValue;
use crate::proto::type_proto::{self, Value as TypeValue};
use crate::proto::{
    AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorShapeProto,
    TypeProto, ValueInfoProto,
};
use crate::tensor::to_proto;
use crate::types::element_code;
use bytes::Bytes;
use orch_ir::{DType, Tensor};
use prost::Message;

/// A graph: a model's, or the value of a graph attribute.
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    /// The message built so far.
    pub proto: GraphProto,
}

/// A node, from [`node`].
#[derive(Clone, Debug, Default)]
pub struct NodeBuilder {
    /// The message built so far.
    pub proto: NodeProto,
}

/// A model-local function.
#[derive(Clone, Debug, Default)]
pub struct FunctionBuilder {
    /// The message built so far.
    pub proto: FunctionProto,
}

/// A model, from [`GraphBuilder::model`].
#[derive(Clone, Debug, Default)]
pub struct ModelBuilder {
    /// The message built so far.
    pub proto: ModelProto,
}

/// The declaration of a tensor value. A dimension is a number, a symbol, or `?` for neither.
pub fn tensor_info(name: &str, dtype: DType, dims: &[&str]) -> ValueInfoProto {
    let value = |dim: &str| match (dim, dim.parse::<i64>()) {
        ("?", _) => None,
        (_, Ok(size)) => Some(DimValue::DimValue(size)),
        (symbol, Err(_)) => Some(DimValue::DimParam(symbol.to_owned())),
    };
    let dim = dims.iter().map(|dim| Dimension { value: value(dim), denotation: None }).collect();
    let tensor =
        type_proto::Tensor { elem_type: Some(element_code(dtype)), shape: Some(TensorShapeProto { dim }) };
    let r#type = TypeProto { denotation: None, value: Some(TypeValue::TensorType(tensor)) };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(r#type), ..ValueInfoProto::default() }
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(name: &str) -> Self {
        Self { proto: GraphProto { name: Some(name.to_owned()), ..GraphProto::default() } }
    }

    /// Adds a tensor input.
    #[must_use]
    pub fn input(self, name: &str, dtype: DType, dims: impl AsRef<[usize]>) -> Self {
        let dims: Vec<String> = dims.as_ref().iter().map(usize::to_string).collect();
        self.symbolic_input(name, dtype, &dims.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Adds a tensor input with dimensions as [`tensor_info`] reads them.
    #[must_use]
    pub fn symbolic_input(mut self, name: &str, dtype: DType, dims: &[&str]) -> Self {
        self.proto.input.push(tensor_info(name, dtype, dims));
        self
    }

    /// Adds an input of a subgraph, without a type.
    #[must_use]
    pub fn untyped_input(mut self, name: &str) -> Self {
        self.proto.input.push(ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() });
        self
    }

    /// Adds a constant.
    #[must_use]
    pub fn initializer(mut self, name: &str, tensor: &Tensor) -> Self {
        self.proto.initializer.push(to_proto(name, tensor));
        self
    }

    /// Adds a node.
    #[must_use]
    pub fn node(mut self, node: NodeBuilder) -> Self {
        self.proto.node.push(node.proto);
        self
    }

    /// Declares the type of an inner value, with dimensions as [`tensor_info`] reads them.
    #[must_use]
    pub fn value_info(mut self, name: &str, dtype: DType, dims: &[&str]) -> Self {
        self.proto.value_info.push(tensor_info(name, dtype, dims));
        self
    }

    /// Adds an output, without a type.
    #[must_use]
    pub fn output(mut self, name: &str) -> Self {
        self.proto.output.push(ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() });
        self
    }

    /// A model of this graph that imports this version of ONNX's operator set.
    pub fn model(self, opset: i64) -> ModelBuilder {
        let proto = ModelProto {
            ir_version: Some(8),
            producer_name: Some("orchestrion".to_owned()),
            graph: Some(self.proto),
            ..ModelProto::default()
        };
        ModelBuilder { proto }.opset("", opset)
    }
}

/// A node of ONNX's own operator set; an empty name leaves an operand out.
pub fn node<const I: usize, const O: usize>(
    op_type: &str,
    inputs: [&str; I],
    outputs: [&str; O],
) -> NodeBuilder {
    let proto = NodeProto {
        op_type: Some(op_type.to_owned()),
        input: inputs.map(str::to_owned).into(),
        output: outputs.map(str::to_owned).into(),
        ..NodeProto::default()
    };
    NodeBuilder { proto }
}

impl NodeBuilder {
    /// Names the node.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.proto.name = Some(name.to_owned());
        self
    }

    /// Takes the operator from another operator set.
    #[must_use]
    pub fn domain(mut self, domain: &str) -> Self {
        self.proto.domain = Some(domain.to_owned());
        self
    }

    /// Adds an attribute: `i64`, `f32`, `&str`, `Vec<i64>`, `Vec<f32>`, `Vec<&str>`, `&Tensor` or
    /// [`GraphBuilder`].
    #[must_use]
    pub fn attr(mut self, name: &str, value: impl Into<AttributeProto>) -> Self {
        self.proto.attribute.push(AttributeProto { name: Some(name.to_owned()), ..value.into() });
        self
    }

    /// Adds an attribute whose value is that of an attribute of the function around.
    #[must_use]
    pub fn attr_ref(mut self, name: &str, reference: &str, kind: AttributeType) -> Self {
        self.proto.attribute.push(AttributeProto {
            name: Some(name.to_owned()),
            ref_attr_name: Some(reference.to_owned()),
            r#type: Some(kind as i32),
            ..AttributeProto::default()
        });
        self
    }
}

impl FunctionBuilder {
    /// An empty function that imports version `opset` of ONNX's operator set.
    pub fn new(domain: &str, name: &str, opset: i64) -> Self {
        let proto = FunctionProto {
            domain: Some(domain.to_owned()),
            name: Some(name.to_owned()),
            opset_import: vec![opset_id("", opset)],
            ..FunctionProto::default()
        };
        Self { proto }
    }

    /// Sets the formal inputs and outputs.
    #[must_use]
    pub fn signature<const I: usize, const O: usize>(
        mut self,
        inputs: [&str; I],
        outputs: [&str; O],
    ) -> Self {
        self.proto.input = inputs.map(str::to_owned).into();
        self.proto.output = outputs.map(str::to_owned).into();
        self
    }

    /// Declares an attribute without a default.
    #[must_use]
    pub fn attribute(mut self, name: &str) -> Self {
        self.proto.attribute.push(name.to_owned());
        self
    }

    /// Declares an attribute with a default.
    #[must_use]
    pub fn default_attribute(mut self, name: &str, value: impl Into<AttributeProto>) -> Self {
        self.proto.attribute_proto.push(AttributeProto { name: Some(name.to_owned()), ..value.into() });
        self
    }

    /// Adds a node.
    #[must_use]
    pub fn node(mut self, node: NodeBuilder) -> Self {
        self.proto.node.push(node.proto);
        self
    }
}

impl ModelBuilder {
    /// Imports another operator set.
    #[must_use]
    pub fn opset(mut self, domain: &str, version: i64) -> Self {
        self.proto.opset_import.push(opset_id(domain, version));
        self
    }

    /// Adds a local function.
    #[must_use]
    pub fn function(mut self, function: FunctionBuilder) -> Self {
        self.proto.functions.push(function.proto);
        self
    }

    /// The file.
    pub fn encode(&self) -> Bytes {
        self.proto.encode_to_vec().into()
    }
}

fn opset_id(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: Some(domain.to_owned()), version: Some(version) }
}

/// An attribute of this kind without a value.
fn attribute(kind: AttributeType) -> AttributeProto {
    AttributeProto { r#type: Some(kind as i32), ..AttributeProto::default() }
}

impl From<i64> for AttributeProto {
    fn from(value: i64) -> Self {
        Self { i: Some(value), ..attribute(AttributeType::Int) }
    }
}

impl From<f32> for AttributeProto {
    fn from(value: f32) -> Self {
        Self { f: Some(value), ..attribute(AttributeType::Float) }
    }
}

impl From<&str> for AttributeProto {
    fn from(value: &str) -> Self {
        Self { s: Some(value.into()), ..attribute(AttributeType::String) }
    }
}

impl From<Vec<i64>> for AttributeProto {
    fn from(ints: Vec<i64>) -> Self {
        Self { ints, ..attribute(AttributeType::Ints) }
    }
}

impl From<Vec<f32>> for AttributeProto {
    fn from(floats: Vec<f32>) -> Self {
        Self { floats, ..attribute(AttributeType::Floats) }
    }
}

impl From<Vec<&str>> for AttributeProto {
    fn from(values: Vec<&str>) -> Self {
        let strings = values.into_iter().map(|value| value.as_bytes().to_vec()).collect();
        Self { strings, ..attribute(AttributeType::Strings) }
    }
}

impl From<&Tensor> for AttributeProto {
    fn from(value: &Tensor) -> Self {
        Self { t: Some(to_proto("", value)), ..attribute(AttributeType::Tensor) }
    }
}

impl From<GraphBuilder> for AttributeProto {
    fn from(value: GraphBuilder) -> Self {
        Self { g: Some(value.proto), ..attribute(AttributeType::Graph) }
    }
}
