//! `orchestrion cache`: compiled kernels and measurements.

use crate::print::outln;
use crate::{CompileArguments, files};
use clap::{Args, Subcommand};
use orchestrion::{Error, cache};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `cache`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    compile: CompileArguments,
}

#[derive(Subcommand)]
enum Action {
    /// Print the cache's folder
    Path,
    /// Print what it holds
    Stats,
    /// Write all measurements to a file
    Export {
        /// The file
        file: PathBuf,
    },
    /// Add the measurements of a file
    Import {
        /// The file
        file: PathBuf,
    },
    /// Remove everything
    Clear,
}

/// Does what was asked.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let folder = arguments.compile.options().cache_dir;
    if let Action::Export { file } = &arguments.action
        && let Err(refusal) = files::check_outside(file, &folder, "the cache")
    {
        return refusal.report();
    }
    match &arguments.action {
        Action::Path => outln!("{}", folder.display()),
        Action::Stats => outln!("{}", cache::stats(&folder)?),
        Action::Export { file } => outln!("{} records written", cache::export(&folder, file)?),
        Action::Import { file } => outln!("{}", cache::import(&folder, file)?),
        Action::Clear => outln!("{}", cache::clear(&folder)?),
    }
    Ok(ExitCode::SUCCESS)
}
