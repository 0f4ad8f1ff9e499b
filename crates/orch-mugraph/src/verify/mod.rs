//! Equivalence of µGraphs by polynomial identity testing over random pairs of prime fields, and certificates of it.
//!
//! Both programs are evaluated on the same random residues. An output element of a program of the LAX fragment is a ratio
//! of polynomials in inputs, exponentials and values of uninterpreted functions; if exponentials are independent and
//! uniform, two different ratios agree with a chance of at most their degrees over the primes (Schwartz and Zippel, applied
//! to the crossed products). In contrast to Mirage (OSDI'25, section 5), whose bound grows with the number of exponentials,
//! this one grows with degrees only, inputs are random rather than a ramp, and primes are drawn. A proof is as many tests
//! as its bound takes. The argument, step by step, is in `docs/proofs.md`.
//!
//! Indices that both programs treat element by element are cut to a few elements (`isomorph`).
//!
//! What a proof rests on is listed in the certificate as premises, and checked where it can be.

mod certificate;
mod checks;
pub mod degree;
pub mod field;
mod isomorph;
pub mod lax;
mod masks;
mod members;
mod rank;
pub mod residues;
mod sample;
mod shrink;
pub mod sign;
pub mod table;

pub(crate) use checks::Checks;
pub(crate) use isomorph::isomorph;

pub use certificate::{Certificate, CertificateError, Test};
pub use field::{PROOF_BITS, SCREEN_BITS};
pub use rank::RankCheck;
pub use shrink::shrink;
pub(crate) use shrink::{Classes, resize};

use crate::eval::{EvalError, outputs, work};
use crate::graph::{MuGraph, Node};
use crate::threads;
use checks::Check;
use degree::{Degrees, Powers, degrees, log2_error};
use field::Stream;
use lax::{LaxFacts, lax_under};
use residues::{Notes, ResidueDomain, Residues, TestBase};
use table::Table;

/// How often inputs are drawn again because a divisor of the program was zero.
pub const ATTEMPTS: usize = 1000;

/// A proof errs with a chance of at most 2 to minus this.
pub const LEAST_BITS: f64 = 80.0;

/// The logarithm to base 2 of how many candidates for one program a bound is stated for: a search proves some of many.
pub const UNION_BITS: f64 = 20.0;

/// Tests that a proof takes at most.
pub const MOST_TESTS: usize = 16;

/// Multiplications up to which uncut programs are tested too: a fraction of a second.
const UNCUT_WORK: u64 = 1 << 23;

/// How to verify.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Bits of the primes.
    pub prime_bits: u32,
    /// What seeds are derived from, together with both programs.
    pub seed: u64,
    /// Threads that make the tests of a proof: the proof does not depend on how many they are.
    pub threads: usize,
}

