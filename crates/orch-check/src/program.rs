//! Programs: operators on tensors, with the shapes of their results.
//!
//! There are seven operators. What moves elements, from a transpose to the cut of a tensor in tiles, is one of them, [`Op::Move`], and a
//! matrix product is a sum of products of two tensors that were moved. A kernel has no form of its own: what its blocks and iterations compute
//! is one tensor each, whose first dimensions are the axes of the grid and the loop. [`Program::split`] loads, [`Program::merge`] stores,
//! and all between are operators on these tensors.

/// A value, or what is wrong with a text or a pair of programs.
pub type Result<T, E = String> = std::result::Result<T, E>;

/// Gives an error where something does not hold.
macro_rules! ensure {
    ($holds:expr, $($problem:tt)*) => {
        match $holds {
            true => {}
            false => return Err(format!($($problem)*).into()),
        }
    };
}
pub(crate) use ensure;

/// A constant.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    /// A numerator and a positive denominator.
    Ratio(i64, i64),
    /// `2 sqrt(2 / pi)`
    GeluFactor,
}

/// A function of numbers. In texts it has its name in small letters.
#[derive(Clone, Copy, PartialEq, Debug, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)] // The names say it; what needs more has it.
pub enum Scalar {
    Exp,
    Sqrt,
    Erf,
    /// `1 / x`
    Reciprocal,
    /// Zero for minus infinity.
    Guard,
    /// Of any count.
    Add,
    Mul,
    /// Of any count; minus infinity of none.
    Max,
    /// The first where the second is 1, minus infinity where it is 0.
    Mask,
    /// The product with a constant; a positive one leaves minus infinity as it is.
    #[serde(skip)]
    Scale {
        is_positive: bool,
    },
}

/// An operator.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// A tensor that is given; the elements of a mask are zeros and ones.
    Input { name: String, is_mask: bool },
    /// One element.
    Constant(Number),
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

/// A dimension of a tensor: elements along it; and how some are absent, if parts are not of one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Extent {
    /// Elements along it.
    pub len: usize,
    /// Set if some are absent.
    pub ragged: Option<Ragged>,
}

/// Parts of an extent: all have the same size, but for what is left at the end. An axis of a grid or a loop that has no part in it cuts
/// one part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ragged {
    /// The extent.
    of: usize,
    /// Parts for the blocks along an axis, and that axis.
    blocks: (usize, usize),
    /// Parts of each of these for iterations, and the dimension of the loop.
    iterations: (usize, usize),
}

/// One element.
const ONE: Extent = Extent { len: 1, ragged: None };

impl Extent {
    fn depends_on(&self, dim: usize) -> bool {
        let is_cut = |&(parts, at): &(usize, usize)| parts > 1 && at == dim;
        self.ragged.is_some_and(|ragged| [ragged.blocks, ragged.iterations].iter().any(is_cut))
    }
}

/// A shape without absent elements.
pub fn extents(lens: &[usize]) -> Vec<Extent> {
    lens.iter().map(|&len| Extent { len, ragged: None }).collect()
}

/// The extents of a shape.
pub fn lens(shape: &[Extent]) -> Vec<usize> {
    shape.iter().map(|extent| extent.len).collect()
}

/// True if there is an element at an index.
pub fn is_present(shape: &[Extent], index: &[usize]) -> bool {
    let coordinate = |(parts, dim): (usize, usize)| if parts == 1 { 0 } else { index[dim] };
    shape.iter().zip(index).all(|(extent, &at)| {
        let Some(ragged) = extent.ragged else { return true };
        let size = ragged.of.div_ceil(ragged.blocks.0);
        let inner = coordinate(ragged.iterations) * extent.len + at;
        inner < size && coordinate(ragged.blocks) * size + inner < ragged.of
    })
}

/// Distances between neighbours of a tensor in row-major order; none where an extent of 1 is repeated.
pub fn steps(lens: &[usize]) -> Vec<usize> {
    let step = |at: usize| lens[at + 1..].iter().fold(1usize, |step, &len| step.wrapping_mul(len));
    lens.iter().enumerate().map(|(at, &len)| if len == 1 { 0 } else { step(at) }).collect()
}

