//! Upper bounds of degrees: an output element is a ratio of polynomials in inputs and exponentials, of at most these degrees.
//!
//! Degrees are counted on the static graph. A divisor is one polynomial per element of its tensor; where elements with
//! different divisors are summed, the common denominator is the product. Exponentials count as variables, and so do the
//! values of functions that are uninterpreted, of which the number of elements is counted. Beside degrees goes the
//! *height*: the logarithm of the sum of the magnitudes of a polynomial's coefficients, which are integers once the
//! denominators of constants are multiplied out.

use super::table::Table;
use crate::eval::{Site, rms_norm};
use crate::graph::{Accumulation, BlockGraph, MuGraph, Node, TensorId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::tiling::{Stage, stages, tile_shapes};
use std::collections::BTreeMap;

/// Degrees of a polynomial: in inputs, in exponentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Degree {
    /// In inputs, roots and uninterpreted values.
    pub inputs: u64,
    /// In exponentials.
    pub exponentials: u64,
    /// Bits of the coefficients.
    pub height: u64,
}

impl Degree {
    fn plus(self, other: Degree) -> Degree {
        Degree {
            inputs: self.inputs.saturating_add(other.inputs),
            exponentials: self.exponentials.saturating_add(other.exponentials),
            height: self.height.saturating_add(other.height),
        }
    }

    fn times(self, factor: u64) -> Degree {
        Degree {
            inputs: self.inputs.saturating_mul(factor),
            exponentials: self.exponentials.saturating_mul(factor),
            height: self.height.saturating_mul(factor),
        }
    }

    /// The larger of each.
    pub fn max(self, other: Degree) -> Degree {
        Degree {
            inputs: self.inputs.max(other.inputs),
            exponentials: self.exponentials.max(other.exponentials),
            height: self.height.max(other.height),
        }
    }

    /// With coefficients that are so many times larger.
    fn scaled(self, factor: u64) -> Degree {
        Degree { height: self.height.saturating_add(bits(factor)), ..self }
    }

    const INPUT: Degree = Degree { inputs: 1, exponentials: 0, height: 0 };
    const EXPONENTIAL: Degree = Degree { inputs: 0, exponentials: 1, height: 0 };
}

/// The logarithm to base 2, rounded up.
fn bits(factor: u64) -> u64 {
    u64::from(64 - factor.saturating_sub(1).leading_zeros())
}

/// Bounds for all outputs together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Degrees {
    /// Of numerators.
    pub numerator: Degree,
    /// Of denominators.
    pub denominator: Degree,
    /// The most of any argument of an uninterpreted function, divisor or exponent: numerator and denominator together.
    pub argument: Degree,
    /// Elements that are such arguments.
    pub arguments: u64,
    /// Elements that are exponents.
    pub exponents: u64,
}

/// A ratio of polynomials.
#[derive(Clone, Debug, Default)]
struct Ratio {
    numerator: Degree,
    /// Powers of divisors, by the site of the division.
    divisors: BTreeMap<Site, Divisor>,
    /// Bits of the denominators of constants.
    constants: u64,
}

#[derive(Clone, Debug)]
struct Divisor {
    degree: Degree,
    power: u64,
    /// Along which dimensions it differs.
    varies: Vec<bool>,
    /// It differs between iterations of the loop.
    in_loop: bool,
}

impl Ratio {
    fn denominator(&self) -> Degree {
        self.divisors.values().fold(Degree::default(), |sum, d| sum.plus(d.degree.times(d.power)))
    }

    fn of(numerator: Degree) -> Ratio {
        Ratio { numerator, ..Ratio::default() }
    }

    /// Multiplies the powers of some divisors, numerator adjusted to the common denominator of that many terms.
    fn repeat(&mut self, times: u64, which: impl Fn(&Divisor) -> bool) {
        for divisor in self.divisors.values_mut().filter(|d| which(d)) {
            let more = divisor.power.saturating_mul(times.saturating_sub(1));
            divisor.power = divisor.power.saturating_add(more);
            self.numerator = self.numerator.plus(divisor.degree.times(more));
        }
    }