impl Default for VerifyOptions {
    /// 61-bit primes, and one thread.
    fn default() -> Self {
        VerifyOptions { prime_bits: PROOF_BITS, seed: 0, threads: 1 }
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

/// Shows that two µGraphs compute the same, for real numbers, wherever the first is defined.
///
/// # Errors
/// If they differ, or could not be shown to be equal.
pub fn verify(
    program: &MuGraph,
    candidate: &MuGraph,
    options: &VerifyOptions,
) -> Result<Certificate, Rejection> {
    verify_under(program, candidate, options, Checks::ALL)
}

/// [`verify`] by some of its checks.
fn verify_under(
    program: &MuGraph,
    candidate: &MuGraph,
    options: &VerifyOptions,
    checks: Checks,
) -> Result<Certificate, Rejection> {
    let pair = Pair::new(program, candidate, checks)?;
    let block = program.nodes().find(|(_, node)| matches!(node, Node::Block(_)));
    if let Some((first, _)) = block.filter(|_| checks.make(Check::ProgramOfOperators)) {
        return Err(Rejection::Unproved(format!("{first} of the program is defined by a block graph")));
    }
    let seed = |number| certificate::seed(&pair, options.seed, number);
    if let Some(given) = with_given_masks(program, candidate)
        && let Some(proof) = prove_for_given_masks(&pair, &given, options, &seed)
    {
        return Ok(Certificate::new(&pair, options, &proof));
    }
    Ok(Certificate::new(&pair, options, &prove(&pair, options, &seed)?))
}

/// Two programs that are large together, with inputs in place of masks that are formulas, whose rows are not alike; `None` if they are
/// not large, or one has no such masks. Tensors keep their numbers. What holds for all masks holds for those.
pub(crate) fn with_given_masks(program: &MuGraph, candidate: &MuGraph) -> Option<[MuGraph; 2]> {
    let is_large = work(program).saturating_add(work(candidate)) > UNCUT_WORK;
    is_large.then_some(())?;
    Some([masks::with_given_masks(program)?, masks::with_given_masks(candidate)?])
}

/// A proof for a pair by one that has any masks in place of those that are formulas; `None` if it fails: then the programs may be equal
/// for these masks alone.
fn prove_for_given_masks(
    pair: &Pair<'_>,
    [program, candidate]: &[MuGraph; 2],
    options: &VerifyOptions,
    seed: &Seeds<'_>,
) -> Option<Proof> {
    let given = Pair::new(program, candidate, pair.checks).ok()?;
    let proof = prove(&given, options, seed).ok()?;
    Some(Proof { is_for_given_masks: true, ..proof })
}

/// A proof for a pair: by programs cut along indices that both treat alike, and a comparison of those that are given if they are small.
fn prove(pair: &Pair<'_>, options: &VerifyOptions, seed: &Seeds<'_>) -> Result<Proof, Rejection> {
    let checks = pair.checks;
    let small = isomorph(pair.program, pair.candidate, checks);
    let small_pair =
        small.as_ref().and_then(|small| Pair::new(&small.program, &small.candidate, checks).ok());
    let tested = match (&small_pair, &small) {
        (Some(pair), Some(small)) => Tested { pair, single: &small.single, cut: &small.cut },
        _ => Tested { pair, single: pair.program, cut: &[] },
    };
    // Exponents are taken apart only where they differ as they are.
    let proof = match tested.prove(options, seed, false) {
        Err(Rejection::Unproved(_)) => tested.prove(options, seed, true)?,
        other => other?,
    };
    let is_compared = !tested.cut.is_empty() && checks.make(Check::Uncut);
    if is_compared && work(pair.program).saturating_add(work(pair.candidate)) <= UNCUT_WORK {
        pair.compare(options.prime_bits, seed(MOST_TESTS))?;
    }
    Ok(proof)
}

/// One random comparison, as a screen: which seeds reject. Says nothing about premises.
///
/// # Errors
/// As [`verify`].
pub fn screen(program: &MuGraph, candidate: &MuGraph, prime_bits: u32, seed: u64) -> Result<(), Rejection> {
    Pair::new(program, candidate, Checks::ALL)?.compare(prime_bits, seed)
}

/// One of the tests that a proof consists of, uncut, with its premises checked. Returns the logarithm to base 2 of the chance
/// that it accepts programs that differ.
///
/// # Errors
/// As [`verify`].
pub fn single_test(
    program: &MuGraph,
    candidate: &MuGraph,
    prime_bits: u32,
    seed: u64,
) -> Result<f64, Rejection> {
    let pair = Pair::new(program, candidate, Checks::ALL)?;
    let tested = Tested { pair: &pair, single: program, cut: &[] };
    let (_, _, powers) = tested.test(prime_bits, seed, false)?;
    Ok(log2_error(&count(program)?, &count(candidate)?, powers, prime_bits))
}

/// The seed of each test of a proof, by number.
type Seeds<'a> = dyn Fn(usize) -> u64 + Sync + 'a;

fn count(graph: &MuGraph) -> Result<Degrees, Rejection> {
    degrees(graph).map_err(|e| Rejection::Unproved(e.to_string()))
}

/// What tests passed, and what they come to.
pub(crate) struct Proof {
    pub(crate) tests: Vec<Test>,
    pub(crate) degrees: [Degrees; 2],
    pub(crate) rank: RankCheck,
    pub(crate) log2_bound: f64,
    /// Extents of indices that are treated alike: before and in the tests.
    pub(crate) cut: Vec<(usize, usize)>,
    /// True if masks that are formulas were taken for any masks.
    pub(crate) is_for_given_masks: bool,
}

/// What is tested for a pair: itself, or both programs cut.
struct Tested<'a> {
    pair: &'a Pair<'a>,
    /// The program with one element along the indices that may be cut.
    single: &'a MuGraph,
    cut: &'a [(usize, usize)],
}

impl Tested<'_> {
    /// As many tests as a bound takes.
    fn prove(&self, options: &VerifyOptions, seed: &Seeds<'_>, splits: bool) -> Result<Proof, Rejection> {
        let bits = options.prime_bits;
        let degrees = [count(self.pair.program)?, count(self.pair.candidate)?];
        let (first, rank, powers) = self.test(bits, seed(0), splits)?;
        let log2_chance = log2_error(&degrees[0], &degrees[1], powers, bits);
        // A chance of 1 is a logarithm of zero, of either sign.
        let wanted = match log2_chance < 0.0 {
            true => ((LEAST_BITS + UNION_BITS) / -log2_chance).ceil().max(1.0),
            false => f64::INFINITY,
        };
        let checks = self.pair.checks;
        if checks.make(Check::Bound) && wanted > MOST_TESTS as f64 {
            let problem = format!(
                "a test errs with a chance of 2^{log2_chance:.1}, and {MOST_TESTS} are too few for 2^-{LEAST_BITS}"
            );
            return Err(Rejection::Unproved(problem));
        }
        let mut proof = Proof {
            tests: vec![first],
            degrees,
            rank,
            log2_bound: 0.0,
            cut: self.cut.to_vec(),
            is_for_given_masks: false,
        };
        let further = 1..wanted.min(MOST_TESTS as f64) as usize;
        let one = |number| self.test(bits, seed(number), splits);
        for tested in threads::map(further, options.threads, one, Result::is_err) {
            let (test, _, more) = tested?;
            let finds_more = more.factors > powers.factors
                || more.checked > powers.checked
                || more.are_nonlinear && !powers.are_nonlinear;
            if finds_more && checks.make(Check::SameExponents) {
                return Err(Rejection::Unproved("tests find different exponents".into()));
            }
            proof.tests.push(test);
        }
        proof.log2_bound = log2_chance * proof.tests.len() as f64 + UNION_BITS;
        Ok(proof)
    }

