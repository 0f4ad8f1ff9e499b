//! Values as residues: a number modulo `p`, an exponent modulo `q`, with `e^x` the power `w^x` of an element of order `q`.
//!
//! What has no algebraic form is a keyed hash of its argument: a root, an error function, the largest of a set of several numbers
//! (whatever the order in which they are compared), and, as an exponent, an atom. So exponentials of different atoms are
//! independent, and those of sums of atoms are products. A masked element is a number with a weight, zero for minus
//! infinity; its exponential is the weight times the power.

use crate::eval::Domain;
use crate::field::{Field, Key, primes, ratio};
use crate::program::{Result, Scalar, ensure};
use num_modular::Reducer;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// An element; in Montgomery's form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Residue {
    /// The number modulo `p`.
    pub p: u64,
    /// The exponent modulo `q`.
    pub q: u64,
    /// The weight modulo `p`: one for a number that is not masked.
    pub weight: u64,
}

/// The primes and keys of one round, and what a program made of them.
#[derive(Clone)]
pub struct Residues {
    /// Numbers.
    pub p: Field,
    /// Exponents.
    pub q: Field,
    /// One modulo `p`.
    pub one: u64,
    /// What powers are of. With one, only weights are left of sums of masked exponentials.
    pub base: u64,
    /// Of each tensor, whether its numbers are hashed to be exponents.
    pub is_atom: Vec<bool>,
    /// Set if the largest of masked numbers was taken, which was one that the masks leave.
    pub assumes_left: bool,
    inputs: Key,
    hashes: Key,
    /// Sets of numbers by the number that stands for the largest.
    sets: HashMap<u64, Vec<u64>>,
    members: usize,
    deadline: Instant,
}

/// The most members of sets of which largest elements are taken.
const MAX_MEMBERS: usize = 1 << 24;

impl Residues {
    /// The round of a key, which ends at a deadline.
    pub fn new(key: Key, is_atom: Vec<bool>, deadline: Instant) -> Residues {
        let [p, q] = primes(key.derived(0)).map(Field::new);
        let (inputs, hashes, one) = (key.derived(1), key.derived(2), p.transform(1));
        // The square of any number: it has the order q unless that is 0, 1 or -1.
        let base = p.sqr(below(hashes.pair(0, 1).0, p));
        let (assumes_left, sets, members) = Default::default();
        Residues { p, q, one, base, is_atom, assumes_left, inputs, hashes, sets, members, deadline }
    }

    fn number(&self, p: u64) -> Residue {
        Residue { p, q: 0, weight: self.one }
    }

    /// An independent number for an argument.
    fn symbol(&self, salt: u64, x: u64) -> Residue {
        self.number(below(self.hashes.pair(x, salt).0, self.p))
    }

    /// The weight of what two weights leave, which are zeros and ones for the inputs that matter.
    fn both(&self, a: u64, b: u64) -> u64 {
        if a == b { a } else { self.p.mul(&a, &b) }
    }

    /// The largest: of more than one a hash of the set, whose members are numbers, with weights where they are masked.
    fn largest(&mut self, items: &[Residue]) -> Result<Residue> {
        self.check()?;
        // A set is taken once, however often it is met.
        let items: BTreeSet<Residue> = items.iter().copied().filter(|item| item.weight != 0).collect();
        self.assumes_left |= !items.is_empty() && items.iter().all(|item| item.weight != self.one);
        let mut members = BTreeSet::new();
        for item in &items {
            let member =
                if item.weight == self.one { item.p } else { self.hashes.pair(item.p, item.weight).0 };
            match self.sets.get(&member) {
                Some(set) => members.extend(set),
                None => _ = members.insert(member),
            }
        }
        if members.len() < 2 {
            // The only one is what is left, or of none minus infinity.
            let none = Residue { weight: 0, ..self.number(0) };
            return Ok(items.last().map_or(none, |last| Residue { weight: self.one, ..*last }));
        }
        let hash = members.iter().fold(members.len() as u64, |hash, &x| self.hashes.pair(x, hash).0);
        let (symbol, count) = (self.symbol(5, hash), members.len());
        if self.sets.insert(symbol.p, members.into_iter().collect()).is_none() {
            self.members += count;
        }
        ensure!(self.members <= MAX_MEMBERS, "maxima of too many numbers");
        Ok(symbol)
    }
}

