//! The meaning of a µGraph on residues: numbers modulo `p`, exponents modulo `q`, `e^x` as `w^x` for an element `w` of
//! order `q`.
//!
//! A divisor of zero has no meaning. Roots, `erf`, the case that `relu` is in, and maxima are uninterpreted: a keyed hash of
//! the argument, for maxima of the set of arguments. What holds for all such functions holds for the true ones. A masked
//! value has a *weight*: the mask's element, as a number. It multiplies the exponential; the masks of inputs are any
//! numbers, since what is equal as polynomials is equal at zeros and ones.

use super::checks::{Check, Checks};
use super::field::{Modulus, Powers, Primes, Stream, scramble};
use super::lax::LaxFacts;
use super::members::{Set, Sets};
use super::table::Table;
use crate::array::Array;
use crate::eval::{Domain, EvalError, Site};
use crate::floats::{MatrixProduct, moved};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A tensor or tile of residues; what is not needed is absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Residues {
    /// The shape.
    pub shape: Vec<usize>,
    /// Modulo `p`.
    pub p: Part,
    /// Modulo `q`.
    pub q: Part,
    /// Modulo `p`, zero where the value is minus infinity; absent if it is one everywhere.
    pub weight: Part,
    /// What the exponent is a sum of; absent if that is of no interest.
    pub terms: Option<Arc<Vec<Term>>>,
}

/// A residue of each element, if needed.
pub type Part = Option<Arc<Array<u64>>>;

/// A part of a sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Its values.
    pub values: Arc<Array<u64>>,
    /// What they are multiplied by.
    pub power: Rational,
    /// They are arguments of a gelu, whose exponents are polynomials of them.
    pub is_gelu: bool,
}

/// The exponentials of one site: which are not of minus infinity, and what their exponents are sums of.
pub type Exponential = (Option<Vec<bool>>, Vec<Term>);

/// What an evaluation notes beside the values.
#[derive(Debug, Default)]
pub struct Notes {
    /// Notes the exponents.
    pub exponents: bool,
    /// Exponents, by site.
    pub kept: BTreeMap<Site, Exponential>,
    /// Distinct exponents that are no maxima.
    pub atoms: FxHashSet<u64>,
    /// The most factors of an exponential, as powers of what all are powers of.
    pub powers: u64,
    /// The least common multiple of the denominators of powers.
    pub denominator: u64,
    /// Notes divisors and radicands.
    pub defined: bool,
    /// Values that are not zero where the program is defined.
    pub nonzero: FxHashSet<u64>,
    /// Radicands that are not negative where the program is defined.
    pub radicands: FxHashSet<u64>,
    /// Divisors that [`LaxFacts::of_support`] holds of.
    pub supports: FxHashSet<u64>,
    /// With the notes of the program, those divisors and radicands of another one that may not suit: by site, and if
    /// their support is of interest.
    pub foreign: BTreeMap<(crate::TensorId, Option<u32>), bool>,
}

/// The largest numerator or denominator of a power of an exponential.
const MOST_POWER: i64 = 64;

