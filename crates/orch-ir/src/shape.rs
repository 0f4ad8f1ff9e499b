//! Static shapes.

use std::fmt;
use std::ops::Deref;

/// The extents of a tensor's dimensions, outermost first. A scalar has no dimension; any extent may be 0.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Shape(Vec<usize>);

/// The largest number of elements a tensor may have; larger ones are refused at construction, so that
/// element and byte counts never overflow.
pub const MAX_ELEMS: usize = 1 << 40;

impl Shape {
    /// A shape with these extents, or `None` if it holds more than [`MAX_ELEMS`] elements.
    ///
    /// Zero extents are taken as 1 in that check, so that every sub-shape is in range too.
    pub fn checked(dims: impl Into<Vec<usize>>) -> Option<Self> {
        let dims = dims.into();
        let mut elems = 1usize;
        for &dim in &dims {
            elems = elems.checked_mul(dim.max(1)).filter(|&n| n <= MAX_ELEMS)?;
        }
        Some(Self(dims))
    }

    /// The shape of a scalar.
    pub fn scalar() -> Self {
        Self(Vec::new())
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements.
    pub fn elems(&self) -> usize {
        self.0.iter().product()
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.rank()];
        for dim in (1..self.rank()).rev() {
            strides[dim - 1] = strides[dim] * self.0[dim];
        }
        strides
    }
}

impl From<Vec<usize>> for Shape {
    /// # Panics
    /// If the shape holds more than [`MAX_ELEMS`] elements; use [`Shape::checked`] on sizes that come from
    /// outside.
    fn from(dims: Vec<usize>) -> Self {
        Self::checked(dims).expect("a shape within MAX_ELEMS")
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        dims.to_vec().into()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        dims.to_vec().into()
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (position, dim) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { ", " };
            write!(f, "{separator}{dim}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_row_major() {
        assert_eq!(Shape::from([2, 3, 4]).strides(), [12, 4, 1]);
        assert_eq!(Shape::scalar().strides(), []);
    }

    #[test]
    fn absurd_sizes_are_refused() {
        assert!(Shape::checked([1 << 41]).is_none());
        assert!(Shape::checked([usize::MAX, usize::MAX, 0]).is_none());
        assert_eq!(Shape::checked([0, 7]).map(|s| s.elems()), Some(0));
    }
}
