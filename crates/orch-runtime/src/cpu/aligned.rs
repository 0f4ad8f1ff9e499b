//! Memory that starts at a cache line.

use crate::os;
use bytes::Bytes;
use memmap2::MmapMut;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::slice;

/// Alignment of arenas, constants and scratch memory: a cache line, and the widest vector.
pub const ALIGN_BYTES: usize = 64;

/// What `madvise` requests for large buffers.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// From this size on a buffer is whole huge pages, so that its last part is no slower than the others: panels of weights in small pages reach
/// three quarters of the speed (decision 67).
const LEAST_HUGE_BYTES: usize = 512 << 10;

/// The whole huge pages of a buffer of `least` bytes or more; `None` of others, and where they do not fit the address space.
fn huge_bytes(len: usize, least: usize) -> Option<usize> {
    let pages = len.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
    (len >= least && pages <= isize::MAX as usize).then_some(pages)
}

/// A fixed-size block of bytes, zero at first, whose start is a multiple of [`ALIGN_BYTES`].
pub struct AlignedBuffer {
    start: NonNull<u8>,
    owner: Owner,
    len: usize,
}

/// Where the memory is from.
enum Owner {
    /// The allocator, with this layout.
    Heap(Layout),
    /// Pages of its own.
    Pages { _map: MmapMut },
}

// SAFETY: the buffer owns its memory like a `Box<[u8]>`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared references give read access only, but for `as_ptr`, whose users answer for what they do with it.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `len` zero bytes, the pages of which lie on the NUMA node of the calling thread.
    ///
    /// # Panics
    /// If `len` is above `isize::MAX`, like `vec!`; aborts if there is no memory.
    pub fn zeroed(len: usize) -> Self {
        let huge = huge_bytes(len, LEAST_HUGE_BYTES);
        let (size, align) = huge.map_or((len.max(1), ALIGN_BYTES), |bytes| (bytes, HUGE_PAGE_BYTES));
        let layout = Layout::from_size_align(size, align).expect("a buffer fits the address space");
        // SAFETY: the layout's size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        if let Some(bytes) = huge {
            // SAFETY: the range was just allocated. The advice must come before the first write.
            unsafe { os::advise_huge_pages(start.as_ptr(), bytes) };
        }
        // SAFETY: the allocation has at least `len` bytes.
        unsafe { start.write_bytes(0, len) };
        Self { start, owner: Owner::Heap(layout), len }
    }

    /// `len` zero bytes, each page of which is made when it is first touched, on the NUMA node of the thread that does it. Below a huge page,
    /// and where the system gives none, as [`zeroed`](Self::zeroed).
    ///
    /// # Panics
    /// As [`zeroed`](Self::zeroed).
    pub fn untouched(len: usize) -> Self {
        let Some(bytes) = huge_bytes(len, HUGE_PAGE_BYTES) else { return Self::zeroed(len) };
        // Wherever the map starts, `bytes` of it start at a huge page.
        let reserved = bytes.checked_add(HUGE_PAGE_BYTES);
        let Some(mut map) = reserved.and_then(|reserved| MmapMut::map_anon(reserved).ok()) else {
            return Self::zeroed(len);
        };
        let skip = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let start = NonNull::from(&mut map[skip..skip + bytes]).cast::<u8>();
        // SAFETY: the range is part of the map, of which nobody else knows.
        unsafe { os::advise_huge_pages(start.as_ptr(), bytes) };
        Self { start, owner: Owner::Pages { _map: map }, len }
    }

    /// A copy of these bytes.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.as_mut_slice().copy_from_slice(bytes);
        buffer
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes at `start` belong to `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes at `start` belong to `self`, which is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// The address of the first byte, for kernels. Code that writes through it must make sure that no slice of this
    /// buffer is in use.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Owner::Heap(layout) = self.owner {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl From<AlignedBuffer> for Bytes {
    fn from(buffer: AlignedBuffer) -> Bytes {
        Bytes::from_owner(buffer)
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_aligned_and_content_is_zero() {
        for len in
            [0, 1, 63, 64, 65, LEAST_HUGE_BYTES - 1, LEAST_HUGE_BYTES, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1]
        {
            for mut buffer in [AlignedBuffer::zeroed(len), AlignedBuffer::untouched(len)] {
                assert_eq!(buffer.as_ptr() as usize % ALIGN_BYTES, 0);
                assert_eq!(buffer.len(), len);
                assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
                buffer.as_mut_slice().fill(1);
            }
        }
    }

    #[test]
    fn copies_become_bytes() {
        let bytes: Bytes = AlignedBuffer::copy_of(b"abc").into();
        assert_eq!(bytes, b"abc"[..]);
        assert_eq!(bytes.as_ptr() as usize % ALIGN_BYTES, 0);
        assert!(AlignedBuffer::copy_of(b"").is_empty());
    }
}
