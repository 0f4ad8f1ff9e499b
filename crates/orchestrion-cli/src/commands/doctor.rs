//! `orchestrion doctor`: the machine, its compilers, its GPUs, the cache.

use crate::CompileArguments;
use crate::print::outln;
use clap::Args;
use orchestrion::{Error, doctor};
use std::process::ExitCode;

/// Arguments of `doctor`.
#[derive(Args)]
pub struct Arguments {
    /// Measure the machine's speed anew
    #[arg(long)]
    calibrate: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compile: CompileArguments,
}

/// Prints what was found; fails if compiling is not possible.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let report = doctor::examine(&arguments.compile.options(), arguments.calibrate);
    if arguments.json {
        outln!("{}", serde_json::to_string_pretty(&report).unwrap_or_default());
    } else {
        for (topic, finding) in &report.findings {
            // What has several lines stays in its column.
            outln!("{topic:14} {}", finding.replace('\n', &format!("\n{:15}", "")));
        }
    }
    match report.problem {
        Some(problem) => Err(Error::Environment(problem)),
        None => Ok(ExitCode::SUCCESS),
    }
}
