//! Programs: operators on tensors, with the shapes of their results.
//!
//! There are seven operators. What moves elements, from a transpose to the cut of a tensor in tiles, is one of them, [`Op::Move`], and a
//! matrix product is a sum of products of two tensors that were moved. A kernel has no form of its own: what its blocks and iterations compute
//! is one tensor each, whose first dimensions are the axes of the grid and the loop. [`Program::load`] cuts dimensions, [`Program::store`] puts
//! their parts together, and all between are operators on these tensors. What an operator does to shapes it does to the indices of [`crate::alike`] as well.

use crate::alike::{Index, Indices, KEPT, REFUSED};
use std::collections::BTreeMap;

/// A value, or what is wrong with a text or a pair of programs.
pub type Result<T, E = String> = std::result::Result<T, E>;

/// Gives an error where something does not hold.
macro_rules! ensure {
    ($holds:expr, $($problem:tt)*) => {
        match $holds {
            true => {}
            false => return Err(format!($($problem)*)),
        }
    };
}
pub(crate) use ensure;

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
    /// `2 sqrt(2 / pi)`, whatever it is applied to.
    GeluFactor,
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
    /// One element: a numerator and a positive denominator.
    Constant(i64, i64),
    /// One where the index along a dimension is at most an offset, plus the index along another dimension if one is named; else zero.
    Compare { dim: usize, with: Option<usize>, offset: i128 },
    /// A function of elements, where extents of 1 are repeated.
    Each(Scalar),
    /// A function of the products of operands along a dimension, of which one element is left.
    Reduce(Scalar, usize),
    /// Operands side by side along a dimension.
    Concat(usize),
    /// Elements at other places: what indices of the result add to indices of the operand.
    Move(Vec<Part>),
}

/// `start + index / divisor % modulus * factor`, of the index along dimension `from` of the result, is added to that along dimension `to`
/// of the operand.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)]
pub struct Part {
    pub from: usize,
    pub to: usize,
    pub start: usize,
    pub divisor: usize,
    pub modulus: usize,
    pub factor: usize,
}

impl Part {
    /// The index itself.
    pub fn of(from: usize, to: usize) -> Part {
        Part { from, to, start: 0, divisor: 1, modulus: usize::MAX, factor: 1 }
    }

    /// Each of so many indices itself.
    fn all(rank: usize) -> Vec<Part> {
        (0..rank).map(|dim| Part::of(dim, dim)).collect()
    }

    /// What is added for an index.
    pub fn at(&self, index: usize) -> usize {
        self.start + index / self.divisor % self.modulus * self.factor
    }
}

/// A dimension of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Elements along it.
    pub len: usize,
    /// How many of them are computed, the first ones.
    pub computed: usize,
    /// Set if some are absent, because parts are not of one size.
    pub ragged: Option<Ragged>,
    /// What it counts.
    pub index: Index,
}

/// Parts of an extent: all have the same size, but for what is left at the end.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ragged {
    /// The extent.
    of: usize,
    /// It was cut twice at most, in parts of so many elements that are counted by another dimension; by `usize::MAX`, none, if less often.
    cuts: [(usize, usize); 2],
}

/// One element.
pub const ONE: Extent = Extent { len: 1, computed: 1, ragged: None, index: None };

impl Extent {
    /// All are there.
    pub fn new(len: usize, index: Index) -> Extent {
        Extent { len, computed: len, ragged: None, index: index.filter(|_| len > 1) }
    }

    /// Computes no more elements than stand for all of an index that is treated alike.
    pub fn cut(&mut self) {
        self.computed = self.index.map_or(self.len, |(_, unit)| self.len.min(KEPT.div_ceil(unit)));
    }

    /// Of how many elements it is, and which.
    pub fn size(&self) -> (usize, Option<Ragged>) {
        (self.len, self.ragged)
    }

