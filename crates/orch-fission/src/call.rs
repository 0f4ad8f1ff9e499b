//! One operator application as a rule sees it: the node, its opset, its resolved operands.

use crate::{Operand, RuleError};
use orch_ir::{OperatorNode, TensorId};

/// An operator of the model with its operands resolved to tensors. Attribute access is in
/// [`attribute`](mod@crate::attribute).
pub struct Call<'a> {
    /// The operator as the model states it.
    pub node: &'a OperatorNode,
    operands: Vec<Option<Operand>>,
}

impl<'a> Call<'a> {
    /// A call of `node` on operands in the node's order; `None` where an optional one is left out.
    pub fn new(node: &'a OperatorNode, operands: Vec<Option<Operand>>) -> Self {
        Self { node, operands }
    }

    /// The version of the operator set.
    pub fn opset(&self) -> i64 {
        self.node.opset
    }

    /// The number of operands, left-out ones between others included.
    pub fn arity(&self) -> usize {
        self.operands.len()
    }

    /// True if somebody may read result `index`.
    pub fn wants_output(&self, index: usize) -> bool {
        self.node.outputs.get(index).is_some_and(Option::is_some)
    }

    /// Operand `index`, whatever it is; `None` if left out.
    pub fn operand(&self, index: usize) -> Option<&Operand> {
        self.operands.get(index)?.as_ref()
    }

    /// Operand `index`, a required tensor.
    ///
    /// # Errors
    /// If it is left out or not a tensor.
    pub fn tensor(&self, index: usize) -> Result<TensorId, RuleError> {
        self.optional_tensor(index)?.ok_or(RuleError::MissingOperand(index))
    }

    /// Operand `index`, an optional tensor.
    ///
    /// # Errors
    /// If it is there and not a tensor.
    pub fn optional_tensor(&self, index: usize) -> Result<Option<TensorId>, RuleError> {
        match self.operand(index) {
            None => Ok(None),
            Some(Operand::Tensor(tensor)) => Ok(Some(*tensor)),
            Some(Operand::Encoded { encoding, .. }) => Err(RuleError::unsupported(format!(
                "operand {index} of type {encoding}; convert it to another type before"
            ))),
            Some(Operand::Sequence(_)) => {
                Err(RuleError::invalid(format!("operand {index} is a sequence, a tensor is expected")))
            }
            Some(Operand::Absent) => {
                Err(RuleError::invalid(format!("operand {index} is an empty optional, a tensor is expected")))
            }
        }
    }

    /// Operand `index`, a required sequence of tensors.
    ///
    /// # Errors
    /// If it is left out or not a sequence.
    pub fn sequence(&self, index: usize) -> Result<&[TensorId], RuleError> {
        match self.operand(index) {
            Some(Operand::Sequence(tensors)) => Ok(tensors),
            Some(Operand::Tensor(_) | Operand::Encoded { .. } | Operand::Absent) => {
                Err(RuleError::invalid(format!("operand {index} is no sequence of tensors")))
            }
            None => Err(RuleError::MissingOperand(index)),
        }
    }

    /// All operands, required tensors: for variadic operators.
    ///
    /// # Errors
    /// If one is left out or not a tensor, or there is none.
    pub fn tensors(&self) -> Result<Vec<TensorId>, RuleError> {
        if self.operands.is_empty() {
            return Err(RuleError::MissingOperand(0));
        }
        (0..self.arity()).map(|index| self.tensor(index)).collect()
    }
}
