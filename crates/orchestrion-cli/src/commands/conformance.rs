//! `orchestrion conformance`: folders of ONNX backend test cases.

use crate::CompileArguments;
use crate::print::outln;
use clap::Args;
use orchestrion::conformance::{Outcome, find_cases, run_cases};
use orchestrion::{Error, Options};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `conformance`.
#[derive(Args)]
pub struct Arguments {
    /// Folders that hold cases (model.onnx and test_data_set_N), at any depth
    #[arg(required = true)]
    folders: Vec<PathBuf>,
    /// Only cases whose path contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Run the reference interpreter instead of compiled kernels
    #[arg(long)]
    interpret: bool,
    /// Only every N-th case
    #[arg(long, value_name = "N", default_value_t = 1)]
    every: usize,
    /// Print each case, not only those that fail
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compile: CompileArguments,
}

/// The exit code of a failed check.
const FAILED: u8 = 5;

/// Runs the cases, prints what fails, and a summary.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let options = arguments.compile.options();
    let mut cases = find_cases(&arguments.folders)?;
    if let Some(filter) = &arguments.filter {
        cases.retain(|case| case.to_string_lossy().contains(filter));
    }
    let cases: Vec<PathBuf> = cases.into_iter().step_by(arguments.every.max(1)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options { jobs: 1, ..options };
    let show = |case: &Path, outcome: &Outcome| {
        let is_bad = matches!(outcome, Outcome::Wrong(_) | Outcome::Failed(_) | Outcome::Mistaken(_));
        if !arguments.json && (arguments.all || is_bad) {
            outln!("{}: {outcome}", case.display());
        }
    };
    let summary = run_cases(&cases, &options, arguments.interpret, threads, &show)?;
    if arguments.json {
        outln!("{}", serde_json::to_string_pretty(&summary).unwrap_or_default());
    } else {
        outln!("{summary}");
    }
    Ok(if summary.wrong + summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
