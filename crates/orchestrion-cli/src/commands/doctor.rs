//! `orchestrion doctor`: the machine, its compilers, the cache.

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
    #[command(flatten)]
    compile: CompileArguments,
}

/// Prints what was found; fails if compiling is not possible.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let report = doctor::examine(&arguments.compile.options(), arguments.calibrate);
    for (topic, finding) in &report.findings {
        outln!("{topic:14} {finding}");
    }
    match report.problem {
        Some(problem) => Err(Error::Environment(problem)),
        None => Ok(ExitCode::SUCCESS),
    }
}
