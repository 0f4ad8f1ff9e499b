//! Convolutions and their adjoints.
//!
//! For each image, group and kernel position, the operand elements that this position meets form a matrix
//! `[channels, result positions]` (0 in the padding), and the weights of this position a matrix
//! `[result channels, channels]`: their product is added to the result.

use crate::element::{Accumulator, Element, elems, tensor};
use crate::index::{Odometer, strides};
use crate::matmul::{MatmulExtents, multiply_add};
use orch_ir::{ConvSpec, Shape, Tensor, Window};

/// `x [n, c, d..]`, `w [m, c / groups, k..]` -> `[n, m, e..]`, which is `shape`.
pub fn conv<T: Element>(spec: &ConvSpec, x: &Tensor, w: &Tensor, shape: &Shape) -> Tensor {
    if x.shape().elems() == 0 || w.shape().elems() == 0 {
        return Tensor::zeros(T::DTYPE, shape.clone());
    }
    let (x_plane, plane) = (x.shape()[2..].iter().product::<usize>(), shape[2..].iter().product::<usize>());
    let extents = MatmulExtents { m: w.shape()[0] / spec.groups, n: plane, k: w.shape()[1] };
    let taps = kernel_size(&spec.window);
    let sources = taps_of(&spec.window, &x.shape()[2..], &shape[2..]);
    let (x_elems, weights) = (accumulators::<T>(x), accumulators::<T>(w));
    let mut acc = vec![T::Acc::ZERO; shape.elems()];
    let mut met = vec![T::Acc::ZERO; extents.k * plane];
    let part = extents.m * plane;
    for index in 0..shape[0] * spec.groups {
        let group = index % spec.groups;
        let channels = &x_elems[index * extents.k * x_plane..][..extents.k * x_plane];
        let filters = &weights[group * extents.m * extents.k * taps..][..extents.m * extents.k * taps];
        for (tap, source) in sources.iter().enumerate() {
            for (row, channel) in met.chunks_mut(plane).zip(channels.chunks(x_plane)) {
                for (value, offset) in row.iter_mut().zip(source) {
                    *value = offset.map_or(T::Acc::ZERO, |offset| channel[offset]);
                }
            }
            let filter: Vec<T::Acc> = filters.iter().copied().skip(tap).step_by(taps).collect();
            multiply_add(&mut acc[index * part..][..part], &filter, &met, extents);
        }
    }
    tensor(shape.clone(), acc.into_iter().map(T::from_acc).collect())
}

/// `x [n, c, d..]`, `w [c, m / groups, k..]` -> `[n, m, e..]`, which is `shape`: each operand element is spread over
/// the positions that a convolution with this window would have read for it.
pub fn conv_transpose<T: Element>(spec: &ConvSpec, x: &Tensor, w: &Tensor, shape: &Shape) -> Tensor {
    if x.shape().elems() == 0 || w.shape().elems() == 0 {
        return Tensor::zeros(T::DTYPE, shape.clone());
    }
    let (x_plane, plane) = (x.shape()[2..].iter().product::<usize>(), shape[2..].iter().product::<usize>());
    let extents = MatmulExtents { m: w.shape()[1], n: x_plane, k: w.shape()[0] / spec.groups };
    let taps = kernel_size(&spec.window);
    let targets = taps_of(&spec.window, &shape[2..], &x.shape()[2..]);
    let (x_elems, weights) = (accumulators::<T>(x), accumulators::<T>(w));
    let mut acc = vec![T::Acc::ZERO; shape.elems()];
    let part = extents.m * plane;
    for index in 0..shape[0] * spec.groups {
        let group = index % spec.groups;
        let channels = &x_elems[index * extents.k * x_plane..][..extents.k * x_plane];
        let filters = &weights[group * extents.k * extents.m * taps..][..extents.k * extents.m * taps];
        for (tap, target) in targets.iter().enumerate() {
            let filter: Vec<T::Acc> = (0..extents.m * extents.k)
                .map(|at| filters[((at % extents.k) * extents.m + at / extents.k) * taps + tap])
                .collect();
            let mut spread = vec![T::Acc::ZERO; extents.m * x_plane];
            multiply_add(&mut spread, &filter, channels, extents);
            for (row, sums) in spread.chunks(x_plane).zip(acc[index * part..].chunks_mut(plane)) {
                for (&value, offset) in row.iter().zip(target) {
                    if let Some(offset) = *offset {
                        sums[offset] = sums[offset].add(value);
                    }
                }
            }
        }
    }
    tensor(shape.clone(), acc.into_iter().map(T::from_acc).collect())
}

/// All elements as accumulators.
fn accumulators<T: Element>(x: &Tensor) -> Vec<T::Acc> {
    elems::<T>(x).iter().map(|v| v.to_acc()).collect()
}

/// The number of positions in a window.
fn kernel_size(window: &Window) -> usize {
    window.kernel.iter().product()
}

/// For each kernel position, for each window in row-major order, the offset in the plane of these `extents` that it
/// meets; `None` in the padding.
fn taps_of(window: &Window, extents: &[usize], windows: &[usize]) -> Vec<Vec<Option<usize>>> {
    let plane_strides = strides(extents);
    let mut all = Vec::with_capacity(kernel_size(window));
    let mut kernel = Odometer::new(&window.kernel);
    while let Some(tap) = kernel.next() {
        let mut met = Vec::with_capacity(windows.iter().product());
        let mut positions = Odometer::new(windows);
        while let Some(position) = positions.next() {
            let offset = (0..window.rank()).map(|dim| {
                let padded = position[dim] * window.strides[dim] + tap[dim] * window.dilations[dim];
                let at = padded.checked_sub(window.low[dim]).filter(|&at| at < extents[dim])?;
                Some(at * plane_strides[dim])
            });
            met.push(offset.sum());
        }
        all.push(met);
    }
    all
}
