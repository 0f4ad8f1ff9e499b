//! Constant folding while building.
//!
//! A tensor is *known* if it depends on constants alone. A primitive on known tensors is evaluated at once if its
//! result is small: at most [`FissionOptions::fold_limit_bytes`](crate::FissionOptions) and not much larger than
//! the constants it comes from. `Broadcast` and `Iota` stay nodes, because a repeated constant is better read
//! through the primitive than stored; what they give is still known, and evaluated when a rule asks for it
//! ([`Context::constant`]). Shape arithmetic therefore always folds, and no constant is blown up.

use crate::{Context, RuleError};
use orch_interp::{EvalOptions, evaluate_node};
use orch_ir::infer::infer;
use orch_ir::{DType, PrimOp, Shape, Tensor, TensorId};
use std::collections::BTreeSet;

/// Results up to this size are always stored.
const TINY_BYTES: usize = 4096;

/// The largest value that a rule may ask for.
pub(crate) const MAX_ASKED_BYTES: usize = 1 << 28;

/// All values together that rules may ask for, and in addition for each operator: a small file can describe very many large ones, and a
/// large one asks for each grid of indices that its exporter wrote.
const MAX_ASKED_TOTAL_BYTES: usize = 1 << 30;
const MAX_ASKED_BYTES_PER_OPERATOR: usize = 1 << 20;

/// Values that are kept, in case that a rule asks for them again.
const MAX_KEPT_BYTES: usize = 1 << 28;

/// Results may be this much larger than the constants they come from (a conversion of bytes to floats).
const GROWTH: usize = 4;

impl Context<'_> {
    /// The value of a tensor, if it depends on constants alone and can be evaluated.
    pub fn constant(&mut self, tensor: TensorId) -> Option<Tensor> {
        if !self.known.contains_key(&tensor) {
            return None;
        }
        if self.kept_bytes > MAX_KEPT_BYTES {
            self.values.clear();
            self.kept_bytes = 0;
        }
        let most_bytes = self.most_asked_bytes();
        for id in self.pending(tensor) {
            let producer = self.graph.producer(id)?;
            let node = self.graph.node(producer);
            let operands: Vec<Tensor> =
                node.inputs.iter().map(|&input| self.value(input)).collect::<Option<_>>()?;
            if self.asked_bytes > most_bytes {
                return None;
            }
            let results = evaluate(&node.op, &operands)?;
            let outputs = node.outputs.clone();
            let bytes = results.iter().map(|value| value.bytes().len()).sum::<usize>();
            self.asked_bytes += bytes;
            self.kept_bytes += bytes;
            self.values.extend(outputs.into_iter().zip(results));
        }
        self.value(tensor)
    }

    /// The most that rules may ask for so far.
    pub(crate) fn most_asked_bytes(&self) -> usize {
        MAX_ASKED_TOTAL_BYTES + self.operators * MAX_ASKED_BYTES_PER_OPERATOR
    }

    /// True if a tensor depends on constants alone.
    pub fn is_known(&self, tensor: TensorId) -> bool {
        self.known.contains_key(&tensor)
    }

    /// The value of a tensor, if it has been evaluated already.
    fn value(&self, tensor: TensorId) -> Option<Tensor> {
        self.graph.constant(tensor).or_else(|| self.values.get(&tensor)).cloned()
    }

    /// The known tensors that must be evaluated before `tensor` can be, and itself, in order of computation.
    fn pending(&self, tensor: TensorId) -> BTreeSet<TensorId> {
        let mut pending = BTreeSet::new();
        let mut work = vec![tensor];
        while let Some(id) = work.pop() {
            if self.value(id).is_some() || !pending.insert(id) {
                continue;
            }
            if let Some(producer) = self.graph.producer(id) {
                work.extend(&self.graph.node(producer).inputs);
            }
        }
        pending
    }

    /// Adds a primitive, or constants if it can be evaluated now and is worth storing.
    pub(crate) fn emit_all(&mut self, op: PrimOp, inputs: &[TensorId]) -> Result<Vec<TensorId>, RuleError> {
        let source_bytes: Option<usize> =
            inputs.iter().map(|input| self.known.get(input).copied()).sum::<Option<usize>>();
        if let Some(source_bytes) = source_bytes
            && let Some(results) = self.fold(&op, inputs, source_bytes)?
        {
            return Ok(results.into_iter().map(|value| self.tensor(value)).collect());
        }
        let outputs = self.graph.add_node(op, inputs.to_vec())?;
        if let Some(source_bytes) = source_bytes {
            self.known.extend(outputs.iter().map(|&output| (output, source_bytes)));
        }
        Ok(outputs)
    }

    /// The results of a primitive on known operands, if they are worth storing.
    fn fold(
        &mut self,
        op: &PrimOp,
        inputs: &[TensorId],
        source_bytes: usize,
    ) -> Result<Option<Vec<Tensor>>, RuleError> {
        if let (PrimOp::Reshape { shape }, Some(value)) = (op, inputs.first().and_then(|&id| self.value(id)))
            && shape.elems() == value.shape().elems()
        {
            return Ok(Some(vec![value.reshaped(shape.clone())]));
        }
        let types: Vec<(DType, &Shape)> =
            inputs.iter().map(|&id| (self.graph.dtype(id), self.graph.shape(id))).collect();
        let results = infer(op, &types)?;
        let result_bytes =
            results.iter().fold(0usize, |sum, (dtype, shape)| sum + shape.elems() * dtype.size_bytes());
        let stored = match op {
            PrimOp::Broadcast { .. } | PrimOp::Iota { .. } => false,
            _ => {
                let limit = self.options.fold_limit_bytes.min(source_bytes.saturating_mul(GROWTH));
                result_bytes <= limit.max(TINY_BYTES)
            }
        };
        if !stored {
            return Ok(None);
        }
        let operands: Option<Vec<Tensor>> = inputs.iter().map(|&input| self.constant(input)).collect();
        Ok(operands.and_then(|operands| evaluate(op, &operands)))
    }
}

