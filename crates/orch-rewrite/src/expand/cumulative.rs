//! Sums and products up to each position of an axis, as masked sums.
//!
//! One of few elements adds those up to each position. One of many is of blocks of [`BLOCK`]: the sums within each, and what the blocks
//! before come to, which is a shorter cumulative sum.
//!
//! ```text
//! x        [n]       =  [n / 32, 32]
//! within   [n / 32, 32]     sum of x[b, j] for j <= i
//! before   [n / 32]         exclusive cumulative sum of the blocks' sums
//! y        [n]       =  within[b, i] + before[b]
//! ```

use super::{Emit, ExpandLimits, identity};
use orch_ir::{CompareFn, Cumulative, DType, PadMode, PrimOp, ScalarFn, Shape, Tensor, TensorId};

/// Elements of a block of a long cumulative sum.
const BLOCK: usize = 32;

/// The longest cumulative sum that adds up all elements for each position.
const SHORT: usize = 64;

impl Emit<'_> {
    /// Sums or products up to each position, in the operand's type.
    pub(super) fn cumulative(
        &mut self,
        x: TensorId,
        spec: Cumulative,
        limits: ExpandLimits,
    ) -> Option<Vec<TensorId>> {
        let (dtype, shape) = (self.graph.dtype(x), self.shape(x));
        if shape[spec.axis] > limits.cumulated || shape.elems() == 0 {
            return None;
        }
        if !matches!(dtype, DType::F16 | DType::BF16) {
            return Some(vec![self.block_cumulative(x, spec)?]);
        }
        let wide = self.cast(DType::F32, x);
        let results = self.block_cumulative(wide, spec)?;
        Some(vec![self.cast(dtype, results)])
    }

    /// Within blocks, with what the blocks before come to.
    fn block_cumulative(&mut self, x: TensorId, spec: Cumulative) -> Option<TensorId> {
        let shape = self.shape(x);
        let (axis, extent) = (spec.axis, shape[spec.axis]);
        if extent <= SHORT {
            return self.short_cumulative(x, spec);
        }
        let blocks = extent.div_ceil(BLOCK);
        let (low, mut high) = (vec![0; shape.rank()], vec![0; shape.rank()]);
        high[axis] = blocks * BLOCK - extent;
        let dtype = self.graph.dtype(x);
        let identity = Tensor::from_f64(dtype, Shape::scalar(), &[identity(spec.op, dtype)?]);
        let identity = self.graph.add_constant(identity);
        let pad = PrimOp::Pad { mode: PadMode::Constant, low, high: high.clone() };
        let padded = if high[axis] > 0 { self.add(pad, &[x, identity]) } else { x };
        let joined = self.shape(padded);
        let mut split = joined.to_vec();
        split.splice(axis..=axis, [blocks, BLOCK]);
        let split = self.reshape(padded, split);
        let within = self.short_cumulative(split, Cumulative { axis: axis + 1, ..spec })?;
        let totals = self.reduce(spec.op, split, axis + 1);
        let before = self.block_cumulative(totals, Cumulative { exclusive: true, ..spec })?;
        let before = self.repeated(before, axis + 1, BLOCK);
        let results = self.binary(spec.op.combining()?, within, before);
        let results = self.reshape(results, joined.to_vec());
        if high[axis] == 0 {
            return Some(results);
        }
        let (starts, steps) = (vec![0; shape.rank()], vec![1; shape.rank()]);
        Some(self.add(PrimOp::Slice { starts, steps, sizes: shape.to_vec() }, &[results]))
    }

    /// The same for few elements: each result reads all of them.
    fn short_cumulative(&mut self, x: TensorId, spec: Cumulative) -> Option<TensorId> {
        let (axis, extent) = (spec.axis, self.shape(x)[spec.axis]);
        // [.., position, element, ..]
        let elements = self.repeated(x, axis, extent);
        let pairs = self.shape(elements);
        let (position, element) = (self.iota(&pairs, axis), self.iota(&pairs, axis + 1));
        let side = match (spec.reverse, spec.exclusive) {
            (false, false) => CompareFn::Le,
            (false, true) => CompareFn::Lt,
            (true, false) => CompareFn::Ge,
            (true, true) => CompareFn::Gt,
        };
        let is_combined = self.compare(side, element, position);
        let dtype = self.graph.dtype(x);
        let nothing = self.full(dtype, identity(spec.op, dtype)?, &pairs);
        let combined = self.map(ScalarFn::Select, &[is_combined, elements, nothing]);
        Some(self.reduce(spec.op, combined, axis + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::is_the_same;
    use super::*;
    use orch_ir::{OpaqueKind, OpaqueOp, PrimGraph, ReduceOp};

    #[test]
    fn cumulative_sums_are_masked_sums_of_blocks() {
        for extent in [1, 2, 64, 65, 96, 200, 2100] {
            for (dtype, op) in
                [(DType::F32, ReduceOp::Sum), (DType::F16, ReduceOp::Sum), (DType::I32, ReduceOp::Prod)]
            {
                for (exclusive, reverse) in [(false, false), (true, false), (false, true), (true, true)] {
                    let mut graph = PrimGraph::new("g");
                    let shape = Shape::from([2, extent, 1]);
                    let x = graph.add_input("x", dtype, shape.clone());
                    let kind = OpaqueKind::Cumulative(Cumulative { axis: 1, op, exclusive, reverse });
                    let op = OpaqueOp { kind, results: vec![(dtype, shape.clone())] };
                    let y = graph.add(PrimOp::Opaque(Box::new(op)), &[x]).unwrap();
                    graph.add_output("y", y);
                    let values: Vec<f64> = (0..2 * extent).map(|at| (at % 7) as f64 - 2.0).collect();
                    is_the_same(&graph, &[Tensor::from_f64(dtype, shape, &values)]);
                }
            }
        }
    }
}
