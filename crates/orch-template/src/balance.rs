//! How evenly work items fall to threads: what cutting a computation finer or coarser is modelled to change.

/// Numbers of threads for which work items should be even.
pub(crate) const EVEN_FOR: [usize; 4] = [4, 8, 16, 32];

/// Numbers of threads among which a computation is cut into even work items: of usual machines. 32 work items are even among 16 threads,
/// and among 12 the longest share is 1.13 times an even one.
const CUT_FOR: [usize; 7] = [4, 6, 8, 12, 16, 24, 32];

/// Modelled cost of each work item, as a share of all work.
pub(crate) const TASK_COST: f64 = 1e-4;

/// Work items by which threads that start late, or are slower than others, are apart at the end.
pub(crate) const UNEVEN_TASKS: f64 = 0.25;

/// How many times as long as an even share the largest share is, a mean over numbers of threads, with what handing work items out costs,
/// if there are so many, the largest of which are such a part of all work.
pub(crate) fn sharing_cost(tasks: usize, largest: f64) -> f64 {
    let of = |threads: &usize| {
        let rounds = tasks.div_ceil(*threads) as f64 + UNEVEN_TASKS;
        ((rounds * largest).min(1.0) * *threads as f64).max(1.0)
    };
    CUT_FOR.iter().map(of).sum::<f64>() / CUT_FOR.len() as f64 + TASK_COST * tasks as f64
}
