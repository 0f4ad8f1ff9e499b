//! Programs: operators on tensors, with the shapes of their results.
//!
//! A kernel has no form of its own. What its blocks and iterations compute is one tensor each, whose first dimensions are the
//! axes of the grid and the loop: [`Op::Split`] loads, [`Op::Merge`] stores, and all between are operators on these tensors.

/// An exact constant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ratio {
    /// The numerator.
    pub num: i64,
    /// The denominator, positive.
    pub den: i64,
}

/// A function of numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)] // The names say it; what needs more has it.
pub enum Scalar {
    /// Of no number.
    Constant(Ratio),
    Exp,
    Square,
    Sqrt,
    Erf,
    Relu,
    /// `1 / x`
    Reciprocal,
    /// Zero for minus infinity.
    Guard,
    /// `2 sqrt(2 / pi) x`
    GeluFactor,
    Scale(Ratio),
    Offset(Ratio),
    /// Of any count.
    Sum,
    Mul,
    /// Of any count; minus infinity of none.
    Largest,
    /// The first where the second is 1, minus infinity where it is 0.
    Mask,
}

/// An operator.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// A tensor that is given; the elements of a mask are zeros and ones.
    Input {
        name: String,
        is_mask: bool,
        shape: Vec<usize>,
    },
    /// One where the index along a dimension is at most an offset, plus the index along another dimension if one is named; else zero.
    Compare {
        dim: usize,
        with: Option<usize>,
        offset: i128,
        shape: Vec<usize>,
    },
    /// A function of elements, where extents of 1 are repeated.
    Each(Scalar),
    /// A function of all elements along a dimension, of which one is left.
    Reduce(Scalar, usize),
    /// `[.., m, k] x [.., k, n] -> [.., m, n]`
    Matmul,
    /// The order of dimensions.
    Transpose(Vec<usize>),
    Reshape(Vec<usize>),
    /// Repeats extents of 1.
    Broadcast(Vec<usize>),
    Slice {
        dim: usize,
        start: usize,
        len: usize,
    },
    /// Each element so many times.
    Repeat {
        dim: usize,
        times: usize,
    },
    Concat(usize),
    /// Cuts a tensor in parts for the blocks and iterations of a kernel, which become its first dimensions.
    Split {
        tiling: Tiling,
        along: Option<usize>,
        iterations: usize,
    },
    /// Puts together what blocks made.
    Merge(Tiling),
}

/// How the axes of a grid cut a tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct Tiling {
    /// The number of the kernel.
    pub kernel: usize,
    /// Blocks along each axis.
    pub blocks: Vec<usize>,
    /// The dimension that each axis cuts.
    pub dims: Vec<Option<usize>>,
}

/// A dimension of a tensor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Extent {
    /// Elements along it.
    pub len: usize,
    /// Set if some are absent, as parts are not of one size.
    pub ragged: Option<Ragged>,
}

/// Parts of an extent: all have the same size, but for what is left at the end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ragged {
    /// The extent.
    pub of: usize,
    /// Parts for the blocks along an axis, and that axis.
    pub blocks: (usize, usize),
    /// Parts of each of these for iterations, and the dimension of the loop.
    pub iterations: (usize, usize),
}

/// Where an axis or a loop of a kernel has no part in a cut, it is one part.
fn coordinate((parts, dim): (usize, usize), index: &[usize]) -> usize {
    if parts == 1 { 0 } else { index[dim] }
}

impl Extent {
    /// An extent without absent elements.
    pub fn new(len: usize) -> Extent {
        Extent { len, ragged: None }
    }

    fn depends_on(&self, dim: usize) -> bool {
        self.ragged.is_some_and(|ragged| {
            [ragged.blocks, ragged.iterations].iter().any(|&(parts, at)| parts > 1 && at == dim)
        })
    }
}

