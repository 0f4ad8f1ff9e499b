//! What is known of a plan beside its manifest: what was measured of it, and what follows from both.
//!
//! `orchestrion explain` prints a [`Report`] as a screen of text ([`summary`]), as JSON (its own form), as a page ([`page`]) and as a
//! trace ([`trace`]); [`against`] compares two. What is not known is absent, and no default stands for it.

mod advice;
pub mod against;
mod data;
pub mod lives;
pub mod page;
pub mod summary;
pub mod timeline;
pub mod trace;

use crate::manifest::Manifest;
pub use data::{CallHere, Measurements, Report, measure};

/// The report of a plan.
pub fn report(manifest: &Manifest, measured: &Measurements) -> Report {
    let mut report = Report::without_advice(manifest, measured);
    report.advice = advice::advice(&report);
    report
}
