//! Arithmetic modulo primes of at most 61 bits, and the pairs of primes `p = 2q + 1` that proofs draw.

use crate::floats::MatrixProduct;

/// A pair of primes with `p = 2q + 1`: numbers live in `Z_p`, exponents in `Z_q`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Primes {
    /// The larger prime.
    pub p: u64,
    /// The smaller prime, the order of the squares modulo `p`.
    pub q: u64,
}

/// Bits of the primes of proofs.
pub const PROOF_BITS: u32 = 61;
/// Bits of the primes that screen candidates.
pub const SCREEN_BITS: u32 = 31;

/// Up to this many bits a prime may be any of its length; longer ones are 61 bits, and in the last eighth of them.
const SHORT: u32 = 32;

impl Primes {
    /// A random pair, whose larger prime has so many bits: 4 to 32, or 61.
    pub fn draw(bits: u32, stream: &mut Stream) -> Primes {
        let bits = if bits > SHORT { PROOF_BITS } else { bits.max(4) };
        let end = 1 << bits;
        let start = if bits > SHORT { end - (end >> 3) } else { end >> 1 };
        loop {
            let p = (start + stream.below(end - start)) | 3;
            let q = p >> 1;
            if p < end && has_no_small_factor(q) && has_no_small_factor(p) && is_prime(q) && is_prime(p) {
                return Primes { p, q };
            }
        }
    }

    /// The logarithm to base 2 of how many pairs [`Primes::draw`] chooses from at least, by the density of such primes that
    /// Hardy and Littlewood conjectured and counts confirm.
    pub fn log2_choices(bits: u32) -> f64 {
        let of_length = if bits > SHORT { PROOF_BITS - 4 } else { bits.max(4) - 2 };
        let log = f64::from(if bits > SHORT { PROOF_BITS } else { bits.max(4) }) * std::f64::consts::LN_2;
        f64::from(of_length) + (1.32 / (log * log)).log2()
    }
}

/// The primes below 100 but 2.
const SMALL_PRIMES: [u64; 24] =
    [3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97];

fn has_no_small_factor(n: u64) -> bool {
    SMALL_PRIMES.iter().all(|&small| n == small || !n.is_multiple_of(small))
}

/// Miller and Rabin's test with bases that decide all numbers of 64 bits.
fn is_prime(n: u64) -> bool {
    if n < 4 || n.is_multiple_of(2) {
        return matches!(n, 2 | 3);
    }
    let twos = (n - 1).trailing_zeros();
    let odd = (n - 1) >> twos;
    let mul = |a: u64, b: u64| (u128::from(a) * u128::from(b) % u128::from(n)) as u64;
    let pow = |mut base: u64, mut e: u64| {
        let mut result = 1;
        while e > 0 {
            if e & 1 == 1 {
                result = mul(result, base);
            }
            base = mul(base, base);
            e >>= 1;
        }
        result
    };
    [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37].into_iter().filter(|base| base % n != 0).all(|base| {
        let mut x = pow(base, odd);
        x == 1
            || (0..twos).any(|_| {
                let hit = x == n - 1;
                x = mul(x, x);
                hit
            })
    })
}

/// A prime modulus: below `2^32`, or of `bits` at most 61 and not smaller than `2^bits - 2^(bits - 3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Modulus {
    /// The prime.
    pub prime: u64,
    bits: u32,
    /// `2^(2 bits) / prime`, rounded down.
    reciprocal: u64,
    /// `2^(64 + bits - 1) / prime`, rounded down.
    wide_reciprocal: u64,
    /// The residue of `2^64`.
    word: u64,
}

/// Products of two residues that fit in 128 bits together.
const LAZY: usize = 64;

/// Columns of a matrix product whose accumulators are in registers.
const GROUP: usize = 4;

/// Groups of columns of so many rows of the right operand that stay in the first cache.
const GROUPS: usize = 8;

impl Modulus {
    /// A modulus; see the type for which there are.
    pub fn new(prime: u64) -> Modulus {
        let bits = 64 - prime.leading_zeros();
        debug_assert!(bits <= SHORT || (bits <= 61 && (1 << bits) - prime <= 1 << (bits - 3)));
        let over = |power: u32| ((1u128 << power) / u128::from(prime)) as u64;
        let (reciprocal, wide_reciprocal) = (over(2 * bits), over(63 + bits));
        Modulus { prime, bits, reciprocal, wide_reciprocal, word: ((1u128 << 64) % u128::from(prime)) as u64 }
    }

    /// The residue of a 128-bit number.
    #[inline]
    pub fn reduce(&self, x: u128) -> u64 {
        let (high, low) = ((x >> 64) as u64, x as u64);
        if self.bits <= SHORT {
            let low = low % self.prime;
            return if high == 0 { low } else { (high % self.prime * self.word + low) % self.prime };
        }
        // Both the quotient's low word and the reciprocal's rounding leave less than 2^(66 - bits) multiples.
        let quotient = (u128::from(high) * u128::from(self.wide_reciprocal)) >> (self.bits - 1);
        let rest = x - quotient * u128::from(self.prime);
        // A prime is at least 7/8 of 2^bits.
        let mut rest = (rest - (rest >> self.bits) * u128::from(self.prime)) as u64;
        while rest >= self.prime {
            rest -= self.prime;
        }
        rest
    }

