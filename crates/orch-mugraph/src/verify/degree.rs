//! Upper bounds of degrees: an output element is a ratio of polynomials in inputs and exponentials, of at most these degrees.
//!
//! Degrees are counted at full size, on the static graph. A divisor is one polynomial per element of its tensor; where
//! elements with different divisors are summed, the common denominator is the product. Exponentials count as variables.
//! Where their exponents involve maxima (symbols in proofs), each also counts in the denominator, since the symbol
//! enters by a negative power. A root is a variable of its own, bound to its radicand: see `roots`.

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
}

impl Degree {
    fn plus(self, other: Degree) -> Degree {
        Degree {
            inputs: self.inputs.saturating_add(other.inputs),
            exponentials: self.exponentials.saturating_add(other.exponentials),
        }
    }

    fn times(self, factor: u64) -> Degree {
        Degree {
            inputs: self.inputs.saturating_mul(factor),
            exponentials: self.exponentials.saturating_mul(factor),
        }
    }

    /// The larger of each.
    pub fn max(self, other: Degree) -> Degree {
        Degree {
            inputs: self.inputs.max(other.inputs),
            exponentials: self.exponentials.max(other.exponentials),
        }
    }

    const INPUT: Degree = Degree { inputs: 1, exponentials: 0 };
    const EXPONENTIAL: Degree = Degree { inputs: 0, exponentials: 1 };
}

/// Bounds for all outputs together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Degrees {
    /// Of numerators.
    pub numerator: Degree,
    /// Of denominators.
    pub denominator: Degree,
    /// What roots multiply the chance of an accident by: the product of the degrees of the equations that bind them.
    pub roots: u64,
    /// Degrees of arguments of uninterpreted functions: where two of them agree by accident, their values agree.
    pub arguments: Degree,
}

/// A ratio of polynomials.
#[derive(Clone, Debug, Default)]
struct Ratio {
    numerator: Degree,
    /// Powers of divisors, by the site of the division.
    divisors: BTreeMap<Site, Divisor>,
    /// Exponents of exponentials made of it would involve maxima.
    has_max: bool,
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
        let numerator = missing(self).max(missing(other));
        Ratio { numerator, has_max: self.has_max || other.has_max, divisors }
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
        Ratio { numerator, has_max: self.has_max || other.has_max, divisors }
    }

    fn map_varies(mut self, f: impl Fn(&[bool]) -> Vec<bool>) -> Ratio {
        self.divisors.values_mut().for_each(|d| d.varies = f(&d.varies));
        self
    }
}

/// Counts degrees. `free_max`: maxima are symbols.
///
/// # Errors
/// If a block graph is not valid.
pub fn degrees(graph: &MuGraph, free_max: bool) -> Result<Degrees, crate::GraphError> {
    let mut count = Count { free_max, roots: BTreeMap::new(), arguments: Degree::default() };
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
    let mut total = Degrees { roots: 1, arguments: count.arguments, ..Degrees::default() };
    for (_, id) in graph.outputs() {
        let ratio = &table.tensors[id.index()];
        total.numerator = total.numerator.max(ratio.numerator);
        total.denominator = total.denominator.max(ratio.denominator());
    }
    total.roots = count.roots.values().fold(1, |product: u64, &degree| product.saturating_mul(degree));
    Ok(total)
}

