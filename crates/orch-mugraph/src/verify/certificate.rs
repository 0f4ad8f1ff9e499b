//! Certificates: what was proved, how, and under which premises, as JSON that can be checked alone.

use super::degree::Degrees;
use super::rank::RankCheck;
use super::{PROOF_BITS, Pair, Proof, Rejection, UNION_BITS, VerifyOptions, verify};
use crate::graph::{InputKind, MuGraph};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::text::{parse, print};
use serde::{Deserialize, Serialize};

/// The version of the form.
const FORM: &str = "mugraph-certificate-2";

/// Evidence that two programs compute the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// The version of the form.
    pub form: String,
    /// The text of the program.
    pub program: String,
    /// The text of what computes the same.
    pub candidate: String,
    /// Bits of the primes.
    pub prime_bits: u32,
    /// What seeds are derived from, together with both texts.
    pub seed: u64,
    /// The tests that were passed.
    pub tests: Vec<Test>,
    /// Degrees of both programs.
    pub degrees: [Degrees; 2],
    /// The check that exponentials are independent.
    pub rank: RankCheck,
    /// The logarithm to base 2 of the chance that any of up to a million programs that differ passes all tests.
    pub log2_bound: f64,
    /// What the bound rests on.
    pub premises: Vec<String>,
}

/// How far bounds may be apart that were computed by different logarithms.
const BOUND_DIGITS: f64 = 1e-6;

/// One test.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// The seed of primes, inputs, base and keys.
    pub seed: u64,
    /// The prime of numbers that it draws.
    pub p: u64,
    /// The prime of exponents.
    pub q: u64,
    /// How often inputs were drawn again because a divisor was zero.
    pub resampled: usize,
}

/// Why a certificate does not hold.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CertificateError {
    /// It cannot be read.
    #[error("not a certificate: {0}")]
    Form(String),
    /// A program in it cannot be read.
    #[error("the {0} of the certificate: {1}")]
    Program(&'static str, crate::ParseError),
    /// The proof fails.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// What it states is not what a check finds.
    #[error("the certificate states another {0} than the check finds")]
    Stated(&'static str),
}

impl Certificate {
    pub(super) fn new(pair: &Pair<'_>, options: &VerifyOptions, proof: &Proof) -> Certificate {
        let mut premises = vec![
            "Equality is of real numbers, wherever the program is defined; rounding is not considered.".to_owned(),
            "Seeds are hashes of both programs, and the pseudo-random numbers and keyed hashes behave like independent uniform \
             ones."
                .to_owned(),
            format!(
                "There are as many pairs of primes of {} bits as their conjectured density says; the bound is for up to \
                 2^{UNION_BITS} candidates.",
                options.prime_bits
            ),
        ];
        if !proof.cut.is_empty() {
            let cut: Vec<String> = proof.cut.iter().map(|(from, to)| format!("{from} to {to}")).collect();
            premises.push(format!(
                "Indices that both programs treat element by element, by their operators, are cut: {}.",
                cut.join(", ")
            ));
        }
        let rank = &proof.rank;
        if rank.exponentials > 0 {
            let [checked, all] = rank.elements;
            premises.push(format!(
                "Exponents are independent: each of the {} that an output element reads has an element of {} that no \
                 other one depends on; checked for {checked} of {all} elements that are not treated alike.",
                rank.exponentials,
                rank.inputs.join(", "),
            ));
        }
        if uses(pair, is_uninterpreted) {
            premises.push(
                "Roots, relu, erf and maxima are uninterpreted: keyed hashes of their arguments.".into(),
            );
        }
        if proof.is_for_given_masks {
            premises.push("Masks that are formulas are any masks of their shapes.".into());
        }
        let has_masks =
            proof.is_for_given_masks || pair.program.inputs().any(|(_, _, kind)| kind == InputKind::Mask);
        if has_masks && (uses(pair, is_max)) {
            premises.push("Each maximum is of some elements that the masks of inputs leave.".into());
        }
        Certificate {
            form: FORM.into(),
            program: print(pair.program),
            candidate: print(pair.candidate),
            prime_bits: options.prime_bits,
            seed: options.seed,
            tests: proof.tests.clone(),
            degrees: proof.degrees,
            rank: rank.clone(),
            log2_bound: proof.log2_bound,
            premises,
        }
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Reads a JSON text; see [`Certificate::check`].
    ///
    /// # Errors
    /// If the text is no certificate of a known form.
    pub fn from_json(text: &str) -> Result<Certificate, CertificateError> {
        let certificate: Certificate =
            serde_json::from_str(text).map_err(|e| CertificateError::Form(e.to_string()))?;
        if certificate.form != FORM {
            return Err(CertificateError::Form(format!("form {}, expected {FORM}", certificate.form)));
        }
        Ok(certificate)
    }

    /// Proves anew what the certificate states, from the texts in it alone.
    ///
    /// # Errors
    /// If the proof fails, or gives anything else than what is stated.
    pub fn check(&self) -> Result<(), CertificateError> {
        let read = |name, text: &str| parse(text).map_err(|e| CertificateError::Program(name, e));
        let (program, candidate) = (read("program", &self.program)?, read("candidate", &self.candidate)?);
        if self.prime_bits != PROOF_BITS {
            return Err(CertificateError::Form(format!("primes of {} bits", self.prime_bits)));
        }
        let options =
            VerifyOptions { prime_bits: self.prime_bits, seed: self.seed, ..VerifyOptions::default() };
        let found = verify(&program, &candidate, &options)?;
        let stated = [
            ("test", found.tests == self.tests),
            ("degree", found.degrees == self.degrees),
            ("rank", found.rank == self.rank),
            ("premise", found.premises == self.premises),
            // A weaker bound would be true as well, but then what is printed is not what was checked.
            ("bound", (self.log2_bound - found.log2_bound).abs() <= BOUND_DIGITS),
        ];
        stated
            .into_iter()
            .find(|(_, holds)| !holds)
            .map_or(Ok(()), |(what, _)| Err(CertificateError::Stated(what)))
    }
}

/// True if an operator of one of the programs is such a one.
fn uses(pair: &Pair<'_>, is_one: fn(&Op) -> bool) -> bool {
    let has = |graph: &MuGraph| graph.nodes().any(|(_, node)| node.operators().any(is_one));
    has(pair.program) || has(pair.candidate)
}

fn is_uninterpreted(op: &Op) -> bool {
    let is_function = matches!(op, Op::Unary(UnaryFn::Sqrt | UnaryFn::Relu | UnaryFn::Erf));
    is_function || matches!(op, Op::RmsNorm { .. }) || is_max(op)
}

fn is_max(op: &Op) -> bool {
    matches!(op, Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. })
}

/// The seed of a test: a hash of both programs and the test's number.
pub(super) fn seed(pair: &Pair<'_>, seed: u64, number: usize) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for text in [print(pair.program), print(pair.candidate)] {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    hasher.update(&seed.to_le_bytes());
    hasher.update(&(number as u64).to_le_bytes());
    let hash = hasher.finalize();
    hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
