//! Runs every `tests/files/*.prim`; with `ORCH_BLESS=1` in the environment, rewrites the expectations that fail.

use orch_interp::cases::check;
use std::path::{Path, PathBuf};

/// The test files, sorted.
fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files");
    let entries = std::fs::read_dir(folder).expect("the folder of test files is readable");
    let paths = entries.map(|entry| entry.expect("the folder of test files is readable").path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "prim")).collect();
    files.sort();
    files
}

#[test]
fn every_case_gives_what_its_file_expects() {
    let bless = std::env::var_os("ORCH_BLESS").is_some();
    let files = files();
    assert!(!files.is_empty(), "there are test files");
    let mut report = String::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("a test file is readable");
        match check(&text) {
            Err(problem) => report += &format!("{}: {problem}\n", path.display()),
            Ok((_, failures)) if failures.is_empty() => {}
            Ok((blessed, _)) if bless => std::fs::write(&path, blessed).expect("a test file is writable"),
            Ok((_, failures)) => {
                failures.iter().for_each(|failure| report += &format!("{}: {failure}\n", path.display()));
            }
        }
    }
    assert!(report.is_empty(), "\n{report}");
}
