//! The decision for a pair of programs.

use crate::alike::Walk;
use crate::degree::{Bounds, NUMBER, bounds, common};
use crate::eval::{Stop, cost, evaluate};
use crate::exponents::{Condition, MASKED_SUM, WAYS, atoms, conditions, facts, hashed, holds};
use crate::field::Key;
use crate::program::{Program, Result, ensure, lens, steps};
use crate::real::Floats;
use crate::residue::{Residue, Residues};
use crate::verdict::{Proof, Verdict, Witness};
use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// What a proof has to reach: the logarithm to base 2 of the chance of a wrong one.
pub const LOG2_BOUND: f64 = -80.0;
/// The most rounds that are made.
const MAX_ROUNDS: usize = 12;
/// The most inputs that are drawn, where the program is not defined for all.
const MAX_TRIALS: u64 = 16;
/// The most elementary operations of one round.
const MAX_WORK: f64 = 3e8;
/// The most elements that both programs hold: 24 bytes each.
const MAX_ELEMENTS: f64 = 3e7;
/// Up to that many operations all elements are computed; above, the first ones along what is treated alike.
const WHOLE_WORK: f64 = 5e5;
/// How many inputs are tried in floating point, to show that programs differ.
const SAMPLES: u64 = 16;
/// The time for a decision that is given by default.
pub const MAX_TIME: Duration = Duration::from_secs(9);
/// The chance of one residue, made of 64 random bits: at most 1.25 divided by `q`, and 1.5 by `p`.
const RESIDUE: f64 = 1.25 / (1u64 << 61) as f64;

/// A seed that the operating system draws.
pub fn random_seed() -> u128 {
    // The keys of the standard library's hash tables are from the operating system.
    let random = |number: u64| u128::from(RandomState::new().hash_one(number));
    random(0) << 64 | random(1)
}

/// Decides whether a candidate computes what a program computes. The seed decides primes, keys and inputs; the
/// candidate must not depend on it. What takes longer than the time that is given is not decided.
pub fn check(program: &Program, candidate: &Program, seed: u128, time: Duration) -> Verdict {
    let (deadline, key) = (Instant::now() + time, Key::new(seed));
    let exact = Pair::new([program, candidate], deadline);
    let is_whole = exact.as_ref().is_ok_and(|pair| pair.cut.is_empty());
    let exact = || exact.and_then(|pair| pair.decide(key));
    let general = || {
        let [program, candidate] = [program, candidate].map(Program::with_given_masks);
        let verdict = Pair::new([&program, &candidate], deadline).and_then(|pair| pair.decide(key));
        verdict.ok().filter(|verdict| matches!(verdict, Verdict::Proved(_)))
    };
    // Rows of a mask that is given are alike, so that large programs are decided.
    let verdict = match is_whole {
        true => exact().or_else(|reason| general().ok_or(reason)),
        false => general().map_or_else(exact, Ok),
    };
    verdict.unwrap_or_else(Verdict::CannotSay)
}

/// Both programs; of what stands twice, the first is the program's and the second the candidate's.
struct Pair<'a> {
    programs: [&'a Program; 2],
    /// Names of outputs, and their tensors.
    names: Vec<&'a str>,
    outputs: [Vec<usize>; 2],
    walk: Walk,
    /// Of each tensor up to which extents it is computed.
    boxes: [Vec<Vec<usize>>; 2],
    /// Extents of which less is computed, and how much.
    cut: Vec<(usize, usize)>,
    /// What must be defined; of the candidate what signs alone do not show.
    conditions: [BTreeSet<(Condition, usize)>; 2],
    facts: [Vec<u8>; 2],
    deadline: Instant,
}

/// Of each tensor of both programs, whether it is an atom.
type Atoms = [Vec<bool>; 2];

/// What a program answers in a round.
struct Answer {
    outputs: Vec<Vec<Residue>>,
    /// Numbers that must not be zero, or negative, with their tensors, but for minus infinities.
    conditions: Vec<(Condition, usize, u64)>,
    assumes_left: bool,
}

