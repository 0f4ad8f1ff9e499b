//! The decision for a pair of programs.

use crate::alike::Walk;
use crate::degree::{Fraction, Polynomial, fractions};
use crate::eval::{Array, Domain, Stop, cost, outputs};
use crate::exponents::{At, Atoms, conditions, facts, hashed};
use crate::field::Key;
use crate::independent::{Single, Values};
use crate::op::Op;
use crate::program::{Node, Program, Tile};
use crate::real::{Floats, Signs};
use crate::residue::{DIVISORS, EXPONENTS, LISTS, LOGARITHMS, RADICANDS, Residues, Round, canonical};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// What a proof has to reach: the logarithm to base 2 of the chance of a wrong one.
pub const LOG2_BOUND: f64 = -80.0;
/// The most rounds that are made.
const MAX_ROUNDS: usize = 4;
/// The most elementary operations of all evaluations together.
const MAX_WORK: f64 = 9e9;
/// The most elements that an evaluation holds at once: 24 bytes each, and two evaluations run at once.
const MAX_ELEMENTS: f64 = 1.8e7;
/// Below that many operations the programs are also compared as they are, without a cut.
const UNCUT_WORK: f64 = 2e7;
/// Above that many operations one block computes all of what is cut, since others would do the same again.
const LARGE_WORK: f64 = 3e8;
/// How many inputs are tried in floating point, to show that programs differ.
const SAMPLES: u64 = 16;
/// The time for a decision that is given by default.
pub const MAX_TIME: Duration = Duration::from_secs(9);

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

/// Both programs, whole, cut, and with single elements along what is cut.
struct Pair<'a> {
    program: &'a Program,
    candidate: &'a Program,
    small: [Program; 2],
    single: [Program; 2],
    cut: Vec<(usize, usize)>,
    /// Of each program, at the places of inputs, the number of the input.
    inputs: [Vec<u64>; 2],
    /// Positions of the candidate's outputs, in the order of the program's.
    outputs: Vec<usize>,
}

/// Values that a program lists.
type Lists = [Vec<u64>; LISTS];

