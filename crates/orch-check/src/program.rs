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
    Log,
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
    /// One where the last index is at most the one before it plus an offset, else zero.
    Causal {
        offset: i64,
        shape: Vec<usize>,
    },
    /// One where the index along a dimension is below a limit, else zero.
    Below {
        dim: usize,
        limit: usize,
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

fn joint(a: &[Extent], b: &[Extent]) -> Option<Vec<Extent>> {
    let one = Extent::new(1);
    let extent = |(&a, &b): (&Extent, &Extent)| match (a, b) {
        _ if a == b || b == one => Some(a),
        _ if a == one => Some(b),
        _ => None,
    };
    a.iter().zip(b).map(extent).collect::<Option<_>>().filter(|_| a.len() == b.len())
}

impl Op {
    /// The shape of the result, if there is one.
    fn shape(&self, args: &[&[Extent]]) -> Option<Vec<Extent>> {
        let plain = |shape: &[usize]| -> Vec<Extent> { shape.iter().map(|&len| Extent::new(len)).collect() };
        // Along a dimension that is not the same everywhere nothing is moved.
        let even = |arg: &[Extent], dim: usize| {
            let is_even = arg.get(dim)?.ragged.is_none() && !arg.iter().any(|extent| extent.depends_on(dim));
            is_even.then_some(arg[dim].len)
        };
        let with = |dim: usize, len: usize| {
            let mut shape = args[0].to_vec();
            shape[dim] = Extent::new(len);
            shape
        };
        let count = match self {
            Op::Input { .. } | Op::Causal { .. } | Op::Below { .. } => 0,
            Op::Matmul | Op::Each(Scalar::Sum | Scalar::Mul | Scalar::Largest | Scalar::Mask) => 2,
            Op::Concat(_) => args.len().max(1),
            _ => 1,
        };
        if args.len() != count {
            return None;
        }
        Some(match self {
            Op::Input { shape, .. } => plain(shape),
            Op::Causal { shape, .. } => Some(plain(shape)).filter(|shape| shape.len() > 1)?,
            Op::Below { shape, dim, .. } => shape.get(*dim).map(|_| plain(shape))?,
            Op::Each(_) => args[1..].iter().try_fold(args[0].to_vec(), |shape, arg| joint(&shape, arg))?,
            Op::Reduce(_, dim) => {
                args[0].get(*dim).filter(|_| !args[0].iter().any(|extent| extent.depends_on(*dim)))?;
                with(*dim, 1)
            }
            Op::Matmul => {
                let ([lhs @ .., m, k], [rhs @ .., rows, n]) = (args[0], args[1]) else { return None };
                [joint(lhs, rhs).filter(|_| k == rows)?, vec![*m, *n]].concat()
            }
            Op::Transpose(order) => {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                order
                    .iter()
                    .map(|&dim| args[0].get(dim).copied())
                    .collect::<Option<Vec<_>>>()
                    .filter(|_| sorted.into_iter().eq(0..args[0].len()))?
            }
            Op::Reshape(shape) => {
                Some(plain(shape)).filter(|shape| elems(shape).is_some() && elems(shape) == elems(args[0]))?
            }
            Op::Broadcast(shape) => {
                // What is absent stays absent.
                let mut wide = plain(shape);
                wide.iter_mut().zip(args[0]).for_each(|(wide, own)| wide.ragged = own.ragged);
                joint(&wide, args[0]).filter(|shape| *shape == wide)?
            }
            Op::Slice { dim, start, len } => {
                start
                    .checked_add(*len)
                    .filter(|&end| even(args[0], *dim).is_some_and(|extent| end <= extent))?;
                with(*dim, *len)
            }
            Op::Repeat { dim, times } => with(*dim, even(args[0], *dim)?.checked_mul(*times)?),
            Op::Concat(dim) => {
                let total = args.iter().try_fold(0usize, |sum, arg| sum.checked_add(even(arg, *dim)?))?;
                let fits = |arg: &&[Extent]| {
                    arg.len() == args[0].len()
                        && (0..arg.len()).all(|at| at == *dim || arg[at] == args[0][at])
                };
                if args.iter().all(fits) { with(*dim, total) } else { return None }
            }
            Op::Split { tiling: Tiling { blocks, dims, .. }, along, iterations } => {
                let rank = blocks.len();
                let mut shape: Vec<Extent> = dims
                    .iter()
                    .zip(blocks)
                    .map(|(dim, &blocks)| Extent::new(dim.map_or(1, |_| blocks)))
                    .collect();
                shape.push(Extent::new(along.map_or(1, |_| *iterations)));
                for (dim, extent) in args[0].iter().enumerate() {
                    let axis = dims.iter().position(|cut| *cut == Some(dim));
                    let blocks = axis.map_or((1, 0), |axis| (blocks[axis], axis));
                    let iterations = if *along == Some(dim) { (*iterations, rank) } else { (1, rank) };
                    let part = extent.len.div_ceil(blocks.0);
                    let len = part.div_ceil(iterations.0);
                    let is_even =
                        (part.checked_mul(blocks.0)?, len.checked_mul(iterations.0)?) == (extent.len, part);
                    shape.push(Extent {
                        len,
                        ragged: (!is_even).then_some(Ragged { of: extent.len, blocks, iterations }),
                    });
                }
                shape
            }
            Op::Merge(Tiling { blocks, dims, .. }) => {
                let stored = args[0].get(blocks.len() + 1..)?.iter().enumerate();
                stored
                    .map(|(dim, extent)| {
                        match (dims.iter().position(|cut| *cut == Some(dim)), extent.ragged) {
                            (None, None) => Some(*extent),
                            (Some(axis), None) => Some(Extent::new(extent.len.checked_mul(blocks[axis])?)),
                            (Some(axis), Some(ragged))
                                if ragged.iterations.0 == 1 && ragged.blocks == (blocks[axis], axis) =>
                            {
                                Some(Extent::new(ragged.of))
                            }
                            _ => None,
                        }
                    })
                    .collect::<Option<_>>()?
            }
        })
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
        let shape =
            op.shape(&shapes).filter(|shape| shape.iter().all(|extent| extent.len > 0)).ok_or_else(wrong)?;
        if self.nodes.len() >= MAX_NODES || shape.len() > MAX_RANK {
            return Err(format!(
                "more than {MAX_NODES} tensors, or {MAX_RANK} dimensions with those of grid and loop"
            ));
        }
        self.nodes.push(Node { op, args: args.to_vec(), shape });
        Ok(self.nodes.len() - 1)
    }

    /// Adds a function of each element.
    pub fn each(&mut self, scalar: Scalar, args: &[usize]) -> Result<usize, String> {
        self.push(Op::Each(scalar), args)
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
