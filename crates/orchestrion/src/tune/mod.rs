//! Tuning: plans by measured times.
//!
//! [`select`] and [`timer`] time kernels and choose again; [`alternatives`] and [`end_to_end`] time whole plans of few kernels, which
//! overlap on GPUs. [`budget`] says how long all that may take. [`calibrate`] measures what a CPU can do at best; [`library`] says which vendor libraries may be called.

pub mod alternatives;
pub mod budget;
pub mod calibrate;
pub mod end_to_end;
pub mod library;
pub mod select;
#[cfg(test)]
mod testing;
pub mod timer;
