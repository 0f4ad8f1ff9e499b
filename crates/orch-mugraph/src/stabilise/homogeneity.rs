//! Degrees in one exponential: how a value scales if the exponential's elements are scaled row by row.
//!
//! The exponential's elements are indexed by *axes*: its dimensions, the iteration if it is computed in the loop, and the
//! grid of its kernel. Axes along which elements are summed while their degree is not 0 are *reduced*; the others number
//! *rows*. A maximum per row may be subtracted from all exponents if
//! - the degree of every value is defined: sums add equal degrees, and what is combined belongs to the same rows;
//! - functions that are not homogeneous get values of degree 0;
//! - every divisor of degree other than 0 is a sum of exponentials, with nothing subtracted or weighted, over exactly the
//!   reduced axes: so it is at least 1 once the maximum is subtracted, whatever the exponents are;
//! - outputs have degree 0.
//!
//! A positive constant may be added to a complete sum of exponentials, as in a softmax with a sink: it is `c e^0`, so that the
//! maximum is of zero too.

use crate::graph::{Accumulation, BlockGraph, MuGraph, Node, TensorId, TileNode};
use crate::op::{BinaryFn, Op, ReduceFn, UnaryFn};
use crate::rational::Rational;
use crate::tiling::{Stage, stages, tile_shapes};
use std::collections::{BTreeMap, BTreeSet};

/// What indexes the elements of an exponential.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Axis {
    /// A dimension of it.
    Dim(usize),
    /// The iteration.
    Loop,
    /// A grid dimension of its kernel.
    Grid(usize),
}

/// What a dimension runs over, outermost first: an axis or something else, and the extent.
pub type AxisExtents = Vec<(Option<Axis>, usize)>;

/// Where an exponential is: the first tensor of its kernel, and its tile.
pub type ValueKey = (TensorId, Option<u32>);

/// Why a program has no stable form by subtracting maxima.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct Refusal {
    /// The tensor or tile.
    pub place: String,
    /// The reason.
    pub reason: String,
}

/// How a value depends on the exponential.
#[derive(Clone, PartialEq, Debug)]
pub struct Dependence {
    /// Its degree, not 0.
    pub degree: Rational,
    /// What each dimension runs over.
    pub dims: Vec<AxisExtents>,
    /// What the iteration of the loop runs over.
    pub along_loop: BTreeSet<Axis>,
    /// What was summed.
    pub summed: BTreeSet<Axis>,
    /// It is made of exponentials alone, by sums, products and positive factors.
    pub pure: bool,
    /// A constant was added: it does not vanish where all exponents are far below zero.
    pub has_sink: bool,
}

/// The analysis of one exponential.
#[derive(Clone, Debug)]
pub struct AxisGroup {
    /// The exponential.
    pub place: ValueKey,
    /// Axes that are summed.
    pub reduced: BTreeSet<Axis>,
    /// Values of degree other than 0, by place.
    pub values: BTreeMap<ValueKey, Dependence>,
    /// Sums of exponentials that a constant is added to.
    pub sinks: BTreeSet<ValueKey>,
}

/// Analyses one exponential.
///
/// # Errors
/// The first value for which a condition does not hold.
pub fn analyse(graph: &MuGraph, place: ValueKey) -> Result<AxisGroup, Refusal> {
    let mut walk = DependenceWalk {
        graph,
        place,
        reduced: None,
        summed: BTreeSet::new(),
        divided: false,
        sinks: BTreeSet::new(),
    };
    walk.values()?;
    let reduced = std::mem::take(&mut walk.summed);
    walk.reduced = Some(reduced.clone());
    let values = walk.values()?;
    if !walk.divided {
        return Err(refuse(place, "is never divided by its sum"));
    }
    Ok(AxisGroup { place, reduced, values, sinks: walk.sinks })
}

pub(super) fn refuse((kernel, tile): ValueKey, reason: impl Into<String>) -> Refusal {
    let tile = tile.map_or(String::new(), |tile| format!(", s{tile}"));
    Refusal { place: format!("{kernel}{tile}"), reason: reason.into() }
}

struct DependenceWalk<'a> {
    graph: &'a MuGraph,
    place: ValueKey,
    /// Known in the second pass.
    reduced: Option<BTreeSet<Axis>>,
    summed: BTreeSet<Axis>,
    divided: bool,
    sinks: BTreeSet<ValueKey>,
}