    fn add(&self, other: &Ratio) -> Ratio {
        let mut divisors = self.divisors.clone();
        for (key, theirs) in &other.divisors {
            match divisors.get_mut(key) {
                Some(ours) if ours.varies == theirs.varies => ours.power = ours.power.max(theirs.power),
                Some(ours) => ours.power = ours.power.saturating_add(theirs.power),
                None => {
                    divisors.insert(*key, theirs.clone());
                }
            }
        }
        let missing = |ratio: &Ratio| {
            divisors.iter().fold(ratio.numerator, |sum, (key, common)| {
                let own = ratio.divisors.get(key).map_or(0, |d| d.power);
                sum.plus(common.degree.times(common.power.saturating_sub(own)))
            })
        };
        let numerator = missing(self).max(missing(other)).scaled(2);
        Ratio { numerator, constants: self.constants.saturating_add(other.constants), divisors }
    }

    fn mul(&self, other: &Ratio) -> Ratio {
        let mut divisors = self.divisors.clone();
        for (key, theirs) in &other.divisors {
            match divisors.get_mut(key) {
                Some(ours) => {
                    ours.power = ours.power.saturating_add(theirs.power);
                    ours.varies.iter_mut().zip(&theirs.varies).for_each(|(a, b)| *a |= b);
                }
                None => {
                    divisors.insert(*key, theirs.clone());
                }
            }
        }
        let numerator = self.numerator.plus(other.numerator);
        Ratio { numerator, constants: self.constants.saturating_add(other.constants), divisors }
    }

    fn map_varies(mut self, f: impl Fn(&[bool]) -> Vec<bool>) -> Ratio {
        self.divisors.values_mut().for_each(|d| d.varies = f(&d.varies));
        self
    }
}

/// Counts degrees.
///
/// # Errors
/// If a block graph is not valid.
pub fn degrees(graph: &MuGraph) -> Result<Degrees, crate::GraphError> {
    let mut count = Count::default();
    let mut table: Table<Ratio> = Table::filled(graph, &Ratio::default());
    for (first, node) in graph.nodes() {
        match node {
            Node::Input { .. } => table.tensors[first.index()] = Ratio::of(Degree::INPUT),
            Node::Op { op, args } => {
                let shapes: Vec<&[usize]> = args.iter().map(|arg| graph.shape(*arg)).collect();
                let args: Vec<&Ratio> = args.iter().map(|arg| &table.tensors[arg.index()]).collect();
                let site = Site { kernel: first, tile: None, block: 0, iteration: 0 };
                table.tensors[first.index()] = count.apply(site, op, &args, &shapes);
            }
            Node::Block(block) => count.block(graph, &mut table, first, block)?,
        }
    }
    let mut total = count.total;
    for (_, id) in graph.outputs() {
        let ratio = &table.tensors[id.index()];
        let constants = Degree { height: ratio.constants, ..Degree::default() };
        total.numerator = total.numerator.max(ratio.numerator.plus(constants));
        total.denominator = total.denominator.max(ratio.denominator());
    }
    Ok(total)
}

#[derive(Default)]
struct Count {
    total: Degrees,
    /// How often the kernel at hand evaluates a tile.
    repeats: u64,
}

