//! The decision for a pair of programs.

use crate::alike::{Class, Walk};
use crate::degree::{Polynomial, fractions};
use crate::eval::{Domain, Stop, Strided, cost, each_index, evaluate, index_of};
use crate::exponents::{Atoms, Condition, Facts, WAYS, common, conditions, facts, hashed, is_product, needs};
use crate::field::Key;
use crate::independent::{Sites, Values};
use crate::program::{Program, lens};
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
    /// Of each program, by way.
    atoms: [Vec<Option<Atoms>>; 2],
}

/// What was counted, at most, in any round.
#[derive(Default)]
struct Seen {
    rounds: usize,
    /// Atoms of the program and of the candidate, by way.
    atoms: [[usize; 2]; WAYS],
    /// Conditions of the program, and those of the candidate that must be among them.
    conditions: [usize; 2],
    assumes_left: bool,
}

/// What is asked of a program in a round: the exponents of some tensors, the numbers of others.
#[derive(Clone, Copy)]
struct Ask<'s> {
    /// Whole or cut programs.
    programs: [&'s Program; 2],
    exponents: &'s BTreeSet<usize>,
    numbers: &'s BTreeSet<usize>,
    /// Outputs, too.
    outputs: bool,
    /// A tensor that has other exponents than it had.
    changed: Option<usize>,
}

/// What a program answered.
struct Answer {
    /// The elements of each output.
    outputs: Vec<Vec<Residue>>,
    /// Of tensors that were asked for the elements that one element of an output depends on, but for minus infinities.
    values: BTreeMap<usize, Vec<Residue>>,
    round: Round,
}

impl Answer {
    fn exponents(&self, tensors: &BTreeSet<usize>) -> Values {
        let of = |tensor: &usize| Some((*tensor, self.values.get(tensor)?.iter().map(|x| x.q).collect()));
        tensors.iter().filter_map(of).collect()
    }

    /// The values of atoms or their negatives, and zero.
    fn atoms(&self, atoms: Option<&Atoms>) -> HashSet<u64> {
        let values = atoms
            .iter()
            .flat_map(|atoms| &atoms.tensors)
            .filter_map(|tensor| self.values.get(tensor))
            .flatten();
        values.map(|x| canonical(self.round.q, x.q)).chain([0]).collect()
    }

    /// The numbers of one kind of conditions; divisors may be negative.
    fn numbers(&self, tensors: &BTreeSet<(Condition, usize)>, kind: Condition) -> Vec<(usize, u64)> {
        let number =
            |x: &Residue| if kind == Condition::Divisor { canonical(self.round.p, x.p) } else { x.p };
        let of =
            |tensor: usize| self.values.get(&tensor).into_iter().flatten().map(move |x| (tensor, number(x)));
        tensors
            .iter()
            .filter(|(condition, _)| *condition == kind)
            .flat_map(|&(_, tensor)| of(tensor))
            .collect()
    }

    /// The output and the element that differ first.
    fn difference(&self, other: &Answer) -> Option<(usize, usize)> {
        let differs = |(a, b): (&Residue, &Residue)| (a.p, a.weight) != (b.p, b.weight);
        let of = |(a, b): (&Vec<Residue>, &Vec<Residue>)| a.iter().zip(b).position(differs);
        self.outputs
            .iter()
            .zip(&other.outputs)
            .enumerate()
            .find_map(|(output, pair)| Some((output, of(pair)?)))
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
        Ok(Pair {
            conditions: [conditions(&small[0]), unsure(&small[1], &facts[1])],
            facts,
            atoms: [0, 1].map(|at| (0..WAYS).map(|way| Atoms::new(&small[at], way)).collect()),
            whole,
            small,
            walk,
            extents,
            inputs,
            outputs,
        })
    }

