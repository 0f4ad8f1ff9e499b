//! Dense arrays in row-major order, and the operations that only move elements.

/// Elements with a shape.
#[derive(Clone, PartialEq, Debug)]
pub struct Array<T> {
    /// The shape.
    pub shape: Vec<usize>,
    /// The elements.
    pub data: Vec<T>,
}

impl<T: Copy> Array<T> {
    /// An array of one value.
    pub fn full(shape: &[usize], value: T) -> Array<T> {
        Array { shape: shape.to_vec(), data: vec![value; crate::op::elems(shape)] }
    }

    /// An array of a function of the flat position.
    pub fn from_fn(shape: &[usize], element: impl FnMut(usize) -> T) -> Array<T> {
        Array { shape: shape.to_vec(), data: (0..crate::op::elems(shape)).map(element).collect() }
    }

    /// A function of each element.
    pub fn map<U: Copy>(&self, f: impl FnMut(T) -> U) -> Array<U> {
        Array { shape: self.shape.clone(), data: self.data.iter().copied().map(f).collect() }
    }

    /// Extents around a dimension: of those before it, its own, of those after it.
    pub fn around(shape: &[usize], dim: usize) -> (usize, usize, usize) {
        let product = crate::op::elems;
        (product(&shape[..dim]), shape[dim], product(&shape[dim + 1..]))
    }

    /// A function of the elements of two arrays, with extents of 1 repeated.
    pub fn zip<U: Copy, V: Copy>(
        &self,
        other: &Array<U>,
        shape: &[usize],
        mut f: impl FnMut(T, U) -> V,
    ) -> Array<V> {
        if self.shape == other.shape {
            let data = self.data.iter().zip(&other.data).map(|(&a, &b)| f(a, b)).collect();
            return Array { shape: shape.to_vec(), data };
        }
        let mut data = Vec::with_capacity(crate::op::elems(shape));
        let (last, outer) = shape.split_last().map_or((1, &[][..]), |(last, outer)| (*last, outer));
        let steps = |own: &[usize]| usize::from(own.last().is_some_and(|&extent| extent != 1));
        let (lhs_step, rhs_step) = (steps(&self.shape), steps(&other.shape));
        let cut = |own: &[usize]| own[..own.len().saturating_sub(1)].to_vec();
        let (lhs_outer, rhs_outer) = (cut(&self.shape), cut(&other.shape));
        let (lhs_row, rhs_row) =
            (self.shape.last().copied().unwrap_or(1), other.shape.last().copied().unwrap_or(1));
        if last > 0 {
            for (lhs, rhs) in repeated(&lhs_outer, outer).zip(repeated(&rhs_outer, outer)) {
                for column in 0..last {
                    let lhs = self.data[lhs * lhs_row + column * lhs_step];
                    let rhs = other.data[rhs * rhs_row + column * rhs_step];
                    data.push(f(lhs, rhs));
                }
            }
        }
        Array { shape: shape.to_vec(), data }
    }

    /// Extents of 1 repeated.
    pub fn broadcast(&self, shape: &[usize]) -> Array<T> {
        if self.shape == shape {
            return self.clone();
        }
        Array { shape: shape.to_vec(), data: repeated(&self.shape, shape).map(|at| self.data[at]).collect() }
    }

    /// Element `j` along `dim` of the result combines elements `j, j + keep, ..`.
    pub fn reduce(&self, dim: usize, keep: usize, start: T, mut f: impl FnMut(T, T) -> T) -> Array<T> {
        let (outer, extent, inner) = Self::around(&self.shape, dim);
        let mut result = Array::full(&crate::op::with(&self.shape, dim, keep), start);
        for o in 0..outer {
            for e in 0..extent {
                let (from, to) = ((o * extent + e) * inner, (o * keep + e % keep) * inner);
                for i in 0..inner {
                    result.data[to + i] = f(result.data[to + i], self.data[from + i]);
                }
            }
        }
        result
    }

    /// The elements in some ranges: start and length per dimension.
    pub fn slice(&self, ranges: &[(usize, usize)]) -> Array<T> {
        let shape: Vec<usize> = ranges.iter().map(|&(_, len)| len).collect();
        let Some((&(_, len), outer)) = ranges.split_last() else { return self.clone() };
        let mut data = Vec::with_capacity(crate::op::elems(&shape));
        if crate::op::elems(&shape) > 0 {
            let steps = strides(&self.shape);
            let first: usize = ranges.iter().zip(&steps).map(|((start, _), step)| start * step).sum();
            for at in walk(&shape[..outer.len()], &steps[..outer.len()]) {
                data.extend_from_slice(&self.data[first + at..][..len]);
            }
        }
        Array { shape, data }
    }

