//! Which addresses are taken at which steps.
//!
//! A binary tree over steps. A life is the union of few of its nodes (at most two of each level), and each node knows the addresses that
//! are taken throughout its steps, and those taken at some of them. Both are kept as ranges without the storages that take them: many
//! storages next to each other are one range, so that storages are placed in time that does not grow with the number of others that live
//! meanwhile.

use super::storage::Storage;
use std::ops::Range;

/// Addresses in use, from the first to before the last; ascending, neither overlapping nor touching.
type Ranges = Vec<(u64, u64)>;

/// The addresses that placed storages take.
pub(super) struct Occupied {
    /// By storage the leaves that its life covers.
    lives: Vec<Range<usize>>,
    /// Ends of ranges are multiples of this: no storage begins between two multiples.
    grain: u64,
    leaves: usize,
    /// By node what is taken throughout its leaves by lives that its parent is no part of. Node 1 is the root; those of `n` are `2 n`
    /// and `2 n + 1`, and the leaf of position `i` is `leaves + i`.
    throughout: Vec<Ranges>,
    /// By node what is taken at any of its leaves by lives that it, or a node below it, is a part of.
    within: Vec<Ranges>,
}

impl Occupied {
    /// Nothing is taken.
    pub fn new(storages: &[Storage]) -> Self {
        // Of two lives that meet, one begins during the other: steps at which none begins tell nothing.
        let mut births: Vec<u32> = storages.iter().map(|storage| storage.first_use).collect();
        births.sort_unstable();
        births.dedup();
        let leaf_after = |step: u32| births.partition_point(|&birth| birth <= step);
        let lives =
            storages.iter().map(|storage| leaf_after(storage.first_use) - 1..leaf_after(storage.last_use));
        let leaves = births.len().next_power_of_two();
        Occupied {
            lives: lives.collect(),
            grain: storages.iter().map(|storage| storage.alignment).min().unwrap_or(1),
            leaves,
            throughout: vec![Ranges::new(); 2 * leaves],
            within: vec![Ranges::new(); 2 * leaves],
        }
    }

    /// Takes addresses for the life of a storage.
    pub fn take(&mut self, storage: usize, start: u64, end: u64) {
        let end = end.next_multiple_of(self.grain);
        let (parts, above) = self.cover(storage);
        for &node in &parts {
            add(&mut self.throughout[node], start, end);
        }
        for node in parts.into_iter().chain(above) {
            add(&mut self.within[node], start, end);
        }
    }

    /// What is taken at any time in the life of a storage, ascending by start.
    pub fn during(&self, storage: usize) -> Vec<(u64, u64)> {
        let (parts, above) = self.cover(storage);
        let below = parts.iter().map(|&node| &self.within[node]);
        let mut taken: Vec<(u64, u64)> =
            below.chain(above.iter().map(|&node| &self.throughout[node])).flatten().copied().collect();
        taken.sort_unstable();
        taken
    }

    /// The nodes whose leaves are those of a life, and all nodes above these; each once.
    fn cover(&self, storage: usize) -> (Vec<usize>, Vec<usize>) {
        let Range { start, end } = self.lives[storage];
        let (mut left, mut right) = (start + self.leaves, end + self.leaves);
        let mut parts = Vec::new();
        while left < right {
            if left % 2 == 1 {
                parts.push(left);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                parts.push(right);
            }
            (left, right) = (left / 2, right / 2);
        }
        let mut above: Vec<usize> = parts
            .iter()
            .flat_map(|&node| {
                std::iter::successors(Some(node / 2), |node| Some(node / 2)).take_while(|&node| node > 0)
            })
            .collect();
        above.sort_unstable();
        above.dedup();
        (parts, above)
    }
}

/// Adds a range to others, and joins those that it meets.
fn add(ranges: &mut Ranges, start: u64, end: u64) {
    let first = ranges.partition_point(|range| range.1 < start);
    let last = ranges.partition_point(|range| range.0 <= end);
    let joined = &ranges[first..last];
    let lowest = joined.first().map_or(start, |range| range.0.min(start));
    let highest = joined.last().map_or(end, |range| range.1.max(end));
    ranges.splice(first..last, [(lowest, highest)]);
}
