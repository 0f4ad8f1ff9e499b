//! Answers.

use serde::Serialize;
use std::fmt;

/// The answer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub enum Verdict {
    /// The candidate computes what the program computes, wherever the program is defined.
    Proved(Proof),
    /// It does not.
    Refuted(Witness),
    /// Neither was shown.
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
    /// How many values the exponents are made of that an element of an output depends on, at most.
    pub exponents: usize,
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

impl Verdict {
    /// Its name, and the exit code of the command.
    pub fn name(&self) -> (&'static str, u8) {
        match self {
            Verdict::Proved(_) => ("proved", 0),
            Verdict::Refuted(_) => ("refuted", 1),
            Verdict::CannotSay(_) => ("cannot say", 2),
        }
    }
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
        writeln!(f, "{}", self.name().0)?;
        let Proof { log2_bound, rounds, cut, exponents, premise } = match self {
            Verdict::Proved(proof) => proof,
            Verdict::Refuted(witness) => return write!(f, "{witness}"),
            Verdict::CannotSay(reason) => return f.write_str(reason),
        };
        writeln!(f, "programs that differ are called equal with a chance of at most 2^{log2_bound:.0}")?;
        rounds.iter().try_for_each(|(p, q)| writeln!(f, "round: p = {p}, q = {q}"))?;
        cut.iter().try_for_each(|(of, to)| writeln!(f, "an index of {of} is alike: {to} stand for all"))?;
        write!(f, "values that exponents of an output element are made of: {exponents}")?;
        premise.iter().try_for_each(|premise| write!(f, "\npremise: {premise}"))
    }
}