impl Count {
    fn block(
        &mut self,
        graph: &MuGraph,
        table: &mut Table<Ratio>,
        first: TensorId,
        block: &BlockGraph,
    ) -> Result<(), crate::GraphError> {
        let shapes = tile_shapes(block, graph.shapes(), (&vec![0; block.grid.len()], 0))?;
        let stages = stages(block)?;
        let range = block.loop_range as u64;
        self.repeats = range.saturating_mul(block.blocks() as u64);
        let mut tiles: Vec<Ratio> = Vec::with_capacity(block.nodes.len());
        for (position, node) in block.nodes.iter().enumerate() {
            let site = Site { kernel: first, tile: Some(position as u32), block: 0, iteration: 0 };
            let mut ratio = match node {
                TileNode::Load { tensor, along_loop, .. } => {
                    let mut ratio = table.tensors[tensor.index()].clone();
                    for divisor in ratio.divisors.values_mut() {
                        divisor.in_loop = along_loop.is_some_and(|dim| divisor.varies[dim]);
                    }
                    ratio
                }
                TileNode::Op { op, args } => {
                    let shapes: Vec<&[usize]> =
                        args.iter().map(|arg| shapes[arg.index()].as_slice()).collect();
                    let args: Vec<&Ratio> = args.iter().map(|arg| &tiles[arg.index()]).collect();
                    self.apply(site, op, &args, &shapes)
                }
                TileNode::RunningMax { tile } | TileNode::Accumulate { how: Accumulation::Max, tile } => {
                    self.uninterpreted(&tiles[tile.index()], &shapes[position])
                }
                TileNode::Accumulate { how, tile } => {
                    let mut ratio = tiles[tile.index()].clone();
                    ratio.repeat(range, |divisor| divisor.in_loop);
                    ratio.numerator = ratio.numerator.scaled(range);
                    if let Accumulation::RescaledSum { degree, .. } = how {
                        let power = range.saturating_mul(degree.num().unsigned_abs());
                        ratio.numerator = ratio.numerator.plus(Degree::EXPONENTIAL.times(power));
                    }
                    ratio
                }
            };
            if stages[position] == Stage::Loop {
                ratio.divisors.entry(site).and_modify(|divisor| divisor.in_loop = true);
            } else {
                ratio.divisors.values_mut().for_each(|divisor| divisor.in_loop = false);
            }
            tiles.push(ratio);
        }
        for (at, store) in block.stores.iter().enumerate() {
            let mut ratio = tiles[store.tile.index()].clone();
            for dim in store.grid.iter().flatten() {
                ratio.divisors.values_mut().for_each(|divisor| divisor.varies[*dim] = true);
            }
            table.tensors[first.index() + at] = ratio;
        }
        table.tiles.insert(first, tiles);
        self.repeats = 1;
        Ok(())
    }

    /// Counts elements of which some must not agree by accident.
    fn argument(&mut self, arg: &Ratio, shape: &[usize]) -> u64 {
        let both = arg.numerator.plus(arg.denominator());
        let both = Degree { height: both.height.saturating_add(arg.constants), ..both };
        self.total.argument = self.total.argument.max(both);
        (crate::op::elems(shape) as u64).saturating_mul(self.repeats.max(1))
    }

    /// A function that is uninterpreted gives a variable.
    fn uninterpreted(&mut self, arg: &Ratio, shape: &[usize]) -> Ratio {
        let elements = self.argument(arg, shape);
        self.total.arguments = self.total.arguments.saturating_add(elements);
        Ratio::of(Degree::INPUT)
    }

    fn exponents(&mut self, arg: &Ratio, shape: &[usize]) {
        let elements = self.argument(arg, shape);
        self.total.exponents = self.total.exponents.saturating_add(elements);
    }

    fn divisors(&mut self, arg: &Ratio, shape: &[usize]) {
        let elements = self.argument(arg, shape);
        self.total.arguments = self.total.arguments.saturating_add(elements);
    }

