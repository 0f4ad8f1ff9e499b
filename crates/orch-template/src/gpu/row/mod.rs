//! Kernels whose threads reduce together: softmax, normalisations, sums, extrema and their positions over rows or
//! columns, with whatever is computed before, between and after the reductions, in one kernel.
//!
//! A *row* is what is reduced together: the elements at a point of the outer axes, over which every stage varies. The threads
//! that share a row run the stages one after the other. Each takes every so-manieth vector of the axes that a stage loops
//! over; their partial results are combined by shuffles within a warp, through shared memory between warps, and through DSMEM
//! between the CTAs of a cluster.
//!
//! Vectors along reduced axes ([`LaneAxis::Reduced`](crate::LaneAxis::Reduced)): the threads of a row are neighbours, here 8 of them in 2 rows of a CTA:
//!
//! ```text
//! row 0   v0:t0  v1:t1  ...  v7:t7  v8:t0  v9:t1  ...        vector v of the row: thread v % 8, round v / 8
//! row 1   v0:t8  v1:t9  ...  v7:t15 v8:t8  v9:t9  ...
//! ```
//!
//! Vectors along an outer axis ([`LaneAxis::Output`](crate::LaneAxis::Output)): neighbouring threads have neighbouring columns, and the threads
//! of a column (of `lanes` columns) are `rows` apart, here 4 column vectors with 8 threads each:
//!
//! ```text
//! k = 0   | c0:t0  | c1:t1  | c2:t2  | c3:t3  |
//! k = 1   | c0:t4  | c1:t5  | c2:t6  | c3:t7  |               k of a column: thread (k % 8) * 4 + c, round k / 8
//! ...
//! k = 8   | c0:t0  | c1:t1  | ...
//! ```
//!
//! What several stages need of an element is kept in registers, if it fits, so that inputs are read once. Results of
//! reductions that vary over more than the outer axes are computed by one thread each and are in shared memory.
//!
//! Numerics: sums have a partial sum for each lane of each thread; 16-bit floats are summed in f32.

mod choose;
mod combine;
mod emitter;
mod lower;
mod rounds;
mod schedule;
mod stages;

pub(super) use choose::ranked;
pub use choose::schedules;
pub use lower::lower;
pub use schedule::RowSchedule;
pub(super) use stages::serves;
