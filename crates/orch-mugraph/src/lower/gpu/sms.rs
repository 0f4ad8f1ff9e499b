//! How SMs run the blocks of a kernel, of different numbers of iterations.
//!
//! ```text
//! all blocks start at once, CTAs share SMs:        more blocks than that, each starts on the SM that is the first to be free:
//!   SM 0   block 0 ------------- block 3 ----        SM 0   block 0 ------- | block 3 ---- | ..
//!   SM 1   block 1 ---------- block 4 -------        SM 1   block 1 ----- | block 4 --- | ..
//! ```
//!
//! In the first case a CTA runs faster once the others of its SM have ended, though not so much faster: they hid its waits
//! ([`iteration_time`](crate::search::cost::SearchDevice::iteration_time)). In the second one some CTAs of an SM are always at work, and
//! only the sum of what they do counts, and the starts of as many blocks as the device holds at once.

use orch_thread::cta::WARP_GROUP_ROWS;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The time of a block's start and end (loads before the first product, store), which no work of that block hides: as columns of scores
/// that take about as long.
const EXPOSED_COLUMNS: usize = 256;
/// The same of a persistent CTA, which loads the next block meanwhile.
const PERSISTENT_EXPOSED_COLUMNS: usize = 64;

/// About as many iterations as take as long as what nothing overlaps with in a block, of so many rows and columns of scores: an iteration for
/// the first product and the last one, and the block's start and end, which take no less where a warp group has fewer rows than it multiplies.
pub(super) fn exposed_iterations([rows, columns]: [usize; 2], is_persistent: bool) -> f64 {
    let exposed = if is_persistent { PERSISTENT_EXPOSED_COLUMNS } else { EXPOSED_COLUMNS };
    1.0 + (exposed * WARP_GROUP_ROWS.max(rows)) as f64 / (columns * rows) as f64
}

/// The blocks of a kernel.
pub(super) struct Blocks<'a> {
    /// The iterations of each in the order in which they start.
    pub iterations: &'a [usize],
    /// As many iterations as take as long as what nothing overlaps with in a block ([`exposed_iterations`]).
    pub exposed: f64,
}

/// SMs, and how they run CTAs.
pub(super) struct Sms<'a> {
    /// Their number.
    pub count: usize,
    /// CTAs that an SM holds at once.
    pub resident: usize,
    /// The time in which an SM runs an iteration of each of so many CTAs.
    pub iteration_time: &'a dyn Fn(usize) -> f64,
}

impl Sms<'_> {
    /// The time of so many blocks that all run the same number of iterations.
    pub fn time_of_equal(&self, blocks: usize, iterations: usize) -> f64 {
        let waves = blocks.div_ceil(self.count);
        let shared = waves.min(self.resident).max(1);
        iterations as f64 * waves as f64 * (self.iteration_time)(shared) / shared as f64
    }

    /// The time until the last of some blocks ends.
    pub fn time_in_order(&self, blocks: &Blocks<'_>) -> f64 {
        let &Blocks { iterations, exposed } = blocks;
        if iterations.len() > self.count * self.resident {
            let shared = self.resident.max(1);
            // As many blocks start together as the device holds; where that is one for each SM, every block takes its own time.
            let (of_each, rounds) = match shared {
                1 => (exposed.round() as usize, 0),
                _ => (0, iterations.len().div_ceil(self.count * shared)),
            };
            let dealt = time_in_order(iterations.iter().map(|all| all + of_each), self.count) as f64;
            let time = (self.iteration_time)(shared) / shared as f64;
            return dealt * time + exposed * rounds as f64 * (self.iteration_time)(1);
        }
        let times = (0..self.count.min(iterations.len())).map(|sm| {
            let mut own: Vec<usize> = iterations.iter().skip(sm).step_by(self.count).copied().collect();
            own.sort_unstable();
            self.time_together(&own, exposed)
        });
        times.fold(0.0, f64::max)
    }

    /// The time in which an SM runs CTAs that start together, given their iterations in ascending order.
    fn time_together(&self, ctas: &[usize], exposed: f64) -> f64 {
        // All start at once, and their loads overlap.
        let (mut time, mut done) = (exposed * (self.iteration_time)(1), 0);
        for (ended, &iterations) in ctas.iter().enumerate() {
            time += (iterations - done) as f64 * (self.iteration_time)(ctas.len() - ended);
            done = iterations;
        }
        time
    }
}

/// The time until the last of some blocks ends, each of which starts on the SM that is the first to be free.
pub(super) fn time_in_order(blocks: impl Iterator<Item = usize>, sms: usize) -> usize {
    let mut free: BinaryHeap<Reverse<usize>> = (0..sms).map(|_| Reverse(0)).collect();
    let mut last = 0;
    for iterations in blocks {
        let Some(Reverse(start)) = free.pop() else { return last };
        last = last.max(start + iterations);
        free.push(Reverse(start + iterations));
    }
    last
}

#[cfg(test)]
mod tests {
    use super::{Blocks, Sms, exposed_iterations, time_in_order};

    /// Of blocks that start and end in as long as five iterations. Two CTAs of an SM take 1.5 times as long as one.
    fn time(resident: usize, are_persistent: bool) -> f64 {
        let iteration_time = |ctas: usize| 0.5 + 0.5 * ctas as f64;
        let exposed = exposed_iterations([64, 64], are_persistent);
        let blocks = Blocks { iterations: &[4, 3, 2], exposed };
        Sms { count: 2, resident, iteration_time: &iteration_time }.time_in_order(&blocks)
    }

    /// A CTA that is left alone on its SM goes on faster than beside another one.
    #[test]
    fn ctas_share_an_sm_until_one_ends() {
        // SM 0 has blocks 0 and 2: 2 iterations of both, and 2 of one. All start and end in as long as 5 more.
        assert_eq!(time(2, false), 5.0 + 2.0 * 1.5 + 2.0);
        // One after the other: block 2 follows block 1, and each starts and ends.
        assert_eq!(time(1, false), 5.0 + 2.0 * 5.0);
        // Persistent CTAs load the next block meanwhile.
        assert_eq!(time(1, true), 5.0 + 2.0 * 2.0);
    }

    #[test]
    fn blocks_start_where_an_sm_is_free_first() {
        assert_eq!(time_in_order([4, 1, 1, 3].into_iter(), 2), 5);
    }
}
