//! Tests of the thread pool: every task exactly once, whatever the threads do.

use super::*;
use std::sync::atomic::AtomicI64;

fn pool(threads: usize) -> Pool {
    Pool::new(PoolOptions { threads, pin: false })
}

/// Runs a loop and returns how often each task was done.
fn counts(pool: &Pool, tasks: i64, chunking: Chunking) -> Vec<i64> {
    let counts: Vec<_> = (0..tasks).map(|_| AtomicI64::new(0)).collect();
    pool.run(tasks, chunking, &|LoopCall { thread, tasks: range, .. }| {
        assert!(*thread < pool.threads());
        assert!(!range.is_empty());
        for task in range.clone() {
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
            for chunking in [Chunking::Inline, Chunking::Static, Chunking::Dynamic, Chunking::Each] {
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
        pool.run(257, if round % 2 == 0 { Chunking::Static } else { Chunking::Dynamic }, &|call| {
            for task in call.tasks.clone() {
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
        for chunking in [Chunking::Inline, Chunking::Static, Chunking::Dynamic, Chunking::Each] {
            let pool = &pool;
            scope.spawn(move || {
                let busy: Vec<_> = (0..4).map(|_| AtomicBool::new(false)).collect();
                let body = |&LoopCall { thread, .. }: &LoopCall| {
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
            pool.run(2, Chunking::Static, &|_| {
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
    pool.run(10, Chunking::Dynamic, &|outer| {
        for _ in outer.tasks.clone() {
            pool.run(5, Chunking::Dynamic, &|inner| {
                assert_eq!((inner.thread, &inner.tasks), (outer.thread, &(0..5)));
                total.fetch_add(inner.tasks.end, Ordering::Relaxed);
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
        pool.run(2, Chunking::Static, &|_| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn many_sleeping_threads_are_woken_one_by_another() {
    let pool = pool(7);
    for tasks in [2, 5, 7] {
        std::thread::sleep(2 * AWAKE + Duration::from_millis(1));
        let begun = AtomicUsize::new(0);
        pool.run(tasks, Chunking::Static, &|_| {
            begun.fetch_add(1, Ordering::SeqCst);
            while begun.load(Ordering::SeqCst) < tasks as usize {
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn threads_stay_awake_during_a_run() {
    let pool = pool(2);
    if pool.shared.awake.is_zero() {
        // With one CPU threads sleep at once.
        return;
    }
    let is_asleep = || pool.shared.sleeping[1].0.is_asleep.load(Ordering::SeqCst);
    let awake = pool.keep_awake();
    pool.run(2, Chunking::Static, &|_| ());
    std::thread::sleep(20 * AWAKE);
    assert!(!is_asleep());
    drop(awake);
    while !is_asleep() {
        std::thread::yield_now();
    }
}

#[test]
fn pools_of_equal_options_are_shared_as_long_as_they_are_used() {
    let options = PoolOptions { threads: 5, pin: false };
    let (first, second) = (Pool::shared(options), Pool::shared(options));
    assert!(Arc::ptr_eq(&first, &second));
    assert!(!Arc::ptr_eq(&first, &Pool::shared(PoolOptions { threads: 6, ..options })));
    let gone = Arc::downgrade(&first);
    drop((first, second));
    assert!(gone.upgrade().is_none());
}

#[test]
fn panics_reach_the_caller_and_the_pool_survives() {
    let pool = pool(3);
    let done = AtomicI64::new(0);
    let result = catch_unwind(AssertUnwindSafe(|| {
        pool.run(9, Chunking::Dynamic, &|call| {
            done.fetch_add(1, Ordering::Relaxed);
            assert!(!call.tasks.contains(&4), "task four");
        });
    }));
    let message = *result.unwrap_err().downcast::<&str>().unwrap();
    assert_eq!((message, done.into_inner()), ("task four", 9));
    assert_eq!(counts(&pool, 100, Chunking::Static), vec![1; 100]);
}

#[test]
fn huge_task_numbers_are_split_exactly() {
    let job = Job { number: 1, body: &|_: &LoopCall| (), tasks: i64::MAX, chunks: 7 };
    let ranges: Vec<_> = (0..7).map(|chunk| job.range(chunk)).collect();
    assert_eq!((ranges[0].start, ranges[6].end), (0, i64::MAX));
    assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
}

#[test]
fn pinned_pools_work() {
    let pool = Pool::new(PoolOptions { threads: 3, pin: true });
    assert_eq!(counts(&pool, 50, Chunking::Dynamic), vec![1; 50]);
}

#[test]
fn calls_know_the_task_before() {
    let pool = pool(3);
    for round in 0..500 {
        let tasks = 40 + round % 7;
        let last: Vec<_> = (0..3).map(|_| AtomicI64::new(-1)).collect();
        pool.run(tasks, Chunking::Dynamic, &|call| {
            let before = last[call.thread].swap(call.tasks.end - 1, Ordering::SeqCst);
            // Which was not of another loop, whose scratch this one's may not rely on.
            assert!(call.task_before == before || call.task_before == -1, "{call:?} after {before}");
        });
    }
}
