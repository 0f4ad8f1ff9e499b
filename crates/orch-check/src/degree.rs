//! Bounds for the polynomials that programs are made of: every value is a ratio of two polynomials in numbers (inputs and
//! symbols) and exponentials of atoms.

use crate::op::{Op, Ratio};
use crate::program::{Node, Program, Tile};
use std::collections::BTreeMap;

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

impl Polynomial {
    const NUMBER: Polynomial = Polynomial { numbers: 1.0, exponentials: 0.0, height: 0.0 };

    fn of(numbers: f64, exponentials: f64, height: f64) -> Polynomial {
        Polynomial { numbers, exponentials, height }
    }

    /// The product.
    pub fn times(self, other: Polynomial) -> Polynomial {
        Polynomial::of(
            self.numbers + other.numbers,
            self.exponentials + other.exponentials,
            self.height + other.height,
        )
    }

    fn power(self, count: f64) -> Polynomial {
        Polynomial::of(self.numbers * count, self.exponentials * count, self.height * count)
    }

    /// What bounds both.
    pub fn max(self, other: Polynomial) -> Polynomial {
        Polynomial::of(
            self.numbers.max(other.numbers),
            self.exponentials.max(other.exponentials),
            self.height.max(other.height),
        )
    }

    /// Both degrees together.
    pub fn degree(self) -> f64 {
        self.numbers + self.exponentials
    }
}

impl Fraction {
    fn new(numerator: Polynomial, denominator: Polynomial) -> Fraction {
        Fraction { numerator, denominator, weight: 0.0 }
    }

    fn number() -> Fraction {
        Fraction::new(Polynomial::NUMBER, Polynomial::default())
    }

    fn times(self, other: Fraction) -> Fraction {
        let denominator = self.denominator.times(other.denominator);
        Fraction {
            weight: self.weight + other.weight,
            ..Fraction::new(self.numerator.times(other.numerator), denominator)
        }
    }

    fn inverse(self) -> Fraction {
        Fraction { numerator: self.denominator, denominator: self.numerator, weight: self.weight }
    }

    fn plus(self, other: Fraction) -> Fraction {
        let mut numerator =
            self.numerator.times(other.denominator).max(other.numerator.times(self.denominator));
        numerator.height += 1.0;
        let denominator = self.denominator.times(other.denominator);
        Fraction { weight: self.weight + other.weight, ..Fraction::new(numerator, denominator) }
    }

    /// The sum of so many like it, each with a denominator of its own.
    fn sum(self, count: f64) -> Fraction {
        let count = count.max(1.0);
        let mut numerator = self.numerator.times(self.denominator.power(count - 1.0));
        numerator.height += count.log2();
        Fraction { weight: self.weight, ..Fraction::new(numerator, self.denominator.power(count)) }
    }

    fn scaled(mut self, ratio: Ratio) -> Fraction {
        self.numerator.height += (ratio.num.unsigned_abs().max(1) as f64).log2();
        self.denominator.height += (ratio.den as f64).log2();
        self
    }

    fn max(self, other: Fraction) -> Fraction {
        Fraction {
            numerator: self.numerator.max(other.numerator),
            denominator: self.denominator.max(other.denominator),
            weight: self.weight.max(other.weight),
        }
    }

    fn power(degree: f64, weight: f64) -> Fraction {
        Fraction::new(Polynomial::of(weight, degree, 0.0), Polynomial::of(0.0, degree, 0.0))
    }
}

/// Bounds for the values of every place; `exponentials` has the degrees of powers by place.
pub fn fractions(program: &Program, exponentials: &BTreeMap<usize, f64>) -> Vec<Fraction> {
    let mut all = vec![Fraction::default(); program.place_count];
    let power = |place: usize| exponentials.get(&place).copied().unwrap_or(f64::INFINITY);
    for (at, node) in program.nodes.iter().enumerate() {
        let place = program.place(at, None);
        match node {
            Node::Input(..) => all[place] = Fraction::number(),
            Node::Op(op, args) => {
                let shapes: Vec<&[usize]> = args.iter().map(|&arg| program.shapes[arg].as_slice()).collect();
                let args: Vec<Fraction> = args.iter().map(|&arg| all[program.place(arg, None)]).collect();
                all[place] = applied(op, &args, &shapes, power(place));
            }
            Node::Stored(kernel, store) => {
                if let Node::Block(block) = &program.nodes[*kernel] {
                    all[place] = all[program.place(*kernel, Some(block.stores[*store].0))];
                }
            }
            Node::Block(block) => {
                let shapes =
                    block.tile_shapes(&program.shapes, &vec![0; block.grid.len()], 0).unwrap_or_default();
                for (number, tile) in block.tiles.iter().enumerate() {
                    let place = program.place(at, Some(number));
                    let of = |tile: usize| all[program.place(at, Some(tile))];
                    all[place] = match tile {
                        Tile::Load { tensor, .. } => all[program.place(*tensor, None)],
                        Tile::Op(op, args) => {
                            let shapes: Vec<&[usize]> =
                                args.iter().map(|&arg| shapes[arg].as_slice()).collect();
                            let args: Vec<Fraction> = args.iter().map(|&arg| of(arg)).collect();
                            applied(op, &args, &shapes, power(place))
                        }
                        Tile::Sum(arg) => of(*arg).sum(block.iterations as f64),
                        Tile::Largest(arg) | Tile::RunningMax(arg) => of(*arg).max(Fraction::number()),
                        Tile::Rescaled { tile, .. } => {
                            let (tile, factor) = (of(*tile), Fraction::power(power(place), 0.0));
                            (1..block.iterations).fold(tile, |sum, _| sum.times(factor).plus(tile))
                        }
                    };
                }
            }
        }
    }
    all
}

fn applied(op: &Op, args: &[Fraction], shapes: &[&[usize]], power: f64) -> Fraction {
    let extent = |dim: usize| shapes[0].get(dim).map_or(1.0, |&extent| extent as f64);
    match op {
        Op::Matmul => args[0].times(args[1]).sum(shapes[0].last().map_or(1.0, |&k| k as f64)),
        Op::Exp => Fraction::power(power, args[0].weight),
        Op::Square => args[0].times(args[0]),
        Op::Sqrt | Op::Log | Op::Erf => Fraction::number(),
        Op::Relu => args[0].max(Fraction::number()),
        Op::Reciprocal => args[0].inverse(),
        Op::GeluFactor => args[0].times(Fraction::number()),
        Op::Scale(ratio) => args[0].scaled(*ratio),
        Op::Offset(ratio) => args[0].plus(Fraction::default().scaled(*ratio)),
        Op::Add | Op::Sub => args[0].plus(args[1]),
        Op::Mul => args[0].times(args[1]),
        Op::Div => args[0].times(args[1].inverse()),
        Op::Mask => Fraction { weight: args[0].weight + args[1].numerator.degree(), ..args[0] },
        Op::Sum { dim, keep } => args[0].sum(extent(*dim) / (*keep).max(1) as f64),
        Op::Mean => {
            let count = extent(shapes[0].len().max(1) - 1);
            args[0].sum(count).scaled(Ratio { num: 1, den: count.max(1.0) as i64 })
        }
        Op::Max | Op::Largest { .. } => args.iter().fold(Fraction::number(), |all, &arg| all.max(arg)),
        Op::Concat { .. } => args.iter().fold(args[0], |all, &arg| all.max(arg)),
        Op::Causal { .. } | Op::Below { .. } => Fraction::default(),
        _ => args[0],
    }
}
