//! Elements that a kernel accesses one at a time: where the lanes of a vector are not neighbours in memory.
//!
//! ```text
//! vector axis v, stride s along it      0, 1: a vector or one element for all lanes      2, 3, 4: picked from vectors
//! s larger or none, no vector axis:     one at a time
//!                                       in a tile:  transposed in registers
//!                                       if L1 keeps the lines of a vector
//!                                       until the next vector reads their neighbours: near
//!                                       otherwise: far, a cache line for each element
//! ```

use orch_compute::affine::gcd;
use orch_thread::program::CACHE_LINE;
use orch_thread::target::{CpuTarget, is_short_stride};

/// Numbers of elements that no vector accesses where they lie.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SingleAccesses {
    /// Those of which a cache line holds several that are accessed soon after each other.
    pub near: usize,
    /// Those that take a cache line each.
    pub far: usize,
    /// Those of tiles that are transposed in registers.
    pub transposed: usize,
}

/// What a vector accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VectorAccess {
    /// Elements from one lane's to the next's; `None` if they are not evenly apart, or there are no vectors.
    pub stride: Option<i64>,
    /// Lines that L1 is to keep from an access to the next in the same line.
    pub lines: usize,
    /// Bytes of an element.
    pub size: usize,
}

/// An element that is accessed by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Single {
    /// L1 keeps its line until its neighbours are accessed.
    Near,
    /// It does not.
    Far,
}

impl VectorAccess {
    /// How elements are accessed one at a time; `None` if they are not.
    pub(crate) fn single(self, target: &CpuTarget) -> Option<Single> {
        match self.stride {
            Some(0 | 1) => None,
            Some(stride) if is_short_stride(stride) => None,
            Some(stride) if self.lines > lines_kept(target, stride * self.size as i64) => Some(Single::Far),
            _ => Some(Single::Near),
        }
    }
}

impl SingleAccesses {
    /// Adds so many elements.
    pub(crate) fn add(&mut self, single: Single, elems: usize) {
        match single {
            Single::Near => self.near += elems,
            Single::Far => self.far += elems,
        }
    }
}

/// Lines so many bytes apart that the L1 keeps at once. It has a set for each line of a page.
pub(crate) fn lines_kept(target: &CpuTarget, stride_bytes: i64) -> usize {
    const PAGE: usize = 4096;
    let sets = PAGE / (gcd(stride_bytes, PAGE as i64) as usize).max(CACHE_LINE);
    target.l1_bytes / PAGE * sets
}

#[cfg(test)]
mod tests {
    use super::*;
    use orch_thread::target::CPU_TARGETS;

    #[test]
    fn strides_of_powers_of_two_share_few_sets() {
        // 32 KiB of 8 ways: 64 sets.
        let target = CPU_TARGETS.iter().find(|target| target.l1_bytes == 32 << 10).unwrap();
        assert_eq!(lines_kept(target, 64), 512);
        assert_eq!(lines_kept(target, 2048), 16);
        assert_eq!(lines_kept(target, -4096), 8);
        assert_eq!(lines_kept(target, 4096 + 64), 512);
        assert_eq!(lines_kept(target, 4096 + 16), 512);
        assert_eq!(lines_kept(target, 4), 512);
    }
}
