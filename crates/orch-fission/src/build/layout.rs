//! Layout: what moves elements and computes nothing.

use super::{Built, checked_shape};
use crate::{Context, RuleError};
use orch_ir::{DType, PadMode, PrimOp, Shape, TensorId};

impl Context<'_> {
    /// Broadcasts by numpy's rule: dimensions are aligned at the end.
    ///
    /// # Errors
    /// If `x` does not broadcast to `shape`.
    pub fn broadcast_to(&mut self, x: TensorId, shape: &Shape) -> Built {
        let Some(added) = shape.rank().checked_sub(self.rank(x)) else {
            return Err(RuleError::invalid(format!("{} does not broadcast to {shape}", self.shape(x))));
        };
        let dims: Vec<usize> = (added..shape.rank()).collect();
        self.broadcast(x, shape, &dims)
    }

    /// Broadcasts dimension `i` to dimension `dims[i]` of `shape`; others repeat.
    ///
    /// A broadcast of a broadcast, or of a reshape that only inserts dimensions of extent 1, reads the source.
    ///
    /// # Errors
    /// If `x` does not broadcast to `shape`.
    pub fn broadcast(&mut self, x: TensorId, shape: &Shape, dims: &[usize]) -> Built {
        if self.graph.shape(x) == shape && dims.len() == shape.rank() {
            return Ok(x);
        }
        let from = self.graph.shape(x);
        let kept = |(&extent, &dim): (&usize, &usize)| shape.get(dim) == Some(&extent);
        if from.elems() == shape.elems() && dims.len() == from.rank() && from.iter().zip(dims).all(kept) {
            return self.reshape(x, shape.to_vec());
        }
        if let Some(producer) = self.graph.producer(x) {
            let node = self.graph.node(producer);
            let source = node.inputs.first().copied();
            let inner = match (&node.op, source) {
                (PrimOp::Broadcast { dims: inner, .. }, Some(_)) => Some(inner.clone()),
                (PrimOp::Reshape { shape: to }, Some(source)) => inserted_units(self.graph.shape(source), to),
                _ => None,
            };
            if let (Some(source), Some(inner)) = (source, inner) {
                let composed: Option<Vec<usize>> = inner.iter().map(|&dim| dims.get(dim).copied()).collect();
                if let Some(composed) = composed {
                    return self.broadcast(source, shape, &composed);
                }
            }
        }
        self.emit(PrimOp::Broadcast { shape: shape.clone(), dims: dims.to_vec() }, &[x])
    }

    /// The same elements in row-major order under another shape.
    ///
    /// # Errors
    /// If the element counts differ.
    pub fn reshape(&mut self, x: TensorId, dims: impl Into<Vec<usize>>) -> Built {
        let shape = checked_shape(dims.into())?;
        if *self.graph.shape(x) == shape {
            return Ok(x);
        }
        if let Some((PrimOp::Reshape { .. }, source)) = self.produced_by(x) {
            return self.reshape(source, shape.to_vec());
        }
        self.emit(PrimOp::Reshape { shape }, &[x])
    }

    /// Output dimension `i` is input dimension `perm[i]`.
    ///
    /// # Errors
    /// If `perm` is not a permutation of the dimensions.
    pub fn transpose(&mut self, x: TensorId, perm: &[usize]) -> Built {
        if perm.iter().copied().eq(0..self.rank(x)) {
            return Ok(x);
        }
        if let Some((PrimOp::Transpose { perm: inner }, source)) = self.produced_by(x) {
            let composed: Option<Vec<usize>> = perm.iter().map(|&dim| inner.get(dim).copied()).collect();
            if let Some(composed) = composed {
                return self.transpose(source, &composed);
            }
        }
        self.emit(PrimOp::Transpose { perm: perm.to_vec() }, &[x])
    }

    /// `out[i..] = x[starts + i * steps ..]` with `sizes` elements per dimension.
    ///
    /// # Errors
    /// If the slice leaves the tensor.
    pub fn slice(&mut self, x: TensorId, starts: &[i64], steps: &[i64], sizes: &[usize]) -> Built {
        let whole = sizes == self.graph.shape(x).dims()
            && starts.iter().all(|&start| start == 0)
            && steps.iter().zip(sizes).all(|(&step, &size)| step == 1 || size <= 1);
        if whole {
            return Ok(x);
        }
        self.emit(
            PrimOp::Slice { starts: starts.to_vec(), steps: steps.to_vec(), sizes: sizes.to_vec() },
            &[x],
        )
    }

    /// `size` consecutive positions from `start` on along one axis.
    ///
    /// # Errors
    /// If the slice leaves the tensor.
    pub fn slice_axis(&mut self, x: TensorId, axis: usize, start: usize, size: usize) -> Built {
        let mut sizes = self.shape(x).to_vec();
        let mut starts = vec![0; sizes.len()];
        let steps = vec![1; sizes.len()];
        sizes[axis] = size;
        starts[axis] = start as i64;
        self.slice(x, &starts, &steps, &sizes)
    }

    /// `x` with `before` and `after` copies of a value around one dimension.
    ///
    /// # Errors
    /// If the result is too large.
    pub fn pad_axis(&mut self, x: TensorId, axis: usize, [before, after]: [usize; 2], value: f64) -> Built {
        let rank = self.rank(x);
        let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
        (low[axis], high[axis]) = (before, after);
        let value = self.scalar_like(x, value);
        self.pad(x, PadMode::Constant, (&low, &high), Some(value))
    }

    /// Joins tensors along `axis`; empty ones vanish.
    ///
    /// # Errors
    /// If there is none, or they differ in type or another extent.
    pub fn concat(&mut self, parts: &[TensorId], axis: usize) -> Built {
        let filled: Vec<TensorId> =
            parts.iter().copied().filter(|&part| self.graph.shape(part).get(axis) != Some(&0)).collect();
        match (filled.as_slice(), parts) {
            ([], [first, ..]) => Ok(*first),
            ([only], _) => Ok(*only),
            _ => self.emit(PrimOp::Concat { axis }, &filled),
        }
    }

    /// Adds elements around each dimension. `value` is a scalar, needed by [`PadMode::Constant`] alone (zero if
    /// not given).
    ///
    /// # Errors
    /// If the padding does not suit the shape.
    pub fn pad(
        &mut self,
        x: TensorId,
        mode: PadMode,
        (low, high): (&[usize], &[usize]),
        value: Option<TensorId>,
    ) -> Built {
        if low.iter().chain(high).all(|&amount| amount == 0) {
            return Ok(x);
        }
        let op = PrimOp::Pad { mode, low: low.to_vec(), high: high.to_vec() };
        match mode {
            PadMode::Constant => {
                let value = value.unwrap_or_else(|| self.scalar_like(x, 0.0));
                self.emit(op, &[x, value])
            }
            PadMode::Edge | PadMode::Reflect | PadMode::Wrap => self.emit(op, &[x]),
        }
    }

    /// A tensor of one repeated value.
    ///
    /// # Errors
    /// Never, for a shape that exists.
    pub fn full(&mut self, dtype: DType, value: f64, shape: &Shape) -> Built {
        let scalar = self.scalar(dtype, value);
        self.broadcast_to(scalar, shape)
    }

    /// Positions along `axis`: `out[i..] = i_axis`.
    ///
    /// # Errors
    /// If there is no such axis, or the type is `bool`.
    ///
    /// # Panics
    /// As [`Shape::from`] on absurdly large extents: check sizes that come from outside.
    pub fn iota(&mut self, dtype: DType, shape: impl Into<Shape>, axis: usize) -> Built {
        self.emit(PrimOp::Iota { dtype, shape: shape.into(), axis }, &[])
    }

    /// Inserts a dimension of extent 1 at `axis`.
    ///
    /// # Errors
    /// Never for `axis` up to the rank.
    pub fn unsqueeze(&mut self, x: TensorId, axis: usize) -> Built {
        let mut dims = self.shape(x).to_vec();
        dims.insert(axis, 1);
        self.reshape(x, dims)
    }

    /// The primitive that computes a tensor, if it has one operand at least, with its first operand.
    fn produced_by(&self, x: TensorId) -> Option<(PrimOp, TensorId)> {
        let node = self.graph.node(self.graph.producer(x)?);
        Some((node.op.clone(), *node.inputs.first()?))
    }
}

