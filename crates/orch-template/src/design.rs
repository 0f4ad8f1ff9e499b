//! What every template returns, and the numerical bound that all of them keep.

use orch_thread::kernel::Kernel;
use std::ops::Range;

/// The most elements that a sum adds up in one chain. The rounding error of a chain grows with its length, so
/// longer sums are split into chains of at most this length, each with an accumulator of its own.
pub(crate) const LONGEST_CHAIN: usize = 1024;

/// The most products that are added up in one chain. With chains of 1,024 the error is two to three times that of PyTorch's
/// products; with these it is the same, and takes 1 to 3 % longer.
pub(crate) const LONGEST_PRODUCT_CHAIN: usize = 192;

/// A length in whole groups of so many, and what is left in groups of half as many, down to single ones: the groups of each size that there are.
pub(crate) fn halving_groups(len: usize, largest: usize) -> Vec<(Range<usize>, usize)> {
    let (mut groups, mut from, mut size) = (Vec::new(), 0, largest);
    while from < len {
        let past = len - (len - from) % size;
        if past > from {
            groups.push((from..past, size));
        }
        (from, size) = (past, size / 2);
    }
    groups
}

/// Why a template does not lower a block program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CannotLower {
    /// The program has another structure than the template serves.
    #[error("not a program of this template: {0}")]
    NotThisTemplate(&'static str),
}

/// A kernel and how it was made.
#[derive(Clone, Debug)]
pub struct Design {
    /// The kernel.
    pub kernel: Kernel,
    /// Template and schedule, for people and as the key of measured times: the text stays as it is while it means the same.
    pub schedule: String,
}
