//! The meaning of a program over any kind of values, element by element.

use crate::program::{Extent, Node, Op, Program, Result, Scalar, computed, is_present, lens, steps};

/// A kind of values.
pub trait Domain {
    /// An element.
    type Value: Copy;
    /// An error if there is no time left; called often.
    fn check(&self) -> Result<()> {
        Ok(())
    }
    /// An element of an input: the tensor, whether it is a mask, position.
    fn input(&self, tensor: usize, is_mask: bool, at: usize) -> Self::Value;
    /// A numerator by a positive denominator.
    fn constant(&self, num: i64, den: i64) -> Result<Self::Value>;
    /// A function of numbers.
    fn apply(&mut self, scalar: Scalar, args: &[Self::Value]) -> Result<Self::Value>;
    /// An element of a tensor that is given or computed.
    fn element(&self, _tensor: usize, value: Self::Value) -> Self::Value {
        value
    }
}

/// Where the elements of a tensor are: in which tensor, where the first one is, and the distance between neighbours along each dimension.
struct Strided {
    tensor: usize,
    first: usize,
    steps: Vec<usize>,
}

impl Strided {
    /// The place of an element; where an extent of 1 is repeated, of that one.
    #[inline(always)]
    fn place(&self, index: &[usize]) -> usize {
        self.first + index.iter().zip(&self.steps).map(|(index, step)| index * step).sum::<usize>()
    }
}

/// Inputs of more elements are not held: an element is made when it is read.
const LARGE: usize = 1 << 18;

/// True if the elements of a tensor are held.
fn is_held(node: &Node) -> bool {
    match &node.op {
        Op::Input { .. } => computed(&node.shape).iter().product::<usize>() < LARGE,
        // What keeps equal distances is a view.
        Op::Move(parts) => {
            parts.iter().any(|part| part.divisor > 1 || part.modulus < node.shape[part.from].computed)
        }
        _ => true,
    }
}

/// Where the elements of each tensor are.
fn views(program: &Program) -> Vec<Strided> {
    let mut views: Vec<Strided> = Vec::new();
    for (tensor, node) in program.nodes.iter().enumerate() {
        let sizes = computed(&node.shape);
        views.push(match &node.op {
            Op::Move(parts) if !is_held(node) => {
                let Strided { tensor, mut first, steps: ref own } = views[node.args[0]];
                let mut steps = vec![0; sizes.len()];
                for part in parts {
                    first += part.start * own[part.to];
                    steps[part.from] += if sizes[part.from] > 1 { part.factor * own[part.to] } else { 0 };
                }
                Strided { tensor, first, steps }
            }
            // The place of an element of an input is what it is drawn by.
            _ if !is_held(node) => Strided { tensor, first: 0, steps: steps(&lens(&node.shape)) },
            _ => Strided { tensor, first: 0, steps: steps(&sizes) },
        });
    }
    views
}

/// An evaluation.
struct Evaluation<'a, D: Domain> {
    domain: &'a mut D,
    program: &'a Program,
    views: Vec<Strided>,
    /// Elements of tensors, as far as they are held and will be read.
    held: Vec<Vec<D::Value>>,
    zero_and_one: [D::Value; 2],
}

impl<D: Domain> Evaluation<'_, D> {
    /// An element of an input that is not held.
    #[inline(always)]
    fn drawn(&self, tensor: usize, place: usize) -> D::Value {
        let Op::Input { is_mask, .. } = self.program.nodes[tensor].op else { unreachable!("it is held") };
        self.domain.element(tensor, self.domain.input(tensor, is_mask, place))
    }

    /// An element of a tensor.
    fn get(&self, tensor: usize, index: &[usize]) -> D::Value {
        let view = &self.views[tensor];
        let place = view.place(index);
        self.held[view.tensor].get(place).copied().unwrap_or_else(|| self.drawn(view.tensor, place))
    }

    /// So many elements of a tensor along a dimension, from an index on.
    fn line(&self, tensor: usize, index: &[usize], dim: usize, count: usize) -> Vec<D::Value> {
        let view = &self.views[tensor];
        let (start, step) = (view.place(index), view.steps[dim]);
        let places = (0..count).map(|number| start + number * step);
        match &self.held[view.tensor][..] {
            [] => places.map(|place| self.drawn(view.tensor, place)).collect(),
            held => places.map(|place| held[place]).collect(),
        }
    }

    /// Computes an element of a tensor.
    fn element(&mut self, tensor: usize, index: &[usize]) -> Result<D::Value> {
        let Node { op, args, shape } = &self.program.nodes[tensor];
        Ok(match op {
            Op::Input { is_mask, .. } => {
                let place = index.iter().zip(steps(&lens(shape))).map(|(index, step)| index * step).sum();
                self.domain.input(tensor, *is_mask, place)
            }
            Op::Constant(num, den) => self.domain.constant(*num, *den)?,
            Op::Compare { dim, with, offset } => {
                let limit = offset + with.map_or(0, |with| index[with] as i128);
                self.zero_and_one[usize::from(index[*dim] as i128 <= limit)]
            }
            Op::Each(scalar) => {
                // Functions have one operand or two.
                let mut items = self.zero_and_one;
                items.iter_mut().zip(args).for_each(|(item, &arg)| *item = self.get(arg, index));
                self.domain.apply(*scalar, &items[..args.len()])?
            }
            Op::Reduce(scalar, dim) => {
                let depth = self.program.shape(args[0])[*dim].present(index);
                let mut items = self.line(args[0], index, *dim, depth);
                for &arg in &args[1..] {
                    for (item, factor) in items.iter_mut().zip(self.line(arg, index, *dim, depth)) {
                        *item = self.domain.apply(Scalar::Mul, &[*item, factor])?;
                    }
                }
                self.domain.apply(*scalar, &items)?
            }
            Op::Concat(dim) => {
                let (mut from, mut operands) = (index.to_vec(), args.iter().copied());
                let mut next = || operands.next().expect("an index is less than the sum of extents");
                let mut operand = next();
                while let Some(rest) = from[*dim].checked_sub(self.program.shape(operand)[*dim].len) {
                    (from[*dim], operand) = (rest, next());
                }
                self.get(operand, &from)
            }
            Op::Move(parts) => {
                let mut from = vec![0; self.program.shape(args[0]).len()];
                parts.iter().for_each(|part| from[part.to] += part.at(index[part.from]));
                self.get(args[0], &from)
            }
        })
    }
}

