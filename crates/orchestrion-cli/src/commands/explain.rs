//! `orchestrion explain`: what runs, what each kernel fuses, and what it costs.

use crate::dump::DumpArguments;
use crate::print::{note_line, outln};
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::plan_text::{self, Measured};
use orchestrion::{Error, Executable, Options, RunOptions};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `explain`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file, ONNX model or document of ATen calls (.json)
    model: PathBuf,
    /// Print the whole manifest and the measured times as JSON
    #[arg(long)]
    json: bool,
    /// Print the source, in C or CUDA C++, of kernels whose name contains this
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
    /// Run the model on generated inputs and show what each step takes. Without it nothing of an .orc file is executed
    #[arg(long)]
    measure: bool,
    /// As without --measure
    #[arg(long, hide = true, conflicts_with = "measure")]
    no_measure: bool,
    #[command(flatten)]
    compile: CompileArguments,
    #[command(flatten)]
    dump: DumpArguments,
}

/// Prints the plan.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let dump_after = arguments.dump.option(None);
    if dump_after.is_some() && data::is_artifact(&arguments.model) {
        let path = arguments.model.display();
        return Err(Error::Input(format!("{path} is compiled already: --dump-after needs the model")));
    }
    let options = Options { dump_after, ..arguments.compile.options() };
    let artifact = data::artifact(&arguments.model, &options)?;
    let manifest = artifact.manifest.clone();
    if let Some(wanted) = &arguments.source {
        for kernel in manifest.kernels.iter().filter(|kernel| kernel.name.contains(wanted)) {
            outln!("/* {}: {} */\n{}", kernel.name, kernel.schedule, kernel.source);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let unmeasured = vec![Measured::default(); manifest.steps.len()];
    let measured = if !arguments.measure || arguments.no_measure {
        unmeasured
    } else {
        match Executable::load(artifact, RunOptions::of(&options, 0)).and_then(|it| it.context()) {
            Ok(mut context) => {
                data::note_modelled_threads(&manifest, 0);
                let inputs = data::InputArguments::default().tensors(&manifest.inputs)?;
                plan_text::measure(&mut context, &inputs)?
            }
            // A plan can be read on machines that cannot run it.
            Err(Error::Environment(reason)) => {
                note_line(format_args!("no times are measured: {reason}"));
                unmeasured
            }
            Err(error) => return Err(error),
        }
    };
    if arguments.json {
        let times: Vec<Option<f64>> = measured.iter().map(|step| step.median_us).collect();
        let value = serde_json::json!({ "manifest": manifest, "measured_us": times });
        outln!("{value:#}");
    } else {
        outln!("{}", plan_text::text(&manifest, &measured).trim_end());
    }
    Ok(ExitCode::SUCCESS)
}
