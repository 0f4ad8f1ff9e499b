//! ONNX backend test cases: folders with `model.onnx` and `test_data_set_N/{input,output}_M.pb`.
//!
//! A case passes if every output of every data set is within the tolerance of the ONNX runner (relative 1e-3, absolute
//! 1e-7; at least two units in the last place of f16 and bf16) or the case's own (`data.json`). Inputs that decide
//! shapes are fixed to the data set's values when compiling. A short list names cases whose expectation is at fault.

mod data;
mod judge;
mod known;
mod run;

use crate::{Error, Executable, Model, Options, RunOptions};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

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
    fn unsupported(reason: impl Into<String>) -> Self {
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

/// All folders below `roots` that hold a `model.onnx`, sorted.
///
/// # Errors
/// If a folder cannot be read.
pub fn find_cases(roots: &[PathBuf]) -> Result<Vec<PathBuf>, Error> {
    let mut found = BTreeSet::new();
    let mut pending = roots.to_vec();
    while let Some(folder) = pending.pop() {
        if folder.join("model.onnx").is_file() {
            found.insert(folder);
            continue;
        }
        let entries =
            std::fs::read_dir(&folder).map_err(|source| Error::File { path: folder.clone(), source })?;
        for entry in entries {
            let path = entry.map_err(|source| Error::File { path: folder.clone(), source })?.path();
            if path.is_dir() {
                pending.push(path);
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// Runs many cases on `threads` threads; `done` is told each outcome, from several threads.
pub fn run_cases(
    cases: &[PathBuf],
    options: &Options,
    interpret: bool,
    threads: usize,
    done: &(dyn Fn(&Path, &Outcome) + Sync),
) -> Summary {
    let next = AtomicUsize::new(0);
    let summary = Mutex::new(Summary::default());
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_case(case, options, interpret);
            done(case, &outcome);
            summary.lock().unwrap_or_else(PoisonError::into_inner).add(case, outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            scope.spawn(work);
        }
        work();
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Compiles and runs one case; with `interpret`, the reference interpreter runs it instead.
pub fn run_case(folder: &Path, options: &Options, interpret: bool) -> Outcome {
    if interpret {
        return run::run(folder, &|graph, inputs| {
            orch_interp::evaluate(&graph, inputs, &orch_interp::EvalOptions::default())
                .map_err(|error| Error::Input(error.to_string()))
        });
    }
    run::run(folder, &|graph, inputs| {
        let artifact = Model::from_graph(graph).compile(options)?;
        Executable::load(artifact, RunOptions { threads: 1, ..RunOptions::default() })?.run(inputs)
    })
}
