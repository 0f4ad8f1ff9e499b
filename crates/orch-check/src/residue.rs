//! Values as residues: a number modulo `p`, an exponent modulo `q`, with `e^x` the power `w^x` of an element of order `q`.
//!
//! What has no algebraic form is a keyed hash of its argument: a root, an error function, the largest of a set of several numbers
//! (whatever the order in which they are compared), and, as an exponent, an atom. So exponentials of different atoms are
//! independent, and those of sums of atoms are products. A masked element is a number with a weight, zero for minus
//! infinity; its exponential is the weight times the power.

use crate::eval::{Domain, Stop};
use crate::field::{Field, Key, primes};
use crate::program::{Ratio, Scalar};
use std::collections::HashMap;
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

/// What is needed of a tensor.
#[derive(Clone, Copy, Default, Debug)]
pub struct Needs {
    /// Its numbers.
    pub number: bool,
    /// Its exponents.
    pub exponent: bool,
    /// Set if exponents are hashes of its numbers.
    pub is_atom: bool,
}

/// The primes and keys of one round, and what a program made of them.
#[derive(Clone)]
pub struct Round {
    /// Numbers.
    pub p: Field,
    /// Exponents.
    pub q: Field,
    /// What powers are of. With one, only weights are left of sums of masked exponentials.
    pub base: u64,
    inputs: Key,
    hashes: Key,
    gelu: u64,
    /// Sets of numbers by the number that stands for the largest.
    sets: HashMap<u64, Arc<[u64]>>,
    members: usize,
    /// Set if the largest of masked numbers was taken, which was one that the masks leave.
    pub assumes_left: bool,
    /// When to give up.
    pub deadline: Instant,
}

impl Round {
    /// The round of a key.
    pub fn new(key: Key, deadline: Instant) -> Round {
        let (p, q) = primes(key.derived(0));
        let (p, q) = (Field::new(p), Field::new(q));
        let hashes = key.derived(2);
        let square = |trial: u64| {
            let root = below(hashes.pair(trial, 1).0, p);
            p.mul(root, root)
        };
        let base = (0..).map(square).find(|&square| square != 0 && square != p.one).unwrap_or(p.one);
        let gelu = below(hashes.pair(0, 2).0, p);
        Round {
            p,
            q,
            base,
            inputs: key.derived(1),
            hashes,
            gelu,
            sets: HashMap::new(),
            members: 0,
            assumes_left: false,
            deadline,
        }
    }
}

/// One program in one round.
pub struct Residues<'a> {
    round: &'a mut Round,
    /// By tensor.
    needs: &'a [Needs],
    /// At an input its number.
    inputs: &'a [u64],
    now: Needs,
    constant: (Ratio, Residue),
    stop: Option<Stop>,
}

/// The most members of sets of which largest elements are taken.
const MAX_MEMBERS: usize = 1 << 24;

