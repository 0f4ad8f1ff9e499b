//! Bounds for the polynomials that programs are made of: every value is a ratio of two polynomials in numbers (inputs and
//! symbols) and exponentials of atoms.

use crate::program::{Op, Program, Ratio, Scalar};

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
    const fn of(numbers: f64, height: f64) -> Polynomial {
        Polynomial { numbers, exponentials: 0.0, height }
    }

    /// The product.
    pub fn times(self, other: Polynomial) -> Polynomial {
        zip(self, other, |a, b| a + b)
    }

    /// What bounds both.
    pub fn max(self, other: Polynomial) -> Polynomial {
        zip(self, other, f64::max)
    }

    fn power(self, count: f64) -> Polynomial {
        zip(self, self, |a, _| a * count)
    }

    /// Both degrees together.
    pub fn degree(self) -> f64 {
        self.numbers + self.exponentials
    }
}

impl Fraction {
    const NUMBER: Fraction =
        Fraction { numerator: Polynomial::of(1.0, 0.0), denominator: Polynomial::of(0.0, 0.0), weight: 0.0 };

    fn constant(ratio: Ratio) -> Fraction {
        let height = |x: u64| Polynomial::of(0.0, (x.max(1) as f64).log2());
        Fraction {
            numerator: height(ratio.num.unsigned_abs()),
            denominator: height(ratio.den.unsigned_abs()),
            weight: 0.0,
        }
    }

    fn times(self, other: Fraction) -> Fraction {
        let denominator = self.denominator.times(other.denominator);
        Fraction {
            numerator: self.numerator.times(other.numerator),
            denominator,
            weight: self.weight + other.weight,
        }
    }

    fn plus(self, other: Fraction) -> Fraction {
        let bare = |fraction: Fraction| Fraction { weight: 0.0, ..fraction };
        Fraction { numerator: bare(self).difference(bare(other)), ..self.times(other) }
    }

    /// The sum of so many like it, each with a denominator of its own.
    fn sum(self, count: f64) -> Fraction {
        let mut numerator = self.numerator.times(self.denominator.power(count - 1.0));
        numerator.height += count.log2();
        Fraction { numerator, denominator: self.denominator.power(count), weight: self.weight * count }
    }

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

/// Bounds for all tensors of a program; `exponentials` has the degrees of those by tensor.
pub fn fractions(program: &Program, exponentials: &[f64]) -> Vec<Fraction> {
    let mut all: Vec<Fraction> = Vec::new();
    for (at, node) in program.nodes.iter().enumerate() {
        let args: Vec<Fraction> = node.args.iter().map(|&arg| all[arg]).collect();
        let extent = |dim: usize| program.nodes[node.args[0]].shape[dim].len as f64;
        all.push(match &node.op {
            Op::Input { .. } => Fraction::NUMBER,
            Op::Compare { .. } => Fraction::default(),
            Op::Each(scalar) => applied(scalar, &args, exponentials[at]),
            Op::Reduce(Scalar::Sum, dim) => args[0].sum(extent(*dim)),
            Op::Reduce(_, _) => args[0].max(Fraction::NUMBER),
            Op::Matmul => args[0].times(args[1]).sum(extent(node.shape.len() - 1)),
            _ => args.iter().fold(args[0], |all, &arg| all.max(arg)),
        });
    }
    all
}

fn applied(scalar: &Scalar, args: &[Fraction], exponential: f64) -> Fraction {
    match (scalar, args) {
        (Scalar::Constant(ratio), _) => Fraction::constant(*ratio),
        (Scalar::Sum, &[a, b]) => a.plus(b),
        (Scalar::Offset(ratio), &[x]) => x.plus(Fraction::constant(*ratio)),
        (Scalar::Scale(ratio), &[x]) => x.times(Fraction::constant(*ratio)),
        (Scalar::Mul, &[a, b]) => a.times(b),
        (Scalar::Square, &[x]) => x.times(x),
        (Scalar::GeluFactor, &[x]) => x.times(Fraction::NUMBER),
        (Scalar::Reciprocal, &[x]) => Fraction { numerator: x.denominator, denominator: x.numerator, ..x },
        (Scalar::Mask, &[x, mask]) => Fraction { weight: x.weight + mask.numerator.degree(), ..x },
        (Scalar::Exp, &[x]) => {
            let power = |numbers: f64| Polynomial { numbers, exponentials: exponential, height: 0.0 };
            Fraction { numerator: power(x.weight), denominator: power(0.0), weight: 0.0 }
        }
        (Scalar::Sqrt | Scalar::Erf, _) => Fraction::NUMBER,
        (Scalar::Largest | Scalar::Relu, _) => args.iter().fold(Fraction::NUMBER, |all, &arg| all.max(arg)),
        (_, args) => args.first().copied().unwrap_or_default(),
    }
}