    fn decide(&self, key: Key, deadline: Instant) -> Result<Verdict, String> {
        let mut ways: Vec<Result<usize, String>> = vec![Ok(0); WAYS];
        let (mut rounds, mut seen, mut trial) = (Vec::new(), Seen::default(), 0);
        while rounds.len() < MAX_ROUNDS {
            let round = Round::new(key.derived(trial), deadline);
            trial += 1;
            match self.round(&round, &mut ways, &mut seen) {
                Err(Stop::Undefined(_)) if trial < 4 * MAX_ROUNDS as u64 => continue,
                Err(Stop::Undefined(reason)) => {
                    return Err(format!("no inputs for which the program is defined: {reason}"));
                }
                Err(Stop::Unsupported(reason)) => return Err(reason),
                Ok(Some(element)) => return Ok(self.differ(self.small.each_ref(), key, deadline, element)),
                Ok(None) => {}
            }
            rounds.push((round.p.prime, round.q.prime));
            let best = (0..WAYS).filter_map(|way| self.bound(way, &ways, &seen, rounds.len()));
            let Some((log2_bound, exponents)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) else {
                let reasons: Vec<String> = ways.into_iter().filter_map(Result::err).collect();
                return Err(format!("exponents are not shown to be independent: {}", reasons.join("; ")));
            };
            if log2_bound <= LOG2_BOUND {
                if let Some(verdict) = self.compare_whole(key, deadline)? {
                    return Ok(verdict);
                }
                if seen.assumes_left
                    && self.floats_differ(self.small.each_ref(), key, deadline, true).is_some()
                {
                    return Err("floating-point numbers differ where masks leave nothing of a maximum".into());
                }
                let cut = self.extents.iter().map(|(&class, &now)| (self.walk.extent(class), now)).collect();
                // A seed has 128 bits: what is chosen by it has no smaller chance.
                let log2_bound = log2_bound.max(-120.0);
                return Ok(Verdict::Proved(Proof {
                    log2_bound,
                    rounds,
                    cut,
                    exponents,
                    premise: seen.assumes_left.then_some(
                        "where masks leave nothing of which a maximum is taken, floating-point numbers agree, which is no proof",
                    ),
                }));
            }
        }
        Err(format!("a chance of 2^{LOG2_BOUND} is not reached in {MAX_ROUNDS} rounds"))
    }

    /// What a program answers in a round.
    fn ask(&self, at: usize, round: &Round, ask: Ask) -> Result<Answer, Stop> {
        let (program, mut round) = (ask.programs[at], round.clone());
        let outputs: Vec<usize> =
            self.outputs.iter().filter(|_| ask.outputs).map(|(_, ids)| ids[at]).collect();
        let needs = needs(program, ask.exponents, ask.numbers.iter().chain(&outputs));
        let wanted: Vec<bool> = needs.iter().map(|needs| needs.p || needs.q).collect();
        let mut domain = Residues::new(&mut round, &needs, &self.inputs[at], ask.changed);
        let tensors = evaluate(&mut domain, program, &wanted)?;
        let outputs = outputs.iter().map(|&id| elements(&mut domain, &tensors, program, id)).collect();
        let mut values = BTreeMap::new();
        for &id in ask.exponents.union(ask.numbers) {
            let all = tensors[id]
                .iter()
                .flat_map(|view| view.values(&mut domain, &program.nodes[id].shape, &self.is_single(at, id)));
            values.insert(id, all.filter(|x| x.weight != 0).collect());
        }
        Ok(Answer { outputs, values, round })
    }

