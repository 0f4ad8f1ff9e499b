//! A thread pool for loops of a few microseconds.
//!
//! A loop is a number of tasks (work items), cut into chunks. Every thread owns a contiguous share of the chunks, takes them one
//! after the other, and then helps the others; the thread that started the loop works too. So the same thread meets
//! the same part of a tensor in consecutive loops (its cache still holds it), and yet a thread that the system has
//! descheduled delays no other: its chunks are done by others, and the loop ends as soon as all chunks are done, whether
//! or not every thread has noticed it.
//!
//! In a forked process, which has none of the threads, loops run on their callers.
//!
//! Idle threads spin for some microseconds, then give way to other programs, then sleep; not while a run is going on, between whose
//! loops they would be woken again ([`Pool::keep_awake`]). They are woken as a tree: each wakes two others before it works. A pool of
//! one thread starts none and calls the loop body directly.
//!
//! What runs in one process shares a pool ([`Pool::shared`]): two of them would compete for the same CPUs. Loops that meet another
//! caller's run on their callers alone, so that any number of callers may use it.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::os;

/// How many threads, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// Threads that work on a loop, the caller's included; at least 1.
    pub threads: usize,
    /// Binds each started thread to a CPU that the process may use, of a core of its own as far as there are enough. The caller's
    /// thread stays free.
    pub pin: bool,
}

/// How a loop is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunking {
    /// All tasks in one call on the calling thread: for loops too short to share.
    Inline,
    /// One chunk per thread: for tasks of equal cost.
    Static,
    /// Several chunks per thread: for tasks of unequal cost, or busy machines.
    Dynamic,
    /// One chunk per task: for tasks that were cut for the threads.
    Each,
}

/// Chunks per thread of a [`Chunking::Dynamic`] loop.
const DYNAMIC_CHUNKS: usize = 8;

/// How long an idle thread spins before it offers its CPU to others.
const SPIN: Duration = Duration::from_micros(20);

/// How long an idle thread stays awake altogether: longer than the usual pause between two loops of one model.
const AWAKE: Duration = Duration::from_micros(200);

/// Worker threads that wait for loops.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the thread whose loop is running.
    running: Mutex<()>,
    /// [`os::forks`] when the threads were started.
    forks: u32,
    nodes: usize,
}

/// A call of a loop body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoopCall {
    /// The index of the thread: no other call of this loop has it meanwhile.
    pub thread: usize,
    /// The tasks to do.
    pub tasks: Range<i64>,
    /// The last task of the call before this one that had the same thread index, if that was of the same loop; otherwise -1.
    pub task_before: i64,
}

impl LoopCall {
    /// The only call of a loop.
    pub fn whole(tasks: i64) -> Self {
        Self { thread: 0, tasks: 0..tasks, task_before: -1 }
    }
}

type Body<'a> = dyn Fn(&LoopCall) + Sync + 'a;

/// The running loop. Its fields are valid while chunks of it are unfinished.
#[derive(Clone, Copy)]
struct Job {
    /// Counts the loops of the pool.
    number: u64,
    body: *const Body<'static>,
    tasks: i64,
    chunks: u32,
}

/// A value on cache lines of its own (two, because they are fetched in pairs): a thread that writes it does not invalidate
/// the lines that other threads spin on.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// One thread's chunks that no thread has taken: `begin` in the upper half, `end` in the lower.
#[derive(Default)]
struct Share(AtomicU64);

/// What idle threads watch. The job lies beside the epoch, so that it arrives together with the news.
struct Bulletin {
    /// Counts loops (and the order to stop), so that idle threads notice a new one.
    epoch: AtomicU32,
    /// Threads that the newest loop has chunks for, the caller's aside.
    helpers: AtomicUsize,
    job: UnsafeCell<Job>,
}

/// Whether a thread sleeps, and how to wake it.
#[derive(Default)]
struct Sleeping {
    is_asleep: AtomicBool,
    thread: OnceLock<Thread>,
}

