//! Running sums.

use crate::EvalError;
use crate::element::{Accumulator, Element, elems, tensor, with_element};
use crate::error::require;
use orch_ir::{DType, Tensor};

/// How a running sum runs.
pub struct Direction {
    /// The axis summed along.
    pub axis: usize,
    /// True if an element does not count into its own sum.
    pub exclusive: bool,
    /// True if the sum starts at the end.
    pub reverse: bool,
}

/// `(x) -> y` with the shape of `x`.
///
/// # Errors
/// If the axis is not one of `x`, or `x` is boolean.
pub fn cum_sum(inputs: &[&Tensor], direction: &Direction) -> Result<Vec<Tensor>, EvalError> {
    require!(inputs.len() == 1, "CumSum", "it takes 1 operand, {} were given", inputs.len());
    let x = inputs[0];
    require!(direction.axis < x.shape().rank(), "CumSum", "axis {} of {}", direction.axis, x.shape());
    require!(x.dtype() != DType::Bool, "CumSum", "the operand is boolean");
    Ok(vec![with_element!(x.dtype(), T => running::<T>(x, direction))])
}

fn running<T: Element>(x: &Tensor, direction: &Direction) -> Tensor {
    let (extent, inner) =
        (x.shape()[direction.axis], x.shape()[direction.axis + 1..].iter().product::<usize>());
    let outer: usize = x.shape()[..direction.axis].iter().product();
    let source = elems::<T>(x);
    let mut result = vec![T::from_int(0); source.len()];
    for line in 0..outer * inner {
        let start = line / inner * extent * inner + line % inner;
        let mut acc = T::Acc::ZERO;
        for step in 0..extent {
            let position = if direction.reverse { extent - 1 - step } else { step };
            let at = start + position * inner;
            let next = acc.add(source[at].to_acc());
            result[at] = T::from_acc(if direction.exclusive { acc } else { next });
            acc = next;
        }
    }
    tensor(x.shape().clone(), result)
}
