//! `orchestrion verify`: a compiled model against the reference interpreter.

use crate::files::TensorFiles;
use crate::print::outln;
use crate::{CompileArguments, data};
use clap::Args;
use orchestrion::verification::{
    self, CheckerAnswer, KernelTest, OutputCheck, PartCheck, ProofCheck, Verified,
};
use orchestrion::{Error, Executable, Model, RunOptions, superoptimize};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `verify`.
#[derive(Args)]
pub struct Arguments {
    /// The .orc file, ONNX model, document of ATen calls (.json), or proof (.json)
    model: PathBuf,
    /// The model that an .orc file was compiled from (default: where it was when compiled)
    #[arg(long, value_name = "FILE")]
    onnx: Option<PathBuf>,
    #[command(flatten)]
    inputs: data::InputArguments,
    /// Threads (default: one per core)
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
    let is_json = arguments.model.extension().is_some_and(|extension| extension == "json");
    if is_json && !orchestrion::is_aten_document(&data::read(&arguments.model)?) {
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
    let executable = Executable::load(artifact, RunOptions::of(&options, arguments.threads))?;
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
    let Verified { verification, expected } =
        verification::verify(&model, &mut executable.context()?, &inputs, arguments.tolerance)?;
    // Files first: printing ends the process if the reader of a pipe has gone.
    let saved = files.map_or(Ok(()), |files| files.save(&expected));
    if arguments.json {
        outln!("{}", serde_json::json!(verification));
    } else {
        verification.parts.iter().for_each(|part| print_part(part, &verification.proofs));
        let bound: Vec<usize> = verification.parts.iter().map(|part| part.proof).collect();
        let proofs = verification.proofs.iter().enumerate();
        proofs.filter(|(number, _)| !bound.contains(number)).for_each(|(_, proof)| print_proof(proof));
        verification.unbound.iter().for_each(|what| outln!("FAIL {what}"));
        verification.outputs.iter().for_each(print_output);
    }
    saved?;
    Ok(if verification.pass { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn print_output(check: &OutputCheck) {
    let OutputCheck { output, max_abs, max_scaled, tolerance, mismatched, pass, says_little } = check;
    let little =
        says_little.as_ref().map_or_else(String::new, |reason| format!("; this says little: {reason}"));
    outln!(
        "{} {output}: largest error {max_abs:.3e}, {max_scaled:.3e} of the largest magnitude ({tolerance:.1e} allowed), \
         {mismatched} mismatched{little}",
        if *pass { "pass" } else { "FAIL" },
    );
}

/// What ties a part of the model to its kernels, link by link.
fn print_part(check: &PartCheck, proofs: &[ProofCheck]) {
    let PartCheck { pass, kernels, origins, reason, premises, proof, kernel_test, unstable } = check;
    let proof = proofs.get(*proof);
    let is_proved = proof.is_some_and(|proof| proof.pass);
    let verdict = if *pass && is_proved { "pass" } else { "FAIL" };
    outln!("{verdict} {}, from {:.400}", kernels.join(", "), origins.join(", "));
    match reason {
        Some(reason) => outln!("  not what was compiled: {reason}"),
        None => outln!("  proof, program, µGraph, kernels and tensors are those that were compiled"),
    }
    outln!("  part of the model = program: extracted, if {:.400}", premises.join("; "));
    match proof {
        Some(proof) => print_answers("  program = µGraph: ", proof),
        None => outln!("  program = µGraph: NO PROOF"),
    }
    let KernelTest { inputs, max_scaled, tolerance, reason } = kernel_test;
    match reason {
        Some(reason) => outln!("  µGraph = kernel: not tested: {reason}"),
        None => outln!(
            "  µGraph = kernel: {} on {inputs} random inputs, largest error {max_scaled:.3e} of the largest magnitude \
             ({tolerance:.1e} allowed)",
            if kernel_test.pass() { "tested" } else { "DIFFERENT" },
        ),
    }
    unstable.iter().for_each(|reason| outln!("  unstable: {reason}"));
}

fn print_proof(check: &ProofCheck) {
    print_answers(if check.pass { "pass proof: " } else { "FAIL proof: " }, check);
}

/// What the prover and the checker say of a proof.
fn print_answers(start: &str, check: &ProofCheck) {
    match &check.reason {
        None => outln!("{start}proved, equal but for a chance of 2^{:.0}", check.log2_bound),
        Some(reason) => outln!("{start}NOT PROVED: {reason}"),
    }
    let CheckerAnswer { answer, reason, log2_bound, seed } = &check.checker;
    let bound = log2_bound.map_or_else(String::new, |bound| format!(", but for a chance of 2^{bound:.0}"));
    let reason = reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
    outln!("    independent checker: {answer}{bound}{reason} (seed {seed})");
}

/// Checks a file with a proof, and prints its premises.
fn check_file(arguments: &Arguments) -> Result<ExitCode, Error> {
    let certificate = superoptimize::read_certificate(&arguments.model)?;
    let check = verification::check_proof(&certificate);
    if arguments.json {
        outln!("{}", serde_json::json!(check));
    } else {
        print_proof(&check);
        certificate.premises.iter().for_each(|premise| outln!("  premise: {premise:.400}"));
    }
    Ok(if check.pass { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