    /// The sum.
    #[inline]
    pub fn add(&self, a: u64, b: u64) -> u64 {
        let sum = a + b;
        if sum >= self.prime { sum - self.prime } else { sum }
    }

    /// The difference.
    #[inline]
    pub fn sub(&self, a: u64, b: u64) -> u64 {
        if a >= b { a - b } else { a + self.prime - b }
    }

    /// The product.
    #[inline]
    pub fn mul(&self, a: u64, b: u64) -> u64 {
        let x = u128::from(a) * u128::from(b);
        if self.bits <= SHORT {
            return x as u64 % self.prime;
        }
        let high = (x >> (self.bits - 1)) as u64;
        let quotient = ((u128::from(high) * u128::from(self.reciprocal)) >> (self.bits + 1)) as u64;
        let mut rest = (x as u64).wrapping_sub(quotient.wrapping_mul(self.prime));
        while rest >= self.prime {
            rest -= self.prime;
        }
        rest
    }

    /// A power.
    pub fn pow(&self, base: u64, mut exponent: u64) -> u64 {
        let (mut power, mut result) = (base, 1 % self.prime);
        while exponent > 0 {
            if exponent & 1 == 1 {
                result = self.mul(result, power);
            }
            power = self.mul(power, power);
            exponent >>= 1;
        }
        result
    }

    /// The inverse, unless of zero.
    pub fn inverse(&self, a: u64) -> Option<u64> {
        (a != 0).then(|| self.pow(a, self.prime - 2))
    }

    /// The inverses of all, unless one is zero: one inversion in all.
    pub fn inverses(&self, values: &[u64]) -> Option<Vec<u64>> {
        let mut prefix = Vec::with_capacity(values.len());
        let mut product = 1;
        for &value in values {
            prefix.push(product);
            product = self.mul(product, value);
        }
        let mut inverse = self.inverse(product)?;
        for (slot, &value) in prefix.iter_mut().zip(values).rev() {
            *slot = self.mul(*slot, inverse);
            inverse = self.mul(inverse, value);
        }
        Some(prefix)
    }

    /// The residue of a signed integer.
    pub fn integer(&self, value: i64) -> u64 {
        let magnitude = value.unsigned_abs() % self.prime;
        if value < 0 { self.sub(0, magnitude) } else { magnitude }
    }

    /// The residue of a ratio, unless its denominator vanishes.
    pub fn ratio(&self, value: crate::Rational) -> Option<u64> {
        Some(self.mul(self.integer(value.num()), self.inverse(self.integer(value.den()))?))
    }

    /// Matrix products of a batch. Rows of the right operand are read in runs: with one to three rows on the left, memory decides the time.
    pub(crate) fn matmul(&self, lhs: &[u64], rhs: &[u64], out: &mut [u64], product: &MatrixProduct) {
        let &MatrixProduct { m, k, n, .. } = product;
        let (lhs, rhs) = (&lhs[product.lhs..][..m * k], &rhs[product.rhs..][..k * n]);
        let out = &mut out[product.out..][..m * n];
        // The part of the right operand that is in use, row by row, each in groups of columns.
        let mut panel = vec![[[0u64; GROUP]; GROUPS]; LAZY];
        for start in (0..k).step_by(LAZY) {
            let depth = LAZY.min(k - start);
            for first in (0..n).step_by(GROUP * GROUPS) {
                let width = (GROUP * GROUPS).min(n - first);
                for (l, row) in panel[..depth].iter_mut().enumerate() {
                    row.as_flattened_mut()[..width].copy_from_slice(&rhs[(start + l) * n + first..][..width]);
                }
                for i in 0..m {
                    let factors = &lhs[i * k + start..][..depth];
                    let results = out[i * n + first..][..width].chunks_mut(GROUP);
                    for (group, slots) in results.enumerate() {
                        let mut accumulators = [0u128; GROUP];
                        for (&factor, row) in factors.iter().zip(&panel[..depth]) {
                            for (sum, &x) in accumulators.iter_mut().zip(&row[group]) {
                                *sum += u128::from(factor) * u128::from(x);
                            }
                        }
                        for (slot, sum) in slots.iter_mut().zip(accumulators) {
                            *slot = self.add(*slot, self.reduce(sum));
                        }
                    }
                }
            }
        }
    }
}

/// Powers of one base, by a table of digits.
#[derive(Clone, Debug)]
pub struct Powers {
    modulus: Modulus,
    tables: Vec<Vec<u64>>,
}

/// Bits of an exponent per table.
const DIGIT: u32 = 10;

impl Powers {
    /// Powers of `base` for exponents below `limit`.
    pub fn new(modulus: Modulus, base: u64, limit: u64) -> Powers {
        let digits = (64 - limit.leading_zeros()).div_ceil(DIGIT);
        let mut step = base;
        let table = |_| {
            let mut power = 1;
            let entry = |_| {
                let now = power;
                power = modulus.mul(power, step);
                now
            };
            let table: Vec<u64> = (0..1 << DIGIT).map(entry).collect();
            step = power;
            table
        };
        Powers { modulus, tables: (0..digits).map(table).collect() }
    }

