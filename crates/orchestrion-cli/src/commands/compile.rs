//! `orchestrion compile`: a model to an `.orc` file.

use crate::CompileArguments;
use crate::dump::DumpArguments;
use crate::print::{note_line, outln};
use clap::Args;
use orchestrion::{Error, Model, Options, whole_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `compile`.
#[derive(Args)]
pub struct Arguments {
    /// The ONNX model
    model: PathBuf,
    /// The file to write (default: the model's name with .orc, in the current folder)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    compile: CompileArguments,
    #[command(flatten)]
    dump: DumpArguments,
    /// Print the plan's report as JSON
    #[arg(long)]
    json: bool,
    /// Write the source of each kernel, in C or CUDA C++, to this folder, and compile nothing: needs no NVRTC
    #[arg(long, value_name = "DIR", conflicts_with_all = ["output", "json"])]
    emit_source: Option<PathBuf>,
}

/// Compiles and reports what was found.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let dump_after = arguments.dump.option(arguments.emit_source.as_deref());
    let options = Options { dump_after, ..arguments.compile.options() };
    if let Some(folder) = &arguments.emit_source {
        return emit_source(&arguments.model, folder, &options);
    }
    let name = arguments.model.file_stem().unwrap_or_default();
    let output = arguments.output.clone().unwrap_or_else(|| PathBuf::from(name).with_extension("orc"));
    whole_file::check(&output).map_err(|source| Error::File { path: output.clone(), source })?;
    let artifact = Model::load(&arguments.model, &options)?.compile(&options)?;
    artifact.save(&output)?;
    let report = &artifact.manifest.report;
    report.notes.iter().for_each(|note| note_line(format_args!("{note}")));
    if arguments.json {
        outln!("{}", serde_json::to_string_pretty(report).unwrap_or_default());
        return Ok(ExitCode::SUCCESS);
    }
    let seconds: f64 = report.stage_seconds.iter().map(|(_, seconds)| seconds).sum();
    let known = if report.is_cached { ", known" } else { "" };
    outln!(
        "{}: {} operators, {} primitives, {} kernels in {} steps, plan {} (gap {:.2} %{known}), {:.1} s",
        output.display(),
        report.operators,
        report.primitives,
        artifact.manifest.kernels.len(),
        artifact.manifest.steps.len(),
        report.solver_status,
        report.solver_gap * 100.0,
        seconds,
    );
    Ok(ExitCode::SUCCESS)
}

/// Writes the source of each kernel of the plan to a file of its name.
fn emit_source(model: &Path, folder: &Path, options: &Options) -> Result<ExitCode, Error> {
    let sources = Model::load(model, options)?.sources(options)?;
    let failed = |path: PathBuf| move |source| Error::File { path, source };
    std::fs::create_dir_all(folder).map_err(failed(folder.to_owned()))?;
    let is_cuda = options.target.as_deref().is_some_and(|target| target.starts_with("cuda"));
    let extension = if is_cuda { "cu" } else { "c" };
    for source in &sources {
        let path = folder.join(format!("{}.{extension}", source.name));
        whole_file::write(&path, |file| file.write_all(source.text.as_bytes())).map_err(failed(path))?;
    }
    outln!("{}: {} kernels", folder.display(), sources.len());
    Ok(ExitCode::SUCCESS)
}