/// How the axes of a grid cut a tensor: blocks along each axis, and the dimension that it cuts.
pub type Grid = [(usize, Option<usize>)];

/// The blocks of a dimension, and their axis.
fn blocks(grid: &Grid, dim: usize) -> (usize, usize) {
    let axis = grid.iter().position(|&(blocks, cut)| blocks > 1 && cut == Some(dim));
    axis.map_or((1, 0), |axis| (grid[axis].0, axis))
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
    pub fn push(&mut self, op: Op, args: &[usize], shape: Option<Vec<Extent>>) -> Result<usize> {
        let shape = shape.filter(|shape| shape.iter().all(|extent| extent.len > 0)).ok_or_else(|| {
            let shapes: Vec<Vec<usize>> = args.iter().map(|&arg| lens(self.shape(arg))).collect();
            format!("an operator does not suit operands of {shapes:?}")
        })?;
        ensure!(self.nodes.len() < MAX_NODES, "more than {MAX_NODES} tensors");
        ensure!(shape.len() <= MAX_RANK, "more than {MAX_RANK} dimensions with those of grid and loop");
        self.nodes.push(Node { op, args: args.to_vec(), shape });
        Ok(self.nodes.len() - 1)
    }

    /// The shape of a tensor.
    pub fn shape(&self, tensor: usize) -> &[Extent] {
        &self.nodes[tensor].shape
    }

    /// The extent of a dimension, along which elements may move: none are absent there, nor depends on it what is absent elsewhere.
    pub fn extent(&self, tensor: usize, dim: usize) -> Option<usize> {
        let is_even = !self.shape(tensor).iter().any(|extent| extent.depends_on(dim));
        let extent = self.shape(tensor).get(dim).filter(|extent| is_even && extent.ragged.is_none());
        extent.map(|extent| extent.len)
    }

    /// The inputs: name, whether it is a mask, extents.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, bool, Vec<usize>)> {
        self.nodes.iter().filter_map(|node| match &node.op {
            Op::Input { name, is_mask } => Some((name.as_str(), *is_mask, lens(&node.shape))),
            _ => None,
        })
    }

    /// The shape of what is computed of operands element by element, but for a dimension that gets another extent.
    fn together(&self, args: &[usize], other: Option<(usize, Extent)>) -> Option<Vec<Extent>> {
        let rank = self.shape(*args.first()?).len();
        let extent = |dim: usize| match other {
            Some((changed, extent)) if changed == dim => Some(extent),
            _ => args.iter().map(|&arg| self.shape(arg)[dim]).try_fold(ONE, |extent, own| match extent {
                ONE => Some(own),
                _ => (own == ONE || own == extent).then_some(extent),
            }),
        };
        let is_rank = args.iter().all(|&arg| self.shape(arg).len() == rank);
        let has_dim = other.is_none_or(|(dim, _)| dim < rank);
        if is_rank && has_dim { (0..rank).map(extent).collect() } else { None }
    }

    /// The program with masks that are given in place of those that are formulas. What holds for all masks holds for these.
    pub fn with_given_masks(&self) -> Program {
        let mut program = self.clone();
        for node in program.nodes.iter_mut().filter(|node| matches!(node.op, Op::Compare { .. })) {
            // No name in a text has a quotation mark in it.
            let name = format!("\"{:?} {:?}", node.op, lens(&node.shape));
            node.op = Op::Input { name, is_mask: true };
        }
        program
    }

    /// [`Op::Constant`], with extents of 1 for all dimensions of another tensor.
    pub fn constant(&mut self, number: Number, like: usize) -> Result<usize> {
        let shape = vec![ONE; self.shape(like).len()];
        self.push(Op::Constant(number), &[], Some(shape))
    }

    /// [`Op::Each`]
    pub fn each(&mut self, scalar: Scalar, args: &[usize]) -> Result<usize> {
        let is_unary =
            matches!(scalar, Scalar::Exp | Scalar::Sqrt | Scalar::Erf | Scalar::Reciprocal | Scalar::Guard);
        let shape = self.together(args, None).filter(|_| args.len() == if is_unary { 1 } else { 2 });
        self.push(Op::Each(scalar), args, shape)
    }

    /// [`Op::Reduce`]
    pub fn reduce(&mut self, scalar: Scalar, dim: usize, args: &[usize]) -> Result<usize> {
        let shape = self.together(args, Some((dim, ONE)));
        let shape = shape.filter(|shape| !shape.iter().any(|extent| extent.depends_on(dim)));
        self.push(Op::Reduce(scalar, dim), args, shape)
    }

    /// [`Op::Concat`]
    pub fn concat(&mut self, dim: usize, args: &[usize]) -> Result<usize> {
        let total = args.iter().try_fold(0usize, |sum, &arg| sum.checked_add(self.extent(arg, dim)?));
        let shape = total.and_then(|len| self.together(args, Some((dim, Extent { len, ragged: None }))));
        self.push(Op::Concat(dim), args, shape)
    }

    /// `[.., m, k] x [.., k, n] -> [.., m, n]`
    pub fn matmul(&mut self, args: &[usize]) -> Result<usize> {
        let shapes: Vec<&[Extent]> = args.iter().map(|&arg| self.shape(arg)).collect();
        let batch = match shapes[..] {
            [[lhs @ .., _, k], [rhs @ .., rows, _]] if lhs.len() == rhs.len() && k == rows => lhs.len(),
            _ => return Err("a matrix product does not suit its operands".into()),
        };
        let with = |last: &[Option<usize>]| [&(0..batch).map(Some).collect::<Vec<_>>(), last].concat();
        // Columns before rows: lines of the second operand, which may be large, are read once for all rows.
        let lhs = self.select(args[0], &with(&[None, Some(batch), Some(batch + 1)]))?;
        let rhs = self.select(args[1], &with(&[Some(batch + 1), None, Some(batch)]))?;
        let sum = self.reduce(Scalar::Add, batch + 2, &[lhs, rhs])?;
        self.select(sum, &with(&[Some(batch + 1), Some(batch)]))
    }

    /// [`Op::Move`]: for each dimension of the result its extent and what it adds.
    fn moved(&mut self, x: usize, dims: Option<Vec<(Extent, Vec<Part>)>>) -> Result<usize> {
        let (shape, parts) = dims.map(|dims| dims.into_iter().unzip()).unzip();
        self.push(Op::Move(parts.unwrap_or_default()), &[x], shape)
    }

    /// Dimensions of a tensor in an order, with new ones of extent 1; what is left out has extent 1.
    pub fn select(&mut self, x: usize, dims: &[Option<usize>]) -> Result<usize> {
        let own = self.shape(x);
        let is_once = |dim: usize| match dims.iter().filter(|taken| **taken == Some(dim)).count() {
            0 => own[dim].len == 1,
            count => count == 1,
        };
        let selected = |dim: &Option<usize>| match *dim {
            Some(dim) => own.get(dim).map(|&extent| (extent, vec![Part::of(dim)])),
            None => Some((ONE, Vec::new())),
        };
        let all = if (0..own.len()).all(is_once) { dims.iter().map(selected).collect() } else { None };
        self.moved(x, all)
    }

    /// Repeats extents of 1.
    pub fn broadcast(&mut self, x: usize, lens: &[usize]) -> Result<usize> {
        let repeated = |(dim, &extent): (usize, &Extent)| match lens[dim] {
            len if len == extent.len => Some((extent, vec![Part::of(dim)])),
            len => (extent.len == 1).then_some((Extent { len, ragged: None }, Vec::new())),
        };
        let own = self.shape(x).iter().enumerate();
        let all = if own.len() == lens.len() { own.map(repeated).collect() } else { None };
        self.moved(x, all)
    }

    /// Elements along a dimension at other places: how many, and where.
    fn along(&mut self, x: usize, dim: usize, f: impl Fn(usize) -> Option<(usize, Part)>) -> Result<usize> {
        let all = self.extent(x, dim).and_then(f).map(|(len, part)| {
            let mut all: Vec<_> =
                self.shape(x).iter().copied().zip((0..).map(|at| vec![Part::of(at)])).collect();
            all[dim] = (Extent { len, ragged: None }, vec![part]);
            all
        });
        self.moved(x, all)
    }

    /// Elements from a first one on.
    pub fn slice(&mut self, x: usize, dim: usize, (start, len): (usize, usize)) -> Result<usize> {
        let part = Part { start, ..Part::of(dim) };
        self.along(x, dim, |own| (start.checked_add(len)? <= own).then_some((len, part)))
    }

    /// Each element so many times.
    pub fn repeat(&mut self, x: usize, dim: usize, times: usize) -> Result<usize> {
        self.along(x, dim, |own| {
            Some((own.checked_mul(times)?, Part { divisor: times.max(1), ..Part::of(dim) }))
        })
    }

    /// Another shape, of the same elements in row-major order.
    pub fn reshape(&mut self, x: usize, shape: &[usize]) -> Result<usize> {
        let count = |lens: &[usize]| lens.iter().try_fold(1usize, |product, &len| product.checked_mul(len));
        let own = lens(self.shape(x));
        let digits = own.iter().zip(steps(&own)).enumerate();
        let digit = |(dim, (&modulus, step)): (usize, (&usize, usize))| Part {
            divisor: step.max(1),
            modulus,
            ..Part::of(dim)
        };
        let digits = digits.map(digit).collect();
        let total = count(&own).filter(|&total| count(shape) == Some(total));
        let flat = self.moved(x, total.map(|len| vec![(Extent { len, ragged: None }, digits)]))?;
        let parts = steps(shape).into_iter().map(|factor| vec![Part { factor, ..Part::of(0) }]);
        self.moved(flat, Some(extents(shape).into_iter().zip(parts).collect()))
    }

    /// Cuts a tensor in parts for the blocks and iterations of a kernel, which become its first dimensions.
    pub fn split(&mut self, x: usize, grid: &Grid, along: Option<usize>, count: usize) -> Result<usize> {
        let mut all = vec![(ONE, Vec::new()); grid.len() + 1];
        for (dim, extent) in self.shape(x).iter().enumerate() {
            let blocks = blocks(grid, dim);
            let iterations = (if along == Some(dim) { count } else { 1 }, grid.len());
            let size = extent.len.div_ceil(blocks.0);
            let len = size.div_ceil(iterations.0);
            for ((len, at), factor) in [(blocks, size), (iterations, len)] {
                if len > 1 {
                    all[at] = (Extent { len, ragged: None }, vec![Part { factor, ..Part::of(dim) }]);
                }
            }
            let is_even = extent.len.is_multiple_of(blocks.0) && size.is_multiple_of(iterations.0);
            let ragged = (!is_even).then_some(Ragged { of: extent.len, blocks, iterations });
            all.push((Extent { len, ragged }, vec![Part::of(dim)]));
        }
        self.moved(x, Some(all))
    }

    /// Puts together what blocks made.
    pub fn merge(&mut self, x: usize, grid: &Grid) -> Result<usize> {
        let whole = |(dim, extent): (usize, &Extent)| {
            let (count, axis) = blocks(grid, dim);
            let len = match extent.ragged {
                None => extent.len.checked_mul(count)?,
                Some(of) if count > 1 && of.blocks == (count, axis) && of.iterations.0 == 1 => of.of,
                Some(_) => return None,
            };
            let place = Part::of(grid.len() + 1 + dim);
            let digits =
                [Part { divisor: extent.len, ..Part::of(axis) }, Part { modulus: extent.len, ..place }];
            let parts = if count > 1 { digits.to_vec() } else { vec![place] };
            Some((Extent { len, ragged: None }, parts))
        };
        let all = self.shape(x)[grid.len() + 1..].iter().enumerate().map(whole).collect();
        self.moved(x, all)
    }
}
