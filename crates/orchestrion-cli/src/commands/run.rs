//! `orchestrion run`: one run of a model on given or generated inputs.

use crate::files::TensorFiles;
use crate::print::outln;
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::{Error, Executable, RunOptions};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `run`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file, ONNX model or document of ATen calls (.json)
    model: PathBuf,
    #[command(flatten)]
    inputs: data::InputArguments,
    /// Folder for the outputs, one NAME.npy each
    #[arg(short, long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// Threads (default: one per core)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Wait after each kernel on a GPU, so that an error names it
    #[arg(long)]
    check_steps: bool,
    #[command(flatten)]
    compile: CompileArguments,
}

/// Runs once; writes or summarises the outputs.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let options = arguments.compile.options();
    let run_options =
        RunOptions { check_each_step: arguments.check_steps, ..RunOptions::of(&options, arguments.threads) };
    let executable = Executable::load(data::artifact(&arguments.model, &options)?, run_options)?;
    let inputs = arguments.inputs.tensors(&executable.manifest().inputs)?;
    let given = arguments.inputs.files(&executable.manifest().inputs);
    let given = given.iter().chain([&arguments.model]).map(PathBuf::as_path);
    let files = arguments.output_dir.as_ref();
    let files =
        files.map(|folder| TensorFiles::plan(folder, &executable.manifest().outputs, given)).transpose();
    let files = match files {
        Ok(files) => files,
        Err(refusal) => return refusal.report(),
    };
    let outputs = executable.run(&inputs)?;
    // Files first: printing ends the process if the reader of a pipe has gone.
    let saved = files.map_or(Ok(()), |files| files.save(&outputs));
    for (port, tensor) in executable.manifest().outputs.iter().zip(&outputs) {
        outln!("{}: {tensor:?}", port.name);
    }
    saved.map(|()| ExitCode::SUCCESS)
}
