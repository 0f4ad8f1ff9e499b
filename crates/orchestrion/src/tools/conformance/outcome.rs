//! What became of cases.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// What became of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// All outputs are right.
    Pass,
    /// The model or its data need what is not supported.
    Unsupported(String),
    /// An output is not as expected, but the expectation is at fault.
    Mistaken(String),
    /// An output is not right.
    Wrong(String),
    /// An error that is neither.
    Failed(String),
}

impl Outcome {
    pub(super) fn unsupported(reason: impl Into<String>) -> Self {
        Outcome::Unsupported(reason.into())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Pass => f.write_str("pass"),
            Outcome::Unsupported(reason) => write!(f, "unsupported: {reason}"),
            Outcome::Mistaken(reason) => write!(f, "expectation at fault: {reason}"),
            Outcome::Wrong(reason) => write!(f, "WRONG: {reason}"),
            Outcome::Failed(reason) => write!(f, "FAILED: {reason}"),
        }
    }
}

/// Counts of many cases.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Cases run.
    pub cases: usize,
    /// Cases that pass.
    pub passed: usize,
    /// Cases that are not supported.
    pub unsupported: usize,
    /// Cases whose expectation is at fault.
    pub mistaken: usize,
    /// Cases with wrong outputs.
    pub wrong: usize,
    /// Cases that failed otherwise.
    pub failed: usize,
    /// Every case that did not pass, with the reason.
    pub not_passed: BTreeMap<String, String>,
}

impl Summary {
    /// Adds a case.
    pub fn add(&mut self, case: &Path, outcome: Outcome) {
        self.cases += 1;
        let count = match &outcome {
            Outcome::Pass => &mut self.passed,
            Outcome::Unsupported(_) => &mut self.unsupported,
            Outcome::Mistaken(_) => &mut self.mistaken,
            Outcome::Wrong(_) => &mut self.wrong,
            Outcome::Failed(_) => &mut self.failed,
        };
        *count += 1;
        if outcome != Outcome::Pass {
            let name = case.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            self.not_passed.insert(name, outcome.to_string());
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} cases: {} passed ({:.1} %), {} unsupported, {} expectations at fault, {} wrong, {} failed",
            self.cases,
            self.passed,
            100.0 * self.passed as f64 / self.cases.max(1) as f64,
            self.unsupported,
            self.mistaken,
            self.wrong,
            self.failed
        )
    }
}
