//! Programs: operators on tensors, with the shapes of their results.
//!
//! There are six operators. What moves elements, from a transpose to the cut of a tensor in tiles, is one of them, [`Op::Move`], and a matrix
//! product is a sum of products of two tensors that were moved. A kernel has no form of its own: what its blocks and iterations compute is one
//! tensor each, whose first dimensions are the axes of the grid and the loop. [`Program::split`] loads, [`Program::merge`] stores, and all
//! between are operators on these tensors.

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
    Sqrt,
    Erf,
    /// `1 / x`
    Reciprocal,
    /// Zero for minus infinity.
    Guard,
    /// The larger of a number and zero.
    Relu,
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
    Input { name: String, is_mask: bool },
    /// One where the index along a dimension is at most an offset, plus the index along another dimension if one is named; else zero.
    Compare { dim: usize, with: Option<usize>, offset: i128 },
    /// A function of elements, where extents of 1 are repeated.
    Each(Scalar),
    /// A function of the products of operands along a dimension, of which one element is left.
    Reduce(Scalar, usize),
    /// Operands side by side along a dimension.
    Concat(usize),
    /// Elements at other places: what the index along each dimension of the result adds to indices of the operand.
    Move(Vec<Vec<Part>>),
}

/// `start + index / divisor % modulus * factor` is added to the index along a dimension of the operand.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Part {
    pub dim: usize,
    pub start: usize,
    pub divisor: usize,
    pub modulus: usize,
    pub factor: usize,
}

impl Part {
    /// The index itself.
    pub fn of(dim: usize) -> Part {
        Part { dim, start: 0, divisor: 1, modulus: usize::MAX, factor: 1 }
    }

    /// What is added for an index.
    pub fn at(&self, index: usize) -> usize {
        self.start + index / self.divisor % self.modulus * self.factor
    }
}

/// How the axes of a grid cut a tensor.
#[derive(Clone, Debug)]
pub struct Tiling {
    /// Blocks along each axis.
    pub blocks: Vec<usize>,
    /// The dimension that each axis cuts.
    pub dims: Vec<Option<usize>>,
}

impl Tiling {
    /// The axis that cuts a dimension in more than one block.
    fn axis(&self, dim: usize) -> Option<usize> {
        self.dims.iter().position(|cut| *cut == Some(dim)).filter(|&axis| self.blocks[axis] > 1)
    }
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
    of: usize,
    /// Parts for the blocks along an axis, and that axis.
    blocks: (usize, usize),
    /// Parts of each of these for iterations, and the dimension of the loop.
    iterations: (usize, usize),
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
    // Where an axis or a loop of a kernel has no part in a cut, it is one part.
    let coordinate = |(parts, dim): (usize, usize)| if parts == 1 { 0 } else { index[dim] };
    shape.iter().zip(index).all(|(extent, &at)| {
        let Some(ragged) = extent.ragged else { return true };
        let size = ragged.of.div_ceil(ragged.blocks.0);
        let inner = coordinate(ragged.iterations) * extent.len + at;
        inner < size && coordinate(ragged.blocks) * size + inner < ragged.of
    })
}

/// A shape without absent elements.
pub fn extents(lens: &[usize]) -> Vec<Extent> {
    lens.iter().map(|&len| Extent::new(len)).collect()
}