/// The results of a primitive, or `None` where the interpreter refuses: the node then stays, and running it
/// gives the error.
fn evaluate(op: &PrimOp, operands: &[Tensor]) -> Option<Vec<Tensor>> {
    let options = EvalOptions { max_result_bytes: MAX_ASKED_BYTES, ..EvalOptions::default() };
    evaluate_node(op, &operands.iter().collect::<Vec<_>>(), &options).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FissionOptions;
    use orch_ir::{BinaryFn, ReduceOp};

    #[test]
    fn shape_arithmetic_folds() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let dims = ctx.tensor(Tensor::from_vec([2], vec![6i64, 4]));
        let first = ctx.slice_axis(dims, 0, 0, 1).expect("within");
        let half = ctx.binary_scalar(BinaryFn::Div, first, 2.0).expect("integers");
        let rest = ctx.tensor(Tensor::from_vec([1], vec![-1i64]));
        let joined = ctx.concat(&[half, rest], 0).expect("one axis");
        assert_eq!(ctx.constant(joined).and_then(|value| value.to_i64()), Some(vec![3, -1]));
        assert!(ctx.graph().nodes().is_empty());
    }

    #[test]
    fn constants_are_not_blown_up_but_known() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let zeros = ctx.full(DType::F32, 0.0, &[300, 300].into()).expect("a shape");
        let ones = ctx.binary_scalar(BinaryFn::Add, zeros, 1.0).expect("floats");
        assert_eq!(ctx.graph().nodes().len(), 3, "two broadcasts and a sum");
        let sum = ctx.reduce(ReduceOp::Sum, ones, &[0, 1]).expect("axes");
        assert_eq!(ctx.constant(sum).map(|value| value.to_f64()), Some(vec![90_000.0]));
    }

    /// Sums of so many values of 8 MiB, each asked for once.
    fn sums(ctx: &mut Context<'_>, count: usize) -> Option<Vec<f64>> {
        (0..count)
            .map(|number| {
                let values = ctx.full(DType::F32, number as f64, &[1 << 21].into()).expect("a shape");
                let sum = ctx.reduce(ReduceOp::Sum, values, &[0]).expect("an axis");
                Some(ctx.constant(sum)?.to_f64()[0])
            })
            .collect()
    }

    #[test]
    fn what_large_models_ask_for_is_computed() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        assert_eq!(sums(&mut ctx, 140), None, "more than a GiB for a few operators");
        let mut ctx = Context::new("", &options);
        ctx.operators = 1000;
        let expected = (0..140).map(|number| f64::from(number * (1 << 21))).collect();
        assert_eq!(sums(&mut ctx, 140), Some(expected));
        let kept: usize = ctx.values.values().map(|value| value.bytes().len()).sum();
        assert!(kept <= MAX_KEPT_BYTES + (9 << 20), "{kept}");
    }

    #[test]
    fn what_depends_on_an_input_is_unknown() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let x = ctx.graph.add_input("x", DType::F32, [2]);
        let y = ctx.binary_scalar(BinaryFn::Add, x, 1.0).expect("floats");
        assert_eq!(ctx.constant(y), None);
    }
}