/// While this lives, threads of the pool do not sleep.
pub struct Awake<'a>(&'a Shared);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        self.0.runs.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Shared {
    bulletin: Apart<Bulletin>,
    shares: Vec<Apart<Share>>,
    /// Chunks of the running loop that are not finished. While it is not 0, the job is not written.
    unfinished: Apart<AtomicUsize>,
    stop: AtomicBool,
    /// Workers that have begun to serve: starting a thread allocates on it, and no run is to meet that.
    started: AtomicUsize,
    spin: Duration,
    awake: Duration,
    /// Runs that are going on: threads do not sleep meanwhile.
    runs: AtomicUsize,
    /// Each thread that sleeps until it is woken.
    sleeping: Vec<Apart<Sleeping>>,
    /// True while the caller sleeps until `unfinished` is 0.
    caller_sleeps: AtomicBool,
    finished: (Mutex<()>, Condvar),
    /// The first panic of a loop body.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: everything but the job is `Sync`. The job is written only by the thread that holds `Pool::running` while
// `unfinished` is 0, and read only by threads that hold a chunk, that is while `unfinished` is not 0; taking a chunk
// synchronises with the write, finishing it with the next one. The body that it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is used only while the loop that it belongs to runs.
unsafe impl Send for Shared {}

/// Which pool's loop body a thread is running, and under which index: a loop inside a loop runs inline.
#[derive(Clone, Copy)]
struct Inside {
    pool: *const Shared,
    thread: usize,
}

/// Restores what this thread was inside of.
struct Leave(Option<Inside>);

thread_local! {
    static INSIDE: Cell<Option<Inside>> = const { Cell::new(None) };
}

impl Drop for Leave {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

impl Pool {
    /// Starts the threads. Where the system starts fewer than requested, the pool has fewer.
    pub fn new(options: PoolOptions) -> Self {
        let threads = options.threads.clamp(1, u16::MAX.into());
        let cpus = if options.pin { cpus_from_here() } else { Vec::new() };
        let crowded = std::thread::available_parallelism().is_ok_and(|cpus| threads > cpus.get());
        let shared = Arc::new(Shared::new(threads, crowded));
        let workers = (1..threads)
            .map_while(|thread| {
                let shared = Arc::clone(&shared);
                let cpu = (!cpus.is_empty()).then(|| cpus[thread % cpus.len()]);
                let start = move || {
                    if let Some(cpu) = cpu {
                        // An unpinned thread is slower at worst.
                        os::pin_current_thread(cpu);
                    }
                    shared.serve(thread);
                };
                std::thread::Builder::new().name(format!("orchestrion-{thread}")).spawn(start).ok()
            })
            .collect::<Vec<_>>();
        while shared.started.load(Ordering::SeqCst) < workers.len() {
            std::thread::yield_now();
        }
        let taken = &cpus[..threads.min(cpus.len())];
        Self { shared, workers, running: Mutex::new(()), forks: os::forks(), nodes: os::numa_nodes(taken) }
    }

    /// The pool of this process with these options, which lives as long as somebody uses it.
    pub fn shared(options: PoolOptions) -> Arc<Self> {
        static POOLS: Mutex<Vec<(PoolOptions, Weak<Pool>)>> = Mutex::new(Vec::new());
        // A process that was forked while the list was in use never gets it.
        let Ok(mut pools) = POOLS.try_lock() else { return Arc::new(Self::new(options)) };
        let usable = |(known, pool): &(PoolOptions, Weak<Pool>)| {
            let pool = pool.upgrade().filter(|pool| *known == options && pool.forks == os::forks())?;
            Some(pool)
        };
        if let Some(pool) = pools.iter().find_map(usable) {
            return pool;
        }
        let pool = Arc::new(Self::new(options));
        pools.retain(|(_, pool)| pool.strong_count() > 0);
        pools.push((options, Arc::downgrade(&pool)));
        pool
    }

    /// Keeps the threads from sleeping as long as the result lives: a run has many loops, and waking takes longer than most.
    pub fn keep_awake(&self) -> Awake<'_> {
        self.shared.runs.fetch_add(1, Ordering::SeqCst);
        Awake(&self.shared)
    }

