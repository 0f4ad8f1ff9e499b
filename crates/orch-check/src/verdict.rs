//! Answers.

use std::fmt;

/// The answer.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// The candidate computes what the program computes, wherever the program is defined.
    Proved(Proof),
    /// It does not.
    Refuted(Witness),
    /// Neither was shown.
    CannotSay(String),
}

/// What was shown, and how.
#[derive(Clone, PartialEq, Debug)]
pub struct Proof {
    /// The logarithm to base 2 of the chance that this is said of programs that differ.
    pub log2_bound: f64,
    /// The primes of each round.
    pub rounds: Vec<(u64, u64)>,
    /// Extents of indices that are treated alike, and those of the test.
    pub cut: Vec<(usize, usize)>,
    /// How many exponents were shown to be independent.
    pub exponents: usize,
    /// Set if it holds where each maximum of masked numbers is of some that the masks leave; elsewhere it was tested in floating point.
    pub assumes_left: bool,
}

impl Proof {
    /// What it rests on beyond what is true of all proofs.
    pub fn premise(&self) -> Option<&'static str> {
        let premise = "where masks leave nothing of which a maximum is taken, floating-point numbers agree, which is no proof";
        self.assumes_left.then_some(premise)
    }
}

/// Where two programs differ.
#[derive(Clone, PartialEq, Debug)]
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
        write!(
            f,
            "output {output} differs at {element:?} of {shape:?}: {expected} in the program, {given} in the candidate"
        )
    }
}
