//! The decision for a pair of programs.

use crate::alike::{Class, Walk};
use crate::degree::{Polynomial, fractions};
use crate::eval::{Domain, Stop, Strided, cost, each_index, evaluate, index_of};
use crate::exponents::{Atoms, Condition, Facts, WAYS, common, conditions, facts, hashed, is_product, needs};
use crate::field::Key;
use crate::program::{Program, is_present, lens};
use crate::real::Floats;
use crate::residue::{Residue, Residues, Round, canonical};
use crate::verdict::{Proof, Verdict, Witness};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// What a proof has to reach: the logarithm to base 2 of the chance of a wrong one.
pub const LOG2_BOUND: f64 = -80.0;
/// The most rounds that are made.
const MAX_ROUNDS: usize = 4;
/// The most elementary operations of one round.
const MAX_WORK: f64 = 4.5e9;
/// The most elements that an evaluation holds at once: 24 bytes each, and two evaluations run at once.
const MAX_ELEMENTS: f64 = 1.8e7;
/// Below that many operations the programs are also compared as they are, without a cut.
const UNCUT_WORK: f64 = 2e7;
/// How many inputs are tried in floating point, to show that programs differ.
const SAMPLES: u64 = 16;
/// The time for a decision that is given by default.
pub const MAX_TIME: Duration = Duration::from_secs(9);

/// A seed that the operating system draws.
pub fn random_seed() -> u128 {
    // The keys of the standard library's hash tables are from the operating system.
    let random = |number: u64| u128::from(RandomState::new().hash_one(number));
    random(0) << 64 | random(1)
}

/// Decides whether a candidate computes what a program computes. The seed decides primes, keys and inputs; the
/// candidate must not depend on it. What takes longer than the time that is given is not decided.
pub fn check(program: &Program, candidate: &Program, seed: u128, time: Duration) -> Verdict {
    let deadline = Instant::now() + time;
    let pair = Pair::new(program, candidate).and_then(|pair| pair.decide(Key::new(seed), deadline));
    pair.unwrap_or_else(Verdict::CannotSay)
}

/// Both programs, whole and cut.
struct Pair<'a> {
    whole: [&'a Program; 2],
    small: [Program; 2],
    walk: Walk,
    extents: BTreeMap<Class, usize>,
    /// Of each program, at inputs the number of the input.
    inputs: [Vec<u64>; 2],
    /// Names and tensors of outputs in both programs.
    outputs: Vec<(String, [usize; 2])>,
    /// Of each program, what must be defined; of the candidate what signs alone do not show.
    conditions: [BTreeSet<(Condition, usize)>; 2],
    facts: [Vec<Facts>; 2],
    /// Of both programs, by way.
    atoms: Vec<[Atoms; 2]>,
}

/// What was counted, at most, in any round.
#[derive(Default)]
struct Seen {
    /// Conditions of the program, and those of the candidate that must be among them.
    conditions: [usize; 2],
    assumes_left: bool,
}

/// What came of the rounds in which exponents were seen in one way.
enum Outcome {
    /// They are proved.
    Proved(Vec<(u64, u64)>, f64, Seen),
    /// An output and an element that differ.
    Differ(usize, usize),
}