/// Gives the numbers and indices of all elements, in order, as far as they are present.
fn visit(shape: &[Extent], mut f: impl FnMut(usize, &[usize]) -> Result<()>) -> Result<()> {
    let sizes = computed(shape);
    let mut index = vec![0; sizes.len()];
    for number in 0..sizes.iter().product() {
        if is_present(shape, &index) {
            f(number, &index)?;
        }
        // The last dimension that does not end here goes on, those behind it begin again.
        let next = (0..sizes.len()).rev().find(|&dim| index[dim] + 1 < sizes[dim]).unwrap_or(0);
        index[next..].iter_mut().enumerate().for_each(|(at, i)| *i = if at == 0 { *i + 1 } else { 0 });
    }
    Ok(())
}

/// The elements, in order, of tensors that are wanted.
///
/// # Errors
/// Why there are none.
pub fn evaluate<D: Domain>(
    domain: &mut D,
    program: &Program,
    wanted: &[usize],
) -> Result<Vec<Vec<D::Value>>> {
    let zero_and_one = [domain.constant(0, 1)?, domain.constant(1, 1)?];
    let (views, held) = (views(program), vec![Vec::new(); program.nodes.len()]);
    let mut evaluation = Evaluation { domain, program, views, held, zero_and_one };
    // Where each tensor is read last.
    let mut last = vec![0; program.nodes.len()];
    for (at, node) in program.nodes.iter().enumerate() {
        node.args.iter().for_each(|&arg| last[evaluation.views[arg].tensor] = at);
    }
    wanted.iter().for_each(|&tensor| last[evaluation.views[tensor].tensor] = usize::MAX);
    for (at, node) in program.nodes.iter().enumerate() {
        if is_held(node) {
            let mut elements = vec![zero_and_one[0]; computed(&node.shape).iter().product()];
            visit(&node.shape, |number, index| {
                if number.is_multiple_of(256) {
                    evaluation.domain.check()?;
                }
                let value = evaluation.element(at, index)?;
                elements[number] = evaluation.domain.element(at, value);
                Ok(())
            })?;
            evaluation.held[at] = elements;
        }
        let sources = node.args.iter().map(|&arg| evaluation.views[arg].tensor);
        for source in sources.filter(|&source| last[source] == at) {
            evaluation.held[source] = Vec::new();
        }
    }
    let mut values = vec![Vec::new(); wanted.len()];
    for (values, &tensor) in values.iter_mut().zip(wanted) {
        visit(program.shape(tensor), |_, index| {
            values.push(evaluation.get(tensor, index));
            Ok(())
        })?;
    }
    Ok(values)
}

/// What an evaluation takes: elementary operations, and elements that are held, or wanted.
pub fn cost(program: &Program, wanted: &[usize]) -> [f64; 2] {
    let mut cost = [0.0; 2];
    let is_held = |tensor: &usize| is_held(&program.nodes[*tensor]);
    let others = wanted.iter().copied().filter(|tensor| !is_held(tensor));
    for tensor in (0..program.nodes.len()).filter(is_held).chain(others) {
        let Node { op, args, shape } = &program.nodes[tensor];
        let count = shape.iter().map(|extent| extent.computed as f64).product::<f64>();
        // Elements along the dimension that is reduced.
        let depth = if let Op::Reduce(_, dim) = op { program.shape(args[0])[*dim].len as f64 } else { 1.0 };
        cost = [cost[0] + count * depth, cost[1] + count + 3.0 * depth];
    }
    cost
}