/// Computes with residues.
pub struct ResidueDomain<'a> {
    p: Modulus,
    q: Modulus,
    powers: Arc<Powers>,
    facts: &'a Table<LaxFacts>,
    key: u64,
    /// Exponents are taken apart into what they are sums of, not only into maxima and the rest.
    pub splits: bool,
    /// All exponentials are one.
    pub unit_exponentials: bool,
    /// What is noted.
    pub notes: Notes,
    /// What is not known to suit is noted for these.
    pub(super) checks: Checks,
    /// The notes of the program, if this is to be compared with it.
    pub program: Option<&'a Notes>,
    /// What the exponentials of a site are multiplied by: by block and position.
    pub scaled: Option<Scaling>,
    /// The members of each maximum, modulo `p` and modulo `q`, by their hashes.
    maxima: [FxHashMap<u64, Set>; 2],
    sets: Sets,
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
    /// The primes, of so many bits, and the base of a test with this stream.
    pub fn new(bits: u32, stream: &mut Stream) -> TestBase {
        let primes = Primes::draw(bits, stream);
        let (p, q) = (Modulus::new(primes.p), Modulus::new(primes.q));
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
    pub fn domain<'a>(&self, facts: &'a Table<LaxFacts>) -> ResidueDomain<'a> {
        ResidueDomain {
            p: self.p,
            q: self.q,
            powers: self.powers.clone(),
            facts,
            key: self.key,
            splits: false,
            unit_exponentials: false,
            notes: Notes { denominator: 1, ..Notes::default() },
            checks: Checks::ALL,
            program: None,
            scaled: None,
            maxima: [FxHashMap::default(), FxHashMap::default()],
            sets: Sets::default(),
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

/// Salts of hashes, per function and modulus.
const SALTS: [u64; 2] = [0x51, 0xa7];

/// The salt of hashes of members of maxima.
const MEMBER: u64 = 0x3d;

/// One of both moduli.
#[derive(Clone, Copy)]
struct Side {
    modulus: Modulus,
    number: usize,
}

impl Side {
    /// A residue, told apart from those of the other modulus.
    fn tagged(self, x: u64) -> u64 {
        x | (self.number as u64) << 63
    }
}

impl ResidueDomain<'_> {
    fn sides(&self) -> [Side; 2] {
        [(self.p, 0), (self.q, 1)].map(|(modulus, number)| Side { modulus, number })
    }

    fn hash(&self, salt: u64, x: u64) -> u64 {
        scramble(scramble(self.key ^ salt).wrapping_add(scramble(x)))
    }

    /// A random residue for an argument of an uninterpreted function.
    fn symbol(&self, side: Side, function: u64, x: u64) -> u64 {
        let salt = SALTS[side.number].wrapping_mul(0x1_0001).wrapping_add(function << 20);
        let wide = u128::from(self.hash(salt, x)) << 64 | u128::from(self.hash(!salt, x));
        (wide % u128::from(side.modulus.prime)) as u64
    }

    /// The powers of exponents.
    fn exponentials(&mut self, site: Site, argument: &Residues, kind: Exponent) -> PartResult {
        let x = argument.q.as_ref().ok_or_else(absent)?;
        if self.notes.exponents {
            self.note(site, argument, x, kind)?;
        }
        let q = self.q;
        let exponent = |x: u64| match kind {
            Exponent::Itself => x,
            Exponent::Negated => q.sub(0, x),
            Exponent::Twice => q.sub(0, q.add(x, x)),
            Exponent::Gelu => q.sub(0, gelu_exponent(q, x)),
        };
        let unit = self.unit_exponentials;
        let mut result = x.map(|x| if unit { 1 } else { self.powers.of(exponent(x)) });
        if let Some(weight) = &argument.weight {
            result = result.zip(weight, &x.shape, |a, b| self.p.mul(a, b));
        }
        if let Some(scaling) = &self.scaled
            && (scaling.kernel, scaling.tile) == (site.kernel, site.tile)
        {
            for (position, value) in result.data.iter_mut().enumerate() {
                let row = (scaling.row)(site, &result.shape, position);
                *value = self.p.mul(*value, 1 + self.hash(7, row) % (self.p.prime - 1));
            }
        }
        Ok(result)
    }

    fn note(
        &mut self,
        site: Site,
        argument: &Residues,
        x: &Arc<Array<u64>>,
        kind: Exponent,
    ) -> Result<(), EvalError> {
        let is_gelu = matches!(kind, Exponent::Gelu);
        let whole = || Term { values: x.clone(), power: Rational::ONE, is_gelu };
        let mut terms = match &argument.terms {
            Some(terms) if !is_gelu => terms.as_ref().clone(),
            _ => vec![whole()],
        };
        if let Exponent::Twice = kind {
            for term in &mut terms {
                term.power = term.power.plus(term.power).unwrap_or(term.power);
            }
        }
        let live: Option<Vec<bool>> =
            argument.weight.as_ref().map(|weight| weight.data.iter().map(|&w| w != 0).collect());
        self.note_powers(&terms)?;
        for term in &terms {
            for (position, &value) in term.values.data.iter().enumerate() {
                if live.as_ref().is_none_or(|live| live[position]) {
                    self.note_atom(value, term.is_gelu);
                }
            }
        }
        self.notes.kept.insert(site, (live, terms));
        Ok(())
    }

    /// Notes an exponent that is neither a maximum nor zero.
    fn note_atom(&mut self, value: u64, is_gelu: bool) {
        if value != 0 && !self.is_maximum(value) {
            self.notes.atoms.insert(atom(value, is_gelu));
        }
    }

    /// True of exponents that are maxima of several elements, which are independent of all others.
    pub fn is_maximum(&self, value: u64) -> bool {
        self.maxima[1].contains_key(&value)
    }

    /// Counts by how many factors of what all are powers of an exponential grows.
    fn note_powers(&mut self, terms: &[Term]) -> Result<(), EvalError> {
        for term in terms {
            let den = term.power.den() as u64;
            let common = self.notes.denominator;
            self.notes.denominator = common / gcd(common, den) * den;
        }
        if self.notes.denominator > MOST_POWER as u64 {
            return Err(EvalError::Unsupported("exponents are unlike fractions of each other".into()));
        }
        let sum: u64 = terms.iter().map(|term| term.power.num().unsigned_abs()).sum();
        self.notes.powers = self.notes.powers.max(sum);
        Ok(())
    }

    /// `1 / (1 + w^-f(x))`
    fn sigmoid(&mut self, site: Site, x: &Residues, kind: Exponent) -> PartResult {
        let powers = self.exponentials(site, x, kind)?;
        let divisors: Vec<u64> = powers.data.iter().map(|&x| self.p.add(x, 1)).collect();
        let data = self.p.inverses(&divisors).ok_or_else(|| undefined(site, "a divisor"))?;
        Ok(Array { shape: powers.shape, data })
    }

    /// Roots, with the positive constant taken out that is seen in the radicand.
    fn roots(&mut self, site: Site, side: Side, x: &Array<u64>, facts: &LaxFacts) -> PartResult {
        let ratio = |c: Option<Rational>| {
            c.and_then(|c| side.modulus.ratio(c)).ok_or_else(|| undefined(site, "a constant"))
        };
        let factor = ratio(Some(facts.root))?;
        let square = Rational::new(facts.root.den(), facts.root.num()).and_then(|c| c.times(c));
        let inverse = ratio(square)?;
        let x = x.map(|x| side.modulus.mul(x, inverse));
        self.note_radicands(site, side, &x, facts);
        let root = |x: u64| if x == 0 { 0 } else { side.modulus.mul(self.symbol(side, 1, x), factor) };
        let result = x.map(root);
        if self.notes.defined && self.program.is_some() {
            for (radicand, root) in x.data.iter().zip(&result.data) {
                if self.is_nonzero(side.tagged(*radicand)) {
                    self.notes.nonzero.insert(side.tagged(*root));
                }
            }
        }
        Ok(result)
    }

    fn note_radicands(&mut self, site: Site, side: Side, x: &Array<u64>, facts: &LaxFacts) {
        match self.program {
            _ if !self.notes.defined || !self.checks.make(Check::Radicands) => {}
            None => self.notes.radicands.extend(x.data.iter().map(|x| side.tagged(*x))),
            Some(program) => {
                let is_unknown = |x: &u64| !program.radicands.contains(&side.tagged(*x));
                if !facts.is_defined && x.data.iter().any(is_unknown) {
                    self.notes.foreign.insert((site.kernel, site.tile), false);
                }
            }
        }
    }

    fn is_nonzero(&self, x: u64) -> bool {
        self.notes.nonzero.contains(&x) || self.program.is_some_and(|program| program.nonzero.contains(&x))
    }

    /// Notes what is divided by; of a candidate what is not known to be other than zero.
    fn note_divisors(&mut self, site: Site, side: Side, x: &Array<u64>, facts: &LaxFacts) {
        if !self.notes.defined || (self.program.is_some() && facts.is_defined) {
            return;
        }
        let place = (site.kernel, site.tile);
        // Constant multiples of each other are zero together.
        let inverse = Rational::new(facts.divided.den(), facts.divided.num());
        let inverse = inverse.and_then(|inverse| side.modulus.ratio(inverse)).unwrap_or(1);
        let x = x.map(|x| side.modulus.mul(x, inverse));
        match self.program {
            None => {
                let tagged = x.data.iter().map(|x| side.tagged(*x));
                self.notes.nonzero.extend(tagged.clone());
                if facts.of_support {
                    self.notes.supports.extend(tagged);
                }
            }
            Some(program) if self.unit_exponentials => {
                let is_unknown = |x: &u64| !program.supports.contains(&side.tagged(*x));
                let is_foreign = !facts.of_support || x.data.iter().any(is_unknown);
                if is_foreign && self.checks.make(Check::Supports) {
                    self.notes.foreign.insert(place, false);
                }
            }
            Some(_) => {
                let is_foreign = x.data.iter().any(|x| !self.is_nonzero(side.tagged(*x)));
                if is_foreign && self.checks.make(Check::Divisors) {
                    self.notes.foreign.insert(place, facts.of_support);
                }
            }
        }
    }

    /// Values of a candidate that are products or quotients of what is not zero, or positive by their sign.
    fn note_nonzero(&mut self, op: &Op, args: &[&Residues], result: &Residues, facts: &LaxFacts) {
        if !self.notes.defined || self.program.is_none() {
            return;
        }
        for side in self.sides() {
            let Some(values) = result.part(side.number) else { continue };
            let tagged = |(x, _): (&u64, &bool)| side.tagged(*x);
            let known = |at: usize| {
                args[at].part(side.number).as_ref().map(|part| part.map(|x| self.is_nonzero(side.tagged(x))))
            };
            let which = match op {
                _ if facts.sign == super::sign::Sign::Positive => Some(values.map(|_| true)),
                Op::Binary(BinaryFn::Mul | BinaryFn::Div) => {
                    known(0).zip(known(1)).map(|(a, b)| a.zip(&b, &result.shape, |a, b| a && b))
                }
                Op::Scale(c) if *c != Rational::ZERO => known(0),
                Op::Unary(UnaryFn::Square) => known(0),
                _ => None,
            };
            if let Some(which) = which {
                let nonzero = values.data.iter().zip(&which.data).filter(|(_, is)| **is).map(tagged);
                self.notes.nonzero.extend(nonzero);
            }
        }
    }

    /// The largest of some elements, each with its weight: of one element itself, else a hash of the set. The set of a maximum among
    /// them is joined as it is, so that a running maximum costs what is new.
    fn largest(&mut self, side: Side, elements: impl Iterator<Item = (u64, u64)>) -> (u64, u64) {
        let (mut single, mut sets) = (Vec::new(), Vec::new());
        for (value, weight) in elements.filter(|(_, weight)| *weight != 0) {
            match self.maxima[side.number].get(&value) {
                Some(members) if weight == 1 => sets.push(*members),
                _ => single.push((value, weight)),
            }
        }
        single.sort_unstable();
        single.dedup();
        match single[..] {
            [] if sets.is_empty() => return (0, 0),
            [(value, 1)] if sets.is_empty() => return (value, 1),
            _ => {}
        }
        let hashes = single.iter().map(|(value, weight)| self.hash(self.hash(MEMBER, *weight), *value));
        let hashes = hashes.collect();
        let single = self.sets.of(hashes);
        let all = sets.into_iter().fold(single, |all, set| self.sets.union(set, all));
        let symbol = self.symbol(side, 2, self.sets.sum(all));
        self.maxima[side.number].insert(symbol, all);
        (symbol, 1)
    }

    /// Maxima of two operands, or along a dimension.
    fn maxima(&mut self, op: &Op, args: &[&Residues], shape: &[usize], facts: &LaxFacts) -> MaxResult {
        let mut result = Residues::nothing(shape);
        let needed = [facts.needs_p, facts.needs_q];
        for side in self.sides().into_iter().filter(|side| needed[side.number]) {
            let pairs: Vec<Array<(u64, u64)>> =
                args.iter().map(|arg| arg.weighted(side.number)).collect::<Result<_, _>>()?;
            let largest = match op {
                Op::Reduce { dim, keep, .. } => {
                    let (_, extent, inner) = Array::<u64>::around(&pairs[0].shape, *dim);
                    let member = |at: usize, j: usize| {
                        let (outer, rest) = (at / (keep * inner), at % (keep * inner));
                        pairs[0].data[outer * extent * inner + j * keep * inner + rest]
                    };
                    let count = extent / keep;
                    Array::from_fn(shape, |at| self.largest(side, (0..count).map(|j| member(at, j))))
                }
                _ => pairs[0].zip(&pairs[1], shape, |a, b| self.largest(side, [a, b].into_iter())),
            };
            let values = Arc::new(largest.map(|(value, _)| value));
            if largest.data.iter().any(|(_, weight)| *weight != 1) {
                result.weight = Some(Arc::new(largest.map(|(_, weight)| weight)));
            }
            if side.number == 1 {
                let term = Term { values: values.clone(), power: Rational::ONE, is_gelu: false };
                result.terms = Some(Arc::new(vec![term]));
            }
            *[&mut result.p, &mut result.q][side.number] = Some(values);
        }
        Ok(result)
    }

    /// One residue of an operator that treats both alike.
    fn part(
        &mut self,
        (site, facts): (Site, &LaxFacts),
        side: Side,
        op: &Op,
        args: &[&Array<u64>],
        shape: &[usize],
    ) -> PartResult {
        let modulus = side.modulus;
        let ratio = |c: &Rational| modulus.ratio(*c).ok_or_else(|| undefined(site, "a constant"));
        Ok(match op {
            Op::Matmul => {
                let mut out = vec![0; crate::op::elems(shape)];
                for product in MatrixProduct::all(&args[0].shape, &args[1].shape, shape) {
                    modulus.matmul(&args[0].data, &args[1].data, &mut out, &product);
                }
                Array { shape: shape.to_vec(), data: out }
            }
            Op::Unary(UnaryFn::Square) => args[0].map(|x| modulus.mul(x, x)),
            Op::Unary(UnaryFn::Sqrt) => self.roots(site, side, args[0], facts)?,
            Op::Unary(UnaryFn::Erf) => args[0].map(|x| self.symbol(side, 3, x)),
            Op::Unary(UnaryFn::Relu) => args[0].map(|x| self.relu(side, x)),
            Op::Scale(c) => {
                let c = ratio(c)?;
                args[0].map(|x| modulus.mul(x, c))
            }
            Op::Offset(c) => {
                let c = ratio(c)?;
                args[0].map(|x| modulus.add(x, c))
            }
            Op::Binary(BinaryFn::Add) => args[0].zip(args[1], shape, |a, b| modulus.add(a, b)),
            Op::Binary(BinaryFn::Sub) => args[0].zip(args[1], shape, |a, b| modulus.sub(a, b)),
            Op::Binary(BinaryFn::Mul) => args[0].zip(args[1], shape, |a, b| modulus.mul(a, b)),
            // One of two masks.
            Op::Binary(BinaryFn::Max) => args[0].zip(args[1], shape, |a, b| either(modulus, a, b)),
            Op::Reduce { f: ReduceFn::Max, dim, keep } => {
                args[0].reduce(*dim, *keep, 0, |a, b| either(modulus, a, b))
            }
            Op::Binary(BinaryFn::Div) => {
                self.note_divisors(site, side, args[1], facts);
                let data = modulus.inverses(&args[1].data).ok_or_else(|| undefined(site, "a divisor"))?;
                let inverses = Array { shape: args[1].shape.clone(), data };
                args[0].zip(&inverses, shape, |a, b| modulus.mul(a, b))
            }
            Op::Reduce { f: ReduceFn::Sum, dim, keep } => {
                args[0].reduce(*dim, *keep, 0, |a, b| modulus.add(a, b))
            }
            Op::RmsNorm { eps } => self.rms_norm((site, facts), side, args[0], *eps)?,
            Op::Rotate { dim, group } => args[0].rotate(*dim, *group, |x| modulus.sub(0, x)),
            op => moved(op, args, shape.to_vec(), (0, 1))?,
        })
    }

    /// `x` in one case, zero in the other; `relu(x) - relu(-x) = x`.
    fn relu(&self, side: Side, x: u64) -> u64 {
        let modulus = side.modulus;
        let negated = modulus.sub(0, x);
        let case = self.symbol(side, 4, x.min(negated));
        let case = if x <= negated { case } else { modulus.sub(1, case) };
        modulus.mul(x, case)
    }

    fn rms_norm(
        &mut self,
        (site, facts): (Site, &LaxFacts),
        side: Side,
        x: &Array<u64>,
        eps: Rational,
    ) -> PartResult {
        let modulus = side.modulus;
        let dim = x.shape.len() - 1;
        let ratio = |c: Option<Rational>| {
            c.and_then(|c| modulus.ratio(c)).ok_or_else(|| undefined(site, "a constant"))
        };
        let (mean, eps_residue) = (ratio(Rational::one_over(x.shape[dim].max(1)))?, ratio(Some(eps))?);
        let squares = x.map(|x| modulus.mul(x, x)).reduce(dim, 1, 0, |a, b| modulus.add(a, b));
        let radicands = squares.map(|sum| modulus.add(modulus.mul(sum, mean), eps_residue));
        // A sum of squares has a root, whatever the sign of a constant.
        let mean = Rational::one_over(x.shape[dim].max(1)).filter(|_| eps == Rational::ZERO);
        let root = mean.and_then(|mean| facts.root.times(super::sign::square_part(mean)));
        let root = root.unwrap_or(Rational::ONE);
        let of_radicand = LaxFacts { is_defined: eps >= Rational::ZERO, root, ..*facts };
        let facts = &LaxFacts { divided: root, ..*facts };
        let roots = self.roots(site, side, &radicands, &of_radicand)?;
        self.note_divisors(site, side, &roots, facts);
        let data = modulus.inverses(&roots.data).ok_or_else(|| undefined(site, "a divisor"))?;
        let inverses = Array { shape: roots.shape, data };
        Ok(x.zip(&inverses, &x.shape, |a, b| modulus.mul(a, b)))
    }

    /// The weight of a result that may be minus infinity.
    fn weight(&self, op: &Op, args: &[&Residues], shape: &[usize]) -> Result<Part, EvalError> {
        let times = |a: &Array<u64>, b: &Array<u64>| Some(Arc::new(a.zip(b, shape, |a, b| self.p.mul(a, b))));
        let spread = |weight: &Array<u64>| Some(Arc::new(weight.broadcast(shape)));
        Ok(match op {
            Op::Binary(BinaryFn::Mask) => {
                let mask = args[1].p.as_ref().ok_or_else(absent)?;
                args[0].weight.as_ref().map_or_else(|| spread(mask), |own| times(own, mask))
            }
            Op::Binary(BinaryFn::Add) => match (&args[0].weight, &args[1].weight) {
                (Some(a), Some(b)) => times(a, b),
                (Some(weight), None) | (None, Some(weight)) => spread(weight),
                (None, None) => None,
            },
            Op::Binary(BinaryFn::Sub) => args[0].weight.as_ref().and_then(|weight| spread(weight)),
            Op::Scale(_) | Op::Offset(_) => args[0].weight.clone(),
            Op::Unary(_) | Op::Binary(_) | Op::Matmul | Op::Reduce { .. } => None,
            Op::RmsNorm { .. } | Op::Rotate { .. } | Op::Causal { .. } | Op::Below { .. } => None,
            op if args.iter().all(|arg| arg.weight.is_none()) => {
                debug_assert!(!op.is_elementwise());
                None
            }
            op => {
                let all: Vec<Array<u64>> = args.iter().map(|arg| arg.own_weight()).collect();
                let all: Vec<&Array<u64>> = all.iter().collect();
                Some(Arc::new(moved(op, &all, shape.to_vec(), (0, 1))?))
            }
        })
    }

    /// What an exponent is a sum of.
    fn terms(&self, op: &Op, args: &[&Residues], shape: &[usize]) -> Option<Arc<Vec<Term>>> {
        let is_kept = self.splits || args.iter().any(|arg| arg.terms.is_some());
        if !self.notes.exponents || !is_kept {
            return None;
        }
        let terms = |at: usize| args[at].all_terms();
        let spread = |mut term: Term| {
            term.values = Arc::new(term.values.broadcast(shape));
            term
        };
        let small =
            |c: &Rational| *c != Rational::ZERO && c.num().abs() <= MOST_POWER && c.den() <= MOST_POWER;
        let by = |mut term: Term, c: Rational| {
            term.power = term.power.times(c).filter(small)?;
            Some(term)
        };
        let negated = Rational::ONE.negated();
        let joined: Option<Vec<Term>> = match op {
            Op::Binary(BinaryFn::Add) => Some(terms(0)?.into_iter().chain(terms(1)?).map(spread).collect()),
            Op::Binary(BinaryFn::Sub) => {
                let subtracted = terms(1)?.into_iter().map(|term| by(term, negated));
                let all = terms(0)?.into_iter().map(Some).chain(subtracted);
                all.map(|term| term.map(spread)).collect()
            }
            Op::Scale(c) if small(c) => terms(0)?.into_iter().map(|term| by(term, *c)).collect(),
            Op::Binary(BinaryFn::Mask) => Some(terms(0)?.into_iter().map(spread).collect()),
            Op::Unary(UnaryFn::Guard) => {
                let weight = args[0].own_weight();
                let guarded = |mut term: Term| {
                    let keep = |x, weight| if weight == 0 { 0 } else { x };
                    term.values = Arc::new(term.values.zip(&weight, shape, keep));
                    term
                };
                Some(terms(0)?.into_iter().map(guarded).collect())
            }
            Op::Transpose(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Repeat { .. } => {
                let move_one = |mut term: Term| {
                    term.values = Arc::new(moved(op, &[&term.values], shape.to_vec(), (0, 1)).ok()?);
                    Some(term)
                };
                terms(0)?.into_iter().map(move_one).collect()
            }
            _ => None,
        };
        joined.map(Arc::new)
    }
}

/// What an exponential function has as its exponent, of its argument.
#[derive(Clone, Copy)]
enum Exponent {
    Itself,
    Negated,
    Twice,
    Gelu,
}

impl Residues {
    /// A value of which nothing is needed.
    pub(crate) fn nothing(shape: &[usize]) -> Residues {
        Residues { shape: shape.to_vec(), p: None, q: None, weight: None, terms: None }
    }

    /// Takes elements from another value of the same shape.
    pub(crate) fn keep(&mut self, other: &Residues, which: &Array<bool>) {
        for (own, other) in [(&mut self.p, &other.p), (&mut self.q, &other.q)] {
            let (Some(own), Some(other)) = (own, other) else { continue };
            let own = Arc::make_mut(own);
            for ((own, other), _) in
                own.data.iter_mut().zip(&other.data).zip(&which.data).filter(|(_, is)| **is)
            {
                *own = *other;
            }
        }
    }

    fn part(&self, number: usize) -> &Part {
        [&self.p, &self.q][number]
    }

    /// The weight, one where it is absent.
    fn own_weight(&self) -> Array<u64> {
        let one = || Array::full(&self.shape, 1);
        self.weight.as_ref().map_or_else(one, |weight| weight.as_ref().clone())
    }

    /// Values with their weights.
    fn weighted(&self, number: usize) -> Result<Array<(u64, u64)>, EvalError> {
        let part = self.part(number).as_ref().ok_or_else(absent)?;
        Ok(part.zip(&self.own_weight(), &self.shape, |value, weight| (value, weight)))
    }

    /// What it is a sum of: itself, if nothing else is known.
    fn all_terms(&self) -> Option<Vec<Term>> {
        let whole = |values: &Arc<Array<u64>>| {
            vec![Term { values: values.clone(), power: Rational::ONE, is_gelu: false }]
        };
        self.terms.as_ref().map(|terms| terms.as_ref().clone()).or_else(|| self.q.as_ref().map(whole))
    }
}

type PartResult = Result<Array<u64>, EvalError>;
type MaxResult = Result<Residues, EvalError>;

/// An exponent, apart from the arguments of gelu, whose exponents are others.
pub(super) fn atom(value: u64, is_gelu: bool) -> u64 {
    if is_gelu { !value } else { value }
}

/// The larger of two masks: a polynomial that is so at zeros and ones.
fn either(modulus: Modulus, a: u64, b: u64) -> u64 {
    modulus.sub(modulus.add(a, b), modulus.mul(a, b))
}

fn undefined(site: Site, what: &str) -> EvalError {
    let tile = site.tile.map_or(String::new(), |tile| format!(", s{tile}"));
    EvalError::Undefined(format!("{what} in {}{tile}", site.kernel))
}

impl Domain for ResidueDomain<'_> {
    type Value = Residues;

    /// What is scaled differs from block to block.
    fn is_alike_in_blocks(&self) -> bool {
        self.scaled.is_none()
    }

    fn apply(&mut self, site: Site, op: &Op, args: &[&Residues]) -> Result<Residues, EvalError> {
        let shapes: Vec<&[usize]> = args.iter().map(|arg| arg.shape.as_slice()).collect();
        let shape = op.infer(&shapes).map_err(EvalError::Inputs)?;
        let facts = self.facts.at(site).copied().unwrap_or_default();
        if !facts.needs_p && !facts.needs_q {
            return Ok(Residues::nothing(&shape));
        }
        let result = self.value((site, &facts), op, args, &shape)?;
        self.note_nonzero(op, args, &result, &facts);
        Ok(result)
    }

    fn slice(&self, value: &Residues, ranges: &[(usize, usize)]) -> Residues {
        let part = |part: &Part| part.as_ref().map(|part| Arc::new(part.slice(ranges)));
        let shape = ranges.iter().map(|&(_, len)| len).collect();
        let terms = value.terms.as_ref().map(|terms| {
            let cut = |term: &Term| Term { values: Arc::new(term.values.slice(ranges)), ..term.clone() };
            Arc::new(terms.iter().map(cut).collect())
        });
        Residues { shape, p: part(&value.p), q: part(&value.q), weight: part(&value.weight), terms }
    }

    fn concat(&self, parts: &[Residues], dim: usize) -> Residues {
        let join = |part: fn(&Residues) -> Option<&Array<u64>>| {
            let parts: Option<Vec<&Array<u64>>> = parts.iter().map(part).collect();
            parts.map(|parts| Arc::new(Array::concat(&parts, dim)))
        };
        let extent = parts.iter().map(|part| part.shape[dim]).sum();
        let shape = crate::op::with(&parts[0].shape, dim, extent);
        let weight = parts.iter().any(|part| part.weight.is_some()).then(|| {
            let all: Vec<Array<u64>> = parts.iter().map(Residues::own_weight).collect();
            Arc::new(Array::concat(&all.iter().collect::<Vec<_>>(), dim))
        });
        let terms = joint_terms(parts, dim);
        Residues { shape, p: join(|r| r.p.as_deref()), q: join(|r| r.q.as_deref()), weight, terms }
    }

    fn rescale(
        &mut self,
        site: Site,
        sum: &Residues,
        (before, now): (&Residues, &Residues),
        degree: Rational,
    ) -> Result<Residues, EvalError> {
        let (Some(sum_p), Some(old), Some(new)) = (&sum.p, &before.q, &now.q) else {
            return Ok(sum.clone());
        };
        if self.notes.exponents {
            let terms = [before, now].map(Residues::all_terms).into_iter().flatten().flatten();
            let scaled = terms.map(|mut term| {
                term.power = term.power.times(degree).unwrap_or(term.power);
                term
            });
            let terms: Vec<Term> = scaled.collect();
            self.note_powers(&terms)?;
            terms.iter().flat_map(|term| &term.values.data).for_each(|&value| self.note_atom(value, false));
        }
        let degree = self.q.ratio(degree).ok_or_else(|| undefined(site, "a degree"))?;
        let guarded = new.zip(&now.own_weight(), &new.shape, |x, weight| if weight == 0 { 0 } else { x });
        let unit = self.unit_exponentials;
        let factor = old.zip(&guarded, &old.shape, |before, now| {
            if unit { 1 } else { self.powers.of(self.q.mul(self.q.sub(before, now), degree)) }
        });
        let factor = factor.zip(&before.own_weight(), &old.shape, |a, b| self.p.mul(a, b));
        let p = sum_p.zip(&factor, &sum.shape, |a, b| self.p.mul(a, b));
        Ok(Residues { p: Some(Arc::new(p)), ..sum.clone() })
    }
}

