//! `orchestrion explain`: what runs, what each kernel fuses, and what it costs.

use crate::dump::DumpArguments;
use crate::files::{self, Refusal};
use crate::print::{note_line, outln};
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::report::{self, Measurements, Report, against};
use orchestrion::{Artifact, Error, Executable, Options, RunOptions, plan_text, whole_file};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `explain`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file, ONNX model or document of ATen calls (.json)
    model: PathBuf,
    /// Print all of the plan, not only the costliest kernels
    #[arg(long, conflicts_with_all = ["json", "source"])]
    all: bool,
    /// Print the whole manifest, the measured times and what follows from them as JSON
    #[arg(long)]
    json: bool,
    /// Write a page with graph, timeline, roofline, memory and alternatives, which needs nothing else, to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "source"])]
    html: Option<PathBuf>,
    /// Write a run as a trace, which Perfetto opens, to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "source"])]
    trace: Option<PathBuf>,
    /// Another plan of the model (.orc, .onnx or .json), which is compared with the first one: what changed most comes first
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["trace", "source"])]
    against: Option<PathBuf>,
    /// Print the source, in C or CUDA C++, of kernels whose name contains this
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Run the models and show what each step takes. Without it nothing of an .orc file is executed
    #[arg(long)]
    measure: bool,
    #[command(flatten)]
    inputs: data::InputArguments,
    /// As without --measure
    #[arg(long, hide = true, conflicts_with = "measure")]
    no_measure: bool,
    /// Threads that runs on a CPU have, at most: kernels are chosen for that, and serve any smaller number too; --measure runs with as many
    /// (default: one per core)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    #[command(flatten)]
    compile: CompileArguments,
    #[command(flatten)]
    dump: DumpArguments,
}

/// Rows of a comparison on a screen.
const SCREEN_ROWS: usize = 16;

/// Prints the plan, or writes it to files.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    if let Err(refusal) = check_outputs(arguments) {
        return refusal.report();
    }
    if !arguments.inputs.is_empty() && !arguments.measure {
        return Err(Error::Input(
            "inputs are read by runs: give --measure with --input or --input-dir".to_owned(),
        ));
    }
    let dump_after = arguments.dump.option(None);
    let models = || std::iter::once(&arguments.model).chain(&arguments.against);
    if let Some(compiled) = models().find(|path| data::is_artifact(path)).filter(|_| dump_after.is_some()) {
        let path = compiled.display();
        return Err(Error::Input(format!("{path} is compiled already: --dump-after needs the model")));
    }
    let options = Options { dump_after, threads: arguments.threads, ..arguments.compile.options() };
    if let Some(wanted) = &arguments.source {
        for kernel in data::manifest(&arguments.model, &options)?
            .kernels
            .iter()
            .filter(|kernel| kernel.name.contains(wanted))
        {
            outln!("/* {}: {} */\n{}", kernel.name, kernel.schedule, kernel.source);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (first, measured) = explained(&arguments.model, arguments, &options)?;
    let second = match &arguments.against {
        Some(path) => Some(explained(path, arguments, &options)?.0),
        None => None,
    };
    let second = second.as_ref();
    if let Some(path) = &arguments.trace {
        write(path, &report::trace::trace(&first))?;
    }
    if let Some(path) = &arguments.html {
        write(path, &report::page::page(&first, second))?;
    }
    if arguments.json {
        outln!("{:#}", report::page::json(&first, second));
    } else if arguments.html.is_none() && arguments.trace.is_none() {
        print(arguments, &first, second, &measured);
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to replace what is read.
fn check_outputs(arguments: &Arguments) -> Result<(), Refusal> {
    let read = std::iter::once(&arguments.model).chain(&arguments.against).map(PathBuf::as_path);
    let outputs: Vec<PathBuf> = arguments.html.iter().chain(&arguments.trace).cloned().collect();
    files::check_outputs(read, &outputs)
}

/// The report of a plan, measured if that was asked for and is possible here.
fn explained(path: &Path, arguments: &Arguments, options: &Options) -> Result<(Report, Measurements), Error> {
    let (manifest, measured) = match arguments.measure && !arguments.no_measure {
        true => {
            let artifact = data::artifact(path, options)?;
            (artifact.manifest.clone(), measured(artifact, &arguments.inputs, options)?)
        }
        false => (data::manifest(path, options)?, Measurements::default()),
    };
    Ok((report::report(&manifest, &measured), measured))
}

/// Runs an executable, if this machine can.
fn measured(
    artifact: Artifact,
    inputs: &data::InputArguments,
    options: &Options,
) -> Result<Measurements, Error> {
    match Executable::load(artifact, RunOptions::of(options, options.threads)).and_then(|it| it.context()) {
        Ok(mut context) => {
            data::note_modelled_threads(context.manifest(), options.threads);
            let ports = &context.manifest().inputs;
            inputs.note_generated_integers(ports);
            let inputs = inputs.tensors(ports)?;
            report::measure(&mut context, &inputs)
        }
        // A plan can be read on machines that cannot run it.
        Err(Error::Environment(reason)) => {
            note_line(format_args!("no times are measured: {reason}"));
            Ok(Measurements::default())
        }
        Err(error) => Err(error),
    }
}

/// Prints the plan, or the comparison of two.
fn print(arguments: &Arguments, first: &Report, second: Option<&Report>, measured: &Measurements) {
    let text = match second {
        Some(second) => {
            let comparison = against::compare(first, second);
            let rows = if arguments.all { comparison.rows.len() } else { SCREEN_ROWS };
            against::text(&comparison, [first, second], rows)
        }
        None if arguments.all => plan_text::text(&first.manifest, &measured.steps),
        None => report::summary::summary(first),
    };
    outln!("{}", text.trim_end());
}

/// Writes a file and says so.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    whole_file::write(path, |file| file.write_all(text.as_bytes())).map_err(failed)?;
    outln!("{}: {} KiB", path.display(), text.len().div_ceil(1 << 10));
    Ok(())
}
