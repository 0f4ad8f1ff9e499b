//! Runs one operator through fission and the interpreter.

#![allow(dead_code, reason = "every test file uses its own part")]

use orch_fission::{FissionErrors, FissionOptions, fission};
use orch_interp::{EvalOptions, evaluate};
use orch_ir::{Attribute, OperatorGraph, OperatorNode, PrimGraph, PrimOp, ScalarFn, Tensor, Value};
use std::collections::BTreeMap;

/// One operator under test.
pub struct Operator {
    node: OperatorNode,
    inputs: Vec<Option<(Tensor, bool)>>,
    outputs: usize,
}

/// An operator of ONNX's own set, version 18.
pub fn operator(op_type: &str) -> Operator {
    let node = OperatorNode {
        name: "node".to_owned(),
        domain: String::new(),
        op_type: op_type.to_owned(),
        opset: 18,
        inputs: Vec::new(),
        outputs: Vec::new(),
        attributes: BTreeMap::new(),
    };
    Operator { node, inputs: Vec::new(), outputs: 1 }
}

impl Operator {
    pub fn opset(mut self, opset: i64) -> Self {
        self.node.opset = opset;
        self
    }

    fn attribute(mut self, name: &str, value: Attribute) -> Self {
        self.node.attributes.insert(name.to_owned(), value);
        self
    }

    pub fn int(self, name: &str, value: i64) -> Self {
        self.attribute(name, Attribute::Int(value))
    }

    pub fn float(self, name: &str, value: f32) -> Self {
        self.attribute(name, Attribute::Float(value))
    }

    pub fn text(self, name: &str, value: &str) -> Self {
        self.attribute(name, Attribute::String(value.to_owned()))
    }

    pub fn ints(self, name: &str, values: &[i64]) -> Self {
        self.attribute(name, Attribute::Ints(values.to_vec()))
    }

    /// The next operand, given at run time.
    pub fn input(mut self, value: Tensor) -> Self {
        self.inputs.push(Some((value, false)));
        self
    }

    /// The next operand, stored in the model.
    pub fn constant(mut self, value: Tensor) -> Self {
        self.inputs.push(Some((value, true)));
        self
    }

    /// The next operand, left out.
    pub fn absent(mut self) -> Self {
        self.inputs.push(None);
        self
    }

    pub fn outputs(mut self, count: usize) -> Self {
        self.outputs = count;
        self
    }

    /// The model with this one operator.
    pub fn model(&self) -> OperatorGraph {
        let mut graph = OperatorGraph { name: "test".to_owned(), ..OperatorGraph::default() };
        let mut node = self.node.clone();
        for (position, input) in self.inputs.iter().enumerate() {
            let Some((value, constant)) = input else {
                node.inputs.push(None);
                continue;
            };
            let id = graph.add_value(Value {
                name: format!("x{position}"),
                dtype: Some(value.dtype()),
                shape: Some(value.shape().iter().map(|&extent| Some(extent)).collect()),
                encoding: None,
            });
            node.inputs.push(Some(id));
            if *constant {
                graph.initializers.insert(id, value.clone());
            } else {
                graph.inputs.push(id);
            }
        }
        for position in 0..self.outputs {
            let id = graph.add_value(Value { name: format!("y{position}"), ..Value::default() });
            node.outputs.push(Some(id));
            graph.outputs.push(id);
        }
        graph.nodes.push(node);
        graph
    }

    pub fn fission(&self) -> Result<PrimGraph, FissionErrors> {
        fission(&self.model(), &FissionOptions::default())
    }

    pub fn run(&self) -> Vec<Tensor> {
        let graph = self.fission().unwrap_or_else(|errors| panic!("{errors}"));
        let inputs: Vec<Tensor> = self
            .inputs
            .iter()
            .flatten()
            .filter(|(_, constant)| !constant)
            .map(|(value, _)| value.clone())
            .collect();
        evaluate(&graph, &inputs, &EvalOptions::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The elements of the only result.
    pub fn values(&self) -> Vec<f64> {
        self.run().remove(0).to_f64()
    }

    /// The message of the failed fission.
    pub fn error(&self) -> String {
        match self.fission() {
            Ok(_) => panic!("fission succeeds"),
            Err(errors) => errors.to_string(),
        }
    }

    /// The names of the primitives, in order.
    pub fn primitives(&self) -> Vec<String> {
        let graph = self.fission().unwrap_or_else(|errors| panic!("{errors}"));
        graph.nodes().iter().map(|node| primitive_name(&node.op)).collect()
    }
}

fn primitive_name(op: &PrimOp) -> String {
    match op {
        PrimOp::Map(ScalarFn::Cast(to)) => format!("cast.{to}"),
        PrimOp::Map(f) => f.name(),
        PrimOp::Reduce { op, .. } => format!("reduce.{}", op.name()),
        PrimOp::Window { op, .. } => format!("window.{}", op.name()),
        PrimOp::Broadcast { .. } => "broadcast".to_owned(),
        PrimOp::Transpose { .. } => "transpose".to_owned(),
        PrimOp::Reshape { .. } => "reshape".to_owned(),
        PrimOp::Slice { .. } => "slice".to_owned(),
        PrimOp::Concat { .. } => "concat".to_owned(),
        PrimOp::Contract(_) => "contract".to_owned(),
        PrimOp::Conv(_) => "conv".to_owned(),
        other => format!("{other:?}"),
    }
}

pub fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_vec(shape, values.to_vec())
}

pub fn i64s(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_vec(shape, values.to_vec())
}

/// Distinct small numbers of both signs, the same each time.
pub fn numbers(shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|at| ((at * 37 + 11) % 101) as f32 / 25.0 - 2.0).collect();
    Tensor::from_vec(shape, values)
}

#[track_caller]
pub fn assert_close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} against {want:?}");
    for (got_one, want_one) in got.iter().zip(want) {
        let close = (got_one - want_one).abs() <= 1e-5 * want_one.abs().max(1.0);
        assert!(
            close || got_one == want_one || (got_one.is_nan() && want_one.is_nan()),
            "{got:?} against {want:?}"
        );
    }
}
