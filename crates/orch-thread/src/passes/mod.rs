//! Passes over thread programs, in the one order in which every kernel goes through them.
//!
//! | pass | programs | what it does |
//! |---|---|---|
//! | [`hoist_loads`] | GPU | loads of an epilogue are issued at the start of the kernel |
//! | [`batch_loads`] | GPU | loads of several iterations are issued before the first store |
//! | [`defer_grid_wait`] | GPU | `griddepcontrol.wait` moves behind what reads constants only |
//! | [`evict_first`] | GPU | arguments that are streamed once are marked for `L2::evict_first` |
//! | [`launch_dependents_early`] | GPU | kernels that stream very much launch the next one at their start |
//! | [`unroll`] | CPU | fully unrolled loops become straight code |
//!
//! [`run_all`] is called once per kernel, after planning: schedules are ranked by programs that no pass has changed, and kernels
//! that are timed or emitted have been through all passes. Each pass keeps what a program computes, and leaves a program alone
//! that does not meet its precondition.

pub mod batch_loads;
pub mod defer_grid_wait;
pub mod evict_first;
pub mod hoist_loads;
pub mod launch_dependents_early;
mod list;
mod replace;
pub mod unroll;

pub use list::{PASSES, Pass, PassContext, ProgramKind, find, names, run_all};
