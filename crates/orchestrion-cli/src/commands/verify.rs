//! `orchestrion verify`: a compiled model against the reference interpreter.

use crate::files::TensorFiles;
use crate::print::outln;
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::compare::{Difference, ROUNDING_FACTOR, compare, says_little};
use orchestrion::superoptimize::Certificate;
use orchestrion::{Error, Executable, Model, Precision, Tensor, superoptimize};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `verify`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file, ONNX model, or proof (.json)
    model: PathBuf,
    /// The ONNX model that an .orc file was compiled from (default: where it was when compiled)
    #[arg(long, value_name = "FILE")]
    onnx: Option<PathBuf>,
    #[command(flatten)]
    inputs: data::InputArguments,
    /// Threads (default: one per CPU)
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Largest error allowed, relative to the output's largest magnitude (default: 1e-4, in tf32 5e-3, f16 1e-2, bf16
    /// 3e-2; more where
    /// rounding all values to the types in use makes an error of that size by itself)
    #[arg(long, value_name = "X")]
    tolerance: Option<f64>,
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
    if arguments.model.extension().is_some_and(|extension| extension == "json") {
        return check_file(arguments);
    }
    let options = arguments.compile.options();
    let artifact = data::artifact(&arguments.model, &options)?;
    let source = match &arguments.onnx {
        Some(path) => path.clone(),
        None if data::is_artifact(&arguments.model) => PathBuf::from(&artifact.manifest.model.path),
        None => arguments.model.clone(),
    };
    let model = Model::load_for(&artifact.manifest, &source, &options)?;
    let precision = artifact.manifest.precision;
    let mut executable = Executable::load(artifact, data::run_options(&options, arguments.threads))?;
    let inputs = arguments.inputs.tensors(&executable.manifest().inputs)?;
    let given = arguments.inputs.files(&executable.manifest().inputs);
    let given = given.iter().chain([&arguments.model, &source]).map(PathBuf::as_path);
    let files = arguments.save_reference.as_ref();
    let files =
        files.map(|folder| TensorFiles::plan(folder, &executable.manifest().outputs, given)).transpose();
    let files = match files {
        Ok(files) => files,
        Err(refusal) => return refusal.report(),
    };
    let outputs = executable.run(&inputs)?;
    let expected = model.interpret(&inputs, true)?;
    // Files first: printing ends the process if the reader of a pipe has gone.
    let saved = files.map_or(Ok(()), |files| files.save(&expected));
    let proofs: Vec<serde_json::Value> =
        executable.manifest().proofs.iter().map(|proof| check(proof, arguments.json)).collect();
    let mut rounding = Rounding { model: &model, inputs: &inputs, precision, errors: None };
    let mut passed = proofs.iter().all(|row| row["pass"] == true);
    let mut rows = Vec::new();
    let results = executable.manifest().outputs.iter().zip(&outputs).zip(&expected);
    for (number, ((port, got), want)) in results.enumerate() {
        let difference = compare(got, want);
        let tolerance = match arguments.tolerance {
            Some(tolerance) => tolerance,
            None if difference.scaled <= precision.tolerance() => precision.tolerance(),
            None => rounding.tolerance(number, &expected)?,
        };
        let ok = difference.scaled <= tolerance && difference.mismatched == 0;
        passed &= ok;
        let Difference { absolute, scaled, mismatched } = difference;
        let says_little = says_little(want, tolerance);
        if !arguments.json {
            let little = says_little
                .as_ref()
                .map_or_else(String::new, |reason| format!("; this says little: {reason}"));
            outln!(
                "{} {}: largest error {absolute:.3e}, {scaled:.3e} of the largest magnitude ({tolerance:.1e} allowed), \
                 {mismatched} mismatched{little}",
                if ok { "pass" } else { "FAIL" },
                port.name
            );
        }
        rows.push(serde_json::json!({
            "output": port.name, "max_abs": absolute, "max_scaled": scaled, "tolerance": tolerance,
            "mismatched": mismatched, "pass": ok, "says_little": says_little,
        }));
    }
    if arguments.json {
        outln!("{}", serde_json::json!({ "pass": passed, "outputs": rows, "proofs": proofs }));
    }
    saved?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Checks a file with a proof, and prints its premises.
fn check_file(arguments: &Arguments) -> Result<ExitCode, Error> {
    let certificate = superoptimize::read_certificate(&arguments.model)?;
    let row = check(&certificate, arguments.json);
    if arguments.json {
        outln!("{row}");
    } else {
        certificate.premises.iter().for_each(|premise| outln!("  premise: {premise:.400}"));
    }
    Ok(if row["pass"] == true { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Proves anew what a certificate states; prints a line unless JSON is wanted.
fn check(certificate: &Certificate, json: bool) -> serde_json::Value {
    let result = certificate.check();
    let reason = result.as_ref().err().map(ToString::to_string);
    if !json {
        match &reason {
            None => outln!("pass proof: kernels equal but for a chance of 2^{:.0}", certificate.log2_bound),
            Some(reason) => outln!("FAIL proof: {reason}"),
        }
    }
    serde_json::json!({ "pass": result.is_ok(), "reason": reason, "log2_bound": certificate.log2_bound })
}

/// How far the reference is from f64 when it rounds what the executable rounds: models differ in how much rounding grows
/// on its way through them.
struct Rounding<'a> {
    model: &'a Model,
    inputs: &'a [Tensor],
    precision: Precision,
    /// Per output, once it is known.
    errors: Option<Vec<f64>>,
}

impl Rounding<'_> {
    /// Sums of rounded products in another order round other values, and so are off by as much again.
    const ROUNDED_FACTOR: f64 = 2.0;

    /// The error allowed for an output, given all outputs in f64.
    fn tolerance(&mut self, output: usize, expected: &[Tensor]) -> Result<f64, Error> {
        if self.errors.is_none() {
            let rounded = self.model.with_precision(self.precision).interpret(self.inputs, false)?;
            let errors = rounded.iter().zip(expected).map(|(got, want)| compare(got, want).scaled).collect();
            self.errors = Some(errors);
        }
        let factor = match self.precision {
            Precision::F32 => ROUNDING_FACTOR,
            Precision::Tf32 | Precision::F16 | Precision::Bf16 => Self::ROUNDED_FACTOR,
        };
        let error = self.errors.as_ref().and_then(|errors| errors.get(output)).copied().unwrap_or(0.0);
        Ok(self.precision.tolerance().max(factor * error))
    }
}
