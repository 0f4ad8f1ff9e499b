//! The kernel behind contractions and convolutions: `acc[m, n] += lhs[m, k] * rhs[k, n]`.
//!
//! The only place of this crate that is written for speed: four rows share each load of `rhs`, columns are
//! taken in tiles that stay in cache, and row blocks run on several threads. Each element is still summed in
//! increasing `k`, so the result does not depend on blocking or threads.

use crate::element::Accumulator;
use rayon::prelude::*;

/// Rows that share each load of `rhs`.
const ROWS: usize = 4;
/// Columns of one tile: four accumulator rows of it fit L1.
const COLUMNS: usize = 256;
/// Products below which threads are not worth starting.
const PARALLEL_PRODUCTS: usize = 1 << 20;

/// MatmulExtents of a product.
#[derive(Clone, Copy, Debug)]
pub struct MatmulExtents {
    /// Rows of the result.
    pub m: usize,
    /// Columns of the result.
    pub n: usize,
    /// Products summed per element.
    pub k: usize,
}

/// Adds the product of two dense row-major matrices to `acc`.
pub fn multiply_add<A: Accumulator>(acc: &mut [A], lhs: &[A], rhs: &[A], extents: MatmulExtents) {
    let MatmulExtents { m, n, k } = extents;
    if m * n * k == 0 {
        return;
    }
    let block = |(acc_rows, lhs_rows): (&mut [A], &[A])| row_block(acc_rows, lhs_rows, rhs, n);
    if m * n * k < PARALLEL_PRODUCTS {
        acc.chunks_mut(ROWS * n).zip(lhs.chunks(ROWS * k)).for_each(block);
    } else {
        acc.par_chunks_mut(ROWS * n).zip(lhs.par_chunks(ROWS * k)).for_each(block);
    }
}

/// Up to [`ROWS`] rows of the result, tile by tile.
fn row_block<A: Accumulator>(acc: &mut [A], lhs: &[A], rhs: &[A], n: usize) {
    for start in (0..n).step_by(COLUMNS) {
        let columns = start..(start + COLUMNS).min(n);
        let mut tiles: Vec<&mut [A]> = acc.chunks_mut(n).map(|row| &mut row[columns.clone()]).collect();
        let k = lhs.len() / tiles.len();
        let lines = rhs.chunks(n).map(|line| &line[columns.clone()]).enumerate();
        if let [a0, a1, a2, a3] = &mut tiles[..] {
            for (step, line) in lines {
                let [x0, x1, x2, x3] = [lhs[step], lhs[k + step], lhs[2 * k + step], lhs[3 * k + step]];
                let accs = a0.iter_mut().zip(a1.iter_mut()).zip(a2.iter_mut()).zip(a3.iter_mut());
                for ((((a0, a1), a2), a3), &y) in accs.zip(line) {
                    *a0 = a0.add(x0.mul(y));
                    *a1 = a1.add(x1.mul(y));
                    *a2 = a2.add(x2.mul(y));
                    *a3 = a3.add(x3.mul(y));
                }
            }
        } else {
            for (step, line) in lines {
                for (row, tile) in tiles.iter_mut().enumerate() {
                    let x = lhs[row * k + step];
                    tile.iter_mut().zip(line).for_each(|(a, &y)| *a = a.add(x.mul(y)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_definition() {
        for (m, n, k) in
            [(1, 1, 1), (4, 256, 3), (5, 257, 2), (3, 7, 11), (9, 255, 1), (8, 1, 5), (0, 3, 2), (2, 3, 0)]
        {
            let lhs: Vec<i64> = (0..m * k).map(|v| (v as i64 * 7) % 13 - 6).collect();
            let rhs: Vec<i64> = (0..k * n).map(|v| (v as i64 * 5) % 11 - 5).collect();
            let mut acc = vec![1i64; m * n];
            multiply_add(&mut acc, &lhs, &rhs, MatmulExtents { m, n, k });
            for (position, &value) in acc.iter().enumerate() {
                let (row, column) = (position / n, position % n);
                let expected: i64 = (0..k).map(|s| lhs[row * k + s] * rhs[s * n + column]).sum();
                assert_eq!(value, 1 + expected, "[{m}, {n}, {k}] at {row}, {column}");
            }
        }
    }
}
