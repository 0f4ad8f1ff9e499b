//! Answers.

use serde::Serialize;
use std::fmt;

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "verdict", content = "details", rename_all = "lowercase")]
pub enum Verdict {
    /// The candidate computes what the program computes, wherever the program is defined.
    Proved(Proof),
    /// It does not.
    Refuted(Witness),
    /// Neither was shown.
    #[serde(rename = "cannot say")]
    CannotSay(String),
}

/// What was shown, and how.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Proof {
    /// The logarithm to base 2 of the chance that this is said of programs that differ.
    pub log2_bound: f64,
    /// The primes of each round.
    pub rounds: Vec<(u64, u64)>,
    /// Extents of indices that are treated alike, and those of the test.
    pub cut: Vec<(usize, usize)>,
    /// What it rests on beyond what is true of all proofs: set if it holds where each maximum of masked numbers is of some that the masks
    /// leave; elsewhere it was tested in floating point.
    pub premise: Option<&'static str>,
}

/// Where two programs differ.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Witness {
    /// The output.
    pub output: String,
    /// The element, of the output cut to the shape.
    pub element: Vec<usize>,
    /// The shape of the output in the test.
    pub shape: Vec<usize>,
    /// The program's value there in floating point, at inputs that the seed decides.
    pub expected: f64,
    /// The candidate's.
    pub given: f64,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { output, element, shape, expected, given } = self;
        write!(f, "output {output} differs at {element:?} of {shape:?}: ")?;
        write!(f, "{expected} in the program, {given} in the candidate")
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Refuted(witness) => writeln!(f, "refuted\n{witness}"),
            Verdict::CannotSay(reason) => writeln!(f, "cannot say\n{reason}"),
            Verdict::Proved(Proof { log2_bound, rounds, cut, premise }) => {
                writeln!(
                    f,
                    "proved\nprograms that differ are called equal with a chance of at most 2^{log2_bound:.0}"
                )?;
                rounds.iter().try_for_each(|(p, q)| writeln!(f, "round: p = {p}, q = {q}"))?;
                cut.iter()
                    .try_for_each(|(of, to)| writeln!(f, "an index of {of} is alike: {to} stand for all"))?;
                premise.iter().try_for_each(|premise| writeln!(f, "premise: {premise}"))
            }
        }
    }
}
