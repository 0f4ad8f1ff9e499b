//! The meaning of a µGraph on residues: numbers modulo `p`, exponents modulo `q`, `e^x` as `w^x` for an element `w` of
//! order `q`.
//!
//! A divisor of zero and a radicand without a root have no meaning; the sample is discarded, never defined. Functions
//! without algebraic form (relu, erf) are uninterpreted: a keyed hash of the argument. Maxima are either the meet of a
//! random order, or (see [`MaxMode`]) symbols of their own.

use super::field::{Modulus, Powers, Primes, Stream, scramble};
use super::lax::LaxFacts;
use super::table::Table;
use crate::array::Array;
use crate::eval::{Domain, EvalError, Site, apply_rms_norm};
use crate::floats::{MatrixProduct, moved};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Minus infinity among residues.
pub(crate) const INFINITE: u64 = u64::MAX;

/// A tensor or tile of residues; what is not needed is absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Residues {
    /// The shape.
    pub shape: Vec<usize>,
    /// Modulo `p`.
    pub p: Option<Arc<Array<u64>>>,
    /// Modulo `q`.
    pub q: Option<Arc<Array<u64>>>,
}

/// What a maximum is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaxMode {
    /// The element that comes last in a random order of residues.
    Lattice,
    /// A random symbol per element, block and iteration: what holds for all symbols holds for the maxima.
    Free,
    /// Zero: shows the exponents as they are without maxima.
    Zero,
}

/// What happens with the exponents that are met.
#[derive(Clone, Debug)]
pub enum Exponents {
    /// Nothing.
    Ignored,
    /// They are kept by site.
    Kept(BTreeMap<Site, Arc<Array<u64>>>),
    /// They are put into a filter.
    Inserted(Filter),
    /// They are looked up in a filter; those that are missing are counted.
    Checked(Filter, usize),
}

/// A set of numbers that may hold a little more than was put in.
#[derive(Clone, Debug)]
pub struct Filter {
    bits: Vec<u64>,
}

/// The logarithm of the number of bits of a filter.
const FILTER_BITS: u32 = 28;

impl Filter {
    /// Nothing but zero, the exponent of one.
    pub fn new() -> Filter {
        let mut filter = Filter { bits: vec![0; 1 << (FILTER_BITS - 6)] };
        filter.insert(0);
        filter
    }

    fn places(x: u64) -> [u64; 2] {
        let hash = scramble(x);
        [hash >> (64 - FILTER_BITS), hash & ((1 << FILTER_BITS) - 1)]
    }

    fn insert(&mut self, x: u64) {
        for place in Self::places(x) {
            self.bits[(place >> 6) as usize] |= 1 << (place & 63);
        }
    }

    fn contains(&self, x: u64) -> bool {
        Self::places(x).into_iter().all(|place| self.bits[(place >> 6) as usize] >> (place & 63) & 1 == 1)
    }
}

impl Default for Filter {
    fn default() -> Self {
        Self::new()
    }
}

/// Computes with residues.
pub struct ResidueDomain<'a> {
    p: Modulus,
    q: Modulus,
    powers: Arc<Powers>,
    facts: &'a Table<LaxFacts>,
    key: u64,
    /// What a maximum is.
    pub max: MaxMode,
    /// What happens with exponents.
    pub exponents: Exponents,
    /// Instead of an exponential that a site gives at a position.
    pub replaced: Option<(Site, usize, u64)>,
    /// What the exponentials of a site are multiplied by: by block and position.
    pub scaled: Option<Scaling>,
    /// With `Some`, radicands without a root are listed here (shape and position) and count as having the root 1.
    pub rootless: Option<Vec<(Site, Vec<usize>, usize)>>,
}

/// What all evaluations of one test share: primes, the base of powers, a key for what is uninterpreted.
#[derive(Clone, Debug)]
pub struct TestBase {
    p: Modulus,
    q: Modulus,
    powers: Arc<Powers>,
    key: u64,
}

impl TestBase {
    /// The base of a test with this seed.
    pub fn new(primes: Primes, seed: u64) -> TestBase {
        let (p, q) = (Modulus::new(primes.p), Modulus::new(primes.q));
        let mut stream = Stream::new(seed);
        let base = loop {
            let root = stream.below(primes.p);
            let square = p.mul(root, root);
            if square > 1 {
                break square;
            }
        };
        TestBase { p, q, powers: Arc::new(Powers::new(p, base, primes.q)), key: stream.bits() }
    }