/// The extents of a shape.
pub fn lens(shape: &[Extent]) -> Vec<usize> {
    shape.iter().map(|extent| extent.len).collect()
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
/// The most dimensions, with those of a grid and a loop, and one more in a matrix product.
const MAX_RANK: usize = 13;

impl Program {
    /// Adds a tensor, if it has a shape.
    pub fn push(&mut self, op: Op, args: &[usize], shape: Option<Vec<Extent>>) -> Result<usize, String> {
        let shape = shape.filter(|shape| shape.iter().all(|extent| extent.len > 0));
        let Some(shape) = shape else {
            let shapes: Vec<Vec<usize>> = args.iter().map(|&arg| lens(self.shape(arg))).collect();
            return Err(format!("{op:?} does not suit {shapes:?}"));
        };
        if self.nodes.len() >= MAX_NODES || shape.len() > MAX_RANK {
            return Err(format!(
                "more than {MAX_NODES} tensors, or {MAX_RANK} dimensions with those of grid and loop"
            ));
        }
        self.nodes.push(Node { op, args: args.to_vec(), shape });
        Ok(self.nodes.len() - 1)
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: usize) -> &[Extent] {
        &self.nodes[tensor].shape
    }

    /// The extent of a dimension, along which elements may move: none are absent there, nor depends on it what is absent elsewhere.
    pub fn extent(&self, tensor: usize, dim: usize) -> Option<usize> {
        let shape = self.shape(tensor);
        let is_even = !shape.iter().any(|extent| extent.depends_on(dim));
        shape.get(dim).filter(|extent| is_even && extent.ragged.is_none()).map(|extent| extent.len)
    }

    /// The inputs: name, whether it is a mask, extents.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, (bool, Vec<usize>))> {
        self.nodes.iter().filter_map(|node| match &node.op {
            Op::Input { name, is_mask } => Some((name.as_str(), (*is_mask, lens(&node.shape)))),
            _ => None,
        })
    }

    /// The shape of what is computed of operands element by element, but for one dimension, which is the first's.
    fn together(&self, args: &[usize], but: Option<usize>) -> Option<Vec<Extent>> {
        let (first, others) = args.split_first()?;
        let mut shape = self.shape(*first).to_vec();
        for &other in others {
            let other = self.shape(other);
            if other.len() != shape.len() {
                return None;
            }
            for (dim, own) in shape.iter_mut().enumerate().filter(|(dim, _)| Some(*dim) != but) {
                match (*own == Extent::new(1), other[dim] == Extent::new(1)) {
                    (true, _) => *own = other[dim],
                    (false, false) if *own != other[dim] => return None,
                    _ => {}
                }
            }
        }
        Some(shape)
    }

    /// [`Op::Compare`]
    pub fn compare(
        &mut self,
        (dim, with): (usize, Option<usize>),
        offset: i128,
        shape: &[usize],
        args: &[usize],
    ) -> Result<usize, String> {
        let is_shape = args.is_empty() && dim.max(with.unwrap_or(0)) < shape.len();
        self.push(Op::Compare { dim, with, offset }, args, Some(extents(shape)).filter(|_| is_shape))
    }

    /// [`Op::Each`]
    pub fn each(&mut self, scalar: Scalar, args: &[usize]) -> Result<usize, String> {
        let is_binary = matches!(scalar, Scalar::Sum | Scalar::Mul | Scalar::Largest | Scalar::Mask);
        let shape = self.together(args, None).filter(|_| args.len() == 1 + usize::from(is_binary));
        self.push(Op::Each(scalar), args, shape)
    }

    /// [`Op::Reduce`]
    pub fn reduce(&mut self, scalar: Scalar, dim: usize, args: &[usize]) -> Result<usize, String> {
        let shape = self.together(args, None).and_then(|mut shape| {
            *shape.get_mut(dim)? = Extent::new(1);
            Some(shape).filter(|shape| !shape.iter().any(|extent| extent.depends_on(dim)))
        });
        self.push(Op::Reduce(scalar, dim), args, shape)
    }

    /// `[.., m, k] x [.., k, n] -> [.., m, n]`
    pub fn matmul(&mut self, args: &[usize]) -> Result<usize, String> {
        let shapes: Vec<&[Extent]> = args.iter().map(|&arg| self.shape(arg)).collect();
        let batch = match shapes[..] {
            [[lhs @ .., _, k], [rhs @ .., rows, _]] if lhs.len() == rhs.len() && k == rows => lhs.len(),
            _ => return Err(format!("a matrix product does not suit {shapes:?}")),
        };
        let with =
            |last: [Option<usize>; 3]| -> Vec<Option<usize>> { (0..batch).map(Some).chain(last).collect() };
        let lhs = self.select(args[0], &with([Some(batch), None, Some(batch + 1)]))?;
        let rhs = self.select(args[1], &with([None, Some(batch + 1), Some(batch)]))?;
        let sum = self.reduce(Scalar::Sum, batch + 2, &[lhs, rhs])?;
        self.select(sum, &(0..batch + 2).map(Some).collect::<Vec<_>>())
    }

    /// [`Op::Concat`]
    pub fn concat(&mut self, dim: usize, args: &[usize]) -> Result<usize, String> {
        let total = args.iter().try_fold(0usize, |sum, &arg| sum.checked_add(self.extent(arg, dim)?));
        let shape = self.together(args, Some(dim)).zip(total).map(|(mut shape, total)| {
            shape[dim] = Extent::new(total);
            shape
        });
        self.push(Op::Concat(dim), args, shape)
    }

    /// Dimensions of a tensor in an order, with new ones of extent 1; what is left out has extent 1.
    pub fn select(&mut self, x: usize, dims: &[Option<usize>]) -> Result<usize, String> {
        let own = self.shape(x);
        let is_once = |dim: usize| match dims.iter().filter(|taken| **taken == Some(dim)).count() {
            0 => own[dim].len == 1,
            count => count == 1,
        };
        let extent = |dim: &Option<usize>| dim.map_or(Some(Extent::new(1)), |dim| own.get(dim).copied());
        let shape = dims.iter().map(extent).collect::<Option<_>>().filter(|_| (0..own.len()).all(is_once));
        self.push(
            Op::Move(dims.iter().map(|dim| dim.iter().map(|&dim| Part::of(dim)).collect()).collect()),
            &[x],
            shape,
        )
    }

    /// Repeats extents of 1.
    pub fn broadcast(&mut self, x: usize, shape: &[usize]) -> Result<usize, String> {
        let own = self.shape(x).to_vec();
        let is_same = |dim: &usize| own.get(*dim).is_some_and(|extent| extent.len == shape[*dim]);
        let parts = (0..shape.len()).map(|dim| is_same(&dim).then(|| Part::of(dim)).into_iter().collect());
        let extent = |(&own, &len): (&Extent, &usize)| match own.len {
            before if before == len => Some(own),
            1 => Some(Extent::new(len)),
            _ => None,
        };
        let all: Option<Vec<Extent>> = own.iter().zip(shape).map(extent).collect();
        self.push(Op::Move(parts.collect()), &[x], all.filter(|_| own.len() == shape.len()))
    }

    /// Elements along a dimension at other places.
    fn along(&mut self, x: usize, part: Part, len: Option<usize>) -> Result<usize, String> {
        let mut parts: Vec<Vec<Part>> = (0..self.shape(x).len()).map(|dim| vec![Part::of(dim)]).collect();
        let mut shape = self.shape(x).to_vec();
        let len = len.filter(|_| self.extent(x, part.dim).is_some()).map(|len| {
            parts[part.dim] = vec![part];
            shape[part.dim] = Extent::new(len);
        });
        self.push(Op::Move(parts), &[x], len.map(|()| shape))
    }

    /// Elements from a first one on.
    pub fn slice(&mut self, x: usize, dim: usize, (start, len): (usize, usize)) -> Result<usize, String> {
        let end =
            start.checked_add(len).filter(|&end| self.extent(x, dim).is_some_and(|extent| end <= extent));
        self.along(x, Part { start, ..Part::of(dim) }, end.map(|_| len))
    }

    /// Each element so many times.
    pub fn repeat(&mut self, x: usize, dim: usize, times: usize) -> Result<usize, String> {
        let len = self.extent(x, dim).and_then(|extent| extent.checked_mul(times));
        self.along(x, Part { divisor: times.max(1), ..Part::of(dim) }, len)
    }

    /// Another shape, of the same elements in row-major order.
    pub fn reshape(&mut self, x: usize, shape: &[usize]) -> Result<usize, String> {
        let count = |lens: &[usize]| lens.iter().try_fold(1usize, |product, &len| product.checked_mul(len));
        let own = lens(self.shape(x));
        let total = count(&own).filter(|&total| count(shape) == Some(total));
        let digits = own.iter().zip(steps(&own)).enumerate();
        let digit = |(dim, (&modulus, step)): (usize, (&usize, usize))| Part {
            divisor: step.max(1),
            modulus,
            ..Part::of(dim)
        };
        let flat = Op::Move(vec![digits.map(digit).collect()]);
        let flat = self.push(flat, &[x], total.map(|total| vec![Extent::new(total)]))?;
        let parts = steps(shape).into_iter().map(|factor| vec![Part { factor, ..Part::of(0) }]).collect();
        self.push(Op::Move(parts), &[flat], Some(extents(shape)))
    }

    /// Cuts a tensor in parts for the blocks and iterations of a kernel, which become its first dimensions.
    pub fn split(
        &mut self,
        x: usize,
        tiling: &Tiling,
        along: Option<usize>,
        iterations: usize,
    ) -> Result<usize, String> {
        let prefix = tiling.blocks.len() + 1;
        let mut parts: Vec<Vec<Part>> = vec![Vec::new(); prefix];
        let mut shape = vec![Extent::new(1); prefix];
        for (dim, extent) in self.shape(x).to_vec().into_iter().enumerate() {
            let blocks = tiling.axis(dim).map_or((1, 0), |axis| (tiling.blocks[axis], axis));
            let iterations = (if along == Some(dim) { iterations } else { 1 }, prefix - 1);
            let size = extent.len.div_ceil(blocks.0);
            let len = size.div_ceil(iterations.0);
            for ((count, at), factor) in [(blocks, size), (iterations, len)] {
                if count > 1 {
                    parts[at] = vec![Part { factor, ..Part::of(dim) }];
                    shape[at] = Extent::new(count);
                }
            }
            let is_even = extent.len.is_multiple_of(blocks.0) && size.is_multiple_of(iterations.0);
            parts.push(vec![Part::of(dim)]);
            shape.push(Extent {
                len,
                ragged: (!is_even).then_some(Ragged { of: extent.len, blocks, iterations }),
            });
        }
        self.push(Op::Move(parts), &[x], Some(shape))
    }

    /// Puts together what blocks made.
    pub fn merge(&mut self, x: usize, tiling: &Tiling) -> Result<usize, String> {
        let prefix = tiling.blocks.len() + 1;
        let (mut parts, mut shape) = (Vec::new(), Some(Vec::new()));
        for (dim, extent) in self.shape(x)[prefix..].iter().enumerate() {
            let axis = tiling.axis(dim);
            let blocks = axis.map_or((1, 0), |axis| (tiling.blocks[axis], axis));
            let len = match extent.ragged {
                None => extent.len.checked_mul(blocks.0),
                Some(ragged) => Some(ragged.of)
                    .filter(|_| ragged.iterations.0 == 1 && ragged.blocks == blocks && axis.is_some()),
            };
            let block = axis.map(|axis| Part { divisor: extent.len, ..Part::of(axis) });
            let modulus = if axis.is_some() { extent.len } else { usize::MAX };
            parts.push(block.into_iter().chain([Part { modulus, ..Part::of(prefix + dim) }]).collect());
            shape = shape.zip(len).map(|(mut shape, len)| {
                shape.push(Extent::new(len));
                shape
            });
        }
        self.push(Op::Move(parts), &[x], shape)
    }
}

/// Distances between neighbours of a tensor in row-major order; none where an extent of 1 is repeated.
pub fn steps(lens: &[usize]) -> Vec<usize> {
    let mut step = 1usize;
    let mut steps: Vec<usize> = lens
        .iter()
        .rev()
        .map(|&len| (if len == 1 { 0 } else { step }, step = step.wrapping_mul(len)).0)
        .collect();
    steps.reverse();
    steps
}
