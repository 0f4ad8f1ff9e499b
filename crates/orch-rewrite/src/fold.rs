//! Constant folding: what depends on constants alone is evaluated by the reference interpreter.
//!
//! A result is stored only if it is small or not much larger than the constants it comes from. `Broadcast` and
//! `Iota` stay nodes, because a repeated constant is better read through the primitive than stored; they are
//! evaluated when what reads them is.

use crate::draft::Draft;
use orch_interp::{EvalOptions, evaluate_node};
use orch_ir::{DType, PrimOp, Shape, Tensor, TensorId};
use std::collections::BTreeMap;

/// Results up to this size are always stored.
const TINY_BYTES: usize = 4096;

/// Results may be this much larger than the constants they come from.
const GROWTH: usize = 4;

/// Values up to this size are kept, as rules ask for them again and again.
const KEPT_BYTES: usize = 1 << 19;

/// The longest chain of known nodes that are evaluated to evaluate the last one.
const MAX_DEPTH: usize = 32;

impl Draft {
    /// The bytes of the constants that a node's results depend on, if they depend on constants alone.
    pub(crate) fn source_bytes(&self, op: &PrimOp, inputs: &[TensorId]) -> Option<usize> {
        if matches!(op, PrimOp::Opaque(_)) {
            return None;
        }
        inputs
            .iter()
            .map(|input| self.tensors[input.index()].source_bytes)
            .try_fold(0usize, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }

    /// The results of a primitive on known operands, if they are worth storing.
    pub(crate) fn fold(
        &self,
        op: &PrimOp,
        inputs: &[TensorId],
        results: &[(DType, Shape)],
        source_bytes: usize,
    ) -> Option<Vec<Tensor>> {
        if matches!(op, PrimOp::Broadcast { .. } | PrimOp::Iota { .. }) {
            return None;
        }
        let result_bytes: usize =
            results.iter().map(|(dtype, shape)| shape.elems() * dtype.size_bytes()).sum();
        let limit = self.fold_limit_bytes.min(source_bytes.saturating_mul(GROWTH)).max(TINY_BYTES);
        if result_bytes > limit {
            return None;
        }
        let operands: Vec<Tensor> =
            inputs.iter().map(|&input| self.known_value(input)).collect::<Option<_>>()?;
        self.evaluate(op, &operands)
    }

    /// The value of a tensor that depends on constants alone, if it is within the limit.
    pub(crate) fn known_value(&self, id: TensorId) -> Option<Tensor> {
        self.value(id, MAX_DEPTH, &mut BTreeMap::new())
    }

    /// The value of a tensor, each node evaluated once: `values` holds what is too large to be kept for later questions.
    fn value(&self, id: TensorId, depth: usize, values: &mut BTreeMap<TensorId, Tensor>) -> Option<Tensor> {
        let tensor = &self.tensors[id.index()];
        let known = tensor.value.as_ref().or_else(|| tensor.evaluated.get());
        if let Some(value) = known.or_else(|| values.get(&id)) {
            return Some(value.clone());
        }
        tensor.source_bytes?;
        let node = &self.nodes[tensor.producer?.index()];
        let depth = depth.checked_sub(1)?;
        let operands: Vec<Tensor> =
            node.inputs.iter().map(|&input| self.value(input, depth, values)).collect::<Option<_>>()?;
        let value = self.evaluate(&node.op, &operands)?.into_iter().next()?;
        if value.bytes().len() <= KEPT_BYTES {
            return Some(tensor.evaluated.get_or_init(|| value).clone());
        }
        values.insert(id, value.clone());
        Some(value)
    }

    /// The results of a primitive, or `None` where the interpreter refuses: the node then stays, and running it gives
    /// the error.
    fn evaluate(&self, op: &PrimOp, operands: &[Tensor]) -> Option<Vec<Tensor>> {
        let options = EvalOptions { max_result_bytes: self.fold_limit_bytes, ..EvalOptions::default() };
        evaluate_node(op, &operands.iter().collect::<Vec<_>>(), &options).ok()
    }
}
