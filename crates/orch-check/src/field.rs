//! Random primes, and keyed pseudo-random numbers.

use num_modular::{Montgomery, Reducer};
use primal_check::miller_rabin;

/// Arithmetic modulo an odd prime below 2^63, of numbers in Montgomery's form.
pub type Field = Montgomery<u64>;

/// A ratio of two integers; none if the prime divides the denominator.
pub fn ratio(field: Field, num: i64, den: i64) -> Option<u64> {
    let [num, den] = [num, den].map(|x| {
        let magnitude = field.transform(x.unsigned_abs());
        if x < 0 { field.neg(magnitude) } else { magnitude }
    });
    Some(field.mul(&num, &field.inv(den)?))
}

/// The key of pseudo-random numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key(u64, u64);

impl Key {
    /// The key of a seed.
    pub fn new(seed: u128) -> Key {
        Key((seed >> 64) as u64, seed as u64)
    }

    /// Two numbers for a pair of numbers: Threefry-2x64 with 13 rounds (Salmon et al., SC'11).
    #[inline(always)]
    pub fn pair(self, a: u64, b: u64) -> (u64, u64) {
        let Key(k, l) = self;
        let keys = [k, l, k ^ l ^ 0x1bd1_1bda_a9fc_1a22];
        let (mut a, mut b) = (a.wrapping_add(k), b.wrapping_add(l));
        for (number, rotations) in [(1, [16, 42, 12, 31]), (2, [16, 32, 24, 21]), (3, [16, 42, 12, 31])] {
            for rotation in rotations {
                a = a.wrapping_add(b);
                b = b.rotate_left(rotation) ^ a;
            }
            a = a.wrapping_add(keys[number % 3]);
            b = b.wrapping_add(keys[(number + 1) % 3]).wrapping_add(number as u64);
        }
        a = a.wrapping_add(b);
        b = b.rotate_left(16) ^ a;
        (a, b)
    }

    /// A key for one purpose.
    pub fn derived(self, purpose: u64) -> Key {
        let (a, b) = self.pair(purpose, u64::MAX);
        Key(a, b)
    }
}

/// Both primes of a round: `p = 2 q + 1` with `q` between 2^61 and 2^62, chosen by a key among all such pairs alike.
pub fn primes(key: Key) -> [u64; 2] {
    let odd = (0..).map(|trial| (key.pair(trial, 0).0 >> 3) | 1 << 61 | 1);
    let pair = odd.map(|q| [2 * q + 1, q]).find(|&[p, q]| miller_rabin(q) && miller_rabin(p));
    pair.expect("there are such primes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_threefry() {
        assert_eq!(Key::new(0).pair(0, 0), (0xf167_b032_c3b4_80bd, 0xe91f_9fee_4b7a_6fb5));
        let pi = Key(0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89);
        let drawn = pi.pair(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344);
        assert_eq!(drawn, (0xc3aa_c715_6104_2993, 0x3fe7_ae88_01af_f316));
    }

    #[test]
    fn primes_are_told_from_composites() {
        let small: Vec<u64> = (2..50).filter(|&n| miller_rabin(n)).collect();
        assert_eq!(small, [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]);
        assert!(miller_rabin(2_305_843_009_213_690_799) && miller_rabin((1 << 61) - 1));
        // A strong pseudoprime to the first nine bases, and a product of two large primes.
        assert!(!miller_rabin(3_825_123_056_546_413_051) && !miller_rabin(1_000_000_007 * 998_244_353));
    }

    #[test]
    fn a_field_computes() {
        let [p, q] = primes(Key::new(1));
        assert!(p == 2 * q + 1 && p >> 62 == 1 && primes(Key::new(2))[0] != p);
        let field = Field::new(p);
        let [a, b, third] = [(-3, 1), (7, 1), (1, 3)].map(|(num, den)| ratio(field, num, den).unwrap());
        let one = field.transform(1);
        assert_eq!(field.residue(field.mul(&a, &b)), p - 21);
        assert_eq!(field.residue(field.sub(&field.add(&a, &b), &one)), 3);
        assert_eq!(field.mul(&a, &third), field.neg(one));
        assert_eq!(field.mul(&a, &field.inv(a).unwrap()), one);
        assert_eq!((field.inv(0), ratio(field, 1, 0), field.pow(b, &(p - 1))), (None, None, one));
    }
}
