//! Tensors of a caller where they lie: element type, shape, strides and address.
//!
//! ```text
//! element [i, j, k]  at  start + (i * strides[0] + j * strides[1] + k * strides[2]) * bytes of an element
//! ```
//! Strides count elements; they may be zero (broadcast) or negative where a tensor is only read.

use orch_ir::{DType, Tensor};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;
use std::slice;

/// A tensor that is read.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    dtype: DType,
    shape: &'a [usize],
    /// `None`: row-major, without gaps.
    strides: Option<&'a [isize]>,
    start: *const u8,
    memory: PhantomData<&'a [u8]>,
}

/// A tensor that is written. No two of its elements share memory.
pub struct TensorViewMut<'a> {
    dtype: DType,
    shape: &'a [usize],
    strides: Option<&'a [isize]>,
    start: *mut u8,
    memory: PhantomData<&'a mut [u8]>,
}

/// Why memory cannot be taken for a tensor.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ViewError {
    /// The memory has another size than the elements take.
    #[error("{given} bytes are given for {expected} bytes of elements")]
    Size {
        /// Bytes given.
        given: usize,
        /// Bytes that the elements take.
        expected: usize,
    },
    /// There is not one stride per dimension.
    #[error("{strides} strides are given for {dims} dimensions")]
    Rank {
        /// Strides given.
        strides: usize,
        /// Dimensions.
        dims: usize,
    },
    /// Elements lie outside of the memory.
    #[error("elements lie outside of the {given} bytes that are given")]
    Outside {
        /// Bytes given.
        given: usize,
    },
    /// Elements share memory, in which results would overwrite each other.
    #[error("elements of the output share memory (strides {strides:?} of shape {shape:?})")]
    SharedElements {
        /// The shape.
        shape: Vec<usize>,
        /// Elements from one index to the next, per dimension.
        strides: Vec<isize>,
    },
}

// SAFETY: a view is used like the slice of bytes that it borrows.
unsafe impl Send for TensorView<'_> {}
// SAFETY: as above.
unsafe impl Sync for TensorView<'_> {}
// SAFETY: as above, borrowed exclusively.
unsafe impl Send for TensorViewMut<'_> {}

impl<'a> TensorView<'a> {
    /// A row-major tensor in `bytes`.
    ///
    /// # Errors
    /// If there are not as many bytes as the elements take.
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<Self, ViewError> {
        check_size(dtype, shape, bytes.len())?;
        Ok(Self { dtype, shape, strides: None, start: bytes.as_ptr(), memory: PhantomData })
    }

    /// A tensor whose element `[0, 0, ..]` is element number `first` of `bytes`.
    ///
    /// # Errors
    /// If there is not one stride per dimension, or an element lies outside of `bytes`.
    pub fn strided(
        dtype: DType,
        shape: &'a [usize],
        strides: &'a [isize],
        first: usize,
        bytes: &'a [u8],
    ) -> Result<Self, ViewError> {
        let start = checked_start(dtype, shape, strides, first, bytes)?;
        // SAFETY: every element lies in `bytes`.
        unsafe { Self::from_raw_parts(dtype, shape, strides, start) }
    }

    /// A tensor whose element `[0, 0, ..]` is at `start`.
    ///
    /// # Errors
    /// If there is not one stride per dimension.
    ///
    /// # Safety
    /// Every element must lie in memory that stays readable, and that no other code writes, for `'a`.
    pub unsafe fn from_raw_parts(
        dtype: DType,
        shape: &'a [usize],
        strides: &'a [isize],
        start: *const u8,
    ) -> Result<Self, ViewError> {
        let strides = checked_strides(shape, strides)?;
        Ok(Self { dtype, shape, strides, start, memory: PhantomData })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The elements as row-major bytes: where they lie if they lie so.
    pub fn row_major(&self) -> Cow<'a, [u8]> {
        if let Some(bytes) = self.bytes() {
            return Cow::Borrowed(bytes);
        }
        let mut bytes = vec![0; self.len_bytes()];
        self.copy_to(&mut bytes);
        Cow::Owned(bytes)
    }

