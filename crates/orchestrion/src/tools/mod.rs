//! Tools of the command line beside compiling and running.

pub mod cache;
pub mod conformance;
pub mod doctor;
pub mod superoptimize;