    /// The power.
    #[inline]
    pub fn of(&self, exponent: u64) -> u64 {
        let mut rest = exponent;
        self.tables.iter().fold(1, |product, table| {
            let digit = rest & ((1 << DIGIT) - 1);
            rest >>= DIGIT;
            self.modulus.mul(product, table[digit as usize])
        })
    }
}

/// A stream of numbers from a seed: xoshiro256**, started by splitmix64.
#[derive(Clone, Debug)]
pub struct Stream {
    state: [u64; 4],
}

/// One step of splitmix64: a hash of a number.
pub fn scramble(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Stream {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Stream {
        Stream { state: [0, 1, 2, 3].map(|i| scramble(seed.wrapping_add(scramble(i)))) }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        result
    }

    /// A number below a limit, each with the same chance.
    pub fn below(&mut self, limit: u64) -> u64 {
        let mask = u64::MAX >> limit.leading_zeros();
        loop {
            let number = self.bits() & mask;
            if number < limit {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_safe_primes() {
        let mut stream = Stream::new(7);
        for bits in [4, 8, 11, 14, SCREEN_BITS, PROOF_BITS] {
            let draws: Vec<Primes> = (0..20).map(|_| Primes::draw(bits, &mut stream)).collect();
            for Primes { p, q } in &draws {
                let divides = |n: u64| (2..1000).any(|d| d < n && n.is_multiple_of(d));
                assert!(
                    *p == 2 * q + 1 && 64 - p.leading_zeros() == bits && !divides(*p) && !divides(*q),
                    "{p}"
                );
            }
            assert!(draws.iter().any(|primes| *primes != draws[0]) || bits == 4);
        }
    }

    #[test]
    fn small_pairs_are_as_many_as_counted() {
        for bits in [12, 16, 20] {
            let is_pair = |p: &u64| is_prime(*p) && is_prime(p >> 1);
            let count = (1u64 << (bits - 1)..1 << bits).filter(is_pair).count();
            assert!((count as f64).log2() >= Primes::log2_choices(bits), "{bits}: {count}");
        }
    }

    #[test]
    fn arithmetic_agrees_with_division() {
        let mut stream = Stream::new(3);
        let drawn: Vec<Primes> = (0..8).map(|_| Primes::draw(PROOF_BITS, &mut stream)).collect();
        let screen = Primes::draw(SCREEN_BITS, &mut stream).p;
        let drawn = drawn.iter().flat_map(|primes| [primes.p, primes.q]);
        for prime in drawn.chain([screen, 167, 23, 11]) {
            let modulus = Modulus::new(prime);
            let mut stream = Stream::new(prime);
            for _ in 0..1000 {
                let x = u128::from(stream.bits()) << 64 | u128::from(stream.bits());
                assert_eq!(modulus.reduce(x), (x % u128::from(prime)) as u64);
                let (a, e) = (stream.below(prime), stream.below(prime - 1));
                assert_eq!(Powers::new(modulus, a, prime).of(e), modulus.pow(a, e));
                if let Some(inverse) = modulus.inverse(a) {
                    assert_eq!(modulus.mul(a, inverse), 1 % prime);
                }
                let b = stream.below(prime);
                let product = u128::from(a) * u128::from(b) % u128::from(prime);
                assert_eq!(modulus.mul(a, b), product as u64);
            }
            assert_eq!(modulus.reduce(u128::MAX), (u128::MAX % u128::from(prime)) as u64);
            let largest = prime - 1;
            assert_eq!(modulus.mul(largest, largest), 1 % prime);
        }
        let modulus = Modulus::new(Primes::draw(PROOF_BITS, &mut Stream::new(1)).p);
        assert_eq!(modulus.inverses(&[5, 0]), None);
        let inverses = modulus.inverses(&[5, 7, 11]).expect("no zero");
        let pairs = [5, 7, 11].into_iter().zip(inverses);
        assert!(pairs.into_iter().all(|(x, inverse)| modulus.mul(x, inverse) == 1));
    }

    #[test]
    fn matrix_products_agree_with_their_definition() {
        let modulus = Modulus::new(Primes::draw(PROOF_BITS, &mut Stream::new(1)).p);
        let mut stream = Stream::new(1);
        let (m, k, n) = (3, 131, 7);
        let lhs: Vec<u64> = (0..m * k).map(|_| modulus.prime - 1 - stream.below(3)).collect();
        let rhs: Vec<u64> = (0..k * n).map(|_| modulus.prime - 1 - stream.below(3)).collect();
        let mut out = vec![0; m * n];
        modulus.matmul(&lhs, &rhs, &mut out, &MatrixProduct { m, k, n, lhs: 0, rhs: 0, out: 0 });
        for i in 0..m {
            for j in 0..n {
                let sum =
                    (0..k).fold(0, |sum, l| modulus.add(sum, modulus.mul(lhs[i * k + l], rhs[l * n + j])));
                assert_eq!(out[i * n + j], sum);
            }
        }
    }
}
