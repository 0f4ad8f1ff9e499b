//! Kernel choice: the binary linear program of Korch (ASPLOS'24, section 5), solved to proven optimality.
//!
//! Minimise the summed cost of the chosen columns such that every required class is produced, and every class that a
//! chosen column reads is available or produced by a chosen column that can run before it. A *class* is what the
//! caller distinguishes: a tensor, or a tensor in a layout. A *column* is one kernel or several bundled ones.
//!
//! The published program demands no order, so it is sound only for kernels with one output; with several, kernels
//! may justify each other in a circle. Here a choice is feasible only if it can be executed: the [`Choice`] lists
//! its columns in an order in which each finds its inputs, and names one producer per class.
//!
//! How it is solved, each step exact:
//! 1. `reduce`: columns that cannot run, serve nobody, or are dominated go away;
//! 2. `structure`: classes that every plan must produce cut the program into independent parts;
//! 3. `prices` of nodes bound what a choice must cost and rule out columns, after which parts may fall apart again;
//! 4. `sweep`: each part by dynamic programming over sets of demanded classes, from outputs to inputs;
//! 5. `milp`: where that meets its limit, a [`Solver`](crate::solver::Solver) for integer programs goes on, with
//!    the best choice so far as a start.
//!
//! Costs are compared as whole picoseconds, ties by fewer kernels, then by fewer executed nodes. So results do not
//! depend on the order of summation.

mod choice;
mod choose;
mod execute;
mod greedy;
mod instance;
mod milp;
mod prices;
mod pricing;
mod problem;
mod reduce;
mod structure;
mod sweep;
#[cfg(test)]
mod tests;
mod window;

pub use choice::{Choice, ChooseOptions, ChooseReport, Life, Status};
pub use choose::choose;
pub use execute::{Schedule, schedule};
pub use problem::{BlpError, ClassId, Column, ColumnId, Problem};
