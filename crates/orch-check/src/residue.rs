//! Values as residues: a number modulo `p`, an exponent modulo `q`, with `e^x` the power `w^x` of an element of order `q`.
//!
//! What has no algebraic form is a keyed hash of its argument: a root, a logarithm, an error function, the largest of a
//! set of several numbers (whatever the order in which they are compared), and the exponent that an exponential would be.
//! A masked element is a number with a weight, zero for minus infinity; its exponential is the weight times the power.

use crate::eval::{Domain, Places, Stop};
use crate::field::{Field, Key, primes};
use crate::op::{Op, Ratio};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// An element; in Montgomery's form.
#[derive(Clone, Copy, Debug)]
pub struct Residue {
    /// The number modulo `p`.
    pub p: u64,
    /// The exponent modulo `q`.
    pub q: u64,
    /// The weight modulo `p`: one for a number that is not masked.
    pub weight: u64,
}

/// What is to be known of a place.
#[derive(Clone, Copy, Default, Debug)]
pub struct Facts {
    /// Its numbers are needed.
    pub needs_p: bool,
    /// Its exponents are needed.
    pub needs_q: bool,
    /// Its values are to be listed.
    pub listed: [bool; LISTS],
}

/// Lists of values that are kept.
pub const LISTS: usize = 6;
/// Exponents, by the three ways to see an exponent as a combination of values; see [`crate::exponents`].
pub const EXPONENTS: [usize; 3] = [0, 1, 2];
/// Divisors and their factors.
pub const DIVISORS: usize = 3;
/// Operands of roots.
pub const RADICANDS: usize = 4;
/// Operands of logarithms.
pub const LOGARITHMS: usize = 5;

/// The primes and keys of one round, and what programs made of them.
#[derive(Clone)]
pub struct Round {
    /// Numbers.
    pub p: Field,
    /// Exponents.
    pub q: Field,
    base: u64,
    inputs: Key,
    hashes: Key,
    gelu: (u64, u64),
    /// Sets of numbers by the number that stands for the largest.
    sets: HashMap<u64, Arc<[u64]>>,
    members: usize,
    /// The exponents of largest numbers, which are independent of all others.
    pub symbols: HashSet<u64>,
    /// How many arguments were hashed.
    pub hashed: usize,
    /// Where the exponents of arguments were hashed first.
    arguments: HashMap<(u64, u64), usize>,
    /// Places whose exponents are hashes of arguments that were hashed elsewhere too, or twice.
    pub shared: HashSet<usize>,
    /// When to give up.
    pub deadline: Instant,
}

impl Round {
    /// The round of a key.
    pub fn new(key: Key, deadline: Instant) -> Round {
        let (p, q) = primes(key.derived(0));
        let (p, q) = (Field::new(p), Field::new(q));
        let (hashes, mut trial) = (key.derived(2), 0);
        let base = loop {
            let root = below(hashes.pair(trial, 1).0, p);
            let square = p.mul(root, root);
            if square != 0 && square != p.one {
                break square;
            }
            trial += 1;
        };
        let (a, b) = hashes.pair(0, 2);
        let gelu = (below(a, p), below(b, q));
        let (sets, symbols) = (HashMap::new(), HashSet::new());
        Round {
            p,
            q,
            base,
            inputs: key.derived(1),
            hashes,
            gelu,
            sets,
            members: 0,
            symbols,
            hashed: 0,
            arguments: HashMap::new(),
            shared: HashSet::new(),
            deadline,
        }
    }
}

/// One program in one round.
pub struct Residues<'a> {
    /// The round.
    pub round: &'a mut Round,
    /// By place.
    pub facts: &'a [Facts],
    /// At the place of an input its number.
    pub inputs: &'a [u64],
    /// The place of an input or symbol that has other exponents than it had.
    pub changed: Option<usize>,
    /// Divisors, radicands and the like of listed places.
    pub lists: [Vec<u64>; LISTS],
    /// Exponents of listed places as they are, by place.
    pub exponents: BTreeMap<usize, Vec<u64>>,
    now: Facts,
    place: usize,
    /// The last numbers that were made for inputs.
    made: [Made; 2],
    entered: usize,
    stop: Option<Stop>,
}

/// What pseudo-random numbers were made of, and the numbers.
type Made = ((u64, u64), (u64, u64));

/// The most members of sets of which largest elements are taken.
const MAX_MEMBERS: usize = 1 << 24;

