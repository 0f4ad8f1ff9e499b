//! Windowed reductions: pooling.

use crate::element::{Element, elems, tensor};
use crate::index::{Odometer, strides};
use crate::reduce::{Wanted, combine};
use orch_ir::{ReduceOp, Shape, Tensor, Window};

/// Reduces each window over the trailing dimensions of `x`; `shape` is the result's.
pub fn window<T: Element>(op: ReduceOp, window: &Window, x: &Tensor, shape: &Shape) -> Tensor {
    let (extents, result_extents) = (&x.shape()[2..], &shape[2..]);
    let (plane, result_plane) = (extents.iter().product::<usize>(), result_extents.iter().product::<usize>());
    let planes = x.shape()[0] * x.shape()[1];
    let values = elems::<T>(x);
    let mut windows = Vec::with_capacity(result_plane);
    let mut positions = Odometer::new(result_extents);
    while let Some(position) = positions.next() {
        windows.push(members(window, extents, position));
    }
    let each = |visit: &mut dyn FnMut(&[usize], &[T])| {
        for base in (0..planes).map(|index| index * plane) {
            for members in &windows {
                let line: Vec<T> = members.iter().map(|&offset| values[base + offset]).collect();
                visit(members, &line);
            }
        }
    };
    if let Some(wanted) = Wanted::by(op) {
        let mut result: Vec<i64> = Vec::with_capacity(shape.elems());
        each(&mut |members, line| {
            result.push(members.get(wanted.position(line)).map_or(0, |&offset| offset as i64));
        });
        return tensor(shape.clone(), result);
    }
    let mut result: Vec<T> = Vec::with_capacity(shape.elems());
    each(&mut |_, line| result.push(combine(op, line)));
    tensor(shape.clone(), result)
}

/// Row-major offsets in the plane of the elements of the window at `position`; padding has none.
fn members(window: &Window, extents: &[usize], position: &[usize]) -> Vec<usize> {
    let plane_strides = strides(extents);
    let mut all = vec![0];
    for dim in 0..window.rank() {
        let inside = covered(window, dim, extents[dim], position[dim]);
        all = all
            .iter()
            .flat_map(|&base| inside.iter().map(move |&at| (base, at)))
            .map(|(base, at)| base + at * plane_strides[dim])
            .collect();
    }
    all
}

/// The positions along `dim` that the window at `position` covers, without padding.
fn covered(window: &Window, dim: usize, extent: usize, position: usize) -> Vec<usize> {
    let (start, low) = (position * window.strides[dim], window.low[dim]);
    let first = low.saturating_sub(start).div_ceil(window.dilations[dim]);
    (first..window.kernel[dim])
        .map(|k| start + k * window.dilations[dim] - low)
        .take_while(|&at| at < extent)
        .collect()
}
