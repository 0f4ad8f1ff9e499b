//! Candidate kernels, the binary linear program that chooses among them, and the memory plan (Korch, ASPLOS'24,
//! sections 4 and 5).
//!
//! The crate sees ids, costs and masks, never what an operator computes:
//! - [`dag`] is the program: nodes, tensors, and the kind of each node;
//! - [`enumerate`](mod@enumerate) grows candidate kernels backward from each sink;
//! - [`blp`] chooses among them (and other columns) at least cost; [`solver`] is what it asks when its own method
//!   meets a limit;
//! - [`memory`] gives every buffer an offset in one arena.

pub mod blp;
pub mod dag;
pub mod enumerate;
pub mod memory;
pub mod solver;
