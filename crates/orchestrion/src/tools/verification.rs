//! A compiled model against the reference interpreter, output by output, and what ties the parts that were proved to it, link by
//! link: [`binding`] compares hashes and names, [`kernel_test`] runs kernels alone.

mod binding;
mod kernel_test;

pub use kernel_test::KernelTest;

use crate::manifest::{ActionInfo, Manifest, ProvedPart, StepInfo};
use crate::run::compare::{Difference, ROUNDING_FACTOR, compare, says_little};
use crate::tools::superoptimize::Certificate;
use crate::{Error, Model, Precision, RunContext, Tensor};
use orch_check::Verdict;
use serde::Serialize;
use std::collections::BTreeMap;

/// What was checked, and how it ended.
#[derive(Clone, Debug, Serialize)]
pub struct Verification {
    /// True if all outputs, proofs and parts passed.
    pub pass: bool,
    /// Per output of the model, in its order.
    pub outputs: Vec<OutputCheck>,
    /// Per proof that the artifact carries.
    pub proofs: Vec<ProofCheck>,
    /// Per part of the model that kernels with a proof compute.
    pub parts: Vec<PartCheck>,
    /// The kernel that states a proof and is bound to none, if there is one.
    pub unbound: Option<String>,
}

/// What ties a part of a model to the kernels that compute it, link by link.
#[derive(Clone, Debug, Serialize)]
pub struct PartCheck {
    /// Whether it is bound, and no link is broken.
    pub pass: bool,
    /// Names of the steps that run its kernels.
    pub kernels: Vec<String>,
    /// The operators of the model that they come from.
    pub origins: Vec<String>,
    /// Why it is not what was compiled: proof, program, µGraph, kernels, inputs and outputs are bound to each other by hash and by name.
    pub reason: Option<String>,
    /// The first link, part of the model = program, is by construction. What must hold for it.
    pub premises: Vec<String>,
    /// The second, program = µGraph: an index into [`Verification::proofs`].
    pub proof: usize,
    /// The third, µGraph = kernels.
    pub kernel_test: KernelTest,
    /// Why exponentials may overflow where the model's result is finite.
    pub unstable: Option<String>,
}

/// One output beside its reference in f64.
#[derive(Clone, Debug, Serialize)]
pub struct OutputCheck {
    /// The output's name.
    pub output: String,
    /// Largest absolute error of finite elements.
    pub max_abs: f64,
    /// That, relative to the reference's largest finite magnitude.
    pub max_scaled: f64,
    /// The largest `max_scaled` that passes.
    pub tolerance: f64,
    /// Elements that are NaN or infinite in one and not the same in the other, and integers that differ.
    pub mismatched: usize,
    /// Whether it is close enough.
    pub pass: bool,
    /// Why passing says little, if it does.
    pub says_little: Option<String>,
}

/// A proof that was made anew.
#[derive(Clone, Debug, Serialize)]
pub struct ProofCheck {
    /// Whether it holds.
    pub pass: bool,
    /// Why it does not.
    pub reason: Option<String>,
    /// Base-2 logarithm of the chance that unequal kernels pass.
    pub log2_bound: f64,
    /// What the independent checker says.
    pub checker: CheckerAnswer,
}

/// What `orch_check`, which shares no code with the search and its prover, says of a proof.
#[derive(Clone, Debug, Serialize)]
pub struct CheckerAnswer {
    /// `proved`, `refuted` or `cannot say`.
    pub answer: &'static str,
    /// Where the programs differ, why it cannot say, or the premise of its proof.
    pub reason: Option<String>,
    /// Base-2 logarithm of the chance that it says `proved` of programs that differ.
    pub log2_bound: Option<f64>,
    /// What its primes, keys and inputs were drawn by: `orchestrion-check --seed` takes it.
    pub seed: String,
}

/// A check with the reference's outputs in f64.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The result.
    pub verification: Verification,
    /// What the reference computes.
    pub expected: Vec<Tensor>,
}

