//! Bounds for the polynomials that programs are made of: every value is a ratio of two polynomials in numbers (inputs and
//! symbols) and exponentials of atoms, and, as an exponent, a rational combination of atoms.

use crate::exponents::keeps_atoms;
use crate::program::{Op, Program, Scalar};
use num_integer::gcd;
use std::ops::Add;

/// Of a polynomial with integer coefficients: the degree in numbers; that in exponentials, of which fractions count too; the logarithm to
/// base 2 of the sum of the absolute values of coefficients.
pub type Polynomial = [f64; 3];

/// A value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// Above.
    numerator: Polynomial,
    /// Below.
    denominator: Polynomial,
    /// The degree of the weight of what is masked.
    pub weight: f64,
    /// As an exponent: the sum of the absolute values of coefficients, and a common denominator of them.
    exponent: (f64, u128),
}

/// An input, or a symbol.
pub const NUMBER: Bounds =
    Bounds { numerator: [1.0, 0.0, 0.0], denominator: [0.0; 3], weight: 0.0, exponent: (1.0, 1) };

/// Applies a function to each part of two polynomials.
fn zip(a: Polynomial, b: Polynomial, f: fn(f64, f64) -> f64) -> Polynomial {
    std::array::from_fn(|at| f(a[at], b[at]))
}

impl Bounds {
    /// Applies a function to each bound of two values, but for those as exponents.
    fn zip(self, other: Bounds, exponent: (f64, u128), f: fn(f64, f64) -> f64) -> Bounds {
        Bounds {
            numerator: zip(self.numerator, other.numerator, f),
            denominator: zip(self.denominator, other.denominator, f),
            weight: f(self.weight, other.weight),
            exponent,
        }
    }

    fn times(self, other: Bounds) -> Bounds {
        let ((size, denominator), factor) = (self.exponent, other.exponent);
        self.zip(other, (size * factor.0, denominator.saturating_mul(factor.1)), f64::add)
    }

    fn plus(self, other: Bounds) -> Bounds {
        let exponent = (self.exponent.0 + other.exponent.0, common(self.exponent.1, other.exponent.1));
        Bounds { numerator: self.crossed(other), ..self.zip(other, exponent, f64::add) }
    }

    /// What bounds both.
    pub fn max(self, other: Bounds) -> Bounds {
        let exponent = (self.exponent.0.max(other.exponent.0), common(self.exponent.1, other.exponent.1));
        self.zip(other, exponent, f64::max)
    }

    /// The sum of so many like it, each with a denominator of its own.
    fn sum(self, count: f64) -> Bounds {
        let denominator = self.denominator.map(|degree| degree * count);
        let [numbers, exponentials, height] = zip(self.numerator, denominator, f64::add);
        let numerator = [numbers, exponentials, height + count.log2()];
        Bounds { numerator, denominator, weight: self.weight * count, ..self }
    }

    /// The sum or difference, as the numerator over a common denominator.
    fn crossed(self, other: Bounds) -> Polynomial {
        let own = zip(self.numerator, other.denominator, f64::add);
        let [numbers, exponentials, height] =
            zip(own, zip(other.numerator, self.denominator, f64::add), f64::max);
        [numbers, exponentials, height + 1.0]
    }

    /// The difference, with weights.
    pub fn difference(self, other: Bounds) -> Polynomial {
        let [numbers, exponentials, height] = self.crossed(other);
        [numbers + self.weight + other.weight, exponentials, height]
    }
}

/// The least common multiple, or the largest number.
fn common(a: u128, b: u128) -> u128 {
    (a / gcd(a, b)).saturating_mul(b)
}

/// Bounds for all tensors of a program, and a common denominator of all exponents, for one of the ways to see them.
pub fn bounds(program: &Program, way: usize) -> (Vec<Bounds>, f64) {
    let (mut all, mut denominator): (Vec<Bounds>, u128) = (Vec::new(), 1);
    for (at, node) in program.nodes.iter().enumerate() {
        let args: Vec<Bounds> = node.args.iter().map(|&arg| all[arg]).collect();
        let bounds = match (&node.op, &args[..]) {
            (&Op::Constant(num, den), _) => {
                let [num, den] = [num, den].map(|x| x.unsigned_abs());
                let [numerator, denominator] = [num, den].map(|x| [0.0, 0.0, (x.max(1) as f64).log2()]);
                let exponent = (num as f64 / den as f64, den.into());
                Bounds { numerator, denominator, exponent, ..NUMBER }
            }
            (Op::Each(Scalar::Sqrt | Scalar::Erf | Scalar::GeluFactor), _) | (_, []) => NUMBER,
            (Op::Each(Scalar::Add), &[a, b]) => a.plus(b),
            (Op::Each(Scalar::Mul | Scalar::Scale { .. }), &[a, b]) => a.times(b),
            (Op::Each(Scalar::Reciprocal), &[x]) => {
                Bounds { numerator: x.denominator, denominator: x.numerator, ..x }
            }
            (Op::Each(Scalar::Mask), &[x, mask]) => {
                Bounds { weight: x.weight + mask.numerator[0] + mask.numerator[1], ..x }
            }
            (Op::Each(Scalar::Exp), &[x]) => {
                denominator = common(denominator, x.exponent.1);
                let [numerator, denominator] = [x.weight, 0.0].map(|numbers| [numbers, x.exponent.0, 0.0]);
                Bounds { numerator, denominator, ..NUMBER }
            }
            (Op::Reduce(Scalar::Add, dim), _) => {
                let product = args.iter().copied().reduce(Bounds::times).unwrap_or(NUMBER);
                product.sum(program.shape(node.args[0])[*dim].len as f64)
            }
            // A symbol, or an element of an operand.
            (Op::Each(Scalar::Max) | Op::Reduce(..), _) => args.iter().fold(NUMBER, |all, &arg| all.max(arg)),
            _ => args.iter().copied().reduce(Bounds::max).unwrap_or(NUMBER),
        };
        // What is no combination of other atoms is one. Infinity times zero would be no number.
        let (size, denominator) = if keeps_atoms(program, at, way) { bounds.exponent } else { (1.0, 1) };
        all.push(Bounds { exponent: (size.min(f64::MAX), denominator), ..bounds });
    }
    (all, if denominator == u128::MAX { f64::INFINITY } else { denominator as f64 })
}