    /// Threads that work on a loop, the caller's included. Loop bodies get a thread index below this.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// NUMA nodes that the threads are bound to; 1 where they are not bound, or the system does not tell.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Calls `body` for disjoint ranges that make up `0..tasks`, on several threads, and returns when
    /// all calls have. At any time each thread index is used by one call of this loop only. A loop that finds the threads
    /// taken by another caller's runs on its caller alone; one that is started inside a loop body runs inline, under the
    /// same thread index.
    ///
    /// # Panics
    /// If `body` does; the other calls still happen.
    pub fn run(&self, tasks: i64, chunking: Chunking, body: &Body<'_>) {
        if tasks <= 0 {
            return;
        }
        if let Some(inside) = INSIDE.get().filter(|inside| inside.pool == Arc::as_ptr(&self.shared)) {
            return body(&LoopCall { thread: inside.thread, ..LoopCall::whole(tasks) });
        }
        let threads = self.threads();
        let is_shared = threads > 1 && tasks > 1 && chunking != Chunking::Inline;
        let Some(running) = is_shared.then(|| self.take_threads()).flatten() else {
            let _inside = self.shared.enter(0);
            return body(&LoopCall::whole(tasks));
        };
        let most_chunks = match chunking {
            Chunking::Inline => 1,
            Chunking::Static => threads,
            Chunking::Dynamic => threads * DYNAMIC_CHUNKS,
            Chunking::Each => u32::MAX as usize,
        };
        let chunks = usize::try_from(tasks).unwrap_or(usize::MAX).min(most_chunks);
        self.shared.publish(threads, tasks, chunks as u32, body);
        self.shared.work(0);
        self.shared.wait_until_finished();
        let panic = lock(&self.shared.panic).take();
        drop(running);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// The right to run a loop on all threads; `None` while another caller has it, and in a process that was forked since: the threads
    /// are not in it.
    fn take_threads(&self) -> Option<MutexGuard<'_, ()>> {
        if os::forks() != self.forks {
            return None;
        }
        match self.running.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if os::forks() != self.forks {
            // Their threads are not in this process: neither can they be waited for.
            self.workers.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bulletin.0.epoch.fetch_add(1, Ordering::SeqCst);
        (1..self.shared.sleeping.len()).for_each(|thread| self.shared.wake(thread));
        for worker in self.workers.drain(..) {
            // Loop bodies' panics are caught, so workers end normally.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn new(threads: usize, crowded: bool) -> Self {
        fn no_body(_: &LoopCall) {}
        let no_body: &'static Body<'static> = &no_body;
        Self {
            bulletin: Apart(Bulletin {
                epoch: AtomicU32::new(0),
                helpers: AtomicUsize::new(0),
                job: UnsafeCell::new(Job { number: 0, body: no_body, tasks: 0, chunks: 1 }),
            }),
            shares: (0..threads).map(|_| Apart::default()).collect(),
            unfinished: Apart::default(),
            stop: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            spin: if crowded { Duration::ZERO } else { SPIN },
            awake: if crowded { Duration::ZERO } else { AWAKE },
            runs: AtomicUsize::new(0),
            sleeping: (0..threads).map(|_| Apart::default()).collect(),
            caller_sleeps: AtomicBool::new(false),
            finished: Default::default(),
            panic: Mutex::new(None),
        }
    }

    /// Makes a loop visible to all threads. Called with `Pool::running` held and no loop running; the caller must not
    /// return before `unfinished` is 0 again.
    fn publish(&self, threads: usize, tasks: i64, chunks: u32, body: &Body<'_>) {
        // SAFETY: only the lifetime changes. The pointer is used for chunks of this loop only, and the caller keeps
        // `body` borrowed until they are finished.
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        debug_assert_eq!(self.unfinished.0.load(Ordering::Relaxed), 0);
        // SAFETY: no chunk is unfinished, so no thread reads the job; the `running` lock keeps other writers out.
        unsafe {
            let job = &mut *self.bulletin.0.job.get();
            *job = Job { number: job.number + 1, body, tasks, chunks };
        }
        self.unfinished.0.store(chunks as usize, Ordering::Relaxed);
        // Shares beyond these stay empty, as the last loop left them.
        let owners = threads.min(chunks as usize);
        for (thread, share) in self.shares[..owners].iter().enumerate() {
            let bound = |thread: usize| (chunks as u64 * thread as u64) / owners as u64;
            share.0.0.store(bound(thread) << 32 | bound(thread + 1), Ordering::Release);
        }
        self.bulletin.0.helpers.store(owners - 1, Ordering::SeqCst);
        self.bulletin.0.epoch.fetch_add(1, Ordering::SeqCst);
        self.wake_below(0);
    }

    /// Wakes the two threads that this one has to wake, if the newest loop has chunks for them and they sleep.
    fn wake_below(&self, thread: usize) {
        let helpers = self.bulletin.0.helpers.load(Ordering::SeqCst);
        (2 * thread + 1..=2 * thread + 2)
            .filter(|&below| below <= helpers)
            .for_each(|below| self.wake(below));
    }

    fn wake(&self, thread: usize) {
        let Sleeping { is_asleep, thread } = &self.sleeping[thread].0;
        if is_asleep.load(Ordering::SeqCst) && is_asleep.swap(false, Ordering::SeqCst) {
            thread.get().into_iter().for_each(Thread::unpark);
        }
    }

    /// Takes and runs chunks, first this thread's own, until there are none.
    fn work(&self, thread: usize) {
        let mut done = 0;
        // The last task that was done here, and the number of its loop.
        let mut before = (-1, 0);
        for owner in (thread..self.shares.len()).chain(0..thread) {
            while let Some(chunk) = self.shares[owner].0.take() {
                // SAFETY: this thread holds an unfinished chunk of the job, so the job is not written, and its body
                // is still borrowed by the caller.
                let (job, body) = unsafe {
                    let job = *self.bulletin.0.job.get();
                    (job, &*job.body)
                };
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let _inside = self.enter(thread);
                    let task_before = if before.1 == job.number { before.0 } else { -1 };
                    body(&LoopCall { thread, tasks: job.range(chunk), task_before });
                }));
                before = (job.range(chunk).end - 1, job.number);
                if let Err(panic) = result {
                    lock(&self.panic).get_or_insert(panic);
                }
                done += 1;
            }
        }
        if done > 0 && self.unfinished.0.fetch_sub(done, Ordering::SeqCst) == done {
            // The caller sets this before it looks at `unfinished` for the last time.
            if self.caller_sleeps.load(Ordering::SeqCst) {
                drop(lock(&self.finished.0));
                self.finished.1.notify_all();
            }
        }
    }