impl<'a> Residues<'a> {
    /// A program.
    pub fn new(round: &'a mut Round, needs: &'a [Needs], inputs: &'a [u64]) -> Residues<'a> {
        let constant = (Ratio { num: 0, den: 1 }, Residue { p: 0, q: 0, weight: round.p.one });
        Residues { round, needs, inputs, now: Needs::default(), constant, stop: None }
    }

    fn number(&self, p: u64, q: u64) -> Residue {
        Residue { p, q, weight: self.round.p.one }
    }

    /// An independent number for an argument.
    fn symbol(&self, salt: u64, x: u64) -> Residue {
        self.number(below(self.round.hashes.pair(x, salt).0, self.round.p), 0)
    }

    /// An element of a tensor, as an exponent too.
    #[inline(always)]
    fn with_exponent(&self, x: Residue, needs: Needs) -> Residue {
        match needs.is_atom {
            true => Residue { q: below(self.round.hashes.pair(x.p, 6).0, self.round.q), ..x },
            false => x,
        }
    }

    fn stop(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
    }

    /// `a b`
    #[inline(always)]
    fn product(&self, a: Residue, b: Residue) -> Residue {
        self.number(self.round.p.mul(a.p, b.p), 0)
    }

    #[inline(always)]
    fn sum(&self, args: &[Residue]) -> Residue {
        let (p, q) = (&self.round.p, &self.round.q);
        args.iter().fold(self.number(0, 0), |a, b| Residue {
            p: p.add(a.p, b.p),
            q: q.add(a.q, b.q),
            weight: if b.weight == p.one { a.weight } else { self.both(a.weight, b.weight) },
        })
    }

    /// The weight of what two weights leave, which are zeros and ones for the inputs that matter.
    fn both(&self, a: u64, b: u64) -> u64 {
        if a == b { a } else { self.round.p.mul(a, b) }
    }

    fn inverse(&mut self, x: Residue) -> Residue {
        let inverse = self.round.p.inverse(x.p);
        if inverse.is_none() {
            self.stop(Stop::Undefined("a divisor is zero".into()));
        }
        self.number(inverse.unwrap_or(0), 0)
    }

    fn constant(&mut self, ratio: Ratio) -> Residue {
        if self.constant.0 != ratio {
            let of = |field: Field| Some(field.mul(field.of(ratio.num), field.inverse(field.of(ratio.den))?));
            let (p, q) = (of(self.round.p), of(self.round.q));
            if p.is_none() || q.is_none() {
                self.stop(Stop::Undefined("a constant's denominator is zero".into()));
            }
            self.constant = (ratio, self.number(p.unwrap_or(0), q.unwrap_or(0)));
        }
        self.constant.1
    }

    /// The largest: of more than one a hash of the set, whose members are numbers, with weights where they are masked.
    fn largest(&mut self, items: &[Residue]) -> Residue {
        let mut members = Vec::with_capacity(items.len());
        let mut last = Residue { p: 0, q: 0, weight: 0 };
        let is_left = items.iter().any(|item| item.weight == self.round.p.one);
        for &item in items.iter().filter(|item| item.weight != 0) {
            last = item;
            if item.weight != self.round.p.one {
                self.round.assumes_left |= !is_left;
                members.push(self.round.hashes.pair(item.p, item.weight).0);
            } else if let Some(set) = self.round.sets.get(&item.p) {
                members.extend_from_slice(set);
            } else {
                members.push(item.p);
            }
        }
        members.sort_unstable();
        members.dedup();
        if members.len() < 2 {
            // The only one is what is left.
            let weight = if last.weight == 0 { 0 } else { self.round.p.one };
            return Residue { weight, ..last };
        }
        let hash = members.iter().fold(members.len() as u64, |hash, &x| self.round.hashes.pair(x, hash).0);
        let symbol = self.symbol(5, hash);
        if !self.round.sets.contains_key(&symbol.p) {
            self.round.members += members.len();
            self.round.sets.insert(symbol.p, members.into());
        }
        if self.round.members > MAX_MEMBERS {
            self.stop(Stop::Unsupported("maxima of too many numbers".into()));
        }
        symbol
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

impl Domain for Residues<'_> {
    type Value = Residue;

    fn enter(&mut self, tensor: usize) -> Result<(), Stop> {
        self.now = self.needs[tensor];
        if Instant::now() > self.round.deadline {
            self.stop(Stop::Unsupported("more than the time that there is".into()));
        }
        self.stop.take().map_or(Ok(()), Err)
    }

    /// A mask is any number, so that what is shown holds for zeros and ones.
    #[inline(always)]
    fn input(&mut self, tensor: usize, _is_mask: bool, at: usize) -> Residue {
        let word = self.round.inputs.pair(at as u64, self.inputs[tensor]).0;
        self.with_exponent(self.number(below(word, self.round.p), 0), self.needs[tensor])
    }

    fn element(&mut self, value: Residue) -> Residue {
        self.with_exponent(value, self.now)
    }

    #[inline(always)]
    fn apply(&mut self, scalar: &Scalar, args: &[Residue]) -> Residue {
        let one = self.round.p.one;
        // Minus infinity may be added to, masked again, compared, guarded, and have an exponential.
        let may_be_masked = match (scalar, args) {
            (Scalar::Sum | Scalar::Largest | Scalar::Relu | Scalar::Exp | Scalar::Offset(_), _) => true,
            (Scalar::Mask, [_, mask]) => mask.weight == one,
            // A factor that is not positive would make another infinity of it.
            (Scalar::Scale(ratio), _) => ratio.num > 0,
            (Scalar::Guard, [x]) => x.weight == 0,
            _ => false,
        };
        if !may_be_masked && args.iter().any(|x| x.weight != one) {
            self.stop(Stop::Unsupported("arithmetic with masked values".into()));
        }
        match (scalar, args) {
            (Scalar::Constant(ratio), _) => self.constant(*ratio),
            (Scalar::Mul, &[a, b]) => self.product(a, b),
            (Scalar::Sum, _) => self.sum(args),
            (Scalar::Largest, _) => self.largest(args),
            (Scalar::Mask, &[x, mask]) => Residue { weight: self.both(x.weight, mask.p), ..x },
            (Scalar::Exp, &[x]) => {
                let power = self.round.p.pow(self.round.base, self.round.q.integer(x.q));
                let power = if x.weight == 0 { 0 } else { self.round.p.mul(x.weight, power) };
                self.number(power, 0)
            }
            (Scalar::Square, &[x]) => self.product(x, x),
            (Scalar::Sqrt, &[x]) => self.symbol(2, x.p),
            (Scalar::Erf, &[x]) => self.symbol(4, x.p),
            (Scalar::Relu, &[x]) => self.largest(&[x, self.number(0, 0)]),
            (Scalar::Reciprocal, &[x]) => self.inverse(x),
            (Scalar::GeluFactor, &[x]) => self.product(x, self.number(self.round.gelu, 0)),
            (Scalar::Scale(ratio), &[x]) => {
                let factor = self.constant(*ratio);
                let (p, q) = (self.round.p.mul(x.p, factor.p), self.round.q.mul(x.q, factor.q));
                Residue { p, q, weight: x.weight }
            }
            (Scalar::Offset(ratio), &[x]) => {
                let term = self.constant(*ratio);
                self.sum(&[x, term])
            }
            (Scalar::Guard, &[x]) if x.weight == 0 => self.number(0, 0),
            (_, args) => args.first().copied().unwrap_or(self.number(0, 0)),
        }
    }
}
