//! Certificates: what was proved, how, and under which premises, as JSON that can be checked alone.

use super::degree::Degrees;
use super::field::Primes;
use super::rank::RankCheck;
use super::{MaxMode, Pair, Rejection, VerifyOptions, verify};
use crate::text::{parse, print};
use serde::{Deserialize, Serialize};

/// The version of the form.
const FORM: &str = "mugraph-certificate-1";

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
    /// The prime of numbers, decimal.
    pub p: u64,
    /// The prime of exponents.
    pub q: u64,
    /// What seeds are derived from, together with both texts.
    pub seed: u64,
    /// The tests that were passed.
    pub tests: Vec<Test>,
    /// Degrees of both programs.
    pub degrees: [Degrees; 2],
    /// The check that exponentials are independent.
    pub rank: RankCheck,
    /// The logarithm to base 2 of the chance that programs that differ pass all tests.
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
    /// The seed of inputs, base and keys.
    pub seed: u64,
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
    pub(super) fn new(
        pair: &Pair<'_>,
        options: &VerifyOptions,
        (tests, rank): (Vec<Test>, RankCheck),
        (degrees, log2_bound): ([Degrees; 2], f64),
        (max, cut): (MaxMode, &[(usize, usize)]),
    ) -> Certificate {
        let mut premises = vec![
            "Equality is of real numbers, wherever both programs are defined; rounding is not considered.".to_owned(),
            "Seeds are hashes of both programs, and the pseudo-random numbers behave like independent uniform ones."
                .to_owned(),
            "No coefficient of the difference vanishes modulo p or q.".to_owned(),
        ];
        if !cut.is_empty() {
            let cut: Vec<String> = cut.iter().map(|(from, to)| format!("{from} to {to}")).collect();
            premises.push(format!(
                "Indices that both programs treat element by element, by their operators, are cut to one block: {}.",
                cut.join(", ")
            ));
        }
        if rank.exponentials > 0 {
            premises.push(format!(
                "Exponentials are jointly uniform: the {} that an output element reads at input shapes {:?} have exponents \
                 of full rank in input {}; larger extents in the same order are taken to behave alike.",
                rank.exponentials,
                rank.shapes,
                rank.input.as_deref().unwrap_or("-"),
            ));
            premises.push(
                "The candidate's exponents were found among the program's, in a filter with false hits below 2%.".into(),
            );
        }
        if degrees.iter().any(|d| d.roots > 1) {
            premises.push(
                "Inputs are drawn among those whose radicands are squares; a root multiplies the chance by twice the degree \
                 of its equation."
                    .into(),
            );
        }
        if degrees.iter().any(|d| d.arguments.inputs + d.arguments.exponentials > 0) {
            premises.push("Relu, erf and maxima are uninterpreted: keyed hashes of their arguments.".into());
        }
        if max == MaxMode::Free {
            premises.push("Maxima are symbols: equality holds whatever their values are.".into());
        }
        Certificate {
            form: FORM.into(),
            program: print(pair.program),
            candidate: print(pair.candidate),
            p: options.primes.p,
            q: options.primes.q,
            seed: options.seed,
            tests,
            degrees,
            rank,
            log2_bound,
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
        let primes = Primes::known(self.p).filter(|primes| primes.q == self.q);
        let primes =
            primes.ok_or_else(|| CertificateError::Form(format!("primes {} and {}", self.p, self.q)))?;
        if !(1..=64).contains(&self.tests.len()) {
            return Err(CertificateError::Form(format!("{} tests, expected 1 to 64", self.tests.len())));
        }
        let options = VerifyOptions { primes, tests: self.tests.len(), seed: self.seed };
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
