//! Finding and running cases.

use super::case;
use super::outcome::{Outcome, Summary};
use crate::run::executable::Executable;
use crate::run::options::RunOptions;
use crate::{Error, Model, Options, parallel};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

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
///
/// # Errors
/// If the work is cancelled.
pub fn run_cases(
    cases: &[PathBuf],
    options: &Options,
    interpret: bool,
    threads: usize,
    done: &(dyn Fn(&Path, &Outcome) + Sync),
) -> Result<Summary, Error> {
    let run = |case: &PathBuf| {
        let outcome = run_case(case, options, interpret);
        done(case, &outcome);
        outcome
    };
    let mut summary = Summary::default();
    let outcomes = parallel::map(cases, &Options { jobs: threads, ..options.clone() }, run)?;
    for (case, outcome) in cases.iter().zip(outcomes) {
        summary.add(case, outcome);
    }
    Ok(summary)
}

/// Compiles and runs one case; with `interpret`, the reference interpreter runs it instead.
pub fn run_case(folder: &Path, options: &Options, interpret: bool) -> Outcome {
    if interpret {
        return case::run(folder, &|graph, inputs| {
            orch_interp::evaluate(&graph, inputs, &orch_interp::EvalOptions::default())
                .map_err(|error| Error::Input(error.to_string()))
        });
    }
    case::run(folder, &|graph, inputs| {
        let artifact = Model::from_graph(graph).compile(options)?;
        Executable::load(artifact, RunOptions { threads: 1, ..RunOptions::default() })?.run(inputs)
    })
}