    /// Compares all output elements for random inputs, drawn until the program is defined, and checks that exponentials are
    /// independent, and that the candidate is defined where the program is.
    fn test(&self, bits: u32, seed: u64, splits: bool) -> Result<(Test, RankCheck, Powers), Rejection> {
        let pair = self.pair;
        let mut stream = Stream::new(seed);
        let base = TestBase::new(bits, &mut stream);
        let facts = lax_under(self.single, pair.checks)
            .map_err(|e| Rejection::Outside(format!("the program, {e},")))?;
        let rank = rank::check_rank(self.single, &facts, &base, (splits, &mut stream));
        let rank = match rank {
            Ok(rank) => rank,
            Err(_) if !pair.checks.make(Check::Rank) => RankCheck::default(),
            Err(e) => {
                // What differs says more than what cannot be proved.
                pair.compare(bits, seed)?;
                return Err(Rejection::Unproved(e.to_string()));
            }
        };
        let noted = |domain: &mut ResidueDomain<'_>| {
            domain.splits = splits;
            domain.notes.exponents = true;
            // Where signs do not say all.
            domain.notes.defined = !pair.facts[1].all().all(|facts| facts.is_defined);
        };
        let (inputs, own, resampled) = pair.defined(&base, &mut stream, &noted)?;
        let given = pair.given(&base, &inputs, &noted, &own.notes)?;
        pair.compare_outputs(&own.outputs, &given.outputs)?;
        let missing = given.notes.atoms.difference(&own.notes.atoms).count();
        if missing > 0 && pair.checks.make(Check::Exponents) {
            let problem = format!("{missing} exponents of the candidate are not among the program's");
            return Err(Rejection::Unproved(problem));
        }
        pair.check_defined(&base, &inputs, &given.notes)?;
        let is_partial = rank.exponentials > 0 && rank.elements[0] < rank.elements[1];
        if is_partial && pair.checks.make(Check::Reads) {
            pair.check_reads(&base, &mut stream, (&inputs, &given.outputs))?;
        }
        let factors = |notes: &Notes| notes.powers.saturating_mul(notes.denominator);
        let factors = factors(&own.notes).max(factors(&given.notes));
        let (p, q) = (base.p().prime, base.q().prime);
        Ok((
            Test { seed, p, q, resampled },
            rank.clone(),
            Powers { factors, checked: rank.exponentials as u64, are_nonlinear: rank.is_nonlinear },
        ))
    }
}