    /// The elements' bytes if they lie row-major without gaps.
    pub(crate) fn bytes(&self) -> Option<&'a [u8]> {
        if self.strides.is_some() {
            return None;
        }
        let len = self.len_bytes();
        // SAFETY: without strides the elements are that many bytes from `start` on; an empty slice may not have a null address.
        Some(if len == 0 { &[] } else { unsafe { slice::from_raw_parts(self.start, len) } })
    }

    /// What the elements take without gaps.
    pub(crate) fn len_bytes(&self) -> usize {
        len_bytes(self.dtype, self.shape)
    }

    /// Writes the elements row-major to `bytes`, which is as long as they are.
    pub(crate) fn copy_to(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.len_bytes(), "a copy is as long as the elements");
        match (self.bytes(), self.strides) {
            (Some(own), _) => bytes.copy_from_slice(own),
            (None, Some(strides)) => {
                let dims = dims(self.shape, |dim, row_major| Strides { from: strides[dim], to: row_major });
                // SAFETY: `from` has an element per index by the promise of `from_raw_parts`, `to` by its length.
                unsafe { copy(self.dtype.size_bytes(), &dims, self.start, bytes.as_mut_ptr()) };
            }
            (None, None) => unreachable!("a view without strides lies row-major"),
        }
    }
}

impl<'a> From<&'a Tensor> for TensorView<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        let (dtype, shape, start) = (tensor.dtype(), &tensor.shape()[..], tensor.bytes().as_ptr());
        Self { dtype, shape, strides: None, start, memory: PhantomData }
    }
}

impl<'a> TensorViewMut<'a> {
    /// A row-major tensor in `bytes`.
    ///
    /// # Errors
    /// If there are not as many bytes as the elements take.
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a mut [u8]) -> Result<Self, ViewError> {
        check_size(dtype, shape, bytes.len())?;
        Ok(Self { dtype, shape, strides: None, start: bytes.as_mut_ptr(), memory: PhantomData })
    }

    /// A tensor whose element `[0, 0, ..]` is element number `first` of `bytes`.
    ///
    /// # Errors
    /// If there is not one stride per dimension, an element lies outside of `bytes`, or elements share memory.
    pub fn strided(
        dtype: DType,
        shape: &'a [usize],
        strides: &'a [isize],
        first: usize,
        bytes: &'a mut [u8],
    ) -> Result<Self, ViewError> {
        let start = checked_start(dtype, shape, strides, first, bytes)?.cast_mut();
        // SAFETY: every element lies in `bytes`.
        unsafe { Self::from_raw_parts(dtype, shape, strides, start) }
    }

    /// A tensor whose element `[0, 0, ..]` is at `start`.
    ///
    /// # Errors
    /// If there is not one stride per dimension, or elements share memory.
    ///
    /// # Safety
    /// Every element must lie in memory that stays writable, and that no other code uses, for `'a`: no other view either.
    pub unsafe fn from_raw_parts(
        dtype: DType,
        shape: &'a [usize],
        strides: &'a [isize],
        start: *mut u8,
    ) -> Result<Self, ViewError> {
        let strides = checked_strides(shape, strides)?;
        if let Some(strides) = strides.filter(|strides| shares_elements(shape, strides)) {
            return Err(ViewError::SharedElements { shape: shape.to_vec(), strides: strides.to_vec() });
        }
        Ok(Self { dtype, shape, strides, start, memory: PhantomData })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Elements along each dimension.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Writes the elements row-major to `bytes`, which is as long as they are.
    pub(crate) fn copy_to(&self, bytes: &mut [u8]) {
        let Self { dtype, shape, strides, start, .. } = *self;
        TensorView { dtype, shape, strides, start, memory: PhantomData }.copy_to(bytes);
    }

    /// Takes row-major elements, which are as many.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.len_bytes(), "a copy is as long as the elements");
        let Some(strides) = self.strides else {
            self.bytes_mut().expect("a view without strides lies row-major").copy_from_slice(bytes);
            return;
        };
        let dims = dims(self.shape, |dim, row_major| Strides { from: row_major, to: strides[dim] });
        // SAFETY: `from` has an element per index by its length, `to` by the promise of `from_raw_parts`.
        unsafe { copy(self.dtype.size_bytes(), &dims, bytes.as_ptr(), self.start) };
    }

    /// The elements' bytes if they lie row-major without gaps.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.strides.is_some() {
            return None;
        }
        let len = self.len_bytes();
        // SAFETY: as of `TensorView::bytes`, borrowed exclusively.
        Some(if len == 0 { &mut [] } else { unsafe { slice::from_raw_parts_mut(self.start, len) } })
    }

    /// Zeros for the elements, row-major, to be copied from later, if the elements do not lie so.
    pub fn stand_in(&mut self) -> Option<Vec<u8>> {
        self.strides.map(|_| vec![0; self.len_bytes()])
    }

    /// What the elements take without gaps.
    pub(crate) fn len_bytes(&self) -> usize {
        len_bytes(self.dtype, self.shape)
    }
}