    /// One test: where the programs differ, if they do.
    fn round(
        &self,
        round: &Round,
        ways: &mut [Result<usize, String>],
        seen: &mut Seen,
    ) -> Result<Option<(usize, usize)>, Stop> {
        let exponents = [0, 1]
            .map(|at| self.atoms[at].iter().flatten().flat_map(|atoms| atoms.tensors.clone()).collect());
        let numbers = [0, 1].map(|at| self.conditions[at].iter().map(|(_, tensor)| *tensor).collect());
        let ask = |at: usize| Ask {
            programs: self.small.each_ref(),
            exponents: &exponents[at],
            numbers: &numbers[at],
            outputs: true,
            changed: None,
        };
        let [own, other] = both(|at| self.ask(at, round, ask(at)));
        let (own, other) = (own?, other.map_err(undefined)?);
        if own.outputs.iter().chain(&other.outputs).flatten().any(|x| x.weight == 0) {
            return Err(Stop::Unsupported("an output may be minus infinity".into()));
        }
        if let Some(difference) = own.difference(&other) {
            return Ok(Some(difference));
        }
        self.check_defined(round, [&own, &other], seen)?;
        seen.assumes_left |= own.round.assumes_left || other.round.assumes_left;
        let values = own.exponents(&exponents[0]);
        let mut changes: BTreeMap<usize, Values> = BTreeMap::new();
        let mut changed = |source: usize| -> Result<Values, Stop> {
            if let Some(known) = changes.get(&source) {
                return Ok(known.clone());
            }
            let ask = Ask { outputs: false, numbers: &BTreeSet::new(), changed: Some(source), ..ask(0) };
            let values = self.ask(0, round, ask)?.exponents(&exponents[0]);
            changes.insert(source, values.clone());
            Ok(values)
        };
        let mut sites = Sites {
            program: self.whole[0],
            is_single: &|tensor| self.is_single(0, tensor),
            values: &values,
            changed: &mut changed,
        };
        for (way, result) in ways.iter_mut().enumerate().filter(|(_, result)| result.is_ok()) {
            let Some(atoms) = &self.atoms[0][way] else {
                *result = Err("exponents are not seen in this way".into());
                continue;
            };
            let [known, given] = [own.atoms(Some(atoms)), other.atoms(self.atoms[1][way].as_ref())];
            let is_symbol = |x: &&u64| own.round.symbols.contains(x) || other.round.symbols.contains(x);
            let missing = given.iter().filter(|x| !known.contains(x) && !is_symbol(x)).count();
            seen.atoms[way] = [seen.atoms[way][0].max(known.len()), seen.atoms[way][1].max(given.len())];
            if missing > 0 {
                *result = Err(format!("{missing} exponents of the candidate are not among the program's"));
            } else if seen.rounds == 0 {
                // What depends on something in one round does.
                *result = sites.independent(&atoms.tensors, &own.round)?;
            }
        }
        seen.rounds += 1;
        Ok(None)
    }

    /// Along which dimensions of a tensor an element of an output depends on one index.
    fn is_single(&self, at: usize, tensor: usize) -> Vec<bool> {
        self.walk.classes(at, tensor).iter().map(Option::is_some).collect()
    }

    /// That the candidate is defined where the program is: what signs do not show is a number of the program that has to be
    /// nonzero and the like, or a sum of masked exponentials that has no term where one of the program's has none.
    fn check_defined(&self, round: &Round, answers: [&Answer; 2], seen: &mut Seen) -> Result<(), Stop> {
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
        let asked = [divisors.map(|(_, tensor)| *tensor).collect(), left];
        let [known, given] = both(|at| {
            let none = BTreeSet::new();
            let ask = Ask {
                programs: self.small.each_ref(),
                exponents: &none,
                numbers: &asked[at],
                outputs: false,
                changed: None,
            };
            self.ask(at, &weights, ask)
                .map(|answer| answer.values.into_values().flatten().map(|x| x.p).collect::<HashSet<u64>>())
        });
        let (known, given) = (known.map_err(undefined)?, given.map_err(undefined)?);
        if given.is_subset(&known) {
            Ok(())
        } else {
            Err(Stop::Unsupported("a sum of masked exponentials in the candidate may have no terms where the program is defined".into()))
        }
    }

