//! Runs one rule on constants: since everything known folds, the results are values.

use crate::{Call, Context, FissionOptions, Operand, RuleError, registry};
use orch_ir::{Attribute, OperatorNode, Tensor, ValueId};
use std::collections::BTreeMap;

/// One application of an operator of ONNX's own set.
pub(crate) struct Application {
    node: OperatorNode,
    operands: Vec<Option<Tensor>>,
}

/// The operator `op_type` in version `opset`, without operands, wanted for one result.
pub(crate) fn apply(op_type: &str, opset: i64) -> Application {
    let node = OperatorNode {
        name: String::new(),
        domain: String::new(),
        op_type: op_type.to_owned(),
        opset,
        inputs: Vec::new(),
        outputs: vec![Some(ValueId(0))],
        attributes: BTreeMap::new(),
    };
    Application { node, operands: Vec::new() }
}

impl Application {
    /// With one more operand.
    pub(crate) fn on(mut self, operand: Tensor) -> Self {
        self.operands.push(Some(operand));
        self
    }

    /// With one more operand, of `f32`.
    pub(crate) fn floats(self, dims: &[usize], values: &[f32]) -> Self {
        self.on(Tensor::from_vec(dims, values.to_vec()))
    }

    /// With one more operand, a list of `i64`.
    pub(crate) fn ints(self, values: &[i64]) -> Self {
        self.on(Tensor::from_vec([values.len()], values.to_vec()))
    }

    /// With the next operand left out.
    pub(crate) fn without(mut self) -> Self {
        self.operands.push(None);
        self
    }

    /// With an attribute.
    pub(crate) fn with(mut self, name: &str, attribute: Attribute) -> Self {
        self.node.attributes.insert(name.to_owned(), attribute);
        self
    }

    /// Wanted for `count` results.
    pub(crate) fn results(mut self, count: u32) -> Self {
        self.node.outputs = (0..count).map(|id| Some(ValueId(id))).collect();
        self
    }

    /// All results.
    pub(crate) fn run(self) -> Result<Vec<Tensor>, RuleError> {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let operands =
            self.operands.into_iter().map(|value| Some(Operand::Tensor(ctx.tensor(value?)))).collect();
        let rule = registry::find("", &self.node.op_type).expect("a rule of this name");
        let results = (rule.apply)(&mut ctx, &Call::new(&self.node, operands))?;
        let value = |operand| match operand {
            Operand::Tensor(tensor) => ctx.constant(tensor).expect("constants fold"),
            other => panic!("{other:?} is not a tensor"),
        };
        Ok(results.into_iter().map(value).collect())
    }

    /// Shape and values of the first result.
    pub(crate) fn first(self) -> (Vec<usize>, Vec<f64>) {
        let results = self.run().expect("the application is valid");
        (results[0].shape().to_vec(), results[0].to_f64())
    }
}
