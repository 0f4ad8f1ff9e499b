//! How threads of a CPU share work items: those of a step among all of them, or those of several independent steps as one list.
//!
//! Times are modelled. Nothing here changes what a work item computes, so that results do not depend on the number of threads.

use orch_runtime::cpu::Chunking;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

/// Kernels that are modelled to take less than this on one thread, in microseconds, run on the calling thread: sharing one costs as much.
const INLINE_US: f64 = 8.0;

/// Phases that are modelled to take less than this on one thread run on the calling thread: the others are awake, as they have just done the
/// phase before.
const INLINE_PHASE_US: f64 = 4.0;

/// What it takes to announce a loop to the other threads and to wait for all of them, in microseconds.
const WAIT_US: f64 = 3.0;

/// Pieces per thread of a list: the last ones, which threads end with at different times, are this part of its time. A piece costs little
/// more than its work items, as a thread keeps what it has packed from one to the next.
const PIECES: usize = 32;

/// A launch of a kernel, as far as sharing it goes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SharedWork {
    /// Its work items.
    pub tasks: usize,
    /// Microseconds on one thread, without the launch; finite and not negative.
    pub alone_us: f64,
}

/// Work items of one of several launches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceOfWork {
    /// The number of the launch.
    pub launch: usize,
    /// Its work items.
    pub tasks: Range<usize>,
}

/// How the work items of a kernel that takes one thread this modelled time are shared among threads.
pub fn chunking(alone_us: f64, phases: usize) -> Chunking {
    let is_short = match phases {
        0 | 1 => alone_us < INLINE_US,
        several => alone_us / (several as f64) < INLINE_PHASE_US,
    };
    if is_short { Chunking::Inline } else { Chunking::Dynamic }
}

/// Modelled microseconds of a launch by itself.
pub fn separate_us(work: SharedWork, threads: usize) -> f64 {
    let threads = threads.min(work.tasks).max(1);
    if threads == 1 || chunking(work.alone_us, 1) == Chunking::Inline {
        return work.alone_us;
    }
    WAIT_US + work.alone_us * work.tasks.div_ceil(threads) as f64 / work.tasks as f64
}

/// Modelled microseconds of launches whose work items are dealt as one list.
pub fn joined_us(works: &[SharedWork], threads: usize) -> f64 {
    let piece_us = |piece: &PieceOfWork| {
        let work = works[piece.launch];
        work.alone_us * piece.tasks.len() as f64 / work.tasks as f64
    };
    // When each thread is free, in nanoseconds: the next piece is that of the first one.
    let mut free: BinaryHeap<Reverse<u64>> = std::iter::repeat_n(Reverse(0), threads.max(1)).collect();
    let mut end_ns = 0;
    for piece in pieces(works, threads) {
        let Some(Reverse(start)) = free.pop() else { break };
        let end = start.saturating_add((1e3 * piece_us(&piece)) as u64);
        end_ns = end_ns.max(end);
        free.push(Reverse(end));
    }
    WAIT_US + end_ns as f64 / 1e3
}

/// True if dealing the work items of launches and of one more as one list is modelled to gain over the lists of both, where launches that
/// are several are one list.
pub fn gains(works: &[SharedWork], next: SharedWork, threads: usize) -> bool {
    let list_us = |works: &[SharedWork]| match works {
        [single] => separate_us(*single, threads),
        several => joined_us(several, threads),
    };
    threads > 1
        && works.iter().chain([&next]).all(|work| work.tasks > 0)
        && joined_us(&[works, &[next]].concat(), threads) < list_us(works) + separate_us(next, threads)
}

/// The work items of launches, cut for so many threads into pieces of even times, as far as work items allow: the longest first, so that
/// threads end at about the same time.
pub fn pieces(works: &[SharedWork], threads: usize) -> Vec<PieceOfWork> {
    let wanted = threads.saturating_mul(PIECES) as f64;
    let all_us: f64 = works.iter().map(|work| work.alone_us).sum();
    let count = |work: &SharedWork| {
        let share = if all_us > 0.0 { work.alone_us / all_us } else { 1.0 };
        ((wanted * share).round() as usize).max(1).min(work.tasks)
    };
    let mut launches: Vec<usize> = (0..works.len()).collect();
    let piece_us = |launch: &usize| works[*launch].alone_us / count(&works[*launch]).max(1) as f64;
    launches.sort_by(|a, b| piece_us(b).total_cmp(&piece_us(a)));
    let cut = |launch: usize| {
        let (tasks, count) = (works[launch].tasks, count(&works[launch]));
        let bound = move |piece: usize| (tasks as u128 * piece as u128 / count as u128) as usize;
        (0..count).map(move |piece| PieceOfWork { launch, tasks: bound(piece)..bound(piece + 1) })
    };
    launches.into_iter().flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn work(tasks: usize, alone_us: f64) -> SharedWork {
        SharedWork { tasks, alone_us }
    }

    #[test]
    fn steps_that_leave_threads_idle_are_joined() {
        // Five of eight threads work, three beside them.
        assert!(gains(&[work(5, 500.0)], work(3, 300.0), 8));
        assert_eq!(joined_us(&[work(5, 500.0), work(3, 300.0)], 8), WAIT_US + 100.0);
        // Neither is shared by itself.
        assert!(gains(&[work(4, 7.0)], work(4, 7.0), 4));
        // There is nobody to share with, or next to nothing to share.
        assert!(!gains(&[work(5, 500.0)], work(3, 300.0), 1));
        assert!(!gains(&[work(4, 0.5)], work(4, 0.5), 4));
        assert!(!gains(&[work(5, 500.0)], work(0, 0.0), 8));
        // A work item that takes longer than all others together begins first.
        assert_eq!(joined_us(&[work(30, 30.0), work(1, 40.0)], 4), WAIT_US + 40.0);
    }

    proptest! {
        #[test]
        fn pieces_have_each_work_item_once(
            works in proptest::collection::vec((0usize..300, 0.0..1e4), 1..6),
            threads in 1usize..40,
        ) {
            let works: Vec<SharedWork> = works.into_iter().map(|(tasks, us)| work(tasks, us)).collect();
            let pieces = pieces(&works, threads);
            prop_assert!(pieces.len() <= PIECES * threads + works.len());
            for (launch, work) in works.iter().enumerate() {
                let own = pieces.iter().filter(|piece| piece.launch == launch);
                let tasks: Vec<usize> = own.flat_map(|piece| piece.tasks.clone()).collect();
                prop_assert_eq!(tasks, (0..work.tasks).collect::<Vec<_>>());
            }
            // No thread does more than its share and one piece.
            let all_us: f64 = works.iter().filter(|work| work.tasks > 0).map(|work| work.alone_us).sum();
            let longest_us = pieces.iter().map(|piece| {
                let work = works[piece.launch];
                work.alone_us * piece.tasks.len() as f64 / work.tasks as f64
            });
            let longest_us = longest_us.fold(0.0, f64::max);
            prop_assert!(joined_us(&works, threads) <= WAIT_US + all_us / threads as f64 + longest_us + 1e-6);
        }
    }
}