/// What values beside each other are sums of, if these are alike.
fn joint_terms(parts: &[Residues], dim: usize) -> Option<Arc<Vec<Term>>> {
    let all: Vec<&Vec<Term>> = parts.iter().map(|part| part.terms.as_deref()).collect::<Option<_>>()?;
    let first = all[0];
    let alike = |terms: &&Vec<Term>| {
        let same = |(a, b): (&Term, &Term)| a.power == b.power;
        terms.len() == first.len() && terms.iter().zip(first).all(same)
    };
    if !all.iter().all(alike) {
        return None;
    }
    let join = |(at, term): (usize, &Term)| {
        let parts: Vec<&Array<u64>> = all.iter().map(|terms| terms[at].values.as_ref()).collect();
        Term { values: Arc::new(Array::concat(&parts, dim)), ..term.clone() }
    };
    Some(Arc::new(first.iter().enumerate().map(join).collect()))
}

impl ResidueDomain<'_> {
    fn value(
        &mut self,
        (site, facts): (Site, &LaxFacts),
        op: &Op,
        args: &[&Residues],
        shape: &[usize],
    ) -> Result<Residues, EvalError> {
        let given = |part: &Part| part.clone().ok_or_else(absent);
        let number = |p: Array<u64>| Residues { p: Some(Arc::new(p)), ..Residues::nothing(shape) };
        let p = self.p;
        match op {
            Op::Unary(UnaryFn::Exp) => Ok(number(self.exponentials(site, args[0], Exponent::Itself)?)),
            Op::Unary(UnaryFn::Sigmoid) => Ok(number(self.sigmoid(site, args[0], Exponent::Negated)?)),
            Op::Unary(UnaryFn::Silu) => {
                let sigmoid = self.sigmoid(site, args[0], Exponent::Negated)?;
                Ok(number(given(&args[0].p)?.zip(&sigmoid, shape, |a, b| p.mul(a, b))))
            }
            Op::Unary(UnaryFn::Tanh) => {
                let sigmoid = self.sigmoid(site, args[0], Exponent::Twice)?;
                Ok(number(sigmoid.map(|s| p.sub(p.add(s, s), 1))))
            }
            Op::Unary(UnaryFn::Gelu) => {
                let sigmoid = self.sigmoid(site, args[0], Exponent::Gelu)?;
                Ok(number(given(&args[0].p)?.zip(&sigmoid, shape, |a, b| p.mul(a, b))))
            }
            Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. } if !facts.is_mask => {
                self.maxima(op, args, shape, facts)
            }
            // Nothing negative is left out.
            Op::Unary(UnaryFn::Relu) if facts.is_identity => Ok(args[0].clone()),
            Op::Unary(UnaryFn::Guard) => {
                let weight = args[0].own_weight();
                let part = |part: &Part| {
                    let keep = |x, weight| if weight == 0 { 0 } else { x };
                    part.as_ref().map(|part| Arc::new(part.zip(&weight, shape, keep)))
                };
                let terms = self.terms(op, args, shape);
                let (p, q) = (part(&args[0].p), part(&args[0].q));
                Ok(Residues { shape: shape.to_vec(), p, q, weight: None, terms })
            }
            op => {
                let mut parts = [None, None];
                for side in self.sides() {
                    let operands: Option<Vec<&Array<u64>>> = match op {
                        Op::Binary(BinaryFn::Mask) => {
                            Some(args[0].part(side.number).as_deref().into_iter().collect())
                        }
                        _ => args.iter().map(|arg| arg.part(side.number).as_deref()).collect(),
                    };
                    let needed = [facts.needs_p, facts.needs_q][side.number];
                    let Some(operands) = operands.filter(|_| needed) else { continue };
                    parts[side.number] = match (op, &operands[..]) {
                        (Op::Binary(BinaryFn::Mask), []) => None,
                        (Op::Binary(BinaryFn::Mask), [own, ..]) => Some(Arc::new(own.broadcast(shape))),
                        _ => Some(Arc::new(self.part((site, facts), side, op, &operands, shape)?)),
                    };
                }
                let [p, q] = parts;
                let terms = q.as_ref().and_then(|_| self.terms(op, args, shape));
                Ok(Residues { shape: shape.to_vec(), p, q, weight: self.weight(op, args, shape)?, terms })
            }
        }
    }
}

