//! Data-dependent reads: `take`, `take_along`, `gather_nd`. Indices are limited to the extent they
//! address, which inference has checked not to be 0.

use crate::element::{Element, elems, indices, tensor, with_element};
use crate::index::{Odometer, copy, dense_tables, dot, steps, strides};
use orch_ir::{Shape, Tensor};

/// Dimension `axis` of `data` replaced by the dimensions of `index`; the result has `shape`.
pub fn take(data: &Tensor, index: &Tensor, shape: &Shape, axis: usize) -> Tensor {
    let outer: usize = data.shape()[..axis].iter().product();
    let inner: usize = data.shape()[axis + 1..].iter().product();
    let extent = data.shape()[axis];
    let picked = indices(index, extent).into_iter().map(|at| at * inner).collect::<Vec<_>>();
    let to = dense_tables(&[outer, picked.len(), inner]);
    let from = [steps(0..outer, extent * inner), picked, steps(0..inner, 1)];
    with_element!(data.dtype(), T => {
        let mut result = vec![T::from_int(0); shape.elems()];
        copy(&mut result, &to, &elems::<T>(data), &from);
        tensor(shape.clone(), result)
    })
}

/// `result[i..] = data[i.., index[i..] at axis, ..]`.
pub fn take_along(data: &Tensor, index: &Tensor, axis: usize) -> Tensor {
    let offsets = along_offsets(data.shape(), index, axis);
    with_element!(data.dtype(), T => {
        let source = elems::<T>(data);
        tensor(index.shape().clone(), offsets.iter().map(|&at| source[at]).collect())
    })
}

/// For each position of `index`, the offset in a dense tensor of `shape` with that position's coordinate along
/// `axis` replaced by the index.
pub fn along_offsets(shape: &Shape, index: &Tensor, axis: usize) -> Vec<usize> {
    let mut own = strides(shape);
    let axis_stride = own[axis];
    own[axis] = 0;
    let mut picked = indices(index, shape[axis]).into_iter();
    let mut offsets = Vec::with_capacity(index.shape().elems());
    let mut positions = Odometer::new(index.shape());
    while let (Some(position), Some(at)) = (positions.next(), picked.next()) {
        offsets.push(dot(position, &own) + at * axis_stride);
    }
    offsets
}

/// The last dimension of `index` addresses `k` dimensions of `data` after `batch_dims` shared ones.
pub fn gather_nd(data: &Tensor, index: &Tensor, shape: &Shape, batch_dims: usize) -> Tensor {
    let rows_per_batch: usize = index.shape()[batch_dims..index.shape().rank() - 1].iter().product();
    let per_batch: usize = data.shape()[batch_dims..].iter().product();
    let depth = index.shape()[index.shape().rank() - 1];
    let slice: usize = data.shape()[batch_dims + depth..].iter().product();
    let starts = slice_offsets(&data.shape()[batch_dims..], index);
    with_element!(data.dtype(), T => {
        let source = elems::<T>(data);
        let mut result: Vec<T> = Vec::with_capacity(shape.elems());
        for (row, offset) in starts.iter().enumerate() {
            let start = row / rows_per_batch * per_batch + offset;
            result.extend_from_slice(&source[start..start + slice]);
        }
        tensor(shape.clone(), result)
    })
}

/// For each row of `index` (its last dimension), the offset in a dense tensor of extents `dims` that it addresses.
pub fn slice_offsets(dims: &[usize], index: &Tensor) -> Vec<usize> {
    let depth = index.shape()[index.shape().rank() - 1];
    let rows: usize = index.shape()[..index.shape().rank() - 1].iter().product();
    let own = strides(dims);
    let coordinates = indices(index, usize::MAX >> 1);
    let offset = |row: usize| {
        let row = &coordinates[row * depth..(row + 1) * depth];
        row.iter().enumerate().map(|(dim, &at)| at.min(dims[dim] - 1) * own[dim]).sum()
    };
    (0..rows).map(offset).collect()
}