    /// A domain for a µGraph with these facts.
    pub fn domain<'a>(&self, facts: &'a Table<LaxFacts>, max: MaxMode) -> ResidueDomain<'a> {
        ResidueDomain {
            p: self.p,
            q: self.q,
            powers: self.powers.clone(),
            facts,
            key: self.key,
            max,
            exponents: Exponents::Ignored,
            replaced: None,
            scaled: None,
            rootless: None,
        }
    }

    /// The modulus of numbers.
    pub fn p(&self) -> Modulus {
        self.p
    }

    /// The modulus of exponents.
    pub fn q(&self) -> Modulus {
        self.q
    }
}

/// Exponentials that are scaled: by a random factor per row.
pub struct Scaling {
    /// The kernel.
    pub kernel: crate::TensorId,
    /// The tile, if it is one of a block graph.
    pub tile: Option<u32>,
    /// Numbers the row of an element, by site, shape and position.
    pub row: RowNumber,
}

/// Numbers the row of an element, by site, shape and position.
pub type RowNumber = Box<dyn Fn(Site, &[usize], usize) -> u64>;

type Part = Option<Arc<Array<u64>>>;

impl ResidueDomain<'_> {
    fn hash(&self, salt: u64, x: u64) -> u64 {
        scramble(scramble(self.key ^ salt).wrapping_add(scramble(x)))
    }

    /// The powers. What the exponents are made of, one to one or nearly, is recorded.
    fn exponentials(&mut self, site: Site, recorded: &Arc<Array<u64>>, exponents: &Array<u64>) -> Array<u64> {
        let finite = || recorded.data.iter().copied().filter(|&x| x != INFINITE);
        match &mut self.exponents {
            Exponents::Ignored => {}
            Exponents::Kept(kept) => {
                kept.insert(site, recorded.clone());
            }
            Exponents::Inserted(filter) => finite().for_each(|x| filter.insert(x)),
            Exponents::Checked(filter, missing) => {
                *missing += finite().filter(|&x| !filter.contains(x)).count();
            }
        }
        let mut result = exponents.map(|x| if x == INFINITE { 0 } else { self.powers.of(x) });
        if let Some((at, position, value)) = self.replaced
            && at == site
        {
            result.data[position] = value;
        }
        if let Some(scaling) = &self.scaled
            && (scaling.kernel, scaling.tile) == (site.kernel, site.tile)
        {
            for (position, value) in result.data.iter_mut().enumerate() {
                let row = (scaling.row)(site, &result.shape, position);
                *value = self.p.mul(*value, 1 + self.hash(7, row) % (self.p.prime - 1));
            }
        }
        result
    }

    /// `1 / (1 + w^-f(x))`
    fn sigmoid(&mut self, site: Site, x: &Part, f: impl Fn(u64) -> u64) -> PartResult {
        let x = x.as_ref().ok_or_else(absent)?;
        let exponents = x.map(|x| self.q.sub(0, f(x)));
        let powers = self.exponentials(site, x, &exponents);
        let divisors: Vec<u64> = powers.data.iter().map(|&x| self.p.add(x, 1)).collect();
        let data = self.p.inverses(&divisors).ok_or_else(|| undefined(site, "a divisor"))?;
        Ok(Array { shape: x.shape.clone(), data })
    }

    fn roots(&mut self, site: Site, modulus: Modulus, x: &Array<u64>) -> Result<Array<u64>, EvalError> {
        let mut result = x.clone();
        for (position, value) in result.data.iter_mut().enumerate() {
            *value = match (modulus.sqrt(*value), &mut self.rootless) {
                (Some(root), _) => root,
                (None, Some(rootless)) => {
                    rootless.push((site, x.shape.clone(), position));
                    1
                }
                (None, None) => return Err(undefined(site, "a radicand")),
            };
        }
        Ok(result)
    }

    /// A function of both residues at once, for what is not algebraic.
    fn symbols(&self, shape: &[usize], salt: u64) -> Residues {
        let part = |modulus: Modulus, salt: u64| {
            let zero = self.max == MaxMode::Zero;
            let symbol = |x| if zero { 0 } else { self.hash(salt, x as u64) % modulus.prime };
            Some(Arc::new(Array::from_fn(shape, symbol)))
        };
        let salt = scramble(salt);
        Residues { shape: shape.to_vec(), p: part(self.p, salt), q: part(self.q, !salt) }
    }

    /// The later of two values in the random order; minus infinity is the first of all.
    fn later(&self, a: (u64, u64), b: (u64, u64), by_q: bool) -> (u64, u64) {
        let key = |(p, q): (u64, u64)| if by_q { q } else { p };
        let rank = |x| if key(x) == INFINITE { (0, 0) } else { (1, self.hash(3, key(x))) };
        if rank(a) >= rank(b) { a } else { b }
    }

    /// One residue of an operator that treats both alike.
    fn part(
        &mut self,
        site: Site,
        modulus: Modulus,
        op: &Op,
        args: &[&Array<u64>],
        shape: &[usize],
    ) -> PartResult {
        let ratio = |c: &Rational| modulus.ratio(*c).ok_or_else(|| undefined(site, "a constant"));
        let keep = |x: u64, y: u64| if x == INFINITE { x } else { y };
        Ok(match op {
            Op::Matmul => {
                let mut out = vec![0; crate::op::elems(shape)];
                for product in MatrixProduct::all(&args[0].shape, &args[1].shape, shape) {
                    modulus.matmul(&args[0].data, &args[1].data, &mut out, &product);
                }
                Array { shape: shape.to_vec(), data: out }
            }
            Op::Unary(UnaryFn::Square) => args[0].map(|x| modulus.mul(x, x)),
            Op::Unary(UnaryFn::Sqrt) => self.roots(site, modulus, args[0])?,
            Op::Unary(UnaryFn::Guard) => args[0].map(|x| if x == INFINITE { 0 } else { x }),
            Op::Scale(c) => {
                let c = ratio(c)?;
                args[0].map(|x| keep(x, modulus.mul(if x == INFINITE { 0 } else { x }, c)))
            }
            Op::Offset(c) => {
                let c = ratio(c)?;
                args[0].map(|x| if x == INFINITE { x } else { modulus.add(x, c) })
            }
            Op::Binary(BinaryFn::Add) => args[0].zip(args[1], shape, |a, b| {
                if a == INFINITE || b == INFINITE { INFINITE } else { modulus.add(a, b) }
            }),
            Op::Binary(BinaryFn::Sub) => {
                args[0].zip(args[1], shape, |a, b| if a == INFINITE { a } else { modulus.sub(a, b) })
            }
            Op::Binary(BinaryFn::Mul) => args[0].zip(args[1], shape, |a, b| modulus.mul(a, b)),
            Op::Binary(BinaryFn::Div) => {
                let data = modulus.inverses(&args[1].data).ok_or_else(|| undefined(site, "a divisor"))?;
                let inverses = Array { shape: args[1].shape.clone(), data };
                args[0].zip(&inverses, shape, |a, b| modulus.mul(a, b))
            }
            Op::Reduce { f: ReduceFn::Sum, dim, keep } => {
                args[0].reduce(*dim, *keep, 0, |a, b| modulus.add(a, b))
            }
            Op::Rotate { dim, group } => args[0].rotate(*dim, *group, |x| modulus.sub(0, x)),
            op => moved(op, args, shape.to_vec(), (0, 1))?,
        })
    }
}