    fn apply(&mut self, site: Site, op: &Op, args: &[&Ratio], shapes: &[&[usize]]) -> Ratio {
        let shape = op.infer(shapes).unwrap_or_default();
        match op {
            Op::Matmul => {
                let rank = shape.len();
                let inner = shapes[0][rank - 1] as u64;
                let side = |ratio: &Ratio, dim: usize| {
                    let mut ratio = ratio.clone();
                    ratio.repeat(inner, |divisor| divisor.varies[dim]);
                    ratio.map_varies(|varies| {
                        let mut varies = varies.to_vec();
                        varies[dim] = false;
                        varies
                    })
                };
                let mut product = side(args[0], rank - 1).mul(&side(args[1], rank - 2));
                product.numerator = product.numerator.scaled(inner);
                product
            }
            Op::Unary(UnaryFn::Exp) => {
                self.exponents(args[0], &shape);
                Ratio::of(Degree::EXPONENTIAL)
            }
            Op::Unary(UnaryFn::Sigmoid) => {
                self.exponents(args[0], &shape);
                over(site, Ratio::of(Degree::EXPONENTIAL), Degree::EXPONENTIAL, &shape)
            }
            Op::Unary(UnaryFn::Gelu) => {
                self.exponents(args[0], &shape);
                // Three arguments may have one exponent, which makes accidents three times as likely.
                let cube = Degree::EXPONENTIAL.times(3);
                args[0].mul(&over(site, Ratio::of(cube), cube, &shape))
            }
            Op::Unary(UnaryFn::Silu) => {
                self.exponents(args[0], &shape);
                let sigmoid = over(site, Ratio::of(Degree::EXPONENTIAL), Degree::EXPONENTIAL, &shape);
                args[0].mul(&sigmoid)
            }
            Op::Unary(UnaryFn::Tanh) => {
                self.exponents(args[0], &shape);
                let square = Degree::EXPONENTIAL.times(2).scaled(2);
                over(site, Ratio::of(square), square, &shape)
            }
            Op::Unary(UnaryFn::Square) => args[0].mul(args[0]),
            Op::Unary(UnaryFn::Relu) => {
                let case = self.uninterpreted(args[0], &shape);
                args[0].mul(&case)
            }
            Op::Unary(UnaryFn::Sqrt | UnaryFn::Erf | UnaryFn::Log) => self.uninterpreted(args[0], &shape),
            Op::Unary(UnaryFn::Guard) => args[0].clone(),
            Op::Binary(BinaryFn::Mask) => args[0].mul(&Ratio::of(Degree::INPUT)),
            Op::Scale(c) => {
                let mut ratio = args[0].clone();
                ratio.numerator = ratio.numerator.scaled(c.num().unsigned_abs());
                ratio.constants = ratio.constants.saturating_add(bits(c.den() as u64));
                ratio
            }
            Op::Offset(c) => {
                let mut ratio = args[0].clone();
                let constant = ratio.denominator().scaled(c.num().unsigned_abs());
                ratio.numerator = ratio.numerator.scaled(c.den() as u64).max(constant).scaled(2);
                ratio.constants = ratio.constants.saturating_add(bits(c.den() as u64));
                ratio
            }
            Op::Binary(BinaryFn::Add | BinaryFn::Sub) => args[0].add(args[1]),
            Op::Binary(BinaryFn::Mul) => args[0].mul(args[1]),
            Op::Binary(BinaryFn::Div) => {
                let divisor = args[1];
                self.divisors(divisor, shapes[1]);
                let mut ratio = args[0].clone();
                ratio.numerator = ratio.numerator.plus(divisor.denominator());
                ratio.constants = ratio.constants.saturating_add(divisor.constants);
                over(site, ratio, divisor.numerator, shapes[1])
            }
            Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. } => {
                let joint = args.iter().skip(1).fold(args[0].clone(), |joint, arg| joint.add(arg));
                self.uninterpreted(&joint, shapes[0])
            }
            Op::Reduce { f: ReduceFn::Sum, dim, keep } => {
                let mut ratio = args[0].clone();
                let terms = (shapes[0][*dim] / keep).max(1) as u64;
                ratio.repeat(terms, |divisor| divisor.varies[*dim]);
                ratio.numerator = ratio.numerator.scaled(terms);
                ratio.map_varies(|varies| {
                    let mut varies = varies.to_vec();
                    varies[*dim] &= *keep > 1;
                    varies
                })
            }
            Op::RmsNorm { eps } => {
                let mut values = vec![args[0].clone()];
                let mut value_shapes = vec![shapes[0].to_vec()];
                for (op, positions) in rms_norm(shapes[0], *eps).unwrap_or_default() {
                    let args: Vec<&Ratio> = positions.iter().map(|&at| &values[at]).collect();
                    let shapes: Vec<&[usize]> =
                        positions.iter().map(|&at| value_shapes[at].as_slice()).collect();
                    let (ratio, shape) = (self.apply(site, &op, &args, &shapes), op.infer(&shapes));
                    values.push(ratio);
                    value_shapes.push(shape.unwrap_or_default());
                }
                values.swap_remove(values.len() - 1)
            }
            Op::Transpose(perm) => {
                args[0].clone().map_varies(|varies| perm.iter().map(|&dim| varies[dim]).collect())
            }
            Op::Reshape(_) => args[0].clone().map_varies(|varies| vec![varies.contains(&true); shape.len()]),
            Op::Broadcast(_) | Op::Slice { .. } | Op::Repeat { .. } => args[0].clone(),
            // The divisors of an element and of its partner may meet.
            Op::Rotate { dim, .. } => {
                let mut ratio = args[0].clone();
                ratio.repeat(2, |divisor| divisor.varies[*dim]);
                ratio
            }
            Op::Concat { dim } => {
                let joint = args.iter().skip(1).fold(args[0].clone(), |joint, arg| joint.add(arg));
                joint.map_varies(|varies| {
                    let mut varies = varies.to_vec();
                    varies[*dim] = true;
                    varies
                })
            }
            Op::Causal { .. } | Op::Below { .. } => Ratio::default(),
        }
    }
}

