//! Walking over index spaces in row-major order.

use std::ops::Range;

/// Row-major strides of a shape, in elements.
pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for dim in (1..dims.len()).rev() {
        strides[dim - 1] = strides[dim] * dims[dim];
    }
    strides
}

/// Visits every position of an index space in row-major order. A space without dimensions has one position.
pub struct Odometer<'a> {
    dims: &'a [usize],
    position: Vec<usize>,
    started: bool,
}

impl<'a> Odometer<'a> {
    /// The positions of a space of these extents.
    pub fn new(dims: &'a [usize]) -> Self {
        Self { dims, position: vec![0; dims.len()], started: false }
    }

    /// The next position, or `None` after the last.
    pub fn next(&mut self) -> Option<&[usize]> {
        if !self.started {
            self.started = true;
            return if self.dims.contains(&0) { None } else { Some(&self.position) };
        }
        for dim in (0..self.dims.len()).rev() {
            self.position[dim] += 1;
            if self.position[dim] < self.dims[dim] {
                return Some(&self.position);
            }
            self.position[dim] = 0;
        }
        None
    }
}

/// `sum_d position[d] * strides[d]`.
pub fn dot(position: &[usize], strides: &[usize]) -> usize {
    position.iter().zip(strides).map(|(p, s)| p * s).sum()
}

/// The offset `sum_d position[d] * strides[d]` of every position in row-major order.
pub fn offsets(dims: &[usize], strides: &[usize]) -> Vec<usize> {
    if dims.contains(&0) {
        return Vec::new();
    }
    let mut all = vec![0];
    for (&extent, &stride) in dims.iter().zip(strides) {
        all = all.iter().flat_map(|&base| (0..extent).map(move |at| base + at * stride)).collect();
    }
    all
}

/// For each dimension, the offset that each position along it contributes.
///
/// An access whose dimensions do not interact is such a table: slices, transposes, broadcasts, selections.
pub type Tables = Vec<Vec<usize>>;

/// Offsets `0, stride, 2 * stride, ..` along one dimension.
pub fn steps(range: Range<usize>, stride: usize) -> Vec<usize> {
    range.map(|at| at * stride).collect()
}

/// The tables of a dense row-major tensor.
pub fn dense_tables(dims: &[usize]) -> Tables {
    strided_tables(dims, &strides(dims))
}

/// The tables of an access with one stride per dimension.
pub fn strided_tables(dims: &[usize], strides: &[usize]) -> Tables {
    dims.iter().zip(strides).map(|(&extent, &stride)| steps(0..extent, stride)).collect()
}

/// `target[sum_d to[d][i_d]] = source[sum_d from[d][i_d]]` for every position `i`. Both tables span the same space.
pub fn copy<T: Copy>(target: &mut [T], to: &[Vec<usize>], source: &[T], from: &[Vec<usize>]) {
    let Some(((to_last, to_outer), (from_last, from_outer))) = to.split_last().zip(from.split_last()) else {
        target[0] = source[0];
        return;
    };
    let outer: Vec<usize> = to_outer.iter().map(Vec::len).collect();
    let mut rows = Odometer::new(&outer);
    while let Some(row) = rows.next() {
        let base =
            |tables: &[Vec<usize>]| tables.iter().zip(row).map(|(table, &at)| table[at]).sum::<usize>();
        let (to_base, from_base) = (base(to_outer), base(from_outer));
        for (t, f) in to_last.iter().zip(from_last) {
            target[to_base + t] = source[from_base + f];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_in_row_major_order() {
        let mut odometer = Odometer::new(&[2, 1, 2]);
        let mut seen = Vec::new();
        while let Some(position) = odometer.next() {
            seen.push(position.to_vec());
        }
        assert_eq!(seen, [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]);
        assert_eq!(Odometer::new(&[]).next(), Some(&[][..]));
        assert_eq!(Odometer::new(&[3, 0]).next(), None);
    }

    #[test]
    fn offsets_agree_with_the_odometer() {
        let (dims, strides) = ([3, 1, 2], [1, 7, 5]);
        let mut expected = Vec::new();
        let mut odometer = Odometer::new(&dims);
        while let Some(position) = odometer.next() {
            expected.push(dot(position, &strides));
        }
        assert_eq!(offsets(&dims, &strides), expected);
        assert_eq!(offsets(&[], &[]), [0]);
        assert_eq!(offsets(&[2, 0], &[1, 1]), [0usize; 0]);
    }
}
