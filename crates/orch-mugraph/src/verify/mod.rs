//! Equivalence of µGraphs by polynomial identity testing over a pair of prime fields, and certificates of it.
//!
//! Both programs are evaluated on the same random residues. An output element of a program of the LAX fragment is a ratio
//! of polynomials in inputs and exponentials; if exponentials are independent and uniform, two different ratios agree
//! with a chance of at most `degree in inputs / p + degree in exponentials / q` per test (Schwartz and Zippel, applied to
//! the crossed products). In contrast to Mirage (OSDI'25, section 5), whose bound grows with the number of exponentials,
//! this one grows with degrees only, and inputs are random rather than a ramp. A proof is two tests with 61-bit primes.
//!
//! Indices that both programs treat element by element are cut to what one block computes (`isomorph`).
//!
//! What a proof rests on is listed in the certificate as premises, and checked where it can be.

mod certificate;
pub mod degree;
pub mod field;
mod isomorph;
pub mod lax;
mod rank;
pub mod residues;
mod sample;
mod shrink;
pub mod table;

pub(crate) use isomorph::isomorph;

pub use certificate::{Certificate, CertificateError, Test};
pub use field::Primes;
pub use rank::{RankCheck, check_rank};
pub use residues::MaxMode;
pub use shrink::shrink;
pub(crate) use shrink::{Classes, resize};

use crate::eval::{EvalError, outputs};
use crate::graph::{MuGraph, Node, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn};
use degree::{degrees, log2_error};
use field::Stream;
use lax::{LaxFacts, lax};
use residues::{Exponents, Filter, Residues, TestBase};
use table::Table;

/// How often inputs are drawn again because a divisor was zero.
pub const ATTEMPTS: usize = 1000;

/// How to verify.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// The primes.
    pub primes: Primes,
    /// Independent tests.
    pub tests: usize,
    /// What seeds are derived from, together with both programs.
    pub seed: u64,
}

impl Default for VerifyOptions {
    /// Two tests with 61-bit primes.
    fn default() -> Self {
        VerifyOptions { primes: Primes::FULL, tests: 2, seed: 0 }
    }
}

/// Why programs were not shown to be equal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// They do not take the same inputs or give the same outputs.
    #[error("the programs have different signatures: {0}")]
    Signature(String),
    /// One is outside the fragment.
    #[error("{0} is outside what can be proved")]
    Outside(String),
    /// They differ.
    #[error("output {output} differs at element {element}")]
    Different {
        /// The position of the output.
        output: usize,
        /// The first element that differs.
        element: usize,
    },
    /// No test could be made, or its premises do not hold.
    #[error("not proved: {0}")]
    Unproved(String),
}

/// Shows that two µGraphs compute the same, for real numbers.
///
/// # Errors
/// If they differ, or could not be shown to be equal.
pub fn verify(
    program: &MuGraph,
    candidate: &MuGraph,
    options: &VerifyOptions,
) -> Result<Certificate, Rejection> {
    let pair = Pair::new(program, candidate)?;
    let max = pair.max;
    let small = isomorph(program, candidate);
    let small_pair = small.as_ref().and_then(|small| Pair::new(&small.program, &small.candidate).ok());
    let (tested, cut) = match (&small_pair, &small) {
        (Some(tested), Some(small)) => (tested, small.cut.clone()),
        _ => (&pair, Vec::new()),
    };
    let mut tests = Vec::new();
    for number in 0..options.tests {
        let seed = certificate::seed(&pair, options.seed, number);
        let resampled = tested.test(options.primes, seed, number == 0)?;
        tests.push(Test { seed, resampled });
    }
    if max == MaxMode::Free {
        tested.exponents_without_maxima(options.primes, tests.first().map_or(0, |test| test.seed))?;
    }
    let unproved = |e: EvalError| Rejection::Unproved(e.to_string());
    let small = shrink(program).map_err(|e| Rejection::Unproved(format!("the program, {e}")))?;
    let rank = check_rank(&small, certificate::seed(&pair, options.seed, options.tests)).map_err(unproved)?;
    let count = |graph| degrees(graph, max == MaxMode::Free).map_err(|e| Rejection::Unproved(e.to_string()));
    let (own, other) = (count(program)?, count(candidate)?);
    let log2_bound = log2_error(&own, &other, options.primes) * options.tests as f64;
    Ok(certificate::Certificate::new(&pair, options, (tests, rank), ([own, other], log2_bound), (max, &cut)))
}