/// Divides by what has an element for each of a shape.
fn over(site: Site, mut ratio: Ratio, degree: Degree, shape: &[usize]) -> Ratio {
    let varies = shape.iter().map(|&extent| extent > 1).collect();
    ratio.divisors.insert(site, Divisor { degree, power: 1, varies, in_loop: false });
    ratio
}

/// How exponentials are made of independent ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Powers {
    /// The most factors, of both programs.
    pub factors: u64,
    /// Exponents whose independence is checked.
    pub checked: u64,
    /// True if some take a value as often as their degree.
    pub are_nonlinear: bool,
}

/// The logarithm to base 2 of the chance that one random test accepts a candidate (`b`) that differs from a program (`a`), with primes of so
/// many bits: see `docs/proofs.md`.
pub fn log2_error(a: &Degrees, b: &Degrees, powers: Powers, bits: u32) -> f64 {
    let total = a.numerator.plus(b.denominator).max(b.numerator.plus(a.denominator));
    let argument = a.argument.plus(b.argument);
    let degree = argument.inputs.max(1) as f64;
    // An exponent of the program has a value as often as its degree in its pivot, unless it is constant there.
    let values = if powers.are_nonlinear { a.argument.inputs.max(1) as f64 } else { 1.0 };
    let factors = 2.0 * powers.factors.max(1) as f64 * values;
    let square = |x: f64| x * x;
    let count = |x: u64, y: u64| x as f64 + y as f64;
    // Pairs of arguments that may agree by accident; and a dependent or foreign exponent, with any other.
    let pairs = square(count(a.arguments, b.arguments)) + count(a.exponents, b.exponents);
    let zeros = |degree: Degree| {
        // The smaller prime is not below a quarter of 2^bits.
        (degree.inputs as f64 + factors * degree.exponentials as f64) / f64::from(bits - 2).exp2()
    };
    // Exponents that are not affine: one check more, and those that move one half of the pivots, by each bit of their numbers.
    let nonlinear_checks =
        if powers.are_nonlinear { 1.0 + 4.0 * (powers.checked.max(1) as f64).log2().ceil() } else { 0.0 };
    let checks = (6.0 + nonlinear_checks) * powers.checked as f64 * degree / f64::from(bits - 2).exp2();
    // Primes that divide a coefficient, among those that are drawn: none divides one that is smaller.
    let dividing = |height: u64| (height / u64::from(bits - 2)) as f64;
    let vanishing = dividing(total.height) + pairs * dividing(argument.height);
    let vanishing = vanishing / super::field::Primes::log2_choices(bits).exp2();
    let chance = zeros(total) + pairs * zeros(argument) + checks + vanishing;
    // Programs that are not defined are drawn again.
    let undefined = zeros(a.denominator);
    (chance / (1.0 - undefined).max(f64::MIN_POSITIVE)).min(1.0).log2()
}
