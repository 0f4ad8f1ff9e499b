//! Arithmetic modulo primes of at most 61 bits, and the pairs of primes `p = 2q + 1` that proofs use.
//!
//! Both primes of a pair are chosen so that square roots are powers: `p = 7 mod 8`, `q = 3 mod 4`.

use crate::floats::MatrixProduct;

/// A pair of primes with `p = 2q + 1`: numbers live in `Z_p`, exponents in `Z_q`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Primes {
    /// The larger prime.
    pub p: u64,
    /// The smaller prime, the order of the squares modulo `p`.
    pub q: u64,
}

impl Primes {
    /// 61 and 60 bits: for proofs.
    pub const FULL: Primes = Primes { p: (1 << 61) - 3153, q: (1 << 60) - 1577 };
    /// 31 and 30 bits: for screening.
    pub const SCREEN: Primes = Primes { p: (1 << 31) - 2505, q: (1 << 30) - 1253 };
    /// 167 and 83: for tests of the bound.
    pub const SMALL: Primes = Primes { p: 167, q: 83 };
    /// 23 and 11: for tests of the bound.
    pub const TINY: Primes = Primes { p: 23, q: 11 };

    /// The known pair with this larger prime.
    pub fn known(p: u64) -> Option<Primes> {
        [Primes::FULL, Primes::SCREEN, Primes::SMALL, Primes::TINY].into_iter().find(|primes| primes.p == p)
    }
}

/// A prime modulus: below `2^32`, or `2^bits - deficit` with at most 61 bits and a deficit below `2^16`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Modulus {
    /// The prime.
    pub prime: u64,
    bits: u32,
    deficit: u64,
    /// The residue of `2^64`.
    word: u64,
}

/// Products of two residues that fit in 128 bits together.
const LAZY: usize = 64;

impl Modulus {
    /// A modulus; see the type for which there are.
    pub fn new(prime: u64) -> Modulus {
        let bits = 64 - prime.leading_zeros();
        let deficit = (1 << bits) - prime;
        debug_assert!(bits <= 32 || (bits <= 61 && deficit < 1 << 16));
        Modulus { prime, bits, deficit, word: ((1u128 << 64) % u128::from(prime)) as u64 }
    }

    /// The residue of a 128-bit number.
    #[inline]
    pub fn reduce(&self, x: u128) -> u64 {
        let (high, low) = ((x >> 64) as u64, x as u64);
        if self.bits <= 32 {
            let low = low % self.prime;
            return if high == 0 { low } else { (high % self.prime * self.word + low) % self.prime };
        }
        // 2^64 is a number below 2^20 here, and 2^bits is the deficit.
        let x = u128::from(high) * u128::from(self.word) + u128::from(low);
        let x = (x >> self.bits) as u64 * self.deficit + (x as u64 & ((1 << self.bits) - 1));
        if x >= self.prime { x - self.prime } else { x }
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
        self.reduce(u128::from(a) * u128::from(b))
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

    /// The root that is a square itself, if there is a root.
    pub fn sqrt(&self, a: u64) -> Option<u64> {
        let root = self.pow(a, self.prime.div_ceil(4));
        (self.mul(root, root) == a).then_some(root)
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

    /// Matrix products of a batch.
    pub(crate) fn matmul(&self, lhs: &[u64], rhs: &[u64], out: &mut [u64], product: &MatrixProduct) {
        const WIDTH: usize = 4;
        let &MatrixProduct { m, k, n, .. } = product;
        let (lhs, rhs) = (&lhs[product.lhs..][..m * k], &rhs[product.rhs..][..k * n]);
        let out = &mut out[product.out..][..m * n];
        // The part of the right operand that is in use, columns of WIDTH side by side.
        let mut panel = vec![[0u64; WIDTH]; LAZY];
        for first in (0..n).step_by(WIDTH) {
            let width = WIDTH.min(n - first);
            for start in (0..k).step_by(LAZY) {
                let depth = LAZY.min(k - start);
                for (l, row) in panel[..depth].iter_mut().enumerate() {
                    let from = (start + l) * n + first;
                    row[..width].copy_from_slice(&rhs[from..from + width]);
                    row[width..].fill(0);
                }
                for i in 0..m {
                    let mut sums = [0u128; WIDTH];
                    for (&factor, row) in lhs[i * k + start..][..depth].iter().zip(&panel[..depth]) {
                        for (sum, &x) in sums.iter_mut().zip(row) {
                            *sum += u128::from(factor) * u128::from(x);
                        }
                    }
                    for (slot, sum) in out[i * n + first..][..width].iter_mut().zip(sums) {
                        *slot = self.add(*slot, self.reduce(sum));
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

    fn is_prime(n: u64) -> bool {
        // Deterministic for 64 bits with these bases.
        let (odd, twos) = ((n - 1) >> (n - 1).trailing_zeros(), (n - 1).trailing_zeros());
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

    #[test]
    fn pairs_are_safe_primes_with_easy_roots() {
        for Primes { p, q } in [Primes::FULL, Primes::SCREEN, Primes::SMALL, Primes::TINY] {
            assert!(is_prime(p) && is_prime(q) && p == 2 * q + 1 && p % 8 == 7 && q % 4 == 3, "{p}");
        }
    }

    #[test]
    fn arithmetic_agrees_with_division() {
        for prime in [Primes::FULL.p, Primes::FULL.q, Primes::SCREEN.p, 167, 23, 11] {
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
                let square = modulus.mul(a, a);
                let root = modulus.sqrt(square).expect("a square has a root");
                assert!(root == a || root == modulus.sub(0, a));
            }
            assert_eq!(modulus.reduce(u128::MAX), (u128::MAX % u128::from(prime)) as u64);
        }
        let modulus = Modulus::new(Primes::FULL.p);
        assert_eq!(modulus.inverses(&[5, 0]), None);
        let inverses = modulus.inverses(&[5, 7, 11]).expect("no zero");
        let pairs = [5, 7, 11].into_iter().zip(inverses);
        assert!(pairs.into_iter().all(|(x, inverse)| modulus.mul(x, inverse) == 1));
    }

    #[test]
    fn matrix_products_agree_with_their_definition() {
        let modulus = Modulus::new(Primes::FULL.p);
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