/// One random test alone, as a screen: which seeds reject. Says nothing about premises.
///
/// # Errors
/// As [`verify`].
pub fn screen(program: &MuGraph, candidate: &MuGraph, primes: Primes, seed: u64) -> Result<(), Rejection> {
    let pair = Pair::new(program, candidate)?;
    pair.test(primes, seed, false).map(|_| ())
}

/// Two programs of one signature, typed.
pub(crate) struct Pair<'a> {
    pub(crate) program: &'a MuGraph,
    pub(crate) candidate: &'a MuGraph,
    /// What maxima are.
    pub(crate) max: MaxMode,
    facts: [Table<LaxFacts>; 2],
    needs: Vec<(bool, bool)>,
}

impl<'a> Pair<'a> {
    pub(crate) fn new(program: &'a MuGraph, candidate: &'a MuGraph) -> Result<Pair<'a>, Rejection> {
        let inputs = |graph: &MuGraph| -> Vec<_> {
            graph.inputs().map(|(id, _, kind)| (graph.shape(id).to_vec(), kind)).collect()
        };
        if inputs(program) != inputs(candidate) {
            return Err(Rejection::Signature("inputs differ in number, shape or kind".into()));
        }
        let results = |graph: &MuGraph| -> Vec<_> {
            graph.outputs().iter().map(|(_, id)| graph.shape(*id).to_vec()).collect()
        };
        if results(program) != results(candidate) {
            return Err(Rejection::Signature("outputs differ in number or shape".into()));
        }
        for (name, graph) in [("the program", program), ("the candidate", candidate)] {
            if let Some(problem) = crate::validate(graph).first() {
                return Err(Rejection::Outside(format!("{name}, {problem},")));
            }
        }
        let max = max_mode(program, candidate);
        let typed =
            |name: &str, graph| lax(graph, max).map_err(|e| Rejection::Outside(format!("{name}, {e},")));
        let facts = [typed("the program", program)?, typed("the candidate", candidate)?];
        let needs = program.inputs().zip(candidate.inputs()).map(|((a, _, _), (b, _, _))| {
            let (a, b) = (facts[0].tensors[a.index()], facts[1].tensors[b.index()]);
            (a.needs_p || b.needs_p, a.needs_q || b.needs_q)
        });
        let needs = needs.collect();
        Ok(Pair { program, candidate, facts, needs, max })
    }

    /// Compares all output elements for random inputs, drawn until both programs are defined. Returns how often they were
    /// drawn again. Optionally checks that the candidate's exponents are among the program's.
    pub(crate) fn test(&self, primes: Primes, seed: u64, check_exponents: bool) -> Result<usize, Rejection> {
        let check_exponents = check_exponents && self.max == MaxMode::Lattice;
        let base = TestBase::new(primes, seed);
        let mut stream = Stream::new(seed ^ 0x5eed);
        for attempt in 0..ATTEMPTS {
            let run = self.run(&base, &mut stream, self.max, check_exponents);
            match run {
                Ok((expected, given, missing)) => {
                    compare(&expected, &given)?;
                    return if missing == 0 { Ok(attempt) } else { Err(foreign(missing)) };
                }
                Err(EvalError::Undefined(_)) => {}
                Err(e) => return Err(Rejection::Unproved(e.to_string())),
            }
        }
        Err(Rejection::Unproved(format!("a divisor or radicand was unsuitable in {ATTEMPTS} samples")))
    }

    /// Random inputs for which the program's roots exist.
    pub(crate) fn sample(&self, base: &TestBase, stream: &mut Stream) -> Result<Vec<Residues>, EvalError> {
        sample::sample(self.program, &self.facts[0], &self.needs, base, stream)
    }

    /// What is known of the candidate's tensors and tiles.
    pub(crate) fn candidate_facts(&self) -> &Table<LaxFacts> {
        &self.facts[1]
    }

    fn run(
        &self,
        base: &TestBase,
        stream: &mut Stream,
        max: MaxMode,
        check_exponents: bool,
    ) -> Result<(Vec<Residues>, Vec<Residues>, usize), EvalError> {
        let inputs = self.sample(base, stream)?;
        let mut domain = base.domain(&self.facts[0], max);
        if check_exponents {
            domain.exponents = Exponents::Inserted(Filter::new());
        }
        let expected = outputs(&mut domain, self.program, &inputs)?;
        let exponents = match domain.exponents {
            Exponents::Inserted(filter) => Exponents::Checked(filter, 0),
            other => other,
        };
        let mut domain = base.domain(&self.facts[1], max);
        domain.exponents = exponents;
        let given = outputs(&mut domain, self.candidate, &inputs)?;
        let missing = if let Exponents::Checked(_, missing) = domain.exponents { missing } else { 0 };
        Ok((expected, given, missing))
    }

    /// With maxima as symbols: at zero symbols the candidate's exponents must be among the program's, so that each of
    /// its exponentials is one of the program's divided by symbols.
    fn exponents_without_maxima(&self, primes: Primes, seed: u64) -> Result<(), Rejection> {
        let base = TestBase::new(primes, seed);
        let mut stream = Stream::new(seed ^ 0x5eed);
        for _ in 0..ATTEMPTS {
            match self.run(&base, &mut stream, MaxMode::Zero, true) {
                Ok((_, _, 0)) => return Ok(()),
                Ok((_, _, missing)) => return Err(foreign(missing)),
                Err(EvalError::Undefined(_)) => {}
                Err(e) => return Err(Rejection::Unproved(e.to_string())),
            }
        }
        Err(Rejection::Unproved(format!("a divisor or radicand was unsuitable in {ATTEMPTS} samples")))
    }
}