type Values = BTreeMap<ValueKey, Dependence>;

impl DependenceWalk<'_> {
    fn values(&mut self) -> Result<Values, Refusal> {
        let mut values = Values::new();
        for (first, node) in self.graph.nodes() {
            match node {
                Node::Input { .. } => {}
                Node::Op { op, args } => {
                    let args: Vec<ValueKey> = args.iter().map(|arg| (*arg, None)).collect();
                    let shapes: Vec<Vec<usize>> =
                        args.iter().map(|arg| self.graph.shape(arg.0).to_vec()).collect();
                    self.define(&mut values, (first, None), op, (&args, &shapes))?;
                    if (first, None) == self.place {
                        values.insert((first, None), exponential(self.graph.shape(first), false));
                    }
                }
                Node::Block(block) => self.block(&mut values, first, block)?,
            }
        }
        for (name, id) in self.graph.outputs() {
            if let Some(value) = values.get(&(*id, None)) {
                let reason = format!("output {name} has degree {} in the exponential", value.degree);
                return Err(refuse((*id, None), reason));
            }
        }
        Ok(values)
    }

    fn block(&mut self, values: &mut Values, first: TensorId, block: &BlockGraph) -> Result<(), Refusal> {
        let invalid = |e: crate::GraphError| Refusal { place: e.place, reason: e.problem };
        let stages = stages(block).map_err(invalid)?;
        let zero = vec![0; block.grid.len()];
        let shapes = tile_shapes(block, self.graph.shapes(), (&zero, 0)).map_err(invalid)?;
        for (position, node) in block.nodes.iter().enumerate() {
            let place = (first, Some(position as u32));
            match node {
                TileNode::Load { tensor, grid, along_loop } => {
                    if let Some(value) = values.get(&(*tensor, None)).cloned() {
                        let value = self.part(place, value, block, (grid, *along_loop))?;
                        values.insert(place, value);
                    }
                }
                TileNode::Op { op, args } => {
                    let shapes: Vec<Vec<usize>> =
                        args.iter().map(|arg| shapes[arg.index()].clone()).collect();
                    let args: Vec<ValueKey> = args.iter().map(|arg| (first, Some(arg.0))).collect();
                    self.define(values, place, op, (&args, &shapes))?;
                    if place == self.place {
                        let in_loop = stages[position] == Stage::Loop;
                        values.insert(place, exponential(&shapes[0], in_loop));
                    }
                }
                TileNode::Accumulate { how, tile } => {
                    let Some(mut value) = values.get(&(first, Some(tile.0))).cloned() else { continue };
                    if *how != Accumulation::Sum {
                        return Err(refuse(
                            place,
                            "takes a maximum of, or rescales, a value of degree other than 0",
                        ));
                    }
                    let axes = std::mem::take(&mut value.along_loop);
                    self.sum(&mut value, axes);
                    values.insert(place, value);
                }
                TileNode::RunningMax { tile } if values.contains_key(&(first, Some(tile.0))) => {
                    return Err(refuse(place, "takes a maximum of a value of degree other than 0"));
                }
                TileNode::RunningMax { .. } => {}
            }
        }
        for (at, store) in block.stores.iter().enumerate() {
            let Some(mut value) = values.get(&(first, Some(store.tile.0))).cloned() else { continue };
            let result = (TensorId(first.0 + at as u32), None);
            if first != self.place.0 {
                return Err(refuse(result, "leaves a second kernel before it is divided"));
            }
            for (axis, dim) in store.grid.iter().enumerate() {
                if let Some(dim) = dim {
                    value.dims[*dim].insert(0, (Some(Axis::Grid(axis)), block.grid[axis]));
                }
            }
            values.insert(result, value);
        }
        Ok(())
    }

    /// What a load sees of a value.
    fn part(
        &self,
        place: ValueKey,
        mut value: Dependence,
        block: &BlockGraph,
        (grid, along_loop): (&[Option<usize>], Option<usize>),
    ) -> Result<Dependence, Refusal> {
        let is_reduced = |axis: &Axis| self.reduced.as_ref().is_some_and(|reduced| reduced.contains(axis));
        for (dim, &blocks) in grid.iter().zip(&block.grid) {
            let Some(dim) = *dim else { continue };
            let taken = take(&mut value.dims[dim], blocks);
            if value.dims[dim]
                .iter()
                .filter_map(|(axis, _)| *axis)
                .chain(taken.iter().copied())
                .any(|a| is_reduced(&a))
                && blocks > 1
            {
                return Err(refuse(place, "spreads a sum that is not complete over blocks again"));
            }
        }
        if let Some(dim) = along_loop {
            let before = value.dims[dim].clone();
            let taken = take(&mut value.dims[dim], block.loop_range);
            let partial = before.len() > 1 && taken.len() > 1;
            if partial && before.iter().filter_map(|(axis, _)| *axis).any(|axis| is_reduced(&axis)) {
                return Err(refuse(place, "a loop over several axes of a sum that is not complete"));
            }
            value.along_loop.extend(taken);
        }
        Ok(value)
    }

    fn sum(&mut self, value: &mut Dependence, axes: impl IntoIterator<Item = Axis>) {
        for axis in axes {
            value.summed.insert(axis);
            self.summed.insert(axis);
        }
    }

    fn define(
        &mut self,
        values: &mut Values,
        place: ValueKey,
        op: &Op,
        (args, shapes): (&[ValueKey], &[Vec<usize>]),
    ) -> Result<(), Refusal> {
        let given: Vec<Option<Dependence>> = args.iter().map(|arg| values.get(arg).cloned()).collect();
        if given.iter().any(Option::is_some)
            && let Some(value) = self.apply(place, op, &given, shapes)?
        {
            values.insert(place, value);
        }
        Ok(())
    }

    /// The dependence of a result, of which an operand has a degree other than 0.
    fn apply(
        &mut self,
        place: ValueKey,
        op: &Op,
        args: &[Option<Dependence>],
        shapes: &[Vec<usize>],
    ) -> Result<Option<Dependence>, Refusal> {
        let refuse = |reason: &str| Err(refuse(place, reason));
        let first = args[0].clone();
        let times = |value: Dependence, factor: (i64, i64)| {
            let factor = Rational::new(factor.0, factor.1).unwrap_or(Rational::ONE);
            let degree = value.degree.times(factor).unwrap_or(value.degree);
            Dependence { degree, ..value }
        };
        match (op, first, args.get(1).cloned().flatten()) {
            (Op::Unary(UnaryFn::Square), Some(value), _) => Ok(Some(times(value, (2, 1)))),
            (Op::Unary(UnaryFn::Sqrt), Some(value), _) => Ok(Some(times(value, (1, 2)))),
            (Op::Unary(_) | Op::RmsNorm { .. }, ..) => {
                refuse("a function that is not homogeneous of a value of degree other than 0")
            }
            (Op::Offset(c), Some(value), _) if self.is_sink(place, *c, &value) => {
                self.sinks.insert(place);
                Ok(Some(Dependence { has_sink: true, ..value }))
            }
            (Op::Offset(_), ..) => refuse("adds a constant, of degree 0, to a value of another degree"),
            (Op::Scale(c), ..) if *c == Rational::ZERO => Ok(None),
            (Op::Scale(c), Some(value), _) => {
                Ok(Some(Dependence { pure: value.pure && *c > Rational::ZERO, ..value }))
            }
            (Op::Binary(f @ (BinaryFn::Add | BinaryFn::Sub)), Some(a), Some(b)) if a.degree == b.degree => {
                let mut joint = self.join(place, &a, &b)?;
                joint.pure = a.pure && b.pure && *f == BinaryFn::Add;
                joint.has_sink = a.has_sink || b.has_sink;
                Ok(Some(joint))
            }
            (Op::Binary(BinaryFn::Add | BinaryFn::Sub), ..) => refuse("adds values of different degrees"),
            (Op::Binary(BinaryFn::Max | BinaryFn::Mask), ..) => {
                refuse("a maximum or mask of a value of degree other than 0")
            }
            (Op::Binary(BinaryFn::Mul), Some(a), Some(b)) => {
                let joint = self.join(place, &a, &b)?;
                let degree = a.degree.plus(b.degree).unwrap_or(a.degree);
                Ok((degree != Rational::ZERO).then_some(Dependence {
                    degree,
                    pure: a.pure && b.pure,
                    ..joint
                }))
            }
            (Op::Binary(BinaryFn::Mul), Some(value), None) => Ok(Some(spread(value, &shapes[0], &shapes[1]))),
            (Op::Binary(BinaryFn::Mul), None, Some(value)) => Ok(Some(spread(value, &shapes[1], &shapes[0]))),
            (Op::Binary(BinaryFn::Div), Some(value), None) => Ok(Some(spread(value, &shapes[0], &shapes[1]))),
            (Op::Binary(BinaryFn::Div), value, Some(divisor)) => self.divide(place, value, divisor, shapes),
            (Op::Reduce { f: ReduceFn::Sum, dim, keep }, Some(mut value), _) => {
                let axes = if *keep == 1 {
                    let all = std::mem::take(&mut value.dims[*dim]);
                    all.into_iter().filter_map(|(axis, _)| axis).collect()
                } else {
                    let parts = shapes[0][*dim] / keep;
                    let extent: usize = value.dims[*dim].iter().map(|(_, extent)| extent).product();
                    let taken = take(&mut value.dims[*dim], parts);
                    let left: usize = value.dims[*dim].iter().map(|(_, extent)| extent).product();
                    if extent != shapes[0][*dim] || left != *keep {
                        return refuse("a sum that is not along whole axes");
                    }
                    taken
                };
                self.sum(&mut value, axes);
                Ok(Some(value))
            }
            (Op::Reduce { .. }, ..) => refuse("a maximum of a value of degree other than 0"),
            (Op::Matmul, Some(_), Some(_)) => refuse("a product of two values of degree other than 0"),
            (Op::Matmul, Some(value), None) => {
                Ok(Some(self.contract(value, (shapes[0].len() - 1, true), &shapes[1])))
            }
            (Op::Matmul, None, Some(value)) => {
                Ok(Some(self.contract(value, (shapes[1].len() - 2, false), &shapes[0])))
            }
            (Op::Transpose(perm), Some(value), _) => {
                let dims = perm.iter().map(|&dim| value.dims[dim].clone()).collect();
                Ok(Some(Dependence { dims, ..value }))
            }
            (Op::Broadcast(shape), Some(value), _) => Ok(Some(spread(value, &shapes[0], shape))),
            (Op::Repeat { dim, times }, Some(mut value), _) => {
                value.dims[*dim].push((None, *times));
                Ok(Some(value))
            }
            (Op::Slice { dim, .. }, Some(value), _)
                if value.dims[*dim].iter().all(|(axis, _)| axis.is_none()) =>
            {
                Ok(Some(value))
            }
            // Pairs within one row change nothing but signs.
            (Op::Rotate { dim, .. }, Some(value), _)
                if value.dims[*dim].iter().all(|(axis, _)| axis.is_none()) =>
            {
                Ok(Some(Dependence { pure: false, ..value }))
            }
            (Op::Slice { .. } | Op::Concat { .. } | Op::Reshape(_) | Op::Rotate { .. }, ..) => {
                refuse("a part, or another arrangement, of a value of degree other than 0")
            }
            (_, None, _) | (Op::Causal { .. } | Op::Below { .. }, ..) => Ok(None),
        }
    }

    /// True if a constant that is added to a value may be an exponential of zero. The row's maximum is at hand in the
    /// exponential's own kernel, and among predefined kernels.
    fn is_sink(&self, place: ValueKey, c: Rational, value: &Dependence) -> bool {
        let has_maximum =
            place.1.is_some() == self.place.1.is_some() && (place.1.is_none() || place.0 == self.place.0);
        has_maximum
            && c > Rational::ZERO
            && value.pure
            && value.degree == Rational::ONE
            && value.along_loop.is_empty()
    }

    fn divide(
        &mut self,
        place: ValueKey,
        value: Option<Dependence>,
        divisor: Dependence,
        shapes: &[Vec<usize>],
    ) -> Result<Option<Dependence>, Refusal> {
        self.divided = true;
        if !divisor.pure {
            return Err(refuse(
                place,
                "divides by what is more than a sum of exponentials, which may vanish",
            ));
        }
        if self.reduced.as_ref().is_some_and(|reduced| *reduced != divisor.summed) {
            return Err(refuse(place, "divides by a sum over other elements than the maximum is taken of"));
        }
        if self.reduced.is_some() && !self.sinks.is_empty() && !divisor.has_sink {
            return Err(refuse(place, "divides by a sum without the constant that another sum has"));
        }
        let inverse = Dependence { degree: divisor.degree.negated(), pure: false, ..divisor };
        let Some(value) = value else { return Ok(Some(spread(inverse, &shapes[1], &shapes[0]))) };
        let joint = self.join(place, &value, &inverse)?;
        let degree = value.degree.plus(inverse.degree).unwrap_or(value.degree);
        Ok((degree != Rational::ZERO).then_some(Dependence { degree, pure: false, ..joint }))
    }

    /// Both values elementwise: their rows must be the same.
    fn join(&self, place: ValueKey, a: &Dependence, b: &Dependence) -> Result<Dependence, Refusal> {
        if let Some(reduced) = &self.reduced {
            let row = |axes: &mut dyn Iterator<Item = Axis>| -> Vec<Axis> {
                axes.filter(|axis| !reduced.contains(axis)).collect()
            };
            let rows = |value: &Dependence| -> Vec<Vec<Axis>> {
                let dims = value.dims.iter();
                let of_dim = |dim: &AxisExtents| {
                    row(&mut dim.iter().filter(|(_, extent)| *extent > 1).filter_map(|(axis, _)| *axis))
                };
                dims.map(of_dim).chain([row(&mut value.along_loop.iter().copied())]).collect()
            };
            if rows(a) != rows(b) {
                return Err(refuse(place, "combines different rows of the exponential"));
            }
        }
        let longer = |(a, b): (&AxisExtents, &AxisExtents)| {
            let size =
                |dim: &[(Option<Axis>, usize)]| dim.iter().map(|(_, extent)| extent).product::<usize>();
            if size(a) >= size(b) { a.clone() } else { b.clone() }
        };
        Ok(Dependence {
            degree: a.degree,
            dims: a.dims.iter().zip(&b.dims).map(longer).collect(),
            along_loop: a.along_loop.union(&b.along_loop).copied().collect(),
            summed: a.summed.intersection(&b.summed).copied().collect(),
            pure: false,
            has_sink: a.has_sink && b.has_sink,
        })
    }

    /// A matrix product with another operand: sums along `dim`, the other's rows or columns take its place.
    fn contract(
        &mut self,
        mut value: Dependence,
        (dim, is_left): (usize, bool),
        other: &[usize],
    ) -> Dependence {
        let axes: Vec<Axis> = value.dims[dim].iter().filter_map(|(axis, _)| *axis).collect();
        let extent = other[if is_left { other.len() - 1 } else { other.len() - 2 }];
        value.dims[dim] = vec![(None, extent)];
        value.pure = false;
        self.sum(&mut value, axes);
        value
    }
}

