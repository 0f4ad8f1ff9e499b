//! A lowered block program with what must be passed to it.

use crate::program::ThreadProgram;
use orch_compute::expr::ArgId;
use orch_ir::{DType, Tensor};

/// A kernel: a thread program and, for each of its global buffers in order, what to pass.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The program.
    pub program: ThreadProgram,
    /// One per global buffer.
    pub bindings: Vec<Binding>,
}

/// What a global buffer of a kernel is bound to.
#[derive(Clone, PartialEq, Debug)]
pub enum Binding {
    /// A tensor argument of the block program, in its layout.
    Arg(ArgId),
    /// A constant argument laid out anew at compile time.
    Packed(PackedConstant),
    /// Memory of the kernel alone.
    Own {
        /// The element type.
        dtype: DType,
        /// The number of elements.
        elems: usize,
        /// Whether it must have zeros when the kernel starts, or what the kernel's last run has left.
        is_zeroed: bool,
    },
}

/// A constant operand of a contraction in panels: `[batch][panel][k / group][column][k % group]`, `width` columns a panel; columns
/// and K past the last ones are zero. The source element of `(batch, k, column)` is at the sum of three offsets.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PackedConstant {
    /// The argument.
    pub arg: ArgId,
    /// Element type of source and result.
    pub dtype: DType,
    /// Columns of a panel.
    pub width: usize,
    /// Elements along K that are contiguous: the step of K of an instruction.
    pub group: usize,
    /// The extent of K in a panel: that of the source, padded to a multiple of `group`.
    pub k_extent: usize,
    /// Source offset, in elements, of each batch.
    pub batch_offsets: Vec<usize>,
    /// Source offset, in elements, of each `k`.
    pub k_offsets: Vec<usize>,
    /// Source offset, in elements, of each column.
    pub column_offsets: Vec<usize>,
}

impl PackedConstant {
    /// Elements of the packed constant.
    pub fn elems(&self) -> usize {
        self.batch_offsets.len() * self.panels() * self.k_extent * self.width
    }

    /// Number of panels per batch.
    pub fn panels(&self) -> usize {
        self.column_offsets.len().div_ceil(self.width)
    }

    /// The packed bytes of a constant that is stored row-major.
    pub fn pack(&self, source: &Tensor) -> Vec<u8> {
        let bytes = source.bytes();
        match self.dtype.size_bytes() {
            1 => self.pack_sized::<1>(bytes),
            2 => self.pack_sized::<2>(bytes),
            4 => self.pack_sized::<4>(bytes),
            _ => self.pack_sized::<8>(bytes),
        }
    }

    fn pack_sized<const SIZE: usize>(&self, source: &[u8]) -> Vec<u8> {
        let mut packed = vec![0u8; self.elems() * SIZE];
        let mut panels = packed.chunks_exact_mut(self.k_extent * self.width * SIZE);
        for &batch in &self.batch_offsets {
            for columns in self.column_offsets.chunks(self.width) {
                let are_adjacent = self.group == 1 && columns.windows(2).all(|pair| pair[1] == pair[0] + 1);
                let panel = panels.next().expect("one panel per batch and chunk of columns");
                for (k, &k_offset) in self.k_offsets.iter().enumerate() {
                    // [k / group][column 0][k % group]
                    let first = k / self.group * self.group * self.width + k % self.group;
                    if are_adjacent {
                        let (start, bytes) = ((batch + k_offset + columns[0]) * SIZE, columns.len() * SIZE);
                        panel[first * SIZE..][..bytes].copy_from_slice(&source[start..start + bytes]);
                        continue;
                    }
                    for (place, &column) in columns.iter().enumerate() {
                        let to = (first + place * self.group) * SIZE;
                        let from = (batch + k_offset + column) * SIZE;
                        panel[to..to + SIZE].copy_from_slice(&source[from..from + SIZE]);
                    }
                }
            }
        }
        packed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_padded_with_zeros() {
        let source = Tensor::from_vec([2, 3], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let packed = PackedConstant {
            arg: ArgId(0),
            dtype: DType::F32,
            width: 2,
            group: 1,
            k_extent: 2,
            batch_offsets: vec![0],
            k_offsets: vec![0, 3],
            column_offsets: vec![0, 1, 2],
        };
        let values: Vec<f32> = bytemuck_f32(&packed.pack(&source));
        assert_eq!(values, [1.0, 2.0, 4.0, 5.0, 3.0, 0.0, 6.0, 0.0]);
    }

    #[test]
    fn elements_along_k_lie_in_pairs() {
        let source = Tensor::from_vec([3, 2], vec![1i32, 2, 3, 4, 5, 6]);
        let packed = PackedConstant {
            arg: ArgId(0),
            dtype: DType::I32,
            width: 2,
            group: 2,
            k_extent: 4,
            batch_offsets: vec![0],
            k_offsets: vec![0, 2, 4],
            column_offsets: vec![0, 1],
        };
        let values: Vec<i32> = (packed.pack(&source).chunks_exact(4))
            .map(|bytes| i32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect();
        assert_eq!(values, [1, 3, 2, 4, 5, 0, 6, 0]);
    }

    fn bytemuck_f32(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    }
}
