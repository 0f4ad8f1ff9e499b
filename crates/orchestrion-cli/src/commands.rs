//! One module per subcommand.

pub mod bench;
pub mod cache;
pub mod compile;
pub mod conformance;
pub mod doctor;
pub mod explain;
pub mod run;
pub mod superoptimize;
pub mod verify;
