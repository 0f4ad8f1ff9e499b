//! Building: kernels for one target.
//!
//! [`cpu`] and [`cuda`] implement the three traits of `plan::backend`. A target's cost model stands beside its toolchain, not in
//! `plan`: they share figures and capability numbers, and adding a target touches one folder. [`find`] picks a target,
//! [`sources`] writes and compiles the kernels of a plan, [`symbols`] names those of GPUs, [`kernel_info`] and [`proved_parts`] describe them for the manifest.

pub mod cpu;
pub mod cuda;
mod find;
pub mod kernel_info;
pub mod mugraph_schedule;
pub mod operations;
pub mod proved_parts;
mod reductions;
pub mod sources;
pub mod symbols;
pub mod timed;

pub use find::find;