    /// The logarithm to base 2 of the chance that programs that differ have passed so many rounds, and the number of exponents.
    fn bound(
        &self,
        way: usize,
        ways: &[Result<usize, String>],
        seen: &Seen,
        rounds: usize,
    ) -> Option<(f64, usize)> {
        let own = *ways[way].as_ref().ok()?;
        let (a, b) = (self.atoms[0][way].as_ref()?, self.atoms[1][way].as_ref()?);
        let denominator = common(a.denominator, b.denominator)? as f64;
        let sizes =
            [a, b].map(|atoms| atoms.sizes.iter().map(|size| size * denominator).collect::<Vec<f64>>());
        let degrees = [0, 1].map(|at| fractions(&self.small[at], &sizes[at]));
        let mut difference = Polynomial::default();
        for (_, ids) in &self.outputs {
            difference = difference.max(degrees[0][ids[0]].difference(degrees[1][ids[1]]));
        }
        // Differences of two atoms, of two arguments of hashes for one element of an output, of two divisors.
        let [mut atom, mut argument, mut condition] = [Polynomial::default(); 3];
        let mut arguments = 0.0;
        for (at, atoms) in [a, b].into_iter().enumerate() {
            let program = &self.small[at];
            let widen = |all: &mut Polynomial, tensor: usize| {
                *all = all.max(degrees[at][tensor].difference(degrees[at][tensor]))
            };
            let needs = needs(program, &atoms.tensors, self.outputs.iter().map(|(_, ids)| &ids[at]));
            atoms.tensors.iter().for_each(|&tensor| widen(&mut atom, tensor));
            self.conditions[at].iter().for_each(|&(_, tensor)| widen(&mut condition, tensor));
            // Weights of masked numbers are compared as arguments of hashes are.
            let masked = (0..program.nodes.len()).filter(|&tensor| degrees[at][tensor].weight > 0.0);
            for tensor in hashed(program, &needs).into_iter().chain(masked) {
                widen(&mut argument, tensor);
                let extents = program.nodes[tensor].shape.iter().zip(self.is_single(at, tensor));
                let count = extents.filter(|(_, is_single)| !is_single).map(|(extent, _)| extent.len as f64);
                // A set of which the largest is taken is hashed, too.
                arguments += 2.0 * count.product::<f64>();
            }
        }
        let vanishes = |height: f64| height / 61.0 * f64::powi(2.0, -50);
        let chance = |count: f64, polynomial: Polynomial| {
            count * ((1.0 + polynomial.degree()) * RESIDUE + vanishes(polynomial.height))
        };
        // The atoms of one tensor are one function of arguments that are alike.
        let tensors = (a.tensors.len() + b.tensors.len()) as f64;
        let of_atoms = |count: f64| {
            count * atom.degree() * RESIDUE + tensors.powi(2) * 4.0 * vanishes(2.0 * atom.height)
        };
        let single = difference.numbers * RESIDUE
            + difference.exponentials * atom.degree() * RESIDUE
            + vanishes(difference.height)
            + chance(arguments.powi(2), argument)
            + of_atoms(2.0 * own as f64);
        // Inputs are drawn again where a divisor is zero, so that chances are relative to that of none.
        let defined = 1.0 - chance(MAX_ELEMENTS, condition);
        if defined < 0.5 {
            return Some((0.0, own));
        }
        let rounds = rounds as f64;
        let among =
            |count: usize, chance: f64| (count as f64).log2().max(0.0) + rounds * (chance / defined).log2();
        let all = [
            among(1, single),
            among(seen.atoms[way][1], of_atoms(seen.atoms[way][0] as f64)),
            among(seen.conditions[1], chance(seen.conditions[0] as f64, condition)),
        ];
        let sum: f64 = all.iter().map(|log2| log2.exp2()).sum();
        Some((sum.log2(), own))
    }

    /// Compares the programs as they are, where that is cheap: a guard against a mistake in what is cut.
    fn compare_whole(&self, key: Key, deadline: Instant) -> Result<Option<Verdict>, String> {
        let costs = self.whole.map(cost);
        if costs[0].0 + costs[1].0 > UNCUT_WORK || costs[0].1.max(costs[1].1) > MAX_ELEMENTS {
            return Ok(None);
        }
        let round = Round::new(key.derived(u64::MAX), deadline);
        let none = BTreeSet::new();
        let ask =
            Ask { programs: self.whole, exponents: &none, numbers: &none, outputs: true, changed: None };
        match (self.ask(0, &round, ask), self.ask(1, &round, ask)) {
            (Ok(own), Ok(other)) => {
                Ok(own.difference(&other).map(|at| self.differ(self.whole, key, deadline, at)))
            }
            (Err(Stop::Undefined(_)), _) => Ok(None),
            (a, b) => Err(format!("at full extents: {:?}, {:?}", a.err(), b.err())),
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

/// Elements of a tensor, in order.
fn elements<D: Domain>(
    domain: &mut D,
    tensors: &[Option<Strided<D::Value>>],
    program: &Program,
    id: usize,
) -> Vec<D::Value> {
    let mut elements = Vec::new();
    if let Some(view) = &tensors[id] {
        each_index(&lens(&program.nodes[id].shape), |index| elements.push(view.get(domain, index)));
    }
    elements
}

/// The candidate has no value where the program has one.
fn undefined(stop: Stop) -> Stop {
    match stop {
        Stop::Undefined(reason) => {
            Stop::Unsupported(format!("the candidate is not defined where the program is: {reason}"))
        }
        stop => stop,
    }
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
