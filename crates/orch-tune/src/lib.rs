//! Cost model, measured costs and their database.
//!
//! [`cost`] (for CPUs) and [`gpu`] bound and estimate a kernel's time from facts about it, so that only competitive
//! kernels are measured;
//! [`Database`] keeps what was measured, so that nothing is measured twice. This crate reads no environment variable:
//! where the database lies is told by the caller.

pub mod cost;
mod database;
pub mod gpu;
mod model;
mod records;
mod transfer;

pub use database::{Database, DatabaseError, DatabaseStats, Key};
pub use model::MachineModel;
pub use records::Records;
pub use transfer::{ImportReport, RejectedLine};