/// The addresses from the first to the last byte of a tensor whose element `[0, 0, ..]` is at `start`; `None` if it is empty.
pub fn extent(dtype: DType, shape: &[usize], strides: &[isize], start: usize) -> Option<Range<usize>> {
    if shape.contains(&0) {
        return None;
    }
    let bytes = dtype.size_bytes();
    let (mut below, mut above) = (0usize, bytes);
    for (&size, &stride) in shape.iter().zip(strides) {
        let reached = (size - 1).saturating_mul(stride.unsigned_abs()).saturating_mul(bytes);
        let side = if stride < 0 { &mut below } else { &mut above };
        *side = side.saturating_add(reached);
    }
    Some(start.saturating_sub(below)..start.saturating_add(above))
}

/// Two tensors of a run that share memory: an output, and an input or an output after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overlap {
    /// The output.
    pub output: usize,
    /// The other tensor.
    pub other: OverlapWith,
}

/// What an output shares memory with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverlapWith {
    /// An input.
    Input(usize),
    /// A later output.
    Output(usize),
}

/// The first output that has an address in common with an input or a later output, given the [`extent`] of each: gaps count.
pub fn first_overlap(inputs: &[Option<Range<usize>>], outputs: &[Option<Range<usize>>]) -> Option<Overlap> {
    let shared = |first: &Option<Range<usize>>, second: &Option<Range<usize>>| match (first, second) {
        (Some(first), Some(second)) => first.start < second.end && second.start < first.end,
        _ => false,
    };
    outputs.iter().enumerate().find_map(|(output, reached)| {
        let input = inputs.iter().position(|other| shared(reached, other)).map(OverlapWith::Input);
        let later = || outputs[output + 1..].iter().position(|other| shared(reached, other));
        let other = input.or_else(|| later().map(|other| OverlapWith::Output(output + 1 + other)));
        other.map(|other| Overlap { output, other })
    })
}

fn check_size(dtype: DType, shape: &[usize], given: usize) -> Result<(), ViewError> {
    let expected = len_bytes(dtype, shape);
    if given == expected { Ok(()) } else { Err(ViewError::Size { given, expected }) }
}

fn len_bytes(dtype: DType, shape: &[usize]) -> usize {
    shape.iter().product::<usize>() * dtype.size_bytes()
}

