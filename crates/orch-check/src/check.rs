//! The decision for a pair of programs.

use crate::degree::{Bounds, NUMBER, bounds};
use crate::eval::{Domain, cost, evaluate};
use crate::exponents::{Condition, MASKED_SUM, WAYS, atoms, conditions, facts, hashed};
use crate::field::Key;
use crate::program::{Extent, Program, Result, computed, ensure, lens, steps};
use crate::real::Floats;
use crate::residue::{Residue, Residues};
use crate::verdict::{Proof, Verdict, Witness};
use itertools::Itertools;
use num_modular::Reducer;
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
    let pair = |are_masks_given| Pair::new([program, candidate], are_masks_given, deadline);
    // Rows of a mask that is given are alike, so that large programs are decided.
    let is_large = !pair(false).is_ok_and(|pair| pair.cut.is_empty());
    let mut reason = String::new();
    for are_masks_given in [is_large, !is_large] {
        match pair(are_masks_given).and_then(|pair| pair.decide(key)) {
            Ok(verdict) if !are_masks_given || matches!(verdict, Verdict::Proved(_)) => return verdict,
            Err(problem) if !are_masks_given => reason = problem,
            _ => {}
        }
    }
    Verdict::CannotSay(reason)
}

/// A program and a candidate.
struct Pair {
    /// The tensors of both.
    both: Program,
    /// Of each output its name, and the tensors of program and candidate.
    outputs: Vec<(String, [usize; 2])>,
    /// Extents of which less is computed, and how much.
    cut: Vec<(usize, usize)>,
    /// What must be defined; of the candidate what signs alone do not show.
    conditions: BTreeSet<Condition>,
    /// What is computed: each output of the program and the candidate's, one after the other, and what conditions are about.
    wanted: Vec<usize>,
    facts: Vec<u8>,
    deadline: Instant,
}

impl Pair {
    fn new(programs: [&Program; 2], are_masks_given: bool, deadline: Instant) -> Result<Pair> {
        let (mut both, mut inputs) = (Program::default(), BTreeMap::new());
        let own = both.append(programs[0], &mut inputs, are_masks_given);
        let (first, count) = (both.nodes.len(), inputs.len());
        let other = both.append(programs[1], &mut inputs, are_masks_given);
        ensure!(inputs.len() == count, "the programs have other inputs, by name, kind or shape");
        let mut outputs = Vec::new();
        for (name, own) in own {
            let other = other.get(&name).copied();
            let other = other.filter(|&other| lens(both.shape(other)) == lens(both.shape(own)));
            let other = other.ok_or(format!("the candidate has no output {name} of the program's shape"))?;
            let shape = both.shape(other).to_vec();
            both.join(own, &shape);
            outputs.push((name, [own, other]));
        }
        ensure!(other.len() == outputs.len(), "the candidate has further outputs");
        let facts = facts(&both)?;
        let conditions = conditions(&both, &facts, first);
        let wanted = outputs.iter().flat_map(|(_, both)| *both);
        let wanted: Vec<usize> = wanted.chain(conditions.iter().map(|own| own.tensor)).collect();
        let Program { nodes, indices, .. } = &mut both;
        nodes.iter().for_each(|node| indices.refuse_diagonals(&node.shape));
        let extents = nodes.iter_mut().flat_map(|node| &mut node.shape);
        extents.for_each(|extent| extent.index = extent.index.filter(|_| indices.is_alike(extent.index)));
        let ([mut work, mut held], mut cut) = (cost(&both, &wanted), Vec::new());
        if work > WHOLE_WORK || held > MAX_ELEMENTS {
            cut = both.indices.cut();
            both.nodes.iter_mut().flat_map(|node| &mut node.shape).for_each(Extent::cut);
            [work, held] = cost(&both, &wanted);
        }
        ensure!(held <= MAX_ELEMENTS, "a test holds {held:.1e} elements; at most {MAX_ELEMENTS:.1e} are");
        ensure!(work <= MAX_WORK, "a test takes {work:.1e} operations; at most {MAX_WORK:.1e} are made");
        Ok(Pair { both, outputs, cut, conditions, wanted, facts, deadline })
    }