fn foreign(missing: usize) -> Rejection {
    Rejection::Unproved(format!("{missing} exponents of the candidate are not among the program's"))
}

fn compare(expected: &[Residues], given: &[Residues]) -> Result<(), Rejection> {
    for (output, (expected, given)) in expected.iter().zip(given).enumerate() {
        let (Some(expected), Some(given)) = (&expected.p, &given.p) else {
            return Err(Rejection::Unproved(format!("output {output} has no residue")));
        };
        if let Some(element) = expected.data.iter().zip(&given.data).position(|(a, b)| a != b) {
            return Err(Rejection::Different { output, element });
        }
    }
    Ok(())
}

/// Maxima are symbols where only the candidate has any.
fn max_mode(program: &MuGraph, candidate: &MuGraph) -> MaxMode {
    if has_max(candidate) && !has_max(program) { MaxMode::Free } else { MaxMode::Lattice }
}

/// True if a µGraph takes maxima.
fn has_max(graph: &MuGraph) -> bool {
    let is_max = |op: &Op| matches!(op, Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. });
    graph.nodes().any(|(_, node)| match node {
        Node::Input { .. } => false,
        Node::Op { op, .. } => is_max(op),
        Node::Block(block) => block.nodes.iter().any(|node| match node {
            TileNode::Op { op, .. } => is_max(op),
            TileNode::RunningMax { .. } => true,
            TileNode::Accumulate { how, .. } => *how == crate::Accumulation::Max,
            TileNode::Load { .. } => false,
        }),
    })
}