impl<'a> Residues<'a> {
    /// A program.
    pub fn new(round: &'a mut Round, facts: &'a [Facts], inputs: &'a [u64]) -> Residues<'a> {
        Residues {
            round,
            facts,
            inputs,
            changed: None,
            lists: Default::default(),
            exponents: BTreeMap::new(),
            now: Facts::default(),
            place: 0,
            made: [((u64::MAX, 0), (0, 0)); 2],
            entered: 0,
            stop: None,
        }
    }

    fn number(&self, p: u64, q: u64) -> Residue {
        Residue { p, q, weight: self.round.p.one }
    }

    /// An independent value for an argument.
    fn symbol(&mut self, salt: u64, x: u64) -> Residue {
        self.round.hashed += 1;
        if self.now.needs_q
            && let Some(first) = self.round.arguments.insert((salt, x), self.place)
        {
            self.round.shared.extend([first, self.place]);
        }
        let (a, mut b) = self.round.hashes.pair(x, salt);
        if self.changed == Some(self.place) {
            b = self.round.hashes.pair(x, !salt).1;
        }
        self.number(below(a, self.round.p), below(b, self.round.q))
    }

    /// A pseudo-random number for an element of an input. Neighbours are made together.
    #[inline(always)]
    fn word(&mut self, slot: usize, salt: u64, at: usize) -> u64 {
        let pair = (at as u64 >> 1, salt);
        if self.made[slot].0 != pair {
            self.made[slot] = (pair, self.round.inputs.pair(pair.0, pair.1));
        }
        let (even, odd) = self.made[slot].1;
        if at.is_multiple_of(2) { even } else { odd }
    }

    fn masked(&mut self, x: Residue) -> bool {
        let is_masked = x.weight != self.round.p.one;
        if is_masked {
            self.stop.get_or_insert_with(|| Stop::Unsupported("arithmetic with masked values".into()));
        }
        is_masked
    }

    fn inverse(&mut self, x: Residue) -> Residue {
        let p = if self.now.needs_p { self.round.p.inverse(x.p) } else { Some(0) };
        let q = if self.now.needs_q { self.round.q.inverse(x.q) } else { Some(0) };
        if p.is_none() || q.is_none() {
            self.stop.get_or_insert_with(|| Stop::Undefined("a divisor is zero".into()));
        }
        self.number(p.unwrap_or(0), q.unwrap_or(0))
    }
}

/// A number below a field's prime, of 64 random bits.
fn below(bits: u64, field: Field) -> u64 {
    ((u128::from(bits) * u128::from(field.prime)) >> 64) as u64
}

/// A value or its negative, whichever is smaller.
pub fn canonical(field: Field, x: u64) -> u64 {
    x.min(field.sub(0, x))
}

impl Places for Residues<'_> {
    type Value = Residue;

    fn enter(&mut self, place: usize) {
        (self.now, self.place) = (self.facts[place], place);
        self.entered += 1;
        if self.entered % 16 == 1 && Instant::now() > self.round.deadline {
            self.stop = Some(Stop::Unsupported("more than the time that there is".into()));
        }
    }

    fn finish(&mut self, place: usize, values: &[Residue]) {
        let Facts { listed, .. } = self.facts[place];
        let finite = values.iter().filter(|x| x.weight != 0);
        if listed[..DIVISORS].contains(&true) {
            self.exponents.entry(place).or_default().extend(finite.clone().map(|x| x.q));
        }
        for list in (DIVISORS..LISTS).filter(|&list| listed[list]) {
            let field = self.round.p;
            let value = |x: &Residue| if list == DIVISORS { canonical(field, x.p) } else { x.p };
            self.lists[list].extend(finite.clone().map(value));
        }
    }

    fn stopped(&mut self) -> Option<Stop> {
        self.stop.take()
    }
}

