//! Bounds for the polynomials that programs are made of: every value is a ratio of two polynomials in numbers (inputs and
//! symbols) and exponentials of atoms, and, as an exponent, a rational combination of atoms.

use crate::exponents::keeps_atoms;
use crate::program::{Op, Program, Ratio, Scalar};

/// Of a polynomial with integer coefficients.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Polynomial {
    /// The degree in numbers.
    pub numbers: f64,
    /// The degree in exponentials, of which fractions count too.
    pub exponentials: f64,
    /// The logarithm to base 2 of the sum of the absolute values of coefficients.
    pub height: f64,
}

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

/// Applies a function to each part of two polynomials.
fn zip(a: Polynomial, b: Polynomial, f: impl Fn(f64, f64) -> f64) -> Polynomial {
    Polynomial {
        numbers: f(a.numbers, b.numbers),
        exponentials: f(a.exponentials, b.exponentials),
        height: f(a.height, b.height),
    }
}

impl Polynomial {
    fn times(self, other: Polynomial) -> Polynomial {
        zip(self, other, |a, b| a + b)
    }

    /// What bounds both.
    pub fn max(self, other: Polynomial) -> Polynomial {
        zip(self, other, f64::max)
    }
}

impl Bounds {
    /// An input, or a symbol.
    fn number() -> Bounds {
        let (numerator, denominator) =
            (Polynomial { numbers: 1.0, ..Polynomial::default() }, Polynomial::default());
        Bounds { numerator, denominator, weight: 0.0, exponent: (1.0, 1) }
    }

    fn constant(ratio: Ratio) -> Bounds {
        let [numerator, denominator] = [ratio.num, ratio.den]
            .map(|x| Polynomial { height: (x.unsigned_abs().max(1) as f64).log2(), ..Polynomial::default() });
        let exponent = (ratio.num.unsigned_abs() as f64 / ratio.den as f64, ratio.den.unsigned_abs().into());
        Bounds { numerator, denominator, weight: 0.0, exponent }
    }

    fn times(self, other: Bounds) -> Bounds {
        Bounds {
            numerator: self.numerator.times(other.numerator),
            denominator: self.denominator.times(other.denominator),
            weight: self.weight + other.weight,
            exponent: (self.exponent.0 * other.exponent.0, self.exponent.1.saturating_mul(other.exponent.1)),
        }
    }

    fn plus(self, other: Bounds) -> Bounds {
        let exponent = (self.exponent.0 + other.exponent.0, common(self.exponent.1, other.exponent.1));
        Bounds { numerator: self.crossed(other), exponent, ..self.times(other) }
    }

    /// The sum of so many like it, each with a denominator of its own.
    fn sum(self, count: f64) -> Bounds {
        let power = |count: f64| zip(self.denominator, self.denominator, |a, _| a * count);
        let mut numerator = self.numerator.times(power(count - 1.0));
        numerator.height += count.log2();
        Bounds { numerator, denominator: power(count), weight: self.weight * count, ..self }
    }

    /// What bounds both.
    fn max(self, other: Bounds) -> Bounds {
        Bounds {
            numerator: self.numerator.max(other.numerator),
            denominator: self.denominator.max(other.denominator),
            weight: self.weight.max(other.weight),
            exponent: (self.exponent.0.max(other.exponent.0), common(self.exponent.1, other.exponent.1)),
        }
    }

    /// The sum or difference, as the numerator over a common denominator.
    fn crossed(self, other: Bounds) -> Polynomial {
        let [a, b] = [(self, other), (other, self)].map(|(one, of)| one.numerator.times(of.denominator));
        Polynomial { height: a.height.max(b.height) + 1.0, ..a.max(b) }
    }

    /// The difference, with weights.
    pub fn difference(self, other: Bounds) -> Polynomial {
        let crossed = self.crossed(other);
        Polynomial { numbers: crossed.numbers + self.weight + other.weight, ..crossed }
    }
}

/// The least common multiple, or the largest number.
pub fn common(a: u128, b: u128) -> u128 {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).saturating_mul(b)
}

/// Bounds for all tensors of a program, and a common denominator of all exponents, for one of the ways to see them.
pub fn bounds(program: &Program, way: usize) -> (Vec<Bounds>, u128) {
    let (mut all, mut denominator): (Vec<Bounds>, u128) = (Vec::new(), 1);
    for (at, node) in program.nodes.iter().enumerate() {
        let args: Vec<Bounds> = node.args.iter().map(|&arg| all[arg]).collect();
        let largest = || args.iter().fold(Bounds::number(), |all, &arg| all.max(arg));
        let bounds = match (&node.op, &args[..]) {
            (Op::Input { .. } | Op::Compare { .. } | Op::Each(Scalar::Sqrt | Scalar::Erf), _) => {
                Bounds::number()
            }
            (Op::Each(Scalar::Sum), &[a, b]) => a.plus(b),
            (Op::Each(Scalar::Offset(ratio)), &[x]) => x.plus(Bounds::constant(*ratio)),
            (Op::Each(Scalar::Scale(ratio)), &[x]) => x.times(Bounds::constant(*ratio)),
            (Op::Each(Scalar::Mul), &[a, b]) => a.times(b),
            (Op::Each(Scalar::GeluFactor), &[x]) => x.times(Bounds::number()),
            (Op::Each(Scalar::Reciprocal), &[x]) => {
                Bounds { numerator: x.denominator, denominator: x.numerator, ..x }
            }
            (Op::Each(Scalar::Mask), &[x, mask]) => {
                Bounds { weight: x.weight + mask.numerator.numbers + mask.numerator.exponentials, ..x }
            }
            (Op::Each(Scalar::Exp), &[x]) => {
                denominator = common(denominator, x.exponent.1);
                let power = |numbers| Polynomial { numbers, exponentials: x.exponent.0, height: 0.0 };
                Bounds { numerator: power(x.weight), denominator: power(0.0), ..Bounds::number() }
            }
            (Op::Each(Scalar::Largest | Scalar::Relu) | Op::Reduce(Scalar::Largest, _), _) => largest(),
            (Op::Reduce(_, dim), [first, others @ ..]) => {
                let count = program.shape(node.args[0])[*dim].len as f64;
                others.iter().fold(*first, |product, &other| product.times(other)).sum(count)
            }
            (_, [first, others @ ..]) => others.iter().fold(*first, |all, &other| all.max(other)),
            (_, []) => Bounds::number(),
        };
        // What is no combination of other atoms is one.
        let exponent = if keeps_atoms(program, at, way) { bounds.exponent } else { (1.0, 1) };
        all.push(Bounds { exponent, ..bounds });
    }
    (all, denominator)
}
