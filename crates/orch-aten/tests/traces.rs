//! Whole models as documents of ATen calls, inference and training (`scripts/torch-traces.py` writes `tests/traces`): which of
//! their calls are supported is kept in `coverage.txt`; `ORCH_BLESS=1` rewrites it.

use orch_aten::{Location, import};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/traces");

fn traces() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(FOLDER).expect("the folder is there");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths
}

/// A line for the trace, and one for each target and reason of calls that are not supported.
fn coverage(path: &PathBuf) -> String {
    let text = std::fs::read_to_string(path).expect("the file is read");
    let document: Value = serde_json::from_str(&text).expect("a document");
    let calls = document["nodes"].as_array().expect("a list").len();
    let mut problems: BTreeMap<String, usize> = BTreeMap::new();
    if let Err(errors) = import(text.as_bytes()) {
        for problem in errors.0 {
            let what = match problem.place {
                Location::Node { target, .. } => target,
                place => place.to_string(),
            };
            *problems.entry(format!("{what}: {}", problem.reason)).or_default() += 1;
        }
    }
    let unsupported: usize = problems.values().sum();
    let name = path.file_stem().expect("a name").to_string_lossy();
    let mut lines = format!("{name}: {} of {calls} calls\n", calls.saturating_sub(unsupported));
    for (problem, count) in problems {
        writeln!(lines, "    {count} x {problem}").expect("a text");
    }
    lines
}

#[test]
fn traces_are_supported_as_far_as_is_written() {
    let paths = traces();
    let found: String = paths.iter().map(coverage).collect();
    let file = format!("{FOLDER}/coverage.txt");
    if std::env::var_os("ORCH_BLESS").is_some() {
        std::fs::write(&file, &found).expect("the file is written");
    }
    assert_eq!(std::fs::read_to_string(&file).expect("the file is there"), found);
    let models = paths.iter().filter_map(|path| path.file_name()?.to_str()?.split('.').next());
    let models: std::collections::BTreeSet<&str> = models.collect();
    assert_eq!(models.len(), 28, "{models:?}");
}