type PartResult = Result<Array<u64>, EvalError>;

fn undefined(site: Site, what: &str) -> EvalError {
    let tile = site.tile.map_or(String::new(), |tile| format!(", s{tile}"));
    EvalError::Undefined(format!("{what} in {}{tile}", site.kernel))
}

impl Domain for ResidueDomain<'_> {
    type Value = Residues;

    fn apply(&mut self, site: Site, op: &Op, args: &[&Residues]) -> Result<Residues, EvalError> {
        let shapes: Vec<&[usize]> = args.iter().map(|arg| arg.shape.as_slice()).collect();
        let shape = op.infer(&shapes).map_err(EvalError::Inputs)?;
        let facts = self.facts.at(site).copied().unwrap_or_default();
        let (needs_p, needs_q) = (facts.needs_p, facts.needs_q);
        let nothing = Residues { shape: shape.clone(), p: None, q: None };
        if !needs_p && !needs_q {
            return Ok(nothing);
        }
        let given = |part: &Part| part.clone().ok_or_else(absent);
        let number = |p: Array<u64>| Residues { p: Some(Arc::new(p)), ..nothing.clone() };
        let (p, q) = (self.p, self.q);
        match op {
            Op::Unary(UnaryFn::Exp) => {
                let exponents = given(&args[0].q)?;
                Ok(number(self.exponentials(site, &exponents, &exponents)))
            }
            Op::Unary(UnaryFn::Sigmoid) => Ok(number(self.sigmoid(site, &args[0].q, |x| x)?)),
            Op::Unary(UnaryFn::Silu) => {
                let sigmoid = self.sigmoid(site, &args[0].q, |x| x)?;
                Ok(number(given(&args[0].p)?.zip(&sigmoid, &shape, |a, b| p.mul(a, b))))
            }
            Op::Unary(UnaryFn::Tanh) => {
                let sigmoid = self.sigmoid(site, &args[0].q, |x| q.add(x, x))?;
                Ok(number(sigmoid.map(|s| p.sub(p.add(s, s), 1))))
            }
            Op::Unary(UnaryFn::Gelu) => {
                let sigmoid = self.sigmoid(site, &args[0].q, gelu_exponent(q))?;
                Ok(number(given(&args[0].p)?.zip(&sigmoid, &shape, |a, b| p.mul(a, b))))
            }
            Op::Unary(f @ (UnaryFn::Relu | UnaryFn::Erf)) => {
                let p = given(&args[0].p)?;
                let salt = *f as u64;
                let seen = match &args[0].q {
                    Some(q) => p.zip(q, &shape, |p, q| self.hash(salt, p ^ scramble(q))),
                    None => p.map(|p| self.hash(salt, p)),
                };
                let part = |wanted: bool, salt: u64, modulus: Modulus| {
                    wanted.then(|| Arc::new(seen.map(|x| self.hash(salt, x) % modulus.prime)))
                };
                Ok(Residues { shape, p: part(needs_p, 1, self.p), q: part(needs_q, 2, self.q) })
            }
            Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. }
                if self.max != MaxMode::Lattice =>
            {
                Ok(self.symbols(&shape, symbol_salt(site, 1)))
            }
            Op::Binary(BinaryFn::Max) => {
                let by_q = args.iter().all(|arg| arg.q.is_some());
                let [a, b] = [paired(args[0]), paired(args[1])];
                Ok(split(
                    a.zip(&b, &shape, |a, b| self.later(a, b, by_q)),
                    by_q,
                    args.iter().all(|a| a.p.is_some()),
                ))
            }
            Op::Reduce { f: ReduceFn::Max, dim, keep } => {
                let by_q = args[0].q.is_some();
                let first = (INFINITE, INFINITE);
                let result = paired(args[0]).reduce(*dim, *keep, first, |a, b| self.later(a, b, by_q));
                Ok(split(result, by_q, args[0].p.is_some()))
            }
            Op::Binary(BinaryFn::Mask) => {
                let mask = given(&args[1].p)?;
                let part = |part: &Part| {
                    let keep = |x, bit| if bit == 0 { INFINITE } else { x };
                    part.as_ref().map(|part| Arc::new(part.zip(&mask, &shape, keep)))
                };
                Ok(Residues { p: part(&args[0].p), q: part(&args[0].q), shape })
            }
            Op::RmsNorm { eps } => apply_rms_norm(self, site, (args[0], &shape), *eps),
            op => {
                let mut part = |wanted: bool, modulus, parts: Option<Vec<&Array<u64>>>| match parts {
                    Some(parts) if wanted => {
                        Ok(Some(Arc::new(self.part(site, modulus, op, &parts, &shape)?)))
                    }
                    _ => Ok(None),
                };
                let p = part(needs_p, p, args.iter().map(|arg| arg.p.as_deref()).collect())?;
                let q = part(needs_q, q, args.iter().map(|arg| arg.q.as_deref()).collect())?;
                Ok(Residues { p, q, ..nothing })
            }
        }
    }

    fn slice(&self, value: &Residues, ranges: &[(usize, usize)]) -> Residues {
        let part = |part: &Part| part.as_ref().map(|part| Arc::new(part.slice(ranges)));
        let shape = ranges.iter().map(|&(_, len)| len).collect();
        Residues { shape, p: part(&value.p), q: part(&value.q) }
    }

    fn concat(&self, parts: &[Residues], dim: usize) -> Residues {
        let join = |part: fn(&Residues) -> Option<&Array<u64>>| {
            let parts: Option<Vec<&Array<u64>>> = parts.iter().map(part).collect();
            parts.map(|parts| Arc::new(Array::concat(&parts, dim)))
        };
        let extent = parts.iter().map(|part| part.shape[dim]).sum();
        let shape = crate::op::with(&parts[0].shape, dim, extent);
        Residues { shape, p: join(|r| r.p.as_deref()), q: join(|r| r.q.as_deref()) }
    }

    fn running_max(
        &mut self,
        site: Site,
        before: Option<&Residues>,
        tile: &Residues,
    ) -> Result<Residues, EvalError> {
        match before {
            _ if self.max != MaxMode::Lattice => Ok(self.symbols(&tile.shape, symbol_salt(site, 2))),
            None => Ok(tile.clone()),
            Some(before) => self.apply(site, &Op::Binary(BinaryFn::Max), &[before, tile]),
        }
    }

    fn final_max(&mut self, site: Site, running: Residues) -> Result<Residues, EvalError> {
        if self.max == MaxMode::Lattice {
            return Ok(running);
        }
        Ok(self.symbols(&running.shape, symbol_salt(site, 2)))
    }

    fn rescale(
        &mut self,
        site: Site,
        sum: &Residues,
        (before, now): (&Residues, &Residues),
        degree: Rational,
    ) -> Result<Residues, EvalError> {
        let (Some(sum_p), Some(before), Some(now)) = (&sum.p, &before.q, &now.q) else {
            return Ok(sum.clone());
        };
        let degree = self.q.ratio(degree).ok_or_else(|| undefined(site, "a degree"))?;
        let factor = before.zip(now, &before.shape, |before, now| {
            let now = if now == INFINITE { 0 } else { now };
            if before == INFINITE { 0 } else { self.powers.of(self.q.mul(self.q.sub(before, now), degree)) }
        });
        let p = sum_p.zip(&factor, &sum.shape, |a, b| self.p.mul(a, b));
        Ok(Residues { p: Some(Arc::new(p)), ..sum.clone() })
    }
}

