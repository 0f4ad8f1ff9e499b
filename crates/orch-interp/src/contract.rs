//! Contractions: every product of two operands with summed labels.
//!
//! Labels fall into four groups: *batch* (both operands and the result), *m* (left and result), *n* (right and
//! result), *k* (both, summed). Labels of one operand alone that are summed are summed first. Both operands are
//! copied to `[batch, m, k]` and `[batch, k, n]`, multiplied, and the result is copied to the order asked for.

use crate::element::{Accumulator, Element, elems, tensor};
use crate::index::{Tables, copy, dense_tables, offsets, steps, strides};
use crate::matmul::{MatmulExtents, multiply_add};
use orch_ir::{Contract, Shape, Tensor};

/// The contraction of `lhs` and `rhs`; `shape` is the result's.
pub fn contract<T: Element>(labels: &Contract, lhs: &Tensor, rhs: &Tensor, shape: &Shape) -> Tensor {
    if lhs.shape().elems() == 0 || rhs.shape().elems() == 0 {
        return Tensor::zeros(T::DTYPE, shape.clone());
    }
    let kept = |label: u8| labels.out.contains(&label);
    let left = Operand::of::<T>(lhs, &labels.lhs, |label| kept(label) || labels.rhs.contains(&label));
    let right = Operand::of::<T>(rhs, &labels.rhs, |label| kept(label) || labels.lhs.contains(&label));
    let product = if left.only_extent(&right) <= right.only_extent(&left) {
        multiply(&left, &right, kept)
    } else {
        multiply(&right, &left, kept)
    };
    let result = product.arranged(&labels.out);
    tensor(shape.clone(), result.into_iter().map(T::from_acc).collect())
}

/// A dense labelled array.
struct Operand<A> {
    labels: Vec<u8>,
    dims: Vec<usize>,
    values: Vec<A>,
}

impl<A: Accumulator> Operand<A> {
    /// A tensor with the labels for which `needed` does not hold summed away.
    fn of<T: Element<Acc = A>>(x: &Tensor, labels: &[u8], needed: impl Fn(u8) -> bool) -> Self {
        let x_strides = strides(x.shape());
        let (kept, summed): (Vec<usize>, Vec<usize>) =
            (0..labels.len()).partition(|&dim| needed(labels[dim]));
        let pick = |list: &[usize], dims: &[usize]| dims.iter().map(|&dim| list[dim]).collect::<Vec<_>>();
        let dims = pick(x.shape(), &kept);
        let bases = offsets(&dims, &pick(&x_strides, &kept));
        let summed = offsets(&pick(x.shape(), &summed), &pick(&x_strides, &summed));
        let elements = elems::<T>(x);
        let sum = |base: usize| {
            summed.iter().fold(A::ZERO, |acc, offset| acc.add(elements[base + offset].to_acc()))
        };
        let values = if summed.len() == 1 {
            bases.iter().map(|&base| elements[base].to_acc()).collect()
        } else {
            bases.iter().map(|&base| sum(base)).collect()
        };
        Self { labels: kept.iter().map(|&dim| labels[dim]).collect(), dims, values }
    }

    /// The extent of a label, 1 where the operand lacks it.
    fn extent(&self, label: u8) -> usize {
        self.labels.iter().position(|&l| l == label).map_or(1, |dim| self.dims[dim])
    }

    /// The number of elements over the labels that `other` lacks.
    fn only_extent(&self, other: &Self) -> usize {
        self.labels.iter().filter(|l| !other.labels.contains(l)).map(|&l| self.extent(l)).product()
    }

    /// The values in row-major order of these labels, which are the operand's in another order.
    fn arranged(&self, order: &[u8]) -> Vec<A> {
        let own = strides(&self.dims);
        let dims: Vec<usize> = order.iter().map(|&label| self.extent(label)).collect();
        let table = |label: &u8| {
            let dim = self.labels.iter().position(|l| l == label).expect("the order permutes the labels");
            steps(0..self.dims[dim], own[dim])
        };
        let mut values = vec![A::ZERO; self.values.len()];
        if !values.is_empty() {
            copy(
                &mut values,
                &dense_tables(&dims),
                &self.values,
                &order.iter().map(table).collect::<Tables>(),
            );
        }
        values
    }
}

/// The product, with labels `batch, m, n`.
fn multiply<A: Accumulator>(left: &Operand<A>, right: &Operand<A>, kept: impl Fn(u8) -> bool) -> Operand<A> {
    let labels_where = |from: &Operand<A>, test: &dyn Fn(u8) -> bool| -> Vec<u8> {
        from.labels.iter().copied().filter(|&label| test(label)).collect()
    };
    let batch = labels_where(left, &|l| kept(l) && right.labels.contains(&l));
    let m = labels_where(left, &|l| kept(l) && !right.labels.contains(&l));
    let k = labels_where(left, &|l| !kept(l));
    let n = labels_where(right, &|l| kept(l) && !left.labels.contains(&l));
    let extent = |group: &[u8]| group.iter().map(|&l| left.extent(l) * right.extent(l)).product::<usize>();
    // A shared label has the same extent in both operands; only one of them may count.
    let shared = |group: &[u8]| group.iter().map(|&l| left.extent(l)).product::<usize>();
    let extents = MatmulExtents { m: extent(&m), n: extent(&n), k: shared(&k) };

    let lhs = left.arranged(&[&batch[..], &m, &k].concat());
    let rhs = right.arranged(&[&batch[..], &k, &n].concat());
    let mut values = vec![A::ZERO; shared(&batch) * extents.m * extents.n];
    let parts = values.chunks_mut(extents.m * extents.n);
    let operands = lhs.chunks(extents.m * extents.k).zip(rhs.chunks(extents.k * extents.n));
    parts.zip(operands).for_each(|(acc, (lhs, rhs))| multiply_add(acc, lhs, rhs, extents));
    let labels = [&batch[..], &m, &n].concat();
    let dims =
        labels.iter().map(|&l| if left.labels.contains(&l) { left.extent(l) } else { right.extent(l) });
    Operand { dims: dims.collect(), labels, values }
}
