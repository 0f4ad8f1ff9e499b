//! Layout primitives: each result element is a copy of one operand element.
//!
//! All but concatenation and reshape are a gather whose dimensions do not interact, so each function only builds
//! one table of offsets per dimension.

use crate::element::{Element, elems, tensor, with_element};
use crate::index::{Tables, copy, dense_tables, steps, strides};
use orch_ir::{DType, PadMode, Shape, Tensor};

/// The tensor whose element at `i` is `x[sum_d table(d)[i_d]]`.
pub fn gather(x: &Tensor, shape: &Shape, table: impl Fn(usize) -> Vec<usize>) -> Tensor {
    if shape.elems() == 0 {
        return Tensor::zeros(x.dtype(), shape.clone());
    }
    let from: Tables = (0..shape.rank()).map(table).collect();
    with_element!(x.dtype(), T => {
        let mut result = vec![T::from_int(0); shape.elems()];
        copy(&mut result, &dense_tables(shape), &elems::<T>(x), &from);
        tensor(shape.clone(), result)
    })
}

/// `dims[i]` is the result dimension that operand dimension `i` becomes.
pub fn broadcast(x: &Tensor, shape: &Shape, dims: &[usize]) -> Tensor {
    let x_strides = strides(x.shape());
    gather(x, shape, |target| match dims.iter().position(|&dim| dim == target) {
        Some(dim) if x.shape()[dim] != 1 => steps(0..shape[target], x_strides[dim]),
        _ => vec![0; shape[target]],
    })
}

/// Result dimension `i` is operand dimension `perm[i]`.
pub fn transpose(x: &Tensor, shape: &Shape, perm: &[usize]) -> Tensor {
    let x_strides = strides(x.shape());
    gather(x, shape, |dim| steps(0..shape[dim], x_strides[perm[dim]]))
}

/// `starts` and `steps` stay inside the operand wherever the result has elements.
pub fn slice(x: &Tensor, shape: &Shape, starts: &[i64], steps: &[i64]) -> Tensor {
    let x_strides = strides(x.shape());
    gather(x, shape, |dim| {
        let at = |position: usize| (starts[dim] + position as i64 * steps[dim]) as usize * x_strides[dim];
        (0..shape[dim]).map(at).collect()
    })
}

/// `positions[d]` lists the operand positions along `d`; `None` is the identity.
pub fn select(x: &Tensor, shape: &Shape, positions: &[Option<Vec<usize>>]) -> Tensor {
    let x_strides = strides(x.shape());
    gather(x, shape, |dim| match &positions[dim] {
        Some(list) => list.iter().map(|&at| at * x_strides[dim]).collect(),
        None => steps(0..shape[dim], x_strides[dim]),
    })
}

/// `low[d]` elements are added before dimension `d`; `fill` is the value in mode `Constant`.
pub fn pad(x: &Tensor, fill: Option<&Tensor>, shape: &Shape, mode: PadMode, low: &[usize]) -> Tensor {
    if let (PadMode::Constant, Some(fill)) = (mode, fill) {
        return pad_constant(x, fill, shape, low);
    }
    let x_strides = strides(x.shape());
    gather(x, shape, |dim| {
        let at = |position: usize| {
            source_position(mode, position as i64 - low[dim] as i64, x.shape()[dim] as i64) * x_strides[dim]
        };
        (0..shape[dim]).map(at).collect()
    })
}

fn pad_constant(x: &Tensor, fill: &Tensor, shape: &Shape, low: &[usize]) -> Tensor {
    let result_strides = strides(shape);
    let table = |dim: usize| steps(low[dim]..low[dim] + x.shape()[dim], result_strides[dim]);
    let to: Tables = (0..shape.rank()).map(table).collect();
    with_element!(x.dtype(), T => {
        let mut result = vec![elems::<T>(fill)[0]; shape.elems()];
        copy(&mut result, &to, &elems::<T>(x), &dense_tables(x.shape()));
        tensor(shape.clone(), result)
    })
}

/// Where the element at `position`, possibly outside `0..extent`, comes from.
fn source_position(mode: PadMode, position: i64, extent: i64) -> usize {
    let inside = match mode {
        PadMode::Constant | PadMode::Edge => position.clamp(0, extent - 1),
        PadMode::Wrap => position.rem_euclid(extent),
        PadMode::Reflect if extent == 1 => 0,
        PadMode::Reflect => {
            let period = 2 * (extent - 1);
            let folded = position.rem_euclid(period);
            folded.min(period - folded)
        }
    };
    inside as usize
}

/// Joins operands along `axis`.
pub fn concat(inputs: &[&Tensor], shape: &Shape, axis: usize) -> Tensor {
    let result_strides = strides(shape);
    with_element!(inputs[0].dtype(), T => {
        let mut result = vec![T::from_int(0); shape.elems()];
        let mut start = 0;
        for x in inputs {
            let mut to = dense_tables(shape);
            to[axis] = steps(start..start + x.shape()[axis], result_strides[axis]);
            copy(&mut result, &to, &elems::<T>(x), &dense_tables(x.shape()));
            start += x.shape()[axis];
        }
        tensor(shape.clone(), result)
    })
}

/// Each element is its position along `axis`.
pub fn iota(dtype: DType, shape: &Shape, axis: usize) -> Tensor {
    let values: Vec<i64> = (0..shape[axis] as i64).collect();
    let line = Tensor::from_i64(dtype, [shape[axis]], &values);
    broadcast(&line, shape, &[axis])
}