impl Domain for Residues<'_> {
    #[inline(always)]
    fn input(&mut self, place: usize, is_mask: bool, at: usize) -> Residue {
        let _ = is_mask; // A mask is any number, so that what is shown holds for zeros and ones.
        let Facts { needs_p, needs_q, .. } = self.facts[place];
        let salt = self.inputs[place] << 2;
        let p = if needs_p { below(self.word(0, salt, at), self.round.p) } else { 0 };
        let changed = u64::from(self.changed == Some(place));
        let q = if needs_q { below(self.word(1, salt | 2 | changed, at), self.round.q) } else { 0 };
        self.number(p, q)
    }

    fn constant(&mut self, ratio: Ratio) -> Residue {
        let of = |field: Field| Some(field.mul(field.of(ratio.num), field.inverse(field.of(ratio.den))?));
        let (p, q) = (of(self.round.p), of(self.round.q));
        if p.is_none() || q.is_none() {
            self.stop.get_or_insert_with(|| Stop::Undefined("a constant's denominator is zero".into()));
        }
        self.number(p.unwrap_or(0), q.unwrap_or(0))
    }

    fn unary(&mut self, op: &Op, x: Residue) -> Residue {
        let Round { p, q, .. } = *self.round;
        match op {
            Op::Exp => {
                let power =
                    if x.weight == 0 { 0 } else { p.mul(x.weight, p.pow(self.round.base, q.integer(x.q))) };
                let exponent = if self.now.needs_q { self.symbol(1, power).q } else { 0 };
                self.number(power, exponent)
            }
            Op::Guard => {
                if x.weight == 0 {
                    self.number(0, 0)
                } else {
                    self.masked(x);
                    x
                }
            }
            _ if self.masked(x) => x,
            Op::Square => self.number(p.mul(x.p, x.p), q.mul(x.q, x.q)),
            Op::Sqrt => self.symbol(2, x.p),
            Op::Log => self.symbol(3, x.p),
            Op::Erf => self.symbol(4, x.p),
            Op::Reciprocal => self.inverse(x),
            Op::GeluFactor => self.number(p.mul(x.p, self.round.gelu.0), q.mul(x.q, self.round.gelu.1)),
            _ => x,
        }
    }

    fn binary(&mut self, op: &Op, a: Residue, b: Residue) -> Residue {
        let Round { p, q, .. } = *self.round;
        let Facts { needs_p, needs_q, .. } = self.now;
        match op {
            Op::Add => Residue {
                p: p.add(a.p, b.p),
                q: q.add(a.q, b.q),
                weight: if b.weight == p.one { a.weight } else { p.mul(a.weight, b.weight) },
            },
            Op::Mul if a.weight == p.one && b.weight == p.one => Residue {
                p: if needs_p { p.mul(a.p, b.p) } else { 0 },
                q: if needs_q { q.mul(a.q, b.q) } else { 0 },
                weight: p.one,
            },
            // A factor that is not positive would make another infinity of minus infinity.
            Op::Scale(ratio) if ratio.num <= 0 && self.masked(a) => a,
            Op::Scale(_) => Residue { p: p.mul(a.p, b.p), q: q.mul(a.q, b.q), weight: a.weight },
            _ if self.masked(b) => b,
            Op::Sub => Residue { p: p.sub(a.p, b.p), q: q.sub(a.q, b.q), weight: a.weight },
            Op::Mask => Residue { weight: p.mul(a.weight, b.p), ..a },
            _ => {
                self.masked(a);
                a
            }
        }
    }

    fn add_products(&mut self, sums: &mut [Residue], factor: Residue, row: &[Residue]) {
        let Round { p, q, .. } = *self.round;
        let Facts { needs_p, needs_q, .. } = self.now;
        if row.iter().any(|x| x.weight != p.one) || factor.weight != p.one {
            self.stop.get_or_insert_with(|| Stop::Unsupported("products of masked values".into()));
            return;
        }
        if needs_p {
            sums.iter_mut().zip(row).for_each(|(sum, x)| sum.p = p.add(sum.p, p.mul(factor.p, x.p)));
        }
        if needs_q {
            sums.iter_mut().zip(row).for_each(|(sum, x)| sum.q = q.add(sum.q, q.mul(factor.q, x.q)));
        }
    }

    fn largest(&mut self, items: &[Residue]) -> Residue {
        let mut finite = Vec::with_capacity(items.len());
        for &item in items.iter().filter(|item| item.weight != 0) {
            if self.masked(item) {
                return item;
            }
            match self.round.sets.get(&item.p) {
                Some(set) => finite.extend_from_slice(set),
                None => {
                    self.round.hashed += 1;
                    finite.push(item.p);
                }
            }
        }
        finite.sort_unstable();
        finite.dedup();
        match finite[..] {
            [] => Residue { p: 0, q: 0, weight: 0 },
            [only] => items
                .iter()
                .copied()
                .find(|item| item.p == only && item.weight != 0)
                .unwrap_or(self.number(only, 0)),
            _ => {
                let hash =
                    finite.iter().fold(finite.len() as u64, |hash, &x| self.round.hashes.pair(x, hash).0);
                let symbol = self.symbol(5, hash);
                self.round.symbols.insert(canonical(self.round.q, symbol.q));
                if !self.round.sets.contains_key(&symbol.p) {
                    self.round.members += finite.len();
                    self.round.sets.insert(symbol.p, finite.into());
                }
                if self.round.members > MAX_MEMBERS {
                    self.stop = Some(Stop::Unsupported("maxima of too many numbers".into()));
                }
                symbol
            }
        }
    }
}