/// Distinguishes symbols.
fn symbol_salt(site: Site, kind: u64) -> u64 {
    let tile = u64::from(site.tile.map_or(0, |tile| tile + 1));
    [u64::from(site.kernel.0), tile, u64::from(site.block), u64::from(site.iteration)]
        .into_iter()
        .fold(kind, |hash, x| scramble(hash.wrapping_add(x)))
}

/// `2 c (x + a x³)` of the tanh form of gelu, which is `x` times the sigmoid of it.
fn gelu_exponent(q: Modulus) -> impl Fn(u64) -> u64 {
    // sqrt(2 / pi) and 0.044715 as the ratios of integers that the decimal fractions are.
    let ratio = |num, den| q.mul(q.integer(num), q.inverse(q.integer(den)).unwrap_or(1));
    let (c, a) = (ratio(7_978_845_608_028_654, 10_000_000_000_000_000), ratio(44_715, 1_000_000));
    move |x| q.mul(q.add(c, c), q.add(x, q.mul(a, q.mul(x, q.mul(x, x)))))
}

fn absent() -> EvalError {
    EvalError::Unsupported("a residue is absent".into())
}

/// Both residues side by side; what is absent is zero, but infinite where the other is.
fn paired(value: &Residues) -> Array<(u64, u64)> {
    let other = |x: u64| if x == INFINITE { x } else { 0 };
    match (&value.p, &value.q) {
        (Some(p), Some(q)) => p.zip(q, &value.shape, |p, q| (p, q)),
        (Some(p), None) => p.map(|p| (p, other(p))),
        (None, Some(q)) => q.map(|q| (other(q), q)),
        (None, None) => Array::full(&value.shape, (0, 0)),
    }
}

fn split(pairs: Array<(u64, u64)>, has_q: bool, has_p: bool) -> Residues {
    let p = has_p.then(|| Arc::new(pairs.map(|(p, _)| p)));
    let q = has_q.then(|| Arc::new(pairs.map(|(_, q)| q)));
    Residues { shape: pairs.shape, p, q }
}