/// Runs a compiled model and the reference on the same inputs, and proves anew what the artifact states.
///
/// Without `tolerance` an output passes within that of the executable's precision, or more where rounding all values to the types in
/// use makes an error of that size by itself.
///
/// # Errors
/// As [`RunContext::run`] and [`Model::interpret`].
pub fn verify(
    model: &Model,
    context: &mut RunContext,
    inputs: &[Tensor],
    tolerance: Option<f64>,
) -> Result<Verified, Error> {
    let outputs = context.run(inputs)?;
    let inputs = [inputs, &*context.updatable()].concat();
    let expected = model.interpret(&inputs, true)?;
    let manifest = context.manifest();
    let precision = manifest.precision;
    let mut rounding = Rounding { model, inputs: &inputs, precision, errors: None };
    let mut checks = Vec::with_capacity(outputs.len());
    for (number, ((port, got), want)) in manifest.outputs.iter().zip(&outputs).zip(&expected).enumerate() {
        let Difference { absolute, scaled, mismatched } = compare(got, want);
        let tolerance = match tolerance {
            Some(tolerance) => tolerance,
            None if scaled <= precision.tolerance() => precision.tolerance(),
            None => rounding.tolerance(number, &expected)?,
        };
        checks.push(OutputCheck {
            output: port.name.clone(),
            max_abs: absolute,
            max_scaled: scaled,
            tolerance,
            mismatched,
            pass: scaled <= tolerance && mismatched == 0,
            says_little: says_little(want, tolerance),
        });
    }
    let proofs: Vec<ProofCheck> = manifest.proofs.iter().map(check_proof).collect();
    let parts = check_parts(context);
    let unbound = binding::all_are_bound(manifest).err();
    let pass = checks.iter().all(|check| check.pass)
        && proofs.iter().all(|proof| proof.pass)
        && parts.iter().all(|part| part.pass)
        && unbound.is_none();
    Ok(Verified { verification: Verification { pass, outputs: checks, proofs, parts, unbound }, expected })
}

/// Checks what parts are bound to, and tests each distinct set of kernels once.
fn check_parts(context: &RunContext) -> Vec<PartCheck> {
    let (artifact, options) = context.source();
    let manifest = &artifact.manifest;
    let mut tests: BTreeMap<Vec<usize>, KernelTest> = BTreeMap::new();
    let mut check = |part: &ProvedPart| {
        let bound = binding::bound(part, manifest);
        let kernel_test = match &bound {
            Ok(bound) => {
                let number = |step: &StepInfo| match step.action {
                    ActionInfo::Kernel(number) => Some(number),
                    ActionInfo::Copy | ActionInfo::Host { .. } => None,
                };
                let kernels = bound.kernels.iter().filter_map(|(step, _)| number(step)).collect();
                let test = || kernel_test::test_kernels(artifact, part, bound, options);
                tests.entry(kernels).or_insert_with(test).clone()
            }
            Err(_) => KernelTest::none("it is not what was compiled"),
        };
        let reason = bound.err();
        PartCheck {
            pass: reason.is_none() && kernel_test.pass(),
            kernels: binding::kernel_names(part, manifest),
            origins: origins(part, manifest),
            reason,
            premises: part.premises.clone(),
            proof: part.proof,
            kernel_test,
            unstable: part.unstable.clone(),
        }
    };
    manifest.parts.iter().map(&mut check).collect()
}

/// The operators of the model that a part comes from.
fn origins(part: &ProvedPart, manifest: &Manifest) -> Vec<String> {
    let steps = part.kernels.iter().filter_map(|kernel| manifest.steps.get(kernel.step));
    let mut origins: Vec<String> = Vec::new();
    for origin in steps.flat_map(|step| &step.origins) {
        if !origins.contains(origin) {
            origins.push(origin.clone());
        }
    }
    origins
}

/// Proves anew what a certificate states, and asks the independent checker, which must not refute it.
pub fn check_proof(certificate: &Certificate) -> ProofCheck {
    let checker = asked(certificate);
    let refuted = || {
        let reason = checker.reason.as_deref().filter(|_| checker.answer == "refuted")?;
        Some(format!("the independent checker refutes it (seed {}): {reason}", checker.seed))
    };
    let reason = certificate.check().err().map(|error| error.to_string()).or_else(refuted);
    ProofCheck { pass: reason.is_none(), reason, log2_bound: certificate.log2_bound, checker }
}

/// The answer of the independent checker.
fn asked(certificate: &Certificate) -> CheckerAnswer {
    let seed = orch_check::random_seed();
    let parsed = |text: &str| {
        orch_check::parse(text).and_then(|mut programs| {
            programs.pop().filter(|_| programs.is_empty()).ok_or_else(|| "one program is expected".to_owned())
        })
    };
    let pair =
        parsed(&certificate.program).and_then(|program| Ok((program, parsed(&certificate.candidate)?)));
    let verdict = match pair {
        Ok((program, candidate)) => orch_check::check(&program, &candidate, seed, orch_check::MAX_TIME),
        Err(problem) => Verdict::CannotSay(problem),
    };
    let (answer, reason, log2_bound) = match verdict {
        Verdict::Proved(proof) => ("proved", proof.premise.map(str::to_owned), Some(proof.log2_bound)),
        Verdict::Refuted(witness) => ("refuted", Some(witness.to_string()), None),
        Verdict::CannotSay(reason) => ("cannot say", Some(reason), None),
    };
    CheckerAnswer { answer, reason, log2_bound, seed: seed.to_string() }
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
