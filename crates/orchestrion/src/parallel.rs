//! Work on many independent things with several threads.

use crate::{Error, Options};
use std::sync::atomic::{AtomicUsize, Ordering};

/// CPUs that the process may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, |count| count.get())
}

/// More threads than this only compete with each other, and the system may refuse them.
pub const MAX_THREADS: usize = 1024;

/// Threads that the options request, at most [`MAX_THREADS`]; one per CPU if they leave it open.
pub fn jobs(options: &Options) -> usize {
    if options.jobs == 0 { cpus() } else { options.jobs.min(MAX_THREADS) }
}

/// Applies a function to every item; results are in the order of the items, whichever thread made them.
///
/// # Errors
/// If the work is cancelled.
pub fn map<T: Sync, R: Send>(
    items: &[T],
    options: &Options,
    function: impl Fn(&T) -> R + Sync,
) -> Result<Vec<R>, Error> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done: Vec<(usize, R)> = Vec::new();
        while !is_cancelled(options) {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(position) else { break };
            done.push((position, function(item)));
        }
        done
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        // Where the system gives fewer threads than wanted, those that there are do the work.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..jobs(options).min(items.len())).map_while(spawn).collect();
        let mut all = work();
        for other in others {
            match other.join() {
                Ok(done) => all.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    if is_cancelled(options) {
        return Err(Error::Interrupted);
    }
    all.sort_unstable_by_key(|(position, _)| *position);
    Ok(all.into_iter().map(|(_, result)| result).collect())
}

fn is_cancelled(options: &Options) -> bool {
    options.cancel.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn results_keep_the_order() {
        let items: Vec<usize> = (0..1000).collect();
        for jobs in [1, 3] {
            let options = Options { jobs, ..Options::default() };
            let doubled = map(&items, &options, |item| 2 * item).unwrap();
            assert!(doubled.iter().zip(&items).all(|(result, item)| *result == 2 * item));
        }
    }

    #[test]
    fn cancelled_work_stops() {
        let options = Options { cancel: Arc::new(AtomicBool::new(true)), ..Options::default() };
        assert!(matches!(map(&[1, 2], &options, |item| *item), Err(Error::Interrupted)));
    }
}