/// What is asked of a program in a round.
#[derive(Clone, Copy)]
struct Ask<'s> {
    /// Whole or cut programs, with their atoms.
    programs: [&'s Program; 2],
    atoms: [&'s Atoms; 2],
    /// Tensors whose elements are wanted.
    wanted: [&'s BTreeSet<usize>; 2],
}

/// What a program answered.
struct Answer {
    /// The elements of tensors that were asked for.
    values: BTreeMap<usize, Vec<Residue>>,
    round: Round,
}

impl Answer {
    /// The tensors and numbers of one kind of conditions, but for minus infinities; divisors may be negative.
    fn numbers(&self, tensors: &BTreeSet<(Condition, usize)>, kind: Condition) -> Vec<(usize, u64)> {
        let number =
            |x: &Residue| if kind == Condition::Divisor { canonical(self.round.p, x.p) } else { x.p };
        let finite = |tensor: usize| self.values[&tensor].iter().filter(|x| x.weight != 0);
        let of_kind = tensors.iter().filter(|(condition, _)| *condition == kind).map(|(_, tensor)| *tensor);
        of_kind.flat_map(|tensor| finite(tensor).map(move |x| (tensor, number(x)))).collect()
    }
}

impl<'a> Pair<'a> {
    fn new(program: &'a Program, candidate: &'a Program) -> Result<Pair<'a>, String> {
        let whole = [program, candidate];
        let signatures = whole.map(|program| -> BTreeMap<&str, (bool, &[usize])> {
            program.inputs().map(|(_, name, is_mask, shape)| (name, (is_mask, shape))).collect()
        });
        if signatures[0] != signatures[1] {
            return Err("the programs have other inputs, by name, kind or shape".into());
        }
        let mut outputs = Vec::new();
        for (name, id) in &program.outputs {
            let shape = |program: &Program, id: usize| lens(&program.nodes[id].shape);
            let other = candidate.outputs.iter().find(|(other, _)| other == name).map(|(_, id)| *id);
            let other = other.filter(|&other| shape(candidate, other) == shape(program, *id));
            let other =
                other.ok_or_else(|| format!("the candidate has no output {name} of the program's shape"))?;
            outputs.push((name.clone(), [*id, other]));
        }
        if candidate.outputs.len() != outputs.len() {
            return Err("the candidate has further outputs".into());
        }
        let mut walk = Walk::default();
        walk.program(program, |_| true);
        walk.program(candidate, |_| true);
        walk.match_outputs(&outputs.iter().map(|(_, [a, b])| (*a, *b)).collect::<Vec<_>>());
        walk.finish();
        let extents = walk.extents(whole);
        let small = [walk.small(0, program, &extents)?, walk.small(1, candidate, &extents)?];
        let mut work = 0.0;
        for program in &small {
            let (once, held) = cost(program);
            work += once;
            if held > MAX_ELEMENTS {
                return Err(format!(
                    "a test holds {held:.1e} elements at once; at most {MAX_ELEMENTS:.1e} are"
                ));
            }
        }
        if work > MAX_WORK {
            return Err(format!("a test takes {work:.1e} operations; at most {MAX_WORK:.1e} are made"));
        }
        let inputs = whole.map(|program| {
            let mut numbers = vec![0; program.nodes.len()];
            let number =
                |name: &str| signatures[0].keys().position(|known| *known == name).unwrap_or(0) as u64;
            program.inputs().for_each(|(at, name, ..)| numbers[at] = number(name));
            numbers
        });
        let facts = [facts(&small[0])?, facts(&small[1])?];
        let way = |way| Some([Atoms::new(&small[0], way)?, Atoms::new(&small[1], way)?]);
        let mut atoms: Vec<[Atoms; 2]> = (0..WAYS).filter_map(way).collect();
        atoms.dedup_by(|a, b| (0..2).all(|at| a[at].tensors == b[at].tensors));
        Ok(Pair {
            conditions: [conditions(&small[0]), unsure(&small[1], &facts[1])],
            facts,
            atoms,
            whole,
            small,
            walk,
            extents,
            inputs,
            outputs,
        })
    }

    fn decide(&self, key: Key, deadline: Instant) -> Result<Verdict, String> {
        let mut differ = None;
        let mut problem = "exponents are sums of too many values".to_owned();
        for (way, atoms) in self.atoms.iter().enumerate() {
            match self.prove(atoms, key.derived(way as u64), deadline) {
                Ok(Outcome::Proved(rounds, log2_bound, seen)) => {
                    return self.proved(atoms, (rounds, log2_bound, seen), key, deadline);
                }
                Ok(Outcome::Differ(output, element)) => differ = differ.or(Some((output, element))),
                Err(reason) => problem = reason,
            }
        }
        differ.map_or(Err(problem), |at| Ok(self.differ(self.small.each_ref(), key, deadline, at)))
    }

    /// Rounds, until the bound is reached.
    fn prove(&self, atoms: &[Atoms; 2], key: Key, deadline: Instant) -> Result<Outcome, String> {
        let (mut rounds, mut seen, mut trial) = (Vec::new(), Seen::default(), 0);
        while rounds.len() < MAX_ROUNDS {
            let round = Round::new(key.derived(trial), deadline);
            trial += 1;
            match self.round(atoms, &round, &mut seen) {
                Err(Stop::Undefined(_)) if trial < 4 * MAX_ROUNDS as u64 => continue,
                Err(Stop::Undefined(reason)) => {
                    return Err(format!("no inputs for which the program is defined: {reason}"));
                }
                Err(Stop::Unsupported(reason)) => return Err(reason),
                Ok(Some((output, element))) => return Ok(Outcome::Differ(output, element)),
                Ok(None) => rounds.push((round.p.prime, round.q.prime)),
            }
            let log2_bound = self.bound(atoms, &seen, rounds.len()).ok_or("coefficients are too large")?;
            if log2_bound <= LOG2_BOUND {
                return Ok(Outcome::Proved(rounds, log2_bound, seen));
            }
        }
        Err(format!("a chance of 2^{LOG2_BOUND} is not reached in {MAX_ROUNDS} rounds"))
    }

    /// The answer where all rounds agree, if what is compared besides does not say otherwise.
    fn proved(
        &self,
        atoms: &[Atoms; 2],
        (rounds, log2_bound, seen): (Vec<(u64, u64)>, f64, Seen),
        key: Key,
        deadline: Instant,
    ) -> Result<Verdict, String> {
        if let Some(verdict) = self.compare_whole(atoms, key, deadline)? {
            return Ok(verdict);
        }
        if seen.assumes_left && self.floats_differ(self.small.each_ref(), key, deadline, true).is_some() {
            return Err("floating-point numbers differ where masks leave nothing of a maximum".into());
        }
        let premise = "where masks leave nothing of which a maximum is taken, floating-point numbers agree, which is no proof";
        Ok(Verdict::Proved(Proof {
            // A seed has 128 bits: what is chosen by it has no smaller chance.
            log2_bound: log2_bound.max(-120.0),
            rounds,
            cut: self.extents.iter().map(|(&class, &now)| (self.walk.extent(class), now)).collect(),
            exponents: atoms[0].tensors.iter().map(|&tensor| self.elements(0, tensor)).sum::<f64>() as usize,
            premise: seen.assumes_left.then_some(premise),
        }))
    }

    /// What a program answers in a round.
    fn ask(&self, at: usize, round: &Round, ask: Ask) -> Result<Answer, Stop> {
        let (program, mut round) = (ask.programs[at], round.clone());
        let needs = needs(program, ask.atoms[at], ask.wanted[at]);
        let wanted: Vec<bool> = needs.iter().map(|needs| needs.number || needs.exponent).collect();
        let mut domain = Residues::new(&mut round, &needs, &self.inputs[at]);
        let tensors = evaluate(&mut domain, program, &wanted)?;
        let mut of = |&id: &usize| (id, elements(&mut domain, &tensors, program, id));
        let values = ask.wanted[at].iter().map(&mut of).collect();
        Ok(Answer { values, round })
    }

    /// The output and the element that differ first.
    fn difference(&self, [own, other]: [&Answer; 2]) -> Option<(usize, usize)> {
        let differs = |(a, b): (&Residue, &Residue)| (a.p, a.weight) != (b.p, b.weight);
        let of = |ids: &[usize; 2]| own.values[&ids[0]].iter().zip(&other.values[&ids[1]]).position(differs);
        self.outputs.iter().enumerate().find_map(|(output, (_, ids))| Some((output, of(ids)?)))
    }

    /// The tensors of outputs.
    fn outputs(&self, at: usize) -> impl Iterator<Item = usize> {
        self.outputs.iter().map(move |(_, ids)| ids[at])
    }

    /// What both programs answer: the candidate has to have a value where the program has.
    fn ask_both(&self, round: &Round, ask: Ask) -> Result<[Answer; 2], Stop> {
        let [own, other] = both(|at| self.ask(at, round, ask));
        match (own?, other) {
            (own, Ok(other)) => Ok([own, other]),
            (_, Err(Stop::Undefined(reason))) => {
                Err(Stop::Unsupported(format!("the candidate is not defined where the program is: {reason}")))
            }
            (_, Err(stop)) => Err(stop),
        }
    }

    /// One test: where the programs differ, if they do.
    fn round(
        &self,
        atoms: &[Atoms; 2],
        round: &Round,
        seen: &mut Seen,
    ) -> Result<Option<(usize, usize)>, Stop> {
        let wanted: [BTreeSet<usize>; 2] = [0, 1].map(|at| {
            self.conditions[at].iter().map(|(_, tensor)| *tensor).chain(self.outputs(at)).collect()
        });
        let (programs, atoms) = (self.small.each_ref(), atoms.each_ref());
        let ask = Ask { programs, atoms, wanted: wanted.each_ref() };
        let [own, other] = self.ask_both(round, ask)?;
        let is_infinite = |(at, answer): (usize, &Answer)| {
            self.outputs(at).any(|id| answer.values[&id].iter().any(|x| x.weight == 0))
        };
        if [&own, &other].into_iter().enumerate().any(is_infinite) {
            return Err(Stop::Unsupported("an output may be minus infinity".into()));
        }
        if let Some(difference) = self.difference([&own, &other]) {
            return Ok(Some(difference));
        }
        self.check_defined(round, ask, [&own, &other], seen)?;
        seen.assumes_left |= own.round.assumes_left || other.round.assumes_left;
        Ok(None)
    }

    /// That the candidate is defined where the program is: what signs do not show is a number of the program that has to be
    /// nonzero and the like, or a sum of masked exponentials that has no term where one of the program's has none.
    fn check_defined(
        &self,
        round: &Round,
        ask: Ask,
        answers: [&Answer; 2],
        seen: &mut Seen,
    ) -> Result<(), Stop> {
        let mut left: BTreeSet<usize> = BTreeSet::new();
        for kind in [Condition::Divisor, Condition::Radicand] {
            let [known, given] = [0, 1].map(|at| answers[at].numbers(&self.conditions[at], kind));
            let known: HashSet<u64> = known.into_iter().map(|(_, x)| x).collect();
            seen.conditions = [seen.conditions[0].max(known.len()), seen.conditions[1].max(given.len())];
            for (tensor, _) in given.into_iter().filter(|(_, x)| !known.contains(x)) {
                if kind != Condition::Divisor || !self.facts[1][tensor].is_masked_sum {
                    return Err(Stop::Unsupported(format!(
                        "{kind:?} {tensor} of the candidate is not shown to be defined where the program is"
                    )));
                }
                left.insert(tensor);
            }
        }
        if left.is_empty() {
            return Ok(());
        }
        // With powers of one, what is left of sums is which terms are masked.
        let mut weights = round.clone();
        weights.base = round.p.one;
        let divisors = self.conditions[0]
            .iter()
            .filter(|(kind, tensor)| *kind == Condition::Divisor && self.facts[0][*tensor].is_masked_sum);
        let asked: [BTreeSet<usize>; 2] = [divisors.map(|(_, tensor)| *tensor).collect(), left];
        let finite = |answer: Answer| -> HashSet<u64> {
            answer.values.into_values().flatten().filter(|x| x.weight != 0).map(|x| x.p).collect()
        };
        let ask = Ask { wanted: asked.each_ref(), ..ask };
        let [known, given] = self.ask_both(&weights, ask)?.map(finite);
        if given.is_subset(&known) {
            Ok(())
        } else {
            Err(Stop::Unsupported("a sum of masked exponentials in the candidate may have no terms where the program is defined".into()))
        }
    }

    /// How many elements of a tensor an element of an output depends on, at most.
    fn elements(&self, at: usize, tensor: usize) -> f64 {
        let extents = self.small[at].nodes[tensor].shape.iter().zip(self.walk.classes(at, tensor));
        extents.filter(|(_, class)| class.is_none()).map(|(extent, _)| extent.len as f64).product()
    }

    /// The logarithm to base 2 of the chance that programs that differ have passed so many rounds.
    fn bound(&self, atoms: &[Atoms; 2], seen: &Seen, rounds: usize) -> Option<f64> {
        let denominator = common(atoms[0].denominator, atoms[1].denominator)? as f64;
        let degrees = [0, 1].map(|at| {
            let sizes: Vec<f64> = atoms[at].sizes.iter().map(|size| size * denominator).collect();
            fractions(&self.small[at], &sizes)
        });
        let mut difference = Polynomial::default();
        for (_, ids) in &self.outputs {
            difference = difference.max(degrees[0][ids[0]].difference(degrees[1][ids[1]]));
        }
        // Differences of two arguments of hashes for one element of an output, of two divisors.
        let [mut argument, mut condition] = [Polynomial::default(); 2];
        let mut arguments = 0.0;
        for (at, atoms) in atoms.iter().enumerate() {
            let widen = |all: &mut Polynomial, tensor: usize| {
                *all = all.max(degrees[at][tensor].difference(degrees[at][tensor]))
            };
            self.conditions[at].iter().for_each(|&(_, tensor)| widen(&mut condition, tensor));
            // Weights of masked numbers are compared as arguments of hashes are.
            let masked = (0..degrees[at].len()).filter(|&tensor| degrees[at][tensor].weight > 0.0);
            for tensor in hashed(&self.small[at], atoms).into_iter().chain(masked) {
                widen(&mut argument, tensor);
                // A set of which the largest is taken is hashed, too.
                arguments += 2.0 * self.elements(at, tensor);
            }
        }
        let vanishes = |height: f64| height / 61.0 * f64::powi(2.0, -50);
        let chance = |count: f64, polynomial: Polynomial| {
            count * ((1.0 + polynomial.degree()) * RESIDUE + vanishes(polynomial.height))
        };
        let single = chance(1.0, difference) + chance(arguments * arguments, argument);
        // Inputs are drawn again where a divisor is zero, so that chances are relative to that of none.
        let defined = 1.0 - chance(MAX_ELEMENTS, condition);
        if defined < 0.5 {
            return Some(0.0);
        }
        let among = |count: usize, chance: f64| {
            (count as f64).log2().max(0.0) + rounds as f64 * (chance / defined).log2()
        };
        let of_conditions = among(seen.conditions[1], chance(seen.conditions[0] as f64, condition));
        Some((WAYS as f64 * (among(1, single).exp2() + of_conditions.exp2())).log2())
    }

    /// Compares the programs as they are, where that is cheap: a guard against a mistake in what is cut.
    fn compare_whole(
        &self,
        atoms: &[Atoms; 2],
        key: Key,
        deadline: Instant,
    ) -> Result<Option<Verdict>, String> {
        let costs = self.whole.map(cost);
        if costs[0].0 + costs[1].0 > UNCUT_WORK || costs[0].1.max(costs[1].1) > MAX_ELEMENTS {
            return Ok(None);
        }
        let round = Round::new(key.derived(u64::MAX), deadline);
        let wanted: [BTreeSet<usize>; 2] = [0, 1].map(|at| self.outputs(at).collect());
        let ask = Ask { programs: self.whole, atoms: atoms.each_ref(), wanted: wanted.each_ref() };
        match self.ask_both(&round, ask) {
            Ok(answers) => {
                let difference = self.difference(answers.each_ref());
                Ok(difference.map(|at| self.differ(self.whole, key, deadline, at)))
            }
            Err(Stop::Undefined(_)) => Ok(None),
            Err(Stop::Unsupported(reason)) => Err(format!("at full extents: {reason}")),
        }
    }

    /// What is said where residues differ: that is a refutation only if floating-point numbers differ too, since
    /// functions without algebraic form were hashes.
    fn differ(
        &self,
        programs: [&Program; 2],
        key: Key,
        deadline: Instant,
        (output, element): (usize, usize),
    ) -> Verdict {
        if let Some(witness) = self.floats_differ(programs, key, deadline, false) {
            return Verdict::Refuted(witness);
        }
        let (name, ids) = &self.outputs[output];
        let element = index_of(element, &lens(&programs[0].nodes[ids[0]].shape));
        Verdict::CannotSay(format!(
            "output {name} differs at element {element:?} where roots, maxima and the like are functions of any kind; \
             floating-point numbers agree"
        ))
    }

    /// Where floating-point numbers differ. Those of the candidate that are not finite may have overflowed; they count if `all`.
    fn floats_differ(
        &self,
        programs: [&Program; 2],
        key: Key,
        deadline: Instant,
        all: bool,
    ) -> Option<Witness> {
        for sample in 0..SAMPLES {
            let key = key.derived(sample << 32 | 1 << 31);
            let outputs = both(|at| {
                let mut domain = Floats { key, inputs: &self.inputs[at], run: sample as u32 % 8 };
                let tensors =
                    evaluate(&mut domain, programs[at], &vec![true; programs[at].nodes.len()]).ok()?;
                let of =
                    |(_, ids): &(String, [usize; 2])| elements(&mut domain, &tensors, programs[at], ids[at]);
                Some(self.outputs.iter().map(of).collect::<Vec<Vec<f64>>>())
            });
            let [Some(expected), Some(given)] = outputs else { break };
            for ((name, ids), (expected, given)) in self.outputs.iter().zip(expected.iter().zip(&given)) {
                let scale =
                    expected.iter().filter(|x| x.is_finite()).fold(0.0, |scale: f64, x| scale.max(x.abs()));
                let differs = |(a, b): (&f64, &f64)| {
                    (a - b).is_finite() && (a - b).abs() > 1e-6 * scale
                        || all && a.is_finite() && !b.is_finite()
                };
                if let Some(at) = expected.iter().zip(given).position(differs) {
                    let shape = lens(&programs[0].nodes[ids[0]].shape);
                    let (output, element) = (name.clone(), index_of(at, &shape));
                    return Some(Witness {
                        output,
                        element,
                        shape,
                        expected: expected[at],
                        given: given[at],
                    });
                }
            }
            if Instant::now() > deadline {
                break;
            }
        }
        None
    }
}

/// The chance of one residue, made of 64 random bits: at most 1.25 divided by `q`, and 1.5 by `p`.
const RESIDUE: f64 = 1.25 / (1u64 << 61) as f64;

/// Elements of a tensor that are present, in order.
fn elements<D: Domain>(
    domain: &mut D,
    tensors: &[Option<Strided<D::Value>>],
    program: &Program,
    id: usize,
) -> Vec<D::Value> {
    let (shape, mut elements) = (&program.nodes[id].shape, Vec::new());
    if let Some(view) = &tensors[id] {
        each_index(&lens(shape), |index| {
            if is_present(shape, index) {
                elements.push(view.get(domain, index));
            }
        });
    }
    elements
}

/// What must be among the program's divisors or radicands, so that the candidate is defined
/// wherever the program is: what signs alone do not show.
fn unsure(program: &Program, facts: &[Facts]) -> BTreeSet<(Condition, usize)> {
    let is_sure = |&(condition, tensor): &(Condition, usize)| match condition {
        // Factors are conditions of their own.
        Condition::Divisor => facts[tensor].is_positive || is_product(&program.nodes[tensor].op),
        Condition::Radicand => facts[tensor].is_nonnegative && facts[tensor].is_finite,
    };
    conditions(program).into_iter().filter(|condition| !is_sure(condition)).collect()
}

/// A function of both programs, at once.
fn both<T: Send>(f: impl Fn(usize) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| f(1));
        let own = f(0);
        [own, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
    })
}
