//! Passes over thread programs.

pub mod await_late;
pub mod read_once;
