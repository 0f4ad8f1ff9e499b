//! The `k` best along an axis.

use crate::EvalError;
use crate::element::{Element, elems, tensor, with_element};
use crate::error::require;
use crate::scalar::Calc;
use orch_ir::Tensor;
use std::cmp::Ordering;

/// `(x) -> (values, indices: i64)`, best first, ties to the lower index. NaN counts as larger than any number.
///
/// # Errors
/// If `axis` is not one of `x`, or has fewer than `k` elements.
pub fn top_k(inputs: &[&Tensor], axis: usize, k: usize, largest: bool) -> Result<Vec<Tensor>, EvalError> {
    require!(inputs.len() == 1, "TopK", "it takes 1 operand, {} were given", inputs.len());
    let shape = inputs[0].shape();
    require!(
        shape.get(axis).is_some_and(|&e| e >= k),
        "TopK",
        "{k} elements asked for along axis {axis} of {shape}"
    );
    Ok(with_element!(inputs[0].dtype(), T => ranked::<T>(inputs[0], axis, k, largest)))
}

fn ranked<T: Element>(x: &Tensor, axis: usize, k: usize, largest: bool) -> Vec<Tensor> {
    let (extent, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
    let outer: usize = x.shape()[..axis].iter().product();
    let mut dims = x.shape().to_vec();
    dims[axis] = k;
    let source = elems::<T>(x);
    let mut values = vec![T::from_int(0); outer * k * inner];
    let mut positions = vec![0i64; outer * k * inner];
    for line in 0..outer * inner {
        let (block, lane) = (line / inner, line % inner);
        let element = |position: usize| source[(block * extent + position) * inner + lane];
        let mut order: Vec<usize> = (0..extent).collect();
        order.sort_by(|&a, &b| {
            let order = ascending(element(a).widen(), element(b).widen());
            if largest { order.reverse() } else { order }
        });
        for (rank, &position) in order[..k].iter().enumerate() {
            let at = (block * k + rank) * inner + lane;
            values[at] = element(position);
            positions[at] = position as i64;
        }
    }
    vec![tensor(dims.clone(), values), tensor(dims, positions)]
}

/// The order of two numbers, NaN last.
fn ascending<C: Calc>(x: C, y: C) -> Ordering {
    x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
}