    /// How many elements there are for an index of the tensor.
    pub fn present(&self, index: &[usize]) -> usize {
        let Some(Ragged { of, cuts }) = self.ragged else { return self.len };
        let [first, second] = cuts.map(|(size, dim)| index.get(dim).map_or(0, |at| at * size));
        let part = cuts[0].0.min(of.saturating_sub(first));
        self.len.min(part.saturating_sub(second))
    }

    fn depends_on(&self, dim: usize) -> bool {
        self.ragged.is_some_and(|ragged| ragged.cuts.iter().any(|(_, at)| *at == dim))
    }
}

/// The extents of a shape.
pub fn lens(shape: &[Extent]) -> Vec<usize> {
    shape.iter().map(|extent| extent.len).collect()
}

/// How many elements of each extent are computed.
pub fn computed(shape: &[Extent]) -> Vec<usize> {
    shape.iter().map(|extent| extent.computed).collect()
}

/// True if there is an element at an index.
pub fn is_present(shape: &[Extent], index: &[usize]) -> bool {
    shape.iter().zip(index).all(|(extent, &at)| at < extent.present(index))
}

/// Distances between neighbours of a tensor in row-major order; none where an extent of 1 is repeated.
pub fn steps(lens: &[usize]) -> Vec<usize> {
    let step = |at: usize| lens[at + 1..].iter().fold(1usize, |step, &len| step.wrapping_mul(len));
    lens.iter().enumerate().map(|(at, &len)| if len == 1 { 0 } else { step(at) }).collect()
}

/// The axes of a grid, or of a grid and a loop: how many parts along each, and the dimension of a tensor that it cuts.
pub type Grid = [(usize, Option<usize>)];

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

/// The numbers of tensors by their names.
pub type Tensors = BTreeMap<String, usize>;

/// A program.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Tensors, operands before what is computed of them.
    pub nodes: Vec<Node>,
    /// The results by name.
    pub outputs: Tensors,
    /// The indices of all dimensions.
    pub indices: Indices,
}

/// The most tensors of a program.
const MAX_NODES: usize = 100_000;
/// The most dimensions, with those of a grid and a loop, and one more in a matrix product.
const MAX_RANK: usize = 13;