struct Count {
    free_max: bool,
    roots: BTreeMap<Site, u64>,
    arguments: Degree,
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
                    self.max(&tiles[tile.index()])
                }
                TileNode::Accumulate { how, tile } => {
                    let mut ratio = tiles[tile.index()].clone();
                    ratio.repeat(range, |divisor| divisor.in_loop);
                    if let Accumulation::RescaledSum { degree, .. } = how {
                        let power = range.saturating_mul(degree.num().unsigned_abs());
                        let factor = Degree::EXPONENTIAL.times(power);
                        ratio = ratio.mul(&over(site, Ratio::of(factor), factor, &shapes[position]));
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
        Ok(())
    }

    fn max(&mut self, arg: &Ratio) -> Ratio {
        if self.free_max {
            return Ratio { has_max: true, ..Ratio::of(Degree::INPUT) };
        }
        self.arguments = self.arguments.plus(arg.numerator).plus(arg.denominator());
        arg.clone()
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
                side(args[0], rank - 1).mul(&side(args[1], rank - 2))
            }
            Op::Unary(UnaryFn::Exp) => self.exponential(site, args[0], &shape),
            Op::Unary(UnaryFn::Sigmoid) => {
                over(site, Ratio::of(Degree::EXPONENTIAL), Degree::EXPONENTIAL, &shape)
            }
            Op::Unary(UnaryFn::Gelu) => {
                // Three arguments may have one exponent, which makes accidents three times as likely.
                let cube = Degree::EXPONENTIAL.times(3);
                args[0].mul(&over(site, Ratio::of(cube), cube, &shape))
            }
            Op::Unary(UnaryFn::Silu) => {
                let sigmoid = over(site, Ratio::of(Degree::EXPONENTIAL), Degree::EXPONENTIAL, &shape);
                args[0].mul(&sigmoid)
            }
            Op::Unary(UnaryFn::Tanh) => {
                let square = Degree::EXPONENTIAL.times(2);
                over(site, Ratio::of(square), square, &shape)
            }
            Op::Unary(UnaryFn::Square) => args[0].mul(args[0]),
            Op::Unary(UnaryFn::Sqrt) => self.root(site, args[0]),
            Op::Unary(UnaryFn::Relu | UnaryFn::Erf | UnaryFn::Log) => {
                self.arguments = self.arguments.plus(args[0].numerator).plus(args[0].denominator());
                Ratio { has_max: args[0].has_max, ..Ratio::of(Degree::INPUT) }
            }
            Op::Unary(UnaryFn::Guard) | Op::Scale(_) | Op::Binary(BinaryFn::Mask) => args[0].clone(),
            Op::Offset(_) => {
                let mut ratio = args[0].clone();
                ratio.numerator = ratio.numerator.max(ratio.denominator());
                ratio
            }
            Op::Binary(BinaryFn::Add | BinaryFn::Sub) => args[0].add(args[1]),
            Op::Binary(BinaryFn::Mul) => args[0].mul(args[1]),
            Op::Binary(BinaryFn::Div) => {
                let divisor = args[1];
                let mut ratio = args[0].clone();
                ratio.numerator = ratio.numerator.plus(divisor.denominator());
                over(site, ratio, divisor.numerator, shapes[1])
            }
            Op::Binary(BinaryFn::Max) | Op::Reduce { f: ReduceFn::Max, .. } => {
                let joint = args.iter().skip(1).fold(args[0].clone(), |joint, arg| joint.add(arg));
                self.max(&joint)
            }
            Op::Reduce { f: ReduceFn::Sum, dim, keep } => {
                let mut ratio = args[0].clone();
                ratio.repeat((shapes[0][*dim] / keep).max(1) as u64, |divisor| divisor.varies[*dim]);
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

    fn exponential(&mut self, site: Site, exponent: &Ratio, shape: &[usize]) -> Ratio {
        let ratio = Ratio::of(Degree::EXPONENTIAL);
        if !exponent.has_max {
            return ratio;
        }
        over(site, ratio, Degree::EXPONENTIAL, shape)
    }

    /// `sqrt(N / D) = Y / D` with `Y² = N D`.
    fn root(&mut self, site: Site, radicand: &Ratio) -> Ratio {
        let bound = radicand.numerator.plus(radicand.denominator());
        let equation = bound.inputs.saturating_add(bound.exponentials).max(2);
        self.roots.insert(site, equation.saturating_mul(2));
        let half = Degree { inputs: bound.inputs.div_ceil(2), exponentials: bound.exponentials.div_ceil(2) };
        Ratio { numerator: half.max(Degree::INPUT), ..radicand.clone() }
    }
}

/// Divides by what has an element for each of a shape.
fn over(site: Site, mut ratio: Ratio, degree: Degree, shape: &[usize]) -> Ratio {
    let varies = shape.iter().map(|&extent| extent > 1).collect();
    ratio.divisors.insert(site, Divisor { degree, power: 1, varies, in_loop: false });
    ratio
}

/// The logarithm to base 2 of the chance that one random test accepts two programs that differ.
pub fn log2_error(a: &Degrees, b: &Degrees, primes: super::field::Primes) -> f64 {
    let crossed = a.numerator.plus(b.denominator).max(b.numerator.plus(a.denominator));
    let total = crossed.plus(a.arguments).plus(b.arguments);
    let roots = a.roots.max(1) as f64 * b.roots.max(1) as f64;
    let chance = total.inputs as f64 / primes.p as f64 + total.exponentials as f64 / primes.q as f64;
    (roots * chance).min(1.0).log2()
}
