//! Data-dependent writes: `scatter_along`, `scatter_nd`. Indices are limited to the extent they address; updates apply
//! in row-major order, each rounded to the element type.

use crate::element::{elems, tensor, with_element};
use crate::gather::{along_offsets, slice_offsets};
use crate::reduce::combine;
use orch_ir::{ReduceOp, Tensor};

/// `[data, index, updates]`: a copy of `data` with `data[.., index[i..] at axis, ..]` combined with `updates[i..]`.
pub fn scatter_along(operands: [&Tensor; 3], axis: usize, op: Option<ReduceOp>) -> Tensor {
    let [data, index, updates] = operands;
    scatter(data, &along_offsets(data.shape(), index, axis), updates, op)
}

/// `[data, index, updates]`: a copy of `data` with the slices that `index` addresses combined with `updates`.
pub fn scatter_nd(operands: [&Tensor; 3], op: Option<ReduceOp>) -> Tensor {
    let [data, index, updates] = operands;
    let depth = index.shape()[index.shape().rank() - 1];
    let slice: usize = data.shape()[depth..].iter().product();
    let starts = slice_offsets(data.shape(), index);
    let offsets: Vec<usize> = starts.iter().flat_map(|&start| start..start + slice).collect();
    scatter(data, &offsets, updates, op)
}

/// A copy of `data` whose element at `offsets[i]` is combined with the `i`-th update.
fn scatter(data: &Tensor, offsets: &[usize], updates: &Tensor, op: Option<ReduceOp>) -> Tensor {
    with_element!(data.dtype(), T => {
        let mut result = elems::<T>(data).into_owned();
        for (&offset, &update) in offsets.iter().zip(elems::<T>(updates).iter()) {
            result[offset] = match op {
                Some(op) => combine(op, &[result[offset], update]),
                None => update,
            };
        }
        tensor(data.shape().clone(), result)
    })
}