/// `2 c (x + a x³)` of the tanh form of gelu, which is `x` times the sigmoid of it.
fn gelu_exponent(q: Modulus, x: u64) -> u64 {
    // sqrt(2 / pi) and 0.044715 as the ratios of integers that the decimal fractions are.
    let ratio = |num, den| q.mul(q.integer(num), q.inverse(q.integer(den)).unwrap_or(1));
    let (c, a) = (ratio(7_978_845_608_028_654, 10_000_000_000_000_000), ratio(44_715, 1_000_000));
    q.mul(q.add(c, c), q.add(x, q.mul(a, q.mul(x, q.mul(x, x)))))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

fn absent() -> EvalError {
    EvalError::Unsupported("a residue is absent".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_domain(test: impl FnOnce(&mut ResidueDomain<'_>, Side)) {
        let facts = Table { tensors: Vec::new(), tiles: BTreeMap::new() };
        let mut domain = TestBase::new(61, &mut Stream::new(7)).domain(&facts);
        let [_, side] = domain.sides();
        test(&mut domain, side);
    }

    /// A maximum is of its members, each once, however they are grouped: members, or maxima of some, in several of its operands.
    #[test]
    fn members_of_running_maxima_count_once() {
        with_domain(|domain, side| {
            let of = |domain: &mut ResidueDomain<'_>, values: std::ops::Range<u64>| {
                domain.largest(side, values.map(|value| (1000 + value, 1)))
            };
            let whole = of(domain, 0..300);
            let tiles = [0..100, 50..200, 0..100, 120..121, 100..300].map(|tile| of(domain, tile));
            let running = |domain: &mut ResidueDomain<'_>, tiles: &[(u64, u64)]| {
                tiles.iter().copied().reduce(|before, tile| domain.largest(side, [before, tile].into_iter()))
            };
            assert_eq!(running(domain, &tiles), Some(whole));
            assert_eq!(running(domain, &[tiles[4], whole, tiles[1], whole]), Some(whole));
            assert_eq!(domain.largest(side, [whole, whole, (1007, 1), (0, 0)].into_iter()), whole);
            // One member more or less, or another weight, is another maximum.
            let others = [of(domain, 0..299), of(domain, 0..301), of(domain, 1..300)];
            assert!(others.iter().all(|other| *other != whole));
            let masked = domain.largest(side, (0..300).map(|value| (1000 + value, 1 + value / 299)));
            assert_ne!(masked, whole);
            assert_ne!(domain.largest(side, [whole, (1007, 2)].into_iter()), whole);
            // A maximum that is masked is a member by itself.
            let both = domain.largest(side, [(whole.0, 5), (1007, 1)].into_iter());
            assert!(both != whole && both.0 != 1007);
        });
    }

    /// A running maximum costs what each tile adds, not all that was there before: twice the tiles take little more than twice the steps.
    #[test]
    fn running_maxima_cost_what_is_new() {
        with_domain(|domain, side| {
            let mut steps = |tiles: u64| {
                let before = domain.sets.steps();
                let mut running = (0, 0);
                for tile in 0..tiles {
                    let values = (0..64).map(|at| ((tiles << 40 | tile << 20 | at) + 1, 1));
                    let tile = domain.largest(side, values);
                    running = domain.largest(side, [running, tile].into_iter());
                }
                domain.sets.steps() - before
            };
            let (few, twice, many) = (steps(128), steps(256), steps(1024));
            // Per member a path of nodes and a leaf. Eight times the members would take 64 times the steps if each tile took all.
            assert!(few < 128 * 64 * 30, "{few}");
            assert!(twice < 3 * few, "{few} {twice}");
            assert!(many < 14 * few, "{few} {many}");
        });
    }
}