impl<'a> Pair<'a> {
    fn new(program: &'a Program, candidate: &'a Program) -> Result<Pair<'a>, String> {
        let signature = |program: &Program| -> BTreeMap<String, (bool, Vec<usize>)> {
            program
                .inputs()
                .map(|(at, name, mask)| (name.to_owned(), (mask, program.shapes[at].clone())))
                .collect()
        };
        let known = signature(program);
        if known != signature(candidate) {
            return Err("the programs have other inputs, by name, kind or shape".into());
        }
        let mut order = Vec::new();
        for (name, id) in &program.outputs {
            let position = candidate.outputs.iter().position(|(other, _)| other == name);
            let position =
                position.filter(|&at| candidate.shapes[candidate.outputs[at].1] == program.shapes[*id]);
            order.push(
                position
                    .ok_or_else(|| format!("the candidate has no output {name} of the program's shape"))?,
            );
        }
        if candidate.outputs.len() != order.len() {
            return Err("the candidate has further outputs".into());
        }
        for program in [program, candidate] {
            masks_are_masks(program)?;
        }
        let mut walk = Walk::default();
        let mut names = BTreeMap::new();
        walk.program(program, &mut names, |_| true);
        walk.program(candidate, &mut names, |_| true);
        let pairs = program.outputs.iter().zip(&order).map(|((_, id), &at)| (*id, candidate.outputs[at].1));
        walk.match_outputs(&pairs.collect::<Vec<_>>());
        walk.finish();
        let extents = walk.extents([program, candidate]);
        let ones = extents.keys().map(|&class| (class, 1)).collect();
        let small = [walk.cut(0, program, &extents, 2)?, walk.cut(1, candidate, &extents, 2)?];
        let small = match cost(&small[1])? {
            (work, _) if work > LARGE_WORK => {
                [walk.cut(0, program, &extents, 1)?, walk.cut(1, candidate, &extents, 1)?]
            }
            _ => small,
        };
        let single = [walk.cut(0, program, &ones, 1)?, walk.cut(1, candidate, &ones, 1)?];
        let number = |name: &str| known.keys().position(|known| known == name).unwrap_or(0) as u64;
        let numbers = |program: &Program| {
            let mut numbers = vec![0; program.place_count];
            program.inputs().for_each(|(at, name, _)| numbers[program.place(at, None)] = number(name));
            numbers
        };
        let cut = extents.iter().map(|(&class, &now)| (walk.extent(class), now)).collect();
        let inputs = [numbers(program), numbers(candidate)];
        Ok(Pair { program, candidate, small, single, cut, inputs, outputs: order })
    }

    fn decide(&self, key: Key, deadline: Instant) -> Result<Verdict, String> {
        self.within_budget()?;
        let mut ways: Vec<Result<usize, String>> = vec![Ok(0); EXPONENTS.len()];
        let atoms = [0, 1].map(|at| EXPONENTS.map(|way| Atoms::new(&self.small[at], way)));
        let required = self.required_conditions()?;
        let mut rounds = Vec::new();
        let mut seen = Seen::default();
        let mut trial = 0;
        while rounds.len() < MAX_ROUNDS {
            let mut round = Round::new(key.derived(trial), deadline);
            trial += 1;
            match self.round(&mut round, &atoms, &required, &mut ways, &mut seen) {
                Err(Stop::Undefined(_)) if trial < 4 * MAX_ROUNDS as u64 => continue,
                Err(Stop::Undefined(reason)) => {
                    return Err(format!("no inputs for which the program is defined: {reason}"));
                }
                Err(Stop::Unsupported(reason)) => return Err(reason),
                Ok(Some((output, element))) => return Ok(self.refuted(key, deadline, (output, element))),
                Ok(None) => {}
            }
            rounds.push((round.p.prime, round.q.prime));
            let best = (0..ways.len()).filter_map(|way| self.bound(way, &ways, &atoms, &seen, rounds.len()));
            let Some((log2_bound, exponents)) = best.min_by(|a, b| a.0.total_cmp(&b.0)) else {
                let reasons: Vec<String> = ways.into_iter().filter_map(Result::err).collect();
                return Err(format!("exponents are not shown to be independent: {}", reasons.join("; ")));
            };
            if log2_bound <= LOG2_BOUND {
                if let Some(at) = self.differ_uncut(key, deadline)? {
                    return Ok(self.refuted(key, deadline, at));
                }
                // A seed has 128 bits: what is chosen by it has no smaller chance.
                let log2_bound = log2_bound.max(-120.0);
                return Ok(Verdict::Proved(Proof { log2_bound, rounds, cut: self.cut.clone(), exponents }));
            }
        }
        Err(format!("a chance of 2^{LOG2_BOUND} is not reached in {MAX_ROUNDS} rounds"))
    }

    fn within_budget(&self) -> Result<(), String> {
        let mut work = 0.0;
        for (program, times) in self.small.iter().zip([1.0; 2]).chain(self.single.iter().zip([4.0, 1.0])) {
            let (once, elements) = cost(program)?;
            work += once * times;
            if elements > MAX_ELEMENTS {
                return Err(format!(
                    "a test holds {elements:.1e} elements at once; at most {MAX_ELEMENTS:.1e} are"
                ));
            }
        }
        if work > MAX_WORK / 2.0 {
            return Err(format!(
                "a test takes {work:.1e} operations; at most {:.1e} are made",
                MAX_WORK / 2.0
            ));
        }
        Ok(())
    }

    /// What must be among the program's divisors, radicands or arguments of logarithms, so that the candidate is defined
    /// wherever the program is: what signs alone do not show.
    fn required_conditions(&self) -> Result<Vec<(At, usize)>, String> {
        let program = &self.single[1];
        if conditions(program).is_empty() {
            return Ok(Vec::new());
        }
        let mut signs = Signs::new(program.place_count);
        outputs(&mut signs, program).map_err(|stop| format!("{stop:?}"))?;
        for (at, _, _) in program.inputs() {
            let place = program.place(at, None);
            signs.at[place] = signs.input(place, matches!(program.nodes[at], Node::Input(_, true)), 0);
        }
        let holds = |(at, list): &(At, usize)| {
            let place = program.place(at.0, at.1);
            match *list {
                DIVISORS => {
                    signs.is_nonzero(place) || matches!(program.op_at(at.0, at.1), Some((Op::Mul, _)))
                }
                RADICANDS => signs.is_nonnegative(place),
                _ => signs.is_nonzero(place) && signs.is_nonnegative(place),
            }
        };
        Ok(conditions(program).into_iter().filter(|condition| !holds(condition)).collect())
    }

    /// One test: where the programs differ, if they do.
    fn round(
        &self,
        round: &mut Round,
        atoms: &[[Option<Atoms>; 3]; 2],
        required: &[(At, usize)],
        ways: &mut [Result<usize, String>],
        seen: &mut Seen,
    ) -> Result<Option<(usize, usize)>, Stop> {
        let asked = [conditions(&self.small[0]), required.to_vec()];
        let run = |at: usize| -> Result<(Vec<Array<_>>, Lists), Stop> {
            let facts = facts(&self.small[at], &asked[at]);
            let mut round = round.clone();
            let mut domain = Residues::new(&mut round, &facts, &self.inputs[at]);
            let values = outputs(&mut domain, &self.small[at])?;
            Ok((values, domain.lists))
        };
        let undefined = |stop| match stop {
            Stop::Undefined(reason) => {
                Stop::Unsupported(format!("the candidate is not defined where the program is: {reason}"))
            }
            stop => stop,
        };
        let [expected, given] = both(run);
        let ((expected, known), (given, listed)) = (expected?, given.map_err(undefined)?);
        for (output, expected) in expected.iter().enumerate() {
            let given = &given[self.outputs[output]];
            if expected.data.iter().chain(&given.data).any(|x| x.weight == 0) {
                return Err(Stop::Unsupported("an output may be minus infinity".into()));
            }
            let differs = |(a, b): (&crate::residue::Residue, &crate::residue::Residue)| {
                (a.p, a.weight) != (b.p, b.weight)
            };
            if let Some(element) = expected.data.iter().zip(&given.data).position(differs) {
                return Ok(Some((output, element)));
            }
        }
        for list in DIVISORS..LISTS {
            let known: HashSet<u64> = known[list].iter().copied().collect();
            seen.conditions[0] = seen.conditions[0].max(known.len());
            seen.conditions[1] = seen.conditions[1].max(listed[list].len());
            if let Some(missing) = listed[list].iter().find(|x| !known.contains(x)) {
                let what = match list {
                    DIVISORS => "a divisor of the candidate is not shown to be nonzero",
                    RADICANDS => {
                        "a root of the candidate is not shown to be of something that is not negative"
                    }
                    _ => "a logarithm of the candidate is not shown to be of something positive",
                };
                debug_assert!(list <= LOGARITHMS);
                return Err(Stop::Unsupported(format!(
                    "{what}, where the program is defined (residue {missing})"
                )));
            }
        }
        // What one element of an output is made of.
        let single = |at: usize| Single {
            whole: if at == 0 { self.program } else { self.candidate },
            program: &self.single[at],
            atoms: &atoms[at],
            inputs: &self.inputs[at],
        };
        let [known, given] = both(|at| {
            let mut round = round.clone();
            let values = single(at).values(&mut round, None)?;
            Ok((values, round))
        });
        let ((known, own), (given, other)) = (known?, given.map_err(undefined)?);
        seen.hashed = seen.hashed.max(own.hashed + other.hashed);
        let symbols: HashSet<u64> = own.symbols.union(&other.symbols).copied().collect();
        (round.symbols, round.shared) = (own.symbols, own.shared);
        let independent = single(0).independent(round, &known)?;
        for (way, result) in independent.into_iter().enumerate() {
            if ways[way].is_err() {
                continue;
            }
            let of = |at: usize, values: &Values| -> HashSet<u64> {
                let sites = atoms[at][way].iter().flat_map(|atoms| &atoms.at);
                let values = sites
                    .filter_map(|&(node, tile)| values.get(&self.single[at].place(node, tile)))
                    .flatten();
                values.map(|&x| canonical(round.q, x)).chain([0]).collect()
            };
            let (known, given) = (of(0, &known), of(1, &given));
            seen.atoms = [seen.atoms[0].max(known.len()), seen.atoms[1].max(given.len())];
            let missing = given.iter().filter(|x| !known.contains(x) && !symbols.contains(x)).count();
            ways[way] = if missing == 0 {
                result
            } else {
                Err(format!("{missing} exponents of the candidate are not among the program's"))
            };
        }
        Ok(None)
    }

    /// The logarithm to base 2 of the chance that programs that differ have passed so many rounds, and the number of exponents.
    fn bound(
        &self,
        way: usize,
        ways: &[Result<usize, String>],
        atoms: &[[Option<Atoms>; 3]; 2],
        seen: &Seen,
        rounds: usize,
    ) -> Option<(f64, usize)> {
        let own = *ways[way].as_ref().ok()?;
        let (a, b) = (atoms[0][way].as_ref()?, atoms[1][way].as_ref()?);
        let denominator = b.denominator(a.denominator(1)?)?;
        let sizes = [a, b].map(|atoms| atoms.degrees(denominator));
        let sizes = [0, 1].map(|at| fractions(&self.single[at], &sizes[at]));
        let of = |at: usize, node: usize, tile| sizes[at][self.single[at].place(node, tile)];
        let mut difference = Polynomial::default();
        for ((_, id), &position) in self.program.outputs.iter().zip(&self.outputs) {
            let (a, b) = (of(0, *id, None), of(1, self.candidate.outputs[position].1, None));
            difference = difference.max(crossed(a, b));
        }
        // Differences of two atoms, of two arguments of hashes, of two divisors.
        let [mut atom, mut argument, mut condition] = [Polynomial::default(); 3];
        for (at, atoms) in [a, b].into_iter().enumerate() {
            let program = &self.single[at];
            let widen = |all: &mut Polynomial, (node, tile): At| {
                *all = all.max(crossed(of(at, node, tile), of(at, node, tile)))
            };
            atoms.at.iter().for_each(|&site| widen(&mut atom, site));
            conditions(program).iter().for_each(|&(site, _)| widen(&mut condition, site));
            hashed(program, atoms).into_iter().for_each(|site| widen(&mut argument, site));
        }
        let vanishes = |height: f64| height / 61.0 * f64::powi(2.0, -50);
        let chance = |count: f64, polynomial: Polynomial| {
            count * ((1.0 + polynomial.degree()) * RESIDUE + vanishes(polynomial.height))
        };
        // The atoms at one place are one function of arguments that are alike.
        let sites = (a.at.len() + b.at.len()) as f64;
        let of_atoms =
            |count: f64| count * atom.degree() * RESIDUE + sites.powi(2) * 4.0 * vanishes(2.0 * atom.height);
        let single = difference.numbers * RESIDUE
            + difference.exponentials * atom.degree() * RESIDUE
            + vanishes(difference.height)
            + chance((seen.hashed as f64).powi(2), argument)
            + of_atoms(2.0 * own as f64);
        // Inputs are drawn again where the program is undefined, which at most doubles chances.
        let rounds = rounds as f64;
        let among =
            |count: usize, chance: f64| (count as f64).log2().max(0.0) + rounds * (1.0 + chance.log2());
        let all = [
            rounds * (1.0 + single.log2()),
            among(seen.atoms[1], of_atoms(seen.atoms[0] as f64)),
            among(seen.conditions[1], chance(seen.conditions[0] as f64, condition)),
        ];
        let sum: f64 = all.iter().map(|log2| log2.exp2()).sum();
        Some((sum.log2(), own))
    }

    /// Compares the programs as they are, where that is cheap: a guard against a mistake in what is cut.
    fn differ_uncut(&self, key: Key, deadline: Instant) -> Result<Option<(usize, usize)>, String> {
        let (own, other) = (cost(self.program)?, cost(self.candidate)?);
        if own.0 + other.0 > UNCUT_WORK || own.1.max(other.1) > MAX_ELEMENTS {
            return Ok(None);
        }
        let mut round = Round::new(key.derived(u64::MAX), deadline);
        let mut run = |at: usize, program: &Program| {
            let facts = facts(program, &[]);
            outputs(&mut Residues::new(&mut round, &facts, &self.inputs[at]), program)
        };
        match (run(0, self.program), run(1, self.candidate)) {
            (Ok(expected), Ok(given)) => {
                for (output, expected) in expected.iter().enumerate() {
                    let pairs = expected.data.iter().zip(&given[self.outputs[output]].data);
                    if let Some(element) = pairs.into_iter().position(|(a, b)| a.p != b.p) {
                        return Ok(Some((output, element)));
                    }
                }
                Ok(None)
            }
            (Err(Stop::Undefined(_)), _) => Ok(None),
            (a, b) => Err(format!("at full extents: {:?}, {:?}", a.err(), b.err())),
        }
    }

    /// What is said where residues differ: that is a refutation only if floating-point numbers differ too, since
    /// functions without algebraic form were hashes.
    fn refuted(&self, key: Key, deadline: Instant, (output, element): (usize, usize)) -> Verdict {
        for sample in 0..SAMPLES {
            let key = key.derived(sample << 32 | 1 << 31);
            let [expected, given] =
                both(|at| outputs(&mut Floats { key, inputs: &self.inputs[at] }, &self.small[at]));
            let (Ok(expected), Ok(given)) = (expected, given) else { break };
            for (output, (name, _)) in self.program.outputs.iter().enumerate() {
                let (expected, given) = (&expected[output], &given[self.outputs[output]]);
                let scale = expected
                    .data
                    .iter()
                    .filter(|x| x.is_finite())
                    .fold(0.0, |scale: f64, x| scale.max(x.abs()));
                let differs = |(a, b): (&f64, &f64)| (a - b).is_finite() && (a - b).abs() > 1e-6 * scale;
                if let Some(at) = expected.data.iter().zip(&given.data).position(differs) {
                    return Verdict::Refuted(Witness {
                        output: name.clone(),
                        element: index(at, &expected.shape),
                        shape: expected.shape.clone(),
                        expected: expected.data[at],
                        given: given.data[at],
                    });
                }
            }
            if Instant::now() > deadline {
                break;
            }
        }
        let (name, id) = &self.program.outputs[output];
        let element = index(element, &self.small[0].shapes[*id]);
        Verdict::CannotSay(format!(
            "output {name} differs at element {element:?} where roots, maxima and the like are functions of any kind; \
             floating-point numbers agree"
        ))
    }
}

