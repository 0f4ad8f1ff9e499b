//! Independent work on several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What `one` gives for each number of a range, in the order of the numbers, by at most so many threads. A thread begins nothing more
/// after a result that is the `last` one, so that only the results up to the first such one are those of consecutive numbers.
pub(crate) fn map<R: Send>(
    numbers: Range<usize>,
    threads: usize,
    one: impl Fn(usize) -> R + Sync,
    last: impl Fn(&R) -> bool + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(numbers.start);
    let work = || {
        let mut done: Vec<(usize, R)> = Vec::new();
        while done.last().is_none_or(|(_, result)| !last(result)) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                break;
            }
            done.push((number, one(number)));
        }
        done
    };
    let mut results = std::thread::scope(|scope| {
        // Where the system gives fewer threads than wanted, those that there are do the work.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads.min(numbers.len())).map_while(spawn).collect();
        let mut all = work();
        for other in others {
            match other.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::map;

    #[test]
    fn results_are_in_order_and_end_with_the_last() {
        for threads in [0, 1, 3, 8] {
            assert_eq!(map(2..9, threads, |n| n * n, |_| false), [4, 9, 16, 25, 36, 49, 64], "{threads}");
            assert!(map(5..5, threads, |n| n, |_| false).is_empty());
            let until = map(0..100, threads, |n| n, |n| *n == 6);
            assert_eq!(&until[..7], [0, 1, 2, 3, 4, 5, 6], "{threads}");
        }
        assert_eq!(map(0..100, 1, |n| n, |n| *n == 6).len(), 7);
    }
}
