//! Tests of the thread pool: every task exactly once, whatever the threads do.

use super::*;
use std::sync::atomic::AtomicI64;

fn pool(threads: usize) -> Pool {
    Pool::new(PoolOptions { threads, pin: false })
}

/// Runs a loop and returns how often each task was done.
fn counts(pool: &Pool, tasks: i64, chunking: Chunking) -> Vec<i64> {
    let counts: Vec<_> = (0..tasks).map(|_| AtomicI64::new(0)).collect();
    pool.run(tasks, chunking, &|thread, range| {
        assert!(thread < pool.threads());
        assert!(!range.is_empty());
        for task in range {
            counts[task as usize].fetch_add(1, Ordering::Relaxed);
        }
    });
    counts.into_iter().map(AtomicI64::into_inner).collect()
}

#[test]
fn each_task_is_done_once() {
    for threads in [1, 2, 3, 8] {
        let pool = pool(threads);
        assert_eq!(pool.threads(), threads);
        for tasks in [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000] {
            for chunking in [Chunking::Inline, Chunking::Static, Chunking::Dynamic] {
                assert_eq!(counts(&pool, tasks, chunking), vec![1; tasks as usize], "{threads} {tasks}");
            }
        }
    }
}

#[test]
fn results_are_visible_after_each_of_many_loops() {
    let pool = pool(4);
    let mut data = vec![0u64; 257];
    for round in 1..=5000 {
        let cells: Vec<_> = data.iter_mut().map(Mutex::new).collect();
        pool.run(257, if round % 2 == 0 { Chunking::Static } else { Chunking::Dynamic }, &|_, range| {
            for task in range {
                **cells[task as usize].lock().unwrap() += 1;
            }
        });
        drop(cells);
        assert!(data.iter().all(|&value| value == round));
    }
}

#[test]
fn a_loop_uses_a_thread_index_for_one_call_at_a_time() {
    let pool = pool(4);
    std::thread::scope(|scope| {
        for chunking in [Chunking::Inline, Chunking::Static, Chunking::Dynamic] {
            let pool = &pool;
            scope.spawn(move || {
                let busy: Vec<_> = (0..4).map(|_| AtomicBool::new(false)).collect();
                let body = |thread: usize, _: Range<i64>| {
                    assert!(!busy[thread].swap(true, Ordering::SeqCst));
                    std::thread::yield_now();
                    busy[thread].store(false, Ordering::SeqCst);
                };
                (0..200).for_each(|_| pool.run(64, chunking, &body));
            });
        }
    });
}

#[test]
fn a_loop_does_not_wait_for_another_callers() {
    let pool = pool(2);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (begun, wait) = std::sync::mpsc::channel();
        let (pool, ended) = (&pool, &ended);
        scope.spawn(move || {
            pool.run(2, Chunking::Static, &|_, _| {
                // The test waits for the first thread only.
                let _ = begun.send(());
                while !ended.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
            });
        });
        wait.recv().unwrap();
        assert_eq!(counts(pool, 100, Chunking::Dynamic), vec![1; 100]);
        ended.store(true, Ordering::SeqCst);
    });
}

#[test]
fn loops_inside_loops_run_inline() {
    let pool = pool(3);
    let total = AtomicI64::new(0);
    pool.run(10, Chunking::Dynamic, &|outer, range| {
        for _ in range {
            pool.run(5, Chunking::Dynamic, &|inner, range| {
                assert_eq!((inner, &range), (outer, &(0..5)));
                total.fetch_add(range.end, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(total.into_inner(), 50);
}

#[test]
fn sleeping_threads_are_woken() {
    let pool = pool(2);
    for _ in 0..5 {
        std::thread::sleep(2 * AWAKE + Duration::from_millis(1));
        // Each of the two chunks waits until the other has begun, so both threads must take part.
        let begun = AtomicUsize::new(0);
        pool.run(2, Chunking::Static, &|_, _| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn panics_reach_the_caller_and_the_pool_survives() {
    let pool = pool(3);
    let done = AtomicI64::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.run(9, Chunking::Dynamic, &|_, range| {
            done.fetch_add(1, Ordering::Relaxed);
            assert!(!range.contains(&4), "task four");
        });
    }));
    let message = *result.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!((message, done.into_inner()), ("task four", 9));
    assert_eq!(counts(&pool, 100, Chunking::Static), vec![1; 100]);
}

#[test]
fn huge_task_numbers_are_split_exactly() {
    let job = Job { body: &|_: usize, _: Range<i64>| (), tasks: i64::MAX, chunks: 7 };
    let ranges: Vec<_> = (0..7).map(|chunk| job.range(chunk)).collect();
    assert_eq!((ranges[0].start, ranges[6].end), (0, i64::MAX));
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn pinned_pools_work() {
    let pool = Pool::new(PoolOptions { threads: 3, pin: true });
    assert_eq!(counts(&pool, 50, Chunking::Dynamic), vec![1; 50]);
}