    fn decide(&self, key: Key) -> Result<Verdict> {
        let (mut problem, mut differs) = (None, false);
        let mut ways: Vec<_> = (0..WAYS).map(|way| (way, atoms(&self.both, way))).collect();
        ways.dedup_by(|a, b| a.1 == b.1);
        for (way, is_atom) in ways {
            match self.prove(way, &is_atom, key.derived(way as u64)) {
                Ok(Some(proof)) => {
                    let differs = proof.premise.is_some() && self.floats_differ(key, true).is_some();
                    ensure!(!differs, "floating-point numbers differ where masks leave nothing of a maximum");
                    return Ok(Verdict::Proved(proof));
                }
                Ok(None) => differs = true,
                Err(reason) => problem = Some(reason),
            }
        }
        // Functions without algebraic form were hashes, so that only floating-point numbers refute.
        let witness = if differs { self.floats_differ(key, false) } else { None };
        let agree = "the programs differ where roots, maxima and the like are any functions, but not in floating point";
        witness.map(Verdict::Refuted).ok_or_else(|| problem.unwrap_or_else(|| agree.into()))
    }

    /// Rounds, as many as the bound takes: the proof, or none if the programs differ.
    fn prove(&self, way: usize, is_atom: &[bool], key: Key) -> Result<Option<Proof>> {
        let bounds = bounds(&self.both, way);
        let log2_bound = |rounds: &u32| self.log2_bound(is_atom, &bounds, *rounds);
        let needed = (1..=MAX_ROUNDS).find(|rounds| log2_bound(rounds) <= LOG2_BOUND);
        let (mut rounds, mut assumes_left) = (Vec::new(), false);
        for number in 0..needed.unwrap_or(1) {
            let mut round = Residues::new(key.derived(number.into()), is_atom.to_vec(), self.deadline);
            if !self.round(&mut round)? {
                return Ok(None);
            }
            rounds.push((round.p.modulus(), round.q.modulus()));
            assumes_left |= round.assumes_left;
        }
        let needed =
            needed.ok_or(format!("a chance of 2^{LOG2_BOUND} is not reached in {MAX_ROUNDS} rounds"))?;
        let premise = "where masks leave nothing of which a maximum is taken, floating-point numbers agree, which is no proof";
        Ok(Some(Proof {
            // A seed has 128 bits: what is chosen by it has no smaller chance.
            log2_bound: log2_bound(&needed).max(-120.0),
            rounds,
            cut: self.cut.clone(),
            premise: assumes_left.then_some(premise),
        }))
    }

    /// The elements of outputs, the program's and the candidate's in turn, and those of what conditions are about.
    fn values<D: Domain>(&self, domain: &mut D) -> Result<[Vec<Vec<D::Value>>; 2]> {
        let mut outputs = evaluate(domain, &self.both, &self.wanted)?;
        let conditions = outputs.split_off(2 * self.outputs.len());
        Ok([outputs, conditions])
    }

    /// One test: whether the programs agree.
    fn round(&self, round: &mut Residues) -> Result<bool> {
        // With powers of one.
        let mut weights = round.clone();
        weights.base = round.one;
        let [outputs, values] = self.values(round)?;
        ensure!(outputs.iter().flatten().all(|x| x.weight != 0), "an output may be minus infinity");
        let mut pairs = outputs.iter().tuples().flat_map(|(own, other)| own.iter().zip(other));
        if pairs.any(|(a, b)| (a.p, a.weight) != (b.p, b.weight)) {
            return Ok(false);
        }
        // Lemma 2: what signs do not show is a number of the program that has to be nonzero and the like,
        let left = self.missing(round, &values, |_| true);
        let is_sum =
            |condition: &Condition| !condition.is_root && self.facts[condition.tensor] & MASKED_SUM != 0;
        ensure!(left.iter().all(is_sum), "a divisor or radicand of the candidate is not shown to be one");
        // or a sum of masked exponentials that has a term where one of the program's has: what is left of both with powers of one.
        if !left.is_empty() {
            let [_, values] = self.values(&mut weights)?;
            let counts = |condition: &Condition| {
                if condition.is_candidates { left.contains(condition) } else { is_sum(condition) }
            };
            let is_left = self.missing(&weights, &values, counts).is_empty();
            ensure!(is_left, "a sum of the candidate may be masked where the program's are not");
        }
        Ok(true)
    }