    /// Notes that this thread runs a loop body, until the result is dropped.
    fn enter(&self, thread: usize) -> Leave {
        Leave(INSIDE.replace(Some(Inside { pool: self, thread })))
    }

    /// Waits for the chunks that other threads have taken.
    fn wait_until_finished(&self) {
        let finished = || self.unfinished.0.load(Ordering::SeqCst) == 0;
        if self.stays_awake_until(finished) {
            return;
        }
        let mut guard = lock(&self.finished.0);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        while !finished() {
            guard = self.finished.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// The life of a worker.
    fn serve(&self, thread: usize) {
        let mut seen = 0;
        let Sleeping { is_asleep, thread: own } = &self.sleeping[thread].0;
        own.get_or_init(std::thread::current);
        self.started.fetch_add(1, Ordering::SeqCst);
        loop {
            let changed = || self.bulletin.0.epoch.load(Ordering::SeqCst) != seen;
            if !self.stays_awake_until(changed) {
                // A change that is not seen below is announced by a thread that sees this one asleep.
                is_asleep.store(true, Ordering::SeqCst);
                while !changed() && is_asleep.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                is_asleep.store(false, Ordering::SeqCst);
            }
            seen = self.bulletin.0.epoch.load(Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            self.wake_below(thread);
            self.work(thread);
        }
    }

    /// Spins, then yields, until the condition holds; false if it does not hold in time.
    fn stays_awake_until(&self, condition: impl Fn() -> bool) -> bool {
        const LOOKS_PER_CLOCK: usize = 32;
        let mut start = None;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if condition() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let waited = start.get_or_insert_with(Instant::now).elapsed();
            let is_between_runs = self.awake.is_zero() || self.runs.load(Ordering::SeqCst) == 0;
            if waited >= self.awake && is_between_runs {
                return condition();
            }
            if waited >= self.spin {
                std::thread::yield_now();
            }
        }
    }
}

impl Share {
    /// The next chunk, if one is left.
    fn take(&self) -> Option<u32> {
        let mut current = self.0.load(Ordering::Relaxed);
        loop {
            let (begin, end) = ((current >> 32) as u32, current as u32);
            if begin >= end {
                return None;
            }
            // Success on a value that has meanwhile become that of a later loop takes a chunk of that loop, which is
            // as good: nothing about the loop was read before.
            let next = current + (1 << 32);
            match self.0.compare_exchange_weak(current, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(begin),
                Err(actual) => current = actual,
            }
        }
    }
}

impl Job {
    /// The tasks of a chunk: all chunks have the same size, give or take one.
    fn range(&self, chunk: u32) -> Range<i64> {
        let bound = |chunk: u32| (self.tasks as i128 * chunk as i128 / self.chunks as i128) as i64;
        bound(chunk)..bound(chunk + 1)
    }
}

/// Threads that run at the same time without sharing a core: the cores that this process may use, or the CPUs that it may keep busy
/// (a container's quota) where those are fewer.
pub fn usable_cores() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    match os::cores(&os::allowed_cpus()).len() {
        0 => cpus,
        cores => cores.min(cpus),
    }
}

/// One allowed CPU of each core, beginning with the one that the caller runs on, then the others of the cores: started threads take
/// the other cores first.
fn cpus_from_here() -> Vec<usize> {
    let allowed = os::allowed_cpus();
    let cores = os::cores(&allowed);
    let most = cores.iter().map(Vec::len).max().unwrap_or(0);
    let mut cpus: Vec<usize> =
        (0..most).flat_map(|at| cores.iter().filter_map(move |core| core.get(at).copied())).collect();
    if let Some(idx) = os::current_cpu().and_then(|here| cpus.iter().position(|&cpu| cpu == here)) {
        cpus.rotate_left(idx);
    }
    cpus
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