/// Two programs of one signature, typed.
pub(crate) struct Pair<'a> {
    pub(crate) program: &'a MuGraph,
    pub(crate) candidate: &'a MuGraph,
    facts: [Table<LaxFacts>; 2],
    needs: Vec<(bool, bool)>,
    checks: Checks,
}

/// What an evaluation gives.
struct Evaluated {
    outputs: Vec<Residues>,
    notes: Notes,
}

/// Tells a domain what to note.
type Noted<'a> = dyn Fn(&mut ResidueDomain<'_>) + 'a;

impl<'a> Pair<'a> {
    pub(crate) fn new(
        program: &'a MuGraph,
        candidate: &'a MuGraph,
        checks: Checks,
    ) -> Result<Pair<'a>, Rejection> {
        if checks.make(Check::Signature) {
            same_signature(program, candidate)?;
        }
        for (name, graph) in [("the program", program), ("the candidate", candidate)] {
            if let Some(problem) = crate::validate(graph).first().filter(|_| checks.make(Check::Valid)) {
                return Err(Rejection::Outside(format!("{name}, {problem},")));
            }
        }
        let typed = |name: &str, graph| {
            lax_under(graph, checks).map_err(|e| Rejection::Outside(format!("{name}, {e},")))
        };
        let facts = [typed("the program", program)?, typed("the candidate", candidate)?];
        let needs = program.inputs().zip(candidate.inputs()).map(|((a, _, _), (b, _, _))| {
            let (a, b) = (facts[0].tensors[a.index()], facts[1].tensors[b.index()]);
            (a.needs_p || b.needs_p, a.needs_q || b.needs_q)
        });
        let needs = needs.collect();
        Ok(Pair { program, candidate, facts, needs, checks })
    }

    /// Random inputs for which the program is defined, what it gives, and how often they were drawn again.
    fn defined(
        &self,
        base: &TestBase,
        stream: &mut Stream,
        noted: &Noted<'_>,
    ) -> Result<(Vec<Residues>, Evaluated, usize), Rejection> {
        for attempt in 0..ATTEMPTS {
            let inputs = self.sample(base, stream);
            let mut domain = base.domain(&self.facts[0]);
            noted(&mut domain);
            match outputs(&mut domain, self.program, &inputs) {
                Ok(outputs) => return Ok((inputs, Evaluated { outputs, notes: domain.notes }, attempt)),
                Err(EvalError::Undefined(_)) => {}
                Err(e) => return Err(Rejection::Unproved(e.to_string())),
            }
        }
        Err(Rejection::Unproved(format!("the program was not defined in {ATTEMPTS} samples")))
    }

    /// What the candidate gives.
    fn given(
        &self,
        base: &TestBase,
        inputs: &[Residues],
        noted: &Noted<'_>,
        program: &Notes,
    ) -> Result<Evaluated, Rejection> {
        let mut domain = base.domain(&self.facts[1]);
        domain.program = Some(program);
        domain.checks = self.checks;
        noted(&mut domain);
        match outputs(&mut domain, self.candidate, inputs) {
            Ok(outputs) => Ok(Evaluated { outputs, notes: domain.notes }),
            Err(EvalError::Undefined(e)) => Err(Rejection::Unproved(format!(
                "{e} of the candidate is undefined where the program is defined"
            ))),
            Err(e) => Err(Rejection::Unproved(e.to_string())),
        }
    }

    /// Compares all output elements for random inputs, and nothing else.
    fn compare(&self, bits: u32, seed: u64) -> Result<(), Rejection> {
        let mut stream = Stream::new(seed);
        let base = TestBase::new(bits, &mut stream);
        let (inputs, own, _) = self.defined(&base, &mut stream, &|_| {})?;
        let given = self.given(&base, &inputs, &|_| {}, &own.notes)?;
        self.compare_outputs(&own.outputs, &given.outputs)
    }

    fn compare_outputs(&self, expected: &[Residues], given: &[Residues]) -> Result<(), Rejection> {
        if self.checks.make(Check::Outputs) { compare(expected, given) } else { Ok(()) }
    }

    /// Checks that the candidate divides by nothing that may be zero where the program is defined, and takes roots of nothing
    /// that may be negative. Sums of masked exponentials are zero where those of the program are: both are the same where
    /// all exponentials are one.
    fn check_defined(&self, base: &TestBase, inputs: &[Residues], given: &Notes) -> Result<(), Rejection> {
        let unknown = |place: (crate::TensorId, Option<u32>)| {
            let tile = place.1.map_or(String::new(), |tile| format!(", s{tile}"));
            let problem = format!(
                "{}{tile} of the candidate divides by what may be zero, or takes the root of what may be negative, where \
                 the program is defined",
                place.0
            );
            Err(Rejection::Unproved(problem))
        };
        if let Some((place, _)) = given.foreign.iter().find(|(_, of_support)| !**of_support) {
            return unknown(*place);
        }
        if given.foreign.is_empty() {
            return Ok(());
        }
        let noted = |domain: &mut ResidueDomain<'_>| {
            domain.unit_exponentials = true;
            domain.notes.defined = true;
        };
        let mut domain = base.domain(&self.facts[0]);
        noted(&mut domain);
        outputs(&mut domain, self.program, inputs).map_err(|e| Rejection::Unproved(e.to_string()))?;
        let again = self.given(base, inputs, &noted, &domain.notes)?;
        match given.foreign.keys().find(|place| again.notes.foreign.contains_key(place)) {
            Some(place) => unknown(*place),
            None => Ok(()),
        }
    }

    /// Checks that elements of the candidate's outputs depend on no input element that those of the program do not depend
    /// on: so their exponentials are among those whose independence is checked. All other input elements are drawn again.
    fn check_reads(
        &self,
        base: &TestBase,
        stream: &mut Stream,
        (inputs, given): (&[Residues], &[Residues]),
    ) -> Result<(), Rejection> {
        for elements in rank::looked_at(self.program) {
            let read = rank::read(self.program, &elements);
            let mut others = self.sample(base, stream);
            for (((id, _, _), own), other) in self.program.inputs().zip(inputs).zip(&mut others) {
                let Some(marks) = &read[id.index()] else { continue };
                other.keep(own, marks);
            }
            let mut domain = base.domain(&self.facts[1]);
            let again = outputs(&mut domain, self.candidate, &others);
            let again = again.map_err(|e| Rejection::Unproved(e.to_string()))?;
            let value = |of: &Residues, at: usize| of.p.as_ref().map(|p| p.data[at]);
            let positions = self.program.outputs().iter().enumerate();
            for (number, (_, id)) in positions {
                let Some((_, at)) = elements.iter().find(|(output, _)| output == id) else { continue };
                if value(&again[number], *at) != value(&given[number], *at) {
                    let problem = format!("output {number} depends on other inputs at element {at}");
                    return Err(Rejection::Unproved(problem));
                }
            }
        }
        Ok(())
    }

    /// Random inputs.
    pub(crate) fn sample(&self, base: &TestBase, stream: &mut Stream) -> Vec<Residues> {
        sample::sample(self.program, &self.needs, base, stream)
    }

    /// What is known of the candidate's tensors and tiles.
    pub(crate) fn candidate_facts(&self) -> &Table<LaxFacts> {
        &self.facts[1]
    }
}

/// Whether programs take and give the same, by name.
fn same_signature(program: &MuGraph, candidate: &MuGraph) -> Result<(), Rejection> {
    let inputs = |graph: &MuGraph| -> Vec<_> {
        graph.inputs().map(|(id, name, kind)| (name.to_owned(), graph.shape(id).to_vec(), kind)).collect()
    };
    if inputs(program) != inputs(candidate) {
        return Err(Rejection::Signature("inputs differ in number, name, shape or kind".into()));
    }
    let results = |graph: &MuGraph| -> Vec<_> {
        graph.outputs().iter().map(|(name, id)| (name.clone(), graph.shape(*id).to_vec())).collect()
    };
    if results(program) != results(candidate) {
        return Err(Rejection::Signature("outputs differ in number, name or shape".into()));
    }
    Ok(())
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