/// True if there is an element at an index.
pub fn is_present(shape: &[Extent], index: &[usize]) -> bool {
    shape.iter().zip(index).all(|(extent, &at)| {
        let Some(ragged) = extent.ragged else { return true };
        let size = ragged.of.div_ceil(ragged.blocks.0);
        let inner = coordinate(ragged.iterations, index) * extent.len + at;
        inner < size && coordinate(ragged.blocks, index) * size + inner < ragged.of
    })
}

/// The number of elements, if it can be counted.
pub fn elems(shape: &[Extent]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, extent| product.checked_mul(extent.len))
}

/// The extents of a shape.
pub fn lens(shape: &[Extent]) -> Vec<usize> {
    shape.iter().map(|extent| extent.len).collect()
}

/// A kernel, and an axis of its grid.
pub type Axis = (usize, usize);

/// Where a dimension of a result comes from. What operators do with indices is said here, and nowhere else.
#[derive(Clone, PartialEq, Debug)]
pub enum Origin {
    /// Element `i` is made of the elements `i` along dimensions of operands: their numbers, and the dimensions.
    Same(Vec<(usize, usize)>),
    /// All elements are equal.
    Repeated(Extent),
    /// Elements are anything else.
    Other(Extent),
    /// The blocks along an axis: the axis, the dimension that they have parts of.
    Blocks(Axis, usize, Extent),
    /// What the blocks along an axis have of a dimension.
    Inner(Axis, usize, Extent),
    /// What they have of a dimension of a tile, put together.
    Whole(Axis, usize, Extent),
}

impl Origin {
    /// The extent, if those of operands fit.
    fn extent(&self, args: &[&[Extent]]) -> Option<Extent> {
        let one = Extent::new(1);
        match self {
            Origin::Same(dims) => dims.iter().try_fold(one, |extent, &(arg, dim)| {
                let other = *args[arg].get(dim)?;
                let fits = extent == other || extent == one || other == one;
                fits.then_some(if extent == one { other } else { extent })
            }),
            Origin::Repeated(extent) | Origin::Other(extent) => Some(*extent),
            Origin::Blocks(.., extent) | Origin::Inner(.., extent) | Origin::Whole(.., extent) => {
                Some(*extent)
            }
        }
    }
}

