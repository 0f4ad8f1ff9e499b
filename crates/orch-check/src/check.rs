//! The decision for a pair of programs.

use crate::degree::{Bounds, NUMBER, bounds};
use crate::eval::{cost, evaluate};
use crate::exponents::{Condition, MASKED_SUM, WAYS, atoms, conditions, facts, hashed, holds};
use crate::field::Key;
use crate::program::{Program, Result, ensure, lens, steps};
use crate::real::Floats;
use crate::residue::{Residue, Residues};
use crate::verdict::{Proof, Verdict, Witness};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// What a proof has to reach: the logarithm to base 2 of the chance of a wrong one.
pub const LOG2_BOUND: f64 = -80.0;
/// The most rounds that are made.
const MAX_ROUNDS: u32 = 12;
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
    let exact = Pair::new([program, candidate], false, deadline);
    let is_whole = exact.as_ref().is_ok_and(|pair| pair.cut.is_empty());
    let exact = || exact.and_then(|pair| pair.decide(key));
    let general = || {
        let verdict = Pair::new([program, candidate], true, deadline).and_then(|pair| pair.decide(key));
        verdict.ok().filter(|verdict| matches!(verdict, Verdict::Proved(_)))
    };
    // Rows of a mask that is given are alike, so that large programs are decided.
    let verdict = match is_whole {
        true => exact().or_else(|reason| general().ok_or(reason)),
        false => general().map_or_else(exact, Ok),
    };
    verdict.unwrap_or_else(Verdict::CannotSay)
}

/// A program and a candidate; of what stands twice, the first is the program's and the second the candidate's.
struct Pair {
    /// The tensors of both.
    both: Program,
    /// Those of the candidate that are no inputs are from this one on.
    first: usize,
    /// Names of outputs, and their tensors.
    names: Vec<String>,
    outputs: [Vec<usize>; 2],
    /// Of each tensor for each dimension how many elements stand for all, where its index is treated alike.
    kept: Vec<Vec<Option<usize>>>,
    /// Of each tensor up to which extents it is computed.
    boxes: Vec<Vec<usize>>,
    /// Extents of which less is computed, and how much.
    cut: Vec<(usize, usize)>,
    /// What must be defined; of the candidate what signs alone do not show.
    conditions: [BTreeSet<(Condition, usize)>; 2],
    facts: Vec<u8>,
    deadline: Instant,
}

/// What a program answers in a round.
struct Answer {
    outputs: Vec<Vec<Residue>>,
    /// Numbers that must not be zero, or negative, with their tensors, but for minus infinities.
    conditions: Vec<(Condition, usize, u64)>,
}

impl Pair {
    fn new(programs: [&Program; 2], are_masks_given: bool, deadline: Instant) -> Result<Pair> {
        let (mut both, mut inputs) = (Program::default(), BTreeMap::new());
        let own = both.append(programs[0], &mut inputs, are_masks_given);
        let (first, count) = (both.nodes.len(), inputs.len());
        let other = both.append(programs[1], &mut inputs, are_masks_given);
        ensure!(inputs.len() == count, "the programs have other inputs, by name, kind or shape");
        let (mut names, mut outputs) = (Vec::new(), [Vec::new(), Vec::new()]);
        for (name, own) in own {
            let of_shape =
                other.get(&name).filter(|other| lens(both.shape(**other)) == lens(both.shape(own)));
            let other =
                *of_shape.ok_or(format!("the candidate has no output {name} of the program's shape"))?;
            let shape = both.shape(other).to_vec();
            both.join(own, &shape);
            names.push(name);
            outputs[0].push(own);
            outputs[1].push(other);
        }
        ensure!(other.len() == names.len(), "the candidate has further outputs");
        let facts = facts(&both)?;
        let mut conditions = [0..first, first..both.nodes.len()].map(|tensors| conditions(&both, tensors));
        conditions[1].retain(|condition| !holds(&both, &facts, *condition));
        let Program { nodes, indices, .. } = &mut both;
        nodes.iter().for_each(|node| indices.refuse_diagonals(&node.shape));
        let kept: Vec<Vec<_>> = nodes.iter().map(|node| indices.kept(&node.shape)).collect();
        let mut boxes: Vec<_> = nodes.iter().map(|node| lens(&node.shape)).collect();
        let ([mut work, mut held], mut cut) = (cost(&both, &boxes), Vec::new());
        if work > WHOLE_WORK || held > MAX_ELEMENTS {
            let all = |(kept, lens): (&Vec<Option<usize>>, Vec<usize>)| {
                kept.iter().zip(lens).map(|(kept, len)| kept.unwrap_or(len)).collect()
            };
            (cut, boxes) = (both.indices.cut(), kept.iter().zip(boxes).map(all).collect());
            [work, held] = cost(&both, &boxes);
        }
        ensure!(held <= MAX_ELEMENTS, "a test holds {held:.1e} elements; at most {MAX_ELEMENTS:.1e} are");
        ensure!(work <= MAX_WORK, "a test takes {work:.1e} operations; at most {MAX_WORK:.1e} are made");
        Ok(Pair { both, first, names, outputs, kept, boxes, cut, conditions, facts, deadline })
    }

