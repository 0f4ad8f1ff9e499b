//! Templates for GPUs: block programs as thread programs of CTAs.
//!
//! - [`attention`]: two contractions with row statistics between them;
//! - [`contraction`]: matrix products and convolutions, on tensor cores or FMA units;
//! - [`recurrence`]: RNN, GRU and LSTM over time;
//! - [`selection`]: the best along an axis, sorting; [`merge`]: of lines that consist of sorted runs;
//! - [`scatter`]: updates at places that indices name;
//! - [`row`]: reductions that the threads of a CTA or a cluster do together;
//! - [`pointwise`]: elementwise functions and short reductions, each thread by itself;
//! - [`transpose`]: elementwise functions of operands that are contiguous along another axis than the result.
//!
//! [`designs`] tries the templates that serve a block program, each under the schedules that its performance model prefers.

mod access;
pub mod attention;
pub mod contraction;
mod cta;
mod designs;
mod estimate;
pub mod merge;
mod points;
pub mod pointwise;
mod rank;
pub mod recurrence;
pub mod row;
pub mod scatter;
mod sectors;
pub mod selection;
pub mod transpose;
mod window;

pub use designs::{design, designs, serves};
pub use sectors::unused_bytes;
