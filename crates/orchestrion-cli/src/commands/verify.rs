//! `orchestrion verify`: a compiled model against the reference interpreter.

use crate::print::outln;
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::compare::{Difference, ROUNDING_FACTOR, compare};
use orchestrion::{Error, Executable, Model, RunOptions};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `verify`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file or ONNX model
    model: PathBuf,
    /// The ONNX model that an .orc file was compiled from (default: where it was when compiled)
    #[arg(long, value_name = "FILE")]
    onnx: Option<PathBuf>,
    #[command(flatten)]
    inputs: data::InputArguments,
    /// Threads (default: one per CPU)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Largest error allowed, relative to the output's largest magnitude; more is allowed where rounding all values to
    /// the model's own types makes an error of that size by itself
    #[arg(long, value_name = "X", default_value_t = 1e-4)]
    tolerance: f64,
    /// Folder for the reference's outputs in f64, one NAME.npy each
    #[arg(long, value_name = "DIR")]
    save_reference: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compile: CompileArguments,
}

/// The exit code of a failed check.
const FAILED: u8 = 5;

/// Runs both and prints error figures per output.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Error> {
    let options = arguments.compile.options();
    let artifact = data::artifact(&arguments.model, &options)?;
    let source = match &arguments.onnx {
        Some(path) => path.clone(),
        None if data::is_artifact(&arguments.model) => PathBuf::from(&artifact.manifest.model.path),
        None => arguments.model.clone(),
    };
    let model = Model::load(&source, &options)?;
    if model.info.digest != artifact.manifest.model.digest {
        let path = source.display();
        return Err(Error::Input(format!("{path} is not the model that the .orc file was compiled from")));
    }
    let mut executable = Executable::load(artifact, RunOptions { threads: arguments.threads })?;
    let inputs = arguments.inputs.tensors(&executable.manifest().inputs)?;
    let outputs = executable.run(&inputs)?;
    let expected = model.interpret(&inputs, true)?;
    if let Some(folder) = &arguments.save_reference {
        data::save_tensors(folder, &executable.manifest().outputs, &expected)?;
    }
    let differences: Vec<Difference> =
        outputs.iter().zip(&expected).map(|(got, want)| compare(got, want)).collect();
    let mut tolerances = vec![arguments.tolerance; differences.len()];
    if differences.iter().any(|difference| difference.scaled > arguments.tolerance) {
        let rounded = model.interpret(&inputs, false)?;
        for ((tolerance, got), want) in tolerances.iter_mut().zip(&rounded).zip(&expected) {
            *tolerance = tolerance.max(ROUNDING_FACTOR * compare(got, want).scaled);
        }
    }
    let mut passed = true;
    let mut rows = Vec::new();
    for ((port, difference), tolerance) in
        executable.manifest().outputs.iter().zip(differences).zip(tolerances)
    {
        let ok = difference.scaled <= tolerance && difference.mismatched == 0;
        passed &= ok;
        let Difference { absolute, scaled, mismatched } = difference;
        if !arguments.json {
            outln!(
                "{} {}: largest error {absolute:.3e}, {scaled:.3e} of the largest magnitude ({tolerance:.1e} allowed), {mismatched} mismatched",
                if ok { "pass" } else { "FAIL" },
                port.name
            );
        }
        rows.push(serde_json::json!({
            "output": port.name, "max_abs": absolute, "max_scaled": scaled, "tolerance": tolerance,
            "mismatched": mismatched, "pass": ok
        }));
    }
    if arguments.json {
        outln!("{}", serde_json::json!({ "pass": passed, "outputs": rows }));
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