/// The address of the element at index 0, which is number `first` of `bytes`, if all lie in there.
fn checked_start(
    dtype: DType,
    shape: &[usize],
    strides: &[isize],
    first: usize,
    bytes: &[u8],
) -> Result<*const u8, ViewError> {
    checked_strides(shape, strides)?;
    let start = bytes.as_ptr().wrapping_add(first.saturating_mul(dtype.size_bytes()));
    let inside = bytes.as_ptr_range();
    match extent(dtype, shape, strides, start.addr()) {
        Some(used) if used.start < inside.start.addr() || used.end > inside.end.addr() => {
            Err(ViewError::Outside { given: bytes.len() })
        }
        _ => Ok(start),
    }
}

/// The strides, or `None` if they are those of a row-major tensor without gaps. Strides of dimensions of size 1 do not matter.
fn checked_strides<'a>(shape: &[usize], strides: &'a [isize]) -> Result<Option<&'a [isize]>, ViewError> {
    if shape.len() != strides.len() {
        return Err(ViewError::Rank { strides: strides.len(), dims: shape.len() });
    }
    Ok(if is_row_major(shape, strides) { None } else { Some(strides) })
}

/// Whether elements lie in the order of the dimensions, without gaps. Strides of dimensions of size 1 do not matter, and none do where
/// there are no elements.
pub fn is_row_major(shape: &[usize], strides: &[isize]) -> bool {
    let mut row_major = 1;
    let mut dims = shape.iter().zip(strides).rev();
    shape.contains(&0)
        || dims.all(|(&size, &stride)| {
            let is_next = size == 1 || stride == row_major;
            row_major *= size as isize;
            is_next
        })
}

/// False if it is certain that no two elements lie at the same place: sorted by stride, each dimension steps over all that the ones
/// before it reach. Tensors that interleave otherwise count as sharing.
fn shares_elements(shape: &[usize], strides: &[isize]) -> bool {
    let mut dims: Vec<(usize, usize)> = (shape.iter().zip(strides))
        .filter(|&(&size, _)| size != 1)
        .map(|(&size, &stride)| (stride.unsigned_abs(), size))
        .collect();
    dims.sort_unstable();
    let mut reached = 0usize;
    dims.into_iter().any(|(stride, size)| {
        let is_shared = stride <= reached;
        reached = reached.saturating_add(stride.saturating_mul(size.saturating_sub(1)));
        is_shared
    })
}

/// Elements from one index to the next, in the two tensors of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Strides {
    from: isize,
    to: isize,
}

/// A dimension of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Dim {
    size: usize,
    strides: Strides,
}

/// The dimensions of a copy, where `strides` takes a dimension and its row-major stride. Those of size 1 are left out, and neighbours
/// over which both tensors go on in equal steps are one.
fn dims(shape: &[usize], strides: impl Fn(usize, isize) -> Strides) -> Vec<Dim> {
    let mut dims: Vec<Dim> = Vec::with_capacity(shape.len());
    let mut row_major = shape.iter().product::<usize>();
    for (dim, &size) in shape.iter().enumerate() {
        if size == 0 {
            return vec![Dim { size: 0, strides: Strides { from: 0, to: 0 } }];
        }
        row_major /= size;
        let strides = strides(dim, row_major as isize);
        match dims.last_mut() {
            _ if size == 1 => {}
            Some(outer)
                if outer.strides.from == strides.from * size as isize
                    && outer.strides.to == strides.to * size as isize =>
            {
                *outer = Dim { size: outer.size * size, strides };
            }
            _ => dims.push(Dim { size, strides }),
        }
    }
    dims
}

/// Copies elements of `bytes` bytes.
///
/// # Safety
/// Both addresses must be of the elements at index 0 of tensors that have an element at every index of `dims`; those of `from` must be
/// readable, those of `to` writable and not among them.
unsafe fn copy(bytes: usize, dims: &[Dim], from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match bytes {
            1 => copy_elements::<u8>(dims, from.cast(), to.cast()),
            2 => copy_elements::<u16>(dims, from.cast(), to.cast()),
            4 => copy_elements::<u32>(dims, from.cast(), to.cast()),
            8 => copy_elements::<u64>(dims, from.cast(), to.cast()),
            _ => unreachable!("element types have 1, 2, 4 or 8 bytes"),
        }
    }
}