impl Op {
    /// Where the dimensions of the result come from, if there is one.
    pub fn origins(&self, args: &[&[Extent]]) -> Option<Vec<Origin>> {
        let count = match self {
            Op::Input { .. } | Op::Compare { .. } => 0,
            Op::Matmul | Op::Each(Scalar::Sum | Scalar::Mul | Scalar::Largest | Scalar::Mask) => 2,
            Op::Concat(_) => args.len().max(1),
            _ => 1,
        };
        let rank = args.first().map_or(0, |arg| arg.len());
        if args.len() != count || *self != Op::Matmul && args.iter().any(|arg| arg.len() != rank) {
            return None;
        }
        let same = |dim: usize| Origin::Same((0..count).map(|arg| (arg, dim)).collect());
        let given = |shape: &[usize], make: fn(Extent) -> Origin| -> Vec<Origin> {
            shape.iter().map(|&len| make(Extent::new(len))).collect()
        };
        // All as in operands, but for one dimension.
        let but = |dim: usize, origin: Origin| -> Option<Vec<Origin>> {
            let mut all: Vec<Origin> = (0..rank).map(same).collect();
            *all.get_mut(dim)? = origin;
            Some(all)
        };
        // Along a dimension that is not the same everywhere nothing is moved.
        let even = |arg: &[Extent], dim: usize| {
            let is_even = arg.get(dim)?.ragged.is_none() && !arg.iter().any(|extent| extent.depends_on(dim));
            is_even.then_some(arg[dim].len)
        };
        let other = |len: usize| Origin::Other(Extent::new(len));
        match self {
            Op::Input { shape, .. } => Some(given(shape, Origin::Repeated)),
            Op::Compare { dim, with, shape, .. } => {
                let origin = |(at, &len): (usize, &usize)| match at == *dim || Some(at) == *with {
                    true => other(len),
                    false => Origin::Repeated(Extent::new(len)),
                };
                let is_there = [Some(*dim), *with].iter().flatten().all(|dim| *dim < shape.len());
                is_there.then(|| shape.iter().enumerate().map(origin).collect())
            }
            Op::Each(_) => Some((0..rank).map(same).collect()),
            Op::Reduce(_, dim) => {
                let is_same = !args[0].iter().any(|extent| extent.depends_on(*dim));
                but(*dim, Origin::Repeated(Extent::new(1))).filter(|_| is_same)
            }
            Op::Matmul => {
                let ([lhs @ .., _, k], [rhs @ .., rows, _]) = (args[0], args[1]) else { return None };
                let batch = lhs.len();
                let mut all: Vec<Origin> = (0..batch).map(same).collect();
                all.extend([Origin::Same(vec![(0, batch)]), Origin::Same(vec![(1, batch + 1)])]);
                Some(all).filter(|_| batch == rhs.len() && k == rows)
            }
            Op::Transpose(order) => {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                sorted.into_iter().eq(0..rank).then(|| order.iter().map(|&dim| same(dim)).collect())
            }
            Op::Reshape(shape) => {
                let all = given(shape, Origin::Other);
                let own: Vec<Extent> = shape.iter().map(|&len| Extent::new(len)).collect();
                Some(all).filter(|_| elems(&own).is_some() && elems(&own) == elems(args[0]))
            }
            Op::Broadcast(shape) => {
                // What is absent stays absent.
                let origin = |(dim, &len): (usize, &usize)| match args[0][dim].len {
                    own if own == len => Some(same(dim)),
                    1 => Some(Origin::Repeated(Extent::new(len))),
                    _ => None,
                };
                let all: Option<Vec<Origin>> = shape.iter().enumerate().take(rank).map(origin).collect();
                all.filter(|_| shape.len() == rank)
            }
            Op::Slice { dim, start, len } => {
                let end = start.checked_add(*len)?;
                but(*dim, other(*len)).filter(|_| even(args[0], *dim).is_some_and(|extent| end <= extent))
            }
            Op::Repeat { dim, times } => but(*dim, other(even(args[0], *dim)?.checked_mul(*times)?)),
            Op::Concat(dim) => {
                let total = args.iter().try_fold(0usize, |sum, arg| sum.checked_add(even(arg, *dim)?))?;
                but(*dim, other(total))
            }
            Op::Split { tiling: Tiling { kernel, blocks, dims }, along, iterations } => {
                let once = Origin::Repeated(Extent::new(1));
                let axis = |(axis, &blocks): (usize, &usize)| match dims[axis] {
                    Some(dim) if blocks > 1 => Origin::Blocks((*kernel, axis), dim, Extent::new(blocks)),
                    _ => once.clone(),
                };
                let mut all: Vec<Origin> = blocks.iter().enumerate().map(axis).collect();
                let along = along.filter(|_| *iterations > 1);
                all.push(if along.is_some() { other(*iterations) } else { once.clone() });
                for (dim, extent) in args[0].iter().enumerate() {
                    let axis = dims.iter().position(|cut| *cut == Some(dim));
                    let blocks = axis.map_or((1, 0), |axis| (blocks[axis], axis));
                    let is_looped = along == Some(dim);
                    let iterations = (if is_looped { *iterations } else { 1 }, dims.len());
                    let part = extent.len.div_ceil(blocks.0);
                    let len = part.div_ceil(iterations.0);
                    let is_even =
                        (part.checked_mul(blocks.0)?, len.checked_mul(iterations.0)?) == (extent.len, part);
                    let ragged = (!is_even).then_some(Ragged { of: extent.len, blocks, iterations });
                    all.push(match axis.filter(|_| blocks.0 > 1) {
                        _ if is_looped => Origin::Other(Extent { len, ragged }),
                        Some(axis) => Origin::Inner((*kernel, axis), dim, Extent { len, ragged }),
                        None => same(dim),
                    });
                }
                Some(all)
            }
            Op::Merge(Tiling { kernel, blocks, dims }) => {
                let prefix = blocks.len() + 1;
                let stored = args[0].get(prefix..)?.iter().enumerate();
                let origin = |(at, extent): (usize, &Extent)| {
                    let axis = dims.iter().position(|cut| *cut == Some(at));
                    match (axis.filter(|&axis| blocks[axis] > 1), extent.ragged) {
                        (None, None) => Some(same(prefix + at)),
                        (Some(axis), None) => {
                            let whole = Extent::new(extent.len.checked_mul(blocks[axis])?);
                            Some(Origin::Whole((*kernel, axis), prefix + at, whole))
                        }
                        (Some(axis), Some(ragged))
                            if ragged.iterations.0 == 1 && ragged.blocks == (blocks[axis], axis) =>
                        {
                            Some(Origin::Whole((*kernel, axis), prefix + at, Extent::new(ragged.of)))
                        }
                        _ => None,
                    }
                };
                stored.map(origin).collect()
            }
        }
    }

