//! Bounds for the polynomials that programs are made of: every value is a ratio of two polynomials in numbers (inputs and
//! symbols) and exponentials of atoms.

use crate::eval::{Domain, Stop};
use crate::program::{Ratio, Scalar};

/// Of a polynomial with integer coefficients.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Polynomial {
    /// The degree in numbers.
    pub numbers: f64,
    /// The degree in exponentials.
    pub exponentials: f64,
    /// The logarithm to base 2 of the sum of the absolute values of coefficients.
    pub height: f64,
}

/// A ratio of polynomials.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Fraction {
    /// Above.
    pub numerator: Polynomial,
    /// Below.
    pub denominator: Polynomial,
    /// The degree of the weight of what is masked.
    pub weight: f64,
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
    /// The product.
    pub fn times(self, other: Polynomial) -> Polynomial {
        zip(self, other, |a, b| a + b)
    }

    /// What bounds both.
    pub fn max(self, other: Polynomial) -> Polynomial {
        zip(self, other, f64::max)
    }

    /// Both degrees together.
    pub fn degree(self) -> f64 {
        self.numbers + self.exponentials
    }
}

impl Fraction {
    /// What bounds both.
    pub fn max(self, other: Fraction) -> Fraction {
        Fraction {
            numerator: self.numerator.max(other.numerator),
            denominator: self.denominator.max(other.denominator),
            weight: self.weight.max(other.weight),
        }
    }

    /// The difference, as the numerator over a common denominator; with the weights.
    pub fn difference(self, other: Fraction) -> Polynomial {
        let mut all = self.numerator.times(other.denominator).max(other.numerator.times(self.denominator));
        all.numbers += self.weight + other.weight;
        all.height += 1.0;
        all
    }
}

/// Computes bounds.
pub struct Degrees<'a> {
    /// By tensor, the degrees of exponentials.
    pub exponentials: &'a [f64],
    /// The tensor that is computed.
    pub tensor: usize,
}

impl Domain for Degrees<'_> {
    type Value = Fraction;
    const IS_UNIFORM: bool = true;

    fn enter(&mut self, tensor: usize) -> Result<(), Stop> {
        self.tensor = tensor;
        Ok(())
    }

    fn input(&mut self, _tensor: usize, _is_mask: bool, _at: usize) -> Fraction {
        Fraction { numerator: Polynomial { numbers: 1.0, ..Polynomial::default() }, ..Fraction::default() }
    }

    fn either(&mut self, a: Fraction, b: Fraction) -> Fraction {
        a.max(b)
    }

    fn apply(&mut self, scalar: &Scalar, args: &[Fraction]) -> Fraction {
        let number = self.input(0, false, 0);
        let times = |a: Fraction, b: Fraction| Fraction {
            numerator: a.numerator.times(b.numerator),
            denominator: a.denominator.times(b.denominator),
            weight: a.weight + b.weight,
        };
        let constant = |ratio: Ratio| {
            let height = |x: u64| Polynomial { height: (x.max(1) as f64).log2(), ..Polynomial::default() };
            let (numerator, denominator) =
                (height(ratio.num.unsigned_abs()), height(ratio.den.unsigned_abs()));
            Fraction { numerator, denominator, weight: 0.0 }
        };
        match (scalar, args) {
            (Scalar::Constant(ratio), _) => constant(*ratio),
            (Scalar::Sum, &[a, b]) => {
                let Polynomial { numbers, exponentials, height } =
                    Fraction { weight: 0.0, ..a }.difference(Fraction { weight: 0.0, ..b });
                Fraction { numerator: Polynomial { numbers, exponentials, height }, ..times(a, b) }
            }
            (Scalar::Offset(ratio), &[x]) => self.apply(&Scalar::Sum, &[x, constant(*ratio)]),
            (Scalar::Scale(ratio), &[x]) => times(x, constant(*ratio)),
            (Scalar::Mul, &[a, b]) => times(a, b),
            (Scalar::Square, &[x]) => times(x, x),
            (Scalar::GeluFactor, &[x]) => times(x, number),
            (Scalar::Reciprocal, &[x]) => {
                Fraction { numerator: x.denominator, denominator: x.numerator, ..x }
            }
            (Scalar::Mask, &[x, mask]) => Fraction { weight: x.weight + mask.numerator.degree(), ..x },
            (Scalar::Exp, &[x]) => {
                let power = |numbers: f64| Polynomial {
                    numbers,
                    exponentials: self.exponentials[self.tensor],
                    height: 0.0,
                };
                Fraction { numerator: power(x.weight), denominator: power(0.0), weight: 0.0 }
            }
            (Scalar::Sqrt | Scalar::Log | Scalar::Erf, _) => number,
            (Scalar::Largest | Scalar::Relu, _) => args.iter().fold(number, |all, &arg| all.max(arg)),
            (_, args) => args.first().copied().unwrap_or_default(),
        }
    }
}
