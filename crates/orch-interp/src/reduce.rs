//! Reductions over axes.

use crate::element::{Accumulator, Element, elems, tensor};
use crate::index::{offsets, strides};
use crate::scalar::{Calc, max, min};
use orch_ir::{ReduceOp, Shape, Tensor};

/// Reduces `axes` of `x`; `shape` is what remains.
pub fn reduce<T: Element>(op: ReduceOp, axes: &[usize], x: &Tensor, shape: &Shape) -> Tensor {
    let x_strides = strides(x.shape());
    let spanned = |dims: Vec<usize>| -> Vec<usize> {
        let extents: Vec<usize> = dims.iter().map(|&dim| x.shape()[dim]).collect();
        let steps: Vec<usize> = dims.iter().map(|&dim| x_strides[dim]).collect();
        offsets(&extents, &steps)
    };
    let kept = spanned((0..x.shape().rank()).filter(|dim| !axes.contains(dim)).collect());
    let reduced = spanned(axes.to_vec());
    let values = elems::<T>(x);
    let line = |base: usize| reduced.iter().map(|&offset| values[base + offset]).collect::<Vec<T>>();
    if let Some(wanted) = Wanted::by(op) {
        let positions = kept.iter().map(|&base| wanted.position(&line(base)) as i64);
        return tensor(shape.clone(), positions.collect());
    }
    tensor(shape.clone(), kept.iter().map(|&base| combine(op, &line(base))).collect())
}

/// Combines elements to one value: for an arg-reduction the extreme one, whose position [`Wanted`] finds.
pub fn combine<T: Element>(op: ReduceOp, line: &[T]) -> T {
    match op {
        ReduceOp::Sum => T::from_acc(line.iter().fold(T::Acc::ZERO, |acc, v| acc.add(v.to_acc()))),
        ReduceOp::Prod => T::from_acc(line.iter().fold(T::Acc::ONE, |acc, v| acc.mul(v.to_acc()))),
        ReduceOp::Max | ReduceOp::ArgMax { .. } => {
            T::narrow(line.iter().fold(T::lowest().widen(), |acc, v| max(acc, v.widen())))
        }
        ReduceOp::Min | ReduceOp::ArgMin { .. } => {
            T::narrow(line.iter().fold(T::highest().widen(), |acc, v| min(acc, v.widen())))
        }
    }
}

/// Which element of a line an arg-reduction looks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The largest, not the smallest.
    largest: bool,
    /// The last of equals, not the first.
    last: bool,
}

impl Wanted {
    /// What `op` looks for; `None` if it yields a value.
    pub fn by(op: ReduceOp) -> Option<Self> {
        match op {
            ReduceOp::ArgMax { last } => Some(Self { largest: true, last }),
            ReduceOp::ArgMin { last } => Some(Self { largest: false, last }),
            ReduceOp::Sum | ReduceOp::Prod | ReduceOp::Max | ReduceOp::Min => None,
        }
    }

    /// The position of the element; NaN counts as more extreme than anything. 0 for an empty line.
    pub fn position<T: Element>(self, line: &[T]) -> usize {
        let mut best = 0;
        for (position, candidate) in line.iter().enumerate().skip(1) {
            let (new, old) = (candidate.widen(), line[best].widen());
            let tie = new == old || (new.is_nan() && old.is_nan());
            let beats = if self.largest { new > old } else { new < old };
            if beats || (new.is_nan() && !old.is_nan()) || (tie && self.last) {
                best = position;
            }
        }
        best
    }
}