/// The chance of one residue, drawn as the remainder of 64 random bits: at most 1.5 divided by the smaller prime.
const RESIDUE: f64 = 1.5 / (1u64 << 61) as f64;

/// What was counted, at most, in any round.
#[derive(Default)]
struct Seen {
    /// Arguments of hashes.
    hashed: usize,
    /// Atoms of the program and of the candidate.
    atoms: [usize; 2],
    /// Divisors and the like of the program, and those of the candidate that must be among them.
    conditions: [usize; 2],
}

/// A function of both programs, at once.
fn both<T: Send>(f: impl Fn(usize) -> T + Sync) -> [T; 2] {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| f(1));
        let own = f(0);
        [own, other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
    })
}

/// The difference of two fractions, as the numerator over a common denominator.
fn crossed(a: Fraction, b: Fraction) -> Polynomial {
    let mut all = a.numerator.times(b.denominator).max(b.numerator.times(a.denominator));
    all.numbers += a.weight + b.weight;
    all.height += 1.0;
    all
}

/// The index of an element.
fn index(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index: Vec<usize> = shape.iter().rev().map(|&extent| (at % extent, at /= extent).0).collect();
    index.reverse();
    index
}

/// Masks must be zeros and ones by how they are made.
fn masks_are_masks(program: &Program) -> Result<(), String> {
    let mut is_mask = vec![false; program.place_count];
    for (node, tile) in program.all() {
        let operand = |arg: usize| {
            if tile.is_some() { program.place(node, Some(arg)) } else { program.place(arg, None) }
        };
        let place = program.place(node, tile);
        is_mask[place] = match (program.op_at(node, tile), &program.nodes[node], tile) {
            (Some((op, args)), ..) => {
                if *op == Op::Mask && !is_mask[operand(args[1])] {
                    return Err("something is masked by what is no mask".into());
                }
                let all = args.iter().all(|&arg| is_mask[operand(arg)]);
                match op {
                    Op::Causal { .. } | Op::Below { .. } => true,
                    Op::Transpose(_)
                    | Op::Reshape(_)
                    | Op::Broadcast(_)
                    | Op::Slice { .. }
                    | Op::Repeat { .. } => all,
                    Op::Concat { .. } | Op::Mul | Op::Max => all,
                    _ => false,
                }
            }
            (None, Node::Input(_, is_mask), _) => *is_mask,
            (None, Node::Stored(kernel, store), _) => match &program.nodes[*kernel] {
                Node::Block(block) => is_mask[program.place(*kernel, Some(block.stores[*store].0))],
                _ => false,
            },
            (None, Node::Block(block), Some(tile)) => match &block.tiles[tile] {
                Tile::Load { tensor, .. } => is_mask[program.place(*tensor, None)],
                _ => false,
            },
            _ => false,
        };
    }
    Ok(())
}
