//! Planning: which kernels compute a graph, and what each of them is.
//!
//! In the order of the pipeline, with the ground types that the other stages share in front:
//!
//! | module | what it holds |
//! |---|---|
//! | [`kernel`] | plain types: a kernel's design, work, modelled and measured times |
//! | [`definition`] | what a kernel computes: a block program, or a primitive that is a kernel by itself |
//! | [`backend`] | the three traits that a target implements: [`Planner`](backend::Planner), [`Toolchain`](backend::Toolchain), [`Meter`](backend::Meter) |
//! | [`wiring`], [`unrolled`] | the graph without primitives that cost nothing, and loops that an exporter unrolled |
//! | [`units`], [`signature`], [`prepared`], [`context`] | the graph in units, the keys of kernels, and all of that as one value |
//! | [`substitute`], [`block_kernels`] | a proved µGraph in place of primitives, and its kernels |
//! | [`known`] | what depends on constants alone |
//! | [`host`] | times of what runs on the host |
//! | [`candidates`], [`chains`], [`siblings`] | sets of units that may be one kernel, with modelled costs |
//! | [`choose`] | the binary linear program over them |
//! | [`design`], [`library`], [`implement`] | the chosen candidates as thread programs and library calls |
//! | [`updates`], [`in_place`], [`independent`] | results in the memory of what they replace; independent kernels next to each other |
//! | [`sharing`] | how threads share work items, and what that is modelled to take |
//! | [`work_items`] | how evenly the work items of a plan fall to threads, counted |
//! | [`passes`], [`assemble`] | passes over the thread programs; steps over memory |
//! | [`cache`] | plans that were made before |
//!
//! Planning builds and times nothing, and runs on a machine without the target.

pub mod assemble;
pub mod backend;
pub mod block_kernels;
pub mod cache;
pub mod candidates;
pub mod chains;
pub mod choose;
pub mod considered;
pub mod context;
pub mod definition;
pub mod design;
pub mod explain;
#[cfg(test)]
mod growth;
pub mod host;
pub mod implement;
pub mod implementation;
pub mod in_place;
pub mod independent;
pub mod kernel;
pub mod known;
pub mod library;
pub mod passes;
pub mod planned;
pub mod prepared;
pub mod sharing;
pub mod siblings;
pub mod signature;
pub mod substitute;
pub mod units;
pub mod unrolled;
pub mod updated;
pub mod updates;
pub mod wiring;
pub mod work_items;
