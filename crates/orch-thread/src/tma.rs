//! Tensor maps and the mbarriers that count TMA loads of their tiles (PTX: `cp.async.bulk.tensor`, `mbarrier`).
//!
//! A tensor map describes a read-only argument as an array of two to five dimensions. One TMA load, issued once by the whole CTA,
//! copies a tile of it to shared memory asynchronously. A *full* mbarrier completes a phase when as many loads as it expects
//! have arrived; threads that have waited for that phase may read the tiles without a barrier. An *empty* mbarrier completes a
//! phase when all threads of the CTA have arrived at it: they have read a stage, and later loads may overwrite it.
//!
//! ```text
//!   cta 128 threads thread: i64 [0..=127], clusters of 1
//!   input x: f16[98304]
//!   shared s: f16[8192]
//!   tensor_map rows: x[0], extents 768 128, strides 768, 64 rows
//!   mbarriers 2 full of 1 loads
//! {
//!   tma_load s[0], rows[64, 0], 0
//!   mbarrier_wait_full 0, 0
//! }
//! ```
//!
//! A tile `[rows, SWIZZLE_ROW]` is [swizzled](crate::cta::swizzled): [`SWIZZLE_ROW`] elements along the first dimension and `rows`
//! along the second, from the coordinates of the load on, at one coordinate of all other dimensions. Elements outside of the
//! tensor map are zero.

use crate::buffer::Buffer;
use crate::swizzle::SWIZZLE_ROW;
use orch_compute::expr::BufferId;

/// A tensor map of a thread program, a position in [`ThreadProgram::tensor_maps`](crate::ThreadProgram::tensor_maps).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TensorMapId(pub u32);

impl TensorMapId {
    /// The position in the program's table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A read-only argument as an array, in the form of a `CUtensorMap`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMap {
    /// Readable name.
    pub name: String,
    /// The argument.
    pub buffer: BufferId,
    /// First element, in elements from the start of the argument.
    pub offset: usize,
    /// Elements of each dimension, the contiguous one first: 2 to [`MAX_TENSOR_MAP_RANK`].
    pub extents: Vec<usize>,
    /// The stride of each dimension but the first, in elements.
    pub strides: Vec<usize>,
    /// Rows of a tile, along the second dimension.
    pub rows: usize,
}

/// The mbarriers of a CTA, in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Mbarriers {
    /// Full mbarriers, which count loads that arrive.
    pub full: usize,
    /// Loads that complete a phase of a full mbarrier.
    pub loads: usize,
    /// Empty mbarriers: arrivals of all threads of the CTA complete a phase.
    pub empty: usize,
}

impl Mbarriers {
    /// Bytes of shared memory that they take.
    pub fn bytes(self) -> usize {
        (self.full + self.empty) * MBARRIER_BYTES
    }
}

/// Most dimensions of a tensor map.
pub const MAX_TENSOR_MAP_RANK: usize = 5;
/// Most rows of a tile.
pub const MAX_TMA_ROWS: usize = 256;
/// Bytes that the start and the strides of a tensor map are multiples of.
pub const TENSOR_MAP_ALIGNMENT: usize = 16;
/// Bytes of an mbarrier in shared memory.
pub const MBARRIER_BYTES: usize = 8;
/// Largest extent, and largest stride in bytes, of which the hardware keeps 40 bits.
const MAX_EXTENT: usize = 1 << 32;
const MAX_STRIDE_BYTES: usize = 1 << 40;

impl TensorMap {
    /// Elements of a tile.
    pub fn tile_elems(&self) -> usize {
        self.rows * SWIZZLE_ROW
    }

    /// The offset in the buffer, in elements, of an element of the tensor map; `None` outside of it.
    pub fn place(&self, at: &[i64]) -> Option<i64> {
        let mut place = self.offset as i64;
        let strides = std::iter::once(1).chain(self.strides.iter().copied());
        for ((&at, &extent), stride) in at.iter().zip(&self.extents).zip(strides) {
            if !(0..extent as i64).contains(&at) {
                return None;
            }
            place += at * stride as i64;
        }
        Some(place)
    }

    /// True if the hardware can encode it.
    pub fn is_encodable(&self, buffer: &Buffer) -> bool {
        self.problem(buffer).is_none()
    }

    /// Why the hardware cannot encode it.
    pub(crate) fn problem(&self, buffer: &Buffer) -> Option<String> {
        let size = buffer.dtype.size_bytes();
        if !buffer.scope.is_read_only() || SWIZZLE_ROW * size != 128 {
            return Some("tensor_maps are of read-only arguments of 16-bit elements".to_owned());
        }
        let is_ranked = (2..=MAX_TENSOR_MAP_RANK).contains(&self.extents.len());
        if !is_ranked || self.strides.len() + 1 != self.extents.len() {
            return Some(format!(
                "{} extents and {} strides: 2 to {MAX_TENSOR_MAP_RANK}, and one less, are expected",
                self.extents.len(),
                self.strides.len()
            ));
        }
        let is_extent = |&extent: &usize| (1..=MAX_EXTENT).contains(&extent);
        if !self.extents.iter().all(is_extent) || !(1..=MAX_TMA_ROWS).contains(&self.rows) {
            return Some(format!(
                "extents {:?} in tiles of {} rows: 1 to {MAX_TMA_ROWS} are expected",
                self.extents, self.rows
            ));
        }
        let is_place = |&elems: &usize| (elems * size).is_multiple_of(TENSOR_MAP_ALIGNMENT);
        let is_stride = |elems: &usize| is_place(elems) && elems * size < MAX_STRIDE_BYTES;
        if !is_place(&self.offset) || !self.strides.iter().all(is_stride) {
            return Some(format!(
                "it does not start, or has strides, at multiples of {TENSOR_MAP_ALIGNMENT} bytes"
            ));
        }
        let last: Vec<i64> = self.extents.iter().map(|&extent| extent as i64 - 1).collect();
        let is_inside = self.place(&last).is_some_and(|last| (last as usize) < buffer.elems);
        (!is_inside).then(|| format!("it ends outside of the {} elements of {}", buffer.elems, buffer.name))
    }
}