    /// Arrays one after the other along a dimension; there must be one at least.
    pub fn concat(parts: &[&Array<T>], dim: usize) -> Array<T> {
        let extent = parts.iter().map(|part| part.shape[dim]).sum();
        let shape = crate::op::with(&parts[0].shape, dim, extent);
        let (outer, _, inner) = Self::around(&shape, dim);
        let mut data = Vec::with_capacity(crate::op::elems(&shape));
        for o in 0..outer {
            for part in parts {
                let row = part.shape[dim] * inner;
                data.extend_from_slice(&part.data[o * row..(o + 1) * row]);
            }
        }
        Array { shape, data }
    }

    /// Each element along a dimension several times in a row.
    pub fn repeat(&self, dim: usize, times: usize) -> Array<T> {
        let (_, extent, inner) = Self::around(&self.shape, dim);
        let shape = crate::op::with(&self.shape, dim, extent * times);
        let row = (inner * times).max(1);
        Array::from_fn(&shape, |flat| self.data[flat / row * inner + flat % inner])
    }

    /// The halves of each run of `2 * group` elements along a dimension exchanged, those that come first negated.
    pub fn rotate(&self, dim: usize, group: usize, negate: impl Fn(T) -> T) -> Array<T> {
        let (_, _, inner) = Self::around(&self.shape, dim);
        let half = (group * inner).max(1);
        let element = |flat: usize| match flat / half % 2 {
            0 => negate(self.data[flat + half]),
            _ => self.data[flat - half],
        };
        Array::from_fn(&self.shape, element)
    }

    /// Dimensions in another order.
    pub fn transpose(&self, perm: &[usize]) -> Array<T> {
        let shape: Vec<usize> = perm.iter().map(|&dim| self.shape[dim]).collect();
        let strides = strides(&self.shape);
        let steps: Vec<usize> = perm.iter().map(|&dim| strides[dim]).collect();
        let data = walk(&shape, &steps).map(|at| self.data[at]).collect();
        Array { shape, data }
    }
}

/// Distance in elements between neighbours along each dimension.
pub fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim];
    }
    strides
}

/// For each element of `shape`, in order, the flat position in an array whose extents of 1 are repeated to it.
pub fn repeated(own: &[usize], shape: &[usize]) -> impl Iterator<Item = usize> + use<> {
    let mut steps = strides(own);
    for (step, &extent) in steps.iter_mut().zip(own) {
        if extent == 1 {
            *step = 0;
        }
    }
    walk(shape, &steps)
}

/// For each index below `shape`, in order, the sum of `steps` as often as it says.
fn walk(shape: &[usize], steps: &[usize]) -> impl Iterator<Item = usize> + use<> {
    let (shape, steps) = (shape.to_vec(), steps.to_vec());
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    (0..crate::op::elems(&shape)).map(move |_| {
        let now = at;
        for dim in (0..shape.len()).rev() {
            index[dim] += 1;
            at += steps[dim];
            if index[dim] < shape[dim] {
                break;
            }
            at -= steps[dim] * shape[dim];
            index[dim] = 0;
        }
        now
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_move_as_described() {
        let array = Array::from_fn(&[2, 3], |i| i);
        assert_eq!(array.transpose(&[1, 0]).data, [0, 3, 1, 4, 2, 5]);
        assert_eq!(array.slice(&[(0, 2), (1, 2)]).data, [1, 2, 4, 5]);
        assert_eq!(array.reduce(1, 1, 0, |a, b| a + b).data, [3, 12]);
        let column = Array::from_fn(&[2, 1], |i| 10 * i);
        assert_eq!(array.zip(&column, &[2, 3], |a, b| a + b).data, [0, 1, 2, 13, 14, 15]);
        assert_eq!(Array::concat(&[&array, &column], 1).data, [0, 1, 2, 0, 3, 4, 5, 10]);
        assert_eq!(Array::from_fn(&[1, 6], |i| i).reduce(1, 2, 0, |a, b| a + b).data, [6, 9]);
        assert_eq!(array.repeat(0, 2).data, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
        let signed = Array::from_fn(&[2, 4], |i| i as i64 + 1);
        assert_eq!(signed.rotate(1, 2, |x| -x).data, [-3, -4, 1, 2, -7, -8, 5, 6]);
        assert_eq!(signed.rotate(1, 1, |x| -x).data, [-2, 1, -4, 3, -6, 5, -8, 7]);
        assert_eq!(signed.rotate(0, 1, |x| -x).data, [-5, -6, -7, -8, 1, 2, 3, 4]);
        assert_eq!(column.broadcast(&[2, 2]).data, [0, 0, 10, 10]);
    }
}
