//! How a tensor's elements lie in memory: a permutation of its dimensions, packed.

use orch_ir::Shape;

/// The order of a tensor's dimensions in memory, outermost first: `[0, 1, .., n-1]` is row-major, `[0, 2, 3, 1]`
/// stores an `[n, c, h, w]` tensor channels-last. Elements are packed without gaps.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Layout {
    order: Vec<usize>,
}

impl Layout {
    /// Row-major.
    pub fn row_major(rank: usize) -> Self {
        Self { order: (0..rank).collect() }
    }

    /// Batch first, channels (dimension 1) innermost; row-major below rank 3.
    pub fn channels_last(rank: usize) -> Self {
        if rank < 3 {
            return Self::row_major(rank);
        }
        Self { order: std::iter::once(0).chain(2..rank).chain([1]).collect() }
    }

    /// A layout with this order of dimensions, or `None` if it is not a permutation.
    pub fn from_order(order: Vec<usize>) -> Option<Self> {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        sorted.iter().copied().eq(0..order.len()).then_some(Self { order })
    }

    /// Dimensions, outermost in memory first.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// True for row-major order.
    pub fn is_row_major(&self) -> bool {
        self.order.iter().copied().eq(0..self.order.len())
    }

    /// The stride in elements of each logical dimension.
    pub fn strides(&self, shape: &Shape) -> Vec<usize> {
        let mut strides = vec![1; shape.rank()];
        let mut stride = 1;
        for &dim in self.order.iter().rev() {
            strides[dim] = stride;
            stride *= shape[dim];
        }
        strides
    }

    /// The layout of `transpose(x, perm)` over the same bytes as `x` in this layout.
    pub fn transposed(&self, perm: &[usize]) -> Self {
        let mut position = vec![0; perm.len()];
        for (to, &from) in perm.iter().enumerate() {
            position[from] = to;
        }
        Self { order: self.order.iter().map(|&dim| position[dim]).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_last_strides() {
        let shape = Shape::from([2, 3, 4, 5]);
        assert_eq!(Layout::channels_last(4).strides(&shape), [60, 1, 15, 3]);
    }

    #[test]
    fn transposition_is_free() {
        // NCHW logical, stored channels-last; its transpose to NHWC is row-major over the same bytes.
        assert!(Layout::channels_last(4).transposed(&[0, 2, 3, 1]).is_row_major());
    }
}
