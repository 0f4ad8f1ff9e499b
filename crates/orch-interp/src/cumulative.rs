//! Sums and products up to each position of an axis.

use crate::EvalError;
use crate::element::{Accumulator, Element, elems, tensor, with_element};
use crate::error::require;
use orch_ir::{Cumulative, ReduceOp, Tensor};

/// `(x) -> y`. Elements accumulate as those of a reduction do; each result is rounded once.
///
/// # Errors
/// If `axis` is not one of `x`.
pub fn cumulative(inputs: &[&Tensor], spec: Cumulative) -> Result<Vec<Tensor>, EvalError> {
    require!(inputs.len() == 1, "cumulative", "it takes 1 operand, {} were given", inputs.len());
    let shape = inputs[0].shape();
    require!(spec.axis < shape.rank(), "cumulative", "axis {} of {shape}", spec.axis);
    Ok(vec![with_element!(inputs[0].dtype(), T => accumulated::<T>(inputs[0], spec))])
}

fn accumulated<T: Element>(x: &Tensor, Cumulative { axis, op, exclusive, reverse }: Cumulative) -> Tensor {
    let (extent, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    let source = elems::<T>(x);
    let mut result = vec![T::from_int(0); source.len()];
    for line in 0..source.len().checked_div(extent).unwrap_or(0) {
        let first = line / inner * extent * inner + line % inner;
        let mut acc = if op == ReduceOp::Prod { T::Acc::ONE } else { T::Acc::ZERO };
        for step in 0..extent {
            let at = first + inner * if reverse { extent - 1 - step } else { step };
            let (before, element) = (acc, source[at].to_acc());
            acc = if op == ReduceOp::Prod { acc.mul(element) } else { acc.add(element) };
            result[at] = T::from_acc(if exclusive { before } else { acc });
        }
    }
    tensor(x.shape().clone(), result)
}
