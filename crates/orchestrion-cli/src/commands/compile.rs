//! `orchestrion compile`: a model to an `.orc` file.

use crate::dump::DumpArguments;
use crate::files::Refusal;
use crate::print::{note_line, outln};
use crate::{CompileArguments, files};
use clap::Args;
use orchestrion::manifest::{ActionInfo, Manifest, StepInfo};
use orchestrion::report::{self as plan_report, summary};
use orchestrion::{Error, Model, Options, message, whole_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `compile`.
#[derive(Args)]
pub struct Arguments {
    /// The ONNX model, or document of ATen calls (.json)
    model: PathBuf,
    /// The file to write (default: the model's name with .orc, in the current folder)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Threads that runs on a CPU have, at most: kernels are chosen for that, and serve any smaller number too (default: one per
    /// core)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
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
    let options = Options { dump_after, threads: arguments.threads, ..arguments.compile.options() };
    if let Some(folder) = &arguments.emit_source {
        return emit_source(arguments, folder, &options);
    }
    let name = arguments.model.file_stem().unwrap_or_default();
    let output = arguments.output.clone().unwrap_or_else(|| PathBuf::from(name).with_extension("orc"));
    if let Err(refusal) = check_output(arguments, &options, &output) {
        return refusal.report();
    }
    whole_file::check(&output).map_err(|source| Error::File { path: output.clone(), source })?;
    let artifact = Model::load(&arguments.model, &options)?.compile(&options)?;
    artifact.save(&output)?;
    let report = &artifact.manifest.report;
    report.notes.iter().for_each(|note| note_line(format_args!("{note}")));
    if let Some(note) = host_steps(&artifact.manifest) {
        note_line(format_args!("{note}"));
    }
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
    outln!(
        "{}",
        summary::line(&plan_report::report(&artifact.manifest, &plan_report::Measurements::default()))
    );
    Ok(ExitCode::SUCCESS)
}

/// Refuses to replace what is read, or what cannot be made again.
fn check_output(arguments: &Arguments, options: &Options, output: &Path) -> Result<(), Refusal> {
    files::check_outputs(inputs(arguments, options), &[output.to_owned()])?;
    files::check_replaces_executable(output)
}

/// The files that a compilation reads.
fn inputs<'a>(arguments: &'a Arguments, options: &'a Options) -> impl Iterator<Item = &'a Path> {
    [Some(&arguments.model), options.records.as_ref()].into_iter().flatten().map(PathBuf::as_path)
}

/// Names of steps that a note lists.
const LISTED_STEPS: usize = 5;

/// What runs on the host, through the interpreter, instead of as kernels: it may take longer than all the rest.
fn host_steps(manifest: &Manifest) -> Option<String> {
    let is_host = |step: &&StepInfo| matches!(step.action, ActionInfo::Host { .. });
    let host: Vec<&StepInfo> = manifest.steps.iter().filter(is_host).collect();
    let name = |step: &&StepInfo| message::name(step.origins.first().unwrap_or(&step.name));
    let mut names: Vec<String> = host.iter().take(LISTED_STEPS).map(name).collect();
    let (count, plural) = match host.len() {
        0 => return None,
        1 => ("1 step runs".to_owned(), ""),
        count => (format!("{count} steps run"), "s"),
    };
    if host.len() > LISTED_STEPS {
        names.push(format!("and {} more", host.len() - LISTED_STEPS));
    }
    let host_us: f64 = host.iter().map(|step| step.cost_us).sum();
    let all_us: f64 = manifest.steps.iter().map(|step| step.cost_us).sum();
    Some(format!(
        "{count} on the host, without a kernel (modelled {host_us:.0} us of {all_us:.0} us): {}; `bench --steps` measures the step{plural}, \
         docs/decisions/11-host-routines-are-interpreted.md says why",
        names.join(", ")
    ))
}

/// Writes the source of each kernel of the plan to a file of its name.
fn emit_source(arguments: &Arguments, folder: &Path, options: &Options) -> Result<ExitCode, Error> {
    let sources = Model::load(&arguments.model, options)?.sources(options)?;
    let failed = |path: PathBuf| move |source| Error::File { path, source };
    let is_cuda = options.target.as_deref().is_some_and(|target| target.starts_with("cuda"));
    let extension = if is_cuda { "cu" } else { "c" };
    let paths: Vec<PathBuf> =
        sources.iter().map(|source| folder.join(format!("{}.{extension}", source.name))).collect();
    if let Err(refusal) = files::check_outputs(inputs(arguments, options), &paths) {
        return refusal.report();
    }
    std::fs::create_dir_all(folder).map_err(failed(folder.to_owned()))?;
    for (source, path) in sources.iter().zip(paths) {
        whole_file::write(&path, |file| file.write_all(source.text.as_bytes())).map_err(failed(path))?;
    }
    outln!("{}: {} kernels", folder.display(), sources.len());
    Ok(ExitCode::SUCCESS)
}