/// The dimensions of `to` that the dimensions of `from` become, if `to` is `from` with dimensions of extent 1
/// inserted.
pub(super) fn inserted_units(from: &Shape, to: &Shape) -> Option<Vec<usize>> {
    let mut dims = Vec::with_capacity(from.rank());
    for (position, &extent) in to.iter().enumerate() {
        match from.get(dims.len()) {
            Some(&source) if source == extent => dims.push(position),
            _ if extent == 1 => {}
            _ => return None,
        }
    }
    (dims.len() == from.rank()).then_some(dims)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FissionOptions;
    use orch_ir::ReduceOp;

    #[test]
    fn what_does_nothing_vanishes() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let x = ctx.graph.add_input("x", DType::F32, [2, 3]);
        assert_eq!(ctx.reshape(x, [2, 3]), Ok(x));
        assert_eq!(ctx.transpose(x, &[0, 1]), Ok(x));
        assert_eq!(ctx.slice(x, &[0, 0], &[1, 1], &[2, 3]), Ok(x));
        assert_eq!(ctx.cast(x, DType::F32), Ok(x));
        assert_eq!(ctx.broadcast_to(x, &[2, 3].into()), Ok(x));
        let turned = ctx.transpose(x, &[1, 0]).expect("a permutation");
        assert_eq!(ctx.transpose(turned, &[1, 0]), Ok(x));
    }

    #[test]
    fn a_broadcast_looks_through_inserted_dimensions() {
        let options = FissionOptions::default();
        let mut ctx = Context::new("", &options);
        let x = ctx.graph.add_input("x", DType::F32, [2, 3]);
        let column = ctx.reduce_keep(ReduceOp::Sum, x, &[1]).expect("an axis");
        let back = ctx.broadcast_to(column, &[2, 3].into()).expect("broadcasts");
        let node = ctx.graph.node(ctx.graph.producer(back).expect("a node"));
        assert_eq!(node.op, PrimOp::Broadcast { shape: [2, 3].into(), dims: vec![0] });
    }
}