    /// True if elements of the result are elements of operands.
    pub fn moves(&self) -> bool {
        self.is_view() || matches!(self, Op::Concat(_) | Op::Reshape(_) | Op::Repeat { .. } | Op::Merge(_))
    }

    /// True if the result is a part of an operand, with other steps between elements.
    pub fn is_view(&self) -> bool {
        matches!(self, Op::Transpose(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Split { .. })
    }
}

/// A tensor and how it is computed.
#[derive(Clone, Debug)]
pub struct Node {
    /// The operator.
    pub op: Op,
    /// The numbers of its operands.
    pub args: Vec<usize>,
    /// The shape of the tensor.
    pub shape: Vec<Extent>,
    /// Where each of its dimensions comes from.
    pub origins: Vec<Origin>,
}

/// A program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Tensors, operands before what is computed of them.
    pub nodes: Vec<Node>,
    /// Names and tensors of the results.
    pub outputs: Vec<(String, usize)>,
}

/// The most tensors of a program.
const MAX_NODES: usize = 100_000;
/// The most dimensions, with those of a grid and a loop.
const MAX_RANK: usize = 12;

impl Program {
    /// Adds a tensor.
    pub fn push(&mut self, op: Op, args: &[usize]) -> Result<usize, String> {
        let shapes: Vec<&[Extent]> = args.iter().map(|&arg| self.nodes[arg].shape.as_slice()).collect();
        let wrong = || {
            format!("{op:?} does not suit {:?}", shapes.iter().map(|shape| lens(shape)).collect::<Vec<_>>())
        };
        let origins = op.origins(&shapes).ok_or_else(wrong)?;
        let shape: Option<Vec<Extent>> = origins.iter().map(|origin| origin.extent(&shapes)).collect();
        let shape = shape.filter(|shape| shape.iter().all(|extent| extent.len > 0)).ok_or_else(wrong)?;
        if self.nodes.len() >= MAX_NODES || shape.len() > MAX_RANK {
            return Err(format!(
                "more than {MAX_NODES} tensors, or {MAX_RANK} dimensions with those of grid and loop"
            ));
        }
        self.nodes.push(Node { op, args: args.to_vec(), shape, origins });
        Ok(self.nodes.len() - 1)
    }

    /// The extent of a dimension, if there is one and it is even.
    pub fn extent(&self, tensor: usize, dim: usize) -> Option<usize> {
        self.nodes[tensor].shape.get(dim).filter(|extent| extent.ragged.is_none()).map(|extent| extent.len)
    }

    /// The inputs: number, name, whether it is a mask, shape.
    pub fn inputs(&self) -> impl Iterator<Item = (usize, &str, bool, &[usize])> {
        self.nodes.iter().enumerate().filter_map(|(at, node)| match &node.op {
            Op::Input { name, is_mask, shape } => Some((at, name.as_str(), *is_mask, shape.as_slice())),
            _ => None,
        })
    }
}
