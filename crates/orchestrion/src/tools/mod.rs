//! What the command line and the bindings offer beside compiling and running.

pub mod cache;
pub mod conformance;
pub mod doctor;
pub mod emit;
pub mod plan_text;
pub mod report;
pub mod superoptimize;
pub mod verification;