    fn decide(&self, key: Key) -> Result<Verdict> {
        let (mut tried, mut differ, mut problem) = (Vec::new(), None, String::new());
        for way in 0..WAYS {
            let is_atom = atoms(&self.both, way);
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
            let (name, element) = (&self.names[output], self.index(element, output));
            format!(
                "output {name} differs at element {element:?} where roots, maxima and the like are functions of any kind; \
                 floating-point numbers agree"
            )
        })
    }

    /// Rounds, as many as the bound takes: the proof, or an output and an element that differ.
    fn prove(&self, way: usize, is_atom: &[bool], key: Key) -> Result<Result<Proof, (usize, usize)>> {
        let bounds = bounds(&self.both, way);
        let log2_bound = |rounds: &u32| self.log2_bound(is_atom, &bounds, *rounds);
        let needed = (1..=MAX_ROUNDS).find(|rounds| log2_bound(rounds) <= LOG2_BOUND);
        let (mut rounds, mut assumes_left) = (Vec::new(), false);
        for number in 0..needed.unwrap_or(1) {
            let mut round = Residues::new(key.derived(number.into()), is_atom.to_vec(), self.deadline);
            if let Some(at) = self.round(&mut round)? {
                return Ok(Err(at));
            }
            rounds.push((round.p.prime, round.q.prime));
            assumes_left |= round.assumes_left;
        }
        let needed =
            needed.ok_or(format!("a chance of 2^{LOG2_BOUND} is not reached in {MAX_ROUNDS} rounds"))?;
        let premise = "where masks leave nothing of which a maximum is taken, floating-point numbers agree, which is no proof";
        let exponents = (0..self.first).filter(|&tensor| is_atom[tensor]);
        Ok(Ok(Proof {
            // A seed has 128 bits: what is chosen by it has no smaller chance.
            log2_bound: log2_bound(&needed).max(-120.0),
            rounds,
            cut: self.cut.clone(),
            exponents: exponents.map(|tensor| self.elements(tensor)).sum::<f64>() as usize,
            premise: assumes_left.then_some(premise),
        }))
    }

    /// What both programs answer.
    fn answers(&self, round: &mut Residues) -> Result<[Answer; 2]> {
        let conditions = self.conditions.iter().flatten().map(|(_, tensor)| tensor);
        let wanted: Vec<usize> = self.outputs.iter().flatten().chain(conditions).copied().collect();
        let mut values = evaluate(round, &self.both, &self.boxes, &wanted)?.into_iter();
        let mut answers = self.outputs.each_ref().map(|outputs| Answer {
            outputs: values.by_ref().take(outputs.len()).collect(),
            conditions: Vec::new(),
        });
        for (answer, conditions) in answers.iter_mut().zip(&self.conditions) {
            for (&(kind, tensor), values) in conditions.iter().zip(values.by_ref()) {
                for x in values.iter().filter(|x| x.weight != 0) {
                    // A divisor or its negative, whichever is smaller.
                    let number = if kind == Condition::Divisor { x.p.min(round.p.sub(0, x.p)) } else { x.p };
                    answer.conditions.push((kind, tensor, number));
                }
            }
        }
        Ok(answers)
    }

    /// One test: where the programs differ, if they do.
    fn round(&self, round: &mut Residues) -> Result<Option<(usize, usize)>> {
        // With powers of one.
        let mut weights = round.clone();
        weights.base = round.p.one;
        let [own, other] = self.answers(round)?;
        let is_finite = own.outputs.iter().chain(&other.outputs).flatten().all(|x| x.weight != 0);
        ensure!(is_finite, "an output may be minus infinity");
        let differs = |(a, b): (&Residue, &Residue)| (a.p, a.weight) != (b.p, b.weight);
        for (output, (own, other)) in own.outputs.iter().zip(&other.outputs).enumerate() {
            if let Some(element) = own.iter().zip(other).position(differs) {
                return Ok(Some((output, element)));
            }
        }
        // Lemma 2: what signs do not show is a number of the program that has to be nonzero and the like,
        let left = missing(&own, &other);
        let is_sum = |kind: Condition, tensor: usize| {
            kind == Condition::Divisor && self.facts[tensor] & MASKED_SUM != 0
        };
        for &(kind, tensor) in &left {
            ensure!(is_sum(kind, tensor), "{kind:?} {tensor} of the candidate is not shown to be one");
        }
        if left.is_empty() {
            return Ok(None);
        }
        // or a sum of masked exponentials that has a term where one of the program's has: what is left of both with powers of one.
        let [mut own, mut other] = self.answers(&mut weights)?;
        own.conditions.retain(|(kind, tensor, _)| is_sum(*kind, *tensor));
        other.conditions.retain(|(kind, tensor, _)| left.contains(&(*kind, *tensor)));
        ensure!(
            missing(&own, &other).is_empty(),
            "a sum of the candidate may be masked where the program's are not"
        );
        Ok(None)
    }

    /// How many elements of a tensor an element of an output depends on, at most.
    fn elements(&self, tensor: usize) -> f64 {
        let extents = self.both.shape(tensor).iter().zip(&self.kept[tensor]);
        extents.filter(|(_, kept)| kept.is_none()).map(|(extent, _)| extent.len as f64).product()
    }

    /// The logarithm to base 2 of the chance that programs that differ pass so many rounds.
    fn log2_bound(&self, is_atom: &[bool], (bounds, denominator): &(Vec<Bounds>, f64), rounds: u32) -> f64 {
        let chance = |count: f64, [numbers, exponentials, height]: [f64; 3]| {
            let degree = 1.0 + numbers + exponentials * denominator;
            count * (degree * RESIDUE + height / 61.0 * f64::powi(2.0, -50))
        };
        // That two of many tensors' elements agree by accident.
        let pair = |count: f64, tensors: &[usize]| {
            let all = tensors.iter().fold(NUMBER, |all, &tensor| all.max(bounds[tensor]));
            chance(count, all.difference(all))
        };
        let outputs = self.outputs[0].iter().zip(&self.outputs[1]);
        let differences = outputs.map(|(&own, &other)| chance(1.0, bounds[own].difference(bounds[other])));
        // Arguments of hashes for one element of an output, and weights of masked numbers, which are compared as these are.
        let masked = (0..bounds.len()).filter(|&tensor| bounds[tensor].weight > 0.0);
        let arguments: Vec<usize> = hashed(&self.both, is_atom).into_iter().chain(masked).collect();
        // A set of which the largest is taken is hashed, too.
        let count = arguments.iter().map(|&tensor| 2.0 * self.elements(tensor)).sum::<f64>();
        let single = differences.sum::<f64>() + pair(count * count, &arguments);
        let conditions: Vec<usize> = self.conditions.iter().flatten().map(|(_, tensor)| *tensor).collect();
        let [own, other] = self.conditions.each_ref().map(|conditions| {
            let lens = |tensor: usize| self.boxes[tensor].iter().map(|&len| len as f64).product::<f64>();
            conditions.iter().map(|(_, tensor)| lens(*tensor)).sum::<f64>()
        });
        let confused = other * pair(own, &conditions).powi(rounds as i32);
        (WAYS as f64 * (single.powi(rounds as i32) + confused)).log2()
    }

    /// Where floating-point numbers differ. Those of the candidate that are not finite may have overflowed; they count if `all`.
    fn floats_differ(&self, key: Key, all: bool) -> Option<Witness> {
        let wanted = self.outputs.concat();
        for sample in 0..SAMPLES {
            let mut domain = Floats { key: key.derived(sample << 32 | 1 << 31), run: sample as u32 % 8 };
            let values = evaluate(&mut domain, &self.both, &self.boxes, &wanted).ok()?;
            let (own, other) = values.split_at(self.names.len());
            for (output, (own, other)) in own.iter().zip(other).enumerate() {
                let finite = own.iter().filter(|x| x.is_finite());
                let scale = finite.fold(0.0, |scale: f64, x| scale.max(x.abs()));
                let differs = |(a, b): (&f64, &f64)| {
                    (a - b).is_finite() && (a - b).abs() > 1e-6 * scale
                        || all && a.is_finite() && !b.is_finite()
                };
                if let Some(at) = own.iter().zip(other).position(differs) {
                    let (element, shape) =
                        (self.index(at, output), self.boxes[self.outputs[0][output]].clone());
                    let (output, expected, given) = (self.names[output].clone(), own[at], other[at]);
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
        let lens = &self.boxes[self.outputs[0][output]];
        steps(lens).iter().zip(lens).map(|(&step, &len)| element / step.max(1) % len).collect()
    }
}

/// Conditions of the candidate whose number none of the program's has.
fn missing(own: &Answer, other: &Answer) -> BTreeSet<(Condition, usize)> {
    let known: HashSet<(Condition, u64)> = own.conditions.iter().map(|&(kind, _, x)| (kind, x)).collect();
    let left = other.conditions.iter().filter(|(kind, _, x)| !known.contains(&(*kind, *x)));
    left.map(|&(kind, tensor, _)| (kind, tensor)).collect()
}