fn exponential(shape: &[usize], in_loop: bool) -> Dependence {
    Dependence {
        degree: Rational::ONE,
        dims: shape.iter().enumerate().map(|(dim, &extent)| vec![(Some(Axis::Dim(dim)), extent)]).collect(),
        along_loop: in_loop.then_some(Axis::Loop).into_iter().collect(),
        summed: BTreeSet::new(),
        pure: true,
        has_sink: false,
    }
}

/// With a weight of degree 0: no longer pure, repeated where the weight is longer.
fn spread(value: Dependence, own: &[usize], other: &[usize]) -> Dependence {
    let mut dims = value.dims;
    for (dim, (&own, &other)) in dims.iter_mut().zip(own.iter().zip(other)) {
        if own == 1 && other != 1 {
            *dim = vec![(None, other)];
        }
    }
    Dependence { dims, pure: false, ..value }
}

/// Takes a number of parts from the outermost factors; returns their axes.
fn take(dim: &mut AxisExtents, mut parts: usize) -> Vec<Axis> {
    let mut axes = Vec::new();
    while parts > 1 {
        let Some((axis, extent)) = dim.first_mut() else { break };
        axes.extend(*axis);
        if *extent > parts && extent.is_multiple_of(parts) {
            *extent /= parts;
            break;
        }
        if *extent == 0 || !parts.is_multiple_of(*extent) {
            break;
        }
        parts /= *extent;
        dim.remove(0);
    }
    axes
}