/// What is left of a sum modulo a field's prime.
fn rest(sum: u128, field: Field) -> u64 {
    (sum % u128::from(field.modulus())) as u64
}

/// A number below a field's prime, of 64 random bits.
fn below(bits: u64, field: Field) -> u64 {
    ((u128::from(bits) * u128::from(field.modulus())) >> 64) as u64
}

impl Domain for Residues {
    type Value = Residue;

    fn check(&self) -> Result<()> {
        ensure!(Instant::now() <= self.deadline, "more than the time that there is");
        Ok(())
    }

    /// A mask is any number, so that what is shown holds for zeros and ones.
    #[inline(always)]
    fn input(&self, tensor: usize, _is_mask: bool, at: usize) -> Residue {
        self.number(below(self.inputs.pair(at as u64, tensor as u64).0, self.p))
    }

    #[inline(always)]
    fn element(&self, tensor: usize, x: Residue) -> Residue {
        match self.is_atom[tensor] {
            true => Residue { q: below(self.hashes.pair(x.p, 6).0, self.q), ..x },
            false => x,
        }
    }

    fn constant(&self, num: i64, den: i64) -> Result<Residue> {
        let both = ratio(self.p, num, den).zip(ratio(self.q, num, den));
        let (p, q) = both.ok_or("a constant's denominator is zero")?;
        Ok(Residue { q, ..self.number(p) })
    }

    #[inline(always)]
    fn apply(&mut self, scalar: Scalar, args: &[Residue]) -> Result<Residue> {
        // Minus infinity may be added to, multiplied by what is positive, masked again, compared, guarded, and have an exponential.
        let may_be_masked = match (scalar, args) {
            (Scalar::Add | Scalar::Max | Scalar::Exp | Scalar::Scale { is_positive: true }, _) => true,
            (Scalar::Mask, [_, mask]) => mask.weight == self.one,
            (Scalar::Guard, [x]) => x.weight == 0,
            _ => false,
        };
        let is_masked = |x: &Residue| x.weight != self.one;
        ensure!(may_be_masked || !args.iter().any(is_masked), "arithmetic with masked values");
        Ok(match (scalar, args) {
            (Scalar::Mul, [a, b]) => self.number(self.p.mul(&a.p, &b.p)),
            (Scalar::Scale { .. }, [x, c]) => {
                Residue { p: self.p.mul(&x.p, &c.p), q: self.q.mul(&x.q, &c.q), weight: x.weight }
            }
            (Scalar::Add, _) => {
                // Residues have less than 64 bits, and there are fewer than 2^64 of them.
                let (mut p, mut q, mut weight) = (0, 0, self.one);
                for x in args {
                    p += u128::from(x.p);
                    q += u128::from(x.q);
                    weight = self.both(weight, x.weight);
                }
                Residue { p: rest(p, self.p), q: rest(q, self.q), weight }
            }
            (Scalar::Max, _) => self.largest(args)?,
            (Scalar::Mask, [x, mask]) => Residue { weight: self.both(x.weight, mask.p), ..*x },
            (Scalar::Exp, [x]) if x.weight == 0 => self.number(0),
            (Scalar::Exp, [x]) => {
                let power = self.p.pow(self.base, &self.q.residue(x.q));
                self.number(self.p.mul(&x.weight, &power))
            }
            (Scalar::Sqrt, [x]) => self.symbol(2, x.p),
            (Scalar::Erf, [x]) => self.symbol(4, x.p),
            (Scalar::GeluFactor, _) => self.symbol(3, 0),
            (Scalar::Reciprocal, [x]) => self.number(self.p.inv(x.p).ok_or("a divisor is zero")?),
            (Scalar::Guard, [x]) if x.weight != 0 => *x,
            _ => self.number(0),
        })
    }
}