/// Rows and columns of a block in which a transposition is copied: as many as keep both tensors' cache lines in L1.
const BLOCK: usize = 32;

/// # Safety
/// As [`copy`].
unsafe fn copy_elements<T: Copy>(dims: &[Dim], from: *const T, to: *mut T) {
    match *dims {
        // SAFETY (all arms): the addresses are of elements at indices of `dims`, which exist by the caller's promise.
        [] => unsafe { to.write_unaligned(from.read_unaligned()) },
        [Dim { size, strides: Strides { from: 1, to: 1 } }] => unsafe {
            from.cast::<u8>().copy_to_nonoverlapping(to.cast(), size * size_of::<T>());
        },
        [dim] => {
            for index in 0..dim.size as isize {
                unsafe {
                    let value = from.wrapping_offset(index * dim.strides.from).read_unaligned();
                    to.wrapping_offset(index * dim.strides.to).write_unaligned(value);
                }
            }
        }
        // A transposition, by blocks.
        [rows, columns] if rows.strides.from.unsigned_abs() < columns.strides.from.unsigned_abs() => {
            for first_row in (0..rows.size).step_by(BLOCK) {
                for first_column in (0..columns.size).step_by(BLOCK) {
                    for row in first_row..(first_row + BLOCK).min(rows.size) {
                        let at = |row_stride: isize, stride: isize| {
                            row as isize * row_stride + first_column as isize * stride
                        };
                        let size = BLOCK.min(columns.size - first_column);
                        let start = at(rows.strides.from, columns.strides.from);
                        let end = at(rows.strides.to, columns.strides.to);
                        unsafe {
                            let block = [Dim { size, ..columns }];
                            copy_elements(&block, from.wrapping_offset(start), to.wrapping_offset(end));
                        }
                    }
                }
            }
        }
        [outer, ref inner @ ..] => {
            for index in 0..outer.size as isize {
                let (start, end) = (index * outer.strides.from, index * outer.strides.to);
                unsafe { copy_elements(inner, from.wrapping_offset(start), to.wrapping_offset(end)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The elements of a view, one after the other, by the definition of strides.
    fn gathered(shape: &[usize], strides: &[isize], memory: &[u16], first: usize) -> Vec<u16> {
        let elems: usize = shape.iter().product();
        let element = |mut number: usize| {
            let mut at = first as isize;
            for (&size, &stride) in shape.iter().zip(strides).rev() {
                at += (number % size) as isize * stride;
                number /= size;
            }
            memory[at as usize]
        };
        (0..elems).map(element).collect()
    }

    fn bytes_of(values: &[u16]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// Shapes, strides and the place of the first element in 20,000 elements of memory.
    const CASES: [(&[usize], &[isize], usize); 12] = [
        (&[], &[], 3),
        (&[5], &[1], 0),
        (&[5], &[-2], 100),
        (&[3, 4], &[4, 1], 1),
        (&[3, 4], &[1, 3], 1),
        (&[70, 90], &[1, 70], 0),
        (&[3, 1, 4], &[0, 77, 2], 9),
        (&[2, 5, 7, 6], &[210, 1, 30, 5], 0),
        (&[2, 3, 4, 5], &[1, 2, 6, 24], 5),
        (&[0, 4], &[4, 9], 0),
        (&[1, 1], &[13, -5], 7),
        (&[40, 3, 33], &[-99, 33, 1], 5000),
    ];

    #[test]
    fn any_strides_are_read_and_written() {
        let memory: Vec<u16> = (0..20_000).collect();
        for (shape, strides, first) in CASES {
            let expected = gathered(shape, strides, &memory, first);
            let start = memory[first..].as_ptr().cast();
            // SAFETY: the cases stay inside of the memory.
            let view = unsafe { TensorView::from_raw_parts(DType::U16, shape, strides, start) }.unwrap();
            assert_eq!(view.row_major()[..], bytes_of(&expected)[..], "{shape:?} {strides:?}");
            let mut target = vec![u16::MAX; 20_000];
            let start = target[first..].as_mut_ptr().cast();
            // SAFETY: as above.
            let made = unsafe { TensorViewMut::from_raw_parts(DType::U16, shape, strides, start) };
            let shares = shape.iter().zip(strides).any(|(&size, &stride)| size > 1 && stride == 0);
            assert_eq!(made.is_err(), shares, "{shape:?} {strides:?}");
            let Ok(mut made) = made else { continue };
            made.copy_from(&bytes_of(&expected));
            assert_eq!(gathered(shape, strides, &target, first), expected, "{shape:?} {strides:?}");
            let written = target.iter().filter(|&&value| value != u16::MAX).count();
            assert_eq!(written, expected.len());
        }
    }

    #[test]
    fn what_lies_row_major_is_not_copied() {
        let memory = [0u8; 24];
        for (shape, strides) in
            [(&[2, 3][..], &[3, 1][..]), (&[1, 6], &[99, 1]), (&[6, 1], &[1, 0]), (&[0, 5], &[1, 1])]
        {
            // SAFETY: six elements are 24 bytes.
            let view = unsafe { TensorView::from_raw_parts(DType::F32, shape, strides, memory.as_ptr()) };
            assert!(matches!(view.unwrap().row_major(), Cow::Borrowed(_)), "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn memory_that_does_not_fit_is_refused() {
        fn text(error: ViewError) -> String {
            error.to_string()
        }
        assert_eq!(
            text(TensorView::new(DType::F32, &[2], &[0; 7]).err().unwrap()),
            "7 bytes are given for 8 bytes of elements"
        );
        let outside = |strides: &[isize], first| {
            TensorView::strided(DType::U8, &[2, 2], strides, first, &[0; 8]).err().map(text)
        };
        assert_eq!(outside(&[4, 1], 2), None);
        let message = Some("elements lie outside of the 8 bytes that are given".to_owned());
        assert_eq!(outside(&[4, 1], 3), message);
        assert_eq!(outside(&[-4, 1], 3), message);
        assert_eq!(outside(&[isize::MAX, isize::MIN], 3), message);
        // SAFETY: both are refused.
        let (rank, shared) = unsafe {
            let null = std::ptr::null_mut();
            let rank = TensorView::from_raw_parts(DType::F32, &[2], &[1, 1], null).err().unwrap();
            (rank, TensorViewMut::from_raw_parts(DType::F32, &[2, 2], &[1, 1], null).err().unwrap())
        };
        assert_eq!(text(rank), "2 strides are given for 1 dimensions");
        assert_eq!(text(shared), "elements of the output share memory (strides [1, 1] of shape [2, 2])");
    }

    #[test]
    fn extents_reach_from_the_first_to_the_last_byte() {
        assert_eq!(extent(DType::F32, &[2, 3], &[3, 1], 100), Some(100..124));
        assert_eq!(extent(DType::F32, &[2, 3], &[-3, 1], 100), Some(88..112));
        assert_eq!(extent(DType::F32, &[0, 3], &[3, 1], 100), None);
    }

    #[test]
    fn outputs_that_share_memory_are_found() {
        let found = |inputs: &[Option<Range<usize>>], outputs: &[Option<Range<usize>>]| {
            first_overlap(inputs, outputs).map(|Overlap { output, other }| (output, other))
        };
        assert_eq!(found(&[Some(0..8), None], &[Some(8..16), None, Some(16..17)]), None);
        let input = Some((1, OverlapWith::Input(0)));
        assert_eq!(found(&[Some(0..8)], &[Some(8..16), Some(7..8)]), input);
        let output = Some((0, OverlapWith::Output(2)));
        assert_eq!(found(&[], &[Some(8..16), None, Some(0..9)]), output);
    }
}