impl Program {
    /// Adds a tensor, if it has a shape.
    pub fn push(&mut self, op: Op, args: &[usize], shape: Option<Vec<Extent>>) -> Result<usize> {
        let count = |shape: &[Extent]| shape.iter().try_fold(1usize, |all, own| all.checked_mul(own.len));
        let shape = shape.filter(|shape| count(shape).is_some_and(|count| count > 0)).ok_or_else(|| {
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

    /// Adds the tensors of another program, and gives its outputs. Inputs of one name, kind and shape are one. Masks that are
    /// formulas become inputs if `are_masks_given`: what holds for all masks holds for these.
    pub fn append(&mut self, other: &Program, inputs: &mut Tensors, are_masks_given: bool) -> Tensors {
        let (offset, mut numbers) = (self.indices.append(&other.indices), Vec::new());
        for node in &other.nodes {
            let mut node = node.clone();
            node.args.iter_mut().for_each(|arg| *arg = numbers[*arg]);
            let indices = node.shape.iter_mut().filter_map(|extent| extent.index.as_mut());
            indices.for_each(|(class, _)| *class += offset);
            match node.op {
                // No name in a text has a quotation mark in it.
                Op::Compare { .. } if are_masks_given => {
                    node.op = Op::Input { name: format!("\"{:?}", node.op), is_mask: true };
                }
                Op::Compare { dim, with, .. } => {
                    let compared = [dim, with.unwrap_or(dim)].map(|dim| node.shape[dim].index);
                    compared.iter().for_each(|&index| _ = self.indices.refuse(index));
                }
                _ => {}
            }
            let own = self.nodes.len();
            let number = match node.op {
                Op::Input { .. } => {
                    *inputs.entry(format!("{:?} {:?}", node.op, lens(&node.shape))).or_insert(own)
                }
                _ => own,
            };
            numbers.push(number);
            if number < own { self.join(number, &node.shape) } else { self.nodes.push(node) }
        }
        other.outputs.iter().map(|(name, tensor)| (name.clone(), numbers[*tensor])).collect()
    }

    /// Joins the indices of a tensor with those of another one of its shape.
    pub fn join(&mut self, tensor: usize, shape: &[Extent]) {
        let both = self.nodes[tensor].shape.iter().zip(shape);
        both.for_each(|(own, other)| _ = self.indices.join(own.index, other.index));
    }

    /// Adds what is computed of operands element by element, but for a dimension that gets another extent.
    fn together(&mut self, op: Op, args: &[usize], other: Option<(usize, Extent)>) -> Result<usize> {
        let mut shape = vec![ONE; args.first().map_or(0, |&arg| self.shape(arg).len())];
        let mut fits = !args.is_empty() && other.is_none_or(|(dim, _)| dim < shape.len());
        for &arg in args {
            fits &= self.shape(arg).len() == shape.len();
            for (dim, (all, own)) in shape.iter_mut().zip(&self.nodes[arg].shape).enumerate() {
                if let Some((_, extent)) = other.filter(|(changed, _)| *changed == dim) {
                    self.indices.refuse(own.index);
                    *all = extent;
                } else {
                    fits &= [all.size(), own.size()].contains(&ONE.size()) || all.size() == own.size();
                    let index = self.indices.join(all.index, own.index);
                    *all = Extent { index, ..if all.size() == ONE.size() { *own } else { *all } };
                }
            }
        }
        self.push(op, args, Some(shape).filter(|_| fits))
    }

    /// [`Op::Input`] or [`Op::Compare`], with indices that no other tensor has.
    pub fn given(&mut self, op: Op, lens: &[usize]) -> Result<usize> {
        let shape = lens.iter().map(|&len| self.indices.extent(len)).collect();
        self.push(op, &[], Some(shape))
    }

    /// [`Op::Each`]
    pub fn each(&mut self, scalar: Scalar, args: &[usize]) -> Result<usize> {
        let is_binary = matches!(scalar, Scalar::Add | Scalar::Mul | Scalar::Max | Scalar::Mask);
        ensure!(args.len() == if is_binary { 2 } else { 1 }, "{scalar:?} of {} operands", args.len());
        let scalar = match (scalar, &self.nodes[args[args.len() - 1]].op) {
            (Scalar::Mul, Op::Constant(num, _)) => Scalar::Scale { is_positive: *num > 0 },
            _ => scalar,
        };
        self.together(Op::Each(scalar), args, None)
    }

    /// [`Op::Reduce`]
    pub fn reduce(&mut self, scalar: Scalar, dim: usize, args: &[usize]) -> Result<usize> {
        let is_uneven = args.iter().flat_map(|&arg| self.shape(arg)).any(|extent| extent.depends_on(dim));
        ensure!(!is_uneven, "a sum along it does not suit parts that are uneven");
        self.together(Op::Reduce(scalar, dim), args, Some((dim, ONE)))
    }

    /// [`Op::Concat`]
    pub fn concat(&mut self, dim: usize, args: &[usize]) -> Result<usize> {
        let total = args.iter().try_fold(0usize, |sum, &arg| sum.checked_add(self.extent(arg, dim)?));
        let extent = Extent::new(total.unwrap_or(0), REFUSED);
        self.together(Op::Concat(dim), args, Some((dim, extent)))
    }

    /// `[.., m, k] x [.., k, n] -> [.., m, n]`
    pub fn matmul(&mut self, args: &[usize]) -> Result<usize> {
        let shapes: Vec<&[Extent]> = args.iter().map(|&arg| self.shape(arg)).collect();
        let problem = "a matrix product does not suit its operands";
        let [[lhs @ .., _, k], [rhs @ .., rows, _]] = shapes[..] else { return Err(problem.into()) };
        ensure!(lhs.len() == rhs.len() && k.size() == rows.size(), "{problem}");
        let m = lhs.len();
        let batch: Vec<Vec<usize>> = (0..m).map(|dim| vec![dim]).collect();
        let with = |last: &[Vec<usize>]| [&batch, last].concat();
        let lhs = self.arrange(args[0], &with(&[vec![m], vec![], vec![m + 1]]))?;
        let rhs = self.arrange(args[1], &with(&[vec![], vec![m + 1], vec![m]]))?;
        let sum = self.reduce(Scalar::Add, m + 2, &[lhs, rhs])?;
        self.arrange(sum, &with(&[vec![m], vec![m + 1]]))
    }

    /// A tensor with dimensions that are made of another one's: of none an extent of 1, of several one of which they are the digits, the
    /// most significant one first. What is left out has an extent of 1.
    pub fn arrange(&mut self, x: usize, dims: &[Vec<usize>]) -> Result<usize> {
        let (mut shape, mut parts) = (Vec::new(), Vec::new());
        for (from, digits) in dims.iter().enumerate() {
            let mut whole = ONE;
            for &to in digits.iter().rev() {
                let extent = self.shape(x)[to];
                parts.push(Part { divisor: whole.len, modulus: extent.len, ..Part::of(from, to) });
                whole = self.whole((to, extent), whole)?;
            }
            shape.push(whole);
        }
        self.push(Op::Move(parts), &[x], Some(shape))
    }

    /// The extent of which the number of a part, along a dimension, and the place in it are the digits.
    fn whole(&mut self, (dim, number): (usize, Extent), place: Extent) -> Result<Extent> {
        if place.size() == ONE.size() {
            return Ok(number);
        }
        let len = match place.ragged {
            None => number.len.checked_mul(place.len),
            Some(Ragged { of, cuts }) => Some(of).filter(|_| cuts == [(of, usize::MAX), (place.len, dim)]),
        };
        let len = len.filter(|_| number.ragged.is_none()).ok_or("it does not suit parts that are uneven")?;
        Ok(Extent::new(len, self.indices.whole(number.index, &place)))
    }

    /// Cuts a dimension in parts, which another one counts that had an extent of 1. If they are uneven, all but the last one have a
    /// multiple of 16 elements, unless one would be empty then.
    pub fn cut(&mut self, x: usize, dim: usize, (count, number): (usize, usize)) -> Result<usize> {
        let (mut shape, mut parts) = (self.shape(x).to_vec(), Part::all(self.shape(x).len()));
        let Extent { len, ragged, index, .. } = shape[dim];
        let (least, is_even) = (len.div_ceil(count), len.is_multiple_of(count));
        let whole = least.next_multiple_of(16);
        let size = if is_even || (count - 1).saturating_mul(whole) >= len { least } else { whole };
        let Ragged { of, cuts } = ragged.unwrap_or(Ragged { of: len, cuts: [(len, usize::MAX); 2] });
        let ragged = (ragged.is_some() || !is_even).then_some(Ragged { of, cuts: [cuts[1], (size, number)] });
        shape[number] = Extent::new(count, index.map(|(class, unit)| (class, unit.saturating_mul(size))));
        shape[dim] = Extent { ragged, ..Extent::new(size, index) };
        parts[number] = Part { factor: size, ..Part::of(number, dim) };
        self.push(Op::Move(parts), &[x], Some(shape))
    }

    /// Repeats extents of 1.
    pub fn broadcast(&mut self, x: usize, lens: &[usize]) -> Result<usize> {
        let mut shape = self.shape(x).to_vec();
        let mut fits = shape.len() == lens.len();
        for (extent, &len) in shape.iter_mut().zip(lens).filter(|(extent, len)| extent.len != **len) {
            fits &= extent.len == 1;
            *extent = self.indices.extent(len);
        }
        self.push(Op::Move(Part::all(shape.len())), &[x], Some(shape).filter(|_| fits))
    }

    /// Elements along a dimension at other places: how many, and where.
    fn along(&mut self, x: usize, dim: usize, f: impl Fn(usize) -> Option<(usize, Part)>) -> Result<usize> {
        let (mut shape, found) = (self.shape(x).to_vec(), self.extent(x, dim).and_then(f));
        let mut parts = Part::all(shape.len());
        if let Some((len, part)) = found.filter(|(len, part)| (*len, *part) != (shape[dim].len, parts[dim])) {
            self.indices.refuse(shape[dim].index);
            (shape[dim], parts[dim]) = (Extent::new(len, REFUSED), part);
        }
        self.push(Op::Move(parts), &[x], Some(shape).filter(|_| found.is_some()))
    }

    /// Elements from a first one on.
    pub fn slice(&mut self, x: usize, dim: usize, (start, len): (usize, usize)) -> Result<usize> {
        let part = Part { start, ..Part::of(dim, dim) };
        self.along(x, dim, |own| (start.checked_add(len)? <= own).then_some((len, part)))
    }

    /// Each element so many times.
    pub fn repeat(&mut self, x: usize, dim: usize, times: usize) -> Result<usize> {
        let part = Part { divisor: times.max(1), ..Part::of(dim, dim) };
        self.along(x, dim, |own| Some((own.checked_mul(times)?, part)))
    }

    /// Another shape, of the same elements in row-major order.
    pub fn reshape(&mut self, x: usize, shape: &[usize]) -> Result<usize> {
        let total = shape.iter().try_fold(1usize, |all, &len| all.checked_mul(len));
        let own = lens(self.shape(x));
        ensure!(total == Some(own.iter().product()), "a shape of {shape:?} does not suit {own:?}");
        let all = (0..own.len()).collect();
        let dims: Vec<_> = (1..shape.len()).map(|_| vec![]).chain([all]).take(shape.len()).collect();
        let flat = self.arrange(x, &dims)?;
        let last = shape.len().saturating_sub(1);
        (0..last).try_fold(flat, |x, number| self.cut(x, last, (shape[number], number)))
    }

    /// Cuts a tensor in parts for blocks and iterations, which its first dimensions count.
    pub fn load(&mut self, x: usize, grid: &Grid) -> Result<usize> {
        let own = (0..self.shape(x).len()).map(|dim| vec![dim]);
        let dims: Vec<_> = grid.iter().map(|_| vec![]).chain(own).collect();
        let tile = self.arrange(x, &dims)?;
        let cuts = (0..).zip(grid).filter_map(|(axis, &(count, cut))| Some((axis, count, cut?)));
        cuts.filter(|(_, count, _)| *count > 1)
            .try_fold(tile, |tile, (axis, count, dim)| self.cut(tile, grid.len() + dim, (count, axis)))
    }

    /// Puts together what the blocks of a grid made after the loop.
    pub fn store(&mut self, tile: usize, grid: &Grid) -> Result<usize> {
        let mut lens = lens(self.shape(tile));
        lens.iter_mut().zip(grid).for_each(|(len, (count, _))| *len = *count);
        let tile = self.broadcast(tile, &lens)?;
        let axis = |dim: usize| grid.iter().position(|&(count, cut)| count > 1 && cut == Some(dim));
        let dims = (grid.len() + 1..lens.len()).enumerate();
        let dims: Vec<Vec<usize>> =
            dims.map(|(dim, own)| axis(dim).into_iter().chain([own]).collect()).collect();
        let whole = self.arrange(tile, &dims)?;
        let is_even = self.shape(whole).iter().all(|extent| extent.ragged.is_none());
        ensure!(is_even, "it does not suit parts that are uneven");
        Ok(whole)
    }
}