    /// Conditions of the candidate with a number that none of the program's has, among those that count.
    fn missing(
        &self,
        round: &Residues,
        values: &[Vec<Residue>],
        counts: impl Fn(&Condition) -> bool,
    ) -> BTreeSet<Condition> {
        let (mut known, mut missing) = (HashSet::new(), BTreeSet::new());
        let all = self.conditions.iter().zip(values);
        for (condition, values) in all.filter(|(condition, _)| counts(condition)) {
            for x in values.iter().filter(|x| x.weight != 0) {
                // A divisor or its negative, whichever is smaller.
                let number = if condition.is_root { x.p } else { x.p.min(round.p.neg(x.p)) };
                if !condition.is_candidates {
                    known.insert((condition.is_root, number));
                } else if !known.contains(&(condition.is_root, number)) {
                    missing.insert(*condition);
                }
            }
        }
        missing
    }

    /// How many elements of a tensor an element of an output depends on, at most.
    fn elements(&self, tensor: usize) -> f64 {
        let extents = self.both.shape(tensor).iter().filter(|extent| extent.index.is_none());
        extents.map(|extent| extent.len as f64).product()
    }

    /// The logarithm to base 2 of the chance that programs that differ pass so many rounds.
    fn log2_bound(&self, is_atom: &[bool], (bounds, denominator): &(Vec<Bounds>, f64), rounds: u32) -> f64 {
        let chance = |count: f64, [numbers, exponentials, height]: [f64; 3]| {
            // The root of what powers are of may be 0, 1 or -1.
            let degree = 4.0 + numbers + exponentials * denominator;
            count * (degree * RESIDUE + height / 61.0 * f64::powi(2.0, -50))
        };
        // That two of many tensors' elements agree by accident.
        let pair = |count: f64, tensors: &[usize]| {
            let all = tensors.iter().fold(NUMBER, |all, &tensor| all.max(bounds[tensor]));
            chance(count, all.difference(all))
        };
        let outputs = self.outputs.iter().map(|(_, [own, other])| bounds[*own].difference(bounds[*other]));
        let differences = outputs.map(|difference| chance(1.0, difference));
        // Arguments of hashes for one element of an output, and weights of masked numbers, which are compared as these are.
        let masked = (0..bounds.len()).filter(|&tensor| bounds[tensor].weight > 0.0);
        let arguments: Vec<usize> = hashed(&self.both, is_atom).into_iter().chain(masked).collect();
        // A set of which the largest is taken is hashed, too.
        let count = arguments.iter().map(|&tensor| 2.0 * self.elements(tensor)).sum::<f64>();
        let single = differences.sum::<f64>() + pair(count * count, &arguments);
        let (mut counts, mut conditions) = ([0.0; 2], Vec::new());
        for &Condition { is_candidates, tensor, .. } in &self.conditions {
            let lens = self.both.shape(tensor).iter().map(|extent| extent.computed as f64);
            counts[usize::from(is_candidates)] += lens.product::<f64>();
            conditions.push(tensor);
        }
        // A divisor is compared with one of the program and its negative, and once more with powers of one.
        let confused = counts[1] * pair(4.0 * counts[0], &conditions).powi(rounds as i32);
        (WAYS as f64 * (single.powi(rounds as i32) + confused)).log2()
    }

    /// Where floating-point numbers differ. Those of the candidate that are not finite may have overflowed; they count if `all`.
    fn floats_differ(&self, key: Key, all: bool) -> Option<Witness> {
        for sample in 0..SAMPLES {
            let mut domain = Floats { key: key.derived(sample << 32 | 1 << 31), run: sample as u32 % 8 };
            let [values, _] = self.values(&mut domain).ok().filter(|_| Instant::now() <= self.deadline)?;
            for ((name, [tensor, _]), (own, other)) in self.outputs.iter().zip(values.iter().tuples()) {
                let finite = own.iter().filter(|x| x.is_finite());
                let scale = finite.fold(0.0, |scale: f64, x| scale.max(x.abs()));
                let differs = |(a, b): (&f64, &f64)| {
                    (a - b).is_finite() && (a - b).abs() > 1e-6 * scale
                        || all && a.is_finite() && !b.is_finite()
                };
                if let Some(at) = own.iter().zip(other).position(differs) {
                    let shape = computed(self.both.shape(*tensor));
                    let indices = steps(&shape).into_iter().zip(&shape);
                    return Some(Witness {
                        output: name.clone(),
                        element: indices.map(|(step, len)| at / step.max(1) % len).collect(),
                        shape,
                        expected: own[at],
                        given: other[at],
                    });
                }
            }
        }
        None
    }
}