impl<'a> Pair<'a> {
    fn new(programs: [&'a Program; 2], deadline: Instant) -> Result<Pair<'a>> {
        let [inputs, others] = programs.map(|program| program.inputs().collect::<BTreeSet<_>>());
        ensure!(inputs == others, "the programs have other inputs, by name, kind or shape");
        let (mut names, mut outputs) = (Vec::new(), [Vec::new(), Vec::new()]);
        for (name, own) in &programs[0].outputs {
            let is_same = |tensor: usize| programs[1].shape(tensor) == programs[0].shape(*own);
            let other = programs[1].outputs.iter().find(|(other, tensor)| other == name && is_same(*tensor));
            let (_, other) =
                other.ok_or(format!("the candidate has no output {name} of the program's shape"))?;
            names.push(name.as_str());
            outputs[0].push(*own);
            outputs[1].push(*other);
        }
        ensure!(programs[1].outputs.len() == names.len(), "the candidate has further outputs");
        let facts = [facts(programs[0])?, facts(programs[1])?];
        let mut conditions = programs.map(conditions);
        conditions[1].retain(|condition| !holds(programs[1], &facts[1], *condition));
        let walk = Walk::new(programs, &outputs);
        let costs = |boxes: &[Vec<Vec<usize>>; 2]| -> [f64; 2] {
            let [own, other] = [0, 1].map(|at| cost(programs[at], &boxes[at]));
            [own[0] + other[0], own[1] + other[1]]
        };
        let mut boxes = programs.map(|program| program.nodes.iter().map(|node| lens(&node.shape)).collect());
        let ([mut work, mut held], mut cut) = (costs(&boxes), Vec::new());
        if work > WHOLE_WORK || held > MAX_ELEMENTS {
            (boxes, cut) = ([0, 1].map(|at| walk.kept(at, programs[at])), walk.cut());
            [work, held] = costs(&boxes);
        }
        ensure!(held <= MAX_ELEMENTS, "a test holds {held:.1e} elements; at most {MAX_ELEMENTS:.1e} are");
        ensure!(work <= MAX_WORK, "a test takes {work:.1e} operations; at most {MAX_WORK:.1e} are made");
        Ok(Pair { programs, names, outputs, walk, boxes, cut, conditions, facts, deadline })
    }

    fn decide(&self, key: Key) -> Result<Verdict> {
        let (mut tried, mut differ, mut problem) = (Vec::new(), None, String::new());
        for way in 0..WAYS {
            let is_atom = self.programs.map(|program| atoms(program, way));
            if tried.contains(&is_atom) {
                continue;
            }
            match self.prove(way, &is_atom, key.derived(way as u64)) {
                Ok(Ok(proof)) => {
                    let differs = proof.premise.is_some() && self.floats_differ(key, true).is_some();
                    ensure!(!differs, "floating-point numbers differ where masks leave nothing of a maximum");
                    return Ok(Verdict::Proved(proof));
                }
                Ok(Err(at)) => differ = differ.or(Some(at)),
                Err(reason) => problem = reason,
            }
            tried.push(is_atom);
        }
        let (output, element) = differ.ok_or_else(|| problem.clone())?;
        // Functions without algebraic form were hashes, so that only floating-point numbers refute.
        self.floats_differ(key, false).map(Verdict::Refuted).ok_or_else(|| {
            if !problem.is_empty() {
                return problem;
            }
            let (name, element) = (self.names[output], self.index(element, output));
            format!(
                "output {name} differs at element {element:?} where roots, maxima and the like are functions of any kind; \
                 floating-point numbers agree"
            )
        })
    }

    /// Rounds, as many as the bound takes: the proof, or an output and an element that differ.
    fn prove(&self, way: usize, is_atom: &Atoms, key: Key) -> Result<Result<Proof, (usize, usize)>> {
        let bounds = self.programs.map(|program| bounds(program, way));
        let log2_bound = |rounds: &usize| self.log2_bound(is_atom, &bounds, *rounds);
        let needed = (1..=MAX_ROUNDS).find(|rounds| log2_bound(rounds) <= LOG2_BOUND);
        let (mut rounds, mut assumes_left, mut trials) = (Vec::new(), false, 0..MAX_TRIALS);
        while rounds.len() < needed.unwrap_or(1) {
            let trial = trials.next().ok_or("no inputs for which the program is defined")?;
            let round = Residues::new(key.derived(trial), self.deadline);
            match self.round(is_atom, &round, &mut assumes_left) {
                Err(Stop::Undefined(_)) => {}
                Err(Stop::Unsupported(reason)) => return Err(reason),
                Ok(Some(at)) => return Ok(Err(at)),
                Ok(None) => rounds.push((round.p.prime, round.q.prime)),
            }
        }
        let needed =
            needed.ok_or(format!("a chance of 2^{LOG2_BOUND} is not reached in {MAX_ROUNDS} rounds"))?;
        let premise = "where masks leave nothing of which a maximum is taken, floating-point numbers agree, which is no proof";
        let exponents = (0..is_atom[0].len()).filter(|&tensor| is_atom[0][tensor]);
        Ok(Ok(Proof {
            // A seed has 128 bits: what is chosen by it has no smaller chance.
            log2_bound: log2_bound(&needed).max(-120.0),
            rounds,
            cut: self.cut.clone(),
            exponents: exponents.map(|tensor| self.elements(0, tensor)).sum::<f64>() as usize,
            premise: assumes_left.then_some(premise),
        }))
    }

    /// What both programs answer: the candidate has to have a value where the program has.
    fn answers(&self, is_atom: &Atoms, round: &Residues) -> Result<[Answer; 2], Stop> {
        let answer = |at: usize| -> Result<Answer, Stop> {
            let mut domain = round.clone();
            domain.is_atom.clone_from(&is_atom[at]);
            let tensors = self.conditions[at].iter().map(|(_, tensor)| *tensor);
            let wanted: Vec<usize> = self.outputs[at].iter().copied().chain(tensors).collect();
            let mut outputs = evaluate(&mut domain, self.programs[at], &self.boxes[at], &wanted)?;
            let values = outputs.split_off(self.names.len());
            let mut conditions = Vec::new();
            for (&(kind, tensor), values) in self.conditions[at].iter().zip(values) {
                for x in values.iter().filter(|x| x.weight != 0) {
                    // A divisor or its negative, whichever is smaller.
                    let number = if kind == Condition::Divisor { x.p.min(round.p.sub(0, x.p)) } else { x.p };
                    conditions.push((kind, tensor, number));
                }
            }
            Ok(Answer { outputs, conditions, assumes_left: domain.assumes_left })
        };
        let own = answer(0)?;
        match answer(1) {
            Err(Stop::Undefined(why)) => Err(format!("the candidate is not defined: {why}").into()),
            other => Ok([own, other?]),
        }
    }

    /// One test: where the programs differ, if they do.
    fn round(
        &self,
        is_atom: &Atoms,
        round: &Residues,
        assumes_left: &mut bool,
    ) -> Result<Option<(usize, usize)>, Stop> {
        let [mut own, mut other] = self.answers(is_atom, round)?;
        let is_finite = own.outputs.iter().chain(&other.outputs).flatten().all(|x| x.weight != 0);
        ensure!(is_finite, "an output may be minus infinity");
        let differs = |(a, b): (&Residue, &Residue)| (a.p, a.weight) != (b.p, b.weight);
        for (output, (own, other)) in own.outputs.iter().zip(&other.outputs).enumerate() {
            if let Some(element) = own.iter().zip(other).position(differs) {
                return Ok(Some((output, element)));
            }
        }
        *assumes_left |= own.assumes_left || other.assumes_left;
        // Lemma 2: what signs do not show is a number of the program that has to be nonzero and the like,
        let left = missing(&own, &other);
        let is_sum = |at: usize, kind: Condition, tensor: usize| {
            kind == Condition::Divisor && self.facts[at][tensor] & MASKED_SUM != 0
        };
        for &(kind, tensor) in &left {
            ensure!(is_sum(1, kind, tensor), "{kind:?} {tensor} of the candidate is not shown to be one");
        }
        if left.is_empty() {
            return Ok(None);
        }
        // or a sum of masked exponentials that has a term where one of the program's has: what is left of both with powers of one.
        let mut weights = round.clone();
        weights.base = round.p.one;
        [own, other] = self.answers(is_atom, &weights)?;
        own.conditions.retain(|(kind, tensor, _)| is_sum(0, *kind, *tensor));
        other.conditions.retain(|(kind, tensor, _)| left.contains(&(*kind, *tensor)));
        ensure!(
            missing(&own, &other).is_empty(),
            "a sum of the candidate may be masked where the program's are not"
        );
        Ok(None)
    }

    /// How many elements of a tensor an element of an output depends on, at most.
    fn elements(&self, at: usize, tensor: usize) -> f64 {
        let extents = self.programs[at].shape(tensor).iter().zip(self.walk.alike(at, tensor));
        extents.filter(|(_, is_alike)| !is_alike).map(|(extent, _)| extent.len as f64).product()
    }

    /// The logarithm to base 2 of the chance that programs that differ pass so many rounds.
    fn log2_bound(&self, is_atom: &Atoms, bounds: &[(Vec<Bounds>, u128); 2], rounds: usize) -> f64 {
        let denominator = common(bounds[0].1, bounds[1].1) as f64;
        let chance = |count: f64, [numbers, exponentials, height]: [f64; 3]| {
            let degree = 1.0 + numbers + exponentials * denominator;
            count * (degree * RESIDUE + height / 61.0 * f64::powi(2.0, -50))
        };
        let pairs = self.outputs[0].iter().zip(&self.outputs[1]);
        let differences =
            pairs.map(|(&own, &other)| chance(1.0, bounds[0].0[own].difference(bounds[1].0[other])));
        // Arguments of hashes for one element of an output, and divisors, of which two may agree.
        let [mut argument, mut condition] = [NUMBER; 2];
        let (mut arguments, mut conditions) = (0.0, [0.0; 2]);
        for at in 0..2 {
            let bounds = &bounds[at].0;
            for &(_, tensor) in &self.conditions[at] {
                condition = condition.max(bounds[tensor]);
                conditions[at] += self.boxes[at][tensor].iter().map(|&len| len as f64).product::<f64>();
            }
            // Weights of masked numbers are compared as arguments of hashes are.
            let masked = (0..bounds.len()).filter(|&tensor| bounds[tensor].weight > 0.0);
            for tensor in hashed(self.programs[at], &is_atom[at]).into_iter().chain(masked) {
                argument = argument.max(bounds[tensor]);
                // A set of which the largest is taken is hashed, too.
                arguments += 2.0 * self.elements(at, tensor);
            }
        }
        let [argument, condition] = [argument, condition].map(|bounds| bounds.difference(bounds));
        let single = differences.fold(chance(arguments * arguments, argument), |sum, chance| sum + chance);
        // Inputs are drawn again where a divisor is zero, so that chances are relative to that of none.
        let defined = 1.0 - chance(MAX_ELEMENTS, condition);
        if defined.is_nan() || defined < 0.5 {
            return 0.0;
        }
        let among = |count: f64, chance: f64| count * (chance / defined).powi(rounds as i32);
        (WAYS as f64 * (among(1.0, single) + among(conditions[1], chance(conditions[0], condition)))).log2()
    }

    /// Where floating-point numbers differ. Those of the candidate that are not finite may have overflowed; they count if `all`.
    fn floats_differ(&self, key: Key, all: bool) -> Option<Witness> {
        for sample in 0..SAMPLES {
            let mut domain = Floats { key: key.derived(sample << 32 | 1 << 31), run: sample as u32 % 8 };
            let mut values =
                |at: usize| evaluate(&mut domain, self.programs[at], &self.boxes[at], &self.outputs[at]);
            let (own, other) = (values(0).ok()?, values(1).ok()?);
            for (output, (own, other)) in own.iter().zip(&other).enumerate() {
                let finite = own.iter().filter(|x| x.is_finite());
                let scale = finite.fold(0.0, |scale: f64, x| scale.max(x.abs()));
                let differs = |(a, b): (&f64, &f64)| {
                    (a - b).is_finite() && (a - b).abs() > 1e-6 * scale
                        || all && a.is_finite() && !b.is_finite()
                };
                if let Some(at) = own.iter().zip(other).position(differs) {
                    let (element, shape) =
                        (self.index(at, output), self.boxes[0][self.outputs[0][output]].clone());
                    let (output, expected, given) = (self.names[output].to_owned(), own[at], other[at]);
                    return Some(Witness { output, element, shape, expected, given });
                }
            }
            if Instant::now() > self.deadline {
                break;
            }
        }
        None
    }

    /// The index of an element of a program's output.
    fn index(&self, element: usize, output: usize) -> Vec<usize> {
        let lens = &self.boxes[0][self.outputs[0][output]];
        steps(lens).iter().zip(lens).map(|(&step, &len)| element / step.max(1) % len).collect()
    }
}

/// Conditions of the candidate whose number none of the program's has.
fn missing(own: &Answer, other: &Answer) -> BTreeSet<(Condition, usize)> {
    let known: HashSet<(Condition, u64)> = own.conditions.iter().map(|&(kind, _, x)| (kind, x)).collect();
    let left = other.conditions.iter().filter(|(kind, _, x)| !known.contains(&(*kind, *x)));
    left.map(|&(kind, tensor, _)| (kind, tensor)).collect()
}
